"""The verdict record: the one format in which every check reports its result.

Programs write `{"verdicts": [record, ...]}`. A time-out, a missing file or a failed query gives `unknown`, never `pass` or `fail`.
Python 3.9, standard library only: checks on nodes use it too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = "primus.verdict/1"

Outcome = Literal["pass", "fail", "unknown", "skipped"]
PASS: Outcome = "pass"  # noqa: S105 - a verdict
FAIL: Outcome = "fail"
UNKNOWN: Outcome = "unknown"
SKIPPED: Outcome = "skipped"
OUTCOMES: tuple[Outcome, ...] = (PASS, FAIL, UNKNOWN, SKIPPED)


@dataclass(frozen=True)
class Verdict:
    """The result of one check on one host."""

    check: str  # name of the check
    host: str  # host name; empty where the reader adds it
    verdict: Outcome  # `pass`, `fail`, `unknown` or `skipped`
    expected: str = ""  # the expected value, as text, in `unit`
    found: str = ""  # the value that was found, as text, in `unit`
    unit: str = ""  # unit of `expected` and `found`
    source: str = ""  # where the expectation comes from
    reason: str = ""  # why the check did not pass; empty on a pass
    fix: str = ""  # what to do about it; empty where there is nothing to do
    device: str = ""  # the device that was checked; empty where the check is about the host
    serial: str = ""  # serial number of the device
    started: float = 0.0  # start time, in seconds since the epoch (UTC)
    seconds: float = 0.0  # duration
    schema: str = SCHEMA  # name and version of this format

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data for `json.dumps`."""
        return asdict(self)


FIELDS = tuple(field.name for field in fields(Verdict))


def parse_verdict(data: Mapping[str, Any]) -> Verdict:
    """Read one record. A verdict outside the four known ones becomes `unknown`, with the reason."""
    values = {name: data[name] for name in FIELDS if name in data}
    word = values.get("verdict")
    if word not in OUTCOMES:
        values["verdict"] = UNKNOWN
        values["reason"] = f"the record's verdict is {word!r}, not one of {', '.join(OUTCOMES)}"
    for name, value in values.items():
        if name in ("started", "seconds"):
            values[name] = float(value or 0.0)
        else:
            values[name] = "" if value is None else str(value)
    return Verdict(**{"check": "unnamed", "host": "", **values})
