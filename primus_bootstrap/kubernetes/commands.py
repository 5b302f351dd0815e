"""Build the commands of Kubespray for each operation on a cluster.

Source: the playbooks of v2.31 (https://github.com/kubernetes-sigs/kubespray/tree/v2.31.0), to which those of the later releases in
kubespray_releases.yml are equal in all that matters here, and docs/operations/nodes.md, upgrades.md
and recover-control-plane.md there. Variables are passed as JSON: with `-e key=true` the value would be a string, which four asserts
reject and all other conditions treat as true.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap.inventory.snapshot import plugin_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

# A run with --limit reads the facts of all other hosts: preinstall fails if the fact cache lacks one.
_FACTS = "playbooks/facts.yml"
_QUORUM = "etcd,kube_control_plane"
# From docs/operations/recover-control-plane.md: several members join one after the other.
_ETCD_RETRIES = 10
# With `download_run_once` a limited run would copy files from the controller's cache, which only the play of the first control plane
# fills (roles/download/tasks/download_file.yml).
_FETCH_ALONE: dict[str, Any] = {"download_run_once": False}


@dataclass(frozen=True, slots=True)
class KubesprayPaths:
    """The paths of Kubespray for one cluster."""

    release: Path  # the checkout
    programs: Path  # the folder of its `ansible-playbook`
    hosts: Path  # hosts.yaml, or a run's snapshot of it
    generated: Path  # the inventory folder with the generated values. It comes first, so that `inventory_dir` is the folder of hosts.yaml.
    facts: Path  # the fact cache, one file per host
    version: str  # the name of the release

    @property
    def inventory(self) -> tuple[str, ...]:
        """The arguments that name the inventory."""
        return ("-i", str(self.generated), "-i", str(self.hosts))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that override Kubespray's ansible.cfg.

        Kubespray's defaults do not check host keys and store facts below /tmp, where clusters with equal host names mix. The cache
        never expires, so that facts of unchanged hosts are not gathered again.
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
    """One run of a playbook. `why` completes "could not …" in messages. An empty limit means every host."""

    why: str
    playbook: str
    limit: str = ""
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments after the inventory and the playbook."""
        limit = ("--limit", self.limit) if self.limit else ()
        variables = ("-e", json.dumps(dict(self.variables))) if self.variables else ()
        return ("-b", *limit, *variables)

    def argv(self, paths: KubesprayPaths, *more: str) -> tuple[str, ...]:
        """Return the whole command, with further arguments. It must run in the folder of the release."""
        return (str(paths.programs / "ansible-playbook"), *paths.inventory, self.playbook, *self.arguments, *more)


def create(limit: str = "") -> tuple[Command, ...]:
    """Return the full play, which creates the cluster, applies changed settings and adds control planes; it is safe to repeat.

    With `limit` the facts of all other hosts must be in the cache.
    """
    return (Command("configure the hosts of the cluster as hosts.yaml says", "cluster.yml", limit),)


def add_workers(hosts: Sequence[str], *, unknown: Iterable[str] = (), controller_fetches: bool = False) -> tuple[Command, ...]:
    """Add workers. Only they are changed.

    Args:
        unknown: Hosts without cached facts, which are gathered.
        controller_fetches: The controller downloads files for the hosts (`download_localhost`).
    """
    gathered = ",".join(dict.fromkeys((*hosts, "kube_control_plane[0]", *unknown)))
    return (
        Command("gather the facts of the new workers and the first control plane", _FACTS, gathered),
        Command("add the workers", "scale.yml", ",".join(hosts), {} if controller_fetches else _FETCH_ALONE),
    )


def add_control_plane(limit: str = "") -> tuple[Command, ...]:
    """Add the control planes that were appended to their group, and configure their addresses on every host."""
    return (Command("add the control planes and configure them on every host", "cluster.yml", limit),)


def add_etcd_member(limit: str = "", *, lost: Iterable[str] = ()) -> tuple[Command, ...]:
    """Add the etcd members that were appended to their group, then configure them in every API server.

    Upstream's guide also sets `ignore_assert_errors`, for an even number of members. Validation of hosts.yaml rejects an even
    number, and the variable would disable all other asserts.
    """
    join = Command("add the new etcd members", "cluster.yml", limit, {"etcd_retries": _ETCD_RETRIES})
    return (join, *renew_api_servers(lost))


