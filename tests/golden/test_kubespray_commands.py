"""The commands and variables of Kubespray equal the golden files, for each example that uses Kubespray.

    PRIMUS_UPDATE_GOLDEN=1 pytest tests/golden

rewrites the files. `PRIMUS_KUBESPRAY_DIR` (a checkout of a release) enables checks of hosts and tasks with the release itself.
`PRIMUS_KUBESPRAY_BIN` is the `bin` of an environment with its Ansible (default: the user's cache).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.kubernetes import commands, preflight, reconcile
from primus_bootstrap.kubernetes.commands import Command, KubesprayPaths
from primus_bootstrap.kubernetes.kubespray_values import chosen_values, group_files
from primus_bootstrap.kubernetes.reconcile import ClusterState
from tests.shipped import inventory_files
from tests.unit.kubespray_release_rig import checked_out_release

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.inventory.cluster import Cluster

GOLDEN = Path(__file__).parent / "kubespray"
TOPOLOGIES = sorted(
    path.parent.name
    for path in inventory_files()
    if load_cluster(path).groups.get("kube_control_plane") and preflight.provider(load_cluster(path)) == "kubespray"
)
RELEASE = os.environ.get("PRIMUS_KUBESPRAY_DIR", "")
CACHED = Path.home() / ".cache" / "primus-bootstrap" / "kubespray"
needs_release = pytest.mark.skipif(not RELEASE, reason="PRIMUS_KUBESPRAY_DIR is not a checkout of Kubespray")


def state(cluster: Cluster, *, without: str = "", first: str = "") -> ClusterState:
    """Return the state of an example, before a host joined, or with another first control plane and etcd member."""
    groups = {}
    for name in ("kube_control_plane", "etcd", "kube_node", "calico_rr"):
        hosts = [host for host in cluster.groups.get(name, ()) if host != without]
        groups[name] = tuple(sorted(hosts, key=lambda host: host != first)) if name in ("kube_control_plane", "etcd") else tuple(hosts)
    digests = dict.fromkeys((host for members in groups.values() for host in members), "sum")
    return ClusterState("commit", load_release().newest, groups, digests)


def apply_commands(cluster: Cluster, before: ClusterState | None, *unknown: str, now: ClusterState | None = None) -> tuple[Command, ...]:
    """Return the commands of `apply` for an example."""
    now = now or state(cluster)
    return reconcile.choose(before, now, tuple(now.hosts), unknown=unknown).commands


def cases(cluster: Cluster) -> dict[str, tuple[Command, ...]]:
    """Return the commands of every operation of `apply` and of each verb."""
    workers = [host for host in cluster.groups["kube_node"] if host not in cluster.groups["kube_control_plane"]]
    member, now = cluster.groups["etcd"][-1], state(cluster)
    address = str(cluster.view.variables(member)["ip"])
    alone = replace(now, groups={**now.groups, "etcd": now.groups["etcd"][:-1]})
    changed = replace(now, hosts=dict.fromkeys(now.hosts, "other"))
    left = reconcile.without(now, member)
    return {
        "create": apply_commands(cluster, None),
        "change a variable of all hosts": apply_commands(cluster, changed),
        "add worker": apply_commands(cluster, state(cluster, without=workers[0])),
        "add worker, some facts unknown": apply_commands(cluster, state(cluster, without=workers[0]), workers[2]),
        "add control plane": apply_commands(cluster, state(cluster, without=member), now=alone),
        "add etcd member": apply_commands(cluster, state(cluster, without=member)),
        "move the first control plane": apply_commands(cluster, state(cluster, first=member)),
        "remove worker": commands.remove(workers[-1]),
        "remove dead worker": commands.remove_dead(workers[-1]),
        "remove etcd member": commands.remove(member),
        "remove dead etcd member": commands.remove_dead(member, address=address),
        "apply after an etcd member has left": apply_commands(cluster, left, now=state(cluster, without=member)),
        "upgrade": commands.upgrade(load_release().newest, workers=(workers[:2], workers[2:4]), serial="1"),
        "reset": commands.reset(),
        "recover": commands.recover(),
        "recover from a snapshot": commands.recover(snapshot="/var/backups/etcd.db"),
    }


def golden(name: str, got: str) -> str:
    """Return the golden text, or rewrite it."""
    path = GOLDEN / name
    if os.environ.get("PRIMUS_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(got, encoding="utf-8")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_commands_equal_the_golden_files(topology: str) -> None:
    """The playbook, limit and variables of every command equal the golden file."""
    paths = KubesprayPaths(Path("RELEASE"), Path("BIN"), Path("hosts.yaml"), Path("GENERATED"), Path("FACTS"), load_release().version)
    cluster = load_cluster(content.topologies_dir() / topology)
    command_lines = {name: [" ".join(command.argv(paths)) for command in made] for name, made in cases(cluster).items()}
    got = json.dumps(command_lines, indent=1) + "\n"

    assert got == golden(f"{topology}.commands.json", got)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_values_equal_the_golden_files(topology: str) -> None:
    """The generated variables with their reasons equal the golden file; numbers and booleans keep their types."""
    cluster = load_cluster(content.topologies_dir() / topology)
    values = chosen_values(cluster, Path("/state"))
    files = group_files(values)
    read = {name: yaml.safe_load(text) for name, text in files.items()}
    got = "".join(f"--- {name}\n{text}" for name, text in files.items())

    assert got == golden(f"{topology}.values.txt", got)
    for value in values:
        assert read[f"group_vars/{value.group}.yml"][value.name] == value.value
        assert "{{" not in str(value.value)
        assert value.name not in cluster.variable_origins


def test_every_golden_file_has_an_example() -> None:
    """There is no golden file of a removed example."""
    assert sorted({path.name.split(".")[0] for path in GOLDEN.iterdir()}) == TOPOLOGIES


def real_paths(topology: str, folder: Path) -> KubesprayPaths:
    """Return the paths of the real release for an example."""
    cluster = load_cluster(content.topologies_dir() / topology)
    for name, text in group_files(chosen_values(cluster, folder)).items():
        path = folder / "inventory" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    found = os.environ.get("PRIMUS_KUBESPRAY_BIN") or next((str(path.parent) for path in CACHED.glob("venv-*/bin/ansible-playbook")), "")
    if not found:
        pytest.skip("no environment with Kubespray's Ansible; set PRIMUS_KUBESPRAY_BIN")
    return KubesprayPaths(
        Path(RELEASE), Path(found), cluster.path, folder / "inventory", folder / "facts", checked_out_release(Path(RELEASE))
    )


def list_command(paths: KubesprayPaths, command: Command, flag: str) -> str:
    """Run a command of the release with a `--list-*` flag; return its output."""
    environment = preflight.base_environment() | paths.environment | {"ANSIBLE_HOST_PATTERN_MISMATCH": "ignore", "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(
        command.argv(paths, flag), cwd=paths.release, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def changed_hosts(listed: str) -> set[str]:
    """Return the hosts of the plays that change hosts. The first plays only check."""
    plays = re.split(r"^  play #", listed, flags=re.MULTILINE)[1:]
    asserting = ("Check Ansible version", "Inventory setup and validation", "Validate nodes for removal", "Confirm node removal")
    acting = [play for play in plays if not any(name in play.splitlines()[0] for name in asserting)]
    return {host for play in acting for host in re.findall(r"^ {6}(\S+)$", play, re.MULTILINE)}


@needs_release
@pytest.mark.timeout(3600)  # starts Ansible for some twenty commands
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_release_changes_only_the_hosts_in_scope(topology: str, tmp_path: Path) -> None:
    """`--list-hosts` of the real release has only the intended hosts."""
    paths, cluster = real_paths(topology, tmp_path), load_cluster(content.topologies_dir() / topology)
    control_planes, every = set(cluster.groups["kube_control_plane"]), set(cluster.groups["k8s_cluster"]) | set(cluster.groups["etcd"])
    first, worker, member = cluster.groups["kube_control_plane"][0], cluster.groups["kube_node"][0], cluster.groups["etcd"][-1]
    leaving = cluster.groups["kube_node"][-1]
    expected: Mapping[str, list[set[str]]] = {
        "create": [every],
        "change a variable of all hosts": [every, control_planes],
        "add worker": [{worker, first}, {worker}],
        "add worker, some facts unknown": [{worker, first, cluster.groups["kube_node"][2]}, {worker}],
        "add control plane": [every],
        "add etcd member": [every, control_planes],
        "move the first control plane": [every],
        "remove worker": [{leaving, first}],
        "remove dead worker": [{leaving}],
        "remove etcd member": [{member, first}],
        "remove dead etcd member": [{member}],
        "apply after an etcd member has left": [every, control_planes],
        "upgrade": [every, control_planes, set(cluster.groups["kube_node"][:2]), set(cluster.groups["kube_node"][2:4])],
        "reset": [every],
        "recover": [every, control_planes, every],
        "recover from a snapshot": [every, control_planes, every],
    }
    listed: dict[tuple[str, ...], set[str]] = {}  # several operations run the same command

    def hosts(command: Command) -> set[str]:
        key = command.argv(paths)
        if key not in listed:
            listed[key] = changed_hosts(list_command(paths, command, "--list-hosts"))
        return listed[key]

    got = {name: [hosts(command) for command in made] for name, made in cases(cluster).items()}

    assert got == expected


# Tasks of the release that each playbook must contain.
TASKS = {
    "cluster.yml": ("kubernetes/control-plane : ", "kubernetes/node : ", "etcd : "),
    "scale.yml": ("kubernetes/kubeadm : ", "kubernetes/node : "),
    "remove-node.yml": ("Remove-node | Drain node except daemonsets resource", "Remove member from cluster", "Remove-node | Delete node"),
    "upgrade-cluster.yml": ("upgrade/pre-upgrade : ", "upgrade/post-upgrade : "),
    "reset.yml": ("Check confirmation", "reset : "),
    "recover-control-plane.yml": ("recover_control_plane/etcd : ",),
    "playbooks/facts.yml": ("network_facts : ",),
}


@needs_release
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_release_has_the_expected_tasks(topology: str, tmp_path: Path) -> None:
    """`--list-tasks` of the real release has the expected tasks for every playbook of a command."""
    paths, cluster = real_paths(topology, tmp_path), load_cluster(content.topologies_dir() / topology)
    used = {command.playbook: command for made in cases(cluster).values() for command in made}

    missing = {
        playbook: [words for words in TASKS[playbook] if words not in listed]
        for playbook, command in used.items()
        if (listed := list_command(paths, command, "--list-tasks"))
    }

    assert missing == {playbook: [] for playbook in TASKS}


@needs_release
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_release_accepts_the_example(topology: str, tmp_path: Path) -> None:
    """The release's own checks pass with the generated variables, and its data equal this project's."""
    paths = real_paths(topology, tmp_path)
    preflight.check(paths, commands.create(), preflight.base_environment() | paths.environment)
    sums = yaml.safe_load((paths.release / "roles/kubespray_defaults/vars/main/checksums.yml").read_text(encoding="utf-8"))

    release = load_release(paths.version)
    assert tuple(sums["kubelet_checksums"]["amd64"]) == release.kubernetes
    requirements = (paths.release / "requirements.txt").read_text(encoding="utf-8").split("\n")
    assert {line for line in requirements if "==" in line} <= set(release.requirements)
