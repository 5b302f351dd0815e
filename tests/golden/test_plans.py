"""The plan of each `inventory/*/hosts.yaml` equals its golden file.

Update the files with `PRIMUS_UPDATE_GOLDEN=1 pytest tests/golden`, and review the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from primus_bootstrap import content
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.inventory.load import load_cluster
from tests.shipped import inventory_files

PLANS = Path(__file__).parent / "plans"
UPDATE = "run `PRIMUS_UPDATE_GOLDEN=1 .venv/bin/pytest tests/golden/test_plans.py`, and read `git diff tests/golden/plans`"
TOPOLOGIES = sorted(path.parent.name for path in inventory_files())


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_plan_of_an_example_equals_its_file(topology: str) -> None:
    """A plan has phases, playbooks, hosts, roles and reasons."""
    plan = make_plan(load_cluster(content.topologies_dir() / topology)).to_json()
    plan["inventory"] = f"inventory/{topology}/hosts.yaml"
    got = json.dumps(plan, indent=1, ensure_ascii=False) + "\n"
    golden = PLANS / f"{topology}.json"
    if os.environ.get("PRIMUS_UPDATE_GOLDEN"):
        golden.write_text(got, encoding="utf-8")

    assert golden.is_file(), f"{golden} is missing: {UPDATE}"
    assert got == golden.read_text(encoding="utf-8"), f"the plan of {plan['inventory']} differs from {golden}: {UPDATE}"


def test_every_golden_plan_has_an_example() -> None:
    """There is no golden plan of a removed example."""
    assert sorted(path.stem for path in PLANS.glob("*.json")) == TOPOLOGIES, f"remove the files in {PLANS} without a folder in inventory/"


@pytest.mark.parametrize("topology", [name for name in TOPOLOGIES if name != "lab"])
def test_the_metadata_engine_of_an_example_fails_over_by_itself(topology: str) -> None:
    """With fewer than three hosts in the group redis, the shared file system would wait for a person if the primary dies."""
    assert len(load_cluster(content.topologies_dir() / topology).groups["redis"]) >= 3
