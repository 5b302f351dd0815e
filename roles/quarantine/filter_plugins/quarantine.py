# ruff: noqa: INP001 (Ansible loads it by path)
"""What the role `quarantine` decides on the controller: the record that a quarantine writes, and what refuses a release.

`seen` is what the module quarantine_record said on the host and on Slurm's controllers, by name. A host that did not answer has no
`now` there, and is neither good nor bad.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Seen = Mapping[str, Mapping[str, Any]]

SCHEMA = "primus.quarantine/1"
# One line that Slurm shows and Ansible does not take for a template.
_WORDS = re.compile(r"[^\n\r{}\"'|\\]{3,160}\Z")
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,39}\Z")


def quarantine_standing(seen: Seen) -> dict[str, Any]:
    """Return the record that counts: the newest of the copies; empty where there is none."""
    records = [dict(one["record"]) for one in seen.values() if one.get("record")]
    return max(records, key=lambda record: float(record["time"]), default={})


def quarantine_record(seen: Seen, node: str, owner: str, reason: str) -> dict[str, Any]:
    """Return the record to write everywhere: the one that stands where it says the same, else a new one.

    Its time is the host's own, which its health is later compared with; of a host that does not answer, a controller's (`clock`).
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
    """Return what speaks against a quarantine, with what to do; empty where nothing does."""
    if not _WORDS.match(reason):
        return "the reason is missing, too long, or holds a quote, a brace, a bar or a new line. Fix: one line of 3 to 160 characters."
    if not _OWNER.match(owner):
        return f"{owner or '(none)'} is no name of an owner. Fix: up to 40 letters, digits and . _ @ - ; that is, a person or a service."
    standing = quarantine_standing(seen)
    if standing and standing["owner"] != owner:
        return f"{node} is quarantined by {standing['owner']} already: {standing['reason']}. Fix: leave it to them, or agree with them."
    if not any(one.get("now") for one in seen.values()):
        return (
            f"neither {node} nor a Slurm controller answers, nor does Kubernetes know it, so nobody could keep the record. "
            "Fix: bring one of them up; a host outside Slurm that is dead needs no quarantine, take it out with `node remove --dead`."
        )
    return ""


def release_refusal(seen: Seen, node: str, owner: str, *, proof: bool, without_proof: bool) -> str:
    """Return what speaks against a release, with what to do; empty where nothing does.

    Args:
        seen: What the host and the controllers said.
        node: The host.
        owner: Who releases.
        proof: Whether this host has health checks that can prove it (group gpu_node).
        without_proof: Whether a person vouches for a host that has none.
    """
    standing = quarantine_standing(seen)
    if problems := [f"{one['problem']} (on {name})" for name, one in seen.items() if one.get("problem")]:
        fix = f"remove that file if another copy is whole (`node list`), else quarantine {node} again: it is written anew"
        return f"whose quarantine it is cannot be told: {'; '.join(problems)}. Fix: {fix}."
    here = seen.get(node, {})
    if not standing:
        return "" if here.get("now") else _silent(node, here)
    if standing["owner"] != owner:
        fix = f"leave it to them, or give --owner {standing['owner']} if that is you"
        return f"the quarantine of {node} is {standing['owner']}'s ({standing['reason']}), not {owner}'s. Fix: {fix}."
    if not here.get("now"):
        return _silent(node, here)
    if not proof:
        fix = "look at it yourself, then release it with --without-proof"
        return (
            "" if without_proof else f"{node} is not in gpu_node and has no health checks, so nothing proves that it is well. Fix: {fix}."
        )
    return _health_refusal(node, here["health"], _since(seen, node, standing), float(here["now"]))


def _silent(node: str, here: Mapping[str, Any]) -> str:
    """Say that a host does not answer, or cannot run what it is asked with."""
    said = str(here.get("module_stderr") or here.get("msg") or "").strip().splitlines()
    why = f" ({said[-1].rstrip('.')[:200]})" if said and not here.get("unreachable") else ""
    return f"{node} does not answer{why}, so its health is unknown. Fix: bring it up, wait for its health checks, then release again."


def _since(seen: Seen, node: str, standing: Mapping[str, Any]) -> float:
    """Return when the quarantine began by the host's own clock; where a controller's clock counted and is behind, it is later."""
    clock = seen.get(standing.get("clock") or node, {})
    behind_s = float(seen[node]["now"]) - float(clock["now"]) if clock.get("now") else 0.0
    return float(standing["time"]) + max(behind_s, 0.0)


def _health_refusal(node: str, health: Mapping[str, Any], since: float, now: float) -> str:
    look = f"`systemctl start primus-health` on {node}"
    if health["verdict"] != "pass":
        mend = (
            "mend what it names" if health["verdict"] == "fail" else f"see `primus-health read` and `journalctl -u primus-health` on {node}"
        )
        return f"the health of {node} is {health['verdict']}: {health['reason']}. Fix: {mend}, look again ({look}), then release again."
    if since > now:
        return (
            f"the quarantine of {node} is {since - now:.0f} s ahead of its clock, which was set back since, so nothing can be newer. "
            "Fix: quarantine it again with another reason, which dates it anew, then release it with the next passing record."
        )
    if float(health["written"]) <= since:
        return (
            f"the last passing record of {node} is older than the quarantine. Fix: wait for the next look, or {look}, then release again."
        )
    return ""


class FilterModule:
    """Hands the functions to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return filters by name."""
        return {
            "quarantine_record": quarantine_record,
            "quarantine_refusal": quarantine_refusal,
            "quarantine_standing": quarantine_standing,
            "quarantine_release_refusal": release_refusal,
        }