def announce_members(limit: str = "", *, members: bool = False, lost: Iterable[str] = ()) -> tuple[Command, ...]:
    """Configure the current control planes and etcd members on every host, after one was moved or removed.

    Args:
        limit: The hosts to configure; empty for all.
        members: Whether an etcd member left, so that the API servers need new arguments.
        lost: Hosts that do not answer.
    """
    announce = Command("configure the control planes and etcd members on every host", "cluster.yml", limit)
    return (announce, *(renew_api_servers(lost) if members else ()))


def renew_api_servers(lost: Iterable[str] = ()) -> tuple[Command, ...]:
    """Rewrite the static pods of the control planes, one host after the other, without an upgrade or a drain.

    `cluster.yml` writes them only when a host joins (roles/kubernetes/control-plane/tasks/kubeadm-setup.yml), so that changed
    arguments such as `--etcd-servers` would not reach the API servers.
    """
    limit = ",".join((_QUORUM, *(f"!{host}" for host in lost)))
    variables = {"drain_nodes": False, "system_upgrade": False}
    return (Command("update the arguments of every API server", "upgrade-cluster.yml", limit, variables),)


def remove(host: str) -> tuple[Command, ...]:
    """Remove a host that answers: drain it, remove its etcd member, delete its Node, and uninstall Kubernetes on it."""
    limit = f"{host},kube_control_plane[0],etcd[0]"
    return (Command("remove the host and uninstall Kubernetes on it", "remove-node.yml", limit, {"node": host, "skip_confirmation": True}),)


def remove_dead(host: str, *, address: str = "") -> tuple[Command, ...]:
    """Remove a host that does not answer.

    Args:
        host: The host, still in hosts.yaml.
        address: Its `access_ip` or `ip`, by which the play finds its etcd member. The fact cache may lack the address.
    """
    variables: dict[str, Any] = {"node": host, "skip_confirmation": True, "reset_nodes": False, "allow_ungraceful_removal": True}
    if address:
        variables["main_access_ip"] = address
    return (Command("remove the host from the cluster without contacting it", "remove-node.yml", host, variables),)


def upgrade(version: str, *, workers: Iterable[Iterable[str]] = (), serial: str = "", away: Iterable[str] = ()) -> tuple[Command, ...]:
    """Upgrade the cluster: control planes one by one, then the workers in batches.

    Args:
        version: Kubernetes' version without a v, checked by `preflight.check_upgrade`.
        workers: The batches. Each is drained, upgraded and uncordoned before the next one.
        serial: The number of hosts of a batch at a time, such as `1` or `25%`; empty for Kubespray's default, 20 %.
        away: Workers that do not answer and are in no batch: gathering their facts would fail.
    """
    variables: dict[str, Any] = {"kube_version": version}
    several = variables | ({"serial": serial} if serial else {})
    batches = [",".join(batch) for batch in workers]
    without = [f"!{host}" for host in away]
    return (
        Command("gather the facts of every host", _FACTS, ",".join(("all", *without)) if without else ""),
        Command(f"upgrade control planes and etcd to {version}", "upgrade-cluster.yml", "kube_control_plane:etcd", variables),
        *(Command(f"upgrade workers to {version}", "upgrade-cluster.yml", batch, several) for batch in batches if batch),
    )


def reset() -> tuple[Command, ...]:
    """Uninstall Kubernetes and etcd on every host. v2.31 needs `reset_confirmation`: it fails with `skip_confirmation` alone."""
    return (Command("uninstall Kubernetes and etcd on every host", "reset.yml", "", {"reset_confirmation": True}),)


def recover(*, snapshot: str = "") -> tuple[Command, ...]:
    """Recover the control plane: the remaining hosts are first in their groups, the lost ones are in the groups `broken_*`.

    Args:
        snapshot: An etcd snapshot on the controller; empty takes one from the remaining member.
    """
    variables: dict[str, Any] = {"etcd_retries": _ETCD_RETRIES}
    if snapshot:
        variables["etcd_snapshot"] = snapshot
    return (
        Command("gather the facts of the remaining hosts", _FACTS),
        Command("recover etcd and the control plane", "recover-control-plane.yml", _QUORUM, variables),
        *announce_members(),
    )
