"""Rules about hosts: names, addresses, ports and keys."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.inventory.ansible.addresses import Address, group_by_value, parse_address
from primus_bootstrap.inventory.rules import connection_values
from primus_bootstrap.inventory.rules.address_values import bad_ansible_host, bad_ip
from primus_bootstrap.inventory.schema.names import is_ansible_secret
from primus_bootstrap.inventory.source.yaml_values import is_deferred, is_null, is_template, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext
    from primus_bootstrap.inventory.source.source_map import Definition

# The name of a Kubernetes node: RFC 1123 in lower case.
_KUBE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IP_VARIABLES = ("ip", "access_ip", "ip6", "access_ip6")
_PORT_VARIABLES = ("ansible_port", "ansible_ssh_port")
_PORT_IN_NAME = re.compile(r".*[^:]:\d+")
# Linux: HOST_NAME_MAX of hostname(7). DNS: RFC 1035 section 2.3.4. Kubernetes: the value of the label kubernetes.io/hostname,
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_LONGEST_HOST_NAME, _LONGEST_DNS_LABEL, _LONGEST_KUBE_NAME = 64, 63, 63
_CONNECTION_VARIABLES = ("ansible_host", "ansible_user", "ansible_connection")
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST_KEY_SWITCHES = ("ansible_host_key_checking", "ansible_ssh_host_key_checking")
# Number of fields after the type name in each type of public key: RFC 4253 section 6.6, RFC 5656 section 3.1, RFC 8709 section 4, and
# https://github.com/openssh/openssh-portable/blob/master/PROTOCOL.u2f
_KEY_FIELDS = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "sk-ssh-ed25519@openssh.com": 2,
    "sk-ecdsa-sha2-nistp256@openssh.com": 3,
}
_ED25519_BYTES = 32


def duplicate_host(context: ValidationContext) -> Iterator[Problem]:
    """Report a host that two entries of one group contain; which of its variables is effective would depend on their order."""
    first: dict[tuple[str, str], tuple[str, int]] = {}
    for entry in context.source_map.hosts:
        twice = [host for host in entry.hosts if (entry.group, host) in first]
        if twice:
            pattern, line = first[entry.group, twice[0]]
            shown = twice[0] if len(twice) == 1 else f"{twice[0]} and {len(twice) - 1} more"
            what = f"host {shown} is twice in {entry.group}: in `{pattern}` on line {line} and in `{entry.pattern}`"
            yield entry.origin.problem(what, "delete one of the two entries", "duplicate-host")
        for host in entry.hosts:
            first.setdefault((entry.group, host), (entry.pattern, entry.origin.line))


def variable_twice(context: ValidationContext) -> Iterator[Problem]:
    """Report a host variable that hosts.yaml sets to two values; the last one would be effective."""
    first: dict[tuple[str, str], Definition] = {}
    for definition in context.source_map.definitions:
        if definition.kind != "host":
            continue
        for host in definition.targets:
            other = first.setdefault((host, definition.name), definition)
            if other is not definition and not _same(other.node, definition.node):
                what = f"{definition.name} of {host} is set a second time, to a different value (first on line {other.origin.line})"
                yield definition.origin.problem(what, "delete one of the two lines", "variable-twice")
                break


def _same(one: yaml.Node, other: yaml.Node) -> bool:
    return yaml.serialize(one) == yaml.serialize(other)


def host_named_like_group(context: ValidationContext) -> Iterator[Problem]:
    """Report a host with the name of a group; in a host pattern the name would select the group."""
    for entry in context.source_map.hosts:
        for host in entry.hosts:
            if host in context.groups:
                yield entry.origin.problem(f"{host} is the name of a host and of a group", "rename the host or the group", "same-name")


def long_host_name(context: ValidationContext) -> Iterator[Problem]:
    """Report a host name that is too long for DNS, Linux or Kubernetes."""
    fix = "use a shorter name, and set the long one as ansible_host"
    kubernetes = frozenset(context.kubernetes_hosts)
    for host in context.hosts:
        if what := _length_fault(host, kubernetes=host in kubernetes):
            yield context.host_origins[host].problem(f"{host}: {what}", fix, "host-name")


def _length_fault(name: str, *, kubernetes: bool) -> str:
    longest = max(name.split("."), key=len)
    if len(longest) > _LONGEST_DNS_LABEL:
        return f"`{longest}` has {len(longest)} characters; a part of a DNS name has at most {_LONGEST_DNS_LABEL}"
    if len(name) > _LONGEST_HOST_NAME:
        return f"the name has {len(name)} characters; a Linux host name has at most {_LONGEST_HOST_NAME}"
    if kubernetes and len(name) > _LONGEST_KUBE_NAME:
        return f"the name has {len(name)} characters; the name of a Kubernetes node has at most {_LONGEST_KUBE_NAME}"
    return ""


def kube_host_name(context: ValidationContext) -> Iterator[Problem]:
    """Report a host name that cannot be the name of a Kubernetes node; Kubespray would stop at it after some minutes."""
    for host in sorted(context.kubernetes_hosts):
        if not _KUBE_NAME.fullmatch(host):
            origin = context.host_origins[host]
            name = _kube_name(host)
            fix = f"rename it to {name}" if name and name not in context.host_origins else "use another name for this host"
            yield origin.problem(
                f"{host}: the name of a Kubernetes node must contain only lower-case letters, digits, `-` and `.`", fix, "kube-host-name"
            )


def _kube_name(host: str) -> str:
    """Return the name of a Kubernetes node that is most similar to a host name; empty if there is none."""
    labels = (label.strip("-") for label in host.lower().replace("_", "-").split("."))
    return ".".join(label for label in labels if label)


def no_value(context: ValidationContext) -> Iterator[Problem]:
    """Report empty and nested values of connection variables; Ansible's own error would name neither host nor file."""
    for variable in (*_IP_VARIABLES, *_PORT_VARIABLES, *_CONNECTION_VARIABLES):
        for definition in context.variable_index.by_name.get(variable, ()):
            node, origin = definition.node, definition.origin
            if not isinstance(node, yaml.ScalarNode):
                yield origin.problem(f"{variable} must be a single value", "write one value after the `:`", "type")
            elif node.value == "" or is_null(node):
                yield origin.problem(f"{variable} has no value", "set a value, or delete the line", "type")
            elif _has_blanks_around(node):
                what = f"{variable}: the value begins or ends with a space"
                yield origin.problem(what, "delete the space", "type")


