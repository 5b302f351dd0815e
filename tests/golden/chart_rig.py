"""Renders real charts with the values of the roles, using Helm's library."""

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
# Their checks need answers of a cluster, and use only Kubernetes' own kinds.
VERIFIED_BY_A_RUN = ("juicefs_csi",)
# API groups of Kubernetes itself; their kinds need no definition. https://kubernetes.io/docs/reference/kubernetes-api/ (1.35)
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
    """Return the path of a role's chart, or None: a folder or an archive with the name of the role or the chart."""
    paths = [path for stem in (role, name) for path in (Path(FOLDER, stem), *sorted(Path(FOLDER).glob(f"{stem}-[0-9v]*.tgz")))]
    return next((path for path in paths if path.is_file() or (path / "Chart.yaml").is_file()), None) if FOLDER else None


class Scope:
    """A role's variables on the first control plane of a cluster, as its playbook passes them."""

    def __init__(self, cluster: Cluster, role: str, **variables: Any) -> None:
        """Read the role's defaults and vars and the files of its playbook."""
        self.cluster, self.role = cluster, role
        folder = content.roles_dir() / role
        plays = [play for phase in load_phases(content.playbooks_dir()) for play in phase.plays if role in play.roles]
        files = [path for play in plays[:1] for path in play.vars_files] or [content.playbooks_dir() / "vars" / "kubernetes.yml"]
        sources = RoleSources((folder / "defaults" / "main.yml",), (*files, *sorted((folder / "vars").glob("*.yml"))), {}, variables)
        self._resolve = cluster.view.role_scope(cluster.view.select("kube_control_plane[0]")[0], sources)

    def __getitem__(self, expression: str) -> Any:
        """Return the value of an expression."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "template.yml")
            path.write_text(yaml.safe_dump({"value": f"{{{{ {expression} }}}}"}), encoding="utf-8")
            return self._resolve(self.cluster.view.read_templates(path)["value"])

    def applied_objects(self) -> list[dict[str, Any]]:
        """Return the objects that the role's tasks apply in addition to the chart, without Secrets and removed objects."""
        found = []
        for path in sorted((content.roles_dir() / self.role / "tasks").glob("*.yml")):
            for task in self.cluster.view.read_templates(path) or ():
                for value in _applied(task.get("vars") or {}):
                    found += self._resolve(value)
                if self.role not in VERIFIED_BY_A_RUN:
                    checks = (task.get("vars") or {}).get("kube_common_verify", {}).get("checks") or []
                    found += [item for check in self._resolve(checks) for item in check.get("objects") or ()]
        return found

    def images(self) -> set[str]:
        """Return the applicable images of the role's meta/fetches.yml."""
        items = self.cluster.view.read_templates(fetches_file(self.role))["main"]
        applying = [item for item in items if "image" in item and ("when" not in item or self._resolve(item["when"]))]
        return {str(self._resolve(item["image"])["reference"]) for item in applying}


def _applied(variables: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the objects that a task passes to the role kube_common."""
    release, separate = variables.get("kube_common_chart") or {}, variables.get("kube_common_objects") or {}
    yield from (release[when] for when in ("before", "after") if when in release)
    if "objects" in separate and not separate.get("secret") and separate.get("state") != "absent":
        yield separate["objects"]


def render(path: Path, values: Mapping[str, Any], release: str, namespace: str) -> list[dict[str, Any]]:
    """Return the objects of a chart, including its definitions in crds/."""
    with helm_python.Chart.load(path) as chart:
        texts = [
            text for name, text in chart.render(dict(values), name=release, namespace=namespace).items() if not name.endswith("NOTES.txt")
        ]
        texts += [crd["data"] for crd in chart.crds]
    return [item for text in texts for item in _MODULE.documents(text)]


def documented_values(path: Path) -> dict[str, Any]:
    """Return a chart's values.yaml, with those of subcharts under their names or aliases and their `global` at the top."""
    texts = dict(_texts(path))
    values = yaml.safe_load(texts.get("values.yaml", "")) or {}
    for name, text in texts.items():
        parts = Path(name).parts
        if len(parts) == 3 and parts[0] == "charts" and parts[2] == "values.yaml":
            inner = yaml.safe_load(text) or {}
            values[parts[1]] = _merge(inner, values.get(parts[1]) or {})
            # Helm passes a chart's `global` to its subcharts.
            if "global" in inner:
                values["global"] = _merge(inner["global"] or {}, values.get("global") or {})
    for dependency in (yaml.safe_load(texts["Chart.yaml"]).get("dependencies")) or ():
        if alias := dependency.get("alias"):
            values[alias] = _merge(values.get(dependency["name"]) or {}, values.get(alias) or {})
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


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        result[key] = _merge(result[key], value) if isinstance(value, dict) and isinstance(result.get(key), dict) else value
    return result


def unknown_paths(values: Mapping[str, Any], known: Any, where: str = "") -> Iterator[str]:
    """Yield the paths of values that the chart's values.yaml does not have. An empty mapping or a list there accepts any content."""
    for key, value in values.items():
        path = f"{where}.{key}" if where else str(key)
        if not isinstance(known, dict) or key not in known:
            yield path
        elif isinstance(value, dict) and isinstance(known[key], dict) and known[key]:
            yield from unknown_paths(value, known[key], path)


class Definitions:
    """Validates objects against the custom resource definitions of charts."""

    def __init__(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Collect the schemas of rendered objects. If several charts define a kind, the last one counts."""
        self._schemas = {
            (item["spec"]["group"], version["name"], item["spec"]["names"]["kind"]): version["schema"]["openAPIV3Schema"]
            for item in objects
            if item["kind"] == "CustomResourceDefinition"
            for version in item["spec"]["versions"]
            # v1beta1, which .helmignore keeps out of the archive of Higress
            if "schema" in version
        }
        self._validators: dict[tuple[str, str, str], jsonschema.Draft202012Validator] = {}

    def problems(self, item: Mapping[str, Any]) -> list[str]:
        """Return violations of an object's definition. A missing definition is a problem; Kubernetes' own kinds are skipped."""
        group, _, version = item["apiVersion"].rpartition("/")
        key, name = (group, version, item["kind"]), f"{item['kind']} {item['metadata']['name']}"
        if group in _BUILT_IN:
            return []
        if key not in self._schemas:
            return [f"{name} ({item['apiVersion']}): {UNDEFINED}"]
        if key not in self._validators:
            self._validators[key] = jsonschema.Draft202012Validator(_closed(self._schemas[key]))
        # Only some definitions contain these fields, which the API server validates itself.
        body = {field: value for field, value in item.items() if field not in ("apiVersion", "kind", "metadata")}
        return [f"{name}: {error.json_path}: {error.message}" for error in self._validators[key].iter_errors(body)]


def _closed(schema: Any) -> Any:
    """Return a schema that rejects unknown fields, which the API server drops silently."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) if key in ("properties", "items", "additionalProperties") else value for key, value in schema.items()}
    if "properties" in schema:
        closed["properties"] = {name: _closed(value) for name, value in schema["properties"].items()}
        is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
        closed |= {} if is_open else {"additionalProperties": False}
    if schema.get("x-kubernetes-int-or-string"):
        closed = {key: value for key, value in closed.items() if key not in ("type", "anyOf")}
    return closed
