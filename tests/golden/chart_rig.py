"""Real charts, rendered with the values of our roles by Helm's own library."""

from __future__ import annotations

import os
import re
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import helm_python
import jsonschema  # type: ignore[import-untyped]
import yaml

from primus_bootstrap import content
from primus_bootstrap.bundle.needs import fetches_file
from primus_bootstrap.engine.playbooks import load_phases
from primus_bootstrap.inventory.cluster import RoleSources
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from primus_bootstrap.inventory.cluster import Cluster

_MODULE = load_role_module("kube_common", "kube_objects")
FOLDER = os.environ.get("PRIMUS_CHARTS_DIR", "")
UNDEFINED = "no chart defines this kind"
# What a role checks there follows from what the cluster answered; all of it is of Kubernetes' own kinds.
VERIFIED_BY_A_RUN = ("juicefs_csi",)
# Groups of Kubernetes itself: their kinds have no definition. https://kubernetes.io/docs/reference/kubernetes-api/ (1.35)
_BUILT_IN = {
    "", "admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "apps", "autoscaling", "batch",
    "coordination.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io", "scheduling.k8s.io", "storage.k8s.io",
}  # fmt: skip


def chart_roles() -> list[str]:
    """Return the roles that install a chart."""
    found = []
    for folder in sorted(content.roles_dir().iterdir()):
        defaults = folder / "defaults" / "main.yml"
        if defaults.is_file() and re.search(rf"(?m)^{folder.name}_chart_version:", defaults.read_text(encoding="utf-8")):
            found.append(folder.name)
    return found


def chart_path(role: str, name: str) -> Path | None:
    """Return where the chart of a role lies: a folder or an archive that bears the role's or the chart's name."""
    places = [place for one in (role, name) for place in (Path(FOLDER, one), *sorted(Path(FOLDER).glob(f"{one}-[0-9v]*.tgz")))]
    return next((place for place in places if place.is_file() or (place / "Chart.yaml").is_file()), None) if FOLDER else None


class Scope:
    """A role's variables on the first control plane of a cluster, as its playbook passes them."""

    def __init__(self, cluster: Cluster, role: str, **given: Any) -> None:
        """Read defaults, the playbook's files and vars."""
        self.cluster, self.role = cluster, role
        folder = content.roles_dir() / role
        plays = [play for phase in load_phases(content.playbooks_dir()) for play in phase.plays if role in play.roles]
        files = [path for play in plays[:1] for path in play.vars_files] or [content.playbooks_dir() / "vars" / "kubernetes.yml"]
        sources = RoleSources((folder / "defaults" / "main.yml",), (*files, *sorted((folder / "vars").glob("*.yml"))), {}, given)
        self._resolve = cluster.view.role_scope(cluster.view.select("kube_control_plane[0]")[0], sources)

    def __getitem__(self, expression: str) -> Any:
        """Return what an expression means."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "one.yml")
            path.write_text(yaml.safe_dump({"one": f"{{{{ {expression} }}}}"}), encoding="utf-8")
            return self._resolve(self.cluster.view.read_templates(path)["one"])

    def own_objects(self) -> list[dict[str, Any]]:
        """Return what the role's tasks have applied beside the chart; Secrets, and what is taken away, left out."""
        found = []
        for path in sorted((content.roles_dir() / self.role / "tasks").glob("*.yml")):
            for task in self.cluster.view.read_templates(path) or ():
                for value in _applied(task.get("vars") or {}):
                    found += self._resolve(value)
                if self.role not in VERIFIED_BY_A_RUN:
                    checks = (task.get("vars") or {}).get("kube_common_verify", {}).get("checks") or []
                    found += [one for check in self._resolve(checks) for one in check.get("objects") or ()]
        return found

    def images(self) -> set[str]:
        """Return the images that the role's meta/fetches.yml states, those that do not apply left out."""
        items = self.cluster.view.read_templates(fetches_file(self.role))["main"]
        applying = [item for item in items if "image" in item and ("when" not in item or self._resolve(item["when"]))]
        return {str(self._resolve(item["image"])["reference"]) for item in applying}


