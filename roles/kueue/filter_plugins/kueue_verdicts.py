# ruff: noqa: INP001 (Ansible loads it by path)
"""What the role `kueue` finds once the queues stand: verdict records (primus_bootstrap/core/verdicts.py) from what the cluster says."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LABELS = {"app.kubernetes.io/managed-by": "primus-bootstrap"}
DECIMAL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
DECIMAL |= {suffix: Fraction(1000) ** power for power, suffix in enumerate("kMGTPE", 1)}
UNITS = DECIMAL | {f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", 1)}
NAMED = 8


def kueue_verdicts(wanted: Sequence[Mapping[str, Any]], live: Mapping[str, Any], host: str, overcommit: bool) -> list[dict[str, Any]]:  # noqa: FBT001
    """Return what is to be said of queues, quotas and topology.

    Args:
        wanted: The objects of `kueue_objects`.
        live: `objects` (of Kueue's kinds, as the cluster has them) and `nodes`; one that could not be read is None.
        host: The host that the records name.
        overcommit: Whether quotas above what nodes have are meant so.
    """
    return [
        *_queues(wanted, live["objects"], host),
        *_quotas(wanted, live["nodes"], host, overcommit=overcommit),
        *_levels(wanted, live["nodes"], host),
        *_surplus(wanted, live["objects"], host),
    ]


def _record(check: str, host: str, verdict: str, **rest: str) -> dict[str, Any]:
    return {"check": check, "host": host, "verdict": verdict, **rest}


def _key(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return (str(one["kind"]), str(one["metadata"].get("namespace") or ""), str(one["metadata"]["name"]))


def _queues(wanted: Iterable[Mapping[str, Any]], live: Iterable[Mapping[str, Any]] | None, host: str) -> list[dict[str, Any]]:
    """Judge the condition Active of every queue: Kueue says in it what it misses."""
    there = {_key(one): one for one in live or ()}
    found = []
    for one in wanted:
        if one["kind"] not in {"ClusterQueue", "LocalQueue"}:
            continue
        kind, namespace, name = _key(one)
        word = "/".join(filter(None, (namespace, name)))
        say = {"device": f"{kind} {word}", "expected": "Active=True", "fix": f"kubectl describe {kind.lower()} {name}"}
        now = there.get((kind, namespace, name))
        states = {state["type"]: state for state in ((now or {}).get("status") or {}).get("conditions") or ()}
        active = states.get("Active")
        if live is None or (now is not None and active is None):
            found.append(_record("kueue.queue", host, "unknown", **say, reason="Kueue has said nothing about it"))
        elif now is None:
            found.append(_record("kueue.queue", host, "fail", **say, found="not there"))
        elif active and active["status"] == "True":
            found.append(_record("kueue.queue", host, "pass", device=say["device"], expected=say["expected"], found="Active=True"))
        else:
            reason = str((active or {}).get("message") or "")
            meant = (one["spec"].get("stopPolicy") or "None") != "None"
            say["reason"] = f"stopped by hosts.yaml: {reason}" if meant else reason
            found.append(_record("kueue.queue", host, "skipped" if meant else "fail", **say, found="Active=False"))
    return found


def _quotas(
    wanted: Iterable[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]] | None, host: str, *, overcommit: bool
) -> list[dict[str, Any]]:
    """Compare what queues may use of a flavor with what its nodes give: above it, admitted jobs wait for nodes that are not there."""
    wanted = list(wanted)
    promised: dict[str, dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for one in wanted:
        for group in (one.get("spec") or {}).get("resourceGroups") or () if one["kind"] in {"ClusterQueue", "Cohort"} else ():
            for flavor in group["flavors"]:
                for resource in flavor["resources"]:
                    promised[flavor["name"]][resource["name"]] += _amount(resource["nominalQuota"])
    labels = {one["metadata"]["name"]: one["spec"].get("nodeLabels") or {} for one in wanted if one["kind"] == "ResourceFlavor"}
    found = []
    for flavor, resources in promised.items():
        mine = [node for node in nodes or () if _has(node, labels.get(flavor, {}))]
        for name, sum_of_queues in resources.items():
            record = _quota(f"{flavor} {name}", name, sum_of_queues, mine, known=nodes is not None)
            if record["verdict"] == "fail" and overcommit:
                record |= {"verdict": "skipped", "reason": f"{record['reason']}; kueue_overcommit allows it"}
            found.append({"check": "kueue.quota", "host": host, **record})
    return found


def _quota(device: str, name: str, promised: Fraction, nodes: Sequence[Mapping[str, Any]], *, known: bool) -> dict[str, Any]:
    say = {"device": device, "expected": f"at most what nodes have, quotas sum up to {_text(promised)}"}
    if not known or not nodes:
        reason = "no node bears the flavor's labels" if known else "the nodes could not be read"
        return {**say, "verdict": "unknown", "reason": reason, "fix": "kubectl get nodes --show-labels"}
    given = [(node["status"].get("allocatable") or {}).get(name) for node in nodes]
    there = sum((_amount(one) for one in given if one is not None), Fraction())
    say["found"] = f"{_text(there)} on {len(nodes)} nodes"
    if promised <= there:
        return {**say, "verdict": "pass"}
    if silent := sum(one is None for one in given):
        reason = f"{silent} of {len(nodes)} nodes say nothing about {name}"
        return {**say, "verdict": "unknown", "reason": reason, "fix": "see whether the device plug-in runs there"}
    reason = "jobs are admitted that no node can take"
    return {**say, "verdict": "fail", "reason": reason, "fix": "lower the quotas, or say that it is meant so: kueue_overcommit: true"}


def _levels(wanted: Iterable[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]] | None, host: str) -> list[dict[str, Any]]:
    """See that each node of a flavor with a topology has every level's label: Kueue passes over one that has not."""
    wanted = list(wanted)
    levels = [level["nodeLabel"] for one in wanted if one["kind"] == "Topology" for level in one["spec"]["levels"]]
    found = []
    for one in wanted:
        if one["kind"] != "ResourceFlavor" or not one["spec"].get("topologyName"):
            continue
        say = {"device": one["metadata"]["name"], "expected": ", ".join(levels)}
        mine = [node for node in nodes or () if _has(node, one["spec"].get("nodeLabels") or {})]
        bare = sorted(node["metadata"]["name"] for node in mine if set(levels) - set(node["metadata"].get("labels") or {}))
        if not mine:
            reason = "the nodes could not be read" if nodes is None else "no node bears the flavor's labels"
            found.append(_record("kueue.topology", host, "unknown", **say, reason=reason))
        elif bare:
            more = f" and {len(bare) - NAMED} more" if len(bare) > NAMED else ""
            say |= {"found": f"not on {', '.join(bare[:NAMED])}{more}", "fix": "state rack (and switch) of each GPU host in hosts.yaml"}
            found.append(_record("kueue.topology", host, "fail", **say, reason="Kueue places no job on a node without them"))
        else:
            found.append(_record("kueue.topology", host, "pass", **say, found=f"on {len(mine)} nodes"))
    return found


def _surplus(wanted: Iterable[Mapping[str, Any]], live: Iterable[Mapping[str, Any]] | None, host: str) -> list[dict[str, Any]]:
    """Name objects of ours that hosts.yaml no longer states; they may hold jobs, so nobody but a person deletes them."""
    stated = {_key(one) for one in wanted}
    mine = [one for one in live or () if _has(one, LABELS)]
    found = []
    for kind, namespace, name in sorted(_key(one) for one in mine if _key(one) not in stated):
        place = f" -n {namespace}" if namespace else ""
        fix = f"state it again, or let its jobs end and `kubectl delete {kind.lower()} {name}{place}`"
        found.append(
            _record(
                "kueue.surplus", host, "skipped", device=f"{kind} {name}", found="there", reason="hosts.yaml no longer states it", fix=fix
            )
        )
    return found


def _has(one: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    # Ansible's own mappings give no sets of items that could be compared.
    there = one["metadata"].get("labels") or {}
    return all(there.get(key) == value for key, value in labels.items())


def _amount(quantity: object) -> Fraction:
    text = str(quantity)
    digits = text.rstrip("numkKMGTPEi")
    return Fraction(digits) * UNITS[text[len(digits) :]]


def _text(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):.3f}"


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"kueue_verdicts": kueue_verdicts}
