"""workloads.bench: the measuring programs, started by `primus-cli … benchmark`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.launch_cli_rig import User

if TYPE_CHECKING:
    from pathlib import Path


def measured(user: User, nproc: int, *words: str) -> list[dict[str, Any]]:
    """Run a benchmark and return its results."""
    done = user.cli("--output", str(user.run_dir), "direct", "--nproc", str(nproc), "--", "benchmark", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in (user.run_dir / "results.jsonl").read_text().splitlines()]


def test_gemm_gives_a_number_a_device(tmp_path: Path) -> None:
    """Every rank keeps its own device's rate with its unit, the number of products and the versions."""
    results = measured(User(tmp_path), 2, "gemm", "--m=64", "--n=32", "--k=48", "--dtype=fp32", "--device=cpu", "--steps=3", "--warm-up=1")

    assert sorted(result["rank"] for result in results) == [0, 1]
    for result in results:
        assert result["tflop_per_s"]["n"] == 3
        flop = 2 * 64 * 32 * 48
        assert result["tflop_per_s"]["median"] == pytest.approx(flop / result["time_s"]["median"] / 1e12)


def test_allreduce_gives_the_bandwidth_of_the_bus(tmp_path: Path) -> None:
    """With two ranks the bus carries each byte once; sizes double up to the last."""
    results = measured(User(tmp_path), 2, "allreduce", "--device=cpu", "--largest-mib=2", "--steps=3", "--warm-up=1")

    assert [result["size_mib"] for result in results] == [1, 2]
    for result in results:
        assert result["ranks"] == 2
        assert result["bus_gb_per_s"]["median"] == pytest.approx(result["size_mib"] * 2**20 / result["time_s"]["median"] / 1e9)


def test_an_unknown_benchmark_gets_the_nearest_name(tmp_path: Path) -> None:
    """Nothing is started."""
    done = User(tmp_path).cli("direct", "--", "benchmark", "gem")

    assert done.returncode == 2
    assert "no such benchmark: gem\n  fix: did you mean gemm?" in done.stderr
