"""Rules about GPUs, jobs and queues on Kubernetes, by the checks of the roles `gpu_operator` and `kueue`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.inventory.ansible.role_filters import load_filters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext


def gpu_operator(context: ValidationContext) -> Iterator[Problem]:
    """Report GPU models that the chart does not support; it would find no GPU, and every job would wait."""
    hosts = context.groups.get("gpu_operator", ())
    if not hosts:
        return
    filters = load_filters("gpu_operator")
    kube_nodes = set(context.groups.get("kube_node", ()))
    nodes = [host for host in context.groups.get("gpu_node", ()) if host in kube_nodes]
    models = {host: str(context.resolved_values(host, ("gpu_env_model",)).get("gpu_env_model", "auto")) for host in nodes}
    for about, what, fix, rule in filters.findings(context.resolved_values(hosts[0], filters.VARIABLES), models):
        host = hosts[0]
        if about == "gpu_env_model":  # the message names the hosts
            words = set(re.split(r"[^A-Za-z0-9._-]+", what))
            host = next((node for node in nodes if node in words), host)
        yield context.origin(host, about, "gpu_operator").problem(what, fix, rule)


def trainer_without_jobset(context: ValidationContext) -> Iterator[Problem]:
    """Report `trainer` without `jobset`. Trainer creates JobSets, and the JobSet of its own chart is not installed."""
    if context.groups.get("trainer") and not context.groups.get("jobset"):
        what = "trainer has hosts and jobset has none: training jobs could not start"
        fix = "add the child kube_control_plane to the group jobset: `jobset: {children: {kube_control_plane: {}}}`"
        yield context.group_origin("trainer").problem(what, fix, "trainer-jobset")


def kueue(context: ValidationContext) -> Iterator[Problem]:
    """Report queues that Kueue would reject, and queues that admit no job."""
    hosts = context.groups.get("kueue", ())
    if not hosts:
        return
    filters = load_filters("kueue")
    for about, what, fix, rule in filters.findings(context.resolved_values(hosts[0], filters.VARIABLES)):
        yield context.origin(hosts[0], about, "kueue").problem(what, fix, rule)


RULES: tuple[Rule, ...] = (gpu_operator, trainer_without_jobset, kueue)
