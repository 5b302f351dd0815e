"""Races against safe_files: the owner of a path replaces it at the worst moment, and root must never use the target of the link.

The replacement is injected: a wrapped system call replaces the file or folder right before or after it runs, so each test hits the critical
moment every time. One test of the unit tests runs a real race with a limited number of attempts.
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
def test_a_replaced_job_folder_is_read_consistently(jobs: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Attack 3: the folder becomes a link to another account's folder after the open; owner, key and job are those of the first folder."""
    Switch(monkeypatch, "open", lambda: replace_by_link(jobs / JOB, jobs.parent / "planted" / JOB), name=name)
    # Root creates this folder with mode 0755.
    jobs.chmod(0o1777)
    found = read_owned(jobs, JOB, ("key", "job.json"))

    assert (found.owner.pw_name, *found.contents) == (ADA.pw_name, f"key of {ADA.pw_name}".encode(), ADA.pw_name.encode())


@root_only
@pytest.mark.parametrize("name", ["key", "job.json"])
def test_a_file_of_a_job_that_becomes_a_link_is_an_error(jobs: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A link created right before the read gives root's helper no content."""
    Switch(monkeypatch, "open", lambda: replace_by_link(jobs / JOB / name, jobs.parent / "planted" / JOB / name), name=name)
    with pytest.raises(PrimusError, match="symbolic link"):
        read_owned(jobs, JOB, ("key", "job.json"))


@root_only
def test_a_hard_link_to_a_file_of_another_account_is_not_read(jobs: Path) -> None:
    """It has the wrong owner, and is opened with the rights of the folder's owner."""
    (jobs / JOB / "job.json").unlink()
    os.link(jobs.parent / "planted" / JOB / "job.json", jobs / JOB / "job.json")
    with pytest.raises(PrimusError, match=r"job\.json"):
        read_owned(jobs, JOB, ("key", "job.json"))


@root_only
def test_files_of_a_job_are_read_with_the_rights_of_its_owner(jobs: Path) -> None:
    """A file that the owner cannot read is not read."""
    (jobs / JOB / "key").chmod(0)
    with pytest.raises(PrimusError, match="permission denied"):
        read_owned(jobs, JOB, ("key", "job.json"))


@root_only
def test_the_helper_rejects_a_job_whose_folder_becomes_a_link(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is a link when the helper opens it; no unit is looked up or started."""

    def no_command(*_: object, **__: object) -> str:
        raise AssertionError("a command ran for a job that is not entitled")

    monkeypatch.setattr(node_agent, "_run", no_command)
    Switch(monkeypatch, "open", lambda: replace_by_link(jobs / JOB, jobs.parent / "planted" / JOB), name=JOB)
    request = {"schema": SCHEMA, "verb": "start", "job": JOB, "attempt": 1, "key": f"key of {BOB.pw_name}", "rank": 0}
    with pytest.raises(PrimusError, match="symbolic link"):
        node_agent.answer_request(request, node_agent.HostRules(jobs, 0, (), accounts=(ADA.pw_name, BOB.pw_name), refuse_sudo=False))
