"""Rules about Slurm, by the checks of the role `slurm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.inventory.ansible.role_filters import load_filters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext


def slurm_cluster(context: ValidationContext) -> Iterator[Problem]:
    """Report partitions, QOS and controllers that contradict each other; slurmctld would stop at them after the installation."""
    checks = load_filters("slurm").slurm_checks
    if not any(context.groups.get(group) for group in checks.GROUPS):
        return
    controller = next(iter(context.groups.get("slurm_controller", ())), "")
    values = {name: _value(context, controller, name, checks.UNKNOWN) for name in checks.VARIABLES}
    for finding in checks.all_findings(context.groups, values):
        if finding.about in context.groups:
            origin = context.group_origin(finding.about)
        else:
            origin = context.origin(controller, finding.about, "slurm_controller")
        yield origin.problem(finding.what, finding.fix, finding.rule)


def _value(context: ValidationContext, controller: str, name: str, unknown: str) -> Any:
    """Return a variable of the first controller: None if it is not set, `unknown` if only a run can resolve it."""
    if controller not in context.variable_index.by_host(name):
        return None
    try:
        return context.view.variables(controller)[name]
    except InventoryError:  # `unresolvable` reports a template that fails
        return unknown


RULES: tuple[Rule, ...] = (slurm_cluster,)
