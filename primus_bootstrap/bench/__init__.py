"""Judge what benchmarks measured. Pure functions and plain data: no host is contacted, and no benchmark is run from here.

reading = read_results(path, host="node1")                 lines of primus.result/1; reading.problems are verdicts
judgement = judge(reading.results, floors=load_floors(), history=read_history(path), hosts=benched, others=reading.problems)
judgement.verdicts      primus.verdict/1, checks named bench_<benchmark>, one a series and host or device
judgement.hosts         host -> pass | fail | unknown | skipped
judgement.again         what to run again (host, benchmark, repeats); run it, and judge all results with rounds_done + 1
judgement.values        every judged value, with floor and error, for reports
append_history(path, new_records(judgement, fingerprints, time=now))
changed(history.last_pass(key).fingerprint, now)           whether a device must be benched again
"""

from __future__ import annotations

from primus_bootstrap.bench.judging.floors import Floor, Floors, load_floors
from primus_bootstrap.bench.judging.history_records import new_records
from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.judging.rerun import Rerun
from primus_bootstrap.bench.judging.verdicts import BenchEvaluation, JudgedValue, judge, overall
from primus_bootstrap.bench.results.history import (
    Changed,
    Fingerprint,
    History,
    Past,
    Record,
    append_history,
    changed,
    make_history,
    read_history,
)
from primus_bootstrap.bench.results.reader import ReadResults, Result, Series, device_key, read_results

__all__ = [
    "BenchEvaluation",
    "Changed",
    "Fingerprint",
    "Floor",
    "Floors",
    "History",
    "JudgedValue",
    "JudgingSettings",
    "Past",
    "ReadResults",
    "Record",
    "Rerun",
    "Result",
    "Series",
    "append_history",
    "changed",
    "device_key",
    "judge",
    "load_floors",
    "make_history",
    "new_records",
    "overall",
    "read_history",
    "read_results",
]
