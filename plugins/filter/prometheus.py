# ruff: noqa: INP001 (Ansible loads it by path)
"""Compute Prometheus' scrape targets and rule groups from the inventory, and check number ranges. Only pure functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Prometheus returns a sample for 5 minutes after its scrape, and the rules need several samples in their time range.
INTERVAL_S = (5, 60)
RETENTION_DAYS = (2, 3650)


def prometheus_targets(hosts: Iterable[str], hostvars: Any, port_variable: str, port: int) -> list[dict[str, Any]]:
    """Return hosts as entries of a file_sd file, with address, port and labels.

    Reads the variables of each host once, because each access to hostvars is slow in a large fleet.

    Args:
        hosts: Host names in the order of the inventory.
        hostvars: Ansible's hostvars. Reads `ip`, `ansible_host`, `rack`, `group_names` and `port_variable` of each host.
        port_variable: Name of the variable with which a host sets another port.
        port: Port of hosts without that variable.
    """
    return [_target(name, hostvars[name], port_variable, port) for name in hosts]


def _target(name: str, host: Mapping[str, Any], port_variable: str, port: int) -> dict[str, Any]:
    address = str(host.get("ip") or host.get("ansible_host") or name)
    bracketed = f"[{address}]" if ":" in address else address
    labels = {"instance": name, "groups": ",".join(["", *sorted(host.get("group_names") or ()), ""])}
    if rack := host.get("rack"):
        labels["rack"] = str(rack)
    return {"targets": [f"{bracketed}:{int(host.get(port_variable) or port)}"], "labels": labels}


def prometheus_rule_groups(files: Iterable[str], disabled: Sequence[str]) -> list[dict[str, Any]]:
    """Return the groups of rule files without the disabled alerts and without groups that are then empty."""
    groups = [group for file in files for group in yaml.safe_load(Path(file).read_text("utf-8"))["groups"]]
    enabled = [{**group, "rules": [rule for rule in group["rules"] if rule.get("alert") not in disabled]} for group in groups]
    return [group for group in enabled if group["rules"]]


def prometheus_problems(interval_s: int, retention_days: int, retention_gib: int) -> list[tuple[str, str, str]]:
    """Return the variables that are out of range, each as name, problem and fix."""
    problems = []
    if not INTERVAL_S[0] <= interval_s <= INTERVAL_S[1]:
        what = f"prometheus_scrape_interval_s is {interval_s}; the alert rules need {INTERVAL_S[0]} to {INTERVAL_S[1]} seconds"
        problems.append(("prometheus_scrape_interval_s", what, f"use {INTERVAL_S[0]} to {INTERVAL_S[1]} seconds"))
    if not RETENTION_DAYS[0] <= retention_days <= RETENTION_DAYS[1]:
        what = f"prometheus_retention_days is {retention_days}; the alert rules look back one day, and the maximum is ten years"
        problems.append(("prometheus_retention_days", what, f"use {RETENTION_DAYS[0]} to {RETENTION_DAYS[1]} days"))
    if retention_gib < 0:
        problems.append(
            ("prometheus_retention_gib", f"prometheus_retention_gib is {retention_gib}", "use 0 for no limit, or a number of GiB")
        )
    return problems


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "prometheus_targets": prometheus_targets,
            "prometheus_rule_groups": prometheus_rule_groups,
            "prometheus_problems": prometheus_problems,
        }
