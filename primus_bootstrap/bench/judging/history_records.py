"""Make the history records of an evaluation: one for each device that was measured."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from primus_bootstrap.bench.judging.verdicts import worst_of
from primus_bootstrap.bench.results.history import DeviceRecord, Fingerprint, PastValue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.bench.judging.verdicts import BenchEvaluation, EvaluatedValue
    from primus_bootstrap.core.verdicts import Outcome


def new_records(evaluation: BenchEvaluation, fingerprints: Mapping[str, Fingerprint], *, time: float) -> tuple[DeviceRecord, ...]:
    """Return the records of an evaluation.

    Args:
        fingerprints: Software versions by host; a missing host gets an empty fingerprint.
        time: The controller's clock (seconds since the epoch).
    """
    values: dict[tuple[str, str], list[EvaluatedValue]] = defaultdict(list)
    outcomes: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for value in evaluation.values:
        values[value.sample.host, value.sample.device].append(value)
    for verdict in evaluation.verdicts:
        outcomes[verdict.host, verdict.device].append(verdict.verdict)
    return tuple(
        DeviceRecord(
            serial=device_values[-1].sample.serial,
            host=host,
            device=device,
            model=device_values[-1].key.model,
            stack=device_values[-1].key.stack,
            time=time,
            verdict=worst_of(outcomes[host, device]),
            fingerprint=fingerprints.get(host, Fingerprint()),
            values=tuple(PastValue(key.series, key.unit, sample.value, sample.error) for key, sample, _, _ in device_values),
        )
        for (host, device), device_values in values.items()
    )
