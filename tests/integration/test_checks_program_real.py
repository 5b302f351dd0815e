"""The task `preflight` and `primus-cli preflight`, as a user runs them, and the manual of the checks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.verdicts import OUTCOMES, parse_verdict
from primus_bootstrap.launch import zipapp_file
from primus_bootstrap.launch.checks.model import PREFIX
from tests.unit.checks_rig import CHECKS, amd_machine, is_running, nvidia_machine, plain_machine
from tests.unit.launch_cli_rig import ROOT, User, wait_for
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def verdicts(text: str) -> dict[str, set[str]]:
    """Return the verdicts of each record of printed JSON."""
    found: dict[str, set[str]] = {}
    for record in json.loads(text)["verdicts"]:
        found.setdefault(record["check"].removeprefix(PREFIX), set()).add(record["verdict"])
    return found


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run preflight as the zipapp and the task do."""
    code = "import sys; from primus_bootstrap.launch.__main__ import main; sys.exit(main())"
    known = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **environment}
    command = [sys.executable, "-c", code, "preflight", *words]
    return subprocess.run(command, env=known, capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL)


def test_the_exit_code_tells_whether_everything_passed(tmp_path: Path) -> None:
    """0 where all passed or were skipped, 4 where something failed, 4 where something is unknown."""
    machine = plain_machine(tmp_path)
    words = ("--sysfs", str(machine.root), "--checks", "numa_balancing,gpu_ecc")
    good = run(*words)
    machine.write("proc/sys/kernel/numa_balancing", 1)
    bad = run(*words)
    machine.write("proc/sys/kernel/numa_balancing", "?")
    strange = run(*words)

    assert (good.returncode, bad.returncode, strange.returncode) == (0, 4, 4), good.stderr + bad.stderr + strange.stderr
    assert "pass    preflight_numa_balancing: off" in good.stdout
    assert "skipped preflight_gpu_ecc: no GPU on the PCI bus" in good.stdout
    assert "fail    preflight_numa_balancing: on NUMA balancing is on\n          fix: apply the phase baseline" in bad.stdout
    assert strange.stdout.endswith("0 pass, 0 fail, 1 unknown, 1 skipped\n")


def test_the_controller_reads_what_it_prints(tmp_path: Path) -> None:
    """Every record, of every check, is one that the consumer of verdicts takes as it is."""
    machine = amd_machine(tmp_path)
    done = run("--sysfs", str(machine.root), "--json", "--checks", "!job", PATH=f"{machine.tools}:{os.environ['PATH']}")
    records: list[dict[str, Any]] = json.loads(done.stdout)["verdicts"]

    assert [parse_verdict(record).to_json() for record in records] == records
    assert {record["verdict"] for record in records} <= set(OUTCOMES)
    assert {record["check"] for record in records} == {
        PREFIX + name for check in CHECKS.values() if check.area != "job" for name in check.record_names
    }


def test_json_carries_every_record_of_the_run(tmp_path: Path) -> None:
    """A job's checks and the machine's are in one document, one line long, for roles that read it."""
    done = run("--json", "--checks", "job", RUN_DIR=str(tmp_path), PRIMUS_NODE="n7")
    kept = [json.loads(line) for line in (tmp_path / "preflight-n7.jsonl").read_text().splitlines()]

    assert len(done.stdout.splitlines()) == 1
    assert json.loads(done.stdout)["verdicts"] == kept
    assert {record["host"] for record in kept} == {"n7"}
    assert {record["check"] for record in kept} == {
        PREFIX + name for name in ("gpus", "memlock", "node_0", "open_files", "shm", "space", "torch")
    }


@pytest.mark.parametrize("case", ["missing", "no folder", "full"])
def test_a_run_folder_that_cannot_be_written_loses_no_verdict(tmp_path: Path, case: str) -> None:
    """The records are printed, and the error says what, where and how to mend it; nothing half-written stays."""
    folder = {"missing": tmp_path / "none", "no folder": tmp_path / "file", "full": tmp_path}[case]
    (tmp_path / "file").touch()
    code = "import sys; from primus_bootstrap.launch.__main__ import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "preflight", "--json", "--checks", "job"]
    # What a full disk says is what a file beyond the limit says: the program goes on, and the write fails.
    line = ["sh", "-c", f'{"ulimit -f 0; " if case == "full" else ""}exec "$@"', "sh", *words]
    known = {
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": os.environ["PATH"],
        "RUN_DIR": str(folder),
        "PRIMUS_NODE": "n7",
    }
    done = subprocess.run(line, env=known, capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL)

    assert done.returncode == 3, done.stderr
    assert "torch" in verdicts(done.stdout)
    assert done.stderr.startswith(f"preflight: the records cannot be kept in {folder}/preflight-n7.jsonl: ")
    assert "\n  fix: make the folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_a_run_nothing_is_written(tmp_path: Path) -> None:
    """The verb leaves no file where it was called."""
    user = User(tmp_path)
    done = user.cli("preflight", "--checks", "kernel_taint")

    assert done.returncode == 0, done.stdout + done.stderr
    assert list(user.project.iterdir()) == []