def _has_blanks_around(node: yaml.Node) -> bool:
    """Return whether spaces around a value would be part of it. Those of a resolved template are removed."""
    return isinstance(node, yaml.ScalarNode) and not is_deferred(node) and node.value != node.value.strip()


def unresolvable(context: ValidationContext) -> Iterator[Problem]:
    """Report connection variables whose templates fail. They are needed before facts exist, so every run would fail.

    Passwords are left out: a lookup may need a Vault password or an environment variable that only the run has.
    """
    ansible_variables = [name for name in context.variable_index.by_name if name.startswith("ansible_") and not is_ansible_secret(name)]
    for variable in dict.fromkeys((*_PORT_VARIABLES, *_CONNECTION_VARIABLES, *ansible_variables)):
        reported = set()
        for problem in context.resolver.resolve(variable).problems:
            if (problem.file, problem.line) not in reported:
                reported.add((problem.file, problem.line))
                yield problem


def not_an_address(context: ValidationContext) -> Iterator[Problem]:
    """Report invalid IP addresses."""
    for variable in _IP_VARIABLES:
        yield from _check_values(context, variable, bad_ip)
    yield from _check_values(context, "ansible_host", bad_ansible_host)


def _check_values(
    context: ValidationContext, variable: str, check: Callable[[str, str], tuple[str, str] | None], *, rule: str = "not-an-address"
) -> Iterator[Problem]:
    """Check every value of a variable, and report each definition once, for its first host."""
    reported = set()
    for address in context.resolver.addresses(variable):
        origin, place = address.definition.origin, id(address.definition.node)
        if place in reported or not address.text or _has_blanks_around(address.definition.node):
            continue
        if found := check(variable, address.text):
            reported.add(place)
            suffix = f" (for {address.host})" if is_template(address.definition.node) else ""
            yield origin.problem(found[0] + suffix, found[1], rule)


def connection_value(context: ValidationContext) -> Iterator[Problem]:
    """Report values of connection variables that Ansible would reject when it connects."""
    for variable, check in connection_values.CHECKS.items():
        yield from _check_values(context, variable, check, rule="connection")


