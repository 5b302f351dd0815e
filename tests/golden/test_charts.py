"""Real charts rendered with our values: nothing that they do not know, everything that we wait for, and images that are named.

PRIMUS_CHARTS_DIR names a folder with a chart a role: a folder or archive that bears the role's or the chart's name.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from primus_bootstrap.bundle.charts import images_of, is_test
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.launch.watch.job_spec import read_job
from primus_bootstrap.launch.watch.job_spec_kubernetes import JOBSET, TRAINJOB
from primus_bootstrap.launch.watch.targets.kubernetes_objects import PodUser, Start
from primus_bootstrap.launch.watch.targets.kubernetes_objects import objects as attempt
from tests.golden.chart_rig import FOLDER, UNDEFINED, Definitions, Scope, chart_path, chart_roles, documented_values, render, unknown_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
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
    # So that each kind of object that a role makes is among those that are held against the definitions.
    "kube_cert_manager": {
        "kube_cert_manager_issuers": [
            {
                "metadata": {"name": "acme"},
                "spec": {"acme": {"server": "https://acme.example.com/directory", "privateKeySecretRef": {"name": "acme"}}},
            },
        ],
    },
    "kube_prometheus_stack": {
        "kube_prometheus_stack_monitors": [{"name": "own", "namespace": "jobs", "labels": {"app": "own"}, "port": "tell", "path": "/own"}],
        # What the role finds by Ansible's lookup `fileglob`, which the inventory's view does not load.
        "_kube_prometheus_stack_rule_files": sorted(map(str, content.roles_dir().glob("kube_prometheus_stack/files/rules/*.yml"))),
    },
    "kueue": {"kueue_cohorts": [{"name": "cluster", "weight": 2, "quotas": [{"flavor": "mi300x", "resources": {"cpu": 8}}]}]},
    "trainer": {
        "trainer_runtimes": [
            {
                "name": "torch", "image": "registry.example.com/train:1", "nodes": 2, "shm_gib": 16,
                "pod_spec": {"hostNetwork": True, "volumes": [{"name": "data", "hostPath": {"path": "/data"}}]},
                "container": {"env": [{"name": "A", "value": "b"}], "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
            },
        ],
    },
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
def rendered(role: str) -> tuple[Scope, Path, dict[str, Any], tuple[dict[str, Any], ...]] | None:
    """Return a role's variables, where its chart lies, our values, and the objects that it makes of them; None without the chart."""
    scope = Scope(cluster(), role, **GIVEN.get(role, {}))
    path = chart_path(role, scope[f"_{role}_chart"]["name"])
    if path is None:
        return None
    values = scope[f"_{role}_values"]
    return scope, path, values, tuple(render(path, values, scope[f"{role}_release"], scope[f"{role}_namespace"]))


def chart(role: str) -> tuple[Scope, Path, dict[str, Any], tuple[dict[str, Any], ...]]:
    """Return what `rendered` does; skipped without the chart."""
    if not FOLDER:
        pytest.skip("PRIMUS_CHARTS_DIR is not set: no real chart was rendered")
    found = rendered(role)
    if found is None:
        pytest.skip(f"no chart of {role} in PRIMUS_CHARTS_DIR: it was not rendered")
    return found


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


@functools.cache
def definitions() -> Definitions:
    """Return what all charts together define: a role makes objects of kinds that another's chart brings."""
    return Definitions([one for role in chart_roles() for one in (rendered(role) or ((),))[-1]])


def judge(objects: Iterable[Mapping[str, Any]]) -> None:
    """Hold objects against the definitions; a kind that nobody defines counts where every chart is there, and skips where one is not."""
    problems = {problem for one in objects for problem in definitions().problems(one)}
    undefined = {one for one in problems if one.endswith(UNDEFINED)}
    missing = [role for role in chart_roles() if not rendered(role)]

    assert problems - (undefined if missing else set()) == set()
    if undefined:
        pytest.skip(f"not judged without the charts of {', '.join(missing)}: {'; '.join(sorted(undefined))}")


@pytest.mark.parametrize("role", chart_roles())
def test_custom_resources_fit_their_definitions(role: str) -> None:
    """What the chart makes with our values, and what the role applies beside it, their definitions allow, whichever chart brings these."""
    scope, _, _, objects = chart(role)

    judge([*objects, *scope.own_objects()])


def test_what_roles_apply_is_judged() -> None:
    """Each kind that our roles make of a definition is among what is held against it; a role whose objects were not found would be none."""
    if not FOLDER:
        pytest.skip("PRIMUS_CHARTS_DIR is not set: no real chart was rendered")
    own = {one["kind"] for role in chart_roles() if (found := rendered(role)) for one in found[0].own_objects()}

    assert own >= {
        "Certificate", "ClusterIssuer", "ClusterQueue", "ClusterTrainingRuntime", "Cohort", "JobSet", "LocalQueue", "PodMonitor",
        "PrometheusRule", "ResourceFlavor", "Topology", "WasmPlugin", "WorkloadPriorityClass",
    }  # fmt: skip


@pytest.mark.parametrize("form", [JOBSET, TRAINJOB])
@pytest.mark.parametrize("claim", ["", "train"])
def test_training_jobs_fit_their_definitions(form: str, claim: str) -> None:
    """What the watcher sends for an attempt, the definitions of JobSet and Trainer allow, pods included; it reads back what it sent."""
    if not FOLDER:
        pytest.skip("PRIMUS_CHARTS_DIR is not set: no real chart was rendered")
    pods = {
        "image": "registry.example.com/train:1", "namespace": "jobs", "claim": claim, "host_network": not claim,
        "queue": "training" if claim else "", "priority": "high", "topology": "primus-bootstrap.io/rack",
        "resources": {"amd.com/gpu": "8", "cpu": "90"}, "node_selector": {"disk": "nvme"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}], "pull_secrets": ["pull"], "secrets": ["tracker"], "spares": ["gpu063"],
    }  # fmt: skip
    said = {
        "schema": "primus.job/1",
        "id": "try-0a1b2c",
        "name": "try",
        "user": "ada",
        "target": "kubernetes",
        "nodes": 2,
        "words": ["train"],
    }
    start = Start(
        read_job(json.dumps({**said, "kubernetes": pods}), origin="job.json"), 3, ("train",), PodUser(5001, 5001, (44,)), ("gpu007",)
    )

    judge([made for _, made in attempt(start, form)])


@pytest.mark.parametrize("role", chart_roles())
def test_images_are_stated_for_bundles(role: str) -> None:
    """The images that run are those of meta/fetches.yml, each with a tag or a digest, so that `bundle list` names them all."""
    scope, _, _, objects = chart(role)
    named = images_of([one for one in objects if not is_test(one)])
    stated = scope.images()

    assert stated - STARTED_LATER.get(role, set()) == named - NOT_STARTED.get(role, set())
    assert {image for image in stated if ":" not in image.rpartition("/")[2] or image.endswith(":latest")} == set()
