"""The environment files of host_env, read by real shells."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.detect.render import envfiles
from tests.unit.launch_rig import run
from tests.unit.test_launch_files import machine as machine

if TYPE_CHECKING:
    from pathlib import Path

AWKWARD = [
    "plain",
    "",
    "=bond0.20",
    " two  spaces ",
    'a "b"',
    "it's",
    "$HOME `id` \\ \\\\ \\n",
    "# no comment",
    "; x",
    "%i %n",
    "ä 😀",
    "!1",
    "a=b",
    "~",
    "*",
]


@pytest.mark.parametrize("value", AWKWARD)
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_every_shell_reads_the_value_unchanged(
    value: str, shell: str, machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From profile.d and from a sourced env file."""
    out = run(capsys, machine, tmp_path / "out", variables={"ODD": value}).out
    for script in (out / envfiles.PROFILE_SCRIPT, out / envfiles.env_path("site")):
        command = [shell, "-u", "-c", f'. {script}; printf %s "$ODD"']
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={"LC_ALL": "C.UTF-8"}, timeout=120)

        assert (done.stdout, done.stderr) == (value, "")


def test_a_login_shell_does_not_override_variables_that_are_set(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if the value is empty."""
    out = run(capsys, machine, tmp_path / "out").out
    command = ["sh", "-c", f'. {out / envfiles.PROFILE_SCRIPT}; printf \'%s|%s\' "$NCCL_DEBUG" "$NCCL_IB_HCA"']
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": ""}, timeout=120)

    assert done.stdout == "INFO|"
