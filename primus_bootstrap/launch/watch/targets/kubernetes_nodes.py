"""Check which nodes of Kubernetes can run a job's pods. Pure functions of the API server's objects."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from primus_bootstrap.launch.watch.job_spec_kubernetes import Kubernetes

# Taints that Kubernetes sets and removes by itself: https://kubernetes.io/docs/reference/labels-annotations-taints/
_TEMPORARY = "node.kubernetes.io/"
_EFFECTS = ("NoSchedule", "NoExecute")
# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([mkMGTPE]|[KMGTPE]i)?")
_FACTORS = {"m": 1e-3, "k": 1e3, **{f"{one}{two}": (1024 if two else 1000) ** n for n, one in enumerate("KMGTPE", 1) for two in ("", "i")}}


def ready(node: Mapping[str, Any] | None) -> bool:
    """Return whether a node is ready; False if it does not exist."""
    conditions = ((node or {}).get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def usable(node: Mapping[str, Any]) -> bool:
    """Return whether the scheduler can use a node now."""
    tainted = any(taint["key"].startswith(_TEMPORARY) for taint in _taints(node))
    return ready(node) and not tainted and not node["spec"].get("unschedulable")


def suits(node: Mapping[str, Any], pods: Kubernetes, tolerations: Iterable[Mapping[str, str]]) -> bool:
    """Return whether a healthy node could run the pod: its taints are tolerated, and it has enough devices.

    Processors and memory are not checked: only the scheduler knows how much of them is free.
    """
    tolerated = list(tolerations)
    others = (taint for taint in _taints(node) if not taint["key"].startswith(_TEMPORARY))
    if not all(any(_tolerates(toleration, taint) for toleration in tolerated) for taint in others):
        return False
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return all(_amount(allocatable.get(name, "0")) >= _amount(number) for name, number in pods.resources.items() if "/" in name)


def _taints(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [taint for taint in node["spec"].get("taints") or () if taint.get("effect") in _EFFECTS]


def _tolerates(toleration: Mapping[str, str], taint: Mapping[str, Any]) -> bool:
    """Return whether a toleration matches a taint: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/."""
    if toleration.get("effect") not in (None, "", taint.get("effect")) or toleration.get("key") not in (None, "", taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or bool(
        toleration.get("key") and toleration.get("value", "") == (taint.get("value") or "")
    )


def _amount(text: Any) -> float:
    """Return a quantity as a number; 0 if it is invalid."""
    found = _QUANTITY.fullmatch(str(text))
    return float(found[1]) * _FACTORS.get(found[2] or "", 1.0) if found else 0.0
