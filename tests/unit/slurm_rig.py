"""Shared data for tests of Slurm's configuration: a node's fragment and the settings of the role."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.role_module import load_role_module

config: Any = load_role_module("slurm", "slurm_config")
SETTINGS: dict[str, Any] = {
    "cluster_name": "lab",
    "controllers": [{"name": "ctl1", "address": "10.0.0.1"}],
    "slurm_user": "slurm",
    "state_dir": "/var/lib/slurm/slurmctld",
    "spool_dir": "/var/lib/slurm/slurmd",
    "slurmctld_port": 6817,
    "slurmd_port": 6818,
    "srun_port_range": "",
    "bind_own_address": False,
    "accounting": {},
    "proctrack": "auto",
    "task_plugins": "auto",
    "select_parameters": "auto",
    "kill_wait_s": 60,
    "slurmd_timeout_s": 120,
    "slurmctld_timeout_s": 60,
    "health_check": {},
    "epilog": "",
    "private_data": ["accounts", "jobs"],
    "private_tmp": True,
    "task_prolog": "",
    "return_to_service": 2,
    "requeue_exit": [75],
    "partitions": [{"name": "main", "nodes": "all", "default": True}],
    "groups": {},
    "spare": [],
    "qos": [],
    "users": [],
    "accounts": [],
    "topology": "auto",
    "extra": {},
}
DATABASE = {"host": "db1", "address": "10.0.0.9", "port": 6819}


def fragment(name: str, **changes: Any) -> str:
    """Return the fragment of a node with eight GPUs and control groups."""
    node = {
        "schema": "primus.slurm_node/1",
        "name": name,
        "address": "10.0.1.1",
        "hostname": name,
        "cpus": 16,
        "sockets": 2,
        "cores_per_socket": 8,
        "threads_per_core": 1,
        "memory_mib": 64000,
        "stated_size": False,
        "gpu_type": "h200",
        "gpu_count": 8,
        "gpu_files": [f"/dev/nvidia{number}" for number in range(8)],
        "switch": "",
        "rack": "",
        "cgroup": "v2",
        "cgroup_reason": "",
        "release": "22.05",
    }
    return json.dumps({**node, **changes})


def conf_values(text: str) -> dict[str, str]:
    """Return the single lines of slurm.conf; a repeated key, or a line without a value, is an error."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line or line.startswith(("#", "NodeName=", "PartitionName=", "SlurmctldHost=")):
            continue
        key, equals, value = line.partition("=")
        assert equals, line
        assert value, line
        assert key not in found, line
        found[key] = value
    return found


def words_of(text: str, key: str) -> list[dict[str, str]]:
    """Return the lines that start with a key as words."""
    return [dict(word.split("=", 1) for word in line.split()) for line in text.splitlines() if line.startswith(f"{key}=")]
