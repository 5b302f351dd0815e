"""Roles with network services: each listens on the address by which the inventory knows its host, and on no other one."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from primus_bootstrap import content
from tests.unit.test_role_templates import render

PORTS = {"prometheus": 9090, "alertmanager": 9093, "node_exporter": 9100, "oci_registry": 5000}
EXPORTERS = ("prometheus", "alertmanager", "node_exporter")


def registry_address(**variables: Any) -> str:
    """Return `addr` of the registry's configuration."""
    known: dict[str, Any] = {"inventory_hostname": "n1"}
    for part in ("defaults", "vars"):
        known |= yaml.safe_load((content.roles_dir() / "oci_registry" / part / "main.yml").read_text(encoding="utf-8"))
    expression = known["_oci_registry_settings"]["http"]["addr"]
    templates = {name: trust_as_template(value) if isinstance(value, str) else value for name, value in known.items()}
    return str(Templar(loader=DataLoader(), variables={**templates, **variables}).template(trust_as_template(expression)))


def listens(role: str, **variables: Any) -> str:
    """Return address and port on which the configured service listens."""
    if role == "oci_registry":
        return registry_address(**variables)
    found = re.findall(r"--web\.listen-address=(\S+)", render(role, "unit.conf.j2", **variables))
    assert len(found) == 1
    return str(found[0])


@pytest.mark.parametrize("role", PORTS)
@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({"ip": "10.0.0.1", "ansible_host": "203.0.113.1"}, "10.0.0.1"),
        ({"ansible_host": "203.0.113.1"}, "203.0.113.1"),
        ({"ansible_host": "fd00::2"}, "[fd00::2]"),
        ({}, "n1"),
    ],
)
def test_service_listens_on_the_address_of_its_host(role: str, variables: dict[str, Any], address: str) -> None:
    """Other networks of the host do not reach it. Clients get the same address from the inventory."""
    assert listens(role, **variables) == f"{address}:{PORTS[role]}"


@pytest.mark.parametrize(
    ("role", "variable"), [*((one, f"{one}_bind_address") for one in EXPORTERS), ("oci_registry", "oci_registry_listen_address")]
)
def test_the_address_can_be_set(role: str, variable: str) -> None:
    """`::` stands for every address, as in earlier releases."""
    assert listens(role, ip="10.0.0.1", **{variable: "::"}) == f"[::]:{PORTS[role]}"
    assert listens(role, ip="10.0.0.1", **{variable: "192.168.0.1"}) == f"192.168.0.1:{PORTS[role]}"


def test_a_registry_that_is_called_by_an_address_listens_on_it() -> None:
    """It may be one of a second network; clients use the name."""
    assert listens("oci_registry", ip="10.0.0.1", oci_registry_name="192.168.0.1") == "192.168.0.1:5000"
    assert listens("oci_registry", ip="10.0.0.1", oci_registry_name="registry.example.org") == "10.0.0.1:5000"


@pytest.mark.parametrize(
    ("answer", "variables", "fits"),
    [
        ({"10.0.0.1": [["STREAM", "n1"], ["DGRAM"]]}, {"ip": "10.0.0.1"}, True),
        ({"10.0.0.1": ["STREAM", "n1"], "127.0.1.1": ["STREAM"]}, {"ip": "10.0.0.1"}, True),
        ({"127.0.1.1": ["STREAM", "n1"], "10.0.0.1": ["STREAM"]}, {"ip": "10.0.0.1"}, False),
        ({"192.168.0.1": ["STREAM", "n1"]}, {"ip": "10.0.0.1"}, False),
        ({"n1": None}, {"ip": "10.0.0.1"}, False),
        ({"10.0.0.1": ["STREAM", "n1"]}, {}, True),
        ({"127.0.1.1": ["STREAM", "n1"]}, {}, False),
        ({"n1": None}, {}, False),
    ],
)
def test_slurm_refuses_a_name_with_another_address(answer: dict[str, Any], variables: dict[str, Any], fits: bool) -> None:  # noqa: FBT001 - parametrized
    """Slurm listens on the address of the kernel's host name. Without an address in hosts.yaml, only a loopback address is wrong."""
    tasks = yaml.safe_load((content.roles_dir() / "slurm" / "tasks" / "check_own_address.yml").read_text(encoding="utf-8"))
    own = {name: trust_as_template(value) for name, value in tasks[-1]["vars"].items()}
    address = trust_as_template("{{ slurm_node_address or ip | default(ansible_host | default(inventory_hostname)) }}")
    known = {"inventory_hostname": "n1", "slurm_node_address": "", **own, "_slurm_address": address, **variables}
    condition = tasks[-1]["ansible.builtin.assert"]["that"]
    found = {"ansible_facts": {"getent_ahostsv4": answer}}
    templar = Templar(loader=DataLoader(), variables={**known, "__slurm_own_name": found})

    assert templar.template(trust_as_template(f"{{{{ {condition} }}}}")) is fits


def test_alertmanagers_gossip_on_the_same_address() -> None:
    """Only its peers connect to this port, by the address of the inventory."""
    unit = render("alertmanager", "unit.conf.j2", ip="10.0.0.1", alertmanager_peers=["10.0.0.2:9094"])

    assert "--cluster.listen-address=10.0.0.1:9094 --cluster.advertise-address=10.0.0.1:9094" in unit
