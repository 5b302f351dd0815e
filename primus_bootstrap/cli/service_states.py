"""Asks hosts, Slurm's controllers and Kubernetes which hosts are in service."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.cli.fleet_verbs import ask_hosts, targets_of_limit
from primus_bootstrap.engine.ssh import known_hosts_path
from primus_bootstrap.fleet.service import read_quarantine, read_services, service_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.fleet.messages import Answer
    from primus_bootstrap.fleet.service import Service
    from primus_bootstrap.inventory.cluster import Cluster
    from primus_bootstrap.kubernetes.node_states import NodeState


def read_service_states(cluster: Cluster, hosts: Sequence[str], *, timeout_s: float) -> tuple[Service, ...]:
    """Return the service state of each host, without Kubernetes."""
    return read_services(_ask(cluster, hosts, timeout_s), hosts)


def read_all_states(cluster: Cluster, hosts: Sequence[str], *, timeout_s: float) -> tuple[tuple[Answer, Service], ...]:
    """Return the answer and the service state of each host, with the state of its Kubernetes Node."""
    answers = {answer.host: answer for answer in _ask(cluster, hosts, timeout_s)}
    services = _with_nodes(cluster, read_services(answers.values(), hosts))
    return tuple((answers[service.host], service) for service in services)


def _ask(cluster: Cluster, hosts: Sequence[str], timeout_s: float) -> list[Answer]:
    """Ask the hosts and Slurm's controllers."""
    targets = targets_of_limit(cluster, ",".join(dict.fromkeys([*hosts, *cluster.groups.get("slurm_controller", ())])))
    return ask_hosts(cluster, targets, service_task(targets, known_hosts=known_hosts_path(cluster), timeout_s=timeout_s))


def _with_nodes(cluster: Cluster, services: Sequence[Service]) -> tuple[Service, ...]:
    """Add the state of the Kubernetes Nodes; the record on a Node is used if the host does not answer."""
    if not any(cluster.groups.get(group) for group in ("kube_control_plane", "kube_node")):
        return tuple(services)
    from primus_bootstrap.kubernetes.node_states import read_states  # noqa: PLC0415 - its client takes a second to load

    states = read_states(cluster, [service.host for service in services])
    return tuple(_with_node(service, states[service.host]) if service.host in states else service for service in services)


def _with_node(service: Service, node: NodeState) -> Service:
    quarantine = service.quarantine or (read_quarantine(node.quarantine) if node.quarantine else None)
    return replace(service, quarantine=quarantine, kubernetes=node.state, kubernetes_reason=node.reason)
