"""`validate` agrees with the pinned release of Kubespray about clusters as people describe them, or has a reason to be stricter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.inventory import find_problems
from tests.unit.inventory_rig import DATA, write_inventory

if TYPE_CHECKING:
    from pathlib import Path

VARIANTS: dict[str, dict[str, Any]] = yaml.safe_load((DATA / "kubespray_variants.yml").read_text(encoding="utf-8"))
USUAL = """
kube_control_plane: {{hosts: {{'cp[1:3]': }}}}
etcd: {{children: {{kube_control_plane: }}}}
kube_node: {{hosts: {{'n[1:{size}]': }}}}
k8s_cluster: {{children: {{kube_control_plane: , kube_node: }}}}
"""


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(tmp_path: Path, name: str) -> None:
    """`validate` reports exactly the rules of the data file."""
    variant = VARIANTS[name]
    groups = variant.get("hosts") or USUAL.format(size=variant.get("size", 4))
    variables = yaml.safe_dump(variant["vars"])

    problems = find_problems(write_inventory(tmp_path / "site", groups, **{"group_vars__all.yml": variables}))

    assert [problem.rule for problem in problems] == variant["problems"], [str(problem) for problem in problems]


def test_validate_is_never_more_lenient() -> None:
    """What the release refuses, `validate` refuses; where it is stricter, the data file has the reason."""
    lenient = [name for name, one in VARIANTS.items() if one["gate"] and not one["problems"]]
    unexplained = [name for name, one in VARIANTS.items() if one["problems"] and not one["gate"] and "why" not in one]

    assert lenient == unexplained == []
    assert len(VARIANTS) >= 45
