# ruff: noqa: INP001 (Ansible loads it by path)
"""Filters of the role `preflight`: turn probe results into failure messages, one line per check."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SCHEMA = "primus.verdict/1"
_DUPLICATE_FIX = "on all but one of them: rm -f /etc/machine-id && systemd-machine-id-setup, then reboot"
# Maximum number of hosts in a message. In a cluster cloned from one image all hosts have the same machine-id.
_SHOWN = 3
# Variables that override the port of a program in preflight_ports.
PORT_VARIABLES = {
    "redis-server": "redis_port",
    "juicefs": "juicefs_metrics_port",
    "docker-registry": "oci_registry_port",
    "weed": "object_store_port",
    "slurmctld": "slurm_controller_port",
    "slurmd": "slurm_node_port",
    "slurmdbd": "slurm_accounting_port",
    "prometheus": "prometheus_port",
    "prometheus-node-exporter": "node_exporter_port",
    "prometheus-alertmanager": "alertmanager_port",
}
# Redis listens on one of two ports, depending on these variables: roles/redis/vars/main.yml, _redis_main_port.
_REDIS, _REDIS_PLAIN_PORT = "redis-server", 6379
REDIS_VARIABLES = ("redis_tls_port", "redis_tls", "redis_tls_cert_file")
_SLOW_FIX = "look for a dead mount or a stuck device (`dmesg`, `df`); if the host is only slow, set preflight_timeout_s to more seconds"
_PROBE_FIX = "install python3 (3.9 or newer) on the host, or name one in ansible_python_interpreter"


def preflight_become(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether Ansible became root, and the error message if not."""
    words = str(result.get("stdout") or "").split()
    said = str(result.get("msg") or result.get("stderr") or result.get("stdout") or "").strip().removeprefix("Task failed: ")
    message = _silence(result) or said
    works = words[-1:] == ["0"]
    return {"works": works, "message": "" if works else " ".join(message.split())}


def _silence(result: Mapping[str, Any]) -> str:
    """Return that a task ran into its time limit; empty if it did not."""
    timed_out = result.get("timedout")
    return f"no answer within {timed_out['period']} s (preflight_timeout_s)" if timed_out else ""


