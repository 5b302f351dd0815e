"""primus_bootstrap.launch.commandline.env_show, node_preflight and numa: what a host says of itself."""

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


def test_what_the_role_wrote_is_what_runs_get(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file of gpu_env wins over detection, because the site's own variables are only there."""
    root = expand("mi300x-roce", tmp_path / "root")
    run(capsys, root, root, variables={"NCCL_IB_TC": "106"})
    profile = host_profile.host_profile(root)
    values = {entry.variable: entry.value for entry in profile.entries}

    assert (profile.came_from, profile.model, values["NCCL_IB_TC"]) == ("/etc/primus/gpu.json", "MI300X", "106")


def test_without_that_file_the_host_is_looked_at(tmp_path: Path) -> None:
    """A host that no role has seen has a profile as well."""
    profile = host_profile.host_profile(expand("mi300x-roce", tmp_path / "root"))

    assert (profile.came_from, profile.model) == ("detected now", "MI300X")


def test_ranks_are_bound_where_the_host_says_how(tmp_path: Path) -> None:
    """Left alone, it binds where GPUs sit on several NUMA nodes; asking for it where nothing is known is an error."""
    known = find_gpus(Host(expand("mi300x-roce", tmp_path / "known")))
    nothing = find_gpus(Host(tmp_path))
    nodes = {gpu.numa_node for gpu in known.gpus}

    assert numa.wanted("auto", known, 8) == (len(nodes) > 1 and None not in nodes)
    assert (numa.wanted("off", known, 8), numa.wanted("auto", nothing, 1)) == (False, False)
    with pytest.raises(PlanError, match="--numa"):
        numa.wanted("on", nothing, 1)


def test_a_part_of_the_gpus_is_bound_only_where_it_is_asked_for(tmp_path: Path) -> None:
    """Which of them a job has is not known here: its own are numbered from 0, and the PCI bus shows all."""
    known = find_gpus(Host(expand("mi300x-roce", tmp_path / "known")))

    assert [numa.wanted(setting, known, 4) for setting in ("auto", "on")] == [False, True]


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
def test_the_gpus_that_ranks_see(variables: dict[str, str], order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """HIP numbers what ROCr has left; CUDA's variable counts where HIP's is not set."""
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert numa.visible(4) == order


@pytest.mark.parametrize(("text", "cpus"), [("0-3,8", {0, 1, 2, 3, 8}), ("", set()), ("5", {5})])
def test_lists_of_the_kernel(text: str, cpus: set[int]) -> None:
    """Ranges and single numbers."""
    assert numa.parse_cpus(text) == cpus
