"""The task `preflight` and the command `primus-cli preflight`, run as users run them."""

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
from tests.integration.launch_cli_rig import ROOT, User, wait_for
from tests.unit.checks_rig import CHECKS, amd_machine, is_running, nvidia_machine, plain_machine
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


def test_the_exit_code_is_4_if_a_check_fails_or_is_unknown(tmp_path: Path) -> None:
    """It is 0 if every check passed or was skipped."""
    machine = plain_machine(tmp_path)
    words = ("--sysfs", str(machine.root), "--checks", "numa_balancing,gpu_ecc")
    good = run(*words)
    machine.write("proc/sys/kernel/numa_balancing", 1)
    bad = run(*words)
    machine.write("proc/sys/kernel/numa_balancing", "?")
    unreadable = run(*words)

    assert (good.returncode, bad.returncode, unreadable.returncode) == (0, 4, 4), good.stderr + bad.stderr + unreadable.stderr
    assert "pass    preflight_numa_balancing: off" in good.stdout
    assert "skipped preflight_gpu_ecc: no GPU on the PCI bus" in good.stdout
    assert "fail    preflight_numa_balancing: on NUMA balancing is on\n          fix: apply the phase baseline" in bad.stdout
    assert unreadable.stdout.endswith("0 pass, 0 fail, 1 unknown, 1 skipped\n")


def test_the_controller_can_parse_every_record(tmp_path: Path) -> None:
    """parse_verdict changes no record of any check."""
    machine = amd_machine(tmp_path)
    done = run("--sysfs", str(machine.root), "--json", "--checks", "!job", PATH=f"{machine.tools}:{os.environ['PATH']}")
    records: list[dict[str, Any]] = json.loads(done.stdout)["verdicts"]

    assert [parse_verdict(record).to_json() for record in records] == records
    assert {record["verdict"] for record in records} <= set(OUTCOMES)
    assert {record["check"] for record in records} == {
        PREFIX + name for check in CHECKS.values() if check.area != "job" for name in check.record_names
    }


def test_the_run_folder_contains_the_printed_records(tmp_path: Path) -> None:
    """--json prints one document in one line."""
    done = run("--json", "--checks", "job", RUN_DIR=str(tmp_path), PRIMUS_NODE="n7")
    saved = [json.loads(line) for line in (tmp_path / "preflight-n7.jsonl").read_text().splitlines()]

    assert len(done.stdout.splitlines()) == 1
    assert json.loads(done.stdout)["verdicts"] == saved
    assert {record["host"] for record in saved} == {"n7"}
    assert {record["check"] for record in saved} == {
        PREFIX + name for check in CHECKS.values() if check.area == "job" for name in check.record_names
    }


@pytest.mark.parametrize("case", ["missing", "no folder", "full"])
def test_the_records_are_printed_if_the_run_folder_cannot_be_written(tmp_path: Path, case: str) -> None:
    """The error names the file, and no partial file remains."""
    folder = {"missing": tmp_path / "none", "no folder": tmp_path / "file", "full": tmp_path}[case]
    (tmp_path / "file").touch()
    code = "import sys; from primus_bootstrap.launch.__main__ import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "preflight", "--json", "--checks", "job"]
    # A file size limit makes the write fail as a full disk does.
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
    assert done.stderr.startswith(f"primus-cli: the records could not be written to {folder}/preflight-n7.jsonl: ")
    assert f"\n  fix: create {folder}" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_a_run_folder_no_file_is_written(tmp_path: Path) -> None:
    """Also not in the current folder."""
    user = User(tmp_path)
    done = user.cli("preflight", "--checks", "kernel_taint")

    assert done.returncode == 0, done.stdout + done.stderr
    assert list(user.project.iterdir()) == []


WRONG = [
    (("--checks", "gpu_tempreature"), "no check matches gpu_tempreature\n  fix: did you mean gpu_temperature?"),
    (("--expect-json", "/no/such/file"), "--expect-json /no/such/file: "),
    (("--expect-json", "{file}"), "unknown key gpu_modell\n  fix: did you mean gpu_model?"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_wrong_arguments_fail_before_any_check_runs(words: Sequence[str], message: str, tmp_path: Path) -> None:
    """Exit code 2, the error and the fix."""
    file = tmp_path / "expected.json"
    file.write_text('{"gpu_modell": "MI300X"}')
    done = run(*(word.replace("{file}", str(file)) for word in words))

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize("value", ['{"gpus": "eight"}', '{"gpus": true}', '{"swap": 1}', "[8]", "{"])
def test_an_expected_value_of_the_wrong_type_is_an_error(value: str, tmp_path: Path) -> None:
    """Exit code 2."""
    file = tmp_path / "expected.json"
    file.write_text(value)

    assert run("--expect-json", str(file), "--checks", "gpus").returncode == 2


def test_expect_json_is_compared_with_the_node(tmp_path: Path) -> None:
    """Count, model, ports and memory come from one file; the records name it as their source."""
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


def test_gpu_json_gives_the_default_of_the_expected_values(tmp_path: Path) -> None:
    """A GPU that is missing since then fails; with an unreadable gpu.json the count is unknown."""
    machine = nvidia_machine(tmp_path)
    recorded = {"schema": "primus.gpu/1", "verdict": "ok", "count": 9, "model": "H200", "network": {"ports": []}}
    machine.write("etc/primus/gpu.json", json.dumps(recorded))
    words = ("--sysfs", str(machine.root), "--json", "--checks", "gpus,gpu_model")
    missing = run(*words)
    overridden = run(*words, "--expect-gpus", "8")
    machine.write("etc/primus/gpu.json", "{")
    broken = run(*words)

    assert verdicts(missing.stdout) == {"gpus": {"fail"}, "gpu_model": {"pass"}}
    assert json.loads(missing.stdout)["verdicts"][-1]["source"] == "/etc/primus/gpu.json"
    assert (overridden.returncode, verdicts(broken.stdout)["gpus"]) == (0, {"unknown"})


def test_sigterm_also_kills_the_running_checks(tmp_path: Path) -> None:
    """No tool keeps running."""
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


def test_preflight_runs_from_the_zipapp(tmp_path: Path) -> None:
    """The zipapp contains all checks and data files."""
    path = tmp_path / "launch.pyz"
    zipapp_file.write_zipapp(path)
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
