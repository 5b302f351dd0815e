"""primus_bootstrap.launch.runtimes.container_limits: limits that can be had, on hosts that may raise theirs and on those that may not."""

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
    """Write what the kernel says of a process."""
    folder = root / "proc/self"
    folder.mkdir(parents=True)
    (folder / "status").write_text(f"Name:\tpython3\nCapEff:\t{rights}\n")
    (folder / "uid_map").write_text(namespace)
    (folder / "limits").write_text(limits)
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/pid_max").write_text("32768\n")
    return root


def test_who_may_raise_limits_gets_what_runs_want(tmp_path: Path) -> None:
    """On a server, root's container may pin all memory."""
    assert container_limits.words("podman", BUILT_IN, BUILT_IN, host(tmp_path, EVERY_RIGHT)) == (AS_THEY_ARE, ())


@pytest.mark.parametrize(("rights", "namespace"), [(WITHOUT_RAISING, FIRST_NAMESPACE), (EVERY_RIGHT, "0 100000 65536\n")])
def test_podman_gives_no_more_than_this_process_has(tmp_path: Path, rights: str, namespace: str) -> None:
    """Without the right, or with it in a namespace of one's own only, a container with higher limits does not start at all."""
    words, notes = container_limits.words("podman", BUILT_IN, BUILT_IN, host(tmp_path, rights, namespace))

    assert set(words) == {
        "--ulimit=memlock=8388608:8388608",
        "--ulimit=stack=67108864",
        "--ulimit=nofile=20000:20000",
        "--ulimit=nproc=32768:32768",
    }
    assert [note.split()[1] for note in notes] == ["memlock=8388608", "nofile=20000", "nproc=32768"]


def test_what_somebody_asks_for_stays(tmp_path: Path) -> None:
    """A wish that cannot be met is an error of the engine, not something else in silence."""
    wanted = (*BUILT_IN, "memlock=99999999", "nofile=1048576:1048576")
    words, notes = container_limits.words("podman", wanted, BUILT_IN, host(tmp_path, WITHOUT_RAISING))

    assert {"--ulimit=memlock=99999999", "--ulimit=nofile=1048576:1048576"} <= set(words)
    assert [note.split()[1] for note in notes] == ["nproc=32768"]


def test_docker_gets_the_limits_of_its_own_daemon(tmp_path: Path) -> None:
    """It is not this process that starts the container; and Apptainer's is this process, with its limits as they are."""
    root = host(tmp_path, WITHOUT_RAISING)

    assert container_limits.words("docker", BUILT_IN, BUILT_IN, root) == (AS_THEY_ARE, ())
    assert container_limits.words("apptainer", BUILT_IN, BUILT_IN, root) == ((), ())


@pytest.mark.parametrize("missing", ["self/status", "self/uid_map", "self/limits", "sys/kernel/pid_max"])
def test_nothing_is_lowered_where_nobody_can_tell(tmp_path: Path, missing: str) -> None:
    """No /proc (macOS, where podman runs in a machine of its own) is no proof of low limits."""
    root = host(tmp_path, WITHOUT_RAISING)
    (root / "proc" / missing).unlink()

    assert container_limits.words("podman", BUILT_IN, BUILT_IN, root) == (AS_THEY_ARE, ())
