# ruff: noqa: INP001 (Ansible loads it by path)
"""Filters that convert queues of hosts.yaml to objects of Kueue (kueue.x-k8s.io/v1beta2), and compare them with the cluster.

The verdict records are those of primus_bootstrap/core/verdicts.py.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

API = "kueue.x-k8s.io/v1beta2"
LABELS = {"app.kubernetes.io/managed-by": "primus-bootstrap"}
HOSTNAME = "kubernetes.io/hostname"
# How many names a verdict lists.
NAMED = 8
DECIMAL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
DECIMAL |= {suffix: Fraction(1000) ** power for power, suffix in enumerate("kMGTPE", 1)}
BINARY = {f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", 1)}
# Kind -> fields of its spec that are immutable (rules of the CRDs of Kueue v0.19.2); those of a flavor only if it has a topology.
IMMUTABLE = {"Topology": ("levels",), "ResourceFlavor": ("nodeLabels", "tolerations", "topologyName"), "LocalQueue": ("clusterQueue",)}


def amount(quantity: object) -> Fraction:
    """Return a Kubernetes quantity as a number.

    Raises:
        ValueError: It is not a quantity.
    """
    text = str(quantity)
    digits = text.rstrip("numkKMGTPEi")
    return Fraction(digits) * (BINARY | DECIMAL)[text[len(digits) :]]


def canonical(quantity: object) -> str:
    """Return a quantity in the canonical form of Kubernetes, in which webhooks return it, so that it does not look changed."""
    value, binary = amount(quantity), str(quantity).endswith("i")
    if not value:
        return "0"
    if binary and value.denominator == 1 and value >= 1024:
        whole = [suffix for suffix, factor in BINARY.items() if not (value / factor).denominator > 1]
        return f"{value / BINARY[whole[-1]]}{whole[-1]}" if whole else str(value)
    whole = [suffix for suffix, factor in DECIMAL.items() if (value / factor).denominator == 1]
    return f"{value / DECIMAL[whole[-1]]}{whole[-1]}"


def kueue_objects(variables: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the objects in the order in which they must be created: those that others refer to come first.

    Args:
        variables: All of the role's variables by name.
    """
    levels = [one for one in variables["kueue_topology_levels"] if one != HOSTNAME]
    topology = variables["kueue_topology_name"] if levels else ""
    found = []
    if levels:
        spec = {"levels": [{"nodeLabel": label} for label in [*levels, HOSTNAME]]}
        found.append(_object("Topology", topology, spec=spec))
    found += [_flavor(one, topology, variables["kueue_model_label"]) for one in variables["kueue_flavors"]]
    found += [_cohort(one) for one in variables["kueue_cohorts"]]
    found += [_queue(one) for one in variables["kueue_cluster_queues"]]
    for one in variables["kueue_priorities"]:
        found.append(_object("WorkloadPriorityClass", one["name"], value=one["value"], description=one.get("description") or ""))
    for one in variables["kueue_local_queues"]:
        queue = _object("LocalQueue", one["name"], spec={"clusterQueue": one["cluster_queue"], "stopPolicy": one.get("stop") or "None"})
        queue["metadata"]["namespace"] = one["namespace"]
        found.append(queue)
    return found


