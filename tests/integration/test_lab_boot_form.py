"""The ways in which systemd may start in a container, tried in order and remembered; a scripted engine plays the machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.image import Image
from primus_bootstrap.lab.lab_values import MachineError
from primus_bootstrap.lab.machine import Machine
from primus_bootstrap.lab.systemd_probe import bases, find_boot_form, forget_boot_form, with_extras

if TYPE_CHECKING:
    from pathlib import Path

# An engine whose `run` and `is-system-running` answer as the rules in $RULES say; every call is written to $CALLS.
ENGINE = """#!/bin/bash
echo "$*" >> {folder}/calls
case "$*" in
  *" run "*|run*)
    {refuse}
    echo started ;;
  exec*is-system-running) echo {state} ;;
  exec*--failed*) echo 'broken.service loaded failed failed x' ;;
  *) exit 0 ;;
esac
"""


@pytest.fixture(autouse=True)
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripted engine be found before a real one."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def make(folder: Path, *, refuse: str = "", state: str = "running") -> tuple[Machine, Image]:
    """Write an engine that refuses what the shell line `refuse` refuses, and in which systemd reaches `state`."""
    path = folder / "podman"
    path.write_text(ENGINE.format(folder=folder, refuse=refuse, state=state))
    path.chmod(0o755)
    machine = Machine("podman", "4.3.1", (), "bookworm", ("bookworm", "trixie"), folder)
    return machine, Image("trixie", "localhost/x:1", folder / "x.tar")


def calls(folder: Path) -> list[str]:
    """Return what the engine was asked to run."""
    return [line for line in (folder / "calls").read_text().splitlines() if " run " in line or line.startswith("run")]


def test_the_most_capable_form_comes_first(tmp_path: Path) -> None:
    """FUSE and the fake GPUs are asked for before anything is given up, the engine's own settings before ours."""
    first = with_extras(bases(make(tmp_path)[0])[0])[0]

    assert {"/dev/fuse", "SYS_ADMIN", "/dev/null:/dev/fakegpu7"} <= set(first.create_flags)
    assert first.engine_flags == ()
    assert not any(flag.startswith("--ulimit") for flag in first.create_flags)
    assert first.note == ""


def test_what_works_is_remembered_and_forgotten(tmp_path: Path) -> None:
    """The second look starts no container; after `forget`, or with another engine version, the machine is tried again."""
    machine, image = make(tmp_path)
    said: list[str] = []

    form = find_boot_form(machine, image, said.append)
    assert find_boot_form(machine, image, said.append) == form
    once = len(calls(tmp_path))
    assert once == 2, "bare, and with everything"

    forget_boot_form(machine, image)
    find_boot_form(machine, image, said.append)
    assert len(calls(tmp_path)) == 2 * once

    newer = Machine("podman", "5.0.0", (), "bookworm", machine.suites, tmp_path)
    find_boot_form(newer, image, said.append)
    assert len(calls(tmp_path)) == 3 * once


def test_limits_are_lowered_where_they_cannot_be_raised(tmp_path: Path) -> None:
    """An engine that fails to raise its limits is given this machine's own."""
    machine, image = make(tmp_path, refuse='[[ "$*" == *ulimit* ]] || { echo "setting rlimit: operation not permitted" >&2; exit 126; }')
    form = find_boot_form(machine, image, lambda _: None)

    assert form.title.endswith("limits of this machine, with FUSE mounts")


def test_fuse_is_given_up_last_and_said(tmp_path: Path) -> None:
    """A machine without /dev/fuse has a lab all the same, and the note says what its nodes cannot do."""
    machine, image = make(tmp_path, refuse='[[ "$*" != */dev/fuse* ]] || { echo "no /dev/fuse" >&2; exit 126; }')
    said: list[str] = []
    form = find_boot_form(machine, image, said.append)

    assert "/dev/fuse" not in form.create_flags
    assert "/dev/null:/dev/fakegpu0" in form.create_flags
    assert "cannot mount file systems" in form.note
    assert any("cannot mount file systems" in line for line in said)


def test_degraded_is_taken_only_where_nothing_is_better(tmp_path: Path) -> None:
    """All forms are tried for a clean start first; then the failed units are named."""
    machine, image = make(tmp_path, state="degraded")
    form = find_boot_form(machine, image, lambda _: None)

    assert len(calls(tmp_path)) == len(bases(machine)) + len(with_extras(bases(machine)[0])) - 1
    assert "failed units: broken.service" in form.note


def test_a_machine_where_nothing_starts_says_what_was_tried(tmp_path: Path) -> None:
    """The error lists every form with what the engine said."""
    machine, image = make(tmp_path, refuse="echo 'OCI permission denied' >&2; exit 126")

    with pytest.raises(MachineError) as caught:
        find_boot_form(machine, image, lambda _: None)

    assert caught.value.what.count("does not start: OCI permission denied") == 1
    assert "low limits, with FUSE mounts" in caught.value.what
    assert "low limits, without devices" in caught.value.what


def test_what_boots_only_with_everything_is_found(tmp_path: Path) -> None:
    """An engine in which systemd needs SYS_ADMIN to start is not given up on."""
    machine, image = make(tmp_path, refuse='[[ "$*" == *SYS_ADMIN* ]] || { echo "mount: denied" >&2; exit 126; }')
    form = find_boot_form(machine, image, lambda _: None)

    assert form.title.endswith("with FUSE mounts")


def test_another_group_manager_is_tried(tmp_path: Path) -> None:
    """Where the engine's own choice of control group manager cannot work, the other one is taken."""
    machine, image = make(tmp_path, refuse='[[ "$*" == *--cgroup-manager=cgroupfs* ]] || { echo "cgroup" >&2; exit 126; }')

    assert find_boot_form(machine, image, lambda _: None).engine_flags == ("--cgroup-manager=cgroupfs",)


def test_docker_gets_what_podman_does_by_itself(tmp_path: Path) -> None:
    """Docker knows no --systemd: control groups, scratch folders and the stop signal are given one by one."""
    machine = Machine("docker", "28", (), "bookworm", ("bookworm",), tmp_path)
    form = bases(machine)[0]

    assert "--systemd=always" not in form.create_flags
    assert {"--tmpfs", "/run", "SIGRTMIN+3", "--cgroupns=host"} <= set(form.create_flags)
