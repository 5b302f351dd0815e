"""Rules about Slurm: what cannot become one cluster is refused here, by the judgement that the role's preflight uses too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.inventory.ansible.role_filters import load_filters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.rules.context import ValidationContext


def slurm_cluster(reading: ValidationContext) -> Iterator[Problem]:
    """Partitions, QOS and controllers that contradict each other would be found out by slurmctld, after an hour of installing."""
    judge = load_filters("slurm").slurm_judge
    if not any(reading.groups.get(group) for group in judge.GROUPS):
        return
    stated = {name: _stated(reading, name, judge.UNKNOWN) for name in judge.VARIABLES}
    for one in judge.all_findings(reading.groups, stated):
        origin = _origin(reading, one.about)
        yield Problem(origin.file, origin.line, one.what, one.fix, one.rule)


def _stated(reading: ValidationContext, name: str, unknown: str) -> Any:
    """Return a variable as the first controller has it: None where it is not stated, `unknown` where only a run knows it."""
    controller = next(iter(reading.groups.get("slurm_controller", ())), "")
    if controller not in reading.merged.of(name):
        return None
    try:
        return reading.view.variables(controller)[name]
    except InventoryError:  # a template that fails is reported by a rule of its own
        return unknown


def _origin(reading: ValidationContext, about: str) -> Origin:
    """Return where a group is named, or where the variable is written that counts for the first controller."""
    if about in reading.groups:
        return reading.group_origin(about)
    controller = next(iter(reading.groups.get("slurm_controller", ())), "")
    return reading.merged.origin(controller, about) or reading.group_origin("slurm_controller")


RULES: tuple[Callable[[ValidationContext], Iterator[Problem]], ...] = (slurm_cluster,)
