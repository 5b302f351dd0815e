"""Real charts, rendered with the digests of a lock file, name every image with its digest, and change nothing else.

The charts come from PRIMUS_CHARTS_DIR, as in test_charts.py.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.bundle.charts import images_of
from tests.golden.chart_rig import chart_roles, render
from tests.golden.test_charts import chart
from tests.golden.test_gpu_operator_charts import VENDORS
from tests.golden.test_gpu_operator_charts import rendered as operator
from tests.unit.role_module import load_file

if TYPE_CHECKING:
    from collections.abc import Iterable

pinned: Any = load_file(content.plugins_dir() / "filter" / "kube_image_digests.py").kube_image_digests
PLACES = yaml.safe_load((content.roles_dir() / "kube_common" / "vars" / "main.yml").read_text(encoding="utf-8"))["kube_common_image_values"]
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}")


def digest(name: str) -> str:
    """Return a digest for a reference."""
    return hashlib.sha256(name.encode()).hexdigest()


def text_of(objects: Iterable[Any]) -> str:
    """Return objects as text, without digests and without the field `sha`, which the chart of Prometheus sets in addition."""
    without = [{**item, "spec": {key: value for key, value in (item.get("spec") or {}).items() if key != "sha"}} for item in objects]
    return DIGEST.sub("", json.dumps(without, sort_keys=True, default=str))


def check(role: str, found: tuple[Any, Any, dict[str, Any], tuple[dict[str, Any], ...]]) -> None:
    """Render a chart with a lock of its images, and compare."""
    scope, path, values, objects = found
    images = images_of([*objects])
    locked = [{"name": name, "sha256": digest(name)} for name in images | scope.images()]
    # Each vendor's chart has Node Feature Discovery; a lock with both versions would pin neither.
    locked = [one for one in locked if "/node-feature-discovery:" not in one["name"] or one["name"] in images]
    again = render(path, pinned(values, locked, PLACES[role]), scope[f"{role}_release"], scope[f"{role}_namespace"])

    assert images
    assert images_of(again) == {f"{name}@sha256:{digest(name)}" for name in images}
    assert text_of(again) == text_of(objects)


@pytest.mark.parametrize("role", chart_roles())
def test_a_chart_names_every_image_with_the_digest_of_the_lock(role: str) -> None:
    """Nodes then pull the locked image, whatever the registry has under the tag."""
    check(role, chart(role))


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_chart_of_an_operator_names_every_image_with_the_digest_of_the_lock(vendor: str) -> None:
    """Labels with a version of the chart stay valid."""
    check(f"gpu_operator_{vendor}", operator(vendor))
