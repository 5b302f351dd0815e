"""primus_bootstrap.cli.plan_view: the table of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from primus_bootstrap.cli import plan_view
from primus_bootstrap.cli.plan_view import print_plan
from primus_bootstrap.engine.estimates import Estimate
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from primus_bootstrap.engine.plan_values import Plan


def printed(capsys: pytest.CaptureFixture[str], topology: str, *, details: bool = False) -> tuple[Plan, list[str]]:
    """Return a plan, and the lines of its table."""
    cluster = load_cluster(content.topologies_dir() / topology)
    plan = make_plan(cluster)
    print_plan(cluster, plan, details=details)
    return plan, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("topology", ["lab", "mi300x", "h200-slurm", "airgap"])
def test_a_phase_is_one_short_line(capsys: pytest.CaptureFixture[str], topology: str) -> None:
    """It has the number of hosts and the groups that need the phase, and fits into 100 columns."""
    plan, lines = printed(capsys, topology)

    assert [line.split()[:2] for line in lines[1 : len(plan.steps) + 1]] == [[step.phase, str(len(step.hosts))] for step in plan.steps]
    assert max(map(len, lines)) <= 100
    assert "all hosts" in lines[1]
    assert not any(line != line.rstrip() for line in lines)


def test_a_line_names_the_groups_and_the_number_of_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """The group of a service says why its hosts have the phase."""
    _, lines = printed(capsys, "lab")
    found = {line.split()[0]: " ".join(line.split()[2:-1]) for line in lines if line.endswith("unknown")}

    assert found["gateway"] == "envoy"
    assert found["registry"] == "oci_registry, container_host"
    assert found["storage"] == "redis, juicefs_store and 2 more groups"


def test_details_wrap_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Every role and every pattern is shown. Only a pattern that is itself longer takes more than 100 columns."""
    plan, lines = printed(capsys, "airgap", details=True)
    words = {word.strip(",") for line in lines for word in line.split()}

    assert {role for step in plan.steps for role in step.roles} <= words
    assert {reason.partition(": ")[0] for step in plan.steps for reason in step.why.split("; ")} <= {word.strip(":") for word in words}
    assert all(len(line) <= 100 or " " not in line.strip() for line in lines)


def test_without_an_earlier_run_no_duration_is_expected(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line says why each phase is unknown."""
    monkeypatch.setattr(plan_view, "estimate_phases", lambda _folder, steps, **_verb: {step.phase: Estimate() for step in steps})
    plan, lines = printed(capsys, "lab")

    assert lines[-1] == f"lab: {len(plan.steps)} phases on 3 hosts (no earlier run, so no duration is expected)"


def test_an_unknown_duration_has_a_reason(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first apply, no run is known that changed little."""
    known = {"preflight": Estimate(60.0, 5.0)}
    monkeypatch.setattr(
        plan_view, "estimate_phases", lambda _folder, steps, **_verb: {step.phase: known.get(step.phase, Estimate()) for step in steps}
    )
    plan, lines = printed(capsys, "lab")

    assert lines[-1] == f"lab: {len(plan.steps)} phases on 3 hosts (unknown: no earlier run of the phase changed about as much)"


def test_the_expected_durations_are_summed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If every phase has an earlier run that changed as much."""
    monkeypatch.setattr(plan_view, "estimate_phases", lambda _folder, steps, **_verb: {step.phase: Estimate(60.0, 5.0) for step in steps})
    plan, lines = printed(capsys, "lab")

    assert lines[1].split()[-1] == "5s"
    assert lines[-1] == f"lab: {len(plan.steps)} phases on 3 hosts, about 1m00s"
