"""What nodes say of themselves: pure functions from the API server's objects to which of them can take a job's pods."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from primus_bootstrap.launch.watch.job_spec_kubernetes import Kubernetes

# What is wrong with a node now, and goes by itself: https://kubernetes.io/docs/reference/labels-annotations-taints/
_OF_NOW = "node.kubernetes.io/"
_KEEPS_OFF = ("NoSchedule", "NoExecute")
# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([mkMGTPE]|[KMGTPE]i)?")
_FACTORS = {"m": 1e-3, "k": 1e3, **{f"{one}{two}": (1024 if two else 1000) ** n for n, one in enumerate("KMGTPE", 1) for two in ("", "i")}}


def ready(node: Mapping[str, Any] | None) -> bool:
    """Say whether the cluster hears from a node; one that is not there is not heard."""
    conditions = ((node or {}).get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def usable(node: Mapping[str, Any]) -> bool:
    """Say whether the scheduler can use a node now."""
    off = any(one["key"].startswith(_OF_NOW) for one in _taints(node))
    return ready(node) and not off and not node["spec"].get("unschedulable")


def suits(node: Mapping[str, Any], wanted: Kubernetes, tolerations: Iterable[Mapping[str, str]]) -> bool:
    """Say whether a node can take a pod at all, once it is well: no taint keeps the pod off, and it has as many devices as it asks for.

    Processors and memory are not looked at: how much of them is left only the scheduler knows.
    """
    borne = list(tolerations)
    others = (taint for taint in _taints(node) if not taint["key"].startswith(_OF_NOW))
    if not all(any(_bears(one, taint) for one in borne) for taint in others):
        return False
    there = (node.get("status") or {}).get("allocatable") or {}
    return all(_amount(there.get(name, "0")) >= _amount(number) for name, number in wanted.resources.items() if "/" in name)


def _taints(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [taint for taint in node["spec"].get("taints") or () if taint.get("effect") in _KEEPS_OFF]


def _bears(toleration: Mapping[str, str], taint: Mapping[str, Any]) -> bool:
    """Say whether a toleration is of a taint: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/."""
    if toleration.get("effect") not in (None, "", taint.get("effect")) or toleration.get("key") not in (None, "", taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or bool(
        toleration.get("key") and toleration.get("value", "") == (taint.get("value") or "")
    )


def _amount(text: Any) -> float:
    """Return a quantity as a number; what cannot be read is none."""
    found = _QUANTITY.fullmatch(str(text))
    return float(found[1]) * _FACTORS.get(found[2] or "", 1.0) if found else 0.0
