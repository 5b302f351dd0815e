"""primus_bootstrap.launch.run_topology: nodes, processes and the rendezvous address."""

from __future__ import annotations

from typing import Any

import pytest

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.detect.gpus import MIXED, NONE, OK, UNKNOWN, Gpu, GpuFindings
from primus_bootstrap.launch.run_topology import Topology, expand_nodes, make_topology
from primus_bootstrap.launch.settings.layered_settings import Given, SettingsFiles, resolve

CPU = GpuFindings(NONE, "no GPU on the PCI bus")
STEP = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "2", "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "gpu[08-10]", "SLURM_GPUS_ON_NODE": "4"}


def gpus(count: int, vendor: str = "amd") -> GpuFindings:
    """Return the findings of a host with GPUs."""
    card = Gpu("a", vendor, "", "", ("MI300X",), "", 192, "module", virtual=False, numa_node=0)
    return GpuFindings(OK, "", (card,) * count)


def shape(found: GpuFindings = CPU, environment: dict[str, str] | None = None, **values: Any) -> Topology:
    """Compute the topology from flags."""
    given = [Given(f"direct.{name}", value, "flag") for name, value in values.items()]
    return make_topology(resolve(SettingsFiles(), {}, given), environment or {}, found)


def test_a_laptop_runs_one_process() -> None:
    """Without settings and GPUs: one process on one node."""
    assert (shape().nnodes, shape().nproc, shape().master_addr) == (1, 1, "")


def test_one_process_per_visible_gpu() -> None:
    """All GPUs, or those of the vendor's variable; the variable of the other vendor has no effect."""
    found = [
        shape(gpus(8)).nproc,
        shape(gpus(8), {"HIP_VISIBLE_DEVICES": "0,1,5"}).nproc,
        shape(gpus(8), {"NVIDIA_VISIBLE_DEVICES": "0"}).nproc,
        shape(gpus(8, "nvidia"), {"CUDA_VISIBLE_DEVICES": "3"}).nproc,
        shape(gpus(8, "nvidia"), {"NVIDIA_VISIBLE_DEVICES": "all"}).nproc,
        shape(gpus(8, "nvidia"), {"NVIDIA_VISIBLE_DEVICES": "void"}).nproc,
        shape(gpus(8), {"GPUS_PER_NODE": "2"}).nproc,
        shape(gpus(8), {"GPUS_PER_NODE": "2"}, nproc=4).nproc,
    ]

    assert found == [8, 3, 8, 1, 8, 8, 2, 4]


@pytest.mark.parametrize("value", ["none", ""])
def test_a_variable_that_hides_every_gpu_is_an_error(value: str) -> None:
    """One process without a GPU would train on the CPU, or fail later without a cause."""
    with pytest.raises(PlanError, match=r"NVIDIA_VISIBLE_DEVICES=.* hides every GPU"):
        shape(gpus(8, "nvidia"), {"NVIDIA_VISIBLE_DEVICES": value})


def test_an_unknown_number_of_gpus_is_an_error() -> None:
    """The user must pass --nproc."""
    unreadable = GpuFindings(UNKNOWN, "0000:01:00.0: its vendor id cannot be read")
    with pytest.raises(PlanError, match=r"unknown: 0000:01:00\.0"):
        shape(unreadable)

    assert shape(unreadable, nproc=8).nproc == 8


def test_mixed_models_run_one_process_each() -> None:
    """A node check reports mixed models."""
    assert shape(GpuFindings(MIXED, "two", gpus(2).gpus)).nproc == 2


def test_flags_take_precedence_over_the_variables_of_launchers() -> None:
    """NNODES, NODE_RANK and MASTER_ADDR count if there is no flag."""
    shared = {"NNODES": "4", "NODE_RANK": "3", "MASTER_ADDR": "n0", "MASTER_PORT": "1234"}
    plain, flagged = shape(environment=shared), shape(environment=shared, node_rank=2, master_addr="m0")

    assert (plain.nnodes, plain.node_rank, plain.master_addr, plain.master_port) == (4, 3, "n0", 1234)
    assert (flagged.node_rank, flagged.master_addr, flagged.master_port) == (2, "m0", 1234)
    assert dict(flagged.reasons)["node_rank"] == "flag"


def test_slurm_numbers_the_nodes_of_a_step() -> None:
    """Node 0 is the first host; the port depends on job and step and is below the range of outgoing connections."""
    found = shape(gpus(8), STEP, nodes_from="slurm")

    assert (found.nnodes, found.node_rank, found.nproc, found.master_addr) == (3, 1, 4, "gpu08")
    assert found.master_port == 10000 + (4711 * 31 + 2) % 20000
    assert found.ranks == (4, 5, 6, 7)


def test_variables_of_slurm_are_ignored_unless_nodes_from_is_slurm() -> None:
    """A run in a shell of an allocation uses one node and does not wait for others."""
    assert shape(environment=STEP).nnodes == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nnodes": 2}, "master_addr is not set"),
        ({"nnodes": 2, "node_rank": 2, "master_addr": "a"}, "node_rank is 2, but nnodes is 2"),
        ({"nnodes": 2, "single": True, "master_addr": "a"}, "--single starts one process"),
        ({"nproc": 0}, "must be at least 1"),
        ({"nodes_from": "slurm"}, "not a Slurm step"),
    ],
)
def test_contradictions_are_errors(values: dict[str, Any], message: str) -> None:
    """They are reported before anything is started."""
    with pytest.raises(PlanError, match=message):
        shape(**values)


def test_several_nodes_need_the_number_of_this_node() -> None:
    """Two nodes with the number 0 would wait for each other."""
    with pytest.raises(PlanError, match="nnodes is 2, but the number of this node is not set"):
        shape(nnodes=2, master_addr="n0")

    assert shape(environment={"NODE_RANK": "0"}, nnodes=2, master_addr="n0").node_rank == 0


def test_a_variable_that_is_not_a_number_is_an_error() -> None:
    """NNODES=two must not become one node."""
    with pytest.raises(PlanError, match=r"nnodes: 'two' is not a number \(environment NNODES\)"):
        shape(environment={"NNODES": "two"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n[a-b]", "is not a node list"),
        ("n[1-2", "is not a node list"),
        ("n[]", "is not a node list"),
        ("", "is not a node list"),
        ("n[1-99999999]", "more than 65536 nodes"),
        ("n[0-999]x[0-999]", "more than 65536 nodes"),
        ("a[0-60000],b[0-60000]", "more than 65536 nodes"),
        ("n[3-1]", "ends before it starts"),
    ],
)
def test_wrong_node_lists_are_errors(text: str, message: str) -> None:
    """A mistyped range neither fills the memory nor gives no node."""
    with pytest.raises(UsageError, match=message):
        expand_nodes(text)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ("a",)),
        ("gpu[001-003,7],login1", ("gpu001", "gpu002", "gpu003", "gpu7", "login1")),
        ("r[1-2]n[08-09].x", ("r1n08.x", "r1n09.x", "r2n08.x", "r2n09.x")),
    ],
)
def test_node_lists(text: str, hosts: tuple[str, ...]) -> None:
    """Ranges keep leading zeros and order."""
    assert expand_nodes(text) == hosts
