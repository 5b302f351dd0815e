"""Real charts accept the values of the roles, create the objects that roles wait for, and start only the listed images.

PRIMUS_CHARTS_DIR is a folder with a chart for each role: a folder or archive with the name of the role or the chart.
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
from primus_bootstrap.launch.watch.kubernetes_objects import PodUser, Start
from primus_bootstrap.launch.watch.kubernetes_objects import objects as attempt
from tests.golden.chart_rig import FOLDER, UNDEFINED, Definitions, Scope, chart_path, chart_roles, documented_values, render, unknown_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from primus_bootstrap.inventory.cluster import Cluster

# Values that a chart accepts and values.yaml does not contain, with the reason.
UNDOCUMENTED_VALUES = {
    "harbor": {
        f"{name}": "in a comment of values.yaml; the templates read it"
        for name in (
            "caBundleSecretName",
            "core.resources",
            "jobservice.resources",
            "portal.resources",
            "exporter.resources",
            "registry.registry.resources",
            "registry.controller.resources",
            "database.internal.resources",
            "redis.internal.resources",
        )
    },
    "kube_cert_manager": {
        f"{part}nodeSelector.primus-bootstrap.io/infra": "values.yaml has the label kubernetes.io/os; any other label may be added"
        for part in ("", "webhook.", "cainjector.")
    },
    "kube_prometheus_stack": {
        "alertmanager.alertmanagerSpec.configSecret": "in a comment of values.yaml; the template reads it with useExistingSecret"
    },
}
# Objects that the chart's programs or the cluster create; no template has them.
CREATED_LATER: dict[str, set[str]] = {}
# Images that the chart names and our values never start, and images that a controller starts without a name in the chart.
NOT_STARTED = {"kube_prometheus_stack": {"quay.io/thanos/thanos:v0.42.4"}}
STARTED_LATER: dict[str, set[str]] = {
    # The driver starts the mount pods with this image.
    "juicefs_csi": {"docker.io/juicedata/mount:ce-v1.4.1"},
    # The gateway fetches the plug-ins of routes.
    "higress": {f"higress-registry.cn-hangzhou.cr.aliyuncs.com/plugins/{name}:1.0.0" for name in ("key-auth", "key-rate-limit")},
}
EXTRA_VARIABLES: dict[str, dict[str, Any]] = {
    # The chart fails without an API server that serves ServiceMonitors, and the library has no option to declare one.
    "jobset": {"jobset_monitored": False},
    # Makes roles create at least one object of each kind.
    "kube_cert_manager": {
        "kube_cert_manager_issuers": [
            {
                "metadata": {"name": "acme"},
                "spec": {"acme": {"server": "https://acme.example.com/directory", "privateKeySecretRef": {"name": "acme"}}},
            },
        ],
    },
    "kube_prometheus_stack": {
        "kube_prometheus_stack_monitors": [{"name": "own", "namespace": "jobs", "labels": {"app": "own"}, "port": "http", "path": "/own"}],
        # The role uses Ansible's lookup `fileglob`, which the inventory's view does not load.
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


# Kinds that run pods; those of Prometheus' operator have the pod's fields in their spec.
OF_THE_OPERATOR = ("Prometheus", "Alertmanager")
WORKLOADS = ("Deployment", "StatefulSet", *OF_THE_OPERATOR)


@functools.cache
def cluster() -> Cluster:
    """The topology that has every chart."""
    return load_cluster(content.topologies_dir() / "mi300x")


@functools.cache
def rendered(role: str) -> tuple[Scope, Path, dict[str, Any], tuple[dict[str, Any], ...]] | None:
    """Return a role's variables, its chart's path, the values and the rendered objects; None without the chart."""
    scope = Scope(cluster(), role, **EXTRA_VARIABLES.get(role, {}))
    path = chart_path(role, scope[f"_{role}_chart"]["name"])
    if path is None:
        return None
    values = scope[f"_{role}_values"]
    return scope, path, values, tuple(render(path, values, scope[f"{role}_release"], scope[f"{role}_namespace"]))


def chart(role: str) -> tuple[Scope, Path, dict[str, Any], tuple[dict[str, Any], ...]]:
    """Return the result of `rendered`; skip the test without the chart."""
    if not FOLDER:
        pytest.skip("PRIMUS_CHARTS_DIR is not set")
    found = rendered(role)
    if found is None:
        pytest.skip(f"PRIMUS_CHARTS_DIR has no chart of {role}")
    return found


@pytest.mark.parametrize("role", chart_roles())
def test_the_chart_has_every_value(role: str) -> None:
    """Each path of our values is in the chart's values.yaml, or in UNDOCUMENTED_VALUES."""
    _, path, values, _ = chart(role)
    unknown = set(unknown_paths(values, documented_values(path)))

    assert unknown - set(UNDOCUMENTED_VALUES.get(role, {})) == set()


