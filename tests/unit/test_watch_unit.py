"""primus_bootstrap.launch.watch.node_agent: settings and quarantine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap.core.errors import PrimusError
from primus_bootstrap.launch.watch import node_agent
from tests.integration import watch_rig

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = watch_rig.needs_sshd


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[watch_rig.Site]:
    """Create a node without SSH, with a fake systemd on the PATH and a folder of jobs."""
    made = watch_rig.Site(tmp_path)
    made.start("node1")
    monkeypatch.setenv("PATH", f"{tmp_path}/programs:/usr/bin:/bin")
    monkeypatch.setenv("NODE_FOLDER", str(made.nodes["node1"].folder))
    monkeypatch.setenv("NODE_NAME", "node1")
    yield made
    made.end()


def test_the_settings_of_an_earlier_release_have_no_accounts(tmp_path: Path) -> None:
    """During an apply a host may have the new program and the old settings."""
    path = tmp_path / "workload.json"
    old = {"schema": "primus.workload-site/1", "folder": "/srv/jobs", "min_uid": 1000, "properties": []}
    path.write_text(json.dumps(old))

    assert node_agent._site(path) == node_agent.HostRules(Path("/srv/jobs"), 1000, (), accounts=None)
    for data in ({**old, "schema": node_agent.SITE_SCHEMA}, {**old, "accounts": []}):
        path.write_text(json.dumps(data))
        with pytest.raises(PrimusError, match="accounts belong to"):
            node_agent._site(path)


def test_a_quarantined_host_is_reported(tmp_path: Path) -> None:
    """Also if its record cannot be read."""
    record = tmp_path / "quarantine.json"
    nothing = node_agent._quarantine(record)
    record.write_text(json.dumps({"owner": "ada", "reason": "fan broken"}))
    held = node_agent._quarantine(record)
    record.write_text("{")
    stated = yaml.safe_load((watch_rig.ROOT / "roles/quarantine/vars/main.yml").read_text())

    assert (nothing, held) == ("", "in quarantine by ada: fan broken")
    assert node_agent._quarantine(record).startswith("in quarantine; ")
    assert stated["_quarantine_host_path"] == str(node_agent.QUARANTINE)
