"""Test quarantine, health breaker and drain of Nodes on a real API server."""

from __future__ import annotations

import base64
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.core.errors import RunError
from primus_bootstrap.kubernetes import node_quarantine
from primus_bootstrap.kubernetes.api import Server
from primus_bootstrap.kubernetes.drain import Drain, DrainOptions, delete_node
from primus_bootstrap.kubernetes.node_states import state_of
from tests.kubernetes.fake_kubelet import running_pods
from tests.kubernetes.fake_nodes import register_nodes
from tests.kubernetes.rest import in_parallel
from tests.playbooks import run_playbook
from tests.unit.kube_health_rig import health_programs
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kubernetes.api_server import ApiServer
    from tests.kubernetes.rest import Api

RECORD = {"host": "kq-gpu1", "owner": "primus-bench", "reason": "bench pending", "time": 1000.0}
DRAINED = {"host": "kq-gpu1", "owner": "primus-bootstrap", "reason": "reboot", "time": 1}
BREAKER = "/api/v1/namespaces/kube-system/configmaps/primus-health-breaker"
FLEET = 100


def node(api: Api, name: str) -> dict[str, Any]:
    """Return a Node."""
    return api.get(f"/api/v1/nodes/{name}")


@pytest.fixture
def nodes(api: Api) -> Iterator[None]:
    """A control plane and two nodes that the controllers have seen."""
    names = ("kq-cp1", "kq-gpu1", "kq-gpu2")
    register_nodes(api, {name: {"kq": "yes"} for name in names})
    until(lambda: not any(node(api, name)["spec"].get("taints") for name in names))
    yield
    for name in names:
        api_names = {one["metadata"]["name"] for one in api.items("/api/v1/nodes")}
        if name in api_names:
            api.delete(f"/api/v1/nodes/{name}")


@pytest.fixture
def hosts(tmp_path: Path, api_server: ApiServer) -> Path:
    """A hosts.yaml of an existing cluster whose hosts do not answer over SSH."""
    variables = {
        "cluster_name": "small", "kubernetes_provider": "existing", "kubernetes_kubeconfig": str(api_server.kubeconfig),
        "ansible_host": "127.0.0.1", "ansible_port": 9,
    }  # fmt: skip
    children = {"kube_control_plane": {"hosts": {"kq-cp1": None}}, "kube_node": {"hosts": {"kq-gpu1": None, "kq-gpu2": None}}}
    groups = {**children, "k8s_cluster": {"children": dict.fromkeys(children)}, "gpu_node": {"hosts": {"kq-gpu1": None}}}
    file = tmp_path / "hosts.yaml"
    file.write_text(yaml.safe_dump({"all": {"vars": variables, "children": groups}}))
    return file


def play(hosts: Path, playbook: Path, *words: str) -> tuple[int, str, int]:
    """Run a playbook with plain Ansible; return its exit code, output and number of changed tasks."""
    done = run_playbook(hosts, playbook, *words)
    output = done.stdout + done.stderr
    return done.returncode, output, sum(map(int, re.findall(r"changed=(\d+)", output)))


@pytest.mark.usefixtures("nodes")
def test_dead_host_is_quarantined_on_its_node(hosts: Path, api: Api) -> None:
    """A second run changes nothing, another owner is refused, and a release needs a health record."""
    quarantine, release = (content.playbooks_dir() / "day2" / name for name in ("quarantine_node.yml", "release_node.yml"))
    ours = ("-e", "node=kq-gpu1", "-e", "quarantine_owner=ada", "-e", "quarantine_reason='fan broken'")
    first, again = play(hosts, quarantine, *ours), play(hosts, quarantine, *ours)
    theirs = play(hosts, quarantine, *ours, "-e", "quarantine_owner=bob")
    early = play(hosts, release, "-e", "node=kq-gpu1", "-e", "quarantine_owner=ada")
    found = node(api, "kq-gpu1")

    assert first[0] == 0, first[1]
    assert (first[2], again[2]) == (1, 0)
    assert "kq-gpu1 is quarantined by ada already: fan broken" in theirs[1]
    assert "kq-gpu1 does not answer, so its health is unknown" in early[1]
    assert (state_of(found).state, state_of(found).reason) == ("cordoned", "quarantine: fan broken (ada)")
    assert {"key": "primus-bootstrap.io/quarantine", "effect": "NoSchedule"} in found["spec"]["taints"]
    assert state_of(node(api, "kq-gpu2")).state == "ready"


