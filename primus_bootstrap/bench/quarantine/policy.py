"""The policy of the bench as data: what each tier measures, and what happens when a check does not pass."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import yaml

from primus_bootstrap.bench.judging.reason_codes import CODES, Code
from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.core.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    _Kind = Callable[[str, Any], Any]

SCHEMA = "primus.bench-policy/1"
SHIPPED = Path(__file__).parents[1] / "data" / "policy.yml"
PREFLIGHT = "preflight"
# The programs in workloads/bench.
BENCHMARKS = (
    "attention",
    "collectives",
    "gemm",
    "host_device",
    "launch_overhead",
    "memory_bandwidth",
    "overlap",
    "storage",
    "trial",
)
# Those that measure a bus bandwidth, by which runs over several hosts are judged (group_runs.METRIC).
GROUP_BENCHMARKS = ("collectives",)
_PREFIXES = ("bench_", "preflight_", "fabric_")
_NO_REPEATS = (PREFLIGHT, "trial")

Over = Literal["host", "pairs", "fabric"]
OnFail = Literal["quarantine", "warn"]
OnUnknown = Literal["hold", "warn"]
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
_NO_CODES: Mapping[Code, OnUnknown] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Step:
    """One program of a tier: on each host, on pairs of hosts, or on groups of the fabric by bisection.

    `inside` and `across` are rounds of pairs (rounds.chosen_rounds). `repeats` is 0 where the program has none. A joining host that
    gives no verdict of a `needed` step stays out.
    """

    run: str
    timeout_s: float
    over: Over = "host"
    repeats: int = 0
    needed: bool = True
    inside: int = 0
    across: int = 0
    options: Mapping[str, Any] = field(default_factory=lambda: _NO_OPTIONS)

    @property
    def checks(self) -> str:
        """The pattern that the verdicts of this step bear as names."""
        if self.over != "host":
            return {"pairs": "fabric_pairs", "fabric": "fabric_bisection"}[self.over]
        return "preflight_*" if self.run == PREFLIGHT else f"bench_{self.run}"

    def arguments(self) -> tuple[str, ...]:
        """Return the words for the program's command line."""
        limits = {} if self.run == PREFLIGHT else {"timeout_s": self.timeout_s}
        repeats = {"repeats": self.repeats} if self.repeats else {}
        return tuple(
            word for name, value in {**self.options, **repeats, **limits}.items() for word in (f"--{name.replace('_', '-')}", _word(value))
        )


@dataclass(frozen=True, slots=True)
class Tier:
    """What is measured together.

    `budget_s` is the longest that it may take on a host, measuring again included, and once more that the runs over several may take.
    """

    name: str
    meaning: str
    budget_s: float
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens when a check of these names fails, or is unknown on a host that wants to join.

    `hold`: it stays out until that is known; `warn`: that alone does not keep it out. `unknown_if` says so of verdicts with a code.
    """

    match: tuple[str, ...]
    fail: OnFail
    unknown: OnUnknown
    why: str
    unknown_if: Mapping[Code, OnUnknown] = field(default_factory=lambda: _NO_CODES)

    def on_unknown(self, code: Code | None) -> OnUnknown:
        """Return what an unknown verdict with this code means."""
        return self.unknown_if.get(code, self.unknown) if code else self.unknown


@dataclass(frozen=True, slots=True)
class Policy:
    """All of it. `limit_percent` is the share of the GPU nodes that the bench may have in quarantine."""

    limit_percent: float
    clock_skew_s: float
    tiers: Mapping[str, Tier]
    rules: tuple[Rule, ...]

    def rule(self, check: str) -> Rule:
        """Return the rule of a check; the last one matches everything."""
        return next(rule for rule in self.rules if any(fnmatchcase(check, pattern) for pattern in rule.match))

    def with_limit(self, percent: float) -> Policy:
        """Return the policy with another limit: the inventory's `bench_quarantine_limit_percent`."""
        return replace(self, limit_percent=percent)


