"""What a judgement leaves for the history: one record a device that was measured."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from primus_bootstrap.bench.judging.verdicts import overall
from primus_bootstrap.bench.results.history import Fingerprint, Past, Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.bench.judging.verdicts import BenchEvaluation, JudgedValue
    from primus_bootstrap.core.verdicts import Outcome


def new_records(judgement: BenchEvaluation, fingerprints: Mapping[str, Fingerprint], *, time: float) -> tuple[Record, ...]:
    """Return the records of a judgement; `fingerprints` are by host, and one that is missing is all unknown."""
    values: dict[tuple[str, str], list[JudgedValue]] = defaultdict(list)
    outcomes: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for value in judgement.values:
        values[value.host, value.device].append(value)
    for verdict in judgement.verdicts:
        outcomes[verdict.host, verdict.device].append(verdict.verdict)
    return tuple(
        Record(
            serial=each[-1].serial,
            host=host,
            device=device,
            model=each[-1].model,
            stack=each[-1].stack,
            time=time,
            verdict=overall(outcomes[host, device]),
            fingerprint=fingerprints.get(host, Fingerprint()),
            values=tuple(Past(value.series, value.unit, value.value, value.error) for value in each),
        )
        for (host, device), each in values.items()
    )