@pytest.mark.usefixtures("nodes")
def test_foreign_cordon_stays(api_server: ApiServer, api: Api) -> None:
    """A Node that a person cordoned stays cordoned after its bench; another one is uncordoned."""
    server = Server(api_server.kubeconfig)
    api_server.kubectl("cordon", "kq-gpu2")
    records = {name: {**RECORD, "host": name} for name in ("kq-gpu1", "kq-gpu2")}

    assert node_quarantine.set_quarantines(server, records) == ["kq-gpu1", "kq-gpu2"]
    assert node_quarantine.set_quarantines(server, records) == []
    until(lambda: len(node(api, "kq-gpu1")["spec"]["taints"]) == 2)  # Kubernetes' own for a cordon beside ours
    assert node_quarantine.lift_quarantines(server, list(records), owner="primus-bench") == ["kq-gpu1", "kq-gpu2"]
    until(lambda: not node(api, "kq-gpu1")["spec"].get("taints"))
    assert "unschedulable" not in node(api, "kq-gpu1")["spec"]
    assert state_of(node(api, "kq-gpu2")).state == "cordoned by somebody else"
    assert [taint["key"] for taint in node(api, "kq-gpu2")["spec"]["taints"]] == ["node.kubernetes.io/unschedulable"]


def token_of(hosts: Path, api: Api) -> str:
    """Create the service account with the role twice, and return its token."""
    playbook = hosts.parent / "account.yml"
    entry = {"ansible.builtin.import_role": {"name": "kube_health", "tasks_from": "account"}}
    local = [str(content.playbooks_dir() / "vars/kubernetes.yml")]
    variables = {"kube_health_kubeconfig": "{{ _kube_kubeconfig }}"}
    words = {"hosts": "kq-cp1", "gather_facts": False, "vars_files": local, "vars": variables, "tasks": [entry]}
    playbook.write_text(yaml.safe_dump([words]))
    first, second = play(hosts, playbook), play(hosts, playbook)
    assert first[0] == 0, first[1]
    assert second[2] == 0
    secret = api.get("/api/v1/namespaces/kube-system/secrets/primus-health-token")
    token = base64.b64decode(secret["data"]["token"]).decode()
    assert token not in first[1]
    return token


def say_health(api: Api, names: list[str], verdict: str) -> None:
    """Report the health of Nodes with their kubelets' credentials."""
    with health_programs() as load:
        report = load("report_health")
        reading = load("health_gate").Reading(verdict, "" if verdict == "pass" else "disk: full", time.time())
        condition = report.condition(reading, {}, time.time())
    in_parallel(lambda name: api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}}, "strategic"), names)


