"""workloads.train.flight_recorder: the line that the watchdog prints about torch's flight recorder."""

from __future__ import annotations

import os
import pickle
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from primus_bootstrap.launch.diagnose import hang
from workloads.train import flight_recorder
from workloads.train.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

WORLD, MESH = ("0", "default_pg"), ("3", "mesh_data")


def entry(number: int, state: str, group: tuple[str, str] = WORLD, **more: Any) -> dict[str, Any]:
    """Return an entry in the format of torch 2.4 and later, without unused fields."""
    marks = {"scheduled": (None, None), "started": (7, None), "completed": (7, 9)}
    started, completed = marks[state]
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1,
        "state": state,
        "time_discovered_started_ns": started,
        "time_discovered_completed_ns": completed,
        "retired": state == "completed",
        "timeout_ms": 1_800_000,
        "is_p2p": False,
        **more,
    }


OLD = {key: value for key, value in entry(5, "scheduled").items() if key != "collective_seq_id"} | {"seq_id": 5}


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        ([entry(1, "completed"), entry(2, "started"), entry(3, "scheduled")], "group 0/default_pg at 2 all_reduce, started"),
        ([entry(1, "completed"), entry(2, "scheduled")], "group 0/default_pg at 2 all_reduce, scheduled"),
        ([entry(1, "completed"), entry(2, "completed")], "group 0/default_pg done to 2"),
        (
            [entry(8, "completed"), entry(4, "started", MESH), entry(9, "scheduled")],
            "group 0/default_pg at 9 all_reduce, scheduled; group 3/mesh_data at 4 all_reduce, started",
        ),
        # A part of a coalesced operation stays scheduled; a completed collective implies that the previous ones are complete.
        (
            [entry(6, "scheduled"), entry(6, "completed", profiling_name="nccl:coalesced"), entry(5, "scheduled")],
            "group 0/default_pg done to 6",
        ),
        ([entry(1, "completed"), entry(0, "scheduled", is_p2p=True)], "group 0/default_pg done to 1"),
        ([OLD], "group 0/default_pg at 5 all_reduce, scheduled"),
        ([entry(1, "scheduled", ("a; b", ""), profiling_name="")], "group a_b at 1 unnamed, scheduled"),
        ([], ""),
    ],
)
def test_the_line_contains_the_position_of_each_group(entries: list[dict[str, Any]], line: str) -> None:
    """The oldest incomplete collective, in any order of the entries. The diagnosis can parse the line."""
    found = flight_recorder.describe({"version": "2.10", "entries": entries})
    read = [match["group"] for match in hang._POSITION.finditer(found)]

    assert found == line
    assert len(read) == line.count("group ")


def test_a_dump_without_entries_gives_an_empty_line() -> None:
    """As from a disabled recorder."""
    assert flight_recorder.describe({"version": "2.10"}) == ""


def hangs(**_: Any) -> bytes:
    """Block, like a GPU that does not respond."""
    time.sleep(30)
    return b""


def refuses(**_: Any) -> bytes:
    """Fail, like a driver that has lost its GPU."""
    raise RuntimeError("CUDA error: unspecified launch failure")


def answers(entries: Any) -> Callable[..., bytes]:
    """Return a recorder with these entries."""
    return lambda **_: pickle.dumps({"entries": entries})


@pytest.mark.parametrize(
    ("dump", "line"),
    [
        (answers([entry(2, "started")]), "group 0/default_pg at 2 all_reduce, started"),
        (answers([]), "unknown: it is empty"),
        (answers(7), "unknown: TypeError"),
        (answers([entry(1, "started", collective_seq_id="x")]), "unknown: ValueError"),
        (lambda **_: b"torn", "unknown: "),
        (lambda: b"", "unknown: TypeError"),  # torch 2.2 does not accept these arguments
        (refuses, "unknown: RuntimeError"),
        (hangs, "unknown: no answer within 0 s"),
    ],
)
def test_reading_never_fails_or_exceeds_its_time_limit(monkeypatch: pytest.MonkeyPatch, dump: Any, line: str) -> None:
    """Whatever the GPU and torch do; an unreadable recorder gives `unknown`."""
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_nccl_trace", dump, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    started = time.monotonic()

    assert flight_recorder.read(5.0 if dump is not hangs else 0.2).startswith(line)
    assert time.monotonic() - started < 10


def test_the_watchdog_prints_the_positions_last(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """After the phase and the stacks, so that the diagnosis finds the line at the end of the log."""
    monkeypatch.setattr(flight_recorder, "read", lambda _limit_s: "group 0/default_pg at 2 all_reduce, started")
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    Watchdog(program="pretrain", rank=3)._end(600.0)
    lines = capfd.readouterr().err.splitlines()

    assert "pretrain: rank 3: no progress for 600.0 s" in lines[0]
    assert lines[-1] == "pretrain: rank 3: flight recorder: group 0/default_pg at 2 all_reduce, started"
    assert codes == [77]


def test_a_run_on_cpus_has_no_positions() -> None:
    """Its collectives are synchronous."""
    assert flight_recorder.read(0.2) == ""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_FR_BUFFER_SIZE": "2000"}),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, {"TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}),
        (
            {"TORCH_NCCL_ENABLE_TIMING": "0", "TORCH_FR_BUFFER_SIZE": "0"},
            {"TORCH_NCCL_ENABLE_TIMING": "0", "TORCH_FR_BUFFER_SIZE": "0"},
        ),
    ],
)
def test_enable_does_not_override_the_users_variables(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: dict[str, str]
) -> None:
    """Timing is enabled, because without it a started collective looks like a scheduled one."""
    monkeypatch.setattr(os, "environ", dict(given))
    flight_recorder.enable()

    assert dict(os.environ) == expected
