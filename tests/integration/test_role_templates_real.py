"""Templates of roles, rendered by Ansible and parsed by the target programs."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.unit.test_role_templates import render

if TYPE_CHECKING:
    from pathlib import Path

ACCOUNTS = [
    {"name": "alice", "uid": 5001, "groups": ["vision"], "sudo_rules": ["ALL=(ALL) NOPASSWD:ALL", "ALL=(bob) NOPASSWD: /usr/bin/id"]},
    {"name": "bob", "uid": 5002},
    {"name": "mallory", "state": "absent"},
]


@pytest.mark.parametrize("system", ["Debian", "Ubuntu"])
@pytest.mark.parametrize("off", [True, False])
def test_apt_parses_its_configuration(tmp_path: Path, system: str, *, off: bool) -> None:
    """It shows the proxies; automatic upgrades are off only on request."""
    program = shutil.which("apt-config")
    if program is None:
        pytest.skip("apt-config is not installed on this machine")
    text = render("baseline", "apt.conf.j2", system, baseline_http_proxy_url="http://proxy:3128", baseline_unattended_upgrades_off=off)
    path = tmp_path / "apt.conf"
    path.write_text(text)
    dump = subprocess.run([program, "-c", str(path), "dump"], capture_output=True, text=True, check=True, timeout=120).stdout

    assert 'Acquire::http::Proxy "http://proxy:3128";' in dump
    assert ('APT::Periodic::Enable "0";' in dump) is off
    assert "https::Proxy" not in text


def test_visudo_accepts_the_rules(tmp_path: Path) -> None:
    """The file lists only accounts with rules."""
    program = shutil.which("visudo")
    text = render("users_groups", "sudoers.j2", users_groups_accounts=ACCOUNTS)
    path = tmp_path / "sudoers"
    path.write_text(text)

    assert [line.split()[0] for line in text.splitlines() if line and not line.startswith("#")] == ["alice", "alice"]
    if program is None:
        pytest.skip("visudo is not installed on this machine")
    subprocess.run([program, "-cf", str(path)], check=True, capture_output=True, timeout=120)


def test_account_verification_script_fails_for_missing_accounts() -> None:
    """It lists each of them and exits with 1."""
    text = render("users_groups", "verify.sh.j2", users_groups_accounts=ACCOUNTS)
    done = subprocess.run(["/bin/sh", "-s"], input=text, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 1
    fix = "Fix: apply the phase baseline"
    expected = {f"group training does not have gid 4000. {fix}", f"account bob does not have uid 5002. {fix}"}
    assert expected <= set(done.stderr.splitlines())
    assert "mallory" not in done.stderr
