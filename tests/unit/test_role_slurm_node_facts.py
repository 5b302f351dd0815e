"""Module `slurm_node_facts`: hardware facts for Slurm, read below a fake root folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

facts: Any = load_role_module("slurm", "slurm_node_facts")
SLURMD_C = "NodeName=n1 CPUs=32 Boards=2 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=257000\nUpTime=0-00:20:40\n"


def machine(root: Path, answers: dict[str, str] | None = None) -> Any:
    """Return a host with a root folder and canned program output; other programs are missing."""

    def run(argv: Sequence[str]) -> str:
        return (answers or {}).get(" ".join(argv), "")

    return facts.Machine(root=str(root), run=run)


def put(root: Path, path: str, text: str = "") -> None:
    """Write a file of the fake host."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def size(host: Any, **changes: int) -> dict[str, Any]:
    """Return the detected size of the host."""
    found: dict[str, Any] = facts.read_size(host, **{"cpus": 0, "memory_mib": 0, "reserved_mib": 2048, **changes})
    return found


def test_size_is_read_from_slurmd(tmp_path: Path) -> None:
    """A slurmd registers with these values; reserved memory is subtracted."""
    assert size(machine(tmp_path, {"slurmd -C": SLURMD_C})) == {
        "cpus": 32,
        "sockets": 4,
        "cores_per_socket": 4,
        "threads_per_core": 2,
        "memory_mib": 254952,
        "stated_size": False,
    }


def test_huge_pages_are_no_memory_of_jobs(tmp_path: Path) -> None:
    """Memory that the kernel reserves for huge pages is subtracted: a job could otherwise be given memory that it cannot use."""
    without = size(machine(tmp_path, {"slurmd -C": SLURMD_C}))["memory_mib"]
    put(tmp_path, "/proc/meminfo", "MemTotal:  263168000 kB\nHugePages_Total: 32\nHugepagesize: 2048 kB\nHugetlb:           65536 kB\n")

    assert size(machine(tmp_path, {"slurmd -C": SLURMD_C}))["memory_mib"] == without - 64


def test_size_is_read_from_the_kernel_without_slurmd(tmp_path: Path) -> None:
    """Two sockets with one core of two threads each."""
    blocks = [f"processor\t: {cpu}\nphysical id\t: {cpu % 2}\ncore id\t: 0\n" for cpu in range(4)]
    put(tmp_path, "/proc/cpuinfo", "\n".join(blocks))
    put(tmp_path, "/proc/meminfo", "MemTotal:       8388608 kB\n")
    found = size(machine(tmp_path))

    assert (found["cpus"], found["sockets"], found["cores_per_socket"], found["threads_per_core"]) == (4, 2, 1, 2)
    assert found["memory_mib"] == 8192 - 2048


def test_configured_size_is_used(tmp_path: Path) -> None:
    """An incomplete one is refused."""
    found = size(machine(tmp_path), cpus=16, memory_mib=4000)

    assert (found["cpus"], found["memory_mib"], found["stated_size"]) == (16, 4000, True)
    with pytest.raises(facts.MissingError, match="set both or none"):
        size(machine(tmp_path), cpus=16)


def test_unknown_size_is_an_error(tmp_path: Path) -> None:
    """Applies without slurmd and kernel data; the error has a fix."""
    with pytest.raises(facts.MissingError, match="Fix:"):
        size(machine(tmp_path))


def gpus(root: Path, *, model: str = "", count: int | None = None, devices: str = "") -> tuple[str, int, list[str]]:
    """Return type, number and files of the GPUs."""
    found = facts.read_gpus(machine(root), model=model, count=count, devices=devices)
    return found["gpu_type"], found["gpu_count"], found["gpu_files"]


