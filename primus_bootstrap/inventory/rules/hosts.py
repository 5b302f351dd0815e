"""Rules about hosts: names, addresses, ports and keys."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.inventory.ansible.addresses import Address, by_value, looks_like_address, parse_address, resolve
from primus_bootstrap.inventory.source.yaml_values import is_template, is_vaulted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from primus_bootstrap.inventory.rules.context import ValidationContext
    from primus_bootstrap.inventory.source.source_map import Definition

# RFC 1123 in lower case: what Kubernetes takes as a node's name.
_KUBE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KUBE_GROUPS = ("kube_control_plane", "kube_node", "etcd")
_IP_VARIABLES = ("ip", "access_ip", "ip6", "access_ip6")
_PORT_VARIABLES = ("ansible_port", "ansible_ssh_port")
_PORT_IN_NAME = re.compile(r".*[^:]:\d+")
_NEEDED = ("ansible_host", "ansible_user", "ansible_connection")
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST_KEY_SWITCHES = ("ansible_host_key_checking", "ansible_ssh_host_key_checking")
# How many fields each type of key has behind its name: RFC 4253 section 6.6, RFC 5656 section 3.1, RFC 8709 section 4, and
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


def duplicate_host(reading: ValidationContext) -> Iterator[Problem]:
    """A host that two entries of one group mean has the variables of both, by the accident of their order."""
    seen: dict[tuple[str, str], tuple[str, int]] = {}
    for entry in reading.written.hosts:
        twice = [host for host in entry.hosts if (entry.group, host) in seen]
        if twice:
            pattern, line = seen[entry.group, twice[0]]
            shown = twice[0] if len(twice) == 1 else f"{twice[0]} and {len(twice) - 1} more"
            what = f"host {shown} stands twice in {entry.group}: as `{pattern}` on line {line} and as `{entry.pattern}`"
            yield Problem(entry.origin.file, entry.origin.line, what, "keep one of the two entries", "duplicate-host")
        for host in entry.hosts:
            seen.setdefault((entry.group, host), (entry.pattern, entry.origin.line))


def variable_twice(reading: ValidationContext) -> Iterator[Problem]:
    """A host's variable with two values in hosts.yaml has the one that happens to stand last."""
    seen: dict[tuple[str, str], Definition] = {}
    for definition in reading.written.definitions:
        if definition.kind != "host":
            continue
        for host in definition.targets:
            other = seen.setdefault((host, definition.name), definition)
            if other is not definition and not _same(other.node, definition.node):
                what = f"{definition.name} of {host} is set a second time, to another value (first on line {other.origin.line})"
                yield Problem(definition.origin.file, definition.origin.line, what, "keep one of the two", "variable-twice")
                break


def _same(one: yaml.Node, other: yaml.Node) -> bool:
    return yaml.serialize(one) == yaml.serialize(other)


def name_of_host_and_group(reading: ValidationContext) -> Iterator[Problem]:
    """A pattern that names both means the group: the host can no longer be chosen alone."""
    for entry in reading.written.hosts:
        for host in entry.hosts:
            if host in reading.groups:
                yield Problem(
                    entry.origin.file,
                    entry.origin.line,
                    f"{host} is the name of a host and of a group",
                    "rename one of the two",
                    "same-name",
                )


def kube_host_name(reading: ValidationContext) -> Iterator[Problem]:
    """Kubernetes takes a host's name as the node's name and refuses capitals and `_`: Kubespray stops there after minutes."""
    in_kube = {host for group in _KUBE_GROUPS for host in reading.groups.get(group, ())}
    for host in sorted(in_kube):
        if not _KUBE_NAME.fullmatch(host):
            origin = reading.host_origins[host]
            fix = f"call it {host.lower().replace('_', '-')}"
            yield Problem(
                origin.file,
                origin.line,
                f"{host}: a Kubernetes node's name holds only small letters, digits, `-` and `.`",
                fix,
                "kube-host-name",
            )


