# ruff: noqa: INP001 (Ansible loads it by path)
"""What the role `preflight` decides on the controller: from the probes of hosts to refusals, one line a check."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SCHEMA = "primus.verdict/1"
_TWIN_FIX = "on all but one of them: rm -f /etc/machine-id && systemd-machine-id-setup, then reboot"
# How many twins of a host are named: of a fleet that was cloned from one image all would be.
_NAMED = 3
# The variable that says where a program listens, if not at the port of preflight_ports.
PORT_VARIABLES = {
    "redis-server": "redis_port",
    "juicefs": "juicefs_metrics_port",
    "docker-registry": "oci_registry_port",
    "slurmctld": "slurm_controller_port",
    "slurmd": "slurm_node_port",
    "slurmdbd": "slurm_accounting_port",
    "prometheus": "prometheus_port",
    "prometheus-node-exporter": "node_exporter_port",
    "prometheus-alertmanager": "alertmanager_port",
}
# Redis listens on one of two ports, and what is stated says on which: roles/redis/vars/main.yml, _redis_main_port.
_REDIS, _REDIS_PLAIN_PORT = "redis-server", 6379
REDIS_VARIABLES = ("redis_tls_port", "redis_tls", "redis_tls_cert_file")
_PROBE_FIX = "install python3 (3.9 or newer) on the host, or name one in ansible_python_interpreter"


def preflight_become(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether Ansible became root, and what it said where it did not."""
    words = str(result.get("stdout") or "").split()
    message = str(result.get("msg") or result.get("stderr") or result.get("stdout") or "").strip().removeprefix("Task failed: ")
    works = words[-1:] == ["0"]
    return {"works": works, "message": "" if works else " ".join(message.split())}


def preflight_answer(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a probe, the last line of what the host printed; empty where there is none."""
    try:
        answer = json.loads(str(result.get("stdout") or "").strip().rpartition("\n")[2])
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def preflight_identities(
    hosts: Sequence[str], hostvars: Mapping[str, Any], played: Sequence[str], skip: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Return a verdict for every host of this play: whether another host, of this play or an earlier one, is the same machine.

    Each host's probe is read once, so the cost grows with the fleet and not with its square.
    """
    twins: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        probe = hostvars[host].get("__preflight_probe")
        machine = preflight_answer(probe).get("facts", {}).get("machine_id") if probe else None
        if machine:
            twins[machine].append(host)
    waived = {entry["check"]: entry["reason"] for entry in skip}.get("machine_id_unique")
    mine = set(played)
    found = [(machine, host, names) for machine, names in twins.items() for host in names if host in mine]
    return {"verdicts": [_identity(machine, host, names, waived) for machine, host, names in found]}


def _named(hosts: Sequence[str]) -> str:
    """Return hosts in a few words."""
    more = len(hosts) - _NAMED
    return ", ".join(hosts[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _identity(machine: str, host: str, names: Sequence[str], waived: str | None) -> dict[str, Any]:
    others = [name for name in names if name != host]
    verdict = "skipped" if waived is not None else "fail" if others else "pass"
    empty = dict.fromkeys(("unit", "device", "serial"), "")
    return {
        **empty,
        "check": "machine_id_unique",
        "host": host,
        "verdict": verdict,
        "expected": "no other host with it",
        "found": machine,
        "source": "machine-id(5)" if waived is None else "preflight_skip",
        "reason": waived or (f"{_named(others)} {'have' if len(others) > 1 else 'has'} the same machine-id" if others else ""),
        "fix": _TWIN_FIX if verdict == "fail" else "",
        "started": 0.0,
        "seconds": 0.0,
        "schema": _SCHEMA,
    }


def preflight_ports(ports: Sequence[Mapping[str, Any]], groups: Sequence[str], stated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the ports that a host of these groups needs, each where the host's variables put it."""
    mine = [dict(one) for one in ports if one["group"] in groups]
    return [{**one, "port": _port_of(one, stated)} for one in mine]


def port_variable(process: str, stated: Mapping[str, Any]) -> str:
    """Return the variable that says where a program listens on a host with these variables; empty = none does."""
    plain = str(stated.get("redis_tls", True)).lower() in {"false", "no", "off", "0"}
    own = bool(stated.get("redis_tls_cert_file")) and not stated.get("redis_tls_port")
    return "redis_tls_port" if process == _REDIS and not plain and not own else PORT_VARIABLES.get(process, "")


def _port_of(one: Mapping[str, Any], stated: Mapping[str, Any]) -> int:
    variable = port_variable(one["process"], stated)
    default = _REDIS_PLAIN_PORT if variable == PORT_VARIABLES[_REDIS] else one["port"]
    return int(stated.get(variable) or default)


def port_twins(ports: Sequence[Mapping[str, Any]]) -> list[tuple[int, tuple[str, ...]]]:
    """Return the ports that several programs of one host are to have, with their names."""
    programs: dict[int, list[str]] = defaultdict(list)
    for one in ports:
        if one["process"] not in programs[one["port"]]:
            programs[one["port"]].append(one["process"])
    return [(port, tuple(names)) for port, names in programs.items() if len(names) > 1]


def preflight_conflicts(probe: Mapping[str, Any], ports: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for every port of this host that another program has, or that is stated twice: what, and `Fix:`."""
    held = [one for one in preflight_answer(probe).get("verdicts", ()) if one["check"] == "port" and one["verdict"] == "fail"]
    return [_line(one) for one in held] + _twin_lines(ports)


def _line(verdict: Mapping[str, Any]) -> str:
    return f"{verdict['check']}: {verdict['reason']}. Fix: {verdict['fix']}"


def _twin_lines(ports: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"port {port} is stated for {' and for '.join(names)}. Fix: give each a port of its own" for port, names in port_twins(ports)]


def preflight_findings(
    probe: Mapping[str, Any],
    identity: Mapping[str, Any],
    host: str,
    unknown_fails: bool,  # noqa: FBT001 (Jinja calls it so)
    ports: Sequence[Mapping[str, Any]] = (),
) -> dict[str, list[str]]:
    """Return a line for every check that stops this host, and for every one that gave no answer: what, and `Fix:`."""
    answer = preflight_answer(probe)
    if "verdicts" not in answer:
        words = str(probe.get("stderr") or probe.get("stdout") or probe.get("msg") or "it said nothing").strip()
        return {"refusals": [f"the host cannot be read: {words.splitlines()[-1]}. Fix: {_PROBE_FIX}"], "unknown": []}
    twins = json.loads(str(identity["msg"]))["verdicts"]
    lines: dict[str, list[str]] = {"fail": [], "unknown": []}
    for one in (*answer["verdicts"], *(verdict for verdict in twins if verdict["host"] == host)):
        if one["verdict"] in lines:
            lines[one["verdict"]].append(_line(one))
    lines["fail"] += _twin_lines(ports)
    unknown = [f"unknown: {line}" for line in lines["unknown"]]
    return {"refusals": lines["fail"] + (unknown if unknown_fails else []), "unknown": unknown}


class FilterModule:
    """What Ansible looks for in a file of filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        names = ("become", "answer", "identities", "ports", "conflicts", "findings")
        return {f"preflight_{name}": globals()[f"preflight_{name}"] for name in names}