WRONG = [
    (("--checks", "gpu_tempreature"), "gpu_tempreature means no check\n  fix: did you mean gpu_temperature?"),
    (("--expect-json", "/no/such/file"), "--expect-json /no/such/file: "),
    (("--expect-json", "{file}"), "nothing is called gpu_modell\n  fix: did you mean gpu_model?"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_wrong_words_are_refused_before_anything_is_looked_at(words: Sequence[str], said: str, tmp_path: Path) -> None:
    """Exit code 2, what is wrong, and how to mend it."""
    file = tmp_path / "expected.json"
    file.write_text('{"gpu_modell": "MI300X"}')
    done = run(*(word.replace("{file}", str(file)) for word in words))

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize("value", ['{"gpus": "eight"}', '{"gpus": true}', '{"swap": 1}', "[8]", "{"])
def test_an_expectation_of_the_wrong_kind_is_refused(value: str, tmp_path: Path) -> None:
    """A number is no text and no switch."""
    file = tmp_path / "expected.json"
    file.write_text(value)

    assert run("--expect-json", str(file), "--checks", "gpus").returncode == 2


def test_the_inventory_is_compared_with_the_node(tmp_path: Path) -> None:
    """Count, model, ports and memory come from one file; each record names it as its source."""
    machine = nvidia_machine(tmp_path)
    file = tmp_path / "expected.json"
    file.write_text('{"gpus": 8, "gpu_model": "H100", "rdma_ports": 12, "ram_gib": 2000, "kernel": null}')
    words = (
        "--sysfs",
        str(machine.root),
        "--json",
        "--expect-json",
        str(file),
        "--checks",
        "gpus,gpu_model,rdma_ports,memory_size,kernel_version",
    )
    done = run(*words)
    found = verdicts(done.stdout)

    assert {name: found[name] for name in ("gpus", "gpu_model", "memory_size", "kernel_version")} == {
        "gpus": {"pass"},
        "gpu_model": {"fail"},
        "memory_size": {"pass"},
        "kernel_version": {"skipped"},
    }
    assert "fail" in found["rdma_ports"]
    assert {record["source"].split(",")[0] for record in json.loads(done.stdout)["verdicts"] if record["expected"] in {"8", "H100"}} == {
        "--expect-json"
    }


def test_what_was_recorded_at_set_up_is_expected_where_nobody_says_more(tmp_path: Path) -> None:
    """A GPU that has gone since gpu.json was written fails; a gpu.json that cannot be read leaves the count unknown."""
    machine = nvidia_machine(tmp_path)
    recorded = {"schema": "primus.gpu/1", "verdict": "ok", "count": 9, "model": "H200", "network": {"ports": []}}
    machine.write("etc/primus/gpu.json", json.dumps(recorded))
    words = ("--sysfs", str(machine.root), "--json", "--checks", "gpus,gpu_model")
    lost = run(*words)
    given = run(*words, "--expect-gpus", "8")
    machine.write("etc/primus/gpu.json", "{")
    broken = run(*words)

    assert verdicts(lost.stdout) == {"gpus": {"fail"}, "gpu_model": {"pass"}}
    assert json.loads(lost.stdout)["verdicts"][-1]["source"] == "/etc/primus/gpu.json"
    assert (given.returncode, verdicts(broken.stdout)["gpus"]) == (0, {"unknown"})


def test_a_signal_ends_the_checks_too(tmp_path: Path) -> None:
    """Whoever stops preflight leaves no tool behind."""
    machine = nvidia_machine(tmp_path)
    machine.tool("nvidia-smi", f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 600")
    code = "import sys; from primus_bootstrap.launch.__main__ import main; sys.exit(main())"
    environment = {"PYTHONPATH": str(ROOT), "PATH": f"{machine.tools}:{os.environ['PATH']}"}
    command = [sys.executable, "-c", code, "preflight", "--sysfs", str(machine.root), "--checks", "gpu_ecc"]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(tmp_path / "pid")
    tool = int((tmp_path / "pid").read_text())
    child.send_signal(signal.SIGTERM)

    assert child.wait(60) == 128 + signal.SIGTERM
    until(lambda: not is_running(tool), "the end of the tool", limit_s=10)


def test_it_runs_from_the_one_file_with_its_data(tmp_path: Path) -> None:
    """The zipapp carries every table and finds every check; the system's Python is enough."""
    path = tmp_path / "launch.pyz"
    zipapp_file.write_bundle(path)
    machine = amd_machine(tmp_path)
    command = [
        "/usr/bin/env",
        "-i",
        f"PATH={machine.tools}:/usr/bin:/bin",
        sys.executable,
        "-I",
        str(path),
        "preflight",
        "--sysfs",
        str(machine.root),
    ]
    listed = subprocess.run([*command, "--list"], capture_output=True, text=True, check=True, timeout=60)
    done = subprocess.run([*command, "--checks", "gpu,network,memory_*"], capture_output=True, text=True, check=False, timeout=60)

    assert len(listed.stdout.splitlines()) == len(CHECKS)
    assert "0 fail, 0 unknown" in done.stdout, done.stdout + done.stderr
