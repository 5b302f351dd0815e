"""primus_bootstrap.launch.detect.host_profile and numa."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.detect import host_profile, numa
from primus_bootstrap.launch.detect.gpus import find_gpus
from primus_bootstrap.launch.detect.sysfs import Host
from tests.unit.launch_rig import expand, run

if TYPE_CHECKING:
    from pathlib import Path


def test_the_profile_is_read_from_gpu_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It overrides a new detection, because only gpu.json contains the site's variables."""
    root = expand("mi300x-roce", tmp_path / "root")
    run(capsys, root, root, variables={"NCCL_IB_TC": "106"})
    profile = host_profile.host_profile(root)
    values = {entry.variable: entry.value for entry in profile.entries}

    assert (profile.origin, profile.model, values["NCCL_IB_TC"]) == ("/etc/primus/gpu.json", "MI300X", "106")


def test_without_gpu_json_the_hardware_is_detected(tmp_path: Path) -> None:
    """The profile's origin states it."""
    profile = host_profile.host_profile(expand("mi300x-roce", tmp_path / "root"))

    assert (profile.origin, profile.model) == ("detected now", "MI300X")


def test_ranks_are_bound_if_the_gpus_are_on_several_numa_nodes(tmp_path: Path) -> None:
    """`on` is an error if the NUMA nodes are not known."""
    known = find_gpus(Host(expand("mi300x-roce", tmp_path / "known")))
    nothing = find_gpus(Host(tmp_path))
    nodes = {gpu.numa_node for gpu in known.gpus}

    assert numa.should_bind("auto", known, 8) == (len(nodes) > 1 and None not in nodes)
    assert (numa.should_bind("off", known, 8), numa.should_bind("auto", nothing, 1)) == (False, False)
    with pytest.raises(PlanError, match="--numa"):
        numa.should_bind("on", nothing, 1)


def test_ranks_on_some_of_the_gpus_are_bound_only_with_on(tmp_path: Path) -> None:
    """The job's GPUs are not known: they are numbered from 0, and the PCI bus shows all GPUs."""
    known = find_gpus(Host(expand("mi300x-roce", tmp_path / "known")))

    assert [numa.should_bind(setting, known, 4) for setting in ("auto", "on")] == [False, True]


@pytest.mark.parametrize(
    ("variables", "order"),
    [
        ({}, (0, 1, 2, 3)),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1,0"}, (3, 2)),
        ({"ROCR_VISIBLE_DEVICES": "3,2,1", "CUDA_VISIBLE_DEVICES": "2"}, (1,)),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, (1,)),
        ({"ROCR_VISIBLE_DEVICES": "GPU-abc"}, (0, 1, 2, 3)),
    ],
)
def test_visible_gpus_apply_the_variables_of_rocr_then_hip(
    variables: dict[str, str], order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's variable applies if HIP's is not set."""
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert numa.visible_gpus(4) == order


@pytest.mark.parametrize(("text", "cpus"), [("0-3,8", {0, 1, 2, 3, 8}), ("", set()), ("5", {5})])
def test_kernel_cpu_lists_are_parsed(text: str, cpus: set[int]) -> None:
    """Ranges and single numbers."""
    assert numa.parse_cpus(text) == cpus
