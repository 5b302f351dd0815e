"""Run a real cluster for tests: nodes in podman containers with systemd, containerd and kubelet, created with kubeadm.

By hand: `python -m tests.kubernetes.kubeadm_cluster up|down FOLDER [--nodes 3] [--mount HOST:NODE]`. There is no cluster DNS.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PrimusError
from primus_bootstrap.lab.commands import run
from primus_bootstrap.lab.containers import network_subnet, taken_subnets
from primus_bootstrap.lab.kernel_limits import inotify_shortage
from primus_bootstrap.lab.machine import inspect_machine
from tests.kubernetes.binaries import VERSION, CannotError
from tests.kubernetes.node_image import node_image

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from primus_bootstrap.core.commands import Completed
    from primus_bootstrap.lab.machine import Machine
    from tests.kubernetes.node_image import NodeImage

# Beside the lab's own 10.187.0.0/16; private (RFC 1918), and clear of the defaults of podman and docker.
_SPACE = IPv4Network("10.186.0.0/16")
_FIRST_NODE = 11
# Where nodes see shared storage, and torch, as the fixture mounts them.
STORAGE = "/jfs"
VENV = f"{STORAGE}/train"
PACKAGES = f"{VENV}/lib/python3.11/site-packages"
_PODS, _SERVICES = "10.244.0.0/16", "10.96.0.0/16"
_TOKEN = "abcdef.0123456789abcdef"
_SOCKET = "/run/containerd/containerd.sock"
_LIMIT_S = 300.0
# Control groups of version 1 put all containers of podman into one group, which gets as much of a processor as one process beside it:
# on a busy machine a control plane starves. A node gets as much as four.
_CPU_GROUPS, _SHARES = Path("/sys/fs/cgroup/cpu"), 4096


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster whose first node is the control plane, with all its files in one folder."""

    folder: Path
    machine: Machine
    subnet: IPv4Network
    count: int

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig for this machine."""
        return self.folder / "admin.conf"

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes, which are those of the containers."""
        return [f"{_name(self.folder)}-{number}" for number in range(1, self.count + 1)]

    def address(self, node: str) -> IPv4Address:
        """Return a node's address."""
        return self.subnet[_FIRST_NODE + self.nodes.index(node)]

    def run_on(self, node: str, *argv: str, check: bool = True, limit_s: float = 120) -> Completed:
        """Run a command on a node."""
        return run([*self.machine.engine_argv, "exec", node, *argv], timeout_s=limit_s, check=check)

    def write_on(self, node: str, path: str, content: str) -> None:
        """Write a file on a node."""
        argv = [*self.machine.engine_argv, "exec", "--interactive", node, "sh", "-c", f"mkdir -p $(dirname {path}); cat > {path}"]
        run(argv, timeout_s=60, stdin=content.encode())

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """Run kubectl on the control plane."""
        argv = [*self.machine.engine_argv, "exec", "--interactive", "--env=KUBECONFIG=/etc/kubernetes/admin.conf", self.nodes[0], "kubectl"]
        return run([*argv, *arguments], timeout_s=_LIMIT_S, stdin=stdin.encode(), check=check).stdout

    def ready(self) -> dict[str, bool]:
        """Return the Nodes that are Ready."""
        items = json.loads(self.kubectl("get", "nodes", "--output=json"))["items"]
        return {
            node["metadata"]["name"]: any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"]["conditions"])
            for node in items
        }

    def kill(self, node: str) -> None:
        """Kill every process of a node, like a power failure."""
        run([*self.machine.engine_argv, "kill", "--signal=KILL", node], timeout_s=60)

    def start(self, node: str) -> None:
        """Start a killed node, and restore its routes to the pods of other nodes."""
        run([*self.machine.engine_argv, "start", node], timeout_s=60)
        _route(self)


def up(folder: Path, *, nodes: int = 3, mounts: Sequence[str] = ()) -> Cluster:
    """Create a cluster, and print the duration of each step to stderr.

    Args:
        folder: Determines its name and contains its kubeconfig.
        nodes: The number of nodes, including the control plane.
        mounts: Folders of this machine for each node, `HOST:NODE[:ro]`.
    """
    began = time.monotonic()

    def say(what: str) -> None:
        sys.stderr.write(f"kubeadm: {time.monotonic() - began:5.1f} s  {what}\n")

    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    machine = inspect_machine()
    if machine.engine != "podman":
        raise CannotError("a node needs podman, and this machine has docker alone\n  fix: apt-get install podman runc")
    lacking = inotify_shortage(nodes)
    if lacking:
        say(lacking)
    image = node_image(machine)
    say("images are there")
    down(folder)
    cluster = Cluster(folder, machine, _free_subnet(machine), nodes)
    _start_containers(cluster, image, mounts)
    say(f"{nodes} nodes started")
    _form(cluster)
    say("control plane is there")
    with ThreadPoolExecutor(nodes) as pool:
        list(pool.map(lambda node: _join(cluster, node), cluster.nodes[1:]))
    say("nodes joined")
    _connect_pods(cluster)
    wait_for(lambda: list(cluster.ready().values()) == [True] * nodes, f"not every node is Ready: {cluster.ready()}")
    # Pods are let in when the account that they run as is there.
    wait_for(lambda: "default" in cluster.kubectl("get", "serviceaccounts", "--output=name"), "the first namespace has no account")
    say("all are Ready")
    (folder / "cluster.json").write_text(json.dumps({"subnet": str(cluster.subnet), "nodes": nodes}))
    return cluster


