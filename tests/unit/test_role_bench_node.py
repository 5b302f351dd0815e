"""Role `bench`, module `bench_node`: fingerprint, job detection and steps, on fake file trees and real programs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Jobs = Callable[..., None]

NODE = load_role_module("bench", "bench_node")
TIERS = ["checks", "quick", "deep"]
NOW = {"driver": "6.10", "firmware": "1", "kernel": "6.1", "profile": "abc"}


def passed(**other: Any) -> dict[str, Any]:
    """Return the record of a passed benchmark."""
    return {"schema": "primus.bench-pass/1", "tier": "quick", "fingerprint": NOW, **other}


@pytest.mark.parametrize(
    ("before", "tier", "why"),
    [
        ({}, "quick", "it has never passed"),
        (passed(), "quick", ""),
        (passed(), "checks", ""),
        (passed(), "deep", "the last pass was of the tier quick"),
        (passed(tier="gone"), "quick", "the last pass was of the tier gone"),
        (passed(fingerprint={**NOW, "driver": "6.9", "kernel": "6.0"}), "quick", "changed since the last pass: driver, kernel"),
        (passed(fingerprint={}), "checks", "changed since the last pass: driver, firmware, kernel, profile"),
    ],
)
def test_bench_is_due_after_a_change_and_for_a_higher_tier(before: dict[str, Any], tier: str, why: str) -> None:
    """A pass with the same software in this tier or a higher one is not repeated."""
    assert NODE.bench_reason(before, NOW, tier, TIERS) == why


def test_fingerprint_follows_driver_firmware_kernel_and_profile(tmp_path: Path) -> None:
    """Each of them changes the fingerprint; a new modification time does not."""
    files = {
        "sys/module/amdgpu/version": "6.10.5\n",
        "sys/class/infiniband/mlx5_0/fw_ver": "28.39\n",
        "proc/sys/kernel/osrelease": "6.1.0\n",
        "etc/primus/gpu.json": json.dumps({"count": 8, "profile": {"variables": [{"variable": "A", "value": "1"}]}}),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = NODE.fingerprint(tmp_path)
    (tmp_path / "etc/primus/gpu.json").write_text(json.dumps({"count": 8, "profile": {"variables": [{"variable": "A", "value": "2"}]}}))

    assert (found["driver"], found["firmware"], found["kernel"]) == ("6.10.5", "28.39", "6.1.0")
    assert found["profile"] != NODE.fingerprint(tmp_path)["profile"]
    assert NODE.count_gpus(tmp_path) == 8
    assert NODE.fingerprint(tmp_path / "empty") == dict.fromkeys(NOW, "")


def test_jobs_are_detected_by_slurm_steps_and_watcher_units(tmp_path: Path) -> None:
    """The process that only holds Slurm's control groups does not count as a job."""
    for pid, words in {
        "10": "slurmstepd: [42.batch]\0",
        "11": "slurmstepd: [42.0]\0",
        "12": "/usr/sbin/slurmstepd\0infinity\0",
        "13": "sh\0",
    }.items():
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "cmdline").write_text(words)
    # Control groups version 1 in a container, version 2 on a host.
    (tmp_path / "proc/13/cgroup").write_text("9:name=systemd:/parent/c0ffee/system.slice/primus-job-try-1.service\n8:pids:/parent/c0ffee\n")
    (tmp_path / "proc/12/cgroup").write_text("0::/system.slice/primus-job-other-2.service/rank0\n")

    assert NODE.running_jobs(tmp_path) == ["Slurm job 42", "primus-job-other-2", "primus-job-try-1"]
    assert NODE.running_jobs(tmp_path / "nothing") == []


def process(root: Path, pid: str, name: str, *opened: str, group: str = "0::/user.slice") -> None:
    """Create a process with its open files in a fake /proc."""
    folder = root / "proc" / pid
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_text(f"/usr/bin/{name}\0--token=secret\0")
    (folder / "comm").write_text(f"{name[:15]}\n")
    (folder / "cgroup").write_text(f"{group}\n")
    for number, target in enumerate(("/dev/null", *opened)):
        (folder / "fd" / str(number)).symlink_to(target)


@pytest.mark.parametrize("device", ["/dev/kfd", "/dev/nvidia-uvm"])
def test_process_that_computes_on_a_gpu_counts_as_a_job(tmp_path: Path, device: str) -> None:
    """Pods and manually started programs are reported with process id and name; monitoring tools are not.

    A job of Slurm or primus-watch is reported once.
    """
    (tmp_path / "dev").mkdir()
    (tmp_path / device[1:]).touch()
    pod, other = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-1.scope", "kubepods/besteffort/2"
    process(tmp_path, "20", "python3", device, group=f"0::/{pod}")
    process(tmp_path, "21", "vllm", device, group=f"11:devices:/{other}\n0::/")
    process(tmp_path, "22", "jupyter-lab", "/dev/dri/renderD128", device)
    process(tmp_path, "30", "nvidia-device-plugin", "/dev/nvidiactl", "/dev/nvidia0", group=f"0::/{pod}")
    process(tmp_path, "31", "amd-metrics-exporter", "/dev/dri/renderD128", device, group=f"0::/{pod}")
    process(tmp_path, "32", "nvidia-persistenced", device)
    process(tmp_path, "40", "python3", device, group="0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0")
    process(tmp_path, "41", "python3", device, group="0::/system.slice/primus-job-try-1.service")

    assert NODE.running_jobs(tmp_path) == [
        "Slurm job 42",
        "primus-job-try-1",
        f"process 20 (python3) of a pod on {device}",
        f"process 21 (vllm) of a pod on {device}",
        f"process 22 (jupyter-lab) on {device}",
    ]


def test_unreadable_process_may_be_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is then unknown. Hosts without GPUs are not searched; ended processes are ignored."""
    for pid in ("20", "21"):
        process(tmp_path, pid, "dbus-daemon", "/dev/kfd")

    def refuse(path: Path) -> list[str]:
        if path.parent.name == "21":
            raise ProcessLookupError
        raise PermissionError

    monkeypatch.setattr(os, "listdir", refuse)
    without = NODE.running_jobs(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    found = NODE.running_jobs(tmp_path)

    assert without == []
    assert found == ["perhaps one: the open files of 1 processes, such as 20 (dbus-daemon), cannot be read"]
