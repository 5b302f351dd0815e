# ruff: noqa: INP001 (Ansible loads it by path)
"""Filter that returns verdict records (primus_bootstrap/core/verdicts.py) for queues, quotas and topology."""

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
    """Return the verdict records of queues, quotas and topology.

    Args:
        wanted: The objects of `kueue_objects`.
        live: `objects` (Kueue's kinds in the cluster) and `nodes`; None if they could not be read.
        host: The host in the records.
        overcommit: Whether quotas may exceed the resources of the nodes.
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
    """Check the condition Active of every queue, in which Kueue reports what is missing."""
    existing = {_key(one): one for one in live or ()}
    found = []
    for one in wanted:
        if one["kind"] not in {"ClusterQueue", "LocalQueue"}:
            continue
        kind, namespace, name = _key(one)
        word = "/".join(filter(None, (namespace, name)))
        fields = {"device": f"{kind} {word}", "expected": "Active=True", "fix": f"kubectl describe {kind.lower()} {name}"}
        now = existing.get((kind, namespace, name))
        states = {state["type"]: state for state in ((now or {}).get("status") or {}).get("conditions") or ()}
        active = states.get("Active")
        if live is None or (now is not None and active is None):
            found.append(_record("kueue.queue", host, "unknown", **fields, reason="Kueue has not reported its state yet"))
        elif now is None:
            found.append(_record("kueue.queue", host, "fail", **fields, found="missing"))
        elif active and active["status"] == "True":
            found.append(_record("kueue.queue", host, "pass", device=fields["device"], expected=fields["expected"], found="Active=True"))
        else:
            reason = str((active or {}).get("message") or "")
            is_stopped = (one["spec"].get("stopPolicy") or "None") != "None"
            fields["reason"] = f"stopped by hosts.yaml: {reason}" if is_stopped else reason
            found.append(_record("kueue.queue", host, "skipped" if is_stopped else "fail", **fields, found="Active=False"))
    return found


def _quotas(
    wanted: Iterable[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]] | None, host: str, *, overcommit: bool
) -> list[dict[str, Any]]:
    """Compare the quotas of a flavor with the resources of its nodes, beyond which admitted jobs wait for ever."""
    wanted = list(wanted)
    quotas: dict[str, dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for one in wanted:
        for group in (one.get("spec") or {}).get("resourceGroups") or () if one["kind"] in {"ClusterQueue", "Cohort"} else ():
            for flavor in group["flavors"]:
                for resource in flavor["resources"]:
                    quotas[flavor["name"]][resource["name"]] += _amount(resource["nominalQuota"])
    labels = {one["metadata"]["name"]: one["spec"].get("nodeLabels") or {} for one in wanted if one["kind"] == "ResourceFlavor"}
    found = []
    for flavor, resources in quotas.items():
        of_flavor = [node for node in nodes or () if _has(node, labels.get(flavor, {}))]
        for name, sum_of_quotas in resources.items():
            record = _quota(f"{flavor} {name}", name, sum_of_quotas, of_flavor, known=nodes is not None)
            if record["verdict"] == "fail" and overcommit:
                record |= {"verdict": "skipped", "reason": f"{record['reason']}; kueue_overcommit allows it"}
            found.append({"check": "kueue.quota", "host": host, **record})
    return found


def _quota(device: str, name: str, quota: Fraction, nodes: Sequence[Mapping[str, Any]], *, known: bool) -> dict[str, Any]:
    fields = {"device": device, "expected": f"quotas of {_text(quota)} do not exceed the nodes"}
    if not known or not nodes:
        reason = "no node has the flavor's labels" if known else "the nodes could not be read"
        return {**fields, "verdict": "unknown", "reason": reason, "fix": "kubectl get nodes --show-labels"}
    allocatable = [(node["status"].get("allocatable") or {}).get(name) for node in nodes]
    available = sum((_amount(one) for one in allocatable if one is not None), Fraction())
    fields["found"] = f"{_text(available)} on {len(nodes)} nodes"
    if quota <= available:
        return {**fields, "verdict": "pass"}
    if missing := sum(one is None for one in allocatable):
        reason = f"{missing} of {len(nodes)} nodes do not report {name}"
        return {**fields, "verdict": "unknown", "reason": reason, "fix": "check that the device plug-in runs on them"}
    reason = "jobs are admitted that no node can run"
    return {**fields, "verdict": "fail", "reason": reason, "fix": "reduce the quotas, or set kueue_overcommit: true if they are intended"}


def _levels(wanted: Iterable[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]] | None, host: str) -> list[dict[str, Any]]:
    """Check that each node of a flavor with a topology has the labels of all levels: Kueue ignores a node without them."""
    wanted = list(wanted)
    levels = [level["nodeLabel"] for one in wanted if one["kind"] == "Topology" for level in one["spec"]["levels"]]
    found = []
    for one in wanted:
        if one["kind"] != "ResourceFlavor" or not one["spec"].get("topologyName"):
            continue
        fields = {"device": one["metadata"]["name"], "expected": ", ".join(levels)}
        of_flavor = [node for node in nodes or () if _has(node, one["spec"].get("nodeLabels") or {})]
        unlabelled = sorted(node["metadata"]["name"] for node in of_flavor if set(levels) - set(node["metadata"].get("labels") or {}))
        if not of_flavor:
            reason = "the nodes could not be read" if nodes is None else "no node has the flavor's labels"
            found.append(_record("kueue.topology", host, "unknown", **fields, reason=reason))
        elif unlabelled:
            more = f" and {len(unlabelled) - NAMED} more" if len(unlabelled) > NAMED else ""
            fix = "set rack (and slurm_switch) of each GPU host in hosts.yaml"
            fields |= {"found": f"not on {', '.join(unlabelled[:NAMED])}{more}", "fix": fix}
            found.append(_record("kueue.topology", host, "fail", **fields, reason="Kueue places no job on a node without them"))
        else:
            found.append(_record("kueue.topology", host, "pass", **fields, found=f"on {len(of_flavor)} nodes"))
    return found


def _surplus(wanted: Iterable[Mapping[str, Any]], live: Iterable[Mapping[str, Any]] | None, host: str) -> list[dict[str, Any]]:
    """Report our objects that are no longer in hosts.yaml. They may have jobs, so only a person deletes them."""
    stated = {_key(one) for one in wanted}
    ours = [one for one in live or () if _has(one, LABELS)]
    found = []
    for kind, namespace, name in sorted(_key(one) for one in ours if _key(one) not in stated):
        option = f" -n {namespace}" if namespace else ""
        fix = f"add it to hosts.yaml again, or let its jobs end and run `kubectl delete {kind.lower()} {name}{option}`"
        fields = {"device": f"{kind} {name}", "found": "exists", "reason": "it is no longer in hosts.yaml", "fix": fix}
        found.append(_record("kueue.surplus", host, "skipped", **fields))
    return found


def _has(one: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    # Ansible's own mappings have no sets of items that could be compared.
    existing = one["metadata"].get("labels") or {}
    return all(existing.get(key) == value for key, value in labels.items())


def _amount(quantity: object) -> Fraction:
    text = str(quantity)
    digits = text.rstrip("numkKMGTPEi")
    return Fraction(digits) * UNITS[text[len(digits) :]]


def _text(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):.3f}"


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"kueue_verdicts": kueue_verdicts}
