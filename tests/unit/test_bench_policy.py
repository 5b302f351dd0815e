"""The shipped policy covers every check, and an invalid policy is refused with all its problems."""

from __future__ import annotations

import ast
import importlib
from typing import TYPE_CHECKING, Any, get_args

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.bench.quarantine.policy import BENCHMARKS, PREFLIGHT, SHIPPED, Step, load_policy
from primus_bootstrap.bench.reason_codes import Code
from primus_bootstrap.core.errors import InventoryError

if TYPE_CHECKING:
    from pathlib import Path

POLICY = load_policy()
PROGRAMS = content.content_root() / "workloads" / "bench"


def _shipped() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(SHIPPED.read_text("utf-8"))
    return data


def _refused(tmp_path: Path, data: object) -> list[str]:
    path = tmp_path / "policy.yml"
    path.write_text(yaml.safe_dump(data), "utf-8")
    with pytest.raises(InventoryError) as caught:
        load_policy(path)
    return [f"{problem.what} | {problem.fix}" for problem in caught.value.problems]


def test_the_shipped_policy() -> None:
    """Each tier is longer than the one before, the limit is ten percent, and the deepest tier has every benchmark."""
    assert list(POLICY.tiers) == ["checks", "quick", "standard", "deep"]
    assert POLICY.limit_percent == 10
    assert {step.run for step in POLICY.tiers["deep"].steps} == {PREFLIGHT, *BENCHMARKS}
    assert [tier.budget_s for tier in POLICY.tiers.values()] == sorted(tier.budget_s for tier in POLICY.tiers.values())


@pytest.mark.parametrize(
    ("check", "fail", "unknown"),
    [
        ("preflight_gpu_ecc", "quarantine", "hold"),
        ("preflight_swap", "warn", "warn"),
        ("preflight_rdma_rate", "quarantine", "hold"),
        ("preflight_rdma_rate_beside", "warn", "warn"),
        ("bench_gemm", "quarantine", "hold"),
        ("bench_storage", "warn", "warn"),
        ("fabric_bisection", "quarantine", "hold"),
        ("whatever", "warn", "hold"),
    ],
)
def test_the_first_rule_that_matches_counts(check: str, fail: str, unknown: str) -> None:
    """Every check has a rule, an unknown one too."""
    rule = POLICY.rule(check)

    assert (rule.fail, rule.on_unknown(None)) == (fail, unknown)


def test_the_meaning_of_unknown_depends_on_the_code() -> None:
    """`no_reference` keeps no node out; `suspect` does, `unsteady` and `large` do not."""
    assert POLICY.rule("bench_gemm").on_unknown("no_reference") == "warn"
    assert [POLICY.rule("bench_gemm").on_unknown(code) for code in get_args(Code) if code != "no_reference"] == ["hold"] * 5
    assert POLICY.rule("fabric_pairs").on_unknown("suspect") == "hold"
    assert POLICY.rule("fabric_pairs").on_unknown("unsteady") == "warn"
    assert POLICY.rule("fabric_bisection").on_unknown("large") == "warn"


def test_a_step_is_a_command_line() -> None:
    """Options, repeats and time limit become arguments; preflight has neither repeats nor a time limit."""
    step = Step("collectives", 300, over="fabric", repeats=5, options={"collectives": ("all_reduce", "all_gather"), "largest_kib": 64})

    assert step.arguments() == (
        *("--collectives", "all_reduce,all_gather"),
        *("--largest-kib", "64"),
        *("--repeats", "5"),
        *("--timeout-s", "300"),
    )
    assert POLICY.tiers["quick"].steps[0].arguments() == ("--checks", "gpu,network,host,gpus")


def test_the_limit_of_the_inventory_counts() -> None:
    """It replaces the limit of the policy."""
    assert POLICY.with_limit(25).limit_percent == 25
    assert POLICY.limit_percent == 10


