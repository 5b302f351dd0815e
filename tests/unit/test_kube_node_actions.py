"""Test the states of the Ansible action `kube_nodes`: names of Nodes, arguments, results, and what needs no API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.kubernetes import node_actions
from primus_bootstrap.kubernetes.node_marks import mark_of
from tests.unit.kube_nodes_rig import FakeApi, node

if TYPE_CHECKING:
    from pathlib import Path

# The Node of h2 has another name.
HOSTS: dict[str, dict[str, Any]] = {"gpu1": {"rack": "r1"}, "h2": {"kube_override_hostname": "gpu2", "node_taints": ["gpu=yes:NoSchedule"]}}
RECORD = {"host": "h2", "owner": "ada", "reason": "fan broken", "time": 1000.0}


def run(api: FakeApi | None, state: str, *, check: bool = False, diff: bool = False, **args: Any) -> dict[str, Any]:
    """Run a state; without an API, a request fails."""

    def open_server(_: Path) -> FakeApi:
        if api is None:
            raise RunError("the API server does not answer", fix="start it")
        return api

    task = node_actions.Task({"kubeconfig": "/admin.conf", "state": state, **args}, HOSTS, check=check, diff=diff, open_server=open_server)
    return node_actions.run(task)


def test_a_quarantine_uses_the_names_of_nodes() -> None:
    """It is set, read, and removed for a host whose Node has another name."""
    api = FakeApi(node("gpu1"), node("gpu2"))

    assert run(api, "quarantined", records=[RECORD]) == {"changed": True, "nodes": ["gpu2"]}
    assert run(api, "quarantined", records=[RECORD]) == {"changed": False, "nodes": []}
    read = run(api, "read", hosts=["h2"])
    assert (read["changed"], read["record"]["reason"]) == (False, "fan broken")
    assert run(api, "released", hosts=["h2"], owner="bob") == {"changed": False, "nodes": []}
    assert run(api, "released", hosts=["h2"], owner="ada", check=True) == {"changed": True, "nodes": ["gpu2"]}
    assert mark_of(api.nodes["gpu2"], "quarantine") == RECORD
    assert run(api, "released", hosts=["gpu1", "h2"], owner="ada") == {"changed": True, "nodes": ["gpu2"]}
    assert run(api, "quarantined", records=[RECORD])["changed"]
    assert run(api, "cleared", hosts=["h2"]) == {"changed": True, "nodes": ["gpu2"]}
    assert api.nodes["gpu2"]["spec"] == {}


@pytest.mark.parametrize("state", ["released", "cleared", "read", "quarantined", "labelled", "unlabelled"])
def test_nothing_to_do_needs_no_api_server(state: str) -> None:
    """Playbooks run these tasks on clusters without such hosts."""
    assert run(None, state, hosts=[], records=[])["changed"] is False


def test_no_answer_is_an_error() -> None:
    """The action returns it as the failure of the task."""
    with pytest.raises(RunError, match="does not answer"):
        run(None, "labelled", hosts=["gpu1"])


def test_labels_are_set_and_removed() -> None:
    """The message has the number of changed Nodes and the hosts without a Node; check mode and --diff show the same."""
    api = FakeApi(node("gpu1"), node("gpu2"))
    hosts = ["gpu1", "h2"]

    would = run(api, "labelled", hosts=hosts, check=True, diff=True)
    assert (would["changed"], would["msg"], len(would["diff"])) == (True, "2 of 2 Nodes differ", 2)
    assert run(api, "labelled", hosts=hosts)["msg"] == "2 of 2 Nodes differ and were changed"
    assert api.nodes["gpu1"]["metadata"]["labels"]["primus-bootstrap.io/rack"] == "r1"
    assert [taint["key"] for taint in api.nodes["gpu2"]["spec"]["taints"]] == ["gpu"]
    assert run(api, "labelled", hosts=hosts) == {"changed": False, "msg": "0 of 2 Nodes differ", "absent": []}
    assert run(api, "unlabelled", hosts=hosts)["changed"]
    assert not api.nodes["gpu2"]["spec"].get("taints")
    del api.nodes["gpu2"]
    assert run(api, "labelled", hosts=["h2"])["msg"] == "0 of 1 Nodes differ; 1 hosts have no Node: gpu2"


def test_a_drain_and_its_end() -> None:
    """The reason of the drain ends it; another one does not."""
    api = FakeApi(node("gpu1"), node("gpu2"))
    limits: dict[str, Any] = {"wait_s": 0, "evict_s": 1, "force": False}

    assert run(api, "drained", host="h2", reason="reboot", check=True, **limits) == {"changed": True}
    assert api.nodes["gpu2"]["spec"] == {}
    assert run(api, "drained", host="h2", reason="reboot", **limits) == {"changed": True}
    assert mark_of(api.nodes["gpu2"], "drain")["host"] == "h2"
    assert run(api, "uncordoned", host="h2", reason="upgrade") == {"changed": False}
    assert run(api, "uncordoned", host="h2", reason="reboot") == {"changed": True}
    assert run(api, "deleted", host="h2") == {"changed": True}
    assert "gpu2" not in api.nodes
