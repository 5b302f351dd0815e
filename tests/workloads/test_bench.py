"""workloads.bench on CPU and gloo: the results of each benchmark."""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.integration.launch_cli_rig import User
from tests.workloads.ranks import ROOT, Ranks, Run
from tests.workloads.result_contract import read_results
from workloads.bench import gemm
from workloads.common.device import cold_bytes, uuid_text
from workloads.common.results import thinned

if TYPE_CHECKING:
    from pathlib import Path

SHORT = ("--device=cpu", "--repeats=3", "--warm-up=1")
# Every benchmark: ranks, options, and the expected lines as (metric, unit, better).
SPEED = ("tflop_per_s", "TFLOP/s", "higher")
GB = ("gb_per_s", "GB/s", "higher")
RATE = ("operations_per_s", "1/s", "higher")
ALL: dict[str, tuple[int, tuple[str, ...], list[tuple[str, str, str]]]] = {
    "gemm": (1, (*SHORT, "--shapes=64x48x32", "--dtypes=fp32,bf16,fp16,fp8"), [SPEED] * 4),
    "memory_bandwidth": (1, (*SHORT, "--array-mib=4"), [GB] * 3),
    "host_device": (1, SHORT, []),
    "attention": (1, (*SHORT, "--length=32", "--heads=4", "--kv-heads=2", "--head-width=16"), [SPEED] * 4),
    "launch_overhead": (1, (*SHORT, "--operations=20"), [("time_us", "us", "lower")]),
    "collectives": (
        2,
        (*SHORT, "--smallest-kib=4", "--largest-kib=16"),
        [("bus_gb_per_s", "GB/s", "higher"), ("alg_gb_per_s", "GB/s", "higher")] * 8,
    ),
    "overlap": (2, (*SHORT, "--size-mib=1", "--width=64"), [("overlap_percent", "%", "higher")]),
    "storage": (
        1,
        ("--tool=own", "--size-mib=1", "--seconds=0.1", "--files=8", "--repeats=2", "--keep-free-percent=0"),
        [GB] * 2 + [RATE] * 5,
    ),
    "trial": (2, ("--device=cpu", "--steps=8", "--strategy=fsdp"), [("tokens_per_s", "tokens/s", "higher"), ("loss", "nat", "lower")]),
}


def bench(folder: Path, name: str, *words: str, ranks: int = 1) -> tuple[Run, list[dict[str, Any]]]:
    """Run a benchmark, or `module:function`; return the run and its result lines."""
    run = Ranks(folder, ranks, *words, program=name if ":" in name else f"workloads.bench.{name}:main").wait()
    return run, read_results(folder)


@pytest.mark.parametrize("name", ALL)
def test_every_benchmark_writes_the_expected_lines(tmp_path: Path, name: str) -> None:
    """With correct results, metrics and units, the host, and the options."""
    ranks, words, expected = ALL[name]
    (tmp_path / "storage").mkdir()
    extra = (f"--folder={tmp_path / 'storage'}",) if name == "storage" else ()
    run, lines = bench(tmp_path / "run", name, *words, *extra, ranks=ranks)

    assert run.codes == [0] * ranks, run.outputs
    assert [(line["metric"], line["unit"], line["better"]) for line in lines] == expected
    for line in lines:
        assert (line["benchmark"], line["correct"], line["error"]) == (name, True, "")
        assert (line["device"], line["model"], line["serial"], line["ranks"]) == ("", "cpu", "", ranks)
        assert line["options"]["timeout_s"] > 0


def test_every_benchmark_is_tested() -> None:
    """The table above contains each program of the folder."""
    assert {path.stem for path in (ROOT / "workloads/bench").glob("[a-z]*.py")} == set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_the_manual_contains_every_option(name: str) -> None:
    """With default and help, in the section of the benchmark."""
    section = (ROOT / "docs/benchmarks.md").read_text("utf-8").split(f"\n## {name}\n")[1].split("\n## ")[0]
    benchmark = importlib.import_module(f"workloads.bench.{name}").BENCHMARK
    rows = []
    for option in fields(benchmark.options):
        default = ",".join(option.default) if isinstance(option.default, tuple) else str(option.default)
        shown = f"`{default}`" if default else ""
        rows.append(f"| `--{option.name.replace('_', '-')}` | {shown} | {option.metadata['help'].replace('%%', '%')} |")

    assert benchmark.name == name
    assert [line for line in section.splitlines() if line.startswith("| `--")] == rows


