"""Compares the time to validate a large fleet with `ansible-inventory` on the same file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from primus_bootstrap import content

pytestmark = pytest.mark.perf

HOSTS = 12_500
MAX_RATIO = 4.0

# Two usual forms of a fleet: one entry per host, and a range with addresses from a template.
_PROGRAM = "from pathlib import Path\nfrom primus_bootstrap.inventory import load_cluster"
_HEAD = "all:\n  vars: {cluster_name: large, ansible_user: root, baseline_timezone: Etc/UTC}\n  children:\n    gpu_node:\n      hosts:\n"


def _explicit() -> str:
    def host(number: int) -> str:
        rack, slot = divmod(number, 100)
        return (
            f"        gpu{number:05}:\n          ansible_host: 10.{rack // 200}.{rack % 200}.{slot + 1}\n"
            f"          ip: 10.{100 + rack // 200}.{rack % 200}.{slot + 1}\n          site_rack: r{rack}\n"
        )

    return _HEAD + "".join(host(number) for number in range(HOSTS))


def _ranges() -> str:
    number = "{{ inventory_hostname[3:] | int // 250 }}.{{ inventory_hostname[3:] | int % 250 + 1 }}"
    return _HEAD + f'        gpu[00001:{HOSTS}]:\n          ansible_host: "10.0.{number}"\n          ip: "10.1.{number}"\n'


def _seconds_and_mib(command: list[str]) -> tuple[float, float]:
    """Return the wall-clock seconds and the peak memory (MiB) of a program."""
    environment = {**os.environ, "ANSIBLE_INVENTORY_ENABLED": "yaml", "ANSIBLE_CONFIG": str(content.ansible_cfg())}
    started = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.monotonic() - started, usage.ru_maxrss / 1024


@pytest.mark.parametrize(("name", "text"), [("one entry per host", _explicit()), ("one range", _ranges())], ids=["explicit", "range"])
def test_validate_keeps_up_with_ansible(tmp_path: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Validating 12,500 hosts, including start-up, takes at most four times as long as `ansible-inventory --list`."""
    (tmp_path / "hosts.yaml").write_text(text, encoding="utf-8")
    program = f"{_PROGRAM}\nassert len(load_cluster(Path({str(tmp_path)!r})).hosts) == {HOSTS}"
    ansible = [str(Path(sys.executable).with_name("ansible-inventory")), "-i", str(tmp_path / "hosts.yaml"), "--list"]

    ansible_s, ansible_mib = _seconds_and_mib(ansible)
    validate_s, validate_mib = _seconds_and_mib([sys.executable, "-c", program])

    with capsys.disabled():
        print(f"\nvalidate, {HOSTS} hosts ({name}), {os.cpu_count()} cores")
        print(f"  {'program':<28}{'seconds':>10}{'MiB':>8}{'ratio':>8}")
        print(f"  {'ansible-inventory --list':<28}{ansible_s:>10.1f}{ansible_mib:>8.0f}{1:>8.2f}")
        print(f"  {'primus-bootstrap validate':<28}{validate_s:>10.1f}{validate_mib:>8.0f}{validate_s / ansible_s:>8.2f}")
    assert validate_s <= MAX_RATIO * ansible_s
