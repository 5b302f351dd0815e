"""Races against safe_files: the owner of a path replaces what lies there at the worst moment, and root never touches what it points to.

The switch is injected: a system call is wrapped so that it replaces the file or folder right before, or right after, it runs. So each test
hits the critical point every time. One test races for real, with a bounded number of tries.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PrimusError
from primus_bootstrap.launch.watch import node_agent
from primus_bootstrap.launch.watch.job_owner import read_owned
from primus_bootstrap.launch.watch.ssh import SCHEMA
from tests.unit.test_safe_files_races import ADA, BOB, JOB, Switch, replace_by_link
from tests.unit.test_safe_files_races import jobs as jobs

if TYPE_CHECKING:
    from pathlib import Path

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to other accounts")


@root_only
@pytest.mark.parametrize("name", ["key", "job.json"])
def test_a_job_folder_that_is_switched_is_read_as_one(jobs: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The folder becomes a link to another account's after it was opened: owner, key and job are all those of the first one (attack 3)."""
    Switch(monkeypatch, "open", lambda: replace_by_link(jobs / JOB, jobs.parent / "planted" / JOB), name=name)
    # More than the attacker has: root makes this folder 0755.
    jobs.chmod(0o1777)
    found = read_owned(jobs, JOB, ("key", "job.json"))

    assert (found.owner.pw_name, *found.contents) == (ADA.pw_name, f"key of {ADA.pw_name}".encode(), ADA.pw_name.encode())


@root_only
@pytest.mark.parametrize("name", ["key", "job.json"])
def test_a_file_of_a_job_that_becomes_a_link_is_refused(jobs: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A link to another account's file, put in right before the read, gives no content to root's helper."""
    Switch(monkeypatch, "open", lambda: replace_by_link(jobs / JOB / name, jobs.parent / "planted" / JOB / name), name=name)
    with pytest.raises(PrimusError, match="symbolic link"):
        read_owned(jobs, JOB, ("key", "job.json"))


@root_only
def test_a_file_that_only_root_can_read_stays_unread(jobs: Path) -> None:
    """A hard link to a file of another account has the wrong owner, and it is opened with the rights of the folder's owner."""
    (jobs / JOB / "job.json").unlink()
    os.link(jobs.parent / "planted" / JOB / "job.json", jobs / JOB / "job.json")
    with pytest.raises(PrimusError, match=r"job\.json"):
        read_owned(jobs, JOB, ("key", "job.json"))


@root_only
def test_files_of_a_job_are_read_with_the_rights_of_its_owner(jobs: Path) -> None:
    """What the owner may not read itself is not read: root's rights play no part."""
    (jobs / JOB / "key").chmod(0)
    with pytest.raises(PrimusError, match="permission denied"):
        read_owned(jobs, JOB, ("key", "job.json"))


@root_only
def test_the_helper_refuses_a_job_whose_folder_is_switched_for_a_link(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole request: the attacker's folder is a link by the time the helper opens it, and no unit is looked up or started."""

    def no_command(*_: object, **__: object) -> str:
        raise AssertionError("a command ran for a job that is not entitled")

    monkeypatch.setattr(node_agent, "_run", no_command)
    Switch(monkeypatch, "open", lambda: replace_by_link(jobs / JOB, jobs.parent / "planted" / JOB), name=JOB)
    asked = {"schema": SCHEMA, "verb": "start", "job": JOB, "attempt": 1, "key": f"key of {BOB.pw_name}", "rank": 0}
    with pytest.raises(PrimusError, match="symbolic link"):
        node_agent.answer_request(asked, node_agent.HostRules(jobs, 0, (), accounts=(ADA.pw_name, BOB.pw_name), refuse_sudo=False))
