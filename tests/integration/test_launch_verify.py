"""primus_bootstrap.launch.detect.verify_env with real shells."""

from __future__ import annotations

import grp
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from primus_bootstrap.launch.detect import device_access, verify_env


def write_facts(root: Path, **changes: Any) -> None:
    """Write the parts of gpu.json that verify_env reads."""
    variables = [{"variable": "PRIMUS_TEST_VARIABLE", "value": "1"}]
    (root / "etc/primus/env.d").mkdir(parents=True)
    (root / "etc/primus/env.d/10-base.env").write_text('PRIMUS_TEST_VARIABLE="1"\n')
    (root / "etc/primus/gpu.json").write_text(json.dumps({"schema": "primus.gpu/1", "profile": {"variables": variables}, **changes}))


def found(root: Path) -> dict[str, str]:
    """Return the verdict of each check."""
    return {record.check: record.verdict for record in verify_env.verify(root)}


def test_a_login_shell_without_the_variable_fails_with_its_name(tmp_path: Path) -> None:
    """A real login shell does not read the files of the test folder."""
    write_facts(tmp_path)
    record = next(record for record in verify_env.verify(tmp_path) if record.check == "gpu_env_login")

    assert record.verdict == "fail"
    assert "PRIMUS_TEST_VARIABLE is 'not set' instead of '1'" in record.reason
    assert record.fix


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"profile": {"variables": [{}]}}', '{"profile": []}'])
def test_an_unreadable_gpu_json_fails(text: str, tmp_path: Path) -> None:
    """Truncated or foreign content gives a verdict, not a traceback."""
    write_facts(tmp_path)
    (tmp_path / "etc/primus/gpu.json").write_text(text)

    assert found(tmp_path) == {"gpu_facts": "fail"}


def test_a_gpu_json_with_another_schema_fails(tmp_path: Path) -> None:
    """For example of a later version."""
    write_facts(tmp_path, schema="primus.gpu/2")

    assert found(tmp_path)["gpu_facts"] == "fail"


@pytest.mark.parametrize("command", [["/nonexistent/program"], [sys.executable, "-c", "raise SystemExit(3)"]])
def test_a_failing_command_gives_unknown(command: list[str]) -> None:
    """For example a missing systemd-run."""
    record = verify_env._compare("gpu_env_service", {"A": "1"}, verify_env._environment_of(command))

    assert (record.verdict, bool(record.reason)) == ("unknown", True)


def test_an_environment_with_the_values_passes() -> None:
    """Values may contain `=`."""
    code = "import os,sys; sys.stdout.buffer.write(b'A==x y\\0B=1\\n2\\0')"

    assert verify_env._compare("gpu_env_login", {"A": "=x y"}, verify_env._environment_of([sys.executable, "-c", code])).verdict == "pass"


def test_device_files_are_compared_with_the_udev_rule(tmp_path: Path) -> None:
    """Without device files the check is skipped; a wrong mode fails with the file's name."""
    write_facts(tmp_path)
    group = grp.getgrgid(os.getgid()).gr_name
    rules = tmp_path / "etc/udev/rules.d/70-primus-gpu.rules"
    rules.parent.mkdir(parents=True)
    rules.write_text(f'# a comment\nSUBSYSTEM=="kfd", KERNEL=="kfd", GROUP="{group}", MODE="0660"\n')
    without = found(tmp_path)["gpu_device_access"]
    node = tmp_path / "dev/dri/renderD128"
    node.parent.mkdir(parents=True)
    node.touch()
    node.chmod(0o660)
    right = found(tmp_path)["gpu_device_access"]
    node.chmod(0o600)
    wrong = next(record for record in verify_env.verify(tmp_path) if record.check == "gpu_device_access")

    assert (without, right, wrong.verdict) == ("skipped", "pass", "fail")
    assert f"renderD128 is {group} 0600" in wrong.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open files as another account")
def test_files_are_opened_as_the_account() -> None:
    """Root itself can open both. A process of the account cannot open the second one; this process stays root."""
    refused = device_access.refused_devices("nobody", [Path("/dev/null"), Path("/etc/shadow")])

    assert refused == {Path("/etc/shadow"): "Permission denied"}
    assert os.geteuid() == 0


def test_missing_account_is_an_error() -> None:
    """It is reported as unknown."""
    with pytest.raises(KeyError):
        device_access.refused_devices("no-such-account", [Path("/dev/null")])
