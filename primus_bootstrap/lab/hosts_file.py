"""The lab's hosts.yaml: its text, and the promise that a file edited by a person is never overwritten."""

from __future__ import annotations

import os
from ipaddress import IPv4Network, ip_network
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.lab.values import LabError, make_lab

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.lab.values import Lab

_HEAD = """\
# The lab: systemd containers on this machine with real SSH, made by `primus-bootstrap lab up`. What `apply` does to them is
# what it does to servers. This file is an Ansible inventory: `ansible -i hosts.yaml all -m ping` works on it, group_vars/ and
# host_vars/ beside it count, and you may edit it; `lab up` leaves it alone as long as it names the same hosts.
---
all:
  vars:
    cluster_name: {name}
    ansible_user: primus
    # The lab's own key, and the host keys that `lab up` made: plain Ansible checks them strictly as well.
    ansible_ssh_private_key_file: "{{{{ inventory_dir }}}}/.primus/{name}/ssh/id_ed25519"
    ansible_ssh_common_args: -o 'UserKnownHostsFile="{{{{ inventory_dir }}}}/.primus/{name}/known_hosts"'

  hosts:
"""
_CHILDREN = """
  # A service runs on the hosts of the group that bears its name; a group without hosts is not part of this cluster.
  children:
    gpu_node:
      hosts:
"""


class _AnyTag(yaml.SafeLoader):
    """Reads a file that a person extended with Ansible's own tags, such as `!vault`, whose values do not matter here."""


_AnyTag.add_multi_constructor("!", lambda _loader, _suffix, _node: None)


def hosts_text(lab: Lab) -> str:
    """Return the text of a lab's hosts.yaml."""
    width = max(len(node.name) for node in lab.nodes)
    addresses = (f"    {node.name}:{' ' * (width - len(node.name))} {{ansible_host: {node.address}}}\n" for node in lab.nodes)
    members = (f"        {node.name}:\n" for node in lab.nodes)
    return _HEAD.format(name=lab.name) + "".join(addresses) + _CHILDREN + "".join(members)


def hosts_of(path: Path) -> dict[str, str]:
    """Return the hosts that stand under `all.hosts` of a hosts.yaml with their addresses, empty where there is no such file.

    Raises:
        LabError: The file is no YAML that a lab could have written.
    """
    if not path.exists():
        return {}
    try:
        data: Any = yaml.load(path.read_text(), _AnyTag)  # noqa: S506 (a SafeLoader that skips values with a tag)
        hosts = data["all"]["hosts"]
        return {str(name): str((variables or {}).get("ansible_host", "")) for name, variables in hosts.items()}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise LabError(
            f"{path} does not name the lab's hosts under all.hosts",
            fix=f"`primus-bootstrap validate {path}` says what is wrong with it; or move it away and run `lab up` again",
        ) from error


def recorded_subnet(path: Path) -> IPv4Network | None:
    """Return the /24 that a lab's hosts.yaml puts its hosts in, or None where there is none to see."""
    addresses = [address for address in hosts_of(path).values() if address]
    try:
        subnets = {ip_network(f"{address}/24", strict=False) for address in addresses}
    except ValueError:
        return None
    subnet = subnets.pop() if len(subnets) == 1 else None
    return subnet if isinstance(subnet, IPv4Network) else None


def ensure_hosts_file(lab: Lab, suites: tuple[str, ...]) -> bool:
    """Write hosts.yaml where it is absent or where only its number of hosts differs; return whether anything was written.

    Raises:
        LabError: A person edited it, and it names other hosts than this lab has.
    """
    path = lab.hosts_file
    if path.exists():
        found = hosts_of(path)
        if found == {node.name: node.address for node in lab.nodes}:
            return False
        if not _is_untouched(lab, found, suites):
            wanted = ", ".join(f"{node.name} {node.address}" for node in lab.nodes)
            raise LabError(
                f"{path} was edited and names other hosts ({_listed(found)}) than the lab is to have ({wanted})",
                fix=f"give it the lab's hosts, or ask for as many as it names (--nodes {len(found)}), or use another folder with --dir",
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(hosts_text(lab))
    part.replace(path)
    return True


def _is_untouched(lab: Lab, found: dict[str, str], suites: tuple[str, ...]) -> bool:
    """Return whether the file is, to the letter, what the lab writes for that many hosts."""
    subnet = recorded_subnet(lab.hosts_file)
    if subnet is None or not found:
        return False
    return lab.hosts_file.read_text() == hosts_text(make_lab(lab.name, lab.directory, subnet=subnet, count=len(found), suites=suites))


def _listed(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {address}".strip() for name, address in found.items()) or "none"