def test_configured_gpus_precede_detected_ones(tmp_path: Path) -> None:
    """Only existing device files are listed, in numeric order."""
    put(tmp_path, "/etc/primus/gpu.json", json.dumps({"model": "H100", "count": 4, "vendor": "nvidia"}))
    for number in (0, 1, 2, 10):
        put(tmp_path, f"/dev/nvidia{number}")
    put(tmp_path, "/dev/nvidiactl")

    assert gpus(tmp_path, model="H200", count=8) == ("h200", 8, ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia10"])
    assert gpus(tmp_path, model="auto") == ("h100", 4, ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia10"])


def test_render_nodes_of_other_devices_are_ignored(tmp_path: Path) -> None:
    """An AMD host may have a display adapter with a render node."""
    for number, vendor in ((128, "0x1a03"), (129, "0x1002"), (130, "0x1002")):
        put(tmp_path, f"/dev/dri/renderD{number}")
        put(tmp_path, f"/sys/class/drm/renderD{number}/device/vendor", f"{vendor}\n")

    assert gpus(tmp_path, model="MI300X", count=2) == ("mi300x", 2, ["/dev/dri/renderD129", "/dev/dri/renderD130"])


def test_configured_devices_must_exist(tmp_path: Path) -> None:
    """From a range of files, missing and surplus ones are omitted."""
    for number in (1, 3, 4):
        put(tmp_path, f"/dev/fake{number}")

    assert gpus(tmp_path, model="MI300X", count=2, devices="/dev/fake[1-4]") == ("mi300x", 2, ["/dev/fake1", "/dev/fake3"])


@pytest.mark.parametrize(
    ("detected", "model", "devices", "vendor"),
    [
        ({"model": "W7900", "count": 1, "vendor": "amd"}, "", "", "amd"),
        ({}, "MI300X", "/dev/fake1", "amd"),
        ({}, "H200", "", "nvidia"),
        ({}, "H200", "/dev/fake1", ""),
        ({}, "odd", "/dev/fake1", ""),
    ],
)
def test_vendor_is_detected(detected: dict[str, Any], model: str, devices: str, vendor: str, tmp_path: Path) -> None:
    """From the profile, then AMD model names, then NVIDIA driver files; else it is unknown."""
    put(tmp_path, "/etc/primus/gpu.json", json.dumps(detected))
    for path in ("/dev/nvidia0", "/dev/fake1", "/dev/dri/renderD128"):
        put(tmp_path, path)
    found = facts.read_gpus(machine(tmp_path), model=model, count=1, devices=devices)

    assert found["gpu_vendor"] == vendor


def test_host_without_gpus_has_none(tmp_path: Path) -> None:
    """Nothing is configured, detected or readable."""
    put(tmp_path, "/etc/primus/gpu.json", "{torn")

    assert gpus(tmp_path) == ("", 0, [])


def test_gpus_without_a_model_are_refused(tmp_path: Path) -> None:
    """A number alone is not enough."""
    with pytest.raises(facts.MissingError, match="gpu_env_model"):
        gpus(tmp_path, count=8)


def cgroups(root: Path) -> tuple[str, str]:
    """Return the usable version and the reason against it."""
    found = facts.read_cgroups(machine(root))
    return found["cgroup"], found["cgroup_reason"]


def test_both_cgroup_versions_are_detected(tmp_path: Path) -> None:
    """Version 2 by controllers, version 1 by hierarchies; both need Slurm's plug-in."""
    put(tmp_path, "two/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n")
    put(tmp_path, "two/sys/fs/cgroup/cgroup.subtree_control")
    put(tmp_path, "two/usr/lib/x86_64-linux-gnu/slurm-wlm/cgroup_v2.so")
    for name in facts.V1_HIERARCHIES:
        put(tmp_path, f"one/sys/fs/cgroup/{name}/cgroup.procs")
    put(tmp_path, "one/usr/lib64/slurm/cgroup_v1.so")

    assert cgroups(tmp_path / "two") == ("v2", "")
    assert cgroups(tmp_path / "one") == ("v1", "")


def test_missing_cgroup_feature_is_named(tmp_path: Path) -> None:
    """A controller that is not delegated, a hierarchy that is not mounted, a missing plug-in."""
    put(tmp_path, "two/sys/fs/cgroup/cgroup.controllers", "pids\n")
    put(tmp_path, "bare/sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory\n")
    put(tmp_path, "bare/sys/fs/cgroup/cgroup.subtree_control")

    assert cgroups(tmp_path / "two") == ("", "cgroup v2 has no cpuset, cpu, memory")
    assert cgroups(tmp_path / "none") == ("", "cgroup v1 has no freezer, cpuset, memory, devices")
    assert cgroups(tmp_path / "bare") == ("", "the installed Slurm has no plug-in for cgroup v2")


@pytest.mark.parametrize(("text", "release"), [("slurm-wlm 22.05.8\n", "22.05"), ("slurm 24.11.5", "24.11"), ("", "")])
def test_release_is_the_first_two_numbers(tmp_path: Path, text: str, release: str) -> None:
    """Covers the version formats of the distributions."""
    assert facts.read_release(machine(tmp_path, {"slurmd -V": text})) == release
