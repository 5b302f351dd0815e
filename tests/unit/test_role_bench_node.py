"""What the role `bench` looks at and runs on a host: the real module, made-up trees and real programs."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Callable

    Jobs = Callable[..., None]

NODE = load_role_module("bench", "bench_node")
TIERS = ["checks", "quick", "deep"]
NOW = {"driver": "6.10", "firmware": "1", "kernel": "6.1", "profile": "abc"}


def passed(**other: Any) -> dict[str, Any]:
    """Return the note of a pass."""
    return {"schema": "primus.bench-pass/1", "tier": "quick", "fingerprint": NOW, **other}


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Return how to say which jobs are seen, one look after the other; the last answer stays."""

    def seen(*looks: list[str]) -> None:
        left = list(looks)
        monkeypatch.setattr(NODE, "running_jobs", lambda: left.pop(0) if len(left) > 1 else left[0])

    return seen


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
    done = NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 6}, tmp_path)

    assert done["error"] == "no answer within 6 s"
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


def test_a_step_keeps_its_temporary_files_in_its_own_folder(tmp_path: Path) -> None:
    """Nothing that it runs uses a name below /tmp, where another account could have put a cache of code or a lock for root."""
    script = "import tempfile; print(tempfile.gettempdir())"
    done = NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 30}, tmp_path)

    assert done["stdout"].strip() == str(tmp_path)


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path, jobs: Jobs) -> None:
    """And the next step runs; the folders of both are gone afterwards."""
    jobs([])
    steps = [
        {"name": "a", "argv": ["/nowhere/primus-cli"], "timeout_s": 5, "alone": True},
        {"name": "b", "argv": [sys.executable, "-c", "print(1)"], "timeout_s": 30, "alone": True},
    ]
    first, second = NODE.measure(steps, tmp_path)

    assert first["error"] == "/nowhere/primus-cli: No such file or directory"
    assert second["stdout"] == "1\n"
    assert list(tmp_path.iterdir()) == []


def steps(*names: str, argv: tuple[str, ...] = ("true",)) -> list[dict[str, Any]]:
    """Return steps, each of which must be alone on the host; not so `preflight`."""
    return [{"name": name, "argv": list(argv), "timeout_s": 30, "alone": name != "preflight"} for name in names]


def test_what_must_be_alone_is_left_out_beside_jobs(tmp_path: Path, jobs: Jobs) -> None:
    """Jobs are looked for again before each step: one that came since the look is not disturbed, and what runs after it is measured."""
    jobs(["Slurm job 7"], ["Slurm job 7"], [])
    done = NODE.measure(steps("preflight", "gemm", "attention", argv=("sh", "-c", "touch ran; exit 3")), tmp_path)
    jobs([], [], ["Slurm job 8"])
    later = NODE.measure(steps("preflight", "gemm", "attention", "storage"), tmp_path)

    assert [(one["code"], one["error"], one["jobs"]) for one in done] == [
        (3, "", ["Slurm job 7"]),
        (-1, "it was left out", ["Slurm job 7"]),
        (-1, "it was left out", ["Slurm job 7"]),
    ]
    assert [(one["error"], one["jobs"]) for one in later] == [
        ("", []),
        ("", ["Slurm job 8"]),
        ("it was left out", ["Slurm job 8"]),
        ("it was left out", ["Slurm job 8"]),
    ]


def test_a_job_that_has_ended_stands_with_the_step_that_it_was_beside(tmp_path: Path, jobs: Jobs) -> None:
    """What was looked at beside it says so; the next step has the host for itself."""
    jobs(["Slurm job 7"], [])
    done = NODE.measure(steps("preflight", "gemm"), tmp_path)

    assert [(one["error"], one["jobs"]) for one in done] == [("", ["Slurm job 7"]), ("", [])]


def test_a_tier_takes_no_longer_than_its_time(tmp_path: Path, jobs: Jobs) -> None:
    """A step is ended when the time is over, and what comes after it does not begin; each says so."""
    jobs([])
    done = NODE.measure(steps("gemm", "attention", argv=("sleep", "20")), tmp_path, 0.5)

    assert [one["error"] for one in done] == [
        "the tier's time was over, 0 s after it had begun",
        "the tier's time was over before it began",
    ]
    assert sum(one["seconds"] for one in done) < 10


def test_what_a_step_left_is_ended_before_jobs_are_looked_for(tmp_path: Path, jobs: Jobs) -> None:
    """Its own ranks are no job."""
    jobs([])
    order: list[str] = []
    NODE.measure(steps("gemm", "attention"), tmp_path, tidy=lambda: order.append("tidy"))

    assert order == ["tidy", "tidy"]


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


def process(root: Path, pid: str, name: str, *opened: str, group: str = "0::/user.slice") -> None:
    """Put a process into a made-up /proc, with the files that it has open."""
    folder = root / "proc" / pid
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_text(f"/usr/bin/{name}\0--token=secret\0")
    (folder / "comm").write_text(f"{name[:15]}\n")
    (folder / "cgroup").write_text(f"{group}\n")
    for number, target in enumerate(("/dev/null", *opened)):
        (folder / "fd" / str(number)).symlink_to(target)


@pytest.mark.parametrize("device", ["/dev/kfd", "/dev/nvidia-uvm"])
def test_whatever_computes_on_a_gpu_is_a_job(tmp_path: Path, device: str) -> None:
    """Pods, whose control groups systemd or the kubelet itself makes, and what somebody started by hand: with number and name.

    Not who only watches GPUs; and what Slurm or primus-watch started is named once.
    """
    (tmp_path / "dev").mkdir()
    (tmp_path / device[1:]).touch()
    pod, other = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-1.scope", "kubepods/besteffort/2"
    process(tmp_path, "20", "python3", device, group=f"0::/{pod}")
    process(tmp_path, "21", "vllm", device, group=f"11:devices:/{other}\n0::/")
    process(tmp_path, "22", "jupyter-lab", "/dev/dri/renderD128", device)
    process(tmp_path, "30", "nvidia-device-plugin", "/dev/nvidiactl", "/dev/nvidia0", group=f"0::/{pod}")
    process(tmp_path, "31", "amd-metrics-exporter", "/dev/dri/renderD128", device, group=f"0::/{pod}")
    process(tmp_path, "32", "nvidia-persistenced", device)
    process(tmp_path, "40", "python3", device, group="0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0")
    process(tmp_path, "41", "python3", device, group="0::/system.slice/primus-job-try-1.service")

    assert NODE.running_jobs(tmp_path) == [
        "Slurm job 42",
        "primus-job-try-1",
        f"process 20 (python3) of a pod on {device}",
        f"process 21 (vllm) of a pod on {device}",
        f"process 22 (jupyter-lab) on {device}",
    ]


def test_where_it_cannot_be_told_who_computes_there_is_perhaps_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is unknown what was measured beside it; a host without GPUs is not asked, and a process that has ended holds nothing."""
    for pid in ("20", "21"):
        process(tmp_path, pid, "dbus-daemon", "/dev/kfd")

    def refuse(path: Path) -> list[str]:
        if path.parent.name == "21":
            raise ProcessLookupError
        raise PermissionError

    monkeypatch.setattr(os, "listdir", refuse)
    without = NODE.running_jobs(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    found = NODE.running_jobs(tmp_path)

    assert without == []
    assert found == ["perhaps one: of 1 processes it cannot be read which files they have open, as of 20 (dbus-daemon)"]
