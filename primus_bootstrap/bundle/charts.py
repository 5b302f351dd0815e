"""Find the images of charts by rendering them with helm and the user's values."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.bundle import registry, web
from primus_bootstrap.bundle.artifacts import BundleError, Need, Needs, Rendered, Requirement, Unknown
from primus_bootstrap.bundle.commands import failure, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from primus_bootstrap.bundle.artifacts import Chart, Lock

_LIMIT_S = 120.0
# Of Prometheus' operator: charts with monitoring cannot be rendered without it.
_API_VERSIONS = ("monitoring.coreos.com/v1",)
# An image in a rendered chart, also in an argument or a setting of a controller.
_IMAGE = re.compile(
    r"(?:image:\s*|=|^\s*\S*[iI]mage\S*:\s*)[\"']?((?:[a-z0-9-]+\.)+[a-z]{2,}(?::\d+)?/[\w./-]+(?::[\w.-]+)?(?:@sha256:\w+)?)[\"']?\s*$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class ChartPaths:
    """The paths of charts and helm on this machine.

    `base` is the folder of hosts.yaml. `bundles` have the layout of a bundle; `folders` contain archives or folders by name. `helm` is
    the program, or empty.
    """

    base: Path
    bundles: tuple[Path, ...]
    folders: tuple[Path, ...]
    helm: str


def with_images(needs: Needs, lock: Lock, paths: ChartPaths) -> tuple[Needs, tuple[Rendered, ...]]:
    """Return the needs with the images of their charts, and the rendered charts. A chart that cannot be rendered is unknown.

    A chart that the lock contains with the same version and values is not rendered again.
    """
    images: dict[str, list[Chart]] = {}
    rendered: dict[str, Rendered] = {}
    unknown: list[Unknown] = []
    for chart in needs.charts:
        try:
            key = key_of(chart, paths)
            existing = rendered.get(key) or next((locked for locked in lock.charts if locked.key == key), None)
            result = rendered[key] = existing or Rendered(chart.role, key, render(chart, paths))
        except BundleError as error:
            unknown.append(Unknown(chart.role, (chart.host,), error.what, error.fix))
            continue
        for image in result.images:
            images.setdefault(image, []).append(chart)
    by_image = {requirement.need.name: requirement for requirement in needs.requirements if requirement.need.kind == "image"}
    for image, charts in images.items():
        before = by_image.get(image) or Requirement(Need("image", image), (), (), ())
        by_image[image] = Requirement(
            before.need,
            tuple(dict.fromkeys((*before.roles, *(chart.role for chart in charts)))),
            tuple(dict.fromkeys((*before.patterns, *(chart.pattern for chart in charts)))),
            tuple(dict.fromkeys((*before.hosts, *(chart.host for chart in charts)))),
        )
    others = tuple(requirement for requirement in needs.requirements if requirement.need.kind != "image")
    requirements = (*others, *(by_image[name] for name in sorted(by_image)))
    return replace(needs, requirements=requirements, unknown=(*needs.unknown, *unknown)), tuple(rendered.values())


def key_of(chart: Chart, paths: ChartPaths) -> str:
    """Return a hash of everything that determines the images of a chart.

    Raises:
        BundleError: The user's own chart does not exist.
    """
    source = _content(_user_chart(chart, paths)) if chart.file else (chart.url, chart.version)
    inputs = [source, chart.name, chart.release, chart.namespace, chart.values]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()


def fetch(charts: Sequence[Chart], paths: ChartPaths, cache: Path, progress: Callable[[str], None]) -> None:
    """Download missing charts, so that they can be rendered. `render` reports a chart that could not be downloaded."""
    for chart in charts:
        if chart.file or _found(chart, paths):
            continue
        progress(f"chart {chart.url} {chart.version}")
        target = cache / web.file_path(chart.url, chart.version)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        if not download(chart.url, chart.version, part) and chart.sha256 in ("", web.sha256_of(part)):
            part.replace(target)
        part.unlink(missing_ok=True)


def download(url: str, version: str, part: Path) -> str:
    """Download a chart's archive from a web server or an image registry; return the failure, or an empty string."""
    if not web.is_safe(url):
        return f"{url} has no TLS and no checksum"
    if not url.startswith("oci://"):
        return web.download(url, part)
    try:
        return registry.fetch_chart(url, version, registry.chart_layer(url, version)[0], part)
    except BundleError as error:
        return error.what