@pytest.mark.parametrize("role", chart_roles())
def test_the_chart_creates_the_objects_to_wait_for(role: str) -> None:
    """The role would wait for a missing object until it times out."""
    scope, _, _, objects = chart(role)
    created = {(item["kind"], item["metadata"]["name"]) for item in objects}
    expected = {(item["kind"], name) for item in scope[f"_{role}_ready"] for name in item.get("names") or [item["name"]]}

    assert expected
    assert {item for item in expected - created if item[1] not in CREATED_LATER.get(role, set())} == set()


# Pods that run on every node, or whose place the objects of a role set.
ON_EVERY_NODE = {"kube-prometheus-stack-prometheus-node-exporter"}
# Several replicas that the chart has no budget for.
WITHOUT_BUDGET = {"higress-controller", "kubeflow-trainer-controller-manager"}


@pytest.mark.parametrize("role", [role for role in chart_roles() if role not in ("gpu_operator", "juicefs_csi")])
def test_services_run_on_infrastructure_nodes(role: str) -> None:
    """Each workload of a chart selects the hosts of kube_infra_node, so that none runs beside training jobs."""
    objects = chart(role)[-1]
    anywhere = {
        item["metadata"]["name"]
        for item in objects
        if (spec := _pod_spec(item)) is not None and spec.get("nodeSelector", {}).get("primus-bootstrap.io/infra") != "true"
    }

    assert anywhere - ON_EVERY_NODE == set()


@pytest.mark.parametrize("role", [role for role in chart_roles() if role not in ("gpu_operator", "juicefs_csi")])
def test_replicas_have_a_budget_and_spread(role: str) -> None:
    """Replicas of a workload prefer different nodes, and a drain must leave one of them."""
    objects = chart(role)[-1]
    several = [item for item in objects if item["kind"] in WORKLOADS and item["spec"].get("replicas", 1) > 1]
    together = {item["metadata"]["name"] for item in several if not _is_spread(item)}
    budgets = [item["spec"]["selector"]["matchLabels"] for item in objects if item["kind"] == "PodDisruptionBudget"]
    unprotected = {
        item["metadata"]["name"] for item in several if not any(_labels_of(item).items() >= budget.items() for budget in budgets)
    }

    assert together == set()
    assert unprotected <= WITHOUT_BUDGET


def gateway(**variables: Any) -> tuple[Scope, Mapping[str, Any], tuple[dict[str, Any], ...]]:
    """Return the variables of Higress, the pod of its gateway, and the objects of its chart."""
    path = chart("higress")[1]
    scope = Scope(cluster(), "higress", **{**EXTRA_VARIABLES["higress"], **variables})
    objects = tuple(render(path, scope["_higress_values"], "higress", "higress-system"))
    return scope, next(spec for item in objects if item["kind"] == "DaemonSet" and (spec := _pod_spec(item))), objects


