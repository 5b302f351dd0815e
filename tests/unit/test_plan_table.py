"""primus_bootstrap.cli.run_verbs: the table of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap import content
from primus_bootstrap.cli.run_verbs import print_plan
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    import pytest


def test_long_lists_end_with_their_number(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal a row is one line; the largest example has 26 roles in the phase verify."""
    cluster = load_cluster(content.topologies_dir() / "airgap")
    plan = make_plan(cluster)
    print_plan(cluster, plan)
    lines = capsys.readouterr().out.splitlines()
    verify = next(line for line in lines if line.startswith("verify "))

    assert max(map(len, lines)) <= 450
    assert f"… ({len(plan.steps[-1].roles)} roles)" in verify
    assert "host patterns)" in verify
