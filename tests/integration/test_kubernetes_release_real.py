"""Test the checks of Kubespray's release with git."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.kubernetes import release as releases
from primus_bootstrap.kubernetes.git_tree import tree_of_archive
from tests.unit.test_kubernetes_release import VERSION, _checkout

if TYPE_CHECKING:
    from pathlib import Path


def test_tree_hash_equals_that_of_git(tmp_path: Path) -> None:
    """The tree has an executable file, links, names that sort as folders, and an empty folder."""
    work = tmp_path / "work"
    (work / "a").mkdir(parents=True)
    (work / "empty").mkdir()
    for name, text in (("a/x", "1"), ("a-b", "2"), ("a.b", "3"), ("run", "#!/bin/sh\n")):
        (work / name).write_text(text)
    (work / "run").chmod(0o755)
    (work / "link").symlink_to("../a/")
    os.symlink("a/", work / "slash")  # noqa: PTH211 - a Path would drop the slash

    def git(*words: str) -> str:
        names = [part for name in ("name", "email") for part in ("-c", f"user.{name}=x")]
        return subprocess.run(
            ["git", "-C", str(work), *names, *words], capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "x")
    git("archive", "--prefix=release/", "--format=tar.gz", "-o", str(tmp_path / "a.tgz"), "HEAD")

    assert tree_of_archive(tmp_path / "a.tgz") == git("rev-parse", "HEAD^{tree}")
    subprocess.run(["tar", "-czf", str(tmp_path / "b.tgz"), "--exclude=.git", "work"], cwd=tmp_path, timeout=60, check=True)
    assert tree_of_archive(tmp_path / "b.tgz") == git("rev-parse", "HEAD^{tree}")
    (work / "run").chmod(0o644)
    subprocess.run(["tar", "-czf", str(tmp_path / "c.tgz"), "--exclude=.git", "work"], cwd=tmp_path, timeout=60, check=True)
    assert tree_of_archive(tmp_path / "c.tgz") != git("rev-parse", "HEAD^{tree}")
    subprocess.run(["tar", "-czf", str(tmp_path / "d.tgz"), "a.tgz", "b.tgz"], cwd=tmp_path, timeout=60, check=True)
    with pytest.raises(ValueError, match="single top folder"):
        tree_of_archive(tmp_path / "d.tgz")


def test_changed_checkout_is_refused(tmp_path: Path) -> None:
    """Another commit, a changed file and an added file are refused."""
    mine = _checkout(tmp_path / "mine")
    git = ["git", "-C", str(mine), "-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    with pytest.raises(PlanError, match=rf"is at commit \w+, but Kubespray v{VERSION} is 1c9add48") as caught:
        releases._given(mine, load_release())
    assert f"git -C {mine} checkout v{VERSION}" in caught.value.fix

    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, timeout=60, capture_output=True, text=True).stdout.strip()
    pinned = replace(load_release(), commit=commit)
    assert releases._given(mine, pinned) == mine
    (mine / "group_vars").mkdir()
    (mine / "group_vars/all.yml").touch()
    with pytest.raises(PlanError, match=rf"was changed since the release v{VERSION}: \?\? group_vars/"):
        releases._given(mine, pinned)
    with (mine / "galaxy.yml").open("a") as file:
        file.write("more: 1\n")
    with pytest.raises(PlanError, match=r"M galaxy\.yml and 1 more"):
        releases._given(mine, pinned)


def test_failed_program_is_reported(tmp_path: Path) -> None:
    """The error has the last line of the output, and a fix."""
    with pytest.raises(PlanError, match="cannot fetch it: no such place") as caught:
        releases._call(["sh", "-c", "echo a >&2; echo no such place >&2; exit 3"], 10, "fetch it", "look")
    with pytest.raises(PlanError, match="cannot fetch it: exit code 3"):
        releases._call(["sh", "-c", "exit 3"], 10, "fetch it", "look")
    with pytest.raises(PlanError, match="cannot fetch it"):
        releases._call([str(tmp_path / "nobody")], 10, "fetch it", "look")

    assert caught.value.fix == "look"
