"""The rules that look at more than one line. Each is a small function with its reason; `RULES` is all of them.

A rule takes a `ValidationContext` and yields problems. To add one: write the function, put it into a table, add a broken inventory
under tests/data/broken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.inventory.rules import (
    gateway,
    group_membership,
    hosts,
    kubernetes,
    kubernetes_nodes,
    kubernetes_services,
    monitoring,
    network,
    ports,
    registry,
    scheduling,
    slurm,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.rules.context import ValidationContext

RULES: tuple[Callable[[ValidationContext], Iterator[Problem]], ...] = (
    *hosts.RULES,
    *group_membership.RULES,
    *network.RULES,
    *kubernetes.RULES,
    *kubernetes_nodes.RULES,
    *ports.RULES,
    *registry.RULES,
    *slurm.RULES,
    *monitoring.RULES,
    *gateway.RULES,
    *kubernetes_services.RULES,
    *scheduling.RULES,
)


def check(reading: ValidationContext) -> list[Problem]:
    """Return what every rule finds."""
    return [problem for rule in RULES for problem in rule(reading)]
