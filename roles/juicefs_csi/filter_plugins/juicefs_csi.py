# ruff: noqa: INP001 (Ansible loads it by path)
"""Filters of the role `juicefs_csi`: the metadata URL, conflicts between variables, and the verdict on the driver.

`validate` uses `findings`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

VOLUME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
DRIVER = "csi.juicefs.com"
ENGINES = ("redis", "rediss", "postgres", "mysql", "tikv", "etcd")
VARIABLES = (
    "juicefs_csi_name",
    "juicefs_csi_meta_url",
    "juicefs_csi_bucket",
    "juicefs_csi_storage",
    "juicefs_csi_mount_options",
    "juicefs_csi_database",
)

Finding = tuple[str, str, str, str]


def meta_url(url: str, password: str) -> str:
    """Return the metadata engine's URL with its password in JuiceFS's syntax (with an empty account for redis)."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    account, at, address = authority.rpartition("@")
    if not password or ":" in account.rstrip(":"):
        return url
    return f"{scheme}://{account.rstrip(':') if at else ''}:{quote(password, safe='')}@{address}{slash}{path}"


def findings(values: Mapping[str, Any], redis: bool, hosts_volume: str = "") -> list[Finding]:  # noqa: FBT001 (Jinja calls it so)
    """Return each conflict as variable, message, fix and rule name.

    Args:
        values: The role's variables by name; a missing one has its default.
        redis: Whether the cluster has its own metadata engine.
        hosts_volume: The volume that hosts mount from database 1 of that engine; empty = none.
    """
    return [*_engine(values, redis=redis), *_volume(values), *_shared(values, hosts_volume)]


def messages(found: Sequence[Finding]) -> list[str]:
    """Return findings as error messages."""
    return [f"{what}. Fix: {fix}." for _, what, fix, _ in found]


def _shared(values: Mapping[str, Any], hosts_volume: str) -> Iterator[Finding]:
    name = values.get("juicefs_csi_name", "jfs")
    if hosts_volume and not values.get("juicefs_csi_meta_url") and values.get("juicefs_csi_database", 1) == 1 and name != hosts_volume:
        what = f"juicefs_csi_name is {name}, and database 1 of Redis has the volume {hosts_volume}, which hosts mount"
        fix = f"set juicefs_csi_name to {hosts_volume} to share that volume, or set juicefs_csi_database to 2"
        yield "juicefs_csi_name", what, fix, "juicefs-csi-name"


def _engine(values: Mapping[str, Any], *, redis: bool) -> Iterator[Finding]:
    url = values.get("juicefs_csi_meta_url", "")
    if not url and not redis:
        what = "juicefs_csi has no metadata engine: no volume could be created"
        yield "juicefs_csi_meta_url", what, "add a host to the group redis, or set juicefs_csi_meta_url", "juicefs-csi-engine"
    if url and url.partition("://")[0] not in ENGINES:
        what = f"juicefs_csi_meta_url begins with {url.partition('://')[0]!r}, which pods on several nodes cannot share"
        yield "juicefs_csi_meta_url", what, f"use one of {', '.join(ENGINES)}", "juicefs-csi-engine"
    account = url.partition("://")[2].rpartition("@")[0]
    if ":" in account and not account.endswith(":"):
        what = "juicefs_csi_meta_url contains a password"
        yield "juicefs_csi_meta_url", what, "remove it, and set juicefs_csi_meta_password by reference", "juicefs-csi-password"


def _volume(values: Mapping[str, Any]) -> Iterator[Finding]:
    if not values.get("juicefs_csi_bucket"):
        what = "juicefs_csi_bucket is empty: there is no object store for file contents"
        yield "juicefs_csi_bucket", what, "set it, such as https://s3.example.com/train", "juicefs-csi-bucket"
    if values.get("juicefs_csi_storage", "s3") == "file":
        what = "juicefs_csi_storage is file: every node would write to its own disk"
        yield "juicefs_csi_storage", what, "use an object store that every node can reach, such as s3", "juicefs-csi-bucket"
    name = values.get("juicefs_csi_name", "jfs")
    if not VOLUME.fullmatch(name):
        what = f"juicefs_csi_name is {name!r}, which is not a valid volume name"
        yield "juicefs_csi_name", what, "use 3 to 63 lower-case letters, digits and dashes", "juicefs-csi-name"
    for option in values.get("juicefs_csi_mount_options") or ():
        if option.split("=")[0] in {"writeback", "--writeback"}:
            what = "juicefs_csi_mount_options contains writeback: data that a pod wrote are lost with its node"
            yield "juicefs_csi_mount_options", what, "remove it", "juicefs-csi-writeback"
        elif option.startswith("-"):
            what = f"juicefs_csi_mount_options: {option} begins with a dash, which the driver adds itself"
            yield "juicefs_csi_mount_options", what, f"write {option.lstrip('-')}", "juicefs-csi-option"


def ready_nodes(found: Mapping[str, Any]) -> list[str]:
    """Return the names of the ready nodes; `found` is the result of kube_list, with None for a kind that could not be read."""
    return sorted(
        node["metadata"]["name"] for node in found["Node"] or () if any(one["status"] == "True" for one in node["status"]["conditions"])
    )


def verdicts(found: Mapping[str, Any], host: str) -> list[dict[str, Any]]:
    """Return the verdict on the driver of ready nodes; without a ready node it is unknown."""
    record = {"check": "juicefs_csi.nodes", "host": host, "expected": f"{DRIVER} on every ready node"}
    if found["Node"] is None or found["CSINode"] is None:
        return [{**record, "verdict": "unknown", "reason": "the API server did not return its nodes", "fix": "kubectl get nodes,csinodes"}]
    ready = ready_nodes(found)
    served = {one["metadata"]["name"] for one in found["CSINode"] if DRIVER in [it["name"] for it in one["spec"].get("drivers") or ()]}
    without = [name for name in ready if name not in served]
    record["found"] = f"on {len(ready) - len(without)} of {len(ready)} ready nodes"
    if not ready:
        return [{**record, "verdict": "unknown", "reason": "no node is ready, so no driver can run", "fix": "kubectl get nodes"}]
    if without:
        reason = f"without the driver: {', '.join(without[:5])}" + (f" and {len(without) - 5} more" if len(without) > 5 else "")
        fix = "kubectl -n kube-system describe pods -l app.kubernetes.io/name=juicefs-csi-driver"
        return [{**record, "verdict": "fail", "reason": reason, "fix": fix}]
    return [{**record, "verdict": "pass"}]


class FilterModule:
    """The filters, as Ansible loads them."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "juicefs_csi_findings": findings,
            "juicefs_csi_messages": messages,
            "juicefs_csi_meta_url": meta_url,
            "juicefs_csi_ready_nodes": ready_nodes,
            "juicefs_csi_verdicts": verdicts,
        }
