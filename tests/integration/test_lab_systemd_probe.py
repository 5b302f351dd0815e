"""Test the search for container flags with which systemd starts, with a scripted container engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.image import Image
from primus_bootstrap.lab.lab_values import MachineError
from primus_bootstrap.lab.machine import Machine
from primus_bootstrap.lab.systemd_probe import base_recipes, find_systemd_recipe, forget_systemd_recipe, recipes_with_extras

if TYPE_CHECKING:
    from pathlib import Path

# An engine that fails `run` as {refuse} says, reports systemd's state as {state}, and writes every call to {folder}/calls.
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
    """Put the scripted engine first on the PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def make(folder: Path, *, refuse: str = "", state: str = "running") -> tuple[Machine, Image]:
    """Write an engine whose `run` executes the shell line `refuse` and in which systemd reaches `state`."""
    path = folder / "podman"
    path.write_text(ENGINE.format(folder=folder, refuse=refuse, state=state))
    path.chmod(0o755)
    machine = Machine("podman", "4.3.1", (), "bookworm", ("bookworm", "trixie"), folder)
    return machine, Image("trixie", "localhost/x:1", folder / "x.tar")


def calls(folder: Path) -> list[str]:
    """Return the `run` calls of the engine."""
    return [line for line in (folder / "calls").read_text().splitlines() if " run " in line or line.startswith("run")]


def test_the_most_capable_recipe_comes_first(tmp_path: Path) -> None:
    """The first recipe has FUSE, packet filters, fake GPUs and the engine's default settings."""
    first = recipes_with_extras(base_recipes(make(tmp_path)[0])[0])[0]

    assert {"/dev/fuse", "SYS_ADMIN", "NET_ADMIN", "/dev/null:/dev/fakegpu7"} <= set(first.create_flags)
    assert first.engine_flags == ()
    assert not any(flag.startswith("--ulimit") for flag in first.create_flags)
    assert first.note == ""


def test_recipe_is_cached(tmp_path: Path) -> None:
    """A second call starts no container. After `forget`, or with another engine version, the search runs again."""
    machine, image = make(tmp_path)
    messages: list[str] = []

    recipe = find_systemd_recipe(machine, image, messages.append)
    assert find_systemd_recipe(machine, image, messages.append) == recipe
    once = len(calls(tmp_path))
    assert once == 2, "without and with all extras"

    forget_systemd_recipe(machine, image)
    find_systemd_recipe(machine, image, messages.append)
    assert len(calls(tmp_path)) == 2 * once

    newer = Machine("podman", "5.0.0", (), "bookworm", machine.suites, tmp_path)
    find_systemd_recipe(newer, image, messages.append)
    assert len(calls(tmp_path)) == 3 * once


def test_limits_are_lowered_if_they_cannot_be_raised(tmp_path: Path) -> None:
    """If the engine cannot raise the limits, the recipe has this machine's limits."""
    machine, image = make(tmp_path, refuse='[[ "$*" == *ulimit* ]] || { echo "setting rlimit: operation not permitted" >&2; exit 126; }')
    recipe = find_systemd_recipe(machine, image, lambda _: None)

    assert recipe.title.endswith("limits of this machine, with FUSE mounts")


def test_recipe_without_fuse_has_a_note(tmp_path: Path) -> None:
    """A machine without /dev/fuse gets a recipe without it, and the note names the missing feature."""
    machine, image = make(tmp_path, refuse='[[ "$*" != */dev/fuse* ]] || { echo "no /dev/fuse" >&2; exit 126; }')
    messages: list[str] = []
    recipe = find_systemd_recipe(machine, image, messages.append)

    assert "/dev/fuse" not in recipe.create_flags
    assert "/dev/null:/dev/fakegpu0" in recipe.create_flags
    assert "cannot mount file systems" in recipe.note
    assert any("cannot mount file systems" in line for line in messages)


def test_degraded_recipe_is_the_last_choice(tmp_path: Path) -> None:
    """All recipes are tried before a degraded one is accepted. Its note names the failed units."""
    machine, image = make(tmp_path, state="degraded")
    recipe = find_systemd_recipe(machine, image, lambda _: None)

    assert len(calls(tmp_path)) == len(base_recipes(machine)) + len(recipes_with_extras(base_recipes(machine)[0])) - 1
    assert "failed units: broken.service" in recipe.note


def test_error_lists_every_recipe_and_cause(tmp_path: Path) -> None:
    """The error has each cause once, with the recipes that failed."""
    machine, image = make(tmp_path, refuse="echo 'OCI permission denied' >&2; exit 126")

    with pytest.raises(MachineError) as caught:
        find_systemd_recipe(machine, image, lambda _: None)

    assert caught.value.what.count("does not start: OCI permission denied") == 1
    assert "low limits, with FUSE mounts" in caught.value.what
    assert "low limits, without devices" in caught.value.what


def test_recipe_that_needs_all_extras_is_found(tmp_path: Path) -> None:
    """A recipe is found if systemd starts only with SYS_ADMIN."""
    machine, image = make(tmp_path, refuse='[[ "$*" == *SYS_ADMIN* ]] || { echo "mount: denied" >&2; exit 126; }')
    recipe = find_systemd_recipe(machine, image, lambda _: None)

    assert recipe.title.endswith("with FUSE mounts")


def test_other_cgroup_manager_is_tried(tmp_path: Path) -> None:
    """If the engine's default cgroup manager does not work, another one is used."""
    machine, image = make(tmp_path, refuse='[[ "$*" == *--cgroup-manager=cgroupfs* ]] || { echo "cgroup" >&2; exit 126; }')

    assert find_systemd_recipe(machine, image, lambda _: None).engine_flags == ("--cgroup-manager=cgroupfs",)


def test_docker_gets_explicit_systemd_flags(tmp_path: Path) -> None:
    """Docker has no --systemd: cgroups, tmpfs mounts and the stop signal are separate flags."""
    machine = Machine("docker", "28", (), "bookworm", ("bookworm",), tmp_path)
    recipe = base_recipes(machine)[0]

    assert "--systemd=always" not in recipe.create_flags
    assert {"--tmpfs", "/run", "SIGRTMIN+3", "--cgroupns=host"} <= set(recipe.create_flags)
