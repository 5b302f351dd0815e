"""primus_bootstrap.launch.runtimes.container_limits: limits on hosts with and without the right to raise them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.runtimes import container_limits

if TYPE_CHECKING:
    from pathlib import Path

BUILT_IN = ("memlock=-1", "stack=67108864")
AS_THEY_ARE = ("--ulimit=memlock=-1", "--ulimit=stack=67108864")
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max processes             96364                96364                processes
Max open files            20000                20000                files
Max locked memory         8388608              8388608              bytes
"""
FIRST_NAMESPACE = "         0          0 4294967295\n"
EVERY_RIGHT, WITHOUT_RAISING = "000001ffffffffff", "000001fffeffffff"


def host(root: Path, rights: str, namespace: str = FIRST_NAMESPACE, limits: str = LIMITS) -> Path:
    """Write the files of /proc for a process."""
    folder = root / "proc/self"
    folder.mkdir(parents=True)
    (folder / "status").write_text(f"Name:\tpython3\nCapEff:\t{rights}\n")
    (folder / "uid_map").write_text(namespace)
    (folder / "limits").write_text(limits)
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/pid_max").write_text("32768\n")
    return root


def test_a_process_that_may_raise_limits_gets_the_defaults(tmp_path: Path) -> None:
    """On a server, a container of root can lock unlimited memory."""
    assert container_limits.words("podman", BUILT_IN, BUILT_IN, host(tmp_path, EVERY_RIGHT)) == (AS_THEY_ARE, ())


@pytest.mark.parametrize(("rights", "namespace"), [(WITHOUT_RAISING, FIRST_NAMESPACE), (EVERY_RIGHT, "0 100000 65536\n")])
def test_podman_does_not_exceed_the_hard_limits(tmp_path: Path, rights: str, namespace: str) -> None:
    """Without CAP_SYS_RESOURCE in the initial namespace, a container with higher limits does not start."""
    words, notes = container_limits.words("podman", BUILT_IN, BUILT_IN, host(tmp_path, rights, namespace))

    assert set(words) == {
        "--ulimit=memlock=8388608:8388608",
        "--ulimit=stack=67108864",
        "--ulimit=nofile=20000:20000",
        "--ulimit=nproc=32768:32768",
    }
    assert [note.split()[1] for note in notes] == ["memlock=8388608", "nofile=20000", "nproc=32768"]


def test_limits_of_the_user_are_unchanged(tmp_path: Path) -> None:
    """If such a limit is not possible, the engine reports the error."""
    setting = (*BUILT_IN, "memlock=99999999", "nofile=1048576:1048576")
    words, notes = container_limits.words("podman", setting, BUILT_IN, host(tmp_path, WITHOUT_RAISING))

    assert {"--ulimit=memlock=99999999", "--ulimit=nofile=1048576:1048576"} <= set(words)
    assert [note.split()[1] for note in notes] == ["nproc=32768"]


def test_docker_and_apptainer_are_not_limited(tmp_path: Path) -> None:
    """The daemon of docker starts the container; Apptainer keeps the limits of this process."""
    root = host(tmp_path, WITHOUT_RAISING)

    assert container_limits.words("docker", BUILT_IN, BUILT_IN, root) == (AS_THEY_ARE, ())
    assert container_limits.words("apptainer", BUILT_IN, BUILT_IN, root) == ((), ())


@pytest.mark.parametrize("missing", ["self/status", "self/uid_map", "self/limits", "sys/kernel/pid_max"])
def test_unknown_limits_are_not_lowered(tmp_path: Path, missing: str) -> None:
    """Without /proc (macOS, where podman uses a virtual machine) the hard limits are unknown."""
    root = host(tmp_path, WITHOUT_RAISING)
    (root / "proc" / missing).unlink()

    assert container_limits.words("podman", BUILT_IN, BUILT_IN, root) == (AS_THEY_ARE, ())
