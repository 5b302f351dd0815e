"""Rules about the packet filter: hosts that cannot have it, and the values of its role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext

_GROUP = "packet_filter"
_KUBERNETES = ("k8s_cluster", "kube_control_plane", "kube_node", "etcd", "calico_rr")
_LISTS = ("packet_filter_ssh_sources", "packet_filter_extra_rules", "packet_filter_admin_sources", "packet_filter_trusted_interfaces")
_MORE = "packet_filter_addresses"
# An address for documentation (RFC 5737) in place of one that only a run can resolve.
_UNRESOLVED = "192.0.2.0"


def packet_filter_on_kubernetes(context: ValidationContext) -> Iterator[Problem]:
    """Report hosts of Kubernetes: a second table that drops packets overrides what the network plug-in accepts for pods and Services."""
    kubernetes = {host for group in _KUBERNETES for host in context.groups.get(group, ())}
    hosts = [host for host in context.groups.get(_GROUP, ()) if host in kubernetes]
    if not hosts:
        return
    plugin = context.resolved_values(hosts[0], ("kube_network_plugin",)).get("kube_network_plugin", "calico")
    shown = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
    what = f"{shown} cannot have the packet filter: in Kubernetes the network plug-in ({plugin}) writes the rules of its hosts,"
    what += f" and those of {_GROUP} would drop the traffic of pods"
    yield context.group_origin(_GROUP).problem(what, f"remove them from {_GROUP}, and use the policies of {plugin}", "packet-filter")


def packet_filter_values(context: ValidationContext) -> Iterator[Problem]:
    """Report rules that nftables would not accept, sources that do not exist, and hosts whose packets every filter would reject."""
    hosts = context.groups.get(_GROUP, ())
    if not hosts or "packet_filter_extra_rules" not in load_options():  # the content folder has no role `packet_filter`
        return
    filters = load_filters("packet_filter")
    addresses = _addresses(context, filters)
    for host, what, fix in filters.address_problems(addresses):
        yield context.origin(host, _MORE, _GROUP).problem(what, fix, "packet-filter")
    reported: set[str] = set()
    for host in hosts:
        for what, fix in filters.value_problems(_given(context, host, addresses)):
            if what not in reported:
                reported.add(what)
                about = next((name for name in _LISTS if name in what), "")
                yield context.origin(host, about, _GROUP).problem(what, fix, "packet-filter")


def _addresses(context: ValidationContext, filters: Any) -> dict[str, list[str]]:
    """Return the addresses of every host, as the role finds them."""
    values: dict[str, dict[str, Any]] = {host: {"inventory_hostname": host} for host in context.hosts}
    for name in filters.ADDRESS_VARIABLES:
        for host in context.variable_index.by_host(name):
            values[host][name] = _UNRESOLVED
        for address in context.resolver.addresses(name):
            values[address.host][name] = address.text
    for host in context.variable_index.by_host(_MORE):
        values[host] |= context.resolved_values(host, (_MORE,))
    return {host: filters.host_addresses(variables) for host, variables in values.items()}


def _given(context: ValidationContext, host: str, addresses: dict[str, list[str]]) -> dict[str, Any]:
    options, values = load_options(), context.resolved_values(host, _LISTS)
    lists = {name: values.get(name, options[name].default) for name in _LISTS}
    ssh, extra, administrators, interfaces = (value if isinstance(value, list) else [] for value in lists.values())
    # The check of types reports entries of another form.
    complete = [one for one in extra if isinstance(one, dict) and all(isinstance(one.get(key), list) for key in ("ports", "sources"))]
    rules = [{"name": "", **one, "groups": ["all"], "stated": True} for one in complete]
    services = [{"name": "ssh", "groups": ["all"], "ports": [], "sources": ssh, "stated": True}, *rules]
    return {
        "services": services,
        "groups": context.groups,
        "group_names": ["all"],
        "addresses": addresses,
        "administrators": administrators,
        "interfaces": interfaces,
    }


RULES: tuple[Rule, ...] = (packet_filter_on_kubernetes, packet_filter_values)
