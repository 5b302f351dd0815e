"""Warnings of `validate`: likely mistakes, but a file may be written later, and a directory service or DNS may know a name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.cluster import STATE_FOLDER
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.inventory.source.yaml_values import entries, is_deferred, line_of, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from primus_bootstrap.inventory.rules.context import ValidationContext
    from primus_bootstrap.inventory.schema.specs import Option

_SHOWN = 5
_MISSPELT = 0.75  # of difflib's ratio: one or two letters of a short name
_HOSTS_FILE = Path("/etc/hosts")  # the names that this machine knows without DNS
_SSH_KEYS = ("ansible_ssh_private_key_file", "ansible_private_key_file")
_ON_CONTROLLER = re.compile(r"\bon the controller\b")
_FILE = re.compile(r"(?:^|_)(?:file|archive)$")


def find_warnings(context: ValidationContext, folder: Path) -> list[Problem]:
    """Return the likely mistakes of an inventory without problems. Contacts nobody: names are looked up in /etc/hosts only.

    Args:
        context: The inventory.
        folder: The folder of hosts.yaml, where relative paths start.
    """
    return sorted({*_missing_files(context, folder), *_unknown_users(context), *_unknown_names(context)})


def _missing_files(context: ValidationContext, folder: Path) -> Iterator[Problem]:
    """Report files of the controller that do not exist. A run refuses them only when it has reached the hosts.

    The program itself writes what is in the state folder.
    """
    options = load_options()
    for name in context.variable_index.by_name:
        for definition in {id(one): one for one in context.variable_index.by_host(name).values()}.values():
            if definition.encrypted or name not in (*options, *_SSH_KEYS):
                continue
            for label, node in _paths(options.get(name), definition.node, name):
                path = folder / Path(str(node.value)).expanduser()
                if STATE_FOLDER not in path.parts and not path.exists():
                    what = f"{label}: there is no {path} on this machine"
                    fix = f"write the file before `primus-bootstrap apply hosts.yaml`, or correct the path, which starts at {folder}"
                    yield Problem(definition.origin.file, line_of(node), what, fix, "missing-controller-file")


def _paths(option: Option | None, node: yaml.Node, label: str) -> Iterator[tuple[str, yaml.ScalarNode]]:
    """Yield the values in a variable that are files on the controller: by its specification, or a key of SSH, which has none."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _paths(option, item, label)
    elif isinstance(node, yaml.MappingNode):
        for key, value in entries(node):
            if option and (nested := option.options.get(str(key.value))):
                yield from _paths(nested, value, str(key.value))
    elif isinstance(node, yaml.ScalarNode) and node.value and not is_deferred(node) and (option is None or is_controller_file(option)):
        yield label, node


def is_controller_file(option: Option) -> bool:
    """Return whether the value of a variable is the path of a file that must exist on the controller."""
    return bool(_FILE.search(option.name) and option.type in ("str", "path") and any(map(_ON_CONTROLLER.search, option.description)))


def _unknown_users(context: ValidationContext) -> Iterator[Problem]:
    """Report users of Slurm that are not among the accounts that the cluster creates."""
    accounts = _names(context, "users_groups_accounts")
    for name, (file, line) in _names(context, "slurm_users").items() if accounts else ():
        if name not in accounts:
            near = nearest(name, accounts)
            fix = f"did you mean {near}? " * bool(near) + "add it to users_groups_accounts, unless a directory service has it"
            yield Problem(file, line, f"slurm_users: no account of users_groups_accounts is named {name}", fix, "unknown-slurm-user")


def _names(context: ValidationContext, variable: str) -> Mapping[str, tuple[str, int]]:
    """Return the `name` of each entry of a list, with file and line, of all hosts."""
    found: dict[str, tuple[str, int]] = {}
    for definition in context.variable_index.by_host(variable).values():
        items = definition.node.value if isinstance(definition.node, yaml.SequenceNode) else ()
        for item in items:
            named = value_of(item)
            if isinstance(named, dict) and isinstance(named.get("name"), str):
                found.setdefault(named["name"], (definition.origin.file, line_of(item)))
    return found


def _unknown_names(context: ValidationContext) -> Iterator[Problem]:
    """Report hosts without an address if hosts with a similar name have one: its address was forgotten, or the name is misspelt.

    Other hosts without an address are those of a site whose DNS knows them.
    """
    addressed = {*context.variable_index.by_host("ansible_host"), *context.variable_index.by_host("ansible_connection")}
    series = {stem(host) for host in addressed}
    known = {*addressed, *_known_names(), "localhost"}
    bare = [host for host in context.hosts if host not in known and "." not in host]
    similar = {host: nearest(host, sorted(addressed), cutoff=_MISSPELT) for host in bare}
    unknown = [host for host in bare if stem(host) in series or similar[host]]
    for host in unknown[:_SHOWN]:
        of_all = f"; so have {len(unknown) - 1} others" if len(unknown) > _SHOWN else ""
        one_of_series = stem(host) in series
        like = f"others named {stem(host)}" if one_of_series else similar[host]
        what = f"`{host}` has no ansible_host, unlike {like}, so DNS must know its name{of_all}"
        ask = "" if one_of_series else f"did you mean {similar[host]}? "
        yield context.host_origins[host].problem(what, f"{ask}set ansible_host for {host}", "no-address")


def stem(host: str) -> str:
    """Return a name without its digits, which hosts of one kind share."""
    return re.sub(r"\d+", "", host)


def _known_names() -> set[str]:
    try:
        lines = _HOSTS_FILE.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return {name for line in lines for name in line.partition("#")[0].split()[1:]}