def no_value(reading: ValidationContext) -> Iterator[Problem]:
    """Ansible takes an empty or a nested value here, and fails with words that name neither host nor file."""
    for variable in (*_IP_VARIABLES, *_PORT_VARIABLES, *_NEEDED):
        for definition in reading.merged.by_name.get(variable, ()):
            node, origin = definition.node, definition.origin
            if not isinstance(node, yaml.ScalarNode):
                yield Problem(origin.file, origin.line, f"{variable} must be a single value", "write it behind the `:`", "type")
            elif node.value == "" or node.tag == "tag:yaml.org,2002:null":
                yield Problem(origin.file, origin.line, f"{variable} has no value", "give it a value, or delete the line", "type")
            elif _has_blanks_around(node):
                what = f"{variable}: there are blanks around its value"
                yield Problem(origin.file, origin.line, what, "write the value without them", "type")


def _has_blanks_around(node: yaml.Node) -> bool:
    """Tell whether blanks would be a part of the value; a template's are taken away when it is resolved."""
    return isinstance(node, yaml.ScalarNode) and not is_template(node) and not is_vaulted(node) and node.value != node.value.strip()


def unresolvable(reading: ValidationContext) -> Iterator[Problem]:
    """What leads to a host is needed before its facts are known, so a template that fails here fails in every run."""
    for variable in (*_PORT_VARIABLES, *_NEEDED):
        reported = set()
        for problem in resolve(reading, variable).failures:
            if (problem.file, problem.line) not in reported:
                reported.add((problem.file, problem.line))
                yield problem


def not_an_address(reading: ValidationContext) -> Iterator[Problem]:
    """A wrong digit in an address shows first as a host that does not answer, or as another host that does."""
    for variable in _IP_VARIABLES:
        yield from _each_once(reading, variable, _bad_ip)
    yield from _each_once(reading, "ansible_host", _bad_ansible_host)


def _bad_ip(variable: str, text: str) -> tuple[str, str] | None:
    address = parse_address(text)
    version = 6 if variable.endswith("6") else 4
    if address is None:
        return (f"{variable}: `{text}` is no IP address", _address_fix(text))
    if version == 6 and address.version == 4:
        return (f"{variable}: `{text}` is an IPv4 address", f"put it into {variable.removesuffix('6')}")
    if address.is_unspecified or address.is_multicast or address.is_loopback:
        return (
            f"{variable}: `{text}` is no address by which other hosts reach this one",
            "give the host's address on the cluster's network",
        )
    return None


def _bad_ansible_host(variable: str, text: str) -> tuple[str, str] | None:
    if parse_address(text) or not looks_like_address(text):
        return None
    return (f"{variable}: `{text}` looks like an IP address and is none", _address_fix(text))


def _address_fix(text: str) -> str:
    if "/" in text and parse_address(text.partition("/")[0]):
        return f"write it without the prefix length: {text.partition('/')[0]}"
    if text.count(":") == 1 and parse_address(text.partition(":")[0]):
        return f"write {text.partition(':')[0]}, and the port as ansible_port"
    parts = text.split(".")
    if len(parts) == 4 and all(part.isdigit() for part in parts):
        plain = ".".join(str(int(part)) for part in parts)
        return f"write {plain}" if parse_address(plain) else "each of the four numbers is at most 255"
    return "write an address such as 10.0.0.1"


def _each_once(reading: ValidationContext, variable: str, judge: Callable[[str, str], tuple[str, str] | None]) -> Iterator[Problem]:
    """Judge every value of a variable, and report each definition once, by its first host."""
    reported = set()
    for address in resolve(reading, variable).found:
        origin = address.definition.origin
        if origin in reported or not address.text or _has_blanks_around(address.definition.node):
            continue
        found = judge(variable, address.text)
        if found:
            reported.add(origin)
            of = f" (of {address.host})" if is_template(address.definition.node) else ""
            yield Problem(origin.file, origin.line, found[0] + of, found[1], "not-an-address")