def _applied(variables: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what a task hands to the role kube_common for being applied."""
    release, alone = variables.get("kube_common_chart") or {}, variables.get("kube_common_objects") or {}
    yield from (release[when] for when in ("before", "after") if when in release)
    if "objects" in alone and not alone.get("secret") and alone.get("state") != "absent":
        yield alone["objects"]


def render(path: Path, values: Mapping[str, Any], release: str, namespace: str) -> list[dict[str, Any]]:
    """Return the objects that a chart makes, its definitions from crds/ included."""
    with helm_python.Chart.load(path) as chart:
        texts = [
            text for name, text in chart.render(dict(values), name=release, namespace=namespace).items() if not name.endswith("NOTES.txt")
        ]
        texts += [crd["data"] for crd in chart.crds]
    return [one for text in texts for one in _MODULE.documents(text)]


def documented_values(path: Path) -> dict[str, Any]:
    """Return all that a chart's values.yaml names, those of its subcharts under their names or aliases, their `global` at the top."""
    texts = dict(_texts(path))
    values = yaml.safe_load(texts.get("values.yaml", "")) or {}
    for name, text in texts.items():
        parts = Path(name).parts
        if len(parts) == 3 and parts[0] == "charts" and parts[2] == "values.yaml":
            inner = yaml.safe_load(text) or {}
            values[parts[1]] = _under(inner, values.get(parts[1]) or {})
            # Helm hands a chart's `global` down to its subcharts, so that what they name there is known above.
            if "global" in inner:
                values["global"] = _under(inner["global"] or {}, values.get("global") or {})
    for dependency in (yaml.safe_load(texts["Chart.yaml"]).get("dependencies")) or ():
        if alias := dependency.get("alias"):
            values[alias] = _under(values.get(dependency["name"]) or {}, values.get(alias) or {})
    return values


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the values.yaml and Chart.yaml files of a chart by their paths inside it."""
    if path.is_dir():
        for file in path.rglob("*.yaml"):
            if file.name in ("values.yaml", "Chart.yaml"):
                yield str(file.relative_to(path)), file.read_text(encoding="utf-8")
        return
    with tarfile.open(path) as archive:
        for member in archive:
            inner = archive.extractfile(member) if member.name.endswith(("/values.yaml", "/Chart.yaml")) else None
            if inner:
                yield member.name.partition("/")[2], inner.read().decode()


def _under(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        merged[key] = _under(merged[key], value) if isinstance(value, dict) and isinstance(merged.get(key), dict) else value
    return merged


def unknown_paths(ours: Mapping[str, Any], known: Any, where: str = "") -> Iterator[str]:
    """Yield the paths of ours that the chart's values do not name; below an empty mapping or a list anything is the chart's to take."""
    for key, value in ours.items():
        path = f"{where}.{key}" if where else str(key)
        if not isinstance(known, dict) or key not in known:
            yield path
        elif isinstance(value, dict) and isinstance(known[key], dict) and known[key]:
            yield from unknown_paths(value, known[key], path)


class Definitions:
    """The custom resource definitions of charts, and what they say of objects."""

    def __init__(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Keep the schemas among rendered objects; of a kind that several charts bring, the last."""
        self._schemas = {
            (one["spec"]["group"], version["name"], one["spec"]["names"]["kind"]): version["schema"]["openAPIV3Schema"]
            for one in objects
            if one["kind"] == "CustomResourceDefinition"
            for version in one["spec"]["versions"]
        }
        self._judges: dict[tuple[str, str, str], jsonschema.Draft202012Validator] = {}

    def problems(self, one: Mapping[str, Any]) -> list[str]:
        """Return what an object's definition does not allow; a kind that has none is a problem, one of Kubernetes' own is not looked at."""
        group, _, version = one["apiVersion"].rpartition("/")
        key, name = (group, version, one["kind"]), f"{one['kind']} {one['metadata']['name']}"
        if group in _BUILT_IN:
            return []
        if key not in self._schemas:
            return [f"{name} ({one['apiVersion']}): {UNDEFINED}"]
        if key not in self._judges:
            self._judges[key] = jsonschema.Draft202012Validator(_closed(self._schemas[key]))
        # What the API server itself knows some definitions name, others do not.
        body = {field: value for field, value in one.items() if field not in ("apiVersion", "kind", "metadata")}
        return [f"{name}: {error.json_path}: {error.message}" for error in self._judges[key].iter_errors(body)]


def _closed(schema: Any) -> Any:
    """Return a schema that allows no field that it does not name: the API server would drop it in silence."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) if key in ("properties", "items", "additionalProperties") else value for key, value in schema.items()}
    if "properties" in schema:
        closed["properties"] = {name: _closed(value) for name, value in schema["properties"].items()}
        free = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
        closed |= {} if free else {"additionalProperties": False}
    if schema.get("x-kubernetes-int-or-string"):
        closed = {key: value for key, value in closed.items() if key not in ("type", "anyOf")}
    return closed