def load_policy(path: Path = SHIPPED) -> Policy:
    """Read a policy.

    Raises:
        InventoryError: It cannot be read, or says something that is not understood; all of it at once.
    """
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InventoryError(
            [Problem(str(path), 0, f"cannot be read: {error}", f"write it like the shipped one, {SHIPPED}", _RULE)]
        ) from error
    reader = _Reader(str(path))
    policy: Policy | None = reader.policy(data)
    if reader.problems or policy is None:
        raise InventoryError(reader.problems)
    return policy


_RULE = "bench-policy"
# What a wrong value becomes, so that reading goes on; the problem is kept, and no policy comes of it.
_WRONG: Any = None


class _Reader:
    """Reads the values, and keeps every problem with the path of its key."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.problems: list[Problem] = []

    def wrong(self, where: str, what: str, fix: str) -> Any:
        self.problems.append(Problem(self._file, 0, f"{where}: {what}", fix, _RULE))
        return _WRONG

    def policy(self, data: Any) -> Any:
        kinds = {
            "schema": self.word((SCHEMA,)),
            "bench_quarantine_limit_percent": self.number(0, 100),
            "clock_skew_s": self.number(0, 3600),
            "tiers": self.named(self.tier),
            "checks": self.items(self.rule),
        }
        values = self.keys("policy", data, kinds)
        if values is None or self.problems:
            return None
        if values["checks"][-1].match != ("*",):
            return self.wrong("checks", "the last rule does not match everything", 'end with a rule whose match is ["*"]')
        return Policy(values["bench_quarantine_limit_percent"], values["clock_skew_s"], values["tiers"], tuple(values["checks"]))

    def tier(self, where: str, data: Any) -> Any:
        kinds = {"meaning": self.text, "budget_s": self.number(1), "steps": self.items(self.step)}
        values = self.keys(where, data, kinds)
        if values is None or None in (*values.values(), *(values["steps"] or [])):
            return None
        late = [step.run for step in values["steps"] if step.timeout_s > values["budget_s"]]
        if late:
            return self.wrong(
                where, f"{late[0]} may take longer than the whole tier", "give it a shorter timeout_s, or the tier more budget_s"
            )
        return Tier(where.rpartition(".")[2], values["meaning"], values["budget_s"], tuple(values["steps"]))

    def step(self, where: str, data: Any) -> Any:
        kinds: dict[str, _Kind] = {"run": self.word((PREFLIGHT, *BENCHMARKS)), "timeout_s": self.number(1)}
        optional: dict[str, _Kind] = {
            "over": self.word(("host", "pairs", "fabric")),
            "repeats": self.whole(1, 200),
            "needed": self.switch,
            "inside": self.whole(0),
            "across": self.whole(0),
            "options": self.options,
        }
        values = self.keys(where, data, kinds, optional)
        if values is None or None in values.values():
            return None
        over = values.get("over", "host")
        if ("inside" in values or "across" in values) != (over == "pairs"):
            return self.wrong(where, "rounds of pairs (inside, across) and `over: pairs` belong together", "give both, or neither")
        if (values["run"] in _NO_REPEATS) == ("repeats" in values):
            return self.wrong(
                f"{where}.repeats", f"{values['run']} wants {'none' if 'repeats' in values else 'it'}", "see docs/bench-gate.md"
            )
        if over != "host" and values["run"] not in GROUP_BENCHMARKS:
            what = f"{values['run']} gives no bus bandwidth, by which runs over several hosts are judged: nobody could pass"
            return self.wrong(f"{where}.run", what, f"choose from: {', '.join(GROUP_BENCHMARKS)}; or leave out `over: {over}`")
        if over != "host" and values.get("needed"):
            return self.wrong(f"{where}.needed", "a host that joins alone has no others to measure with", f"leave it out of `over: {over}`")
        return Step(**{"needed": over == "host", **values})

    def rule(self, where: str, data: Any) -> Any:
        means = self.word(("hold", "warn"))
        kinds = {"match": self.items(self.pattern), "fail": self.word(("quarantine", "warn")), "unknown": means, "why": self.text}
        values = self.keys(where, data, kinds, {"unknown_if": self.codes(means)})
        if values is None or None in (*values.values(), *(values["match"] or [])):
            return None
        return Rule(**{**values, "match": tuple(values["match"])})

    def keys(self, where: str, data: Any, kinds: Mapping[str, _Kind], optional: Mapping[str, _Kind] | None = None) -> Any:
        if not isinstance(data, dict):
            return self.wrong(where, "is not a set of keys and values", f"give it {', '.join(kinds)}")
        known = {**kinds, **(optional or {})}
        for key in data:
            if key not in known:
                self.wrong(f"{where}.{key}", "no such key", did_you_mean(str(key), known))
        for key in kinds:
            if key not in data:
                self.wrong(where, f"{key} is missing", f"add {key}")
        return {
            key: kind(f"{where}.{key}", data[key]) if key in data else _WRONG for key, kind in known.items() if key in data or key in kinds
        }

    def named(self, kind: _Kind) -> _Kind:
        def read(where: str, data: Any) -> Any:
            if not isinstance(data, dict) or not data:
                return self.wrong(where, "is not a set of names", "see docs/bench-gate.md")
            return {name: kind(f"{where}.{name}", value) for name, value in data.items()}

        return read

    def items(self, kind: _Kind) -> _Kind:
        def read(where: str, data: Any) -> Any:
            if not isinstance(data, list) or not data:
                return self.wrong(where, "is not a list with something in it", "give a list")
            return [kind(f"{where}[{number}]", value) for number, value in enumerate(data)]

        return read

    def word(self, words: Collection[str]) -> _Kind:
        return lambda where, data: data if data in words else self.wrong(where, f"{data!r} is not known", did_you_mean(str(data), words))

    def text(self, where: str, data: Any) -> Any:
        return data if isinstance(data, str) and data.strip() else self.wrong(where, f"{data!r} is no text", "write one sentence")

    def switch(self, where: str, data: Any) -> Any:
        return data if isinstance(data, bool) else self.wrong(where, f"{data!r} is neither true nor false", "write true or false")

    def number(self, least: float, most: float = float("inf")) -> _Kind:
        def read(where: str, data: Any) -> Any:
            good = isinstance(data, int | float) and not isinstance(data, bool) and least <= data <= most
            return data if good else self.wrong(where, f"{data!r} is no number from {least:g} to {most:g}", "give a number in these bounds")

        return read

    def whole(self, least: int, most: int = 10_000) -> _Kind:
        inner = self.number(least, most)
        return lambda where, data: (
            self.wrong(where, f"{data!r} is no whole number", "give one") if isinstance(data, float) else inner(where, data)
        )

    def pattern(self, where: str, data: Any) -> Any:
        if not isinstance(data, str) or not (data == "*" or data.startswith(_PREFIXES)):
            return self.wrong(where, f"{data!r} is no check's name", f"begin it with one of {', '.join(_PREFIXES)}")
        benchmark = data.removeprefix("bench_")
        if benchmark != data and not any(fnmatchcase(name, benchmark) for name in BENCHMARKS):
            return self.wrong(where, f"{data} matches no benchmark", did_you_mean(benchmark, BENCHMARKS))
        return data

    def codes(self, kind: _Kind) -> _Kind:
        return lambda where, data: self.keys(where, data, {}, dict.fromkeys(CODES, kind))

    def options(self, where: str, data: Any) -> Any:
        if not isinstance(data, dict):
            return self.wrong(where, "is not a set of keys and values", "give the program's options by name")
        for name, value in data.items():
            if not all(isinstance(each, str | int | float) for each in (value if isinstance(value, list) else [value])):
                self.wrong(f"{where}.{name}", f"{value!r} is no word, number or list of them", "write it as on the command line")
        return data


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
