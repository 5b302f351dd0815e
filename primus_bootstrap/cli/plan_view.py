"""Prints a plan: one line per phase, and on request the hosts, roles and host patterns of each phase."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from primus_bootstrap.cli.console import count, duration_text, emit, emit_table, plain_table
from primus_bootstrap.engine.estimates import estimate_phases
from primus_bootstrap.engine.playbooks import groups_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.engine.estimates import Estimate
    from primus_bootstrap.engine.plan_values import Plan, Step
    from primus_bootstrap.inventory.cluster import Cluster

_SHOWN_HOSTS = 6
_SHOWN_GROUPS = 2
_WIDTH = 100


def print_plan(cluster: Cluster, plan: Plan, *, verb: str = "apply", details: bool = False) -> None:
    """Print a plan as a table; `details` adds the host names, roles and host patterns. `verb` selects the runs for the estimates."""
    estimates = estimate_phases(cluster.state_dir, plan.steps, verb=verb)
    table = plain_table("phase")
    table.add_column("hosts", justify="right")
    table.add_column("why", overflow="fold")
    table.add_column("expected", justify="right")
    for step in plan.steps:
        table.add_row(step.phase, str(len(step.hosts)), _reason(step), _expected(estimates[step.phase]))
    emit_table(table)
    for step in plan.steps if details else ():
        emit(f"\n{step.phase}\n" + "\n".join(_details(step)))
    emit(f"\n{plan.cluster}: {count(len(plan.steps), 'phase')} on {count(len(plan.hosts), 'host')}{_total(estimates)}")
    if plan.uncovered:
        emit(f"no phase of this version uses these groups: {', '.join(plan.uncovered)}")


def _patterns(step: Step) -> list[tuple[str, str]]:
    """Return each host pattern of a step with its hosts."""
    return [(pattern, hosts) for pattern, _, hosts in (reason.partition(": ") for reason in step.why.split("; "))]


def _reason(step: Step) -> str:
    """Return the groups that put hosts into a step, or `all hosts`."""
    groups = list(dict.fromkeys(name for pattern, _ in _patterns(step) for name in groups_in(pattern)))
    if "all" in groups:
        return "all hosts"
    more = len(groups) - _SHOWN_GROUPS
    return ", ".join(groups[:_SHOWN_GROUPS]) + (f" and {count(more, 'more group')}" if more > 0 else "")


def _expected(estimate: Estimate) -> str:
    return "unknown" if estimate.expected_s is None else duration_text(estimate.expected_s)


def _total(estimates: Mapping[str, Estimate]) -> str:
    """Return the expected duration of all phases, or why that of one is unknown."""
    known = [estimate.expected_s for estimate in estimates.values() if estimate.expected_s is not None]
    if not known:
        return " (no earlier run, so no duration is expected)"
    if len(known) < len(estimates):
        return " (unknown: no earlier run of the phase changed about as much)"
    return f", about {duration_text(sum(known))}"


def _details(step: Step) -> list[str]:
    shown = ", ".join(step.hosts[:_SHOWN_HOSTS]) + (f", … ({len(step.hosts)})" if len(step.hosts) > _SHOWN_HOSTS else "")
    lines = [*_wrapped("hosts", [shown]), *_wrapped("roles", [", ".join(step.roles)])]
    return [*lines, *_wrapped("patterns", [f"{pattern}: {hosts}" for pattern, hosts in _patterns(step)])]


def _wrapped(name: str, texts: Sequence[str]) -> list[str]:
    """Return lines of at most 100 characters with a name before the first one."""
    lines = [line for text in texts for line in textwrap.wrap(text, _WIDTH - 12, break_long_words=False, break_on_hyphens=False)]
    return [f"  {name if number == 0 else '':<10}{line}" for number, line in enumerate(lines)]