# Containers for which a chart has no value.
WITHOUT_REQUESTS = {"juicefs_csi": {"csi-resizer", "liveness-probe", "node-driver-registrar"}}


@pytest.mark.parametrize("role", chart_roles())
def test_every_container_requests_processor_and_memory(role: str) -> None:
    """A pod without requests is evicted first when its node runs out of memory."""
    objects = [item for item in chart(role)[3] if item["kind"] in ("Deployment", "StatefulSet", "DaemonSet", *OF_THE_OPERATOR)]
    containers = [
        one for item in objects for one in ((_pod_spec(item) or {}).get("containers") or [{"name": item["kind"], **item["spec"]}])
    ]
    without = {one["name"] for one in containers if set((one.get("resources") or {}).get("requests") or {}) < {"cpu", "memory"}}

    assert containers
    assert without == WITHOUT_REQUESTS.get(role, set())


def test_the_gateway_has_no_rights_on_its_node() -> None:
    """It is not root, cannot become it, and has a network of its own; the node forwards two ports to it."""
    scope, pod, _ = gateway()
    context = pod["containers"][0]["securityContext"]
    ports = scope["_higress_port_objects"][0]["spec"]["template"]["spec"]["containers"][0]["ports"]

    assert "hostNetwork" not in pod
    assert (context["runAsNonRoot"], context["allowPrivilegeEscalation"], context["capabilities"]) == (True, False, {"drop": ["ALL"]})
    assert {one["hostPort"]: one["containerPort"] for one in ports} == {80: 80, 443: 443}
    assert pod["containers"][0]["readinessProbe"]
    assert {"requests", "limits"} <= set(pod["containers"][0]["resources"])


@pytest.mark.parametrize(("ports", "root"), [((8080, 8443), False), ((80, 443), True)])
def test_on_the_nodes_network_only_low_ports_need_root(ports: tuple[int, int], root: bool) -> None:  # noqa: FBT001 - parametrized
    """For network plug-ins without host ports. Then the role adds no host ports."""
    scope, pod, _ = gateway(higress_host_network=True, higress_http_port=ports[0], higress_https_port=ports[1])
    context = pod["containers"][0]["securityContext"]

    assert pod["hostNetwork"] is True
    assert (context["runAsUser"] == 0, context["allowPrivilegeEscalation"]) == (root, root)
    assert "ports" not in scope["_higress_port_objects"][0]["spec"]["template"]["spec"]["containers"][0]


def test_the_gateway_reads_no_secret_of_other_namespaces() -> None:
    """The chart's cluster role is off. The controller demands that the gateway may list those of its own namespace."""
    scope, pod, objects = gateway()
    bound = [item for item in objects if any(one["name"] == pod["serviceAccountName"] for one in item.get("subjects") or ())]
    role, binding = scope["_higress_role"]

    assert bound == []
    assert (role["kind"], role["metadata"]["namespace"], role["rules"]) == (
        "Role",
        "higress-system",
        [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}],
    )
    assert [one["name"] for one in binding["subjects"]] == [pod["serviceAccountName"]]


def test_the_chart_cannot_narrow_the_controllers_role() -> None:
    """docs/kubernetes-services.md says so. If this fails, the chart has learnt it: narrow the role, and correct the page."""
    values = {"higress-core": {"controller": {"rbac": {"create": False}}}, "global": {"watchNamespace": "higress-system"}}
    objects = render(chart("higress")[1], values, "higress", "higress-system")
    roles = [item for item in objects if item["kind"] == "ClusterRole" and item["metadata"]["name"].startswith("higress-controller")]
    given = [rule for item in roles for rule in item["rules"] if "secrets" in rule["resources"]]

    assert [set(rule["verbs"]) >= {"get", "list", "update"} for rule in given] == [True]


