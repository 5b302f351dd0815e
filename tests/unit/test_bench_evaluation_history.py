"""Comparing a device with its history, and a single host with the history of others."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.judging.floors import Floors
from primus_bootstrap.bench.judging.history_records import new_records
from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.judging.verdicts import BenchEvaluation, evaluate_results
from primus_bootstrap.bench.results.history import Fingerprint, History, append_history, make_history, read_history
from tests.unit.bench_fleet_rig import STACK, result

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.bench.results.history import DeviceRecord
    from primus_bootstrap.bench.results.reader import Result

START = 1_795_348_800.0
PRINT = Fingerprint("6.14", "1.2", "6.8", "abc")


def _measure(host: str, speed: float, *, seed: object = 0, **other: Any) -> Result:
    rng = random.Random(f"{host} {seed}")  # noqa: S311 - made-up values
    return result(host, [speed * (1 + rng.gauss(0, 0.002)) for _ in range(20)], **{"serial": f"gpu-{host}", **other})


def _evaluate(results: list[Result], history: History) -> BenchEvaluation:
    return evaluate_results(results, floors=Floors(), history=history)


def _history(hosts: int, benches: int, **other: Any) -> list[DeviceRecord]:
    """Return the records of earlier benches of a healthy fleet."""
    records: list[DeviceRecord] = []
    for bench in range(benches):
        fleet = [_measure(f"node{host}", 700.0, seed=bench, **other) for host in range(hosts)]
        evaluation = _evaluate(fleet, History())
        records += new_records(evaluation, {f"node{host}": PRINT for host in range(hosts)}, time=START + bench)
    return records


def test_an_evaluation_becomes_records_of_the_history(tmp_path: Path) -> None:
    """Values, model, versions, verdict and fingerprints are written to the file and read again."""
    records = _history(6, 1)
    append_history(tmp_path / "history.jsonl", records)

    history = read_history(tmp_path / "history.jsonl")

    assert history == make_history(records)
    (last,) = history.records["gpu-node3"]
    assert (last.host, last.model, last.stack, last.fingerprint) == ("node3", "Test GPU", STACK, PRINT)
    assert 690 < last.values[0].value < 710
    assert 0 < last.values[0].error < 0.002


def test_a_slower_device_fails_by_its_history() -> None:
    """A single host of a model without a floor fails if it is 5 % slower than before."""
    history = make_history(_history(6, 4))

    slow = _evaluate([_measure("node0", 665.0, seed="now")], history)
    same = _evaluate([_measure("node0", 700.0, seed="now")], history)

    assert slow.hosts == {"node0": "fail"}
    failed = [verdict for verdict in slow.verdicts if verdict.verdict == "fail"]
    assert failed[0].reason.split(";")[0].endswith(("% slower than its peers", "% slower than before"))
    assert same.hosts == {"node0": "pass"}
    assert "history: 4 passes of gpu-node0" in same.verdicts[0].source


def test_the_history_follows_the_serial_number() -> None:
    """A GPU keeps its history on another host; its replacement has none."""
    slow_model = make_history(_history(6, 4, model="Rare GPU"))
    few = JudgingSettings(minimum_hosts=50)

    moved = evaluate_results(
        [_measure("elsewhere", 665.0, model="Rare GPU", serial="gpu-node0")], floors=Floors(), history=slow_model, settings=few
    )
    swapped = evaluate_results(
        [_measure("node0", 665.0, model="Rare GPU", serial="new")], floors=Floors(), history=slow_model, settings=few
    )

    assert moved.hosts == {"elsewhere": "fail"}
    assert moved.verdicts[0].source == "history: 4 passes of gpu-node0"
    assert swapped.hosts == {"node0": "unknown"}


def test_another_driver_has_no_history() -> None:
    """Passes with other versions are not compared, so the host is unknown."""
    history = make_history(_history(6, 4))

    evaluation = _evaluate([_measure("node0", 600.0, stack=("2.13.0", "", "7.0", "6.15.0"))], history)

    assert evaluation.hosts == {"node0": "unknown"}


def test_only_passes_are_a_history() -> None:
    """Records of failures do not make a slow device normal."""
    records = [replace(record, verdict="fail") for record in _history(6, 4)]

    evaluation = _evaluate([_measure("node0", 700.0)], make_history(records))

    assert evaluation.hosts == {"node0": "unknown"}


def test_a_single_new_host_is_compared_with_earlier_benches() -> None:
    """The latest passes of the fleet are its peers, and the source says so."""
    history = make_history(_history(12, 1))

    good, slow = (_evaluate([_measure("new", speed)], history) for speed in (700.0, 650.0))

    assert good.hosts == {"new": "pass"}
    assert slow.hosts == {"new": "fail"}
    assert good.verdicts[0].source == "peers: 12 hosts of Test GPU, 12 of them in earlier benches"


def test_a_fleet_that_is_slower_as_a_whole_is_unknown() -> None:
    """All hosts are 10 % slower than before, so the cause is shared."""
    history = make_history(_history(8, 4))

    evaluation = _evaluate([_measure(f"node{host}", 630.0, seed="now") for host in range(8)], history)

    assert set(evaluation.hosts.values()) == {"unknown"}
    assert "8 of 8 hosts are too slow" in evaluation.verdicts[0].reason


def test_a_record_has_the_worst_verdict_of_its_device() -> None:
    """The slow host's record is a failure; a missing fingerprint is empty."""
    fleet = [_measure(f"node{host}", 640.0 if host == 7 else 700.0) for host in range(8)]

    records = new_records(_evaluate(fleet, History()), {}, time=START)

    assert {record.host: record.verdict for record in records} == {f"node{host}": "pass" for host in range(7)} | {"node7": "fail"}
    assert records[0].fingerprint == Fingerprint()