def duplicate_address(reading: ValidationContext) -> Iterator[Problem]:
    """Two names of one machine: it would be set up twice at once, and counted twice in every quorum."""
    ports = _ports(reading)
    local = {address.host for address in resolve(reading, "ansible_connection").found if address.text != "ssh"}
    reached = [address for address in resolve(reading, "ansible_host").found if address.host not in local]
    yield from _names_of_other_hosts(reading, reached, local, ports)
    for address, several in by_value(reached).items():
        for port in sorted({ports.get(one.host, "22") for one in several}):
            yield from _shared("ansible_host", address, [one for one in several if ports.get(one.host, "22") == port])
    for variable in _IP_VARIABLES:
        for address, several in by_value(resolve(reading, variable).found).items():
            yield from _shared(variable, address, several)


def _ports(reading: ValidationContext) -> Mapping[str, str]:
    """Return the port of each host that has one of its own: of its variables, or of its name (`n1:2222`)."""
    in_names = {host for entry in reading.written.hosts if _PORT_IN_NAME.fullmatch(entry.pattern) for host in entry.hosts}
    found = {address.host: address.text for variable in _PORT_VARIABLES for address in resolve(reading, variable).found}
    return found | {host: port for host in in_names if (port := reading.host_port(host))}


def _names_of_other_hosts(
    reading: ValidationContext, reached: list[Address], local: set[str], ports: Mapping[str, str]
) -> Iterator[Problem]:
    """A host without an ansible_host is reached by its name, and another host may have that name as its address."""
    addressed = {host for variable in ("ansible_host", "ansible_ssh_host") for host in reading.merged.of(variable)}
    named = {host.lower(): host for host in reading.hosts if host not in addressed and host not in local}
    for address in reached:
        other = named.get(address.text.lower())
        if other and ports.get(address.host, "22") == ports.get(other, "22"):
            origin = address.definition.origin
            what = f"ansible_host of {address.host} is the host {other} (line {reading.host_origins[other].line})"
            yield Problem(origin.file, origin.line, what, "give each host an address of its own", "duplicate-address")


def _shared(variable: str, address: str, several: list[Address]) -> Iterator[Problem]:
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
        what = f"{variable} {address} of {other.host} is also that of {first.host}{where}"
        yield Problem(origin.file, origin.line, what, "give each host an address of its own", "duplicate-address")


def near_host(reading: ValidationContext) -> Iterator[Problem]:
    """A host without an address beside one that has it under almost the same name is that one, misspelt in a group.

    Only where most hosts have an address: elsewhere the name service knows them.
    """
    addressed = {host for variable in ("ansible_host", "ansible_ssh_host", "ip") for host in reading.merged.of(variable)}
    local = {address.host for address in resolve(reading, "ansible_connection").found if address.text != "ssh"}
    bare = [host for host in reading.hosts if host not in addressed and host not in local and not parse_address(host)]
    if not bare or 2 * len(addressed) <= len(reading.hosts):
        return
    index = _deletions(addressed)
    for host in bare:
        if near := _one_edit_away(host, index):
            origin = reading.host_origins[host]
            what = f"{host} has no address of its own, and its name is almost that of {near}"
            yield Problem(origin.file, origin.line, what, f"did you mean {near}? If not, give {host} an ansible_host", "near-host")


def _deletions(names: Iterable[str]) -> Mapping[str, list[str]]:
    """Index names by themselves with one letter left out: two names one slip apart share such a key."""
    found: dict[str, list[str]] = {}
    for name in names:
        for key in {name, *(name[:i] + name[i + 1 :] for i in range(len(name)))}:
            found.setdefault(key, []).append(name)
    return found


def _one_edit_away(host: str, index: Mapping[str, list[str]]) -> str:
    near = {name for key in (host, *(host[:i] + host[i + 1 :] for i in range(len(host)))) for name in index.get(key, ())}
    return next((name for name in sorted(near) if _one_slip(host, name)), "")


