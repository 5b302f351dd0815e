"""What the role `bench` looks at and runs on a host: the real module, made-up trees and real programs."""

from __future__ import annotations

import ctypes
import fcntl
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_module import load_role_module

NODE = load_role_module("bench", "bench_node")
TIERS = ["checks", "quick", "deep"]
NOW = {"driver": "6.10", "firmware": "1", "kernel": "6.1", "profile": "abc"}


def passed(**other: Any) -> dict[str, Any]:
    """Return the note of a pass."""
    return {"schema": "primus.bench-pass/1", "tier": "quick", "fingerprint": NOW, **other}


def lives(pid: str) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not."""
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("before", "tier", "why"),
    [
        ({}, "quick", "it has never passed"),
        (passed(), "quick", ""),
        (passed(), "checks", ""),
        (passed(), "deep", "the last pass was of the tier quick"),
        (passed(tier="gone"), "quick", "the last pass was of the tier gone"),
        (passed(fingerprint={**NOW, "driver": "6.9", "kernel": "6.0"}), "quick", "changed since the last pass: driver, kernel"),
        (passed(fingerprint={}), "checks", "changed since the last pass: driver, firmware, kernel, profile"),
    ],
)
def test_a_bench_is_due_after_a_change_and_for_a_higher_tier(before: dict[str, Any], tier: str, why: str) -> None:
    """What passed with the same software in this tier, or in a higher one, is not measured again."""
    assert NODE.why_due(before, NOW, tier, TIERS) == why


def test_the_fingerprint_follows_driver_firmware_kernel_and_profile(tmp_path: Path) -> None:
    """Each of them alone changes it; another time of writing does not."""
    files = {
        "sys/module/amdgpu/version": "6.10.5\n",
        "sys/class/infiniband/mlx5_0/fw_ver": "28.39\n",
        "proc/sys/kernel/osrelease": "6.1.0\n",
        "etc/primus/gpu.json": json.dumps({"count": 8, "profile": {"variables": [{"variable": "A", "value": "1"}]}}),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = NODE.fingerprint(tmp_path)
    (tmp_path / "etc/primus/gpu.json").write_text(json.dumps({"count": 8, "profile": {"variables": [{"variable": "A", "value": "2"}]}}))

    assert (found["driver"], found["firmware"], found["kernel"]) == ("6.10.5", "28.39", "6.1.0")
    assert found["profile"] != NODE.fingerprint(tmp_path)["profile"]
    assert NODE.count_gpus(tmp_path) == 8
    assert NODE.fingerprint(tmp_path / "empty") == dict.fromkeys(NOW, "")


def test_a_step_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    """It has an error, and neither it nor its child lives on."""
    child = tmp_path / "child"
    script = f"import subprocess,time,sys; p=subprocess.Popen(['sleep','300']); open({str(child)!r},'w').write(str(p.pid)); time.sleep(300)"
    started = time.monotonic()
    done = NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 3}, tmp_path)

    assert done["error"] == "no answer within 3 s"
    assert time.monotonic() - started < 30
    assert not lives(child.read_text())


def test_what_a_step_started_has_time_to_end_by_itself(tmp_path: Path) -> None:
    """The step's own process is gone at once; its child tidies up for a second, and only then is the step over."""
    child = "trap 'sleep 1; touch tidy; exit' TERM; touch ready; while :; do sleep 0.1; done"
    script = f"import os,subprocess,time\nsubprocess.Popen(['bash', '-c', {child!r}])\nwhile not os.path.exists('ready'): time.sleep(0.05)"
    done = NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 20}, tmp_path)

    assert (done["code"], done["error"]) == (0, "")
    assert (tmp_path / "tidy").exists()


def test_orphans_that_have_ended_are_not_waited_for(tmp_path: Path) -> None:
    """Where this process takes orphans in, as the one does that keeps the limit of a run over several hosts, it reaps them too."""
    script = "import os,subprocess,time\nsubprocess.Popen(['sleep', '300'])"
    prctl = ctypes.CDLL(None).prctl
    prctl(NODE._PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started = time.monotonic()
    try:
        NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 20}, tmp_path)
    finally:
        prctl(NODE._PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    assert time.monotonic() - started < NODE.GRACE_S


def test_a_step_gives_its_results_its_exit_code_and_what_it_said(tmp_path: Path) -> None:
    """Results lie anywhere below its own folder."""
    write = "os.makedirs('{run}/out/a'); open('{run}/out/a/results.jsonl','w').write('one\\n\\ntwo\\n')"
    script = f"import os,sys; {write}; print('o'); sys.exit('e')"
    done = NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 30}, tmp_path)

    assert (done["code"], done["error"], done["results"]) == (1, "", ["one", "two"])
    assert (done["stdout"], done["stderr"]) == ("o\n", "e\n")


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """And the next step runs; the folders of both are gone afterwards."""
    steps = [
        {"name": "a", "argv": ["/nowhere/primus-cli"], "timeout_s": 5},
        {"name": "b", "argv": [sys.executable, "-c", "print(1)"], "timeout_s": 30},
    ]
    first, second = NODE.measure(steps, tmp_path)

    assert first["error"] == "/nowhere/primus-cli: No such file or directory"
    assert second["stdout"] == "1\n"
    assert list(tmp_path.iterdir()) == []


def test_two_benches_on_one_host_exclude_each_other(tmp_path: Path) -> None:
    """The second waits, and says that it could not have the host."""
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with NODE.alone(tmp_path / "lock", 0.6) as free:
            assert free is False
    with NODE.alone(tmp_path / "lock", 0.6) as free:
        assert free is True


def test_jobs_are_found_by_slurms_steps_and_the_watchers_units(tmp_path: Path) -> None:
    """The process that only keeps Slurm's control groups is no job."""
    for pid, words in {
        "10": "slurmstepd: [42.batch]\0",
        "11": "slurmstepd: [42.0]\0",
        "12": "/usr/sbin/slurmstepd\0infinity\0",
        "13": "sh\0",
    }.items():
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "cmdline").write_text(words)
    # In a container, control groups of version 1; on a host, version 2.
    (tmp_path / "proc/13/cgroup").write_text("9:name=systemd:/parent/c0ffee/system.slice/primus-job-try-1.service\n8:pids:/parent/c0ffee\n")
    (tmp_path / "proc/12/cgroup").write_text("0::/system.slice/primus-job-other-2.service/rank0\n")

    assert NODE.running_jobs(tmp_path) == ["Slurm job 42", "primus-job-other-2", "primus-job-try-1"]
    assert NODE.running_jobs(tmp_path / "nothing") == []
