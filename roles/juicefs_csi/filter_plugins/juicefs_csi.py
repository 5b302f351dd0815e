# ruff: noqa: INP001 (Ansible loads it by path)
"""What the role `juicefs_csi` decides on the controller: where metadata are, and what in hosts.yaml contradicts itself."""

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
    """Return the metadata engine's URL with its password, as JuiceFS spells it (redis has an empty account before it)."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    account, at, address = authority.rpartition("@")
    if not password or ":" in account.rstrip(":"):
        return url
    return f"{scheme}://{account.rstrip(':') if at else ''}:{quote(password, safe='')}@{address}{slash}{path}"


def findings(stated: Mapping[str, Any], redis: bool, hosts_volume: str = "") -> list[Finding]:  # noqa: FBT001 (Jinja calls it so)
    """Return what contradicts itself: the variable it is about, what, its fix, and the rule's name.

    Args:
        stated: The role's variables by name; one that is missing has its default.
        redis: Whether the cluster has a metadata engine of its own.
        hosts_volume: The volume that hosts mount from database 1 of that engine; empty = none.
    """
    return [*_engine(stated, redis=redis), *_volume(stated), *_shared(stated, hosts_volume)]


def texts(found: Sequence[Finding]) -> list[str]:
    """Return findings as a preflight says them."""
    return [f"{what}. Fix: {fix}." for _, what, fix, _ in found]


def _shared(stated: Mapping[str, Any], hosts_volume: str) -> Iterator[Finding]:
    name = stated.get("juicefs_csi_name", "jfs")
    if hosts_volume and not stated.get("juicefs_csi_meta_url") and stated.get("juicefs_csi_database", 1) == 1 and name != hosts_volume:
        what = f"juicefs_csi_name is {name}, and database 1 of Redis holds the volume {hosts_volume} that hosts mount"
        yield "juicefs_csi_name", what, f"name it {hosts_volume} to share that volume, or set juicefs_csi_database to 2", "juicefs-csi-name"


def _engine(stated: Mapping[str, Any], *, redis: bool) -> Iterator[Finding]:
    url = stated.get("juicefs_csi_meta_url", "")
    if not url and not redis:
        what = "juicefs_csi has no metadata engine: no volume could be made"
        yield "juicefs_csi_meta_url", what, "put a host into the group redis, or set juicefs_csi_meta_url", "juicefs-csi-engine"
    if url and url.partition("://")[0] not in ENGINES:
        what = f"juicefs_csi_meta_url begins with {url.partition('://')[0]!r}, which pods on several nodes cannot share"
        yield "juicefs_csi_meta_url", what, f"use one of {', '.join(ENGINES)}", "juicefs-csi-engine"
    account = url.partition("://")[2].rpartition("@")[0]
    if ":" in account and not account.endswith(":"):
        what = "juicefs_csi_meta_url holds a password"
        yield "juicefs_csi_meta_url", what, "take it out, and set juicefs_csi_meta_password by reference", "juicefs-csi-password"


def _volume(stated: Mapping[str, Any]) -> Iterator[Finding]:
    if not stated.get("juicefs_csi_bucket"):
        what = "juicefs_csi_bucket is empty: file contents would have no place"
        yield "juicefs_csi_bucket", what, "set it, such as https://s3.example.com/train", "juicefs-csi-bucket"
    if stated.get("juicefs_csi_storage", "s3") == "file":
        what = "juicefs_csi_storage is file: every node would write to a disk of its own"
        yield "juicefs_csi_storage", what, "use an object store that every node reaches, such as s3", "juicefs-csi-bucket"
    name = stated.get("juicefs_csi_name", "jfs")
    if not VOLUME.fullmatch(name):
        what = f"juicefs_csi_name is {name!r}, no name that JuiceFS takes"
        yield "juicefs_csi_name", what, "use 3 to 63 small letters, figures and dashes", "juicefs-csi-name"
    for option in stated.get("juicefs_csi_mount_options") or ():
        if option.split("=")[0] in {"writeback", "--writeback"}:
            what = "juicefs_csi_mount_options holds writeback: what a pod wrote is lost with its node"
            yield "juicefs_csi_mount_options", what, "take it out", "juicefs-csi-writeback"
        elif option.startswith("-"):
            what = f"juicefs_csi_mount_options: {option} begins with a dash, which the driver adds by itself"
            yield "juicefs_csi_mount_options", what, f"write {option.lstrip('-')}", "juicefs-csi-option"


def _nodes(results: Sequence[Mapping[str, Any]]) -> tuple[dict[str, bool], dict[str, list[str]]] | None:
    """Return each node and whether it is ready, and the drivers of each; None where the API server did not say."""
    if len(results) != 2 or any(not isinstance(one.get("resources"), list) for one in results):
        return None
    ready = {
        node["metadata"]["name"]: any(
            one.get("type") == "Ready" and one.get("status") == "True" for one in (node.get("status") or {}).get("conditions") or ()
        )
        for node in results[0]["resources"]
    }
    drivers = {
        node["metadata"]["name"]: [one["name"] for one in (node.get("spec") or {}).get("drivers") or ()] for node in results[1]["resources"]
    }
    return ready, drivers


def served(results: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any node is ready, so that a claim could be bound."""
    known = _nodes(results)
    return known is not None and any(known[0].values())


def verdicts(results: Sequence[Mapping[str, Any]], host: str) -> list[dict[str, Any]]:
    """Return the verdict about the driver on nodes: a node that is not ready says nothing, and no ready node at all is unknown."""
    record = {
        "check": "juicefs_csi.nodes",
        "host": host,
        "expected": f"{DRIVER} on every ready node",
        "found": "",
        "unit": "",
        "source": "docs/kubernetes-services.md",
        "reason": "",
        "fix": "",
        "device": "",
        "serial": "",
        "started": 0.0,
        "seconds": 0.0,
        "schema": "primus.verdict/1",
    }
    known = _nodes(results)
    if known is None:
        return [{**record, "verdict": "unknown", "reason": "the API server did not tell its nodes"}]
    ready = sorted(name for name, is_ready in known[0].items() if is_ready)
    without = [name for name in ready if DRIVER not in known[1].get(name, [])]
    found = {**record, "found": f"on {len(ready) - len(without)} of {len(ready)} ready nodes"}
    if not ready:
        return [{**found, "verdict": "unknown", "reason": "no node is ready, so no driver could start"}]
    if without:
        reason = f"without the driver: {', '.join(without[:5])}" + (f" and {len(without) - 5} more" if len(without) > 5 else "")
        return [{**found, "verdict": "fail", "reason": reason, "fix": "see the pods juicefs-csi-node on these nodes"}]
    return [{**found, "verdict": "pass"}]


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {
            "juicefs_csi_findings": findings,
            "juicefs_csi_meta_url": meta_url,
            "juicefs_csi_served": served,
            "juicefs_csi_texts": texts,
            "juicefs_csi_verdicts": verdicts,
        }
