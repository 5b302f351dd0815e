"""All rules that are applied to an inventory.

To add a rule: write a function that takes a `ValidationContext` and yields problems, add it to `RULES` of its module, and add a broken
inventory to tests/data/broken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.inventory.rules import (
    bench,
    closed_network,
    gateway,
    gpus,
    group_membership,
    hosts,
    kubernetes,
    kubernetes_nodes,
    kubernetes_services,
    kubespray,
    monitoring,
    network,
    packet_filter,
    pod_addresses,
    ports,
    registry,
    scheduling,
    slurm,
    storage,
)

if TYPE_CHECKING:
    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext

RULES: tuple[Rule, ...] = (
    *hosts.RULES,
    *group_membership.RULES,
    *network.RULES,
    *pod_addresses.RULES,
    *kubernetes.RULES,
    *kubernetes_nodes.RULES,
    *kubespray.RULES,
    *ports.RULES,
    *packet_filter.RULES,
    *registry.RULES,
    *slurm.RULES,
    *gpus.RULES,
    *monitoring.RULES,
    *gateway.RULES,
    *kubernetes_services.RULES,
    *closed_network.RULES,
    *scheduling.RULES,
    *storage.RULES,
    *bench.RULES,
)


def check(context: ValidationContext) -> list[Problem]:
    """Return the problems that all rules find."""
    return [problem for rule in RULES for problem in rule(context)]
