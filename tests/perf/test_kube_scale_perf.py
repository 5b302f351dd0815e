"""Measures labels, taints, quarantines, health and gang placement on 12,500 Nodes with a real API server and scheduler.

There is no kubelet: Nodes are only registered, and pods are bound but never run. `PRIMUS_PERF_NODES=1000` uses fewer Nodes.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.kubernetes.api import PAGE, Server
from primus_bootstrap.kubernetes.node_label_run import desired_nodes, update_nodes
from primus_bootstrap.kubernetes.node_labels import RACK
from primus_bootstrap.kubernetes.node_quarantine import lift_quarantines, set_quarantines
from primus_bootstrap.launch.watch import job_folder as folders
from primus_bootstrap.launch.watch.job_state import Attempt, State
from primus_bootstrap.launch.watch.kube_api import Api as WatchApi
from primus_bootstrap.launch.watch.kube_cluster import JobObjects
from primus_bootstrap.launch.watch.targets.kubernetes import KubernetesTarget
from tests.kubernetes.api_server import ApiServer, down, restart_scheduler, up
from tests.kubernetes.binaries import CannotError
from tests.kubernetes.fake_nodes import register_nodes
from tests.kubernetes.rest import Api, in_parallel
from tests.playbooks import run_playbook
from tests.unit.kube_health_rig import health_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.perf, pytest.mark.timeout(3600)]

NODES, PER_RACK, PER_SWITCH = int(os.environ.get("PRIMUS_PERF_NODES", "12500")), 16, 128
PAGES = -(-NODES // PAGE)
# Every twentieth host: 5 % of the hosts, in almost every rack.
BURST = tuple(f"gpu{number:05}" for number in range(0, NODES, 20))
GANGS, GANG = 3, 64
LIMIT_S = 900.0
STALE_S = 7200.0
TAINT = "amd.com/gpu=present:NoSchedule"
RECORD = {"owner": "primus-bench", "reason": "bench pending", "time": 1000.0}
BREAKER = "/api/v1/namespaces/kube-system/configmaps/primus-health-breaker"
# Prevents taints and annotations of new Nodes, as on Nodes that exist for a long time.
SERVER_OPTIONS = {
    "kube-apiserver": ("--disable-admission-plugins=TaintNodesByCondition",),
    "kube-controller-manager": ("--controllers=-ttl", "--kube-api-qps=2000", "--kube-api-burst=4000"),
}


class CountingServer(Server):
    """Counts requests by method."""

    def __init__(self, kubeconfig: Path) -> None:
        """Start with no requests."""
        super().__init__(kubeconfig)
        self.requests: Counter[str] = Counter()

    def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        self.requests[method] += 1
        return super()._request(method, path, **options)


class Fleet(NamedTuple):
    """A server with all Nodes, their hosts.yaml, and the variables of each host."""

    server: ApiServer
    api: Api
    hosts: dict[str, dict[str, Any]]
    hosts_yaml: Path


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A separate server with healthy Nodes in racks of 16, without labels of this project."""
    folder = tmp_path_factory.mktemp("scale")
    try:
        server = up(folder / "kubernetes", more=SERVER_OPTIONS)
    except CannotError as error:
        pytest.skip(str(error))
    try:
        api = Api(server.kubeconfig)
        hosts = {
            f"gpu{number:05}": {
                "rack": f"r{number // PER_RACK:04}",
                "slurm_switch": f"leaf{number // PER_SWITCH:03}",
                "node_taints": [TAINT],
            }
            for number in range(NODES)
        }
        started = time.monotonic()
        legacy = {"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64"}  # otherwise a controller adds them
        register_nodes(api, dict.fromkeys(hosts, legacy), conditions=[_condition("pass")])
        print(f"\n{NODES:,} Nodes on one API server, registered in {time.monotonic() - started:.1f} s", end="")
        variables = {"cluster_name": "large", "kubernetes_provider": "existing", "kubernetes_kubeconfig": str(server.kubeconfig)}
        groups = {"kube_control_plane": {"hosts": {"gpu00000": None}}, "kube_node": {"hosts": hosts}}
        children = {**groups, "k8s_cluster": {"children": dict.fromkeys(groups)}}
        file = folder / "hosts.yaml"
        file.write_text(json.dumps({"all": {"vars": variables, "children": children}}))
        yield Fleet(server, api, hosts, file)
    finally:
        down(folder / "kubernetes")


def timed(label: str, action: Callable[[], Any]) -> Any:
    """Run an action, print its times as a row of the table, and return its result. The action's own output is discarded."""
    started, before = time.monotonic(), _cpu_s()
    with redirect_stdout(StringIO()):
        result = action()
    times = f"{time.monotonic() - started:7.1f} s, {_cpu_s() - before:6.1f} s of processor time"
    print(f"\n  {label:<44} {times}", end="", flush=True)
    return result


