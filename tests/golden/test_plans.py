"""For each `inventory/*/hosts.yaml` the plan as a file: a change of playbooks or examples shows here as a difference.

    PRIMUS_UPDATE_GOLDEN=1 pytest tests/golden

writes the files anew; read the difference before committing it. A new topology needs no Python.
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
TOPOLOGIES = sorted(path.parent.name for path in inventory_files())


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_plan_of_an_example_is_the_golden_one(topology: str) -> None:
    """Phases, playbooks, hosts, roles and reasons are those that were read and agreed upon."""
    plan = make_plan(load_cluster(content.topologies_dir() / topology)).to_json()
    plan["inventory"] = f"inventory/{topology}/hosts.yaml"
    got = json.dumps(plan, indent=1, ensure_ascii=False) + "\n"
    golden = PLANS / f"{topology}.json"
    if os.environ.get("PRIMUS_UPDATE_GOLDEN"):
        golden.write_text(got, encoding="utf-8")

    assert got == golden.read_text(encoding="utf-8")


def test_every_golden_plan_has_its_example() -> None:
    """A plan of a topology that is gone would be compared with nothing."""
    assert sorted(path.stem for path in PLANS.glob("*.json")) == TOPOLOGIES
