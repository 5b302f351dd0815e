"""The verbs `primus-cli env` and `preflight`, and NUMA binding, on this host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.checks.expected import Expected
from primus_bootstrap.launch.checks.job import gpus, node_0, space
from primus_bootstrap.launch.checks.model import Node
from primus_bootstrap.launch.checks.runner import run_check
from primus_bootstrap.launch.detect import host_profile
from primus_bootstrap.launch.detect.gpus import find_gpus
from primus_bootstrap.launch.detect.sysfs import Host
from tests.integration.launch_cli_rig import ROOT, User
from tests.unit.launch_rig import expand

if TYPE_CHECKING:
    from primus_bootstrap.launch.checks.model import Check

BASH = shutil.which("bash") or "bash"


def test_env_show_on_a_machine_without_gpu_is_the_cpu_profile(tmp_path: Path) -> None:
    """Each variable has its reason; a value in the environment is reported as the effective value."""
    done = User(tmp_path).cli("env", "show", NCCL_DEBUG="INFO")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("profile of ")
    assert "NCCL_DEBUG=WARN  (base)\n    Without it, NCCL and RCCL report no cause" in done.stdout
    assert "the environment has 'INFO', which takes precedence" in done.stdout


@pytest.mark.parametrize(
    ("model", "variable"), [("MI300X", "GPU_MAX_HW_QUEUES"), ("MI355X", "RCCL_WARP_SPEED_AUTO"), ("H100", "NCCL_DEBUG")]
)
def test_env_show_of_a_model_works_without_that_gpu(tmp_path: Path, model: str, variable: str) -> None:
    """Variables that depend on the network are unset, with the reason."""
    shown = json.loads(User(tmp_path).cli("env", "show", "--gpu", model, "--json").stdout)

    assert variable in {entry["variable"] for entry in shown["entries"]}
    assert all(entry["reason"] and entry["source"] for entry in shown["entries"])
    assert {item["variable"] for item in shown["unset"]} >= {"GLOO_SOCKET_IFNAME"}


def test_a_misspelt_model_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    """No other model's profile is used."""
    with pytest.raises(UsageError, match="did you mean MI300X"):
        host_profile.model_profile("MI300x1")

    assert User(tmp_path).cli("env", "show", "--gqu", "x").returncode == 2


def test_env_export_does_not_override_variables_that_are_set(tmp_path: Path) -> None:
    """Its output is a script for shells."""
    user = User(tmp_path)
    lines = user.cli("env", "export", "--gpu", "MI300X").stdout
    (tmp_path / "env.sh").write_text(lines)
    command = [BASH, "-c", f"source {tmp_path}/env.sh; env"]
    done = subprocess.run(
        command, env={"NCCL_DEBUG": "INFO", "PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True, timeout=30
    )

    assert {"NCCL_DEBUG=INFO", "GPU_MAX_HW_QUEUES=2"} <= set(done.stdout.splitlines())


def test_a_bound_process_runs_on_the_cpus_of_its_gpus_numa_node(tmp_path: Path) -> None:
    """Its affinity is the allowed CPUs of that node. For a rank without a GPU, bind returns the reason."""
    root = expand("mi300x-roce", tmp_path / "root")
    gpu = find_gpus(Host(root)).gpus[0]
    cpu = min(os.sched_getaffinity(0))
    node = root / f"sys/devices/system/node/node{gpu.numa_node}"
    node.mkdir(parents=True, exist_ok=True)
    (node / "cpulist").write_text(f"{cpu}\n")
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; from primus_bootstrap.launch.detect import numa; "
        f"print([numa.bind(Path({str(root)!r}), 0), numa.bind(Path({str(root)!r}), 99), sorted(os.sched_getaffinity(0))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.strip() == str(["", "rank 99 of this node has no GPU", [cpu]])


def test_preflight_is_a_task(tmp_path: Path) -> None:
    """Its exit code is 4 if a check failed, and its records are in the run folder."""
    user = User(tmp_path)
    done = user.cli("--output", str(user.run_dir), "direct", "--", "preflight", "--min-free-gib", "1e9")
    (file,) = user.run_dir.glob("preflight-*.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]

    assert done.returncode == 4, done.stdout + done.stderr
    assert {record["schema"] for record in records} == {"primus.verdict/1"}
    assert "fail    preflight_space" in done.stdout


def verdict(check: Check, root: Path, folder: Path = Path(), *, min_free_gib: float = 10.0, expected_gpus: int | None = None) -> str:
    """Return the verdict of a check with one record."""
    node = Node(Host(root), Expected({"gpus": expected_gpus}), {"MASTER_ADDR": "localhost"}, folder, min_free_gib)
    (record,) = run_check(check, node)
    return record.verdict


def test_free_space_is_compared_with_the_minimum(tmp_path: Path) -> None:
    """A minimum above the free space fails; a missing folder is unknown."""
    cases = ((tmp_path, 0), (tmp_path, 1e9), (tmp_path / "x", 0))
    found = [verdict(space.CHECK, tmp_path, folder, min_free_gib=gib) for folder, gib in cases]

    assert found == ["pass", "fail", "unknown"]


def test_the_name_of_node_0_is_resolved(tmp_path: Path) -> None:
    """`localhost` resolves on every host."""
    assert verdict(node_0.CHECK, tmp_path) == "pass"


def test_the_number_of_gpus_is_compared(tmp_path: Path) -> None:
    """Eight GPUs pass if eight are expected and fail if seven are; without sysfs the number is unknown."""
    root = expand("mi300x-roce", tmp_path / "root")

    assert [verdict(gpus.CHECK, root, expected_gpus=count) for count in (8, 7)] == ["pass", "fail"]
    assert verdict(gpus.CHECK, tmp_path) == "unknown"
