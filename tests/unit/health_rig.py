"""Load the programs of the role `node_health`, with their configuration and a fake host."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from primus_bootstrap import content
from tests.unit.role_module import load_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILES = content.roles_dir() / "node_health" / "files"
HEALTH = FILES / "health"


def load_program(path: Path) -> Any:
    """Import one program of the role with its sibling modules, as on a host."""
    if str(HEALTH) not in sys.path:
        sys.path.append(str(HEALTH))
    return load_file(path)


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below a fake root folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def make_config(**changes: Any) -> dict[str, Any]:
    """Return a configuration as the role writes it, with checks that pass or are skipped on any machine."""
    config = {
        "host": "n1",
        "valid_for_s": 300,
        "timeout_s": 10,
        "skip": {"clock": "not here", "kernel_log": "not here", "memory_errors": "not here"},
        "disk_paths": ["/"],
        "disk": {"min_free_gib": 0.0, "min_free_inodes_percent": 0.0},
        "mounts": [],
        "units": [],
        "managed_units": [],
        "clock": {"max_offset_s": 1.0},
        "memory_errors": {"max_uncorrected": 0, "max_corrected_per_day": 10},
        "kernel_log": {"window_s": 3600, "xids": [79], "patterns": [], "ignore": []},
        "gpu_count": {"expected": 0, "program": "/nowhere/launch.pyz", "facts": "/nowhere/gpu.json", "sysfs": "/"},
        "rdma_port": {"ports": [], "count": 0, "facts": "/nowhere/gpu.json", "sysfs": "/"},
    }
    return {**config, **changes}
