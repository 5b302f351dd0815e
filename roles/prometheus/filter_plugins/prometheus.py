# ruff: noqa: INP001 (Ansible loads it by path)
"""What Prometheus scrapes, from the inventory, and which rules it judges: pure functions that the role and its playbooks call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# A gauge is shown for 5 minutes after it was last seen; rules look back over a few samples at least.
INTERVAL_S = (5, 60)
RETENTION_DAYS = (2, 3650)


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


def prometheus_problems(interval_s: int, retention_days: int, retention_gib: int) -> list[tuple[str, str, str]]:
    """Return the variables that are out of range: name, what, and how to mend it."""
    found = []
    if not INTERVAL_S[0] <= interval_s <= INTERVAL_S[1]:
        what = f"prometheus_scrape_interval_s is {interval_s}; the rules count on {INTERVAL_S[0]} to {INTERVAL_S[1]} s"
        found.append(("prometheus_scrape_interval_s", what, f"{INTERVAL_S[0]} to {INTERVAL_S[1]} seconds"))
    if not RETENTION_DAYS[0] <= retention_days <= RETENTION_DAYS[1]:
        what = f"prometheus_retention_days is {retention_days}; the rules look back a day, and ten years are the most"
        found.append(("prometheus_retention_days", what, f"{RETENTION_DAYS[0]} to {RETENTION_DAYS[1]} days"))
    if retention_gib < 0:
        found.append(
            (
                "prometheus_retention_gib",
                f"prometheus_retention_gib is {retention_gib}, less than nothing",
                "0 for no bound, or a number of GiB",
            )
        )
    return found


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "prometheus_targets": prometheus_targets,
            "prometheus_rule_groups": prometheus_rule_groups,
            "prometheus_problems": prometheus_problems,
        }