def formed(folder: Path) -> Cluster | None:
    """Return the cluster that `up` created for a folder, or None."""
    try:
        kept = json.loads((folder / "cluster.json").read_text())
    except OSError:
        return None
    return Cluster(folder.absolute(), inspect_machine(), IPv4Network(kept["subnet"]), kept["nodes"])


def down(folder: Path) -> None:
    """Remove the cluster of a folder."""
    machine = inspect_machine()
    name = _name(folder.absolute())
    listed = run([*machine.engine_argv, "ps", "--all", "--quiet", f"--filter=label=primus.kubernetes={name}"], timeout_s=60).stdout.split()
    if listed:
        run([*machine.engine_argv, "rm", "--force", "--volumes", "--time=0", *listed], timeout_s=120)
    (folder / "cluster.json").unlink(missing_ok=True)
    if (_CPU_GROUPS / name).is_dir():
        # Podman leaves the group of its own processes behind in each hierarchy.
        run([*machine.sudo, "sh", "-c", f"rmdir /sys/fs/cgroup/*/{name}/conmon /sys/fs/cgroup/*/{name}"], timeout_s=60, check=False)
    if network_subnet(machine, name):
        run([*machine.engine_argv, "network", "rm", name], timeout_s=60)


def wait_for(holds: Callable[[], bool], otherwise: str, limit_s: float = _LIMIT_S) -> None:
    """Wait until a condition is true; errors count as false."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with contextlib.suppress(PrimusError, json.JSONDecodeError):
            if holds():
                return
        time.sleep(0.5)
    raise AssertionError(f"{otherwise} after {limit_s:g} s")


def _name(folder: Path) -> str:
    return f"primus-kube-{hashlib.sha256(str(folder).encode()).hexdigest()[:6]}"


def _free_subnet(machine: Machine) -> IPv4Network:
    taken = taken_subnets(machine)
    return next(subnet for subnet in _SPACE.subnets(new_prefix=24) if not any(subnet.overlaps(other) for other in taken))


def _start_containers(cluster: Cluster, image: NodeImage, mounts: Sequence[str]) -> None:
    engine, name = cluster.machine.engine_argv, _name(cluster.folder)
    run([*engine, "network", "create", "--disable-dns", f"--subnet={cluster.subnet}", name], timeout_s=60)
    # podman's own way to start systemd binds the machine's whole tree of systemd's control groups into every node: all would share one.
    systemd = ("--systemd=false", "--env=container=podman", "--stop-signal=SIGRTMIN+3", "--cgroupns=private")
    scratch = ("--tmpfs=/tmp", "--tmpfs=/run:exec", "--tmpfs=/run/lock")
    # Limits that no container here may raise; containerd's snapshots lie on an overlay, and so need a file system beneath that is none.
    limits = ("--privileged", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096", "--volume=/var")
    shared = (f"--volume={image.programs.resolve()}:/opt/kubernetes:ro", f"--volume={image.images}:/opt/images:ro")
    share = (f"--cgroup-parent=/{name}",) if _CPU_GROUPS.is_dir() else ()
    for node in cluster.nodes:
        own = (
            f"--name={node}",
            f"--hostname={node}",
            f"--label=primus.kubernetes={name}",
            f"--network={name}",
            f"--ip={cluster.address(node)}",
        )
        flags = (*own, *share, *systemd, *scratch, *limits, *shared, *(f"--volume={mount}" for mount in mounts))
        run([*engine, "--runtime=runc", "run", "--detach", *flags, image.reference], timeout_s=120)
    if share:
        write = f"echo {_SHARES * cluster.count} > {_CPU_GROUPS / name}/cpu.shares"
        run([*cluster.machine.sudo, "sh", "-c", write], timeout_s=60)
    for node in cluster.nodes:
        is_up = _asks(cluster, node, "systemctl", "is-active", "--quiet", "containerd")
        wait_for(is_up, f"containerd does not run on {node}", 60)


def _asks(cluster: Cluster, node: str, *argv: str) -> Callable[[], bool]:
    return lambda: cluster.run_on(node, *argv, check=False).code == 0


def _load(cluster: Cluster, node: str, *images: str) -> None:
    load = "; ".join(f"ctr --namespace k8s.io images import /opt/images/{image}.tar" for image in images)
    cluster.run_on(node, "sh", "-euc", load)


def _form(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    _load(cluster, node, "pause", "busybox", "etcd", "kube-proxy", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
    # kubeadm reads YAML, of which JSON is a part.
    cluster.write_on(node, "/etc/kubernetes/kubeadm.yaml", "\n---\n".join(json.dumps(part) for part in _kubeadm_settings(cluster)))
    init = (
        "kubeadm",
        "init",
        "--config=/etc/kubernetes/kubeadm.yaml",
        "--skip-phases=addon/coredns",
        "--ignore-preflight-errors=ImagePull",
    )
    done = cluster.run_on(node, *init, check=False, limit_s=_LIMIT_S)
    (cluster.folder / "kubeadm-init.log").write_text(done.stdout + done.stderr)
    if done.code:
        raise AssertionError(f"kubeadm init failed on {node}:\n{(done.stdout + done.stderr)[-3000:]}")
    cluster.kubeconfig.write_text(cluster.run_on(node, "cat", "/etc/kubernetes/admin.conf").stdout)


def _kubeadm_settings(cluster: Cluster) -> list[dict[str, object]]:
    token = {"token": _TOKEN, "usages": ["signing", "authentication"], "groups": ["system:bootstrappers:kubeadm:default-node-token"]}
    kubeadm, no_limits = "kubeadm.k8s.io/v1beta2", {"nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"}
    return [
        {
            "apiVersion": kubeadm,
            "kind": "InitConfiguration",
            "bootstrapTokens": [token],
            "localAPIEndpoint": {"advertiseAddress": str(cluster.address(cluster.nodes[0]))},
            "nodeRegistration": {"criSocket": _SOCKET},
        },
        {
            "apiVersion": kubeadm,
            "kind": "ClusterConfiguration",
            "kubernetesVersion": f"v{VERSION}",
            "networking": {"podSubnet": _PODS, "serviceSubnet": _SERVICES},
        },
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            "failSwapOn": False,
            # The disk is this machine's: how full it is is not the cluster's affair.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": no_limits,
            "oomScoreAdj": 0,
            "nodeStatusUpdateFrequency": "4s",
        },
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "oomScoreAdj": 0,
            # At 0 it leaves the kernel's own values, which hold for the whole machine.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        },
    ]


def _join(cluster: Cluster, node: str) -> None:
    _load(cluster, node, "pause", "busybox", "kube-proxy")
    address = f"{cluster.address(cluster.nodes[0])}:6443"
    argv = ("kubeadm", "join", address, "--token", _TOKEN, "--discovery-token-unsafe-skip-ca-verification", "--cri-socket", _SOCKET)
    done = cluster.run_on(node, *argv, check=False, limit_s=_LIMIT_S)
    (cluster.folder / f"kubeadm-join-{node}.log").write_text(done.stdout + done.stderr)
    if done.code:
        raise AssertionError(f"kubeadm join failed on {node}:\n{(done.stdout + done.stderr)[-3000:]}")


def _pod_subnets(cluster: Cluster) -> dict[str, str]:
    items = json.loads(cluster.kubectl("get", "nodes", "--output=json"))["items"]
    return {node["metadata"]["name"]: node["spec"]["podCIDR"] for node in items if node["spec"].get("podCIDR")}


def _connect_pods(cluster: Cluster) -> None:
    """Create a bridge for the pods of each node, and routes between the nodes."""
    wait_for(lambda: len(_pod_subnets(cluster)) == cluster.count, "not every node has addresses for pods")
    for node, subnet in _pod_subnets(cluster).items():
        addresses = {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": addresses}
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}
        cluster.write_on(node, "/etc/cni/net.d/10-pods.conflist", json.dumps(network))
    _route(cluster)


def _route(cluster: Cluster) -> None:
    for node, subnet in _pod_subnets(cluster).items():
        for other in cluster.nodes:
            if other != node:
                cluster.run_on(other, "ip", "route", "replace", subnet, "via", str(cluster.address(node)), check=False)


def main() -> int:
    """Create or remove a cluster by hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["up", "down"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--mount", action="append", default=[], dest="mounts")
    wanted = parser.parse_args()
    if wanted.verb == "down":
        down(wanted.folder)
        return 0
    try:
        cluster = up(wanted.folder, nodes=wanted.nodes, mounts=wanted.mounts)
    except (CannotError, PrimusError, AssertionError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"export KUBECONFIG={cluster.kubeconfig}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
