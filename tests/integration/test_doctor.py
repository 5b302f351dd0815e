"""Test `doctor` on this machine, and with missing requirements."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.verdicts import Verdict, parse_verdict
from primus_bootstrap.fleet.controller import check_controller

if TYPE_CHECKING:
    from pathlib import Path


def checks(folder: Path) -> dict[str, Verdict]:
    """Return the verdicts by check."""
    return {verdict.check: verdict for verdict in check_controller(folder)}


def test_this_machine_can_be_a_controller(tmp_path: Path) -> None:
    """The installed versions are those that the package requires."""
    found = checks(tmp_path)

    must = ["python", "package ansible-core", "package ansible", "package pyinfra", "collection ansible.posix", "ssh", "home", "disk"]
    assert {name: found[name].verdict for name in must} == dict.fromkeys(must, "pass")
    assert found["package ansible-core"].found.startswith("2.19.")


def test_every_record_is_complete(tmp_path: Path) -> None:
    """Every record can be parsed, failed and unknown ones have a fix, and all but passed ones have a reason."""
    for verdict in check_controller(tmp_path):
        assert parse_verdict(verdict.to_json()) == verdict
        assert bool(verdict.fix) == (verdict.verdict in ("fail", "unknown"))
        assert bool(verdict.reason) == (verdict.verdict != "pass")
        assert verdict.started > 0


def test_a_missing_program_fails_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ssh on the PATH the check fails; checks that only the lab needs are skipped."""
    monkeypatch.setenv("PATH", str(tmp_path))

    found = checks(tmp_path)

    assert (found["ssh"].verdict, found["ssh"].found, found["ssh"].fix) == ("fail", "missing", "install openssh-client")
    assert {found[name].verdict for name in ("podman", "mmdebstrap", "git", "crun or runc")} == {"skipped"}


@pytest.mark.parametrize(
    ("words", "verdict"), [("OpenSSH_7.4p1, x", "fail"), ("OpenSSH_10.0p2 Debian-7, x", "pass"), ("Sun_SSH_1.1", "fail")]
)
def test_old_ssh_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, verdict: str) -> None:
    """Versions are compared as numbers, and another ssh than OpenSSH fails."""
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert checks(tmp_path)["ssh"].verdict == verdict


def test_locale_without_utf_8_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible does not start with such a locale."""
    monkeypatch.setenv("LC_ALL", "POSIX")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")

    assert checks(tmp_path)["locale"].verdict == "fail"


def test_full_disk_and_old_package_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are reported."""
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 (what shutil returns)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 2**30))
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.18.0" if name == "ansible-core" else version(name))

    found = checks(tmp_path)

    assert (found["disk"].verdict, found["disk"].found, found["disk"].unit) == ("fail", "1.0", "GiB")
    assert (found["package ansible-core"].verdict, found["package ansible-core"].found) == ("fail", "2.18.0")


def test_the_exit_code_follows_the_verdicts(tmp_path: Path) -> None:
    """It is 1 if a check fails. The fix is printed, and --json prints the records."""
    argv = [sys.executable, "-m", "primus_bootstrap", "doctor"]
    good = subprocess.run([*argv, "--json"], capture_output=True, text=True, check=False, cwd=tmp_path)
    bare = {**os.environ, "PATH": str(tmp_path)}
    bad = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, env=bare)

    verdicts = json.loads(good.stdout)["verdicts"]
    assert good.returncode == int(any(verdict["verdict"] == "fail" for verdict in verdicts))
    assert bad.returncode == 1
    assert "ssh: ssh is not installed\n  fix: install openssh-client" in bad.stdout
