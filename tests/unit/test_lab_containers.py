"""Test that the output of podman and docker about networks and containers is parsed."""

from __future__ import annotations

from ipaddress import IPv4Network
from types import SimpleNamespace
from typing import Any

import pytest

from primus_bootstrap.lab import containers
from primus_bootstrap.lab.containers import _container, _network

PODMAN: dict[str, Any] = {"name": "primus-lab", "subnets": [{"subnet": "10.187.1.0/24", "gateway": "10.187.1.1"}]}
DOCKER: dict[str, Any] = {"Name": "primus-lab", "IPAM": {"Config": [{"Subnet": "10.187.1.0/24"}]}}
CNI: dict[str, Any] = {"name": "primus-lab", "plugins": [{"ipam": {"ranges": [[{"subnet": "10.187.1.0/24"}]]}}, {"type": "firewall"}]}


@pytest.mark.parametrize("entry", [PODMAN, DOCKER, CNI], ids=["podman", "docker", "podman with CNI"])
def test_subnet_is_parsed_from_each_format(entry: dict[str, Any]) -> None:
    """The three formats of `network inspect` give the same subnet."""
    assert _network(entry) == ("primus-lab", IPv4Network("10.187.1.0/24"))


@pytest.mark.parametrize("entry", [{"Name": "host", "IPAM": {"Config": None}}, {"name": "v6", "subnets": [{"subnet": "fd00::/64"}]}])
def test_network_without_ipv4_has_no_subnet(entry: dict[str, Any]) -> None:
    """The host network and IPv6 networks have the subnet None."""
    assert _network(entry)[1] is None


@pytest.mark.parametrize("networks", [None, {}])
def test_disconnected_container_has_no_address(networks: dict[str, Any] | None) -> None:
    """For a container without networks, podman prints null and docker an empty object."""
    found = _container(
        {
            "Name": "/primus-lab-node1",
            "State": {"Status": "running"},
            "Config": {"Labels": {"primus.lab.node": "node1", "primus.lab.folder": "/f"}, "Image": "localhost/x:1"},
            "NetworkSettings": {"Networks": networks},
        }
    )

    assert (found.name, found.node, found.networks, found.address, found.folder) == ("primus-lab-node1", "node1", (), "", "/f")


def test_execute_returns_the_exit_code_and_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing command in a container raises nothing; its exit code, stdout and stderr are returned."""
    given: dict[str, Any] = {}

    def run(argv: list[str], **options: Any) -> Any:
        given.update(options, argv=argv)
        return SimpleNamespace(code=3, stdout="output ", stderr="and error")

    monkeypatch.setattr(containers, "run", run)
    machine: Any = SimpleNamespace(engine_argv=["podman"])

    assert containers.execute(machine, "node1", ["id"], timeout_s=5) == (3, "output and error")
    assert (given["argv"], given["check"], given["timeout_s"]) == (["podman", "exec", "node1", "id"], False, 5)