def preflight_answer(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a probe from the last line of its output; empty if there is none."""
    try:
        answer = json.loads(str(result.get("stdout") or "").strip().rpartition("\n")[2])
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def preflight_identities(
    hosts: Sequence[str], hostvars: Mapping[str, Any], played: Sequence[str], skip: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Return a verdict for every host of this play: whether another host of this play or an earlier one has the same machine-id.

    Each host's probe is read once, so the cost is linear in the number of hosts.
    """
    hosts_of: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        probe = hostvars[host].get("__preflight_probe")
        machine = preflight_answer(probe).get("facts", {}).get("machine_id") if probe else None
        if machine:
            hosts_of[machine].append(host)
    skip_reason = {entry["check"]: entry["reason"] for entry in skip}.get("machine_id_unique")
    mine = set(played)
    found = [(machine, host, names) for machine, names in hosts_of.items() for host in names if host in mine]
    return {"verdicts": [_identity(machine, host, names, skip_reason) for machine, host, names in found]}


def _shown(hosts: Sequence[str]) -> str:
    """Return the first hosts and the number of the others as text."""
    more = len(hosts) - _SHOWN
    return ", ".join(hosts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _identity(machine: str, host: str, names: Sequence[str], skip_reason: str | None) -> dict[str, Any]:
    others = [name for name in names if name != host]
    verdict = "skipped" if skip_reason is not None else "fail" if others else "pass"
    empty = dict.fromkeys(("unit", "device", "serial"), "")
    return {
        **empty,
        "check": "machine_id_unique",
        "host": host,
        "verdict": verdict,
        "expected": "unique",
        "found": machine,
        "source": "machine-id(5)" if skip_reason is None else "preflight_skip",
        "reason": skip_reason or (f"{_shown(others)} {'have' if len(others) > 1 else 'has'} the same machine-id" if others else ""),
        "fix": _DUPLICATE_FIX if verdict == "fail" else "",
        "started": 0.0,
        "seconds": 0.0,
        "schema": _SCHEMA,
    }


def preflight_ports(ports: Sequence[Mapping[str, Any]], groups: Sequence[str], stated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the ports that a host of these groups needs, with the numbers that its variables set."""
    mine = [dict(one) for one in ports if one["group"] in groups]
    return [{**one, "port": _port_of(one, stated)} for one in mine]


def port_variable(process: str, stated: Mapping[str, Any]) -> str:
    """Return the variable that sets the port of a program on a host with these variables; empty = none."""
    plain = str(stated.get("redis_tls", True)).lower() in {"false", "no", "off", "0"}
    own = bool(stated.get("redis_tls_cert_file")) and not stated.get("redis_tls_port")
    return "redis_tls_port" if process == _REDIS and not plain and not own else PORT_VARIABLES.get(process, "")


def _port_of(one: Mapping[str, Any], stated: Mapping[str, Any]) -> int:
    variable = port_variable(one["process"], stated)
    default = _REDIS_PLAIN_PORT if variable == PORT_VARIABLES[_REDIS] else one["port"]
    return int(stated.get(variable) or default)


def duplicate_ports(ports: Sequence[Mapping[str, Any]]) -> list[tuple[int, tuple[str, ...]]]:
    """Return the ports that are set for several programs of one host, with the programs' names."""
    programs: dict[int, list[str]] = defaultdict(list)
    for one in ports:
        if one["process"] not in programs[one["port"]]:
            programs[one["port"]].append(one["process"])
    return [(port, tuple(names)) for port, names in programs.items() if len(names) > 1]


def preflight_conflicts(probe: Mapping[str, Any], ports: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a message for every port of this host that another program uses or that is set twice."""
    held = [one for one in preflight_answer(probe).get("verdicts", ()) if one["check"] == "port" and one["verdict"] == "fail"]
    return [_line(one) for one in held] + _duplicate_lines(ports)


def _line(verdict: Mapping[str, Any]) -> str:
    return f"{verdict['check']}: {verdict['reason']}. Fix: {verdict['fix']}"


def _duplicate_lines(ports: Sequence[Mapping[str, Any]]) -> list[str]:
    duplicates = duplicate_ports(ports)
    return [f"port {port} is set for {' and for '.join(names)}. Fix: set a different port for each" for port, names in duplicates]


def preflight_findings(
    probe: Mapping[str, Any],
    identity: Mapping[str, Any],
    host: str,
    unknown_fails: bool,  # noqa: FBT001 (Jinja calls it so)
    ports: Sequence[Mapping[str, Any]] = (),
) -> dict[str, list[str]]:
    """Return a message for every failed check (`failures`) and every unknown one (`unknown`) of this host."""
    answer = preflight_answer(probe)
    if silence := _silence(probe):
        return {"failures": [f"probe: {silence}. Fix: {_SLOW_FIX}"], "unknown": []}
    if "verdicts" not in answer:
        output = str(probe.get("stderr") or probe.get("stdout") or probe.get("msg") or "no output").strip()
        return {"failures": [f"the probe failed: {output.splitlines()[-1]}. Fix: {_PROBE_FIX}"], "unknown": []}
    identities = json.loads(str(identity["msg"]))["verdicts"]
    lines: dict[str, list[str]] = {"fail": [], "unknown": []}
    for one in (*answer["verdicts"], *(verdict for verdict in identities if verdict["host"] == host)):
        if one["verdict"] in lines:
            lines[one["verdict"]].append(_line(one))
    lines["fail"] += _duplicate_lines(ports)
    unknown = [f"unknown: {line}" for line in lines["unknown"]]
    return {"failures": lines["fail"] + (unknown if unknown_fails else []), "unknown": unknown}


class FilterModule:
    """The filters of this file, as Ansible expects them."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        names = ("become", "answer", "identities", "ports", "conflicts", "findings")
        return {f"preflight_{name}": globals()[f"preflight_{name}"] for name in names}
