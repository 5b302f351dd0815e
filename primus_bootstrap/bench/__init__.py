"""Evaluate benchmark results, decide which hosts are quarantined, and write reports. Nothing here contacts a host.

lines = read_results(path, host="node1")              # lines of primus.result/1; lines.problems are verdicts
evaluation = evaluate_results(lines.results, floors=load_floors(), history=read_history(path), others=lines.problems)
evaluation.verdicts                                   # primus.verdict/1, one for each series and device
evaluation.hosts                                      # worst verdict of each host
evaluation.reruns                                     # benchmarks to run again; evaluate all results with rounds_done + 1
append_history(path, new_records(evaluation, fingerprints, time=now))
"""

from __future__ import annotations

from primus_bootstrap.bench.judging.floors import Floor, Floors, load_floors
from primus_bootstrap.bench.judging.history_records import new_records
from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.judging.rerun import Rerun
from primus_bootstrap.bench.judging.verdicts import BenchEvaluation, EvaluatedValue, evaluate_results, worst_of
from primus_bootstrap.bench.results.history import (
    Changed,
    DeviceRecord,
    Fingerprint,
    History,
    PastValue,
    append_history,
    changed,
    make_history,
    read_history,
)
from primus_bootstrap.bench.results.reader import ReadResults, Result, Series, device_key, read_results

__all__ = [
    "BenchEvaluation",
    "Changed",
    "DeviceRecord",
    "EvaluatedValue",
    "Fingerprint",
    "Floor",
    "Floors",
    "History",
    "JudgingSettings",
    "PastValue",
    "ReadResults",
    "Rerun",
    "Result",
    "Series",
    "append_history",
    "changed",
    "device_key",
    "evaluate_results",
    "load_floors",
    "make_history",
    "new_records",
    "read_history",
    "read_results",
    "worst_of",
]
