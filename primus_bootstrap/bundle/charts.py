"""Images of charts, found by rendering them as their roles do: the only module of the bundle that speaks to helm.

What a chart names also depends on the user's own values, so that no list of ours can stand for it.
"""

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
from primus_bootstrap.bundle.artifacts import BundleError, Need, Needs, Rendered, Unknown, Wanted
from primus_bootstrap.bundle.program import run, why

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from primus_bootstrap.bundle.artifacts import Chart, Lock

_LIMIT_S = 120.0
# A server with Prometheus' operator has it; charts refuse to be rendered with monitoring without it.
_API_VERSIONS = ("monitoring.coreos.com/v1",)
# An image of a rendered chart, also where a controller is told by an argument or a setting which one to start.
_IMAGE = re.compile(
    r"(?:image:\s*|=|^\s*\S*[iI]mage\S*:\s*)[\"']?((?:[a-z0-9-]+\.)+[a-z]{2,}(?::\d+)?/[\w./-]+(?::[\w.-]+)?(?:@sha256:\w+)?)[\"']?\s*$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Places:
    """Where charts and helm are on this machine.

    `base` is the folder of hosts.yaml, `bundles` are laid out as a bundle is, `folders` hold archives or folders by name. `helm` is empty
    where there is none.
    """

    base: Path
    bundles: tuple[Path, ...]
    folders: tuple[Path, ...]
    helm: str


def with_images(needs: Needs, lock: Lock, places: Places) -> tuple[Needs, tuple[Rendered, ...]]:
    """Return the needs with the images that their charts name, and what was rendered; a chart that cannot be rendered is unknown.

    What the lock holds of a chart, its version and just these values is not rendered again.
    """
    images: dict[str, list[Chart]] = {}
    rendered: dict[str, Rendered] = {}
    unknown: list[Unknown] = []
    for chart in needs.charts:
        try:
            key = key_of(chart, places)
            known = rendered.get(key) or next((one for one in lock.charts if one.key == key), None)
            found = rendered[key] = known or Rendered(chart.role, key, render(chart, places))
        except BundleError as error:
            unknown.append(Unknown(chart.role, (chart.host,), error.what, error.fix))
            continue
        for image in found.images:
            images.setdefault(image, []).append(chart)
    wanted = {one.need.name: one for one in needs.wanted if one.need.kind == "image"}
    for image, charts in images.items():
        before = wanted.get(image) or Wanted(Need("image", image), (), (), ())
        wanted[image] = Wanted(
            before.need,
            tuple(dict.fromkeys((*before.roles, *(chart.role for chart in charts)))),
            tuple(dict.fromkeys((*before.patterns, *(chart.pattern for chart in charts)))),
            tuple(dict.fromkeys((*before.hosts, *(chart.host for chart in charts)))),
        )
    others = tuple(one for one in needs.wanted if one.need.kind != "image")
    every = (*others, *(wanted[name] for name in sorted(wanted)))
    return replace(needs, wanted=every, unknown=(*needs.unknown, *unknown)), tuple(rendered.values())


def key_of(chart: Chart, places: Places) -> str:
    """Return what changes with all that decides which images a chart names.

    Raises:
        BundleError: a chart of the user's own is not there.
    """
    own = _content(_own(chart, places)) if chart.file else (chart.url, chart.version)
    words = [own, chart.name, chart.release, chart.namespace, chart.values]
    return hashlib.sha256(json.dumps(words, sort_keys=True, default=str).encode()).hexdigest()


def fetch(charts: Sequence[Chart], places: Places, cache: Path, say: Callable[[str], None]) -> None:
    """Download the charts that this machine lacks, so that they can be rendered; one that cannot be had is told when it is rendered."""
    for chart in charts:
        if chart.file or _found(chart, places):
            continue
        say(f"chart {chart.url} {chart.version}")
        target = cache / web.file_path(chart.url, chart.version)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        if not download(chart.url, chart.version, part) and chart.sha256 in ("", web.sum_of(part)):
            part.replace(target)
        part.unlink(missing_ok=True)


def download(url: str, version: str, part: Path) -> str:
    """Download a chart's archive to a path, from a web server or an image registry; return what failed, or an empty text."""
    if not web.is_safe(url):
        return f"{url} has no TLS, and no sum is stated for it"
    if not url.startswith("oci://"):
        return web.download(url, part)
    try:
        return registry.fetch_chart(url, version, registry.chart_layer(url, version)[0], part)
    except BundleError as error:
        return error.what


def render(chart: Chart, places: Places) -> tuple[str, ...]:
    """Return the images that a chart names with these values.

    Raises:
        BundleError: the chart or helm is not on this machine, or the one cannot be rendered by the other.
    """
    path = _own(chart, places) if chart.file else _found(chart, places)
    if path is None:
        what = f"its images are not known: {chart.name} {chart.version} is not on this machine, so it was not rendered"
        raise BundleError(
            what, fix="run `primus-bootstrap bundle lock` with a way to its source, or name a folder of charts in PRIMUS_CHARTS_DIR"
        )
    if not places.helm:
        what = f"its images are not known: there is no helm on this machine that renders {chart.name} {chart.version}"
        raise BundleError(what, fix="install helm, or name the program in kube_helm_path or PRIMUS_HELM")
    with tempfile.TemporaryDirectory(prefix="primus-bundle-") as folder:
        values = Path(folder, "values.yaml")
        values.touch(mode=0o600)
        values.write_text(yaml.safe_dump(json.loads(json.dumps(chart.values))), encoding="utf-8")
        argv = [places.helm, "template", chart.release, str(path), "--namespace", chart.namespace, "--values", str(values)]
        done = run([*argv, *(f"--api-versions={name}" for name in _API_VERSIONS)], timeout_s=_LIMIT_S)
    if done.code:
        what = f"its images are not known: helm cannot render {chart.name} {chart.version}: {why(done)}"
        raise BundleError(what, fix=f"mend the values of the role {chart.role}, or render it with another helm: PRIMUS_HELM")
    try:
        return tuple(sorted(images_of(documents(done.stdout))))
    except yaml.YAMLError as error:
        what = f"its images are not known: what helm made of {chart.name} cannot be read"
        raise BundleError(what, fix=f"look at `helm template` of it: {error}") from error


def documents(text: str) -> list[dict[str, Any]]:
    """Return the objects of a rendered chart, those of lists one by one."""
    # A template may leave a comment right behind `---`, which Helm takes and YAML does not.
    parts = re.split(r"(?m)^---(?=[\s#]|$)", text)
    loaded = [one for part in parts if isinstance(one := yaml.load(part, Loader=yaml.CSafeLoader), dict)]
    return [inner for one in loaded for inner in (one["items"] if one.get("kind") == "List" else [one])]


def is_test(obj: Mapping[str, Any]) -> bool:
    """Whether an object is run only by `helm test`, which nobody calls here."""
    return "test" in str(((obj.get("metadata") or {}).get("annotations") or {}).get("helm.sh/hook", ""))


def images_of(objects: list[dict[str, Any]]) -> set[str]:
    """Return every image that the objects name; one that stands in an argument has a tag, other words with a slash have none."""
    found: set[str] = set()
    for one in objects:
        text = "" if is_test(one) or one.get("kind") == "CustomResourceDefinition" else yaml.safe_dump(one, width=1000)
        found |= {image for image in _IMAGE.findall(text) if ":" in image or f"image: {image}" in text}
    return found


def _own(chart: Chart, places: Places) -> Path:
    path = places.base / chart.file
    if not path.exists():
        raise BundleError(f"its images are not known: {path} is not there", fix=f"correct {chart.prefix}_chart_file")
    return path


def _found(chart: Chart, places: Places) -> Path | None:
    """Return where a chart of just this version lies; a sum that is stated counts for archives that were fetched."""
    fetched = [folder / web.file_path(chart.url, chart.version) for folder in places.bundles]
    for path in fetched:
        if path.is_file() and chart.sha256 in ("", web.sum_of(path)):
            return path
    named = [place for folder in places.folders for place in _named(chart, folder)]
    return next((path for path in named if path.exists() and _version_of(path) == (chart.name, chart.version)), None)


def _named(chart: Chart, folder: Path) -> Iterator[Path]:
    for name in dict.fromkeys((chart.prefix, chart.name)):
        yield folder / name
        yield folder / f"{name}-{chart.version}.tgz"


def _version_of(path: Path) -> tuple[str, str] | None:
    """Return name and version that a chart says of itself, None of what is no chart."""
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
    """Return what changes with any byte of an archive or a folder."""
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    return hashlib.sha256("".join(f"{one.relative_to(path)} {web.sum_of(one)}\n" for one in files).encode()).hexdigest()
