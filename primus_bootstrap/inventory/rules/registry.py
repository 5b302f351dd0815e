"""Rules about the image registry and the image policy of hosts, by the checks of the roles `oci_registry` and `registry_trust`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.rules.group_membership import is_existing_kubernetes
from primus_bootstrap.inventory.source.yaml_values import is_deferred, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import yaml

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext

# Engines that do not read the image policy: (variable, value or None for any), name, how to do without the engine.
_ENGINES_WITHOUT_POLICY = (
    (("container_runtime_engine", "docker"), "docker", "set container_runtime_engine: podman"),
    (("container_runtime_apptainer_version", None), "Apptainer", "leave container_runtime_apptainer_version empty"),
)


def registry(context: ValidationContext) -> Iterator[Problem]:
    """Report a registry with two hosts, which would store different images, and a missing bucket or key."""
    hosts = context.groups.get("oci_registry", ())
    if not hosts:
        return
    filters = load_filters("oci_registry")
    values = context.resolved_values(hosts[0], filters.VARIABLES)
    # Only the names of the accounts: their passwords are references that a run resolves.
    definition = context.variable_index.by_host("oci_registry_accounts").get(hosts[0])
    raw: Any = value_of(definition.node) if definition else []
    entries = [one for one in raw if isinstance(one, dict)] if isinstance(raw, list) else []
    accounts = [one["name"] for one in entries if isinstance(one.get("name"), str)]
    values.setdefault("oci_registry_username", "cluster")
    yield from _problems(context, "oci_registry", hosts[0], filters.findings(list(hosts), values, accounts))


def registry_trust(context: ValidationContext) -> Iterator[Problem]:
    """Report an image policy without keys, which would reject every image, and keys without a policy, which have no effect."""
    filters = load_filters("registry_trust")
    has_registry = bool(context.groups.get("oci_registry"))
    reported: set[tuple[str, str]] = set()
    for host in context.groups.get("container_host", ()):
        findings = filters.findings(context.resolved_values(host, filters.VARIABLES), has_registry)
        yield from _problems(context, "container_host", host, _new_findings(findings, reported))


def engine_without_policy(context: ValidationContext) -> Iterator[Problem]:
    """Report container engines that ignore the image policy on hosts that may run only signed images."""
    policies = context.variable_index.by_host("registry_trust_policy")
    container_hosts = context.groups.get("container_host", ())
    signed = [host for host in container_hosts if host in policies and _plain_value(policies[host].node) == "signed"]
    reported: set[Origin] = set()
    for (name, expected), engine, remedy in _ENGINES_WITHOUT_POLICY:
        for host in signed:
            definition = context.variable_index.by_host(name).get(host)
            value = _plain_value(definition.node) if definition else None
            if definition is None or not value or (expected and value != expected) or definition.origin in reported:
                continue
            reported.add(definition.origin)
            what = f"{engine} ignores the image policy, and {host} may run only signed images (registry_trust_policy)"
            fix = f"{remedy}, or set registry_trust_policy: keep and registry_trust_signed_by: [] for the hosts with {engine}"
            yield definition.origin.problem(what, fix, "trust-policy-of-engine")


def _plain_value(node: yaml.Node) -> Any:
    """Return a value, or None if only a run can resolve it."""
    return None if is_deferred(node) else value_of(node)


def registry_trust_of_containerd(context: ValidationContext) -> Iterator[Problem]:
    """Report containerd settings that Kubespray and this project would write to the same file, and policies that containerd ignores."""
    if is_existing_kubernetes(context):
        return
    filters, own, harbor = load_filters("registry_trust"), _registry_address(context), _harbor_address(context)
    control_planes = context.groups.get("kube_control_plane", ())
    reported: set[tuple[str, str]] = set()
    checked: set[tuple[int, ...]] = set()
    for host in dict.fromkeys((*control_planes, *context.groups.get("kube_node", ()))):
        definitions = tuple(id(context.variable_index.by_host(name).get(host)) for name in filters.CONTAINERD_VARIABLES)
        if definitions in checked:  # thousands of hosts share the same definitions
            continue
        checked.add(definitions)
        values = context.resolved_values(host, filters.CONTAINERD_VARIABLES)
        group = "kube_control_plane" if host in control_planes else "kube_node"
        findings = filters.containerd_findings(values, own, harbor)
        yield from _problems(context, group, host, _new_findings(findings, reported))


def _harbor_address(context: ValidationContext) -> tuple[str, ...]:
    """Return the host name of the cluster's Harbor; empty if there is none, or only a run can resolve it."""
    hosts = context.groups.get("harbor", ())[:1]
    names = [context.resolved_values(host, ("harbor_hostname",)).get("harbor_hostname") for host in hosts]
    return tuple(str(name) for name in names if name)


def _registry_address(context: ValidationContext) -> str:
    """Return NAME:PORT of the cluster's registry, as playbooks/vars/registry_trust.yml computes it; empty if there is none."""
    hosts = context.groups.get("oci_registry", ())
    if not hosts:
        return ""
    values = context.resolved_values(hosts[0], ("oci_registry_name", "oci_registry_port"))
    return f"{values.get('oci_registry_name') or hosts[0]}:{values.get('oci_registry_port', 5000)}"


def _new_findings(findings: Sequence[tuple[str, str, str, str]], reported: set[tuple[str, str]]) -> list[tuple[str, str, str, str]]:
    """Return the findings that were not reported for another host, and add them to `reported`."""
    new = [finding for finding in findings if finding[:2] not in reported]
    reported.update(finding[:2] for finding in new)
    return new


def _problems(context: ValidationContext, group: str, host: str, findings: Sequence[tuple[str, str, str, str]]) -> Iterator[Problem]:
    for about, what, fix, rule in findings:
        yield context.origin(host, about, group).problem(what, fix, rule)


RULES: tuple[Rule, ...] = (registry, registry_trust, engine_without_policy, registry_trust_of_containerd)
