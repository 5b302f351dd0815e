# ruff: noqa: INP001 (Ansible loads it by path)
"""Filters of the role `container_runtime`: compute an engine's settings from the role's options and the host's facts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_MIB = 1 << 20
_FUSE_OVERLAYFS = "/usr/bin/fuse-overlayfs"


def podman_settings(facts: Mapping[str, Any], options: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return containers.conf(5) as tables, for all accounts.

    Args:
        facts: Result of the module container_host.
        options: The role's variables without their prefix.
        extra: Additional tables of the inventory, which override the others.
    """
    containers: dict[str, Any] = {
        "log_driver": "k8s-file",  # podman limits the size of this file; journald only limits the whole journal
        "log_size_max": options["log_max_mib"] * _MIB,
        "pids_limit": options["pids_limit"],
    }
    if facts["container"] and not facts["own_proc"]:
        containers["pidns"] = "host"  # a container with a masked /proc cannot mount another one
    if facts["container"] and not facts["tun"]:
        containers["netns"] = "host"  # without /dev/net/tun a container cannot have its own network
    if "/dev/kfd" in facts["devices"]:
        # /dev/kfd and /dev/dri belong to a group of the host. With this annotation crun keeps the caller's groups in the container.
        containers["annotations"] = ["run.oci.keep_original_groups=1"]
    tables: dict[str, Any] = {"containers": containers, "engine": {"runtime": "crun"}}
    if options["netavark"]:
        tables["network"] = {"network_backend": "netavark"}
    for name, table in (extra or {}).items():
        tables[name] = {**tables.get(name, {}), **table}
    return tables


def storage_settings(facts: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return containers-storage.conf(5) as tables; empty if the distribution's defaults are right."""
    driver = storage_driver(facts, options["storage_driver"])
    fuse = driver == "overlay" and not facts["overlay"]
    if driver == "overlay" and not fuse and not options["storage_dir"] and not options["rootless_storage_dir"]:
        return {}
    storage = {
        "driver": driver,
        "runroot": "/run/containers/storage",
        "graphroot": options["storage_dir"] or "/var/lib/containers/storage",
        **({"rootless_storage_path": options["rootless_storage_dir"]} if options["rootless_storage_dir"] else {}),
    }
    return {"storage": storage, **({"storage.options.overlay": {"mount_program": _FUSE_OVERLAYFS}} if fuse else {})}


def storage_driver(facts: Mapping[str, Any], options: str) -> str:
    """Return the storage driver: the given one, or for `auto` the best that this host supports."""
    if options != "auto":
        return options
    return "overlay" if facts["overlay"] or facts["fuse"] else "vfs"


def docker_settings(facts: Mapping[str, Any], options: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return daemon.json (https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file)."""
    found: dict[str, Any] = {
        "live-restore": True,  # a restart of the daemon ends no container
        "log-driver": "json-file",
        "log-opts": {"max-size": f"{options['log_max_mib']}m", "max-file": str(options["log_files"])},
    }
    if options["storage_dir"]:
        found["data-root"] = options["storage_dir"]
    if options["storage_driver"] != "auto":
        found["storage-driver"] = "overlay2" if options["storage_driver"] == "overlay" else options["storage_driver"]
    if facts["container"] and not facts["net_admin"]:
        found |= {"bridge": "none", "iptables": False, "ip6tables": False}  # docker cannot set up a network and would not start
    if facts["nvidia_runtime"]:
        found["runtimes"] = {"nvidia": {"path": facts["nvidia_runtime"], "args": []}}
    return {**found, **(extra or {})}


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables of plain values as TOML. JSON strings, numbers, booleans and lists of them are valid TOML."""
    parts = []
    for name, table in tables.items():
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in table.items()]
        parts.append("".join([f"[{name}]\n", *lines]))
    return "\n".join(parts)


class FilterModule:
    """The filters of this file, as Ansible expects them."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "container_runtime_podman": podman_settings,
            "container_runtime_storage": storage_settings,
            "container_runtime_docker": docker_settings,
            "container_runtime_toml": to_toml,
        }
