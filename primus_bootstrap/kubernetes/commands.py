"""The exact commands of Kubespray for each thing that is done to a cluster: pure, so that they are read, tested and shown before one runs.

What v2.31 needs was read in its playbooks (https://github.com/kubernetes-sigs/kubespray/tree/v2.31.0) and in docs/operations/nodes.md,
upgrades.md and recover-control-plane.md there. Variables go as JSON: `-e key=true` is a text there, which four asserts refuse and all
other conditions take for true.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap.inventory.snapshot import plugin_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

# A limited run reads facts of all other hosts: preinstall refuses to start where the cache of facts lacks one.
_FACTS = "playbooks/facts.yml"
_QUORUM = "etcd,kube_control_plane"
# `etcd_retries` of docs/operations/recover-control-plane.md: several members join one after the other.
_ETCD_RETRIES = 10
# With `download_run_once` a limited run would hand out what the controller's cache does not have: only the first control plane's own
# play fills it, and that is left out here (roles/download/tasks/download_file.yml).
_FETCH_ALONE: dict[str, Any] = {"download_run_once": False}


@dataclass(frozen=True, slots=True)
class KubesprayPaths:
    """Where Kubespray runs for one cluster.

    `release` is the checkout, `programs` the folder of its own `ansible-playbook`. `hosts` is hosts.yaml, or a run's snapshot of it.
    `generated` is the folder of the values that we compute; it comes first, so that `inventory_dir` stays the folder of hosts.yaml.
    `facts` keeps what hosts said of themselves, one file a host.
    """

    release: Path
    programs: Path
    hosts: Path
    generated: Path
    facts: Path

    @property
    def inventory(self) -> tuple[str, ...]:
        """The arguments that name the inventory."""
        return ("-i", str(self.generated), "-i", str(self.hosts))

    @property
    def environment(self) -> dict[str, str]:
        """What its Ansible needs beside the user's environment, over its own ansible.cfg.

        Kubespray's own settings keep facts below /tmp, where two clusters with equal names poison each other, and check no host key.
        The cache never expires: a host that is neither added nor changed is not asked again.
        """
        return {
            "ANSIBLE_CONFIG": str(self.release / "ansible.cfg"),
            **plugin_settings("yaml"),
            "ANSIBLE_HOST_KEY_CHECKING": "True",
            "ANSIBLE_CACHE_PLUGIN": "jsonfile",
            "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(self.facts),
            "ANSIBLE_CACHE_PLUGIN_TIMEOUT": "0",
        }


@dataclass(frozen=True, slots=True)
class Command:
    """One run of one of its playbooks; `why` is one sentence for people. An empty limit means every host."""

    why: str
    playbook: str
    limit: str = ""
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> tuple[str, ...]:
        """What comes after inventory and playbook."""
        limit = ("--limit", self.limit) if self.limit else ()
        variables = ("-e", json.dumps(dict(self.variables))) if self.variables else ()
        return ("-b", *limit, *variables)

    def argv(self, place: KubesprayPaths, *more: str) -> tuple[str, ...]:
        """Return the whole command, to be run in the folder of the release; `more` goes to its end (a Vault password file, forks)."""
        return (str(place.programs / "ansible-playbook"), *place.inventory, self.playbook, *self.arguments, *more)


def create(limit: str = "") -> tuple[Command, ...]:
    """Make the cluster, bring changed settings to it, and let new control planes join: the full play, safe to repeat.

    With `limit` changed settings go to some hosts; facts of all others must be cached.
    """
    return (Command("bring the hosts of the cluster to what hosts.yaml says", "cluster.yml", limit),)


def add_workers(hosts: Sequence[str], *, unknown: Iterable[str] = (), controller_fetches: bool = False) -> tuple[Command, ...]:
    """Let workers join: they are changed, the first control plane is asked, and nobody else is.

    Args:
        hosts: the new workers, which stand in hosts.yaml.
        unknown: hosts whose facts are not cached yet; they are asked once.
        controller_fetches: downloads are fetched on the controller (`download_localhost`), because hosts cannot.
    """
    asked = ",".join(dict.fromkeys((*hosts, "kube_control_plane[0]", *unknown)))
    return (
        Command("ask the new workers and the first control plane what they are", _FACTS, asked),
        Command("let the workers join", "scale.yml", ",".join(hosts), {} if controller_fetches else _FETCH_ALONE),
    )


def add_control_plane(limit: str = "") -> tuple[Command, ...]:
    """Let control planes join that were appended to their group; `scale.yml` cannot, and workers learn where the new API servers are."""
    return (Command("let the appended control planes join, and tell every host of them", "cluster.yml", limit),)


def add_etcd_member(limit: str = "", *, lost: Iterable[str] = ()) -> tuple[Command, ...]:
    """Let etcd members join that were appended to their group, then name them to every API server.

    The full play is not limited to control planes and etcd: the same run brings what else has changed. `ignore_assert_errors`, which
    upstream's guide gives, is for an even number of members: hosts.yaml never has one, and the switch would silence all other asserts.
    """
    joining = Command("let the new members join", "cluster.yml", limit, {"etcd_retries": _ETCD_RETRIES})
    return (joining, *renew_api_servers(lost))


def settle(limit: str = "", *, members: bool = False, lost: Iterable[str] = ()) -> tuple[Command, ...]:
    """Tell every host who serves, after one was moved or has left hosts.yaml.

    Args:
        limit: the hosts that are there; empty for all.
        members: whether one of etcd has left, so that API servers still name it.
        lost: hosts that do not answer.
    """
    told = Command("tell every host which control planes and etcd members there are", "cluster.yml", limit)
    return (told, *(renew_api_servers(lost) if members else ()))


def renew_api_servers(lost: Iterable[str] = ()) -> tuple[Command, ...]:
    """Write the static pods of control planes anew, one host after the other, with the version that they have.

    `cluster.yml` writes them when a host joins and never again (roles/kubernetes/control-plane/tasks/kubeadm-setup.yml): without this, new
    arguments, and `--etcd-servers` among them, reach no API server. Nothing of the host changes, so nothing is drained or upgraded.
    """
    limit = ",".join((_QUORUM, *(f"!{host}" for host in lost)))
    variables = {"drain_nodes": False, "system_upgrade": False}
    return (Command("give every API server its present arguments", "upgrade-cluster.yml", limit, variables),)


def remove(host: str) -> tuple[Command, ...]:
    """Take a host out that still answers: drained, its etcd member removed, the node deleted, the host wiped of Kubernetes."""
    limit = f"{host},kube_control_plane[0],etcd[0]"
    return (Command("take the host out and wipe Kubernetes from it", "remove-node.yml", limit, {"node": host, "skip_confirmation": True}),)


def remove_dead(host: str, *, address: str = "") -> tuple[Command, ...]:
    """Take a host out that does not answer.

    Args:
        host: the host; it still stands in hosts.yaml.
        address: its `access_ip` or `ip`. Needed for an etcd member or control plane: the play looks for the member by this address, which
            is a fact, and a host that does not answer may have none in the cache.
    """
    variables: dict[str, Any] = {"node": host, "skip_confirmation": True, "reset_nodes": False, "allow_ungraceful_removal": True}
    if address:
        variables["main_access_ip"] = address
    return (Command("forget the host, which is not contacted", "remove-node.yml", host, variables),)


def upgrade(version: str, *, workers: Iterable[Iterable[str]] = (), serial: str = "", away: Iterable[str] = ()) -> tuple[Command, ...]:
    """Bring the cluster to another version: control planes one by one, then the workers in batches.

    Args:
        version: Kubernetes' version, without a v; `gate.upgrade_path` has judged it.
        workers: the batches; each is drained, upgraded and let in again before the next one begins.
        serial: how many of a batch at a time, such as `1` or `25%`; Kubespray's own 20 % where empty.
        away: workers that do not answer and are in no batch; every play of facts would end at one of them.
    """
    variables: dict[str, Any] = {"kube_version": version}
    several = variables | ({"serial": serial} if serial else {})
    batches = [",".join(batch) for batch in workers]
    without = [f"!{host}" for host in away]
    return (
        Command("ask every host what it is", _FACTS, ",".join(("all", *without)) if without else ""),
        Command(f"bring control planes and etcd to {version}", "upgrade-cluster.yml", "kube_control_plane:etcd", variables),
        *(Command(f"bring workers to {version}", "upgrade-cluster.yml", batch, several) for batch in batches if batch),
    )


def reset() -> tuple[Command, ...]:
    """Wipe Kubernetes and etcd from every host. `skip_confirmation` alone skips the question and then fails: v2.31 wants this one."""
    return (Command("wipe Kubernetes and etcd from every host", "reset.yml", "", {"reset_confirmation": True}),)


def recover(*, snapshot: str = "") -> tuple[Command, ...]:
    """Bring the control plane back after its hosts were lost; the survivors stand first in their groups, the lost ones in `broken_*`.

    Args:
        snapshot: a snapshot of etcd on the controller; without one it is taken from the survivor. `course.refuse_recovery` has judged it.
    """
    variables: dict[str, Any] = {"etcd_retries": _ETCD_RETRIES}
    if snapshot:
        variables["etcd_snapshot"] = snapshot
    return (
        Command("ask the hosts that are left what they are", _FACTS),
        Command("bring etcd and the control plane back", "recover-control-plane.yml", _QUORUM, variables),
        *settle(),
    )