def test_in_a_closed_network_higress_uses_one_registry() -> None:
    """Its images and its plug-ins, which gateways fetch without containerd's mirrors, come from higress_hub; the bundle lists them."""
    scope, _, objects = gateway(higress_hub="mirror.example.com:5000", higress_console=True, higress_wasm_plugins=[])
    plugins = {item["spec"]["url"] for item in scope["_higress_objects"] if item["kind"] == "WasmPlugin"}
    images = images_of(list(objects)) | {url.removeprefix("oci://") for url in plugins}

    assert len(plugins) == 2
    assert {image.partition("/")[0] for image in images} == {"mirror.example.com:5000"}
    assert images <= scope.images()


def test_volumes_have_a_limit() -> None:
    """Prometheus deletes the oldest metrics before its volume is full, and keeps silences on a volume."""
    objects = {item["kind"]: item["spec"] for item in chart("kube_prometheus_stack")[-1] if item["kind"] in ("Prometheus", "Alertmanager")}
    prometheus = objects["Prometheus"]

    assert prometheus["storage"]["volumeClaimTemplate"]["spec"] == {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "local-path", "resources": {"requests": {"storage": "200Gi"}},
    }  # fmt: skip
    assert prometheus["retentionSize"] == "180GB"
    assert objects["Alertmanager"]["storage"]["volumeClaimTemplate"]["spec"]["storageClassName"] == "local-path"


@pytest.mark.parametrize("sentinel", ["", "primary"])
def test_harbor_without_volumes(sentinel: str) -> None:
    """With a database, Redis and a bucket of the site, no pod of Harbor but the scanner has a volume, and passwords are references."""
    path = chart("harbor")[1]
    addresses = ["s1:26379", "s2:26379"] if sentinel else ["redis.example.com:6379"]
    given = {
        "harbor_database_host": "pg.example.com", "harbor_database_password": "pg-secret", "harbor_redis_addresses": addresses,
        "harbor_redis_sentinel": sentinel, "harbor_redis_password": "redis-secret", "harbor_s3_bucket": "images",
        "harbor_outside_ca_file": "ca.crt", "harbor_trivy": False,
    }  # fmt: skip
    scope = Scope(cluster(), "harbor", **given)
    objects = render(path, scope["_harbor_values"], "harbor", "harbor")
    names = {(item["kind"], item["metadata"]["name"]) for item in objects}
    text = json.dumps(objects)

    assert {kind for kind, _ in names} & {"PersistentVolumeClaim", "StatefulSet"} == set()
    assert {(item["kind"], item["name"]) for item in scope["_harbor_ready"]} <= names
    assert "pg.example.com" in text
    # The chart reads the password of Redis from the cluster, which does not exist here.
    assert all(name in text for name in ("harbor-database", "harbor-outside-ca", *addresses))
    assert not any(secret in text for secret in ("pg-secret", "redis-secret"))
    assert scope.images() >= images_of(objects)
    unknown = set(unknown_paths(scope["_harbor_values"], documented_values(path)))
    # In comments of values.yaml.
    bucket = {f"persistence.imageChartStorage.s3.{name}" for name in ("existingSecret", "regionendpoint")}
    assert unknown - bucket == {name for name in UNDOCUMENTED_VALUES["harbor"] if ".internal." not in name}


