"""Read the policy of the bench: what each tier measures, and what happens when a check does not pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import yaml

from primus_bootstrap import content
from primus_bootstrap.bench.reason_codes import Code
from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.core.structured import NOT_EMPTY, Constraint, InvalidDataError, Issue, at_least, read, readable
from primus_bootstrap.core.suggestions import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "primus.bench-policy/1"
SHIPPED = content.bench_policy()
PREFLIGHT = "preflight"
# The programs in workloads/bench.
Benchmark = Literal["attention", "collectives", "gemm", "host_device", "launch_overhead", "memory_bandwidth", "overlap", "storage", "trial"]
BENCHMARKS: tuple[Benchmark, ...] = get_args(Benchmark)
# The programs that measure a bus bandwidth. Runs over several hosts are evaluated by it (group_runs.METRIC).
GROUP_BENCHMARKS = ("collectives",)
_CHECK_PREFIXES = ("bench_", "preflight_", "fabric_")
_WITHOUT_REPEATS = (PREFLIGHT, "trial")
_RULE = "bench-policy"
_TEXT = Constraint("a sentence", lambda text: bool(text.strip()))
_DOCS = "see docs/bench-gate.md"

OnFail = Literal["quarantine", "warn"]
OnUnknown = Literal["hold", "warn"]
_Word = str | bool | int | float
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
_NO_CODES: Mapping[Code, OnUnknown] = MappingProxyType({})


@readable
@dataclass(frozen=True, slots=True)
class Step:
    """One program of a tier."""

    run: Literal["preflight"] | Benchmark  # the program
    timeout_s: Annotated[float, at_least(1)]  # its time limit
    # Where it runs: on each host, on pairs of hosts, or on groups of the fabric by bisection.
    over: Literal["host", "pairs", "fabric"] = "host"
    repeats: Annotated[int, at_least(1, 200)] = 0  # repeats; 0 if the program has none
    needed: bool | None = None  # whether a host that joins needs a verdict of this step. None: yes, unless it runs over several hosts.
    inside: Annotated[int, at_least(0, 10_000)] = 0  # rounds of pairs inside a location (pair_rounds.chosen_rounds)
    across: Annotated[int, at_least(0, 10_000)] = 0  # rounds of pairs across locations
    options: Mapping[str, _Word | tuple[_Word, ...]] = field(default_factory=lambda: _NO_OPTIONS)  # options of the program's command line

    @property
    def is_needed(self) -> bool:
        """Whether a host that joins needs a verdict of this step."""
        return self.over == "host" if self.needed is None else self.needed

    @property
    def checks(self) -> str:
        """The pattern of the names of this step's verdicts."""
        if self.over != "host":
            return {"pairs": "fabric_pairs", "fabric": "fabric_bisection"}[self.over]
        return "preflight_*" if self.run == PREFLIGHT else f"bench_{self.run}"

    def arguments(self) -> tuple[str, ...]:
        """Return the options for the program's command line."""
        limits = {} if self.run == PREFLIGHT else {"timeout_s": self.timeout_s}
        repeats = {"repeats": self.repeats} if self.repeats else {}
        options = {**self.options, **repeats, **limits}
        return tuple(word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", _join(value)))

    def issues(self) -> Iterable[Issue]:
        """Yield contradictions between the keys."""
        if bool(self.inside or self.across) != (self.over == "pairs"):
            yield Issue("", "rounds of pairs (inside, across) and `over: pairs` belong together", "give both, or neither")
        if self.run in _WITHOUT_REPEATS and self.repeats:
            yield Issue("repeats", f"{self.run} has no repeats", "remove repeats")
        if self.run not in _WITHOUT_REPEATS and not self.repeats:
            yield Issue("repeats", "missing", f"add the number of repeats of {self.run}, from 1 to 200")
        if self.over != "host" and self.run not in GROUP_BENCHMARKS:
            what = f"{self.run} measures no bus bandwidth, and runs over several hosts are evaluated by it"
            yield Issue("run", what, f"choose from: {', '.join(GROUP_BENCHMARKS)}; or remove `over: {self.over}`")
        if self.over != "host" and self.needed:
            yield Issue("needed", "a single host that joins cannot run a step over several hosts", "remove needed")


@dataclass(frozen=True, slots=True)
class Tier:
    """The steps that are measured together.

    `budget_s` is the time limit of a host with all reruns; the runs over several hosts have the same limit once more.
    """

    name: str
    meaning: str
    budget_s: float
    steps: tuple[Step, ...]


@readable
@dataclass(frozen=True, slots=True)
class Rule:
    """What happens if a check with a matching name fails, or is unknown on a host that joins."""

    match: Annotated[tuple[str, ...], NOT_EMPTY]  # patterns of check names
    fail: OnFail  # quarantine the host, or only warn
    unknown: OnUnknown  # `hold` keeps the host out of service until the verdict is known; `warn` does not
    why: Annotated[str, _TEXT]  # the reason for the rule
    # The same as `unknown` for unknown verdicts with a code.
    unknown_if: Mapping[Code, OnUnknown] = field(default_factory=lambda: _NO_CODES)

    def on_unknown(self, code: Code | None) -> OnUnknown:
        """Return what an unknown verdict with this code means."""
        return self.unknown_if.get(code, self.unknown) if code else self.unknown

    def issues(self) -> Iterable[Issue]:
        """Yield patterns that match no check."""
        for number, pattern in enumerate(self.match):
            if not (pattern == "*" or pattern.startswith(_CHECK_PREFIXES)):
                yield Issue(f"match[{number}]", f"{pattern!r} is not the name of a check", f"begin it with {' or '.join(_CHECK_PREFIXES)}")
            benchmark = pattern.removeprefix("bench_")
            if benchmark != pattern and not any(fnmatchcase(name, benchmark) for name in BENCHMARKS):
                yield Issue(f"match[{number}]", f"{pattern} matches no benchmark", did_you_mean(benchmark, BENCHMARKS))


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole policy. `limit_percent` is the share of the GPU nodes that the bench may have in quarantine."""

    limit_percent: float
    clock_skew_s: float
    tiers: Mapping[str, Tier]
    rules: tuple[Rule, ...]

    def rule(self, check: str) -> Rule:
        """Return the first rule that matches a check; the last rule matches everything."""
        return next(rule for rule in self.rules if any(fnmatchcase(check, pattern) for pattern in rule.match))

    def with_limit(self, percent: float) -> Policy:
        """Return the policy with another limit: the inventory's `bench_quarantine_limit_percent`."""
        return replace(self, limit_percent=percent)


@readable
@dataclass(frozen=True, slots=True)
class _TierEntry:
    """A tier in the file, where its key is its name."""

    meaning: Annotated[str, _TEXT]
    budget_s: Annotated[float, at_least(1)]
    steps: Annotated[tuple[Step, ...], NOT_EMPTY]

    def issues(self) -> Iterable[Issue]:
        """Yield steps that may exceed the time budget."""
        for number, step in enumerate(self.steps):
            if step.timeout_s > self.budget_s:
                what = f"{step.run} may take longer than the whole tier"
                yield Issue(f"steps[{number}].timeout_s", what, "reduce timeout_s, or increase the budget_s of the tier")


@readable
@dataclass(frozen=True, slots=True)
class _PolicyFile:
    """The content of the file."""

    bench_quarantine_limit_percent: Annotated[float, at_least(0, 100)]
    clock_skew_s: Annotated[float, at_least(0, 3600)]
    tiers: Annotated[Mapping[str, _TierEntry], NOT_EMPTY]
    checks: Annotated[tuple[Rule, ...], NOT_EMPTY]

    def issues(self) -> Iterable[Issue]:
        """Yield a missing last rule."""
        if self.checks[-1].match != ("*",):
            yield Issue("checks", "the last rule does not match everything", 'end with a rule with match: ["*"]')


def load_policy(path: Path = SHIPPED) -> Policy:
    """Read a policy.

    Raises:
        InventoryError: It cannot be read, or is invalid; with all problems.
    """
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problem = Problem(str(path), 0, f"cannot read it: {error}", f"write it like the shipped policy, {SHIPPED}", _RULE)
        raise InventoryError([problem]) from error
    try:
        file = read(_PolicyFile, data, schema=SCHEMA)
    except InvalidDataError as error:
        problems = [Problem(str(path), 0, str(issue), issue.fix or _DOCS, _RULE) for issue in error.issues]
        raise InventoryError(problems) from error
    tiers = {name: Tier(name, entry.meaning, entry.budget_s, entry.steps) for name, entry in file.tiers.items()}
    return Policy(file.bench_quarantine_limit_percent, file.clock_skew_s, tiers, file.checks)


def _join(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
