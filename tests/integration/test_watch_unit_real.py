"""primus_bootstrap.launch.watch.node_agent: authorization, and the start of units."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.errors import PrimusError
from primus_bootstrap.launch.watch import node_agent
from primus_bootstrap.launch.watch.ssh import SCHEMA
from tests.integration import watch_rig
from tests.unit.test_watch_unit import site as site

if TYPE_CHECKING:
    from primus_bootstrap.launch.watch.job_folder import JobFolder

pytestmark = watch_rig.needs_sshd
NOBODY = 65534


def allowed(site: watch_rig.Site, *, min_uid: int = 0) -> node_agent.HostRules:
    """Return the administrator's settings."""
    return node_agent.HostRules(site.jobs, min_uid, ("LimitNOFILE=1024",), accounts=(watch_rig.me(),), refuse_sudo=False)


def request(folder: JobFolder, verb: str = "status", **changes: Any) -> dict[str, Any]:
    """Return an authorized request."""
    return {"schema": SCHEMA, "verb": verb, "job": folder.path.name, "attempt": 1, "key": folder.key(), **changes}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"key": "0" * 64}, "the key is not the job's key"),
        ({"key": ""}, "has no valid job, attempt and key"),
        ({"job": "../small-0a1b2c"}, "has no valid job, attempt and key"),
        ({"job": "small-0a1b2c;reboot"}, "has no valid job, attempt and key"),
        ({"job": "other-0a1b2c"}, "there is no such job"),
        ({"attempt": 0}, "has no valid job, attempt and key"),
        ({"attempt": True}, "has no valid job, attempt and key"),
        ({"attempt": "1"}, "has no valid job, attempt and key"),
        ({"user": "daemon"}, "the request is from daemon"),
        ({"verb": "restart"}, "unknown request"),
        ({"schema": "primus.unit/0"}, "unknown request"),
        ({"verb": "start", "rank": 1}, "is not a node of the job"),
    ],
)
def test_an_unauthorized_or_malformed_request_is_refused(site: watch_rig.Site, changes: dict[str, Any], said: str) -> None:
    """Nothing is started, and no part of it reaches a command line."""
    folder = site.submit(site.job())
    with pytest.raises(PrimusError, match=said):
        node_agent.answer_request(request(folder, **changes), allowed(site))

    assert list((site.nodes["node1"].folder / "units").glob("primus-job-*")) == []


def test_only_allowed_accounts_start_jobs(site: watch_rig.Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other accounts, and those with sudo rights, may only query and stop jobs."""
    folder = site.submit(site.job())
    named = allowed(site)
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\necho "User $5 may run the following commands on node1:"\n')
    sudo.chmod(0o755)
    for wrong, said in (
        (replace(named, accounts=("bob",)), "may not have jobs on this host"),
        (replace(named, accounts=None), "do not name the accounts that may have jobs"),
        (replace(named, refuse_sudo=True), "sudo gives"),
    ):
        monkeypatch.setattr(node_agent, "_SUDO", str(sudo))
        with pytest.raises(PrimusError, match=said):
            node_agent.answer_request(request(folder, "start", rank=0), wrong)
        assert node_agent.answer_request(request(folder), wrong)["state"] == "absent"

    assert list((site.nodes["node1"].folder / "units").glob("primus-job-*")) == []


def test_root_runs_no_jobs(site: watch_rig.Site) -> None:
    """Accounts of the system are refused."""
    folder = site.submit(site.job())
    with pytest.raises(PrimusError, match="its owner is not a user"):
        node_agent.answer_request(request(folder), allowed(site, min_uid=1000))


def test_a_symbolic_link_to_a_jobs_folder_is_refused(site: watch_rig.Site) -> None:
    """Whoever owns its target."""
    folder = site.submit(site.job())
    (site.jobs / "link-0a1b2c").symlink_to(folder.path)
    with pytest.raises(PrimusError, match="link-0a1b2c: is a symbolic link"):
        node_agent.answer_request({**request(folder), "job": "link-0a1b2c"}, allowed(site))


def test_files_are_read_with_the_rights_of_the_owner() -> None:
    """A key that links to a file of root is not read."""
    root = Path(tempfile.mkdtemp())
    try:
        root.chmod(0o755)
        (root / "secret").write_text("root's secret")
        (root / "secret").chmod(0o600)
        folder = root / "small-0a1b2c"
        folder.mkdir()
        (folder / "key").symlink_to(root / "secret")
        os.chown(folder, NOBODY, NOBODY)
        asked = {"schema": SCHEMA, "verb": "status", "job": "small-0a1b2c", "attempt": 1, "key": "root's secret"}
        with pytest.raises(PrimusError, match="key: is a symbolic link"):
            node_agent.answer_request(asked, node_agent.HostRules(root, 1000, ()))
        (folder / "key").unlink()
        os.mkfifo(folder / "key")
        with pytest.raises(PrimusError, match="key: is a named pipe"):
            node_agent.answer_request(asked, node_agent.HostRules(root, 1000, ()))
        (folder / "key").unlink()
        os.link(root / "secret", folder / "key")
        with pytest.raises(PrimusError, match=r"key: (cannot be opened: permission denied|is owned by uid 0)"):
            node_agent.answer_request(asked, node_agent.HostRules(root, 1000, ()))
    finally:
        shutil.rmtree(root)


def test_an_older_attempt_is_killed_before_a_newer_one_starts(site: watch_rig.Site) -> None:
    """The units of systemd decide, not state.json."""
    folder = site.submit(site.job())
    older = ["systemd-run", "--collect", "--uid=0", "--unit=primus-job-small-0a1b2c-1.service", "--", "sleep", "300"]
    node_agent._run(older)
    assert len(site.nodes["node1"].launchers()) == 1
    started = node_agent.answer_request(request(folder, "start", attempt=2, rank=0), allowed(site))
    words = json.loads((site.nodes["node1"].folder / "units" / "primus-job-small-0a1b2c-2.service").read_text())["words"]

    assert started["state"] == "started"
    assert {"--collect", "--property=KillMode=mixed", "--property=LimitNOFILE=1024", "--property=TimeoutStopSec=35"} <= set(words)
    assert words[-7:] == ["attempt", "--folder", str(folder.path), "--attempt", "2", "--rank", "0"]
    assert not node_agent._active("primus-job-small-0a1b2c-1.service")


def test_gpus_are_not_shared_by_two_jobs(site: watch_rig.Site) -> None:
    """The start fails, and the probe names the other unit."""
    folder = site.submit(site.job(gpus_per_node=8))
    other = "primus-job-other-0a1b2c-1.service"
    node_agent._run(["systemd-run", "--collect", "--uid=0", f"--unit={other}", "--", "sleep", "300"])
    with pytest.raises(PrimusError, match=r"primus-job-other-0a1b2c-1\.service runs on this host, and GPUs are not shared"):
        node_agent.answer_request(request(folder, "start", rank=0), allowed(site))

    assert node_agent.answer_request({"schema": SCHEMA, "verb": "probe"}, allowed(site))["units"] == [other]


def test_two_jobs_do_not_start_on_a_host_at_the_same_time(site: watch_rig.Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one must retry."""
    monkeypatch.setattr(node_agent, "_LOCK", tmp_path / "lock")
    monkeypatch.setattr(node_agent, "_LOCK_S", 0.3)
    folder = site.submit(site.job())
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(PrimusError, match="another job is being started on this host"):
            node_agent.answer_request(request(folder, "start", rank=0), allowed(site))

    assert node_agent.answer_request(request(folder, "start", rank=0), allowed(site))["state"] == "started"
