"""workloads.common.step_files, peaks and results, and workloads.train.schedule."""

from __future__ import annotations

import os
import pwd
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from workloads.common import step_files
from workloads.common.peaks import PEAKS, find_peak
from workloads.common.results import spread
from workloads.common.step_files import Gauges, StepRecord, line, metrics_folder, metrics_name, prometheus_text
from workloads.train.schedule import learning_rate
from workloads.train.settings import OptimizerSettings

if TYPE_CHECKING:
    from pathlib import Path

LABELS = {"run": '/jfs/a "b"', "host": "n1"}
RECORD = StepRecord(
    time="2026-11-22T01:00:00.000+00:00",
    step=7,
    loss=2.5,
    balance_loss=None,
    grad_norm=0.5,
    learning_rate=1e-3,
    tokens=3584,
    step_time_s=0.5,
    data_wait_s=0.01,
    checkpoint_wait_s=0.0,
    tokens_per_s=1024.0,
    tokens_per_s_per_device=512.0,
    tflops_per_s_per_device=400.0,
    mfu=0.4,
    memory_peak_gib=1.5,
    checkpoint="idle",
    checkpoint_step=5,
    checkpoint_failures=0,
)


def test_the_prometheus_file_has_every_gauge_with_help_and_type() -> None:
    """Three lines per gauge, in Prometheus' text format."""
    lines = prometheus_text(RECORD, LABELS).splitlines()
    series = r'{run="/jfs/a \"b\"",host="n1"}'

    assert lines[3:6] == [
        "# HELP primus_train_step Completed optimizer steps",
        "# TYPE primus_train_step gauge",
        f"primus_train_step{series} 7",
    ]
    assert f"primus_train_running{series} 1" in lines
    assert f"primus_train_mfu{series} 0.4" in lines
    assert len(lines) % 3 == 0


@pytest.fixture
def account_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for the metrics of this account."""
    folder = tmp_path / "account"
    folder.mkdir()
    monkeypatch.setenv("PRIMUS_METRICS_FOLDER", str(folder))
    return folder


def test_metrics_are_also_written_to_the_folder_of_the_account(tmp_path: Path, account_folder: Path) -> None:
    """One file per run folder, also after a restart. Files of old runs are removed, but no other old files."""
    old, young = (account_folder / metrics_name(tmp_path / name) for name in ("old", "young"))
    foreign = account_folder / "foreign.prom"
    for path in (old, young, foreign):
        path.write_text("")
    for path in (old, foreign):
        os.utime(path, (1, 1))
    (tmp_path / "run").mkdir()
    for text in ("first", "second"):
        Gauges(tmp_path / "run", "").write(text)
    written = [path for path in account_folder.iterdir() if path not in (young, foreign)]

    assert (tmp_path / "run" / "metrics.prom").read_text() == "second"
    assert [path.read_text() for path in written] == ["second"]
    assert (old.exists(), young.exists(), foreign.exists()) == (False, True, True)


def test_telemetry_prometheus_file_replaces_both_files(tmp_path: Path, account_folder: Path) -> None:
    """It is then the only file."""
    Gauges(tmp_path, str(tmp_path / "stated.prom")).write("x")

    assert (tmp_path / "stated.prom").read_text() == "x"
    assert not (tmp_path / "metrics.prom").exists()
    assert list(account_folder.iterdir()) == []


def test_a_run_continues_without_a_file_for_dashboards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing folder is reported once, and each step retries. The file in the run folder is required."""
    missing = tmp_path / "missing"
    gauges = Gauges(tmp_path, str(missing / "a.prom"))
    gauges.write("1")
    gauges.write("2")
    output = capsys.readouterr().out
    missing.mkdir()
    gauges.write("3")

    assert output.count("the run continues without it") == 1
    assert (missing / "a.prom").read_text() == "3"
    with pytest.raises(FileNotFoundError):
        Gauges(tmp_path / "nowhere", "").write("4")


def test_a_job_with_a_watcher_writes_no_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does an account without a metrics folder on this host."""
    monkeypatch.setattr(step_files, "_METRICS_FOLDER", str(tmp_path))
    monkeypatch.delenv("PRIMUS_METRICS_FOLDER", raising=False)
    monkeypatch.delenv("PRIMUS_JOB_ID", raising=False)
    none = metrics_folder()
    mine = tmp_path / pwd.getpwuid(os.geteuid()).pw_name
    mine.mkdir()
    found = metrics_folder()
    monkeypatch.setenv("PRIMUS_JOB_ID", "big-0a1b2c")

    assert (none, found, metrics_folder()) == (None, mine, None)


def test_the_metrics_of_an_ended_run_contain_its_last_step_only() -> None:
    """And `running` is 0."""
    lines = prometheus_text(RECORD, LABELS, running=False).splitlines()

    assert [line.partition("{")[0] + line.partition("}")[2] for line in lines if not line.startswith("#")] == [
        "primus_train_running 0",
        "primus_train_step 7",
    ]


def test_without_a_known_peak_there_is_no_mfu() -> None:
    """Neither in the gauges nor in the printed line."""
    unknown = replace(RECORD, mfu=None)

    assert "mfu" not in prometheus_text(unknown, LABELS)
    assert "MFU" not in line(unknown)
    assert "MFU 40.0%" in line(RECORD)


@pytest.mark.parametrize(
    ("device", "units", "tflops"),
    [
        ("AMD Instinct MI300X", 304, 1307.4),
        ("AMD Instinct MI355X", 256, 2516.6),
        ("AMD Instinct MI250X", 110, 191.5),
        ("NVIDIA H100 80GB HBM3", 132, 989.4),
        ("NVIDIA H100 PCIe", 114, 756.0),
        ("NVIDIA H100 NVL", 132, 835.0),
        ("NVIDIA H200", 132, 989.4),
        ("NVIDIA A100-SXM4-80GB", 108, 312.0),
        ("NVIDIA B200", 148, 2250.0),
        ("AMD Instinct MI300X", 38, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, None),
        ("NVIDIA H200 NVL", 132, None),
        ("NVIDIA GeForce RTX 4090", 128, None),
        ("CPU x86_64", 0, None),
    ],
)
def test_only_whole_known_devices_have_a_peak(device: str, units: int, tflops: float | None) -> None:
    """The names are those of the drivers. Partitions and unknown devices have no peak."""
    peak = find_peak(device, units, "bf16")

    assert (peak.tflops if peak else None) == tflops
    assert find_peak(device, units, "fp32") is None


def test_every_peak_has_a_source() -> None:
    """A URL."""
    assert all(peak.source.startswith("https://") for peak in PEAKS)


def test_the_learning_rate_rises_linearly_and_falls_as_a_cosine() -> None:
    """The peak rate after the warm-up, the mean in the middle of the cosine, the lowest rate at its end and later."""
    settings = OptimizerSettings(lr=1.0, warmup_steps=10, min_lr_ratio=0.2)

    assert [learning_rate(settings, step, 110) for step in (1, 10, 60, 110, 200)] == pytest.approx([0.1, 1.0, 0.6, 0.2, 0.2])
    assert learning_rate(replace(settings, decay_steps=60), 60, 110) == pytest.approx(0.2)


def test_spread_returns_median_percentile_and_count() -> None:
    """The percentile is the nearest rank; without values both are None."""
    assert spread([float(value) for value in range(1, 101)]) == {"median": 50.5, "p95": 95.0, "n": 100}
    assert spread([]) == {"median": None, "p95": None, "n": 0}