@pytest.mark.parametrize(
    ("keys", "value", "expected"),
    [
        (("bench_quarantine_limit_percentt",), 5, "bench_quarantine_limit_percentt: unknown key | did you mean"),
        (("bench_quarantine_limit_percent",), 101, "expected a number from 0 to 100, found 101"),
        (("clock_skew_s",), True, "clock_skew_s: expected a number, found True"),
        (("schema",), "primus.bench-policy/2", "schema: expected primus.bench-policy/1, found 'primus.bench-policy/2'"),
        (("tiers", "quick", "steps", 1, "run"), "gem", "tiers.quick.steps[1].run: expected one of"),
        (("tiers", "quick", "steps", 1, "timeouts"), 3, "timeouts: unknown key | did you mean timeout_s?"),
        (("tiers", "quick", "steps", 1, "timeout_s"), 9999, "may take longer than the whole tier"),
        (("tiers", "quick", "steps", 1, "repeats"), 2.5, "tiers.quick.steps[1].repeats: expected a whole number, found 2.5"),
        (("tiers", "quick", "steps", 0, "repeats"), 3, "tiers.quick.steps[0].repeats: preflight has no repeats"),
        (("tiers", "quick", "steps", 1, "inside"), 3, "belong together"),
        (("tiers", "quick", "steps", 1, "options"), {"shapes": {"m": 1}}, "tiers.quick.steps[1].options.shapes: expected"),
        (("tiers", "standard", "steps", 7, "needed"), True, "cannot run a step over several hosts"),
        (("tiers", "standard", "steps", 7, "run"), "gemm", "steps[7].run: gemm measures no bus bandwidth"),
        (
            ("tiers", "deep", "steps", 11),
            {"run": "trial", "over": "fabric", "timeout_s": 9},
            "steps[11].run: trial measures no bus bandwidth",
        ),
        (("tiers", "quick", "steps"), [], "tiers.quick.steps: expected at least one entry"),
        (("checks", 0, "fail"), "quarantin", "found 'quarantin' | did you mean quarantine?"),
        (("checks", 2, "unknown_if"), {"no_referense": "warn"}, "no_referense' | did you mean no_reference?"),
        (("checks", 2, "match", 0), "bench_gem", "matches no benchmark | did you mean gemm?"),
        (("checks", 2, "match", 0), "gemm", "is not the name of a check"),
        (("checks", 6, "match"), ["bench_gemm"], "does not match everything"),
    ],
)
def test_an_invalid_policy_is_refused(tmp_path: Path, keys: tuple[str | int, ...], value: object, expected: str) -> None:
    """Each problem has the path of its key and a fix."""
    data = target = _shipped()
    for key in keys[:-1]:
        target = target[key]  # type: ignore[index]
    target[keys[-1]] = value  # type: ignore[index]

    assert any(expected in problem for problem in _refused(tmp_path, data))


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    """A missing key is one of them."""
    data = _shipped()
    data["clock_skew_s"] = "five"
    data["checks"][0]["fail"] = "panic"
    del data["tiers"]["quick"]["budget_s"]

    assert len(_refused(tmp_path, data)) == 3


@pytest.mark.parametrize("text", ["[", "- a\n", "{}", ""])
def test_a_file_without_a_policy_is_refused(tmp_path: Path, text: str) -> None:
    """Invalid YAML, other content, or no file."""
    path = tmp_path / "policy.yml"
    path.write_text(text, "utf-8")
    with pytest.raises(InventoryError):
        load_policy(path)

    with pytest.raises(InventoryError):
        load_policy(tmp_path / "missing.yml")


def _options_of(program: Path) -> set[str]:
    """Return the options of a benchmark program: the fields of its class `…Options`."""
    tree = ast.parse(program.read_text("utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.endswith("Options")]
    fields = [field.target for node in classes for field in node.body if isinstance(field, ast.AnnAssign)]
    return {field.id for field in fields if isinstance(field, ast.Name)}


def test_the_shipped_policy_names_programs_and_options_that_exist() -> None:
    """Every benchmark is a program, and every option of a step is one of its options."""
    if not (PROGRAMS / "trial.py").exists():
        pytest.skip(f"the measuring programs are not in {PROGRAMS} yet")
    found = {path.stem for path in PROGRAMS.glob("[a-z]*.py")}
    steps = [step for tier in POLICY.tiers.values() for step in tier.steps if step.run != PREFLIGHT]
    words = {(step.run, word[2:].replace("-", "_")) for step in steps for word in step.arguments() if word.startswith("--")}

    assert set(BENCHMARKS) <= found
    assert [(run, name) for run, name in sorted(words) if name not in _options_of(PROGRAMS / f"{run}.py")] == []


def test_the_shipped_rules_name_node_checks_that_exist() -> None:
    """Every node check of a rule is in the catalogue."""
    try:
        catalogue = importlib.import_module("primus_bootstrap.launch.checks.catalogue")
    except ModuleNotFoundError as error:
        pytest.skip(f"the node checks are not there yet: {error}")
    known = {f"preflight_{name}" for check in catalogue.all_checks() for name in check.record_names}
    named = {pattern for rule in POLICY.rules for pattern in rule.match if pattern.startswith("preflight_") and "*" not in pattern}

    assert named <= known
