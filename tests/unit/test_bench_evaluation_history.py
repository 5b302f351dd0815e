"""A device against its own past, and the past of others as peers of one that comes alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench import (
    BenchEvaluation,
    Fingerprint,
    History,
    JudgingSettings,
    append_history,
    make_history,
    new_records,
    read_history,
)
from primus_bootstrap.bench.judging.floors import Floors
from primus_bootstrap.bench.judging.verdicts import evaluate_results
from tests.unit.bench_fleet_rig import STACK, result

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.bench import DeviceRecord, Result

START = 1_795_348_800.0
PRINT = Fingerprint("6.14", "1.2", "6.8", "abc")


def _measure(host: str, speed: float, *, seed: object = 0, **other: Any) -> Result:
    rng = random.Random(f"{host} {seed}")  # noqa: S311 - made-up values
    return result(host, [speed * (1 + rng.gauss(0, 0.002)) for _ in range(20)], **{"serial": f"gpu-{host}", **other})


def _evaluate(results: list[Result], history: History) -> BenchEvaluation:
    return evaluate_results(results, floors=Floors(), history=history)


def _past(hosts: int, benches: int, **other: Any) -> list[DeviceRecord]:
    """Return what earlier benches of a healthy fleet left."""
    records: list[DeviceRecord] = []
    for bench in range(benches):
        fleet = [_measure(f"node{host}", 700.0, seed=bench, **other) for host in range(hosts)]
        evaluation = _evaluate(fleet, History())
        records += new_records(evaluation, {f"node{host}": PRINT for host in range(hosts)}, time=START + bench)
    return records


def test_a_judgement_becomes_records_that_the_next_one_reads(tmp_path: Path) -> None:
    """Values, model, versions, verdict and what each host ran with go into the file and come back."""
    records = _past(6, 1)
    append_history(tmp_path / "history.jsonl", records)

    history = read_history(tmp_path / "history.jsonl")

    assert history == make_history(records)
    last = history.last_pass("gpu-node3")
    assert last is not None
    assert (last.host, last.model, last.stack, last.fingerprint) == ("node3", "Test GPU", STACK, PRINT)
    assert 690 < last.values[0].value < 710
    assert 0 < last.values[0].error < 0.002


def test_a_device_that_became_slower_fails_by_its_own_history() -> None:
    """Alone, on a model without a floor: 5 % slower than in its earlier passes; the one that is as fast as ever passes."""
    history = make_history(_past(6, 4))

    slow = _evaluate([_measure("node0", 665.0, seed="now")], history)
    same = _evaluate([_measure("node0", 700.0, seed="now")], history)

    assert slow.hosts == {"node0": "fail"}
    failed = [verdict for verdict in slow.verdicts if verdict.verdict == "fail"]
    assert failed[0].reason.split(";")[0].endswith(("% slower than its peers", "% slower than before"))
    assert same.hosts == {"node0": "pass"}
    assert "history: 4 passes of gpu-node0" in same.verdicts[0].source


def test_the_history_follows_the_serial_not_the_place() -> None:
    """A GPU that moved to another host takes its past along; one that was swapped in has none, although the place is the same."""
    slow_model = make_history(_past(6, 4, model="Rare GPU"))
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


def test_after_another_driver_the_past_does_not_count() -> None:
    """What was measured with other versions is no yardstick: unknown, not a failure of the device."""
    history = make_history(_past(6, 4))

    evaluation = _evaluate([_measure("node0", 600.0, stack=("2.13.0", "", "7.0", "6.15.0"))], history)

    assert evaluation.hosts == {"node0": "unknown"}


def test_a_failed_bench_is_no_past_to_compare_with() -> None:
    """Records of a slow device that failed do not make slowness its habit."""
    records = [replace(record, verdict="fail") for record in _past(6, 4)]

    evaluation = _evaluate([_measure("node0", 700.0)], make_history(records))

    assert evaluation.hosts == {"node0": "unknown"}


def test_a_node_that_joins_alone_is_compared_with_earlier_benches_of_the_others() -> None:
    """A new serial, one host in the run: the fleet's latest passes are its peers, and the source says so."""
    history = make_history(_past(12, 1))

    good, slow = (_evaluate([_measure("new", speed)], history) for speed in (700.0, 650.0))

    assert good.hosts == {"new": "pass"}
    assert slow.hosts == {"new": "fail"}
    assert good.verdicts[0].source == "peers: 12 hosts of Test GPU, 12 of them in earlier benches"


def test_a_fleet_that_became_slower_as_a_whole_convicts_nobody() -> None:
    """All are 10 % slower than ever before (a power limit, the summer): unknown for all, with that reason."""
    history = make_history(_past(8, 4))

    evaluation = _evaluate([_measure(f"node{host}", 630.0, seed="now") for host in range(8)], history)

    assert set(evaluation.hosts.values()) == {"unknown"}
    assert "8 of 8 hosts are too slow" in evaluation.verdicts[0].reason


def test_a_device_is_recorded_as_its_verdicts_say() -> None:
    """The slow host's record is a failure, the others' are passes; a fingerprint that nobody gave is unknown."""
    fleet = [_measure(f"node{host}", 640.0 if host == 7 else 700.0) for host in range(8)]

    records = new_records(_evaluate(fleet, History()), {}, time=START)

    assert {record.host: record.verdict for record in records} == {f"node{host}": "pass" for host in range(7)} | {"node7": "fail"}
    assert records[0].fingerprint == Fingerprint()
