"""Rules about GPUs, jobs and queues on Kubernetes, by the judgements that the roles' preflights use too."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.inventory.ansible.role_filters import load_filters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from primus_bootstrap.inventory.rules.context import ValidationContext


def gpu_operator(reading: ValidationContext) -> Iterator[Problem]:
    """A chart that does not know the GPU would run, find nothing, and leave every job waiting."""
    hosts = reading.groups.get("gpu_operator", ())
    if not hosts:
        return
    filters = load_filters("gpu_operator")
    nodes = [host for host in reading.groups.get("gpu_node", ()) if host in set(reading.groups.get("kube_node", ()))]
    models = {host: str(_stated(reading, host, ("gpu_env_model",)).get("gpu_env_model", "auto")) for host in nodes}
    found = filters.findings(_stated(reading, hosts[0], filters.VARIABLES), models)
    for about, what, fix, rule in found:
        # A finding about models names their hosts.
        words = set(re.split(r"[^A-Za-z0-9._-]+", what))
        host = next((node for node in nodes if node in words), hosts[0]) if about == "gpu_env_model" else hosts[0]
        yield _problem(reading, "gpu_operator", host, about, what, fix, rule)


def trainer_without_jobset(reading: ValidationContext) -> Iterator[Problem]:
    """Trainer makes JobSets; the one of its own chart is left out, and without one no training job would ever start."""
    if reading.groups.get("trainer") and not reading.groups.get("jobset"):
        origin = reading.group_origin("trainer")
        what = "trainer is installed and jobset is not: no training job could start"
        yield Problem(origin.file, origin.line, what, "give the group jobset the child kube_control_plane as well", "trainer-jobset")


def kueue(reading: ValidationContext) -> Iterator[Problem]:
    """A queue that Kueue refuses stops the run at its end; one that admits nobody stops no run, and every job."""
    hosts = reading.groups.get("kueue", ())
    if not hosts:
        return
    filters = load_filters("kueue")
    for about, what, fix, rule in filters.findings(_stated(reading, hosts[0], filters.VARIABLES)):
        yield _problem(reading, "kueue", hosts[0], about, what, fix, rule)


def _stated(reading: ValidationContext, host: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the variables that a host has, without those that only a run knows."""
    stated = {}
    for name in names:
        if host in reading.merged.of(name):
            try:
                stated[name] = reading.view.variables(host)[name]
            except InventoryError:  # a template that fails is reported by a rule of its own
                continue
    return stated


def _problem(reading: ValidationContext, group: str, host: str, about: str, what: str, fix: str, rule: str) -> Problem:  # noqa: PLR0913, PLR0917
    origin = reading.merged.origin(host, about) or reading.group_origin(group)
    return Problem(origin.file, origin.line, what, fix, rule)


RULES: tuple[Callable[[ValidationContext], Iterator[Problem]], ...] = (gpu_operator, trainer_without_jobset, kueue)
