"""workloads.train.telemetry and schedule, workloads.common.peaks and results: numbers about a run."""

from __future__ import annotations

import os
import pwd
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from workloads.common.peaks import PEAKS, find_peak
from workloads.common.results import spread
from workloads.train import telemetry
from workloads.train.schedule import learning_rate
from workloads.train.settings import OptimizerSettings
from workloads.train.telemetry import Gauges, StepRecord, line, metrics_folder, metrics_name, prometheus_text

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
    """Three lines a gauge, as the text format wants them."""
    lines = prometheus_text(RECORD, LABELS).splitlines()
    series = r'{run="/jfs/a \"b\"",host="n1"}'

    assert lines[3:6] == ["# HELP primus_train_step Optimizer steps done", "# TYPE primus_train_step gauge", f"primus_train_step{series} 7"]
    assert f"primus_train_running{series} 1" in lines
    assert f"primus_train_mfu{series} 0.4" in lines
    assert len(lines) % 3 == 0


@pytest.fixture
def account_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which the host's exporter would read this account's files."""
    folder = tmp_path / "account"
    folder.mkdir()
    monkeypatch.setenv("PRIMUS_METRICS_FOLDER", str(folder))
    return folder


def test_the_numbers_also_go_to_the_folder_of_the_account(tmp_path: Path, account_folder: Path) -> None:
    """One file for each run folder, the same one after a restart; files of runs that ended long ago are removed, and no other old file."""
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


def test_a_stated_file_takes_the_place_of_both(tmp_path: Path, account_folder: Path) -> None:
    """`telemetry.prometheus_file` names the only file."""
    Gauges(tmp_path, str(tmp_path / "stated.prom")).write("x")

    assert (tmp_path / "stated.prom").read_text() == "x"
    assert not (tmp_path / "metrics.prom").exists()
    assert list(account_folder.iterdir()) == []


def test_a_run_goes_on_without_a_file_that_only_dashboards_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is gone or closed costs one line; it is tried again at each step. The file of a watcher is needed."""
    gone = tmp_path / "gone"
    gauges = Gauges(tmp_path, str(gone / "a.prom"))
    gauges.write("1")
    gauges.write("2")
    said = capsys.readouterr().out
    gone.mkdir()
    gauges.write("3")

    assert said.count("the run goes on without it") == 1
    assert (gone / "a.prom").read_text() == "3"
    with pytest.raises(FileNotFoundError):
        Gauges(tmp_path / "nowhere", "").write("4")


def test_a_watched_job_writes_no_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its watcher's host passes the file in the job's folder on; an account without a folder on this host has no second file either."""
    monkeypatch.setattr(telemetry, "_METRICS_FOLDER", str(tmp_path))
    monkeypatch.delenv("PRIMUS_METRICS_FOLDER", raising=False)
    monkeypatch.delenv("PRIMUS_JOB_ID", raising=False)
    none = metrics_folder()
    mine = tmp_path / pwd.getpwuid(os.geteuid()).pw_name
    mine.mkdir()
    found = metrics_folder()
    monkeypatch.setenv("PRIMUS_JOB_ID", "big-0a1b2c")

    assert (none, found, metrics_folder()) == (None, mine, None)


def test_a_run_that_has_ended_is_not_scraped_as_one_that_runs() -> None:
    """Only that it ended, and at which step."""
    lines = prometheus_text(RECORD, LABELS, running=False).splitlines()

    assert [line.partition("{")[0] + line.partition("}")[2] for line in lines if not line.startswith("#")] == [
        "primus_train_running 0",
        "primus_train_step 7",
    ]


def test_an_unknown_peak_gives_no_mfu_anywhere() -> None:
    """None is left out of the gauges and of the line on the terminal: it is neither 0 nor a guess."""
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
def test_a_peak_belongs_to_a_whole_known_device(device: str, units: int, tflops: float | None) -> None:
    """Names as drivers give them; a partition, a near relative or an unknown device has no peak."""
    peak = find_peak(device, units, "bf16")

    assert (peak.tflops if peak else None) == tflops
    assert find_peak(device, units, "fp32") is None


def test_every_peak_has_a_source() -> None:
    """A number without a source is not in the table."""
    assert all(peak.source.startswith("https://") for peak in PEAKS)


def test_the_learning_rate_rises_linearly_and_falls_as_a_cosine() -> None:
    """Warm-up to the highest rate, half-way at the middle of the cosine, the lowest at its end and after it."""
    settings = OptimizerSettings(lr=1.0, warmup_steps=10, min_lr_ratio=0.2)

    assert [learning_rate(settings, step, 110) for step in (1, 10, 60, 110, 200)] == pytest.approx([0.1, 1.0, 0.6, 0.2, 0.2])
    assert learning_rate(replace(settings, decay_steps=60), 60, 110) == pytest.approx(0.2)


def test_median_and_percentile_say_how_many_values_they_are_of() -> None:
    """The nearest rank; nothing of no values."""
    assert spread([float(value) for value in range(1, 101)]) == {"median": 50.5, "p95": 95.0, "n": 100}
    assert spread([]) == {"median": None, "p95": None, "n": 0}
