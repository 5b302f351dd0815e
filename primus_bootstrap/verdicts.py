"""The verdict record: the one shape in which every check of every part says what it found.

Producers write `{"verdicts": [record, ...]}`; consumers read nothing else. Unknown is a verdict of its own:
a time-out, a missing file or a failed look-up is never read as good or as bad.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = "primus.verdict/1"

Outcome = Literal["pass", "fail", "unknown", "skipped"]
OUTCOMES: tuple[Outcome, ...] = ("pass", "fail", "unknown", "skipped")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check found on one host.

    `started` is seconds since the epoch (UTC), `seconds` how long the check took. `device` and `serial` are empty
    where the check looks at the host itself. `source` says where the expectation comes from. `reason` is empty on a
    pass; `fix` is empty where there is nothing to mend.
    """

    check: str
    host: str
    verdict: Outcome
    expected: str = ""
    found: str = ""
    unit: str = ""
    source: str = ""
    reason: str = ""
    fix: str = ""
    device: str = ""
    serial: str = ""
    started: float = 0.0
    seconds: float = 0.0
    schema: str = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data for `json.dumps`."""
        return asdict(self)


def parse_verdict(data: Mapping[str, Any]) -> Verdict:
    """Read one record; what is not a known verdict word becomes `unknown`, and says so."""
    names = {name: data[name] for name in Verdict.__slots__ if name in data}
    word = names.get("verdict")
    if word not in OUTCOMES:
        names["verdict"] = "unknown"
        names["reason"] = f"the record's verdict is {word!r}, not one of {', '.join(OUTCOMES)}"
    for name, value in names.items():
        if name in ("started", "seconds"):
            names[name] = float(value or 0.0)
        else:
            names[name] = "" if value is None else str(value)
    return Verdict(**{"check": "unnamed", "host": "", **names})
