"""Test the queues of hosts.yaml on a real API server."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.kubernetes.fake_kubelet import running_pods
from tests.kubernetes.fake_nodes import register_nodes
from tests.kubernetes.queues_rig import CHARTS, GROUP, PLURALS, definition, play, real_definition, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kubernetes.api_server import ApiServer
    from tests.kubernetes.rest import Api

OURS = [kind for kind in PLURALS if kind != "Workload"]

LONG = pytest.mark.long("roles/kueue", "tests/kubernetes/charts")


def seen(api: Api, kind: str) -> list[dict[str, Any]]:
    """Return the objects of one of Kueue's kinds."""
    return api.items(f"/apis/{GROUP}/v1beta2/{PLURALS[kind]}")


def verdicts(text: str) -> list[dict[str, Any]]:
    """Return the records of a failed check."""
    [output] = re.findall(r'"msg": ("\{\\"verdicts.*")$', text, re.MULTILINE)
    found: list[dict[str, Any]] = json.loads(json.loads(output))["verdicts"]
    return found


@pytest.fixture
def clean(api: Api) -> Iterator[None]:
    """Remove Kueue's kinds with their objects, and the Nodes, after a test."""
    yield
    for kind in PLURALS:
        api.delete(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURALS[kind]}.{GROUP}")
    for one in ("nodes/gpu1", "nodes/gpu2", "namespaces/kueue-system", "namespaces/team-a"):
        api.delete(f"/api/v1/{one}")


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    "real",
    [
        pytest.param(False, id="own-definitions"),
        pytest.param(
            True,
            id="kueues-definitions",
            marks=pytest.mark.skipif(not CHARTS, reason="PRIMUS_CHARTS_DIR is not set: Kueue's own definitions were not tried"),
        ),
    ],
)
@LONG
def test_queues_are_applied_once_and_checked(api: Api, api_server: ApiServer, tmp_path: Path, real: bool) -> None:  # noqa: FBT001
    """Every object and field is stored, a second run changes nothing, immutable changes are refused, and Nodes are checked."""
    # Pods are embedded in workloads, with defaults that this server does not take.
    kinds = [real_definition(kind) if real and kind != "Workload" else definition(kind) for kind in PLURALS]
    labels = {"primus-bootstrap.io/gpu-model": "MI300X", "primus-bootstrap.io/rack": "r1"}
    register_nodes(api, {"gpu1": labels, "gpu2": {"primus-bootstrap.io/gpu-model": "MI300X"}}, gpus=8)
    write(tmp_path, api_server.kubeconfig, kinds)
    with running_pods(api):
        first = play(tmp_path, "scheduling/jobs.yml", "kueue")
        assert first.returncode == 0, first.stdout[-3000:]
        second = play(tmp_path, "scheduling/jobs.yml", "kueue")
        judged = play(tmp_path, "verify/kubernetes_jobs.yml", "kueue")

    assert {kind: len(seen(api, kind)) for kind in OURS} == {
        "Topology": 1, "ResourceFlavor": 1, "Cohort": 1, "ClusterQueue": 2, "LocalQueue": 1, "WorkloadPriorityClass": 1,
    }  # fmt: skip
    [training] = [one for one in seen(api, "ClusterQueue") if one["metadata"]["name"] == "training"]
    quota = training["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
    assert quota == {"name": "amd.com/gpu", "nominalQuota": "12", "borrowingLimit": "4"}
    assert re.search(r"changed=0 .*failed=0", second.stdout), second.stdout[-3000:]
    # No controller of Kueue runs: its queues say nothing. gpu2 has no rack.
    words = {(one["check"], one["device"]): one["verdict"] for one in verdicts(judged.stdout)}
    assert words["kueue.queue", "ClusterQueue training"] == "unknown"
    assert words["kueue.quota", "mi300x amd.com/gpu"] == "pass"
    assert words["kueue.topology", "mi300x"] == "fail"

    write(tmp_path, api_server.kubeconfig, kinds, kueue_topology_levels=["primus-bootstrap.io/switch"])
    refused = play(tmp_path, "scheduling/jobs.yml", "kueue")

    assert refused.returncode != 0
    assert "Topology default: levels cannot be changed" in refused.stdout
    assert seen(api, "Topology")[0]["spec"]["levels"][0] == {"nodeLabel": "primus-bootstrap.io/rack"}
