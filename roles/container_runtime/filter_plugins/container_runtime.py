# ruff: noqa: INP001 (Ansible loads it by path)
"""What the role `container_runtime` decides on the controller: an engine's settings from what is wanted and what the host lets it do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_MIB = 1 << 20
_FUSE_OVERLAYFS = "/usr/bin/fuse-overlayfs"


def podman_settings(facts: Mapping[str, Any], wanted: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return containers.conf as tables, for root and for everybody (containers.conf(5)).

    Args:
        facts: What the module container_host found.
        wanted: The role's variables without their prefix.
        extra: The site's own tables, which win.
    """
    containers: dict[str, Any] = {
        "log_driver": "k8s-file",  # a file that podman bounds; journald's bound is the whole journal's
        "log_size_max": wanted["log_max_mib"] * _MIB,
        "pids_limit": wanted["pids_limit"],
    }
    if facts["container"] and not facts["own_proc"]:
        containers["pidns"] = "host"  # a container whose /proc is masked may not mount another one
    if facts["container"] and not facts["tun"]:
        containers["netns"] = "host"  # no device for a network of one's own
    if "/dev/kfd" in facts["devices"]:
        # /dev/kfd and /dev/dri are for a group of the host, whose number means another group inside: crun keeps the caller's groups.
        containers["annotations"] = ["run.oci.keep_original_groups=1"]
    tables: dict[str, Any] = {"containers": containers, "engine": {"runtime": "crun"}}
    if wanted["netavark"]:
        tables["network"] = {"network_backend": "netavark"}
    for name, table in (extra or {}).items():
        tables[name] = {**tables.get(name, {}), **table}
    return tables


def storage_settings(facts: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage.conf as tables (containers-storage.conf(5)); nothing where the distribution's own says the same."""
    driver = storage_driver(facts, wanted["storage_driver"])
    fuse = driver == "overlay" and not facts["overlay"]
    if driver == "overlay" and not fuse and not wanted["storage_dir"] and not wanted["rootless_storage_dir"]:
        return {}
    storage = {
        "driver": driver,
        "runroot": "/run/containers/storage",
        "graphroot": wanted["storage_dir"] or "/var/lib/containers/storage",
        **({"rootless_storage_path": wanted["rootless_storage_dir"]} if wanted["rootless_storage_dir"] else {}),
    }
    return {"storage": storage, **({"storage.options.overlay": {"mount_program": _FUSE_OVERLAYFS}} if fuse else {})}


def storage_driver(facts: Mapping[str, Any], wanted: str) -> str:
    """Return how layers are stacked: as stated, or the best that this host takes."""
    if wanted != "auto":
        return wanted
    return "overlay" if facts["overlay"] or facts["fuse"] else "vfs"


def docker_settings(facts: Mapping[str, Any], wanted: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return daemon.json (https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file)."""
    found: dict[str, Any] = {
        "live-restore": True,  # a restart of the daemon ends no container
        "log-driver": "json-file",
        "log-opts": {"max-size": f"{wanted['log_max_mib']}m", "max-file": str(wanted["log_files"])},
    }
    if wanted["storage_dir"]:
        found["data-root"] = wanted["storage_dir"]
    if wanted["storage_driver"] != "auto":
        found["storage-driver"] = "overlay2" if wanted["storage_driver"] == "overlay" else wanted["storage_driver"]
    if facts["container"] and not facts["net_admin"]:
        found |= {"bridge": "none", "iptables": False, "ip6tables": False}  # it may set up no network, and would not start
    if facts["nvidia_runtime"]:
        found["runtimes"] = {"nvidia": {"path": facts["nvidia_runtime"], "args": []}}
    return {**found, **(extra or {})}


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Write tables of plain values as TOML. A JSON string, number, truth value or list of them is one of TOML as well."""
    parts = []
    for name, table in tables.items():
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in table.items()]
        parts.append("".join([f"[{name}]\n", *lines]))
    return "\n".join(parts)


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "container_runtime_podman": podman_settings,
            "container_runtime_storage": storage_settings,
            "container_runtime_docker": docker_settings,
            "container_runtime_toml": to_toml,
        }