def render(chart: Chart, paths: ChartPaths) -> tuple[str, ...]:
    """Return the images of a chart with its values.

    Raises:
        BundleError: The chart or helm is missing, or helm cannot render the chart.
    """
    path = _user_chart(chart, paths) if chart.file else _found(chart, paths)
    if path is None:
        what = f"its images are unknown: the chart {chart.name} {chart.version} is not on this machine"
        raise BundleError(
            what, fix="run `primus-bootstrap bundle lock` on a machine with internet access, or set PRIMUS_CHARTS_DIR to a folder of charts"
        )
    if not paths.helm:
        what = f"its images are unknown: helm, which renders {chart.name} {chart.version}, is not on this machine"
        raise BundleError(what, fix="install helm, or set kube_helm_path or PRIMUS_HELM to the program")
    with tempfile.TemporaryDirectory(prefix="primus-bundle-") as folder:
        values = Path(folder, "values.yaml")
        values.touch(mode=0o600)
        values.write_text(yaml.safe_dump(json.loads(json.dumps(chart.values))), encoding="utf-8")
        argv = [paths.helm, "template", chart.release, str(path), "--namespace", chart.namespace, "--values", str(values)]
        done = run([*argv, *(f"--api-versions={name}" for name in _API_VERSIONS)], timeout_s=_LIMIT_S)
    if done.code:
        what = f"its images are unknown: helm cannot render {chart.name} {chart.version}: {failure(done)}"
        raise BundleError(what, fix=f"correct the values of the role {chart.role}, or set PRIMUS_HELM to another helm")
    try:
        return tuple(sorted(images_of(documents(done.stdout))))
    except yaml.YAMLError as error:
        what = f"its images are unknown: the output of helm for {chart.name} is not valid YAML: {error}"
        raise BundleError(what, fix=f"run `helm template` with the chart {path} and correct its values") from error


def documents(text: str) -> list[dict[str, Any]]:
    """Return the objects of a rendered chart, with the items of lists."""
    # A template may leave a comment directly after `---`, which Helm accepts and YAML does not.
    parts = re.split(r"(?m)^---(?=[\s#]|$)", text)
    loaded = [one for part in parts if isinstance(one := yaml.load(part, Loader=yaml.CSafeLoader), dict)]
    return [inner for one in loaded for inner in (one["items"] if one.get("kind") == "List" else [one])]


def is_test(obj: Mapping[str, Any]) -> bool:
    """Return whether only `helm test` uses an object."""
    return "test" in str(((obj.get("metadata") or {}).get("annotations") or {}).get("helm.sh/hook", ""))


def images_of(objects: list[dict[str, Any]]) -> set[str]:
    """Return every image in the objects. In an argument, only a word with a tag is an image."""
    found: set[str] = set()
    for one in objects:
        text = "" if is_test(one) or one.get("kind") == "CustomResourceDefinition" else yaml.safe_dump(one, width=1000)
        found |= {image for image in _IMAGE.findall(text) if ":" in image or f"image: {image}" in text}
    return found


def _user_chart(chart: Chart, paths: ChartPaths) -> Path:
    path = paths.base / chart.file
    if not path.exists():
        raise BundleError(f"its images are unknown: {path} does not exist", fix=f"correct {chart.prefix}_chart_file in hosts.yaml")
    return path


def _found(chart: Chart, paths: ChartPaths) -> Path | None:
    """Return the path of a chart with exactly this version, or None. A checksum applies to downloaded archives."""
    fetched = [folder / web.file_path(chart.url, chart.version) for folder in paths.bundles]
    for path in fetched:
        if path.is_file() and chart.sha256 in ("", web.sha256_of(path)):
            return path
    named = [path for folder in paths.folders for path in _named(chart, folder)]
    return next((path for path in named if path.exists() and _version_of(path) == (chart.name, chart.version)), None)


def _named(chart: Chart, folder: Path) -> Iterator[Path]:
    for name in dict.fromkeys((chart.prefix, chart.name)):
        yield folder / name
        yield folder / f"{name}-{chart.version}.tgz"


def _version_of(path: Path) -> tuple[str, str] | None:
    """Return the name and version from Chart.yaml, or None if the path is not a chart."""
    try:
        if path.is_dir():
            text = (path / "Chart.yaml").read_bytes()
        else:
            with tarfile.open(path) as archive:
                member = next(one for one in archive if one.name.count("/") == 1 and one.name.endswith("/Chart.yaml"))
                inner = archive.extractfile(member)
                text = inner.read() if inner else b""
        stated = yaml.load(text, Loader=yaml.CSafeLoader)
        return str(stated["name"]), str(stated["version"])
    except (OSError, tarfile.TarError, StopIteration, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return None


def _content(path: Path) -> str:
    """Return a hash of the content of an archive or a folder."""
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    return hashlib.sha256("".join(f"{one.relative_to(path)} {web.sha256_of(one)}\n" for one in files).encode()).hexdigest()