def _one_slip(one: str, other: str) -> bool:
    """Tell whether one letter too many, too few, wrong, or two swapped ones are all that differs."""
    at = next((index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other)))
    swapped = one[at : at + 2] == other[at : at + 2][::-1] and one[at + 2 :] == other[at + 2 :]
    return one != other and (one[at + 1 :] == other[at + 1 :] or one[at + 1 :] == other[at:] or one[at:] == other[at + 1 :] or swapped)


def bad_port(reading: ValidationContext) -> Iterator[Problem]:
    """A port that is no number stops ssh with a message that names neither the host nor the file."""
    for variable in _PORT_VARIABLES:
        reported = set()
        for address in resolve(reading, variable).found:
            origin = address.definition.origin
            if (
                origin not in reported
                and address.text
                and not (address.text.isascii() and address.text.isdigit() and 0 < int(address.text) < 65536)
            ):
                reported.add(origin)
                yield Problem(origin.file, origin.line, f"{variable}: `{address.text}` is no port", "give a number from 1 to 65535", "port")


def bad_host_key(reading: ValidationContext) -> Iterator[Problem]:
    """A pinned key that is cut off or a private one would shut the host out, or give the key away."""
    for definition in reading.merged.by_name.get("host_key", ()):
        node = definition.node
        if not isinstance(node, yaml.ScalarNode) or is_template(node) or is_vaulted(node) or _is_public_key(node.value):
            continue
        origin = definition.origin
        fix = "give the line of the host's /etc/ssh/ssh_host_ed25519_key.pub"
        yield Problem(origin.file, origin.line, "host_key is no public SSH key (`ssh-ed25519 AAAA…`)", fix, "host-key")


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
    """Return the fields of a key, each with its length before it; none where the last one is cut off."""
    found, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4])
        if at + 4 > len(data) or end > len(data):
            return []
        found.append(data[at + 4 : end])
        at = end
    return found


def cluster_name(reading: ValidationContext) -> Iterator[Problem]:
    """The name is a folder's name and what destructive verbs ask to confirm: one for all hosts, and safe in a path."""
    found = reading.merged.by_name.get("cluster_name", ())
    for definition in found:
        origin = definition.origin
        if definition.kind != "group" or definition.targets != ("all",):
            what = "cluster_name is set for a part of the hosts"
            yield Problem(origin.file, origin.line, what, "set it once, under `vars:` of `all`", "cluster-name")
        elif not is_cluster_name(definition.node):
            what = "cluster_name must be plain letters, digits, `-`, `_` and `.`, at most 63 of them"
            yield Problem(origin.file, origin.line, what, "write it out, without a template", "cluster-name")


def is_cluster_name(node: yaml.Node) -> bool:
    """Return whether a value may name a cluster: it is part of a path."""
    return isinstance(node, yaml.ScalarNode) and bool(_CLUSTER_NAME.fullmatch(node.value))


def unchecked_host_keys(reading: ValidationContext) -> Iterator[Problem]:
    """Host keys are pinned and checked on every contact; these variables would take the place of the options that do it."""
    fixes = dict.fromkeys(_HOST_KEY_SWITCHES, "delete it; to pin a key beforehand, set host_key")
    fixes["ansible_ssh_args"] = "put the options into ansible_ssh_common_args"
    for name, fix in fixes.items():
        for definition in reading.merged.by_name.get(name, ()):
            origin = definition.origin
            yield Problem(origin.file, origin.line, f"{name} would switch off the check of host keys", fix, "host-key-check")


RULES: tuple[Callable[[ValidationContext], Iterator[Problem]], ...] = (
    duplicate_host,
    variable_twice,
    name_of_host_and_group,
    kube_host_name,
    no_value,
    unresolvable,
    not_an_address,
    duplicate_address,
    near_host,
    bad_port,
    bad_host_key,
    unchecked_host_keys,
    cluster_name,
)
