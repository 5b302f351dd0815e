# ruff: noqa: INP001 (Ansible loads it by path)
"""What Prometheus scrapes, from the inventory, and which rules it judges: pure functions that the role and its playbooks call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def prometheus_targets(hosts: Iterable[str], hostvars: Any, port_variable: str, port: int) -> list[dict[str, Any]]:
    """Return hosts in the form of a file for file_sd: address and port, and the labels of everything that is scraped there.

    Of each host only a few variables are read, once: time and memory grow with the fleet, and nothing is read again per target.

    Args:
        hosts: Names, in the order of the inventory.
        hostvars: Ansible's; of each host `ip`, `ansible_host`, `rack`, `group_names` and the port count.
        port_variable: Where a host says that its port is another one.
        port: The port of the others.
    """
    return [_target(name, hostvars[name], port_variable, port) for name in hosts]


def _target(name: str, host: Mapping[str, Any], port_variable: str, port: int) -> dict[str, Any]:
    address = str(host.get("ip") or host.get("ansible_host") or name)
    shown = f"[{address}]" if ":" in address else address
    labels = {"instance": name, "groups": ",".join(["", *sorted(host.get("group_names") or ()), ""])}
    if rack := host.get("rack"):
        labels["rack"] = str(rack)
    return {"targets": [f"{shown}:{int(host.get(port_variable) or port)}"], "labels": labels}


def prometheus_rule_groups(files: Iterable[str], left_out: Sequence[str]) -> list[dict[str, Any]]:
    """Return the groups of rule files without the alerts that a site leaves out; a group that is empty then goes as well."""
    groups = [group for file in files for group in yaml.safe_load(Path(file).read_text("utf-8"))["groups"]]
    kept = [{**group, "rules": [rule for rule in group["rules"] if rule.get("alert") not in left_out]} for group in groups]
    return [group for group in kept if group["rules"]]


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"prometheus_targets": prometheus_targets, "prometheus_rule_groups": prometheus_rule_groups}