def duplicate_address(context: ValidationContext) -> Iterator[Problem]:
    """Report two hosts with the same address; one machine would be installed twice at once, and counted twice in a quorum."""
    ports = _ports(context)
    local = {address.host for address in context.resolver.addresses("ansible_connection") if address.text != "ssh"}
    reached = [address for address in context.resolver.addresses("ansible_host") if address.host not in local]
    yield from _names_of_other_hosts(context, reached, local, ports)
    for address, several in group_by_value(reached).items():
        for port in sorted({ports.get(one.host, "22") for one in several}):
            yield from _same_address("ansible_host", address, [one for one in several if ports.get(one.host, "22") == port])
    for variable in _IP_VARIABLES:
        for address, several in group_by_value(context.resolver.addresses(variable)).items():
            yield from _same_address(variable, address, several)


def _ports(context: ValidationContext) -> Mapping[str, str]:
    """Return the SSH port of each host that sets one, in a variable or in its name (`n1:2222`)."""
    in_names = {host for entry in context.source_map.hosts if _PORT_IN_NAME.fullmatch(entry.pattern) for host in entry.hosts}
    found = {address.host: address.text for variable in _PORT_VARIABLES for address in context.resolver.addresses(variable)}
    return found | {host: port for host in in_names if (port := context.host_port(host))}


def _names_of_other_hosts(
    context: ValidationContext, reached: list[Address], local: set[str], ports: Mapping[str, str]
) -> Iterator[Problem]:
    """Report an ansible_host that is the name of another host, if that host is connected to by its name."""
    addressed = {host for variable in ("ansible_host", "ansible_ssh_host") for host in context.variable_index.by_host(variable)}
    named = {host.lower(): host for host in context.hosts if host not in addressed and host not in local}
    for address in reached:
        other = named.get(address.text.lower())
        if other and ports.get(address.host, "22") == ports.get(other, "22"):
            origin = address.definition.origin
            what = f"ansible_host of {address.host} is the name of the host {other} (line {context.host_origins[other].line})"
            yield origin.problem(what, "give each host an address of its own", "duplicate-address")


def _same_address(variable: str, address: str, several: list[Address]) -> Iterator[Problem]:
    if len(several) < 2 or not address:
        return
    first = several[0]
    reported = set()
    for other in several[1:]:
        origin = other.definition.origin
        if origin in reported:
            continue
        reported.add(origin)
        where = "" if origin == first.definition.origin else f" (line {first.definition.origin.line})"
        what = f"{other.host} and {first.host}{where} have the same {variable}: {address}"
        yield origin.problem(what, "give each host an address of its own", "duplicate-address")


def near_host(context: ValidationContext) -> Iterator[Problem]:
    """Report a host without an address whose name differs by one letter from a host with one: probably misspelt in a group."""
    for host, near in misspelt_hosts(context).items():
        what = f"{host} has no address, and its name differs by one letter from {near}"
        yield context.host_origins[host].problem(what, f"did you mean {near}? If not, set ansible_host for {host}", "near-host")


def misspelt_hosts(context: ValidationContext) -> Mapping[str, str]:
    """Return the hosts that are probably misspelt, with the host that is probably meant.

    Empty if fewer than half of the hosts have an address. Then they are found by DNS.
    """
    addressed = {host for variable in ("ansible_host", "ansible_ssh_host", "ip") for host in context.variable_index.by_host(variable)}
    local = {address.host for address in context.resolver.addresses("ansible_connection") if address.text != "ssh"}
    bare = [host for host in context.hosts if host not in addressed and host not in local and not parse_address(host)]
    if not bare or 2 * len(addressed) <= len(context.hosts):
        return {}
    index = _deletions(addressed)
    return {host: near for host in bare if (near := _nearest_by_one_letter(host, index))}


def _deletions(names: Iterable[str]) -> Mapping[str, list[str]]:
    """Index names by every form with one letter left out. Two names that differ by one letter share such a form."""
    found: dict[str, list[str]] = {}
    for name in names:
        for key in {name, *(name[:i] + name[i + 1 :] for i in range(len(name)))}:
            found.setdefault(key, []).append(name)
    return found


def _nearest_by_one_letter(host: str, index: Mapping[str, list[str]]) -> str:
    candidates = {name for key in (host, *(host[:i] + host[i + 1 :] for i in range(len(host)))) for name in index.get(key, ())}
    return next((name for name in sorted(candidates) if _differ_by_one_letter(host, name)), "")


def _differ_by_one_letter(one: str, other: str) -> bool:
    """Return whether two names differ by one added, missing or wrong letter, or by two swapped ones."""
    at = next((index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other)))
    swapped = one[at : at + 2] == other[at : at + 2][::-1] and one[at + 2 :] == other[at + 2 :]
    return one != other and (one[at + 1 :] == other[at + 1 :] or one[at + 1 :] == other[at:] or one[at:] == other[at + 1 :] or swapped)


