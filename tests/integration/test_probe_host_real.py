"""Test the probe script on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from primus_bootstrap.core.verdicts import SCHEMA, parse_verdict
from primus_bootstrap.fleet.facts import parse_facts
from primus_bootstrap.fleet.messages import Target
from primus_bootstrap.fleet.probe import probe_command, probe_input
from tests.unit.test_probe_host import CHECK, SCRIPT
from tests.unit.test_probe_host import script as script


def run_as_sent(options: dict[str, Any], python: str = "", prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the script like the fan-out does, on this machine; `prefix` runs it as another account."""
    target = Target("h1", "h1", python=python)
    return subprocess.run(
        [*prefix, "sh", "-c", probe_command()], input=probe_input(target, options), capture_output=True, text=True, check=False
    )


def test_probe_of_this_machine() -> None:
    """The output can be parsed and agrees with other sources of this machine."""
    done = run_as_sent({})

    facts = parse_facts(json.loads(done.stdout)["facts"], sent=time.time(), received=time.time())
    assert facts.hostname == socket.gethostname()
    assert facts.kernel == Path("/proc/sys/kernel/osrelease").read_text().strip()
    assert facts.memory_gib > 0.1
    assert facts.free_gib("/") is not None
    assert [nic.name for nic in facts.nics if nic.name == "lo"] == []


def test_probe_is_quick() -> None:
    """The best of five runs takes less than 100 ms, including the start of Python."""
    best = 1.0
    for _ in range(5):
        started = time.monotonic()
        run_as_sent({})
        best = min(best, time.monotonic() - started)

    assert best < 0.25, f"{best * 1000:.0f} ms"


def test_probe_writes_no_files(tmp_path: Path) -> None:
    """The script runs in an empty folder with an empty environment and writes no file."""
    done = subprocess.run([sys.executable, "-I", "-S", str(SCRIPT)], cwd=tmp_path, env={}, capture_output=True, check=True)

    assert json.loads(done.stdout)["schema"] == "primus.probe/1"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("python", "words"), [("/nonexistent/python3", "no /nonexistent/python3"), ("false", "")])
def test_missing_python_is_reported(python: str, words: str) -> None:
    """A missing or invalid interpreter gives an exit code and no answer."""
    done = run_as_sent({}, python=python)

    assert done.returncode != 0
    assert words in done.stderr
    assert done.stdout == ""


def test_gpus_nics_and_rdma_are_read_from_sysfs(tmp_path: Path) -> None:
    """Controllers are counted by ID without virtual functions, and ports have their states."""
    devices = {
        "0000:05:00.0": ("0x1002", "0x74a1", "0x120000"), "0000:26:00.0": ("0x1002", "0x74a1", "0x120000"),
        "0000:05:02.0": ("0x1002", "0x74b5", "0x120000"), "0000:03:00.0": ("0x1a03", "0x2000", "0x030000"),
        "0000:01:00.0": ("0x15b3", "0x1021", "0x020700"),
    }  # fmt: skip
    for slot, (vendor, device, code) in devices.items():
        folder = tmp_path / "sys/bus/pci/devices" / slot
        folder.mkdir(parents=True)
        for name, text in (("vendor", vendor), ("device", device), ("class", code)):
            (folder / name).write_text(f"{text}\n")
    (tmp_path / "sys/bus/pci/devices/0000:05:02.0/physfn").symlink_to("../0000:05:00.0")
    nic = tmp_path / "sys/class/net/ens1"
    (nic / "device").mkdir(parents=True)
    for name, text in (("operstate", "up"), ("speed", "400000"), ("mtu", "9000"), ("address", "aa:bb")):
        (nic / name).write_text(f"{text}\n")
    (tmp_path / "sys/class/net/veth0").mkdir()
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    for name, text in (("state", "4: ACTIVE"), ("link_layer", "Ethernet"), ("rate", "400 Gb/sec (4X NDR)")):
        (port / name).write_text(f"{text}\n")

    facts = json.loads(run_as_sent({"root": str(tmp_path)}).stdout)["facts"]

    assert [(gpu["id"], gpu["count"]) for gpu in facts["gpus"]] == [("1002:74a1", 2), ("1a03:2000", 1)]
    assert [(one["name"], one["speed_mbit_per_s"], one["mtu"]) for one in facts["nics"]] == [("ens1", 400000, 9000)]
    assert [(one["device"], one["state"]) for one in facts["rdma"]] == [("mlx5_0", "4: ACTIVE")]
    assert (facts["os"]["id"], facts["machine_id"], facts["memory"]["total_gib"]) == ("", "", 0)


def test_records_can_be_parsed() -> None:
    """The reader of verdicts returns the script's records unchanged."""
    answer = json.loads(run_as_sent({"check": {**CHECK, "sent": time.time()}}).stdout)

    assert {record["schema"] for record in answer["verdicts"]} == {SCHEMA}
    for record in answer["verdicts"]:
        assert parse_verdict(record).to_json() == record
        assert record["host"] == "h1"
        assert record["verdict"] == "pass" or record["reason"]
        assert record["verdict"] in ("pass", "skipped") or record["fix"]


def test_port_of_the_expected_program_passes() -> None:
    """A used port fails with the program's name, and passes if it is the expected program or free."""
    name = Path("/proc/self/comm").read_text().strip()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = {}
        for meant in ("slurmctld", name):
            check = {**CHECK, "sent": time.time(), "ports": [{"port": port, "process": meant}]}
            records = json.loads(run_as_sent({"check": check}).stdout)["verdicts"]
            found[meant] = next(record for record in records if record["check"] == "port")
    free = json.loads(run_as_sent({"check": check}).stdout)["verdicts"]

    assert (found["slurmctld"]["verdict"], found[name]["verdict"]) == ("fail", "pass")
    assert f"port {port} is in use by {name}; slurmctld needs it" in found["slurmctld"]["reason"]
    assert next(record for record in free if record["check"] == "port")["found"] == "free"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as other accounts")
def test_hidden_owner_of_a_port_is_found_by_its_account() -> None:
    """If /proc hides the owner, it is the account's only program, or the expected one of several."""
    listen = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); time.sleep(60)"
    as_owner = ("setpriv", "--reuid=61234", "--clear-groups")
    with subprocess.Popen([*as_owner, sys.executable, "-c", listen], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout
            port = int(holder.stdout.readline())
            name = Path(f"/proc/{holder.pid}/comm").read_text().strip()
            alone = _port_verdict_as_another_account(port, name)
            with subprocess.Popen([*as_owner, "sleep", "60"]) as second:
                try:
                    for _ in range(50):
                        if Path(f"/proc/{second.pid}/comm").read_text().strip() == "sleep":
                            break
                        time.sleep(0.1)
                    together = _port_verdict_as_another_account(port, name)
                    strange = _port_verdict_as_another_account(port, "redis-server")
                finally:
                    second.kill()
        finally:
            holder.kill()

    assert (alone["verdict"], alone["found"]) == ("pass", name)
    assert (together["verdict"], together["found"]) == ("pass", name)
    assert strange["verdict"] == "unknown"


def _port_verdict_as_another_account(port: int, meant: str) -> dict[str, Any]:
    check = {**CHECK, "sent": time.time(), "ports": [{"port": port, "process": meant}]}
    done = run_as_sent({"check": check}, prefix=("setpriv", "--reuid=61235", "--clear-groups"))
    found: dict[str, Any] = next(record for record in json.loads(done.stdout)["verdicts"] if record["check"] == "port")
    return found
