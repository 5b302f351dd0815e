"""Test `playbooks/day2/upgrade_kubernetes.yml` with a fake Kubespray: which workers it upgrades if some do not answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.inventory.kubespray_release import load_release
from tests.integration.kubespray_rig import api
from tests.playbooks import one_line, run_playbook
from tests.unit.kube_nodes_rig import node

NEWEST = load_release().newest
OLD = f"1.{int(NEWEST.split('.')[1]) - 1}.1"
LONG = pytest.mark.long("roles/kube_upgrade", "playbooks/day2")


def running(name: str, version: str, *, ready: bool = True) -> dict[str, Any]:
    """Return a Node whose kubelet has this version."""
    found = node(name)
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    return {
        **found,
        "kind": "Node",
        "apiVersion": "v1",
        "status": {"conditions": conditions, "nodeInfo": {"kubeletVersion": f"v{version}"}},
    }


def upgrade(folder: Path, nodes: dict[str, dict[str, Any]]) -> tuple[int, list[str], str]:
    """Run the playbook; return its exit code, the fake's commands, and the output with single spaces."""
    roles, log = folder / "roles", folder / "log"
    told = "{{ kubespray_version }} {{ kubespray_batches | to_json }} {{ kubespray_unreachable_workers | to_json }}"
    for name, words in (("own_api", "own {{ inventory_hostname }}"), ("upgrade", told), ("verify", "verify")):
        (roles / "kubespray/tasks").mkdir(parents=True, exist_ok=True)
        task = {"ansible.builtin.shell": f"echo '{words}' >> {log}"}
        (roles / f"kubespray/tasks/{name}.yml").write_text(yaml.safe_dump([task]), encoding="utf-8")
    (roles / "kube_upgrade").symlink_to(content.roles_dir() / "kube_upgrade")
    local = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
    silent = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    hosts = {"cp1": {}, "w1": {"rack": "b"}, "w2": silent, "w3": {"kube_override_hostname": "node-3"}, "w4": {"rack": "a"}}
    workers = {"hosts": dict.fromkeys(("w1", "w2", "w3", "w4"))}
    children = {"kube_control_plane": {"hosts": {"cp1": None}}, "etcd": {"hosts": {"cp1": None}}, "kube_node": workers}
    stated = {**local, "cluster_name": "demo", "kube_version": NEWEST}
    (folder / "hosts.yaml").write_text(json.dumps({"all": {"vars": stated, "hosts": hosts, "children": children}}), encoding="utf-8")
    environment = {
        "ANSIBLE_ROLES_PATH": str(roles), "PYTHONPATH": str(Path(__file__).parents[2]),
        "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"), "ANSIBLE_HOME": str(folder / "home"),
    }  # fmt: skip
    with api("https://10.0.0.1:6443", folder / ".primus/demo/kubespray/artifacts/admin.conf", nodes):
        done = run_playbook(folder / "hosts.yaml", "day2/upgrade_kubernetes.yml", "-e", f"version={NEWEST}", environment=environment)
    return done.returncode, log.read_text(encoding="utf-8").splitlines() if log.exists() else [], one_line(done)


def test_unavailable_workers_are_excluded(tmp_path: Path) -> None:
    """A worker that is down or not Ready is named and excluded; the others are upgraded."""
    nodes = {name: running(name, OLD) for name in ("cp1", "w1", "w2", "w4")} | {"node-3": running("node-3", OLD, ready=False)}
    code, steps, output = upgrade(tmp_path, nodes)

    assert code == 0, output
    assert "own cp1" in steps
    assert f'{NEWEST} [["w4"], ["w1"]] ["w3", "w2"]' in steps
    assert "WARNING: left out are w3 (not Ready), w2 (does not answer)." in output
    assert "2 of 4 workers in 2 batches" in output


@LONG
def test_interrupted_batch_is_repeated(tmp_path: Path) -> None:
    """The batch in the record is repeated; a finished worker with another cordon stays cordoned."""
    nodes = {name: running(name, NEWEST) for name in ("cp1", "w1", "w2", "node-3", "w4")}
    nodes["w4"]["spec"]["unschedulable"] = True
    note = tmp_path / ".primus/demo/kubespray/cordons.json"
    note.parent.mkdir(parents=True)
    note.write_text(json.dumps({"taking": ["node-3"], "unfinished": ["node-3"]}), encoding="utf-8")
    code, steps, output = upgrade(tmp_path, nodes)

    assert code == 0, output
    assert f'{NEWEST} [["w3"]] ["w2"]' in steps
    assert "WARNING" not in output, "w2 does not answer, and has nothing to be missed for"
