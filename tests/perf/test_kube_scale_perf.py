"""12,500 Nodes on a real API server: labels and taints, a burst of quarantines, and gangs of 64 placed by rack by the real scheduler.

Nodes are registered and no more, and pods are bound and never run: what is measured is the server, its scheduler and what we ask of them.
`PRIMUS_PERF_NODES=1000` asks the same of fewer Nodes.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
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
from tests.unit.kube_health_rig import health_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.perf, pytest.mark.timeout(3600)]

NODES, PER_RACK, PER_SWITCH = int(os.environ.get("PRIMUS_PERF_NODES", "12500")), 16, 128
PAGES = -(-NODES // PAGE)
# Every twentieth host: five in a hundred, and hardly a rack that is whole.
BURST = tuple(f"gpu{number:05}" for number in range(0, NODES, 20))
GANGS, GANG = 3, 64
LIMIT_S = 900.0
STALE_S = 7200.0
TAINT = "amd.com/gpu=present:NoSchedule"
RECORD = {"owner": "primus-bench", "reason": "bench pending", "time": 1000.0}
BREAKER = "/api/v1/namespaces/kube-system/configmaps/primus-health-breaker"
# Nodes that have been there for long: without the taint that controllers take off a new one, and the notes that they write on it.
SETTLED = {
    "kube-apiserver": ("--disable-admission-plugins=TaintNodesByCondition",),
    "kube-controller-manager": ("--controllers=-ttl", "--kube-api-qps=2000", "--kube-api-burst=4000"),
}


class Counting(Server):
    """Counts what is asked, by method."""

    def __init__(self, kubeconfig: Path) -> None:
        """Begin at nothing."""
        super().__init__(kubeconfig)
        self.asked: Counter[str] = Counter()

    def _ask(self, method: str, path: str, **words: Any) -> dict[str, Any]:
        self.asked[method] += 1
        return super()._ask(method, path, **words)


class Fleet(NamedTuple):
    """A server with every Node registered and the hosts.yaml of them, each host's variables by its name."""

    server: ApiServer
    api: Api
    hosts: dict[str, dict[str, Any]]
    hosts_yaml: Path


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A server of our own, as it is full afterwards: Nodes in racks of sixteen, all well, bare of labels of ours."""
    folder = tmp_path_factory.mktemp("scale")
    try:
        server = up(folder / "kubernetes", more=SETTLED)
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
        began = time.monotonic()
        legacy = {"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64"}  # else a controller adds them
        register_nodes(api, dict.fromkeys(hosts, legacy), conditions=[_condition("pass")])
        print(f"\n{NODES:,} Nodes on one API server, registered by the tests in {time.monotonic() - began:.1f} s", end="")
        variables = {"cluster_name": "large", "kubernetes_provider": "existing", "kubernetes_kubeconfig": str(server.kubeconfig)}
        groups = {"kube_control_plane": {"hosts": {"gpu00000": None}}, "kube_node": {"hosts": hosts}}
        children = {**groups, "k8s_cluster": {"children": dict.fromkeys(groups)}}
        file = folder / "hosts.yaml"
        file.write_text(json.dumps({"all": {"vars": variables, "children": children}}))
        yield Fleet(server, api, hosts, file)
    finally:
        down(folder / "kubernetes")


def timed(what: str, act: Callable[[], Any]) -> Any:
    """Do something, and print a line of the table; what it prints itself is for a journal."""
    began, before = time.monotonic(), _processor_s()
    with redirect_stdout(StringIO()):
        found = act()
    times = f"{time.monotonic() - began:7.1f} s, {_processor_s() - before:6.1f} s of our processor time"
    print(f"\n  {what:<44} {times}", end="", flush=True)
    return found


def _processor_s() -> float:
    """Return what this process and the Ansible that it has run have used; the server's own is not in it."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def play(fleet: Fleet) -> str:
    """Bring Nodes what hosts.yaml says with plain Ansible; return how that went."""
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(fleet.hosts_yaml)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(content.ansible_cfg()), "ANSIBLE_NOCOLOR": "1"}
    words = [*argv, str(content.playbooks_dir() / "kubernetes" / "nodes.yml")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_labels_and_taints_of_all_nodes(fleet: Fleet) -> None:
    """One play gives every Node its rack, switch and taint; the second changes nothing, and reads the Nodes by one list alone."""
    first = timed("playbook, labels and taints of all", lambda: play(fleet))
    second = timed("playbook, nothing to do", lambda: play(fleet))
    server = Counting(fleet.server.kubeconfig)
    outcome = timed("of which the requests", lambda: update_nodes(server, desired_nodes(fleet.hosts)))
    node = fleet.api.get(f"/api/v1/nodes/{BURST[-1]}")

    assert ("changed=1 " in first, "changed=0 " in second) == (True, True), first + second
    assert (outcome.changed, outcome.absent, dict(server.asked)) == ((), (), {"GET": PAGES})
    assert node["metadata"]["labels"][RACK] == fleet.hosts[BURST[-1]]["rack"]
    assert node["spec"]["taints"] == [{"key": "amd.com/gpu", "value": "present", "effect": "NoSchedule"}]


def test_a_burst_of_quarantines(fleet: Fleet) -> None:
    """Five in a hundred go at once by one list and a patch for each, and come back; a second time nothing is changed."""
    server = Counting(fleet.server.kubeconfig)
    records = {name: {**RECORD, "host": name} for name in BURST}
    kept = timed(f"{len(BURST):,} quarantined", lambda: set_quarantines(server, records))
    asked = dict(server.asked)
    cordoned = _cordoned(fleet)
    again = timed("the same, nothing to do", lambda: set_quarantines(server, records))
    released = timed(f"{len(BURST):,} released", lambda: lift_quarantines(server, BURST, owner="primus-bench"))

    assert (kept, cordoned, again, released) == ([*BURST], {*BURST}, [], [*BURST])
    assert asked["GET"] <= PAGES + len(BURST) // 10, asked
    assert asked["PATCH"] <= len(BURST) * 11 // 10, asked
    assert _cordoned(fleet) == set()


def test_a_burst_of_bad_health_and_its_breaker(fleet: Fleet) -> None:
    """Five in a hundred fail: at a limit of four none goes, at the role's own all go, and they come back when they pass."""
    config = {"holder": "cp1", "interval_s": 600, "stale_s": STALE_S, "limit_percent": 4}
    authority = yaml.safe_load(fleet.server.kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority-data"]
    token = _administrator(fleet.api)
    _say_health(fleet.api, "fail")
    with health_programs() as load:
        judge = load("judge_health").judge
        server = load("api_request").Server({"server": fleet.server.url, "certificate-authority-data": authority}, token)

        def look(what: str) -> dict[str, Any]:
            return dict(timed(f"health, {what}", lambda: judge(server, config, time.time())))

        held = look(f"{len(BURST):,} fail, the breaker holds")
        fleet.api.delete(BREAKER)
        config["limit_percent"] = yaml.safe_load((content.roles_dir() / "kube_health/defaults/main.yml").read_text())[
            "kube_health_limit_percent"
        ]
        gone = look("with room, all go")
        still = look("nothing to do")
        time.sleep(1.1)  # a report's time is in whole seconds, and the pass has to be newer
        _say_health(fleet.api, "pass")
        back = look("all are back")

    assert (held["marked"], f"{len(BURST)} of {NODES} Nodes fail at once" in held["breaker"]["reason"]) == ([], True)
    assert (gone["marked"], still["marked"], back["released"]) == ([*BURST], [], [*BURST])
    assert _cordoned(fleet) == set()


def test_gangs_of_64_by_rack(fleet: Fleet, tmp_path: Path) -> None:
    """Jobs as `workload` makes them, with every twentieth host out: a scheduler that weighs all Nodes keeps a gang in few racks."""
    server = Server(fleet.server.kubeconfig)
    update_nodes(server, desired_nodes(fleet.hosts))
    set_quarantines(server, {name: {**RECORD, "host": name} for name in BURST})
    free = Counter(variables["rack"] for host, variables in fleet.hosts.items() if host not in BURST)
    fewest = _fewest(free)
    racks = {}
    rounds = (("no rack asked for", "", 0), ("rack preferred, as it comes", RACK, 0), ("rack preferred, all Nodes weighed", RACK, 100))
    print(
        f"\n  {GANGS} gangs of {GANG} pods on {NODES:,} Nodes, {len(BURST):,} of them in quarantine; fewest racks possible {fewest}", end=""
    )
    for number, (what, topology, percent) in enumerate(rounds):
        if percent:
            restart_scheduler(fleet.server, score_percent=percent)
        placed, took = _place(fleet, tmp_path / str(number), f"gangs-{number}", topology)
        assert max(Counter(node for nodes in placed for node in nodes).values()) == 1
        assert not {node for nodes in placed for node in nodes} & {*BURST}
        racks[what] = [len({fleet.hosts[node]["rack"] for node in nodes}) for nodes in placed]
        print(
            f"\n  {what:<34} racks a gang {racks[what]!s:<14} bound after {took:6.1f} s, {GANGS * GANG / took:5.1f} pods/s",
            end="",
            flush=True,
        )
    timed("quarantines lifted", lambda: lift_quarantines(server, BURST))

    whole, sampled = racks["rack preferred, all Nodes weighed"], racks["rack preferred, as it comes"]
    assert max(whole) <= 2 * fewest
    assert sum(whole) <= sum(sampled)


def _place(fleet: Fleet, folder: Path, namespace: str, topology: str) -> tuple[list[list[str]], float]:
    """Start every gang at once; return the Nodes of each when all are bound, and how long that took. They are gone afterwards."""
    folder.mkdir()
    fleet.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    _until(lambda: any(one.get("secrets") for one in fleet.api.items(f"/api/v1/namespaces/{namespace}/serviceaccounts")))
    pods = f"/api/v1/namespaces/{namespace}/pods"
    gangs = [_gang(fleet, folder, namespace, topology, number) for number in range(GANGS)]
    began = time.monotonic()
    with ThreadPoolExecutor(GANGS) as pool:
        list(pool.map(_start, gangs))
    _until(lambda: sum(bool(pod["spec"].get("nodeName")) for pod in fleet.api.items(pods)) == GANGS * GANG)
    took = time.monotonic() - began
    placed = [[host.name for host in target.observe(state).hosts] for target, state in gangs]
    with ThreadPoolExecutor(GANGS) as pool:
        list(pool.map(lambda gang: gang[0].stop(gang[1], force=False), gangs))
    # Without a kubelet a pod that is asked to end never does.
    _until(lambda: fleet.api.delete(pods, gracePeriodSeconds="0") and not fleet.api.items(pods))
    assert [len(nodes) for nodes in placed] == [GANG] * GANGS
    return placed, took


def _gang(fleet: Fleet, folder: Path, namespace: str, topology: str, number: int) -> tuple[KubernetesTarget, State]:
    pods = {
        "image": "localhost/none:1", "namespace": namespace, "topology": topology,
        "resources": {"amd.com/gpu": "8"},
    }  # fmt: skip
    job = {
        "schema": "primus.job/1", "id": f"gang{number}-0a1b2c", "name": f"gang{number}", "user": "root", "target": "kubernetes",
        "nodes": GANG, "words": ["train"], "kubernetes": pods,
    }  # fmt: skip
    made, _ = folders.create(folder, json.dumps(job))
    state = State(job["id"], "starting", attempt=1, attempts=(Attempt(1, started=time.time()),))  # type: ignore[arg-type]
    return KubernetesTarget(made.job(), made, JobObjects(WatchApi(fleet.server.kubeconfig), job["id"], namespace)), state  # type: ignore[arg-type]


def _start(gang: tuple[KubernetesTarget, State]) -> None:
    """Start a gang as the watcher does: again where the server had no answer."""
    target, state = gang

    def started() -> bool:
        target.start(state)
        return not target.refused

    _until(started)


def _fewest(free: Counter[str]) -> int:
    """Return how few racks have room for a gang."""
    room, racks = 0, 0
    while room < GANG:
        room, racks = room + free.most_common()[racks][1], racks + 1
    return racks


def _until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"not within {LIMIT_S:.0f} s"
        time.sleep(0.5)


def _cordoned(fleet: Fleet) -> set[str]:
    return {node["metadata"]["name"] for node in fleet.api.items("/api/v1/nodes") if node["spec"].get("unschedulable")}


def _condition(verdict: str) -> dict[str, Any]:
    """Return what a node reports of its health now."""
    with health_programs() as load:
        reading = load("health_gate").Reading(verdict, "" if verdict == "pass" else "disk: full", time.time())
        return dict(load("report_health").condition(reading, {}, time.time()))


def _say_health(api: Api, verdict: str) -> None:
    body = {"status": {"conditions": [_condition(verdict)]}}
    in_parallel(lambda name: api.patch(f"/api/v1/nodes/{name}/status", body, "strategic"), BURST)


def _administrator(api: Api) -> str:
    """Return the token of an account that may do everything: which rights suffice, other tests see."""
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "kube-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    api.create(bindings, {"metadata": {"name": "perf"}, "roleRef": role, "subjects": [subject]})
    (secret,) = api.get("/api/v1/namespaces/kube-system/serviceaccounts/default")["secrets"]
    return base64.b64decode(api.get(f"/api/v1/namespaces/kube-system/secrets/{secret['name']}")["data"]["token"]).decode()
