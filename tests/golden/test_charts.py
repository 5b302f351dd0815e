"""Real charts rendered with our values: nothing that they do not know, everything that we wait for, and images that are named.

PRIMUS_CHARTS_DIR names a folder with a chart a role: a folder or archive that bears the role's or the chart's name.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from primus_bootstrap import content
from primus_bootstrap.bundle.charts import images_of, is_test
from primus_bootstrap.inventory.load import load_cluster
from tests.golden.chart_rig import FOLDER, Scope, chart_path, chart_roles, documented_values, render, unknown_paths

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.inventory.cluster import Cluster

# Values that a chart takes and names only in a comment of its values.yaml, or hands on as they are, with the reason.
KNOWN_OTHERWISE = {
    "kube_prometheus_stack": {
        "alertmanager.alertmanagerSpec.configSecret": "a comment there; the template reads it beside useExistingSecret",
    },
}
# Made by what the chart starts, or by the cluster, and so in no template.
MADE_LATER: dict[str, set[str]] = {}
# Images that are named and never started with our values, and those that a controller starts without naming them in the chart.
NOT_STARTED = {"kube_prometheus_stack": {"quay.io/thanos/thanos:v0.42.4"}}
STARTED_LATER: dict[str, set[str]] = {
    # The driver starts the pods that mount volumes, with this image, by itself.
    "juicefs_csi": {"docker.io/juicedata/mount:ce-v1.4.1"},
    # The gateway fetches the plug-ins that routes ask for.
    "higress": {f"higress-registry.cn-hangzhou.cr.aliyuncs.com/plugins/{name}:1.0.0" for name in ("key-auth", "key-rate-limit")},
}
GIVEN: dict[str, dict[str, Any]] = {
    # Its chart refuses to be rendered where no server serves ServiceMonitors, and the library cannot be told that one does.
    "jobset": {"jobset_monitored": False},
    # So that each kind of object that the role makes is among those that are held against the definitions.
    "higress": {
        "higress_clients": [{"name": "notebook", "key": "key-of-notebook-0001", "rate_limit": {"requests": 60}}],
        "higress_routes": [
            {
                "name": "api", "host": "api.example.com", "service": "api", "port": 80, "clients": ["notebook"],
                "rate_limit": {"requests": 5, "per": "second"},
            },
        ],
        "higress_wasm_plugins": [{"name": "own", "url": "oci://harbor.example.com/own:1.0.0", "routes": ["api"], "config": {"a": 1}}],
    },
}  # fmt: skip


@functools.cache
def cluster() -> Cluster:
    """The topology that has every chart."""
    return load_cluster(content.topologies_dir() / "mi300x")


@functools.cache
def chart(role: str) -> tuple[Scope, Path, dict[str, Any], tuple[dict[str, Any], ...]]:
    """Return a role's variables, where its chart lies, our values, and the objects that it makes of them; skipped without the chart."""
    if not FOLDER:
        pytest.skip("PRIMUS_CHARTS_DIR is not set: no real chart was rendered")
    scope = Scope(cluster(), role, **GIVEN.get(role, {}))
    path = chart_path(role, scope[f"_{role}_chart"]["name"])
    if path is None:
        pytest.skip(f"no chart of {role} in PRIMUS_CHARTS_DIR: it was not rendered")
    values = scope[f"_{role}_values"]
    return scope, path, values, tuple(render(path, values, scope[f"{role}_release"], scope[f"{role}_namespace"]))


@pytest.mark.parametrize("role", chart_roles())
def test_the_chart_knows_every_value(role: str) -> None:
    """A value that no template reads is a wish that nobody hears: each path stands in the chart's values.yaml, or here with a reason."""
    _, path, values, _ = chart(role)
    unknown = set(unknown_paths(values, documented_values(path)))

    assert unknown - set(KNOWN_OTHERWISE.get(role, {})) == set()


@pytest.mark.parametrize("role", chart_roles())
def test_what_is_waited_for_is_what_the_chart_makes(role: str) -> None:
    """An object that never comes would be waited for until the time is up."""
    scope, _, _, objects = chart(role)
    made = {(one["kind"], one["metadata"]["name"]) for one in objects}
    wanted = {(one["kind"], name) for one in scope[f"_{role}_ready"] for name in one.get("names") or [one["name"]]}

    assert wanted
    assert {one for one in wanted - made if one[1] not in MADE_LATER.get(role, set())} == set()


@pytest.mark.parametrize("role", chart_roles())
def test_custom_resources_fit_their_definitions(role: str) -> None:
    """What the chart, with our values, and the role itself make of the chart's own kinds, its own definitions allow."""
    scope, _, _, objects = chart(role)
    schemas = {
        (one["spec"]["group"], version["name"], one["spec"]["names"]["kind"]): version["schema"]["openAPIV3Schema"]
        for one in objects
        if one["kind"] == "CustomResourceDefinition"
        for version in one["spec"]["versions"]
    }
    own = scope[f"_{role}_objects"] if f"_{role}_objects:" in (content.roles_dir() / role / "vars" / "main.yml").read_text() else []
    for one in [*objects, *own]:
        group, _, version = one["apiVersion"].rpartition("/")
        if schema := schemas.get((group, version, one["kind"])):
            problems = [
                f"{error.json_path}: {error.message}" for error in jsonschema.Draft202012Validator(_closed(schema)).iter_errors(_body(one))
            ]
            assert problems == [], one["metadata"]["name"]


def _body(one: dict[str, Any]) -> dict[str, Any]:
    """Return an object without what the API server itself knows: some definitions name it, others do not."""
    return {key: value for key, value in one.items() if key not in ("apiVersion", "kind", "metadata")}


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


@pytest.mark.parametrize("role", chart_roles())
def test_images_are_stated_for_bundles(role: str) -> None:
    """The images that run are those of meta/fetches.yml, each with a tag or a digest, so that `bundle list` names them all."""
    scope, _, _, objects = chart(role)
    named = images_of([one for one in objects if not is_test(one)])
    stated = scope.images()

    assert stated - STARTED_LATER.get(role, set()) == named - NOT_STARTED.get(role, set())
    assert {image for image in stated if ":" not in image.rpartition("/")[2] or image.endswith(":latest")} == set()
