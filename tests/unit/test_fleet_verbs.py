"""Formatting of the results of `probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.cli.fleet_view import gpu_names, nic_text, probe_table
from primus_bootstrap.fleet.facts import Nic, PciGpu
from primus_bootstrap.fleet.probe import Probe

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    Cli = Callable[..., subprocess.CompletedProcess[str]]


def test_gpus_are_named_by_their_ids() -> None:
    """Known ids become models, unknown ids of a GPU vendor are shown, and display adapters do not count."""
    gpus = [
        PciGpu("1002:74a1", "", "amdgpu", "0x120000", 8),
        PciGpu("10de:ffff", "", "", "0x030200", 1),
        PciGpu("1a03:2000", "", "ast", "0x030000", 1),
        PciGpu("1002:ffff", "", "", "0x030000", 1),
    ]

    assert gpu_names(gpus) == {"MI300X": 8, "unknown model 10de:ffff": 1}


def test_nics_are_grouped_by_speed() -> None:
    """Interfaces with the same speed and state are counted together."""

    def nic(speed: int | None, state: str) -> Nic:
        return Nic("x", state, speed, 1500, "", "", "")

    assert nic_text([nic(400000, "up"), nic(400000, "up"), nic(None, "down")]) == "1 x speed? down, 2 x 400G"


def test_a_host_that_did_not_answer_has_a_row() -> None:
    """The row has a name, `unknown`, and empty cells."""
    table = probe_table([Probe("gpu9", None)])
    cells = [[str(cell) for cell in column.cells] for column in table.columns]

    assert (cells[0], "unknown" in cells[1][0], cells[2:]) == (["gpu9"], True, [[""]] * 9)
