"""Rules about the image registry and who trusts it, by the judgements that the roles' preflights use too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.rules.group_membership import kubernetes_is_given
from primus_bootstrap.inventory.source.yaml_values import is_template, is_vaulted, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import yaml

    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.rules.context import ValidationContext


def registry(reading: ValidationContext) -> Iterator[Problem]:
    """A second host would hold other images than the first; a missing bucket or key would be found out at the start of the service."""
    hosts = reading.groups.get("oci_registry", ())
    if not hosts:
        return
    filters = load_filters("oci_registry")
    stated = _stated(reading, hosts[0], filters.VARIABLES)
    # Names only: passwords are references that nothing but a run resolves.
    written = reading.merged.of("oci_registry_accounts").get(hosts[0])
    listed: Any = value_of(written.node) if written else []
    accounts = (
        [one["name"] for one in listed if isinstance(one, dict) and isinstance(one.get("name"), str)] if isinstance(listed, list) else []
    )
    if "oci_registry_username" not in stated:
        stated["oci_registry_username"] = "cluster"
    yield from _problems(reading, "oci_registry", hosts[0], filters.findings(list(hosts), stated, accounts))


def registry_trust(reading: ValidationContext) -> Iterator[Problem]:
    """A policy without a key would refuse every image; keys without a policy would let every image in."""
    filters = load_filters("registry_trust")
    reported: set[tuple[str, str]] = set()
    for host in reading.groups.get("container_host", ()):
        stated = _stated(reading, host, filters.VARIABLES)
        found = [one for one in filters.findings(stated, bool(reading.groups.get("oci_registry"))) if (one[0], one[1]) not in reported]
        reported.update((about, what) for about, what, _, _ in found)
        yield from _problems(reading, "container_host", host, found)


def policy_of_engines(reading: ValidationContext) -> Iterator[Problem]:
    """Where only signed images may run, an engine that reads no policy would run any: the first verification would fail."""
    stated = {
        ("container_runtime_engine", "docker"): ("docker", "choose podman"),
        ("container_runtime_apptainer_version", None): ("Apptainer", "leave container_runtime_apptainer_version empty"),
    }
    policies = reading.merged.of("registry_trust_policy")
    reported: set[Origin] = set()
    signed = [host for host in reading.groups.get("container_host", ()) if host in policies and _plain(policies[host].node) == "signed"]
    for (name, wanted), (engine, remedy) in stated.items():
        for host in signed:
            definition = reading.merged.of(name).get(host)
            value = _plain(definition.node) if definition else None
            if definition is None or not value or (wanted and value != wanted) or definition.origin in reported:
                continue
            reported.add(definition.origin)
            what = f"{engine} reads no policy of signatures, and {host} may run only signed images (registry_trust_policy)"
            fix = f"{remedy}, or leave hosts with {engine} out: registry_trust_policy: keep, registry_trust_signed_by: []"
            yield Problem(definition.origin.file, definition.origin.line, what, fix, "trust-policy-of-engine")


def _plain(node: yaml.Node) -> Any:
    """Return a value that is written as it is, None for one that only a run knows."""
    return None if is_template(node) or is_vaulted(node) else value_of(node)


def registry_trust_of_containerd(reading: ValidationContext) -> Iterator[Problem]:
    """What Kubespray writes for containerd and what we do must not be the same file, and containerd keeps no policy of signatures."""
    if kubernetes_is_given(reading):
        return
    filters, own, harbor = load_filters("registry_trust"), _own_address(reading), _harbor_address(reading)
    reported: set[tuple[str, str]] = set()
    looked: set[tuple[int, ...]] = set()
    for host in dict.fromkeys((*reading.groups.get("kube_control_plane", ()), *reading.groups.get("kube_node", ()))):
        where = tuple(id(reading.merged.of(name).get(host)) for name in filters.CONTAINERD_VARIABLES)
        if where in looked:  # thousands of hosts have these from one place
            continue
        looked.add(where)
        found = filters.containerd_findings(_stated(reading, host, filters.CONTAINERD_VARIABLES), own, harbor)
        found = [one for one in found if (one[0], one[1]) not in reported]
        reported.update((about, what) for about, what, _, _ in found)
        group = "kube_control_plane" if host in reading.groups.get("kube_control_plane", ()) else "kube_node"
        yield from _problems(reading, group, host, found)


def _harbor_address(reading: ValidationContext) -> tuple[str, ...]:
    """Return the name of the cluster's Harbor; none where there is none, or where only a run knows it."""
    hosts = reading.groups.get("harbor", ())[:1]
    return tuple(str(name) for host in hosts if (name := _stated(reading, host, ("harbor_hostname",)).get("harbor_hostname")))


def _own_address(reading: ValidationContext) -> str:
    """Return NAME:PORT of the cluster's own registry as playbooks/vars/registry_trust.yml does; empty where there is none."""
    hosts = reading.groups.get("oci_registry", ())
    if not hosts:
        return ""
    stated = _stated(reading, hosts[0], ("oci_registry_name", "oci_registry_port"))
    return f"{stated.get('oci_registry_name') or hosts[0]}:{stated.get('oci_registry_port', 5000)}"


def _stated(reading: ValidationContext, host: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the variables that a host has, without those that only a run knows."""
    stated = {}
    for name in names:
        if host in reading.merged.of(name):
            try:
                stated[name] = reading.view.variables(host)[name]
            except InventoryError:  # a template that fails is reported by a rule of its own
                continue
    return stated


def _problems(reading: ValidationContext, group: str, host: str, found: Sequence[tuple[str, str, str, str]]) -> Iterator[Problem]:
    for about, what, fix, rule in found:
        origin = reading.merged.origin(host, about) or reading.group_origin(group)
        yield Problem(origin.file, origin.line, what, fix, rule)


RULES: tuple[Callable[[ValidationContext], Iterator[Problem]], ...] = (
    registry,
    registry_trust,
    policy_of_engines,
    registry_trust_of_containerd,
)