def test_bus_bandwidth_is_defined_as_in_nccl_tests(tmp_path: Path) -> None:
    """With four ranks: 2 * 3/4 of the algorithm bandwidth for all-reduce, 3/4 for the others. Sizes grow by the factor."""
    run, lines = bench(tmp_path, "collectives", *SHORT, "--smallest-kib=16", "--largest-kib=64", "--factor=4", ranks=4)
    pairs = {
        (line["sizes"]["collective"], line["sizes"]["bytes"]): line["value"] / other["value"]
        for line, other in zip(lines[::2], lines[1::2], strict=True)
    }

    assert run.codes == [0] * 4, run.outputs
    assert {size for _, size in pairs} == {16 * 1024, 64 * 1024}
    assert {name: pytest.approx(ratio, rel=1e-5) for (name, _), ratio in pairs.items()} == {
        "all_reduce": 1.5,
        "all_gather": 0.75,
        "reduce_scatter": 0.75,
        "all_to_all": 0.75,
    }


@pytest.mark.parametrize("name", ["collectives", "overlap"])
def test_a_single_rank_measures_no_communication(tmp_path: Path, name: str) -> None:
    """It prints a message, writes no line, and succeeds."""
    run, lines = bench(tmp_path, name, *SHORT)

    assert (run.codes, lines) == ([0], [])
    assert "skipped, because there is one rank only" in run.outputs[0]


def test_a_cpu_is_measured_once_per_host(tmp_path: Path) -> None:
    """By the first rank."""
    run, lines = bench(tmp_path, "launch_overhead", *SHORT, ranks=2)

    assert (run.codes, len(lines)) == ([0, 0], 1)
    assert "measured by the first rank of this host" in run.outputs[1]


def test_operands_are_not_cached() -> None:
    """The pairs exceed the cache, and each product uses the next pair."""
    pairs = gemm._operands((256, 256, 256), "fp32", torch.device("cpu"))
    pairs[1][0].zero_()
    product = gemm._product(pairs, "fp32")

    assert sum(value.nbytes for pair in pairs for value in pair) >= cold_bytes(torch.device("cpu"))
    assert len({operand.data_ptr() for pair in pairs for operand in pair}) == 2 * len(pairs)
    assert bool(product(0).any())
    assert not bool(product(1).any())


def test_the_serial_number_of_amd_gpus_is_their_unique_id() -> None:
    """HIP stores its letters as the bytes of a UUID; other UUIDs are not changed."""
    assert uuid_text("38656435-6562-3964-6132-323733656465") == "8ed5eb9da2273ede"
    assert uuid_text("8c8ca8ba-3c4f-19d1-b9d9-3f8a6a1d0f6e") == "8c8ca8ba-3c4f-19d1-b9d9-3f8a6a1d0f6e"


def test_samples_are_thinned_evenly() -> None:
    """A line contains at most 200 samples, in order, from the whole series."""
    assert thinned([1.0, 2.0]) == [1.0, 2.0]
    assert thinned([float(value) for value in range(1000)]) == [float(value) for value in range(0, 1000, 5)]


def test_primus_cli_runs_a_benchmark(tmp_path: Path) -> None:
    """The arguments after its name are its options, and the result is in the run folder."""
    user = User(tmp_path)
    done = user.cli(
        "--output", str(user.run_dir), "direct", "--nproc", "1", "--", "benchmark", "gemm", "--shapes=64x32x48", "--dtypes=fp32", *SHORT
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert [line["sizes"] for line in read_results(user.run_dir)] == [{"m": 64, "n": 32, "k": 48, "dtype": "fp32"}]


def test_the_list_names_every_benchmark(tmp_path: Path) -> None:
    """With the first line of its docstring."""
    done = User(tmp_path).cli("direct", "--", "benchmark", "--list")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())

    assert done.returncode == 0, done.stderr
    assert set(lines) == set(ALL)
    assert lines["trial"].startswith("Train for a few steps")


def test_an_unknown_benchmark_gets_the_nearest_name(tmp_path: Path) -> None:
    """Exit code 2."""
    done = User(tmp_path).cli("direct", "--", "benchmark", "gem")

    assert done.returncode == 2
    assert "no such benchmark: gem\n  fix: did you mean gemm?" in done.stderr
