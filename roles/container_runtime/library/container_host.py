#!/usr/bin/python
"""Ansible module `container_host`: read which namespaces, storage drivers and devices a container engine can use. Changes nothing.

ansible.builtin.setup has no such facts. The module tries namespaces and mounts in temporary namespaces instead of deriving the result from
the kind of host.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.container_kind import container_kind
from ansible.module_utils.host_programs import run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Runner = Callable[[Sequence[str]], int]

# Bit numbers of capabilities(7), include/uapi/linux/capability.h.
CAPABILITIES = {"net_admin": 12, "sys_admin": 21, "mknod": 27}
TRIAL_S = 20
NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount"]
OVERLAY = 'mount -t overlay overlay -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work" "$1/merged"'
NODES = ("kfd", "dri/renderD*", "nvidia[0-9]*", "infiniband/uverbs*")


def run_trial(argv: Sequence[str]) -> int:
    """Run a command; return its exit code, not 0 if it cannot be run or times out."""
    return run_program(argv, timeout_s=TRIAL_S)[0]


def capabilities(status: str) -> dict[str, bool]:
    """Return which of CAPABILITIES are effective, from the text of /proc/self/status."""
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return {name: bool(int(mask, 16) >> bit & 1) for name, bit in CAPABILITIES.items()}


def cgroups(root: Path) -> dict[str, Any]:
    """Return the version of the control groups, and whether they are writable, which limits of containers need."""
    base = root / "sys/fs/cgroup"
    version = 2 if (base / "cgroup.controllers").exists() else 1
    tree = base if version == 2 else base / "pids"
    return {"cgroup_version": version, "cgroup_writable": tree.is_dir() and os.access(tree, os.W_OK)}


def supports_overlay(folder: str, run: Runner) -> bool:
    """Return whether overlay mounts work on a file system, also without root."""
    existing = next(path for path in [Path(folder), *Path(folder).parents] if path.is_dir())
    with tempfile.TemporaryDirectory(dir=existing, prefix=".primus-overlay-") as folder_path:
        for name in ("lower", "upper", "work", "merged"):
            Path(folder_path, name).mkdir()
        return run([*NAMESPACES, "/bin/sh", "-c", OVERLAY, "sh", folder_path]) == 0


def world_accessible(path: Path) -> bool:
    """Return whether a device exists and every account can open it."""
    return path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o006 == 0o006


def read_facts(root: Path, storage_dir: str, run: Runner, which: Callable[[str], str | None]) -> dict[str, Any]:
    """Return the facts for the role and its verification."""
    devices = sorted(f"/{node.relative_to(root)}" for pattern in NODES for node in (root / "dev").glob(pattern))
    return {
        "container": container_kind(root),
        **capabilities((root / "proc/self/status").read_text(encoding="utf-8")),
        **cgroups(root),
        "own_proc": run([*NAMESPACES, "--pid", "--fork", "--mount-proc", "true"]) == 0,
        "overlay": supports_overlay(storage_dir, run),
        "fuse": which("fuse-overlayfs") is not None and world_accessible(root / "dev/fuse"),
        "tun": world_accessible(root / "dev/net/tun"),
        "devices": devices,
        "nvidia_ctk": which("nvidia-ctk") or "",
        "nvidia_runtime": which("nvidia-container-runtime") or "",
        # From version 1.18 on the toolkit has its own unit for the CDI description.
        "nvidia_refreshes": any(
            (root / folder / "nvidia-cdi-refresh.service").exists() for folder in ("etc/systemd/system", "lib/systemd/system")
        ),
    }


def main() -> None:
    """Return the facts as `host`."""
    module = AnsibleModule(argument_spec={"storage_dir": {"type": "path", "required": True}}, supports_check_mode=True)
    module.exit_json(changed=False, host=read_facts(Path("/"), module.params["storage_dir"], run_trial, shutil.which))


if __name__ == "__main__":
    main()
