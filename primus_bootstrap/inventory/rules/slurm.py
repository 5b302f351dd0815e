"""Rules about Slurm, by the checks of the role `slurm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.inventory.ansible.addresses import parse_address
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


def slurm_host_names(context: ValidationContext) -> Iterator[Problem]:
    """Report names of Slurm hosts that the role rejects: it compares them with `hostname -s`, and nodes have that name in Slurm."""
    for host in context.groups.get("slurm_controller", ()):
        if "." in host and not parse_address(host):
            what = f"{host}: slurmctld finds itself by its short host name, so the name of a controller has no dot"
            fix = f"rename it to {_short(host)}, and set ansible_host: {host} if it has no address"
            yield context.host_origins[host].problem(what, fix, "slurm-host-name")
    first: dict[str, str] = {}
    for host in context.groups.get("slurm_node", ()):
        if _short(host).upper() == "DEFAULT":
            what = f"{host}: in slurm.conf, NodeName=DEFAULT sets the defaults of the other nodes"
            yield context.host_origins[host].problem(what, "use another name for this host", "slurm-host-name")
        other = first.setdefault(_short(host).lower(), host)
        if other != host and not parse_address(host):
            what = f"{host} and {other} have the same short host name {_short(host)}, which is the name of a node in Slurm"
            yield context.host_origins[host].problem(what, "give each host a different short name", "slurm-host-name")


def _short(host: str) -> str:
    return host.partition(".")[0]


def _value(context: ValidationContext, controller: str, name: str, unknown: str) -> Any:
    """Return a variable of the first controller: None if it is not set, `unknown` if only a run can resolve it."""
    if controller not in context.variable_index.by_host(name):
        return None
    try:
        return context.view.variables(controller)[name]
    except InventoryError:  # `unresolvable` reports a template that fails
        return unknown


RULES: tuple[Rule, ...] = (slurm_cluster, slurm_host_names)