def _cpu_s() -> float:
    """Return the processor seconds of this process and of Ansible, without the server."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def play(fleet: Fleet) -> str:
    """Run the playbook for Nodes with plain Ansible; return its output."""
    done = run_playbook(fleet.hosts_yaml, "kubernetes/nodes.yml", timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_labels_and_taints_of_all_nodes(fleet: Fleet) -> None:
    """The first play sets rack, switch and taint of every Node. The second changes nothing and only lists the Nodes."""
    first = timed("labels and taints of all, by the playbook", lambda: play(fleet))
    second = timed("the same with no difference", lambda: play(fleet))
    server = CountingServer(fleet.server.kubeconfig)
    outcome = timed("the requests alone", lambda: update_nodes(server, desired_nodes(fleet.hosts)))
    node = fleet.api.get(f"/api/v1/nodes/{BURST[-1]}")

    assert ("changed=1 " in first, "changed=0 " in second) == (True, True), first + second
    assert (outcome.changed, outcome.absent, dict(server.requests)) == ((), (), {"GET": PAGES})
    assert node["metadata"]["labels"][RACK] == fleet.hosts[BURST[-1]]["rack"]
    assert node["spec"]["taints"] == [{"key": "amd.com/gpu", "value": "present", "effect": "NoSchedule"}]


def test_a_burst_of_quarantines(fleet: Fleet) -> None:
    """Quarantine of 5 % of the Nodes takes one list and one patch per Node. Repeating it changes nothing."""
    server = CountingServer(fleet.server.kubeconfig)
    records = {name: {**RECORD, "host": name} for name in BURST}
    changed = timed(f"quarantine of {len(BURST):,} (5 %)", lambda: set_quarantines(server, records))
    requests = dict(server.requests)
    cordoned = _cordoned(fleet)
    repeated = timed("the same with no difference", lambda: set_quarantines(server, records))
    released = timed("their release", lambda: lift_quarantines(server, BURST, owner="primus-bench"))

    assert (changed, cordoned, repeated, released) == ([*BURST], {*BURST}, [], [*BURST])
    assert requests["GET"] <= PAGES + len(BURST) // 10, requests
    assert requests["PATCH"] <= len(BURST) * 11 // 10, requests
    assert _cordoned(fleet) == set()


def test_a_burst_of_failed_health_and_the_breaker(fleet: Fleet) -> None:
    """5 % fail. With a limit of 4 % the breaker opens; with the role's limit all are cordoned, and released when they pass."""
    config = {"holder": "cp1", "interval_s": 600, "stale_s": STALE_S, "limit_percent": 4}
    authority = yaml.safe_load(fleet.server.kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority-data"]
    token = _administrator(fleet.api)
    _report_health(fleet.api, "fail")
    with health_programs() as load:
        evaluate = load("evaluate_health").evaluate
        server = load("api_request").Server({"server": fleet.server.url, "certificate-authority-data": authority}, token)

        def run(label: str) -> dict[str, Any]:
            return dict(timed(f"health: {label}", lambda: evaluate(server, config, time.time())))

        stopped = run(f"{len(BURST):,} fail, the breaker opens")
        fleet.api.delete(BREAKER)
        config["limit_percent"] = yaml.safe_load((content.roles_dir() / "kube_health/defaults/main.yml").read_text())[
            "kube_health_limit_percent"
        ]
        cordoned = run("below the limit, all are taken out")
        unchanged = run("the same with no difference")
        time.sleep(1.1)  # reports have times in whole seconds, and the pass must be newer
        _report_health(fleet.api, "pass")
        passed = run("all pass and return")

    assert (stopped["marked"], f"{len(BURST)} of {NODES} Nodes fail at once" in stopped["breaker"]["reason"]) == ([], True)
    assert (cordoned["marked"], unchanged["marked"], passed["released"]) == ([*BURST], [], [*BURST])
    assert _cordoned(fleet) == set()


def test_gangs_of_64_by_rack(fleet: Fleet, tmp_path: Path) -> None:
    """With every twentieth host in quarantine, a scheduler that scores all Nodes places a gang in few racks."""
    server = Server(fleet.server.kubeconfig)
    update_nodes(server, desired_nodes(fleet.hosts))
    set_quarantines(server, {name: {**RECORD, "host": name} for name in BURST})
    free = Counter(variables["rack"] for host, variables in fleet.hosts.items() if host not in BURST)
    fewest = _fewest(free)
    racks = {}
    rounds = (("no topology", "", 0), ("rack preferred, default scheduler", RACK, 0), ("rack preferred, all Nodes scored", RACK, 100))
    print(
        f"\n  {GANGS} gangs of {GANG} pods on {NODES:,} Nodes, {len(BURST):,} of them in quarantine; minimum of racks per gang: {fewest}",
        end="",
    )
    for number, (label, topology, percent) in enumerate(rounds):
        if percent:
            restart_scheduler(fleet.server, score_percent=percent)
        placed, seconds = _place(fleet, tmp_path / str(number), f"gangs-{number}", topology)
        assert max(Counter(node for nodes in placed for node in nodes).values()) == 1
        assert not {node for nodes in placed for node in nodes} & {*BURST}
        racks[label] = [len({fleet.hosts[node]["rack"] for node in nodes}) for nodes in placed]
        print(
            f"\n  {label:<34} racks per gang {racks[label]!s:<14} bound after {seconds:6.1f} s, {GANGS * GANG / seconds:5.1f} pods/s",
            end="",
            flush=True,
        )
    timed("quarantines lifted", lambda: lift_quarantines(server, BURST))

    scored, default = racks["rack preferred, all Nodes scored"], racks["rack preferred, default scheduler"]
    assert max(scored) <= 2 * fewest
    assert sum(scored) <= sum(default)


def _place(fleet: Fleet, folder: Path, namespace: str, topology: str) -> tuple[list[list[str]], float]:
    """Start all gangs at once and remove them; return the Nodes of each, and the seconds until all were bound."""
    folder.mkdir()
    fleet.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    _until(lambda: any(account.get("secrets") for account in fleet.api.items(f"/api/v1/namespaces/{namespace}/serviceaccounts")))
    pods = f"/api/v1/namespaces/{namespace}/pods"
    gangs = [_gang(fleet, folder, namespace, topology, number) for number in range(GANGS)]
    started = time.monotonic()
    with ThreadPoolExecutor(GANGS) as pool:
        list(pool.map(_start, gangs))
    _until(lambda: sum(bool(pod["spec"].get("nodeName")) for pod in fleet.api.items(pods)) == GANGS * GANG)
    seconds = time.monotonic() - started
    placed = [[host.name for host in target.observe(state).hosts] for target, state in gangs]
    with ThreadPoolExecutor(GANGS) as pool:
        list(pool.map(lambda gang: gang[0].stop(gang[1], force=False), gangs))
    # Without a kubelet, pods end only with a grace period of 0.
    _until(lambda: fleet.api.delete(pods, gracePeriodSeconds="0") and not fleet.api.items(pods))
    assert [len(nodes) for nodes in placed] == [GANG] * GANGS
    return placed, seconds


def _gang(fleet: Fleet, folder: Path, namespace: str, topology: str, number: int) -> tuple[KubernetesTarget, State]:
    pods = {
        "image": "localhost/none:1", "namespace": namespace, "topology": topology,
        "resources": {"amd.com/gpu": "8"},
    }  # fmt: skip
    job = {
        "schema": "primus.job/1", "id": f"gang{number}-0a1b2c", "name": f"gang{number}", "user": "root", "target": "kubernetes",
        "nodes": GANG, "words": ["train"], "kubernetes": pods,
    }  # fmt: skip
    job_folder, _ = folders.create(folder, json.dumps(job))
    state = State(job["id"], "starting", attempt=1, attempts=(Attempt(1, started=time.time()),))  # type: ignore[arg-type]
    return KubernetesTarget(job_folder.job(), job_folder, JobObjects(WatchApi(fleet.server.kubeconfig), job["id"], namespace)), state  # type: ignore[arg-type]


def _start(gang: tuple[KubernetesTarget, State]) -> None:
    """Start a gang, and repeat it if the server does not answer, like the watcher."""
    target, state = gang

    def started() -> bool:
        target.start(state)
        return not target.refused

    _until(started)


def _fewest(free: Counter[str]) -> int:
    """Return the smallest number of racks with room for a gang."""
    room, racks = 0, 0
    while room < GANG:
        room, racks = room + free.most_common()[racks][1], racks + 1
    return racks


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"the condition is still false after {LIMIT_S:.0f} s"
        time.sleep(0.5)


def _cordoned(fleet: Fleet) -> set[str]:
    return {node["metadata"]["name"] for node in fleet.api.items("/api/v1/nodes") if node["spec"].get("unschedulable")}


def _condition(verdict: str) -> dict[str, Any]:
    """Return the condition that a node reports for a verdict."""
    with health_programs() as load:
        health = load("health_gate").Reading(verdict, "" if verdict == "pass" else "disk: full", time.time())
        return dict(load("report_health").condition(health, {}, time.time()))


def _report_health(api: Api, verdict: str) -> None:
    body = {"status": {"conditions": [_condition(verdict)]}}
    in_parallel(lambda name: api.patch(f"/api/v1/nodes/{name}/status", body, "strategic"), BURST)


def _administrator(api: Api) -> str:
    """Return the token of an administrator. Other tests check the rights of the role's accounts."""
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "kube-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    api.create(bindings, {"metadata": {"name": "perf"}, "roleRef": role, "subjects": [subject]})
    (secret,) = api.get("/api/v1/namespaces/kube-system/serviceaccounts/default")["secrets"]
    return base64.b64decode(api.get(f"/api/v1/namespaces/kube-system/secrets/{secret['name']}")["data"]["token"]).decode()
