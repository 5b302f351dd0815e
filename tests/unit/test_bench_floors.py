"""Floors of GPU models: the shipped file, the model names it matches, and errors in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap.bench.judging.floors import SHIPPED, Floors, load_floors
from primus_bootstrap.bench.results.reader import Series, canonical
from primus_bootstrap.core.errors import PrimusError

if TYPE_CHECKING:
    from pathlib import Path

GEMM = Series("gemm", "tflop_per_s", canonical({"m": 8192, "n": 8192, "k": 8192, "dtype": "bf16"}), 1)
COPY = Series("memory_bandwidth", "gb_per_s", canonical({"operation": "copy", "bytes": 2**30, "dtype": "fp32"}), 1)
PINNED = Series("host_device", "gb_per_s", canonical({"direction": "host_to_device", "memory": "pinned", "bytes": 2**28, "at_once": 1}), 1)


@pytest.mark.parametrize(
    ("reported", "model"),
    [
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("MI325X", "MI325X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
    ],
)
def test_a_model_is_found_by_the_name_that_torch_reports(reported: str, model: str) -> None:
    """Each model has floors for products, memory and the path to the host, with their sources."""
    floors = [load_floors().find(series, reported) for series in (GEMM, COPY, PINNED)]

    assert [floor.model for floor in floors if floor] == [model] * 3
    assert all(floor.source.startswith("https://") and 0 < floor.value < floor.peak for floor in floors if floor)


@pytest.mark.parametrize(
    "reported",
    [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H100 PCIe",
        "NVIDIA H200 NVL",
        "AMD Instinct MI300A",
        "AMD Instinct MI308X",
        "AMD Instinct MI999X",
        "NVIDIA A100-SXM4-40GB",
        "cpu",
        "",
    ],
)
def test_an_unknown_model_has_no_floor(reported: str) -> None:
    """A partition of a GPU, a similar model and a future model get no floor of another."""
    assert [load_floors().find(series, reported) for series in (GEMM, COPY, PINNED)] == [None] * 3


@pytest.mark.parametrize(
    "series",
    [
        Series("gemm", "tflop_per_s", canonical({"m": 512, "n": 8192, "k": 8192, "dtype": "bf16"}), 1),
        Series("gemm", "tflop_per_s", canonical({"m": 8192, "n": 8192, "k": 8192, "dtype": "fp32"}), 1),
        Series("gemm", "tflop_per_s", canonical({"m": 8192, "n": 8192, "dtype": "bf16"}), 1),
        Series("gemm", "time_us", GEMM.sizes, 1),
        Series("memory_bandwidth", "gb_per_s", canonical({"operation": "copy", "bytes": 2**20}), 1),
        Series(
            "host_device", "gb_per_s", canonical({"direction": "host_to_device", "memory": "pageable", "bytes": 2**28, "at_once": 1}), 1
        ),
        Series("host_device", "gb_per_s", canonical({"direction": "host_to_device", "memory": "pinned", "bytes": 2**28}), 1),
    ],
)
def test_sizes_that_no_rule_covers_have_no_floor(series: Series) -> None:
    """Small products, other types, memory that fits into a cache, pageable copies."""
    assert load_floors().find(series, "AMD Instinct MI300X") is None


def test_a_floor_is_its_share_of_the_published_peak() -> None:
    """40 % of 1307.4 TFLOP/s, with the source."""
    floor = load_floors().find(GEMM, "AMD Instinct MI300X")

    assert floor is not None
    assert floor.value == pytest.approx(522.96)
    assert floor.text() == (
        "40 % of the 1307.4 that MI300X has at most (https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html)"
    )


def test_an_empty_set_of_floors_finds_nothing() -> None:
    """It is valid."""
    assert Floors().find(GEMM, "AMD Instinct MI300X") is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema: primus.floors/1", "schema: other", "schema: expected primus.floors/1, found 'other'"),
        ("hbm_gb_per_s: {value: 5300, source: mi300x}", "hbm_gb_per_s: {value: 5300, source: nowhere}", "no such source: nowhere"),
        (
            "hbm_gb_per_s: {value: 5300,",
            "hbm_gb_per_s: {value: fast,",
            "models.MI300X.peaks.hbm_gb_per_s.value: expected a number, found 'fast'",
        ),
        (
            "share_percent: 30",
            "share_percent: 130",
            "share_percent: expected a percentage above 0 and below 100 or one of gemm_share_percent, found 130",
        ),
        ("share_percent: 30", "share_percent: other_share", "found 'other_share'"),
        ("peak: host_gb_per_s", "peak: hots_gb_per_s", "floors[3].peak: no model has the peak hots_gb_per_s"),
        ("    why: >-\n      a link", "    becuase: >-\n      a link", "floors[3].becuase: unknown key"),
        ('match: "(NVIDIA )?H200(', 'match: "((NVIDIA )?H200(', "models.H200.match: expected a regular expression"),
        ("models:", "models: [", "cannot read"),
    ],
)
def test_an_invalid_file_is_refused_with_the_reason(tmp_path: Path, old: str, new: str, message: str) -> None:
    """A misspelt name, an invalid number, and a floor above the peak."""
    text = SHIPPED.read_text("utf-8")
    assert old in text
    path = tmp_path / "floors.yml"
    path.write_text(text.replace(old, new), "utf-8")

    with pytest.raises(PrimusError) as caught:
        load_floors(path)

    assert message in caught.value.what


def test_all_mistakes_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    """Each with its path and a fix."""
    path = tmp_path / "floors.yml"
    text = SHIPPED.read_text("utf-8").replace("peak: host_gb_per_s", "peak: hots_gb_per_s").replace("source: mi355x", "source: mi335x")
    path.write_text(text, "utf-8")

    with pytest.raises(PrimusError) as caught:
        load_floors(path)

    assert [line.partition("floors.yml: ")[2] for line in caught.value.what.splitlines()] == [
        *(f"models.MI355X.peaks.{peak}.source: no such source: mi335x" for peak in ("bf16_tflop_per_s", "fp8_tflop_per_s", "hbm_gb_per_s")),
        "floors[3].peak: no model has the peak hots_gb_per_s",
    ]
    assert "did you mean host_gb_per_s?" in caught.value.fix


def test_every_shipped_source_is_used_and_every_share_has_a_reason() -> None:
    """The file contains no unused sources."""
    data = yaml.safe_load(SHIPPED.read_text("utf-8"))

    used = {peak["source"] for model in data["models"].values() for peak in model["peaks"].values()}
    assert used == set(data["sources"])
    assert all("https://" in rule["why"] for rule in data["floors"])
