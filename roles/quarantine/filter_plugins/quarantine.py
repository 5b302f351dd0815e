# ruff: noqa: INP001 (Ansible loads it by path)
"""Compute the record of a quarantine, and check quarantines and releases.

`seen` are the results of the module quarantine_record on the host and on the Slurm controllers, by host. A host that did not answer has
no `now`, and its state is unknown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Seen = Mapping[str, Mapping[str, Any]]

SCHEMA = "primus.quarantine/1"
# One line that Slurm can show and that is not a template of Ansible.
_WORDS = re.compile(r"[^\n\r{}\"'|\\]{3,160}\Z")
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,39}\Z")


def quarantine_standing(seen: Seen) -> dict[str, Any]:
    """Return the newest copy of the record; empty if there is none."""
    records = [dict(one["record"]) for one in seen.values() if one.get("record")]
    return max(records, key=lambda record: float(record["time"]), default={})


def quarantine_record(seen: Seen, node: str, owner: str, reason: str) -> dict[str, Any]:
    """Return the record to write: the current one if owner and reason are the same, else a new one.

    Its time is that of the host, because it is compared with the host's health later. If the host does not answer, it is that of a
    controller (`clock`).
    """
    standing = quarantine_standing(seen)
    if (standing.get("owner"), standing.get("reason")) == (owner, reason):
        return standing
    here = seen.get(node, {})
    clock, time = next(((name, float(one["now"])) for name, one in ((node, here), *seen.items()) if one.get("now")), (node, 0.0))
    checks = (here.get("health") or {}).get("checks") or ()
    failing = [dict(check) for check in checks if check.get("verdict") == "fail"]
    return {"schema": SCHEMA, "host": node, "owner": owner, "reason": reason, "time": time, "clock": clock, "verdicts": failing}


def quarantine_refusal(seen: Seen, node: str, owner: str, reason: str) -> str:
    """Return why the host cannot be quarantined, with a fix; empty if it can."""
    if not _WORDS.match(reason):
        return "the reason is missing, too long, or has a quote, a brace, a bar or a line break. Fix: give one line of 3 to 160 characters."
    if not _OWNER.match(owner):
        return f"{owner or '(none)'} is not a valid owner. Fix: use up to 40 letters, digits and . _ @ - for a person or a service."
    standing = quarantine_standing(seen)
    if standing and standing["owner"] != owner:
        return f"{node} is quarantined by {standing['owner']} already: {standing['reason']}. Fix: ask {standing['owner']} to release it."
    if not any(one.get("now") for one in seen.values()):
        return (
            f"neither {node} nor a Slurm controller answers, and Kubernetes does not know it, so the record cannot be stored. "
            f"Fix: start one of them; remove a dead host outside of Slurm with `primus-bootstrap node remove hosts.yaml {node} --dead`."
        )
    return ""


def release_refusal(seen: Seen, node: str, owner: str, *, proof: bool, without_proof: bool) -> str:
    """Return why the host cannot be released, with a fix; empty if it can.

    Args:
        seen: The results of the host and the controllers.
        node: The host.
        owner: The owner that releases it.
        proof: Whether the host has health checks (group gpu_node).
        without_proof: Whether a person confirms the health of a host without health checks.
    """
    standing = quarantine_standing(seen)
    if problems := [f"{one['problem']} (on {name})" for name, one in seen.items() if one.get("problem")]:
        fix = f"remove that file if `primus-bootstrap node list` shows another copy; else quarantine {node} again, which rewrites it"
        return f"the owner of the quarantine is unknown: {'; '.join(problems)}. Fix: {fix}."
    here = seen.get(node, {})
    if not standing:
        return "" if here.get("now") else _silent(node, here)
    if standing["owner"] != owner:
        fix = f"ask {standing['owner']} to release it, or give --owner {standing['owner']} if that is you"
        return f"the quarantine of {node} is {standing['owner']}'s ({standing['reason']}), not {owner}'s. Fix: {fix}."
    if not here.get("now"):
        return _silent(node, here)
    if not proof:
        fix = "check the host yourself, then release it with --without-proof"
        return "" if without_proof else f"{node} is not in gpu_node and has no health checks, so its health is not proven. Fix: {fix}."
    return _health_refusal(node, here["health"], _since(seen, node, standing), float(here["now"]))


def _silent(node: str, here: Mapping[str, Any]) -> str:
    """Return the error for a host that does not answer or cannot run the module."""
    output = str(here.get("module_stderr") or here.get("msg") or "").strip().splitlines()
    why = f" ({output[-1].rstrip('.')[:200]})" if output and not here.get("unreachable") else ""
    return f"{node} does not answer{why}, so its health is unknown. Fix: start it, wait for its health checks, then release it again."


def _since(seen: Seen, node: str, standing: Mapping[str, Any]) -> float:
    """Return the start of the quarantine on the clock of the host, corrected if it is of a controller whose clock is behind."""
    clock = seen.get(standing.get("clock") or node, {})
    behind_s = float(seen[node]["now"]) - float(clock["now"]) if clock.get("now") else 0.0
    return float(standing["time"]) + max(behind_s, 0.0)


def _health_refusal(node: str, health: Mapping[str, Any], since: float, now: float) -> str:
    check = f"run `systemctl start primus-health` on {node}"
    if health["verdict"] != "pass":
        logs = f"see `primus-health read` and `journalctl -u primus-health` on {node}"
        fix = "correct that" if health["verdict"] == "fail" else logs
        return f"the health of {node} is {health['verdict']}: {health['reason']}. Fix: {fix}, {check}, then release it again."
    if since > now:
        return (
            f"the quarantine of {node} is {since - now:.0f} s ahead of its clock, which was set back, so no health record can be newer. "
            "Fix: quarantine it again with another reason, which gives it a new time, then release it after the next passing record."
        )
    if float(health["written"]) <= since:
        return f"the last passing record of {node} is older than the quarantine. Fix: {check}, then release it again."
    return ""


class FilterModule:
    """The filters of the role."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "quarantine_record": quarantine_record,
            "quarantine_refusal": quarantine_refusal,
            "quarantine_standing": quarantine_standing,
            "quarantine_release_refusal": release_refusal,
        }
