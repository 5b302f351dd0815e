"""Test the images of charts: rendered with the user's values; a chart that cannot be rendered is unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.bundle.artifacts import Chart, Lock, Needs, Rendered
from primus_bootstrap.bundle.charts import ChartPaths, images_of, with_images

if TYPE_CHECKING:
    from collections.abc import Sequence

HELM = str(Path(__file__).parents[1] / "kubernetes" / "helm")
_TEMPLATE = """\
---# A comment behind it, as cert-manager has one.
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}, namespace: {{ .Release.Namespace }}}
spec:
  image: "{{ required "name the image" .Values.image }}"
  args: ["--sidecar=quay.io/team/sidecar:2.0"]
---
apiVersion: v1
kind: Pod
metadata: {name: test, annotations: {helm.sh/hook: test}}
spec: {image: docker.io/team/never:1}
"""


def make_chart(folder: Path, version: str = "1.0.0") -> Path:
    """Write a chart as a folder."""
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text(f"apiVersion: v2\nname: queue\nversion: {version}\n")
    (folder / "templates" / "all.yaml").write_text(_TEMPLATE)
    return folder


def chart(image: str | None = "registry.example.com/team/queue:1.0", **words: str) -> Chart:
    """Return a role's chart."""
    values = {} if image is None else {"image": image}
    base = Chart("queue", "queue", "queue", "1.0.0", "https://example.com/queue-1.0.0.tgz", "", "", "q", "ns", values, "kube[0]", "cp1")
    return replace(base, **words)  # type: ignore[arg-type]


def chart_paths(tmp_path: Path, *, helm: str = HELM) -> ChartPaths:
    """Return the paths of a machine with charts in `charts`."""
    return ChartPaths(tmp_path, (tmp_path / "bundle",), (tmp_path / "charts",), helm)


def render(tmp_path: Path, charts: Sequence[Chart], *, lock: Lock | None = None, helm: str = HELM) -> tuple[Needs, tuple[Rendered, ...]]:
    """Render on that machine."""
    return with_images(Needs((), (), charts=tuple(charts)), lock or Lock(), chart_paths(tmp_path, helm=helm))


def test_chart_with_another_version_is_not_used(tmp_path: Path) -> None:
    """A folder with the chart's name and another version is ignored."""
    make_chart(tmp_path / "charts" / "queue", version="0.9.0")

    assert "is not on this machine" in render(tmp_path, [chart()])[0].unknown[0].reason


def test_images_are_found_in_every_form() -> None:
    """Images with a digest, with a tag and in a setting are found; text that looks like a path is not."""
    found = images_of(
        [
            {"kind": "Deployment", "spec": {"image": "docker.io/a/b@sha256:0f"}},
            {"kind": "ConfigMap", "data": {"devicePluginImage": "nvcr.io/x/y:1", "url": "https://example.com/a/b"}},
            {"kind": "CustomResourceDefinition", "spec": {"image": "docker.io/never:1"}},
        ]
    )

    assert found == {"docker.io/a/b@sha256:0f", "nvcr.io/x/y:1"}
