"""`load_cluster` and Ansible agree on hosts, groups, variables and the effective definition of each variable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from primus_bootstrap.inventory import load_cluster
from primus_bootstrap.inventory.source.yaml_values import value_of
from tests.shipped import inventory_files

if TYPE_CHECKING:
    from primus_bootstrap.inventory import Cluster
    from primus_bootstrap.inventory.ansible.variable_index import VariableIndex

TOPOLOGIES = sorted(path.parent for path in inventory_files())

# Every way to set a variable in Ansible; later ones take precedence.
PRECEDENCE = {
    "hosts.yaml": """
all:
  vars: {site_1: all, site_2: all, site_3: all, site_4: all, site_5: all, site_6: all, site_7: all, site_8: all}
  children:
    gpu_node:
      vars: {site_2: parent, site_3: parent, site_4: parent, site_5: parent, site_6: parent, site_7: parent, site_8: parent}
      children:
        aisle_b:
          vars: {site_3: b, site_9: b}
          hosts: {"n[1:3]": }
        aisle_a:
          vars: {site_3: a, site_9: a, ansible_group_priority: 5}
          hosts:
            n1: {site_7: host, site_8: host}
            n2:
            n4: {site_7: host4}
    spare:
      hosts: {n1: , n5: }
    container_host:
      hosts: {n6: }
  hosts:
    n6:
""",
    "group_vars/all.yml": "{site_4: all file, site_5: all file, site_6: all file, site_7: all file}\n",
    "group_vars/gpu_node/main.yml": "{site_5: parent file, site_6: parent file, site_11: first}\n",
    "group_vars/gpu_node/zones.yml": "{site_11: second}\n",
    "group_vars/aisle_a.json": '{"site_6": "a file", "site_10": {"x": 1}}',
    "group_vars/aisle_b": "{site_6: b file, site_10: {y: 2}}\n",
    "host_vars/n1.yaml": "{site_8: host file}\n",
    "host_vars/n4/main.yml": "{site_8: host file 4}\n",
}


def _ansible_inventory(folder: Path) -> dict[str, Any]:
    command = [str(Path(sys.executable).with_name("ansible-inventory")), "-i", str(folder / "hosts.yaml"), "--list"]
    environment = {**os.environ, "ANSIBLE_INVENTORY_ENABLED": "yaml", "ANSIBLE_CONFIG": str(content.ansible_cfg())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def _members(listed: dict[str, Any], group: str) -> set[str]:
    """Return a group's hosts and those of its children from Ansible's list."""
    body = listed.get(group, {})
    return set(body.get("hosts", ())).union(*(_members(listed, child) for child in body.get("children", ())))


def _raw(cluster: Cluster, host: str) -> dict[str, Any]:
    """Return a host's unresolved variables in the form of Ansible's list."""
    from ansible import constants  # noqa: PLC0415 - after the cluster is loaded with the shipped settings

    view: Any = cluster.view
    variables = view.variable_manager.get_vars(host=view.inventory.get_host(host), include_hostvars=False, stage="all")
    loaded: dict[str, Any] = json.loads(
        json.dumps({name: value for name, value in variables.items() if name not in constants.INTERNAL_STATIC_VARS})
    )
    return loaded


def _check(folder: Path) -> None:
    listed = _ansible_inventory(folder)
    cluster = load_cluster(folder)
    hosts = [host.name for host in cluster.hosts]

    assert set(hosts) == _members(listed, "all")
    groups = {name: set(members) for name, members in cluster.groups.items() if members}
    assert groups == {name: found for name in listed if name != "_meta" and (found := _members(listed, name))}
    for host in hosts:
        assert _raw(cluster, host) == listed["_meta"]["hostvars"].get(host, {}), host


def _check_effective_definitions(folder: Path) -> None:
    """Assert that each effective definition has Ansible's value and the right line."""
    listed = _ansible_inventory(folder)["_meta"]["hostvars"]
    view: Any = load_cluster(folder).view
    index: VariableIndex = view.locate.__self__
    for name in index.by_name.keys() - {"ansible_group_priority"}:
        effective = index.by_host(name)
        assert set(effective) == {host for host, variables in listed.items() if name in variables}, name
        for host, definition in effective.items():
            assert json.loads(json.dumps(value_of(definition.node))) == listed[host][name], (host, name)
            assert name in Path(definition.origin.file).read_text(encoding="utf-8").splitlines()[definition.origin.line - 1]


@pytest.mark.parametrize("folder", TOPOLOGIES, ids=lambda path: path.name)
def test_shipped_inventories_agree(folder: Path) -> None:
    """Hosts, groups and variables of every shipped inventory are those of `ansible-inventory --list`."""
    _check(folder)


@pytest.mark.parametrize("folder", TOPOLOGIES, ids=lambda path: path.name)
def test_effective_definitions_of_shipped_inventories_agree(folder: Path) -> None:
    """The effective definitions of every shipped inventory have Ansible's values."""
    _check_effective_definitions(folder)


@pytest.fixture(name="precedence")
def _precedence(tmp_path: Path) -> Path:
    for name, text in PRECEDENCE.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "site"


def test_precedence_agrees(precedence: Path) -> None:
    """All ways to set a variable have Ansible's precedence."""
    _check(precedence)
    _check_effective_definitions(precedence)