def test_breaker_stops_a_burst_of_failures(hosts: Path, api_server: ApiServer, api: Api) -> None:
    """5 of 100 failures exceed the limit of 4 %: no Node is marked. With a higher limit all five are marked, and recover."""
    names = [f"kh-{number:03d}" for number in range(FLEET)]
    register_nodes(api, {name: {} for name in names}, gpus=0)
    until(lambda: not any(node(api, name)["spec"].get("taints") for name in names))
    ill = names[:5]
    config = {"holder": "cp1", "interval_s": 60, "stale_s": 900, "limit_percent": 4}
    authority = yaml.safe_load(api_server.kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority-data"]
    token = token_of(hosts, api)
    try:
        api_server.kubectl("cordon", ill[0])
        say_health(api, names[5:], "pass")
        say_health(api, ill, "fail")
        with health_programs() as load:
            request, evaluate = load("api_request"), load("evaluate_health").evaluate
            server = request.Server({"server": api_server.url, "certificate-authority-data": authority}, token)
            held = evaluate(server, config, time.time())
            still = evaluate(server, config, time.time())
            with pytest.raises(request.RequestError, match="403"):
                server.ask("DELETE", BREAKER)
            assert not evaluate(server, {**config, "holder": "cp2"}, time.time())["active"]
            assert "5 of 100 Nodes fail at once" in held["breaker"]["reason"]
            assert [held["marked"], still["marked"]] == [[], []]
            assert [state_of(node(api, name)).state for name in ill] == ["cordoned by somebody else", *["ready"] * 4]
            api.delete(BREAKER)
            config["limit_percent"] = 5
            gone = evaluate(server, config, time.time())
            assert gone["marked"] == ill
            assert evaluate(server, config, time.time())["marked"] == []
            assert state_of(node(api, ill[1])).reason == "health: disk: full (primus-health)"
            time.sleep(1.1)  # a report's time is in whole seconds, and the pass has to be newer
            say_health(api, ill, "pass")
            assert evaluate(server, config, time.time())["released"] == ill
        states = [state_of(node(api, name)).state for name in ill]
        assert states == ["cordoned by somebody else", *["ready"] * 4]
    finally:
        in_parallel(lambda name: api.delete(f"/api/v1/nodes/{name}"), names)
        api_server.kubectl("-n", "kube-system", "delete", "--ignore-not-found", "configmap/primus-health-breaker", "lease/primus-health")


def start_web(api: Api, namespace: str, least: int) -> None:
    """Start two replicas with a disruption budget."""
    labels = {"app": "web"}
    spec = {"terminationGracePeriodSeconds": 1, "nodeSelector": {"kq": "yes"}, "containers": [{"name": "x", "image": "x"}]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    body = {"metadata": {"name": "web"}, "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}}
    api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", body)
    budget = {"metadata": {"name": "web"}, "spec": {"minAvailable": least, "selector": {"matchLabels": labels}}}
    api.create(f"/apis/policy/v1beta1/namespaces/{namespace}/poddisruptionbudgets", budget)


def drain(api_server: ApiServer, *, evict_s: float, force: bool = False) -> bool:
    """Drain kq-gpu1."""
    return Drain(Server(api_server.kubeconfig), "kq-gpu1", DrainOptions(0, evict_s, force=force)).run(DRAINED)


@pytest.mark.usefixtures("nodes")
def test_drain_respects_budgets(api_server: ApiServer, api: Api, namespace: str) -> None:
    """A blocking budget is reported; otherwise pods move one by one. A pod without a controller needs force."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    api_server.kubectl("cordon", "kq-gpu2")
    api_server.kubectl("cordon", "kq-cp1")
    until(lambda: api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts")["items"])

    def on(name: str) -> int:
        return sum(one["spec"].get("nodeName") == name and one["status"]["phase"] == "Running" for one in api.items(pods))

    budget = f"/apis/policy/v1beta1/namespaces/{namespace}/poddisruptionbudgets/web"
    with running_pods(api):
        start_web(api, namespace, 2)
        until(lambda: on("kq-gpu1") == 2)
        api_server.kubectl("uncordon", "kq-gpu2")
        until(lambda: api.get(budget).get("status", {}).get("currentHealthy") == 2)
        with pytest.raises(
            RunError, match=r"after 3 s: .*/web-.* \(a disruption budget forbids the eviction: The disruption budget web needs 2"
        ):
            drain(api_server, evict_s=3)
        assert on("kq-gpu1") == 2
        api.patch(budget, {"spec": {"minAvailable": 1}})
        until(lambda: api.get(budget)["status"].get("disruptionsAllowed") == 1)
        assert drain(api_server, evict_s=60)
        assert on("kq-gpu1") == 0
        until(lambda: on("kq-gpu2") == 2)
        assert not drain(api_server, evict_s=10)
        lone = {"nodeName": "kq-gpu1", "terminationGracePeriodSeconds": 1, "containers": [{"name": "x", "image": "x"}]}
        api.create(pods, {"metadata": {"name": "lone"}, "spec": lone})
        until(lambda: on("kq-gpu1") == 1)
        with pytest.raises(RunError, match=r"pods without a controller, which nothing would restart: .*/lone"):
            drain(api_server, evict_s=10)
        assert drain(api_server, evict_s=30, force=True)
        assert on("kq-gpu1") == 0
    assert delete_node(Server(api_server.kubeconfig), "kq-gpu1")
    assert not delete_node(Server(api_server.kubeconfig), "kq-gpu1")
