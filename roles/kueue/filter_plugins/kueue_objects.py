# ruff: noqa: INP001 (Ansible loads it by path)
"""Filters that convert queues of hosts.yaml to objects of Kueue (kueue.x-k8s.io/v1beta2), and find changes of immutable fields."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

API = "kueue.x-k8s.io/v1beta2"
LABELS = {"app.kubernetes.io/managed-by": "primus-bootstrap"}
HOSTNAME = "kubernetes.io/hostname"
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


def kueue_objects(stated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the objects in the order in which they must be created: those that others refer to come first.

    Args:
        stated: All of the role's variables by name.
    """
    levels = [one for one in stated["kueue_topology_levels"] if one != HOSTNAME]
    topology = stated["kueue_topology_name"] if levels else ""
    found = []
    if levels:
        spec = {"levels": [{"nodeLabel": label} for label in [*levels, HOSTNAME]]}
        found.append(_object("Topology", topology, spec=spec))
    found += [_flavor(one, topology, stated["kueue_model_label"]) for one in stated["kueue_flavors"]]
    found += [_cohort(one) for one in stated["kueue_cohorts"]]
    found += [_queue(one) for one in stated["kueue_cluster_queues"]]
    for one in stated["kueue_priorities"]:
        found.append(_object("WorkloadPriorityClass", one["name"], value=one["value"], description=one.get("description") or ""))
    for one in stated["kueue_local_queues"]:
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


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"kueue_objects": kueue_objects, "kueue_namespaces": kueue_namespaces, "kueue_immutable_changes": kueue_immutable_changes}