def kueue_namespaces(queues: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the Namespace objects of local queues, without labels."""
    names = dict.fromkeys(one["namespace"] for one in queues)
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]


def _object(kind: str, name: str, **rest: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name, "labels": dict(LABELS)}, **rest}


def _flavor(one: Mapping[str, Any], topology: str, model_label: str) -> dict[str, Any]:
    labels = {**({model_label: one["model"]} if one.get("model") else {}), **(one.get("node_labels") or {})}
    spec: dict[str, Any] = {}
    if labels:
        spec["nodeLabels"] = {key: str(value) for key, value in labels.items()}
    if one.get("taints"):
        spec["nodeTaints"] = [dict(taint) for taint in one["taints"]]
    if one.get("tolerations"):
        spec["tolerations"] = [dict(toleration) for toleration in one["tolerations"]]
    if topology and one.get("topology", True):
        spec["topologyName"] = topology
    return _object("ResourceFlavor", one["name"], spec=spec)


def _cohort(one: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if one.get("parent"):
        spec["parentName"] = one["parent"]
    if one.get("quotas"):
        spec["resourceGroups"] = resource_groups(one["quotas"])
    if one.get("weight") is not None:
        spec["fairSharing"] = {"weight": canonical(one["weight"])}
    return _object("Cohort", one["name"], spec=spec)


def _queue(one: Mapping[str, Any]) -> dict[str, Any]:
    namespaces = one.get("namespaces") or []
    only = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}]}
    borrow: dict[str, Any] = {"policy": one.get("borrow_within_cohort") or "Never"}
    spec: dict[str, Any] = {
        "queueingStrategy": one.get("strategy") or "BestEffortFIFO",
        "namespaceSelector": only if namespaces else {},
        "stopPolicy": one.get("stop") or "None",
        "preemption": {
            "reclaimWithinCohort": one.get("reclaim_within_cohort") or "Any",
            "withinClusterQueue": one.get("within_queue") or "LowerPriority",
            "borrowWithinCohort": borrow,
        },
    }
    if one.get("cohort"):
        spec["cohortName"] = one["cohort"]
    if one.get("quotas"):
        spec["resourceGroups"] = resource_groups(one["quotas"])
    if one.get("weight") is not None:
        spec["fairSharing"] = {"weight": canonical(one["weight"])}
    return _object("ClusterQueue", one["name"], spec=spec)


def resource_groups(quotas: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return quotas in Kueue's groups: flavors with the same resources together, each with the resources in the group's order."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for one in quotas:
        covered = tuple(sorted(one["resources"]))
        limits = (
            ("nominalQuota", one["resources"]),
            ("borrowingLimit", one.get("borrowing_limits")),
            ("lendingLimit", one.get("lending_limits")),
        )
        resources = [
            {"name": name, **{key: canonical(values[name]) for key, values in limits if values and name in values}} for name in covered
        ]
        groups.setdefault(covered, []).append({"name": one["flavor"], "resources": resources})
    return [{"coveredResources": list(covered), "flavors": flavors} for covered, flavors in groups.items()]


def kueue_immutable_changes(wanted: Iterable[Mapping[str, Any]], live: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each existing object of which an immutable field would change: the problem, and `Fix:`."""
    existing = {_key(one): one.get("spec") or {} for one in live}
    found = []
    for one in wanted:
        old, new = existing.get(_key(one)), one.get("spec") or {}
        if old is None or (one["kind"] == "ResourceFlavor" and not old.get("topologyName")):
            continue
        for field in IMMUTABLE.get(one["kind"], ()):
            if old.get(field) != new.get(field):
                kind, name, namespace = one["kind"], one["metadata"]["name"], one["metadata"].get("namespace")
                option = f" -n {namespace}" if namespace else ""
                found.append(
                    f"{kind} {name}: {field} cannot be changed (from {old.get(field)} to {new.get(field)}). "
                    f"Fix: use a new name, or let its jobs end and run `kubectl delete {kind.lower()} {name}{option}`"
                )
    return found


def _key(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return (str(one["kind"]), str(one["metadata"].get("namespace") or ""), str(one["metadata"]["name"]))


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
                    quotas[flavor["name"]][resource["name"]] += amount(resource["nominalQuota"])
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
    available = sum((amount(one) for one in allocatable if one is not None), Fraction())
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


def _text(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):.3f}"


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "kueue_objects": kueue_objects,
            "kueue_namespaces": kueue_namespaces,
            "kueue_immutable_changes": kueue_immutable_changes,
            "kueue_verdicts": kueue_verdicts,
        }
