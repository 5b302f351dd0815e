"""The estimate of each recipe equals its line in estimates.json.

Update the file with `PRIMUS_UPDATE_GOLDEN=1 pytest tests/golden/test_estimates.py`, and review the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from primus_bootstrap.launch.estimate.verdict import estimate
from primus_bootstrap.launch.recipes import catalogue

_FILE = Path(__file__).parent / "estimates.json"


def test_the_estimate_of_every_recipe_equals_its_line() -> None:
    """Verdict, GiB of the fullest GPU, and tokens per second of a GPU."""
    found = {recipe.name: estimate(catalogue.model(recipe.model), recipe) for recipe in catalogue.recipes()}
    lines = [
        json.dumps({name: [item.verdict, round(item.fullest.total), round(item.tokens_per_s)]})[1:-1]
        for name, item in sorted(found.items())
    ]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    if os.environ.get("PRIMUS_UPDATE_GOLDEN"):
        _FILE.write_text(text, encoding="utf-8")
    assert text == _FILE.read_text(encoding="utf-8"), (
        "run PRIMUS_UPDATE_GOLDEN=1 pytest tests/golden/test_estimates.py, and read the difference"
    )