def _pod_spec(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the pod's part of a workload, None for other objects and tests of a chart."""
    if item["kind"] not in (*WORKLOADS, "DaemonSet", "Job") or is_test(item):
        return None
    spec: Mapping[str, Any] = item["spec"]
    return spec if item["kind"] in OF_THE_OPERATOR else spec["template"]["spec"]


def _is_spread(item: Mapping[str, Any]) -> bool:
    """Return whether the replicas of a workload prefer different nodes."""
    spec = _pod_spec(item) or {}
    return bool(spec.get("topologySpreadConstraints") or spec.get("affinity", {}).get("podAntiAffinity"))


def _labels_of(item: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels of a workload's pods. The operator of Prometheus sets those of its pods."""
    if item["kind"] in OF_THE_OPERATOR:
        return {"app.kubernetes.io/name": item["kind"].lower(), item["kind"].lower(): item["metadata"]["name"]} | {
            "operator.prometheus.io/name": item["metadata"]["name"]
        }
    labels: Mapping[str, str] = item["spec"]["template"]["metadata"]["labels"]
    return labels


@functools.cache
def definitions() -> Definitions:
    """Return the definitions of all charts. A role may create objects of kinds that another role's chart defines."""
    return Definitions([item for role in chart_roles() for item in (rendered(role) or ((),))[-1]])


def validate_objects(objects: Iterable[Mapping[str, Any]]) -> None:
    """Validate objects against the definitions. A kind without a definition is an error if all charts exist; else skip."""
    problems = {problem for item in objects for problem in definitions().problems(item)}
    undefined = {problem for problem in problems if problem.endswith(UNDEFINED)}
    missing = [role for role in chart_roles() if not rendered(role)]

    assert problems - (undefined if missing else set()) == set()
    if undefined:
        pytest.skip(f"not checked without the charts of {', '.join(missing)}: {'; '.join(sorted(undefined))}")


@pytest.mark.parametrize("role", chart_roles())
def test_custom_resources_match_their_definitions(role: str) -> None:
    """Objects of the chart and of the role are valid by the definitions of all charts."""
    scope, _, _, objects = chart(role)

    validate_objects([*objects, *scope.applied_objects()])


def test_objects_of_roles_are_found() -> None:
    """The validated objects include each custom kind that the roles create."""
    if not FOLDER:
        pytest.skip("PRIMUS_CHARTS_DIR is not set")
    kinds = {item["kind"] for role in chart_roles() if (found := rendered(role)) for item in found[0].applied_objects()}

    assert kinds >= {
        "Certificate", "ClusterIssuer", "ClusterQueue", "ClusterTrainingRuntime", "Cohort", "JobSet", "LocalQueue", "PodMonitor",
        "PrometheusRule", "ResourceFlavor", "Topology", "WasmPlugin", "WorkloadPriorityClass",
    }  # fmt: skip


@pytest.mark.parametrize("form", [JOBSET, TRAINJOB])
@pytest.mark.parametrize("claim", ["", "train"])
def test_training_jobs_match_their_definitions(form: str, claim: str) -> None:
    """The objects of an attempt, including pods, are valid by the definitions of JobSet and Trainer."""
    if not FOLDER:
        pytest.skip("PRIMUS_CHARTS_DIR is not set")
    pods = {
        "image": "registry.example.com/train:1", "namespace": "jobs", "claim": claim, "host_network": not claim,
        "queue": "training" if claim else "", "priority": "high", "topology": "primus-bootstrap.io/rack",
        "resources": {"amd.com/gpu": "8", "cpu": "90"}, "node_selector": {"disk": "nvme"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}], "pull_secrets": ["pull"], "secrets": ["tracker"], "spares": ["gpu063"],
    }  # fmt: skip
    job = {
        "schema": "primus.job/1", "id": "try-0a1b2c", "name": "try", "user": "ada", "target": "kubernetes", "nodes": 2, "words": ["train"],
    }  # fmt: skip
    start = Start(
        read_job(json.dumps({**job, "kubernetes": pods}), origin="job.json"), 3, ("train",), PodUser(5001, 5001, (44,)), ("gpu007",)
    )

    validate_objects([item for _, item in attempt(start, form)])


@pytest.mark.parametrize("role", chart_roles())
def test_fetches_list_the_images_of_the_chart(role: str) -> None:
    """meta/fetches.yml lists the images that run, each with a tag or a digest."""
    scope, _, _, objects = chart(role)
    used = images_of([item for item in objects if not is_test(item)])
    listed = scope.images()

    assert listed - STARTED_LATER.get(role, set()) == used - NOT_STARTED.get(role, set())
    assert {image for image in listed if ":" not in image.rpartition("/")[2] or image.endswith(":latest")} == set()
