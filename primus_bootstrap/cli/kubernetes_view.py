"""Prints the variables for Kubespray, for `plan --show kubernetes`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from primus_bootstrap.cli.console import emit, emit_json, emit_table, plain_table
from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.kubernetes.kubespray_values import all_values
from primus_bootstrap.kubernetes.preflight import provider, release_of

if TYPE_CHECKING:
    from primus_bootstrap.inventory.cluster import Cluster

_PARTS = ("kubernetes",)


def show_part(cluster: Cluster, part: str, *, as_json: bool) -> None:
    """Print one part of a plan.

    Raises:
        UsageError: There is no such part.
        PlanError: This cluster does not use it.
    """
    if part not in _PARTS:
        raise UsageError(f"--show {part}: no such part", fix=f"choose from: {', '.join(_PARTS)}")
    if provider(cluster) != "kubespray":
        raise PlanError("kubernetes_provider is existing: Kubespray is not used", fix="leave --show out")
    if not cluster.groups.get("kube_control_plane"):
        raise PlanError("no host is in kube_control_plane: Kubespray is not used", fix="add a host to kube_control_plane in hosts.yaml")
    values = all_values(cluster, cluster.state_dir.absolute() / "kubespray")
    if as_json:
        emit_json(
            {"schema": "primus.kubespray-values/1", "release": release_of(cluster).version, "values": [asdict(value) for value in values]}
        )
        return
    table = plain_table("variable", "value", "set by", "for", "why, or where")
    for value in values:
        table.add_row(value.name, _short(value.value), value.source, value.group or "-", value.reason)
    emit(f"Kubespray {release_of(cluster).version}, cluster {cluster.name}")
    emit_table(table)


def _short(value: Any) -> str:
    return value.strip() if isinstance(value, str) else json.dumps(value)