def bad_port(context: ValidationContext) -> Iterator[Problem]:
    """Report an invalid SSH port; ssh's own error would name neither host nor file."""
    for variable in _PORT_VARIABLES:
        yield from _check_values(context, variable, _bad_port, rule="port")


def _bad_port(variable: str, text: str) -> tuple[str, str] | None:
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return None
    return (f"{variable}: `{text}` is not a port", "set a number from 1 to 65535")


def bad_host_key(context: ValidationContext) -> Iterator[Problem]:
    """Report a `host_key` that is truncated or not a public key."""
    for definition in context.variable_index.by_name.get("host_key", ()):
        node = definition.node
        if not isinstance(node, yaml.ScalarNode) or is_deferred(node) or _is_public_key(node.value):
            continue
        origin = definition.origin
        fix = "copy the content of /etc/ssh/ssh_host_ed25519_key.pub on the host"
        yield origin.problem("host_key is not a public SSH key (`ssh-ed25519 AAAA…`)", fix, "host-key")


def _is_public_key(text: str) -> bool:
    words = text.split()
    if len(words) < 2 or words[0] not in _KEY_FIELDS:
        return False
    try:
        data = base64.b64decode(words[1], validate=True)
    except binascii.Error:
        return False
    fields = _fields(data)
    if len(fields) != 1 + _KEY_FIELDS[words[0]] or fields[0] != words[0].encode() or not all(fields):
        return False
    return "ed25519" not in words[0] or len(fields[1]) == _ED25519_BYTES


def _fields(data: bytes) -> list[bytes]:
    """Return the fields of a public key, each of which has its length in front; empty if the last one is truncated."""
    found, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4])
        if at + 4 > len(data) or end > len(data):
            return []
        found.append(data[at + 4 : end])
        at = end
    return found


def cluster_name(context: ValidationContext) -> Iterator[Problem]:
    """Report a cluster name that is not the same for all hosts or not safe in a path."""
    for definition in context.variable_index.by_name.get("cluster_name", ()):
        origin = definition.origin
        if definition.kind != "group" or definition.targets != ("all",):
            what = "cluster_name is set for only some of the hosts"
            fix = "set it once, under `vars:` of `all`"
            if "." in str(value_of(definition.node)):  # as in Kubespray's sample inventory
                fix = f"delete it there; to set the DNS domain of Kubernetes, write dns_domain: {value_of(definition.node)}"
            yield origin.problem(what, fix, "cluster-name")
        elif not is_cluster_name(definition.node):
            what = "cluster_name must have at most 63 characters: letters, digits, `-`, `_` and `.`"
            yield origin.problem(what, _cluster_name_fix(definition.node), "cluster-name")


def _cluster_name_fix(node: yaml.Node) -> str:
    """Return the fix for an invalid name: the name with dashes for other characters, if that is one."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", str(node.value)).strip("-._").lower()
    usable = isinstance(node, yaml.ScalarNode) and "{{" not in node.value and _CLUSTER_NAME.fullmatch(plain)
    return f"write cluster_name: {plain}" if usable else "write a plain name, not a template"


def is_cluster_name(node: yaml.Node) -> bool:
    """Return whether a value is a valid cluster name. The name is part of paths."""
    return isinstance(node, yaml.ScalarNode) and bool(_CLUSTER_NAME.fullmatch(node.value))


def host_key_check_disabled(context: ValidationContext) -> Iterator[Problem]:
    """Report variables that would switch off the check of host keys, which are pinned and checked on every connection."""
    fixes = dict.fromkeys(_HOST_KEY_SWITCHES, "delete it; to pin the key of a host, set host_key")
    fixes["ansible_ssh_args"] = "move the options to ansible_ssh_common_args"
    for name, fix in fixes.items():
        for definition in context.variable_index.by_name.get(name, ()):
            origin = definition.origin
            yield origin.problem(f"{name} would switch off the check of host keys", fix, "host-key-check")


RULES: tuple[Rule, ...] = (
    duplicate_host,
    variable_twice,
    host_named_like_group,
    long_host_name,
    kube_host_name,
    no_value,
    unresolvable,
    not_an_address,
    connection_value,
    duplicate_address,
    near_host,
    bad_port,
    bad_host_key,
    host_key_check_disabled,
    cluster_name,
)
