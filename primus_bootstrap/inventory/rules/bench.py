"""Rules about the bench of GPU nodes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap import content
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.checks.expected import faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext

# `none` is no tier of a policy: nothing is measured. An empty value lets the role choose.
_WITHOUT_STEPS = ("", "none")


def unknown_tier(context: ValidationContext) -> Iterator[Problem]:
    """Report a tier that the default policy does not have. `apply` would stop at it after most phases."""
    reported: set[tuple[Origin, str]] = set()
    for host, definition in context.variable_index.by_host("bench_tier").items():
        values = context.resolved_values(host, ("bench_tier", "bench_policy_file"))
        tier = values.get("bench_tier", "")
        is_default = not values.get("bench_policy_file", host in context.variable_index.by_host("bench_policy_file"))
        unknown = isinstance(tier, str) and tier not in (*_WITHOUT_STEPS, *_default_tiers())
        if unknown and is_default and (definition.origin, tier) not in reported:
            reported.add((definition.origin, tier))
            fix = f"{did_you_mean(tier, ('none', *_default_tiers()))} (or set bench_policy_file to a policy that has it)"
            yield definition.origin.problem(f"bench_tier: the default policy has no tier {tier}", fix, "bench-tier")


def unknown_expectation(context: ValidationContext) -> Iterator[Problem]:
    """Report expected values that the node checks reject: they would not run, and a new node could not join."""
    reported: set[tuple[Origin, str]] = set()
    for host, definition in context.variable_index.by_host("bench_expected").items():
        expected = context.resolved_values(host, ("bench_expected",)).get("bench_expected")
        for what, fix in faults(expected) if isinstance(expected, dict) else ():
            if (definition.origin, what) not in reported:
                reported.add((definition.origin, what))
                yield definition.origin.problem(f"bench_expected: {what}", fix, "bench-expected")


@cache
def _default_tiers() -> tuple[str, ...]:
    return tuple(yaml.load(content.bench_policy().read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)["tiers"])


RULES: tuple[Rule, ...] = (unknown_tier, unknown_expectation)
