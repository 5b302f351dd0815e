"""playbooks/vars/packet_filter.yml, which says who connects to whom, agrees with the roles, `preflight_ports` and docs/security.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from primus_bootstrap import content
from primus_bootstrap.inventory.schema.groups import load_groups
from primus_bootstrap.inventory.schema.specs import load_options
from tests.role_variables import trusted

FILE = content.playbooks_dir() / "vars" / "packet_filter.yml"
SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
# Kubespray's, and those of roles on Kubernetes, whose hosts have no packet filter.
KUBERNETES = {"kube_control_plane", "k8s_cluster", "etcd"}
KUBERNETES_ROLES = {"higress", "kube_prometheus_stack", "harbor", "kubespray"}
# Not a port of one service.
RANGES = {"jobs", "slurm_srun", "envoy"}


def services(**variables: Any) -> list[dict[str, Any]]:
    """Return the table for a host with these variables; every option that it names has its default."""
    known = {**trusted(yaml.safe_load(FILE.read_text(encoding="utf-8"))), **variables}
    rendered: list[dict[str, Any]] = Templar(loader=DataLoader(), variables=known).template(known["packet_filter_services"])
    return rendered


def ports_of(groups: set[str]) -> set[int]:
    """Return the ports on which services of these groups listen, with every optional one."""
    table = services(juicefs_metrics_address="10.0.0.1")
    here = [one for one in table if one["name"] not in RANGES and {*groups, "all"}.intersection(one["groups"])]
    return {int(port) for one in here for port in one["ports"]}


def test_groups_of_the_table_exist() -> None:
    """A misspelt group would have no hosts, and its clients would be rejected."""
    named = {group for one in services() for group in (*one["groups"], *one["sources"])}

    assert named - {"all", "anywhere", "administrators"} <= set(load_groups())


def test_entries_have_the_form_of_the_specification() -> None:
    """The role's own check would refuse others in the middle of a run; names are unique."""
    table = services()
    names = [one["name"] for one in table]

    assert sorted(set(names)) == sorted(names)
    assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in names)
    assert {key for one in table for key in one} <= {"name", "groups", "ports", "protocols", "sources"}


def test_defaults_of_ports_are_those_of_the_roles() -> None:
    """The table repeats them, because a playbook does not know the defaults of other roles."""
    stated = re.findall(r"\b(\w+_port) \| default\((\d+)\b", FILE.read_text(encoding="utf-8"))

    assert len(stated) > 8
    assert {name: int(port) for name, port in stated} == {name: load_options()[name].default for name, _ in stated}


@pytest.mark.parametrize("row", load_options()["preflight_ports"].default, ids=lambda row: row["process"])
def test_every_port_that_preflight_checks_has_clients(row: dict[str, Any]) -> None:
    """A port that is missing in the table is closed on hosts with a packet filter."""
    if row["group"] not in KUBERNETES:
        assert int(row["port"]) in ports_of({row["group"]}), f"add the port to {FILE}"


@pytest.mark.parametrize(
    "service", [one for one in services() if one["name"] not in {*RANGES, "juicefs_metrics"}], ids=lambda one: one["name"]
)
def test_every_port_is_in_the_table_of_open_ports(service: dict[str, Any]) -> None:
    """Administrators of the site's firewall read that one. The exporter runs on every host that Prometheus scrapes."""
    rows = [line.split("|") for line in SECURITY.read_text(encoding="utf-8").splitlines() if re.match(r"\| (`|every host)", line)]
    groups = {"node_exporter"} if service["groups"] == ["all"] else {"airgap"} if service["name"] == "airgap" else set(service["groups"])
    listed = {int(port) for row in rows if any(f"`{group}`" in row[1] for group in groups) for port in re.findall(r"\b\d{4,5}\b", row[2])}

    assert {int(port) for port in service["ports"]} <= listed


def test_ports_in_readmes_are_in_the_table() -> None:
    """A role that documents a port on the network has an entry."""
    documented = {}
    for readme in content.roles_dir().glob("*/README.md"):
        row = re.search(r"^\| ports \|(.*)\|$", readme.read_text(encoding="utf-8"), re.MULTILINE | re.IGNORECASE)
        if row and readme.parent.name not in KUBERNETES_ROLES:
            documented[readme.parent.name] = {int(port) for port in re.findall(r"\b\d{4,5}\b", row.group(1))}
    known = ports_of({"all", *load_groups()})

    assert sum(map(len, documented.values())) >= 5
    assert {role: ports - known for role, ports in documented.items() if ports - known} == {}
