"""Match log lines, kernel lines and signals with the causes in data/causes.yml."""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.launch.diagnose.log_lines import LINE_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Mapping

HARDWARE, CAUSE, HANG, CONSEQUENCE, OUTSIDE = "hardware", "cause", "hang", "consequence", "outside"
KILLED = "killed"
# A line without any of these words matches no log pattern. This makes ordinary lines of a thousand ranks cheap. A test generates lines from
# each pattern to verify the list.
_WORDS = (
    " is -", "abort", "addrinuse", "ancdata", "another model", "argument", "assert", "broken", "busy", "call to", "can't", "cancelled",
    "cannot", "compatible", "compiled with", "compiler", "connection", "could not", "couldn't", "cudaerror", "data set", "denied",
    "deserializ", "device", "driver", "due to", "eccnot", "endpoint", "errno", "error", "exceeded", "exception", "exited", "fail",
    "fatal", "fault", "file", "finite", "free mem", "gpu", "hiperror", "holds", "ibv_", "illegal", "in use", "inf", "initialized",
    "insufficient", "is corrupted", "killed", "loss scale", "lost communication", "low on memory", "magic", "memlock", "memory pressure",
    "message body", "mismatch", "missing", "name resolution", "nan", "net/ib", "ninja", "no such", "nobinary", "nodevice", "not found",
    "not one", "not set", "nothing was", "obj", "offline", "only", "oom", "out of", "out of resource", "permission", "pickle",
    "picklingerror", "progress", "read-only", "resolve", "service", "setting", "shared memory", "shut down", "socket", "space", "stale",
    "state_dict", "status_", "step-", "stuck", "symbol", "thread", "time", "too many", "train: rank", "transport/ib", "trunc", "unable",
    "rejects", "unavailable", "unreachable", "watchdog", "written",
)  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """One entry of data/causes.yml, which explains the fields."""

    name: str
    title: str
    kind: str
    means: str
    fix: tuple[str, ...]
    source: str
    needs: str = ""
    nccl_warn: bool = False
    probed: bool = False
    explains: frozenset[str] = frozenset()
    signals: tuple[int, ...] = ()
    log: tuple[re.Pattern[str], ...] = ()
    kernel: tuple[re.Pattern[str], ...] = ()
    recovered: tuple[re.Pattern[str], ...] = ()
    other_end: tuple[re.Pattern[str], ...] = ()

    def blames_other_end(self, text: str) -> bool:
        """Return whether a line says that the other end of a connection did not answer."""
        return any(pattern.search(text) for pattern in self.other_end)

    def to_json(self) -> dict[str, Any]:
        """Return name and texts as plain data."""
        return {"name": self.name, "title": self.title, "means": self.means, "fix": list(self.fix), "source": self.source}


@cache
def catalogue() -> tuple[Cause, ...]:
    """Return the entries in the order of the file. The first entry that matches a line counts."""
    data = yaml.safe_load(pkgutil.get_data("primus_bootstrap.launch", "data/causes.yml") or b"")
    return tuple(_cause(name, entry) for name, entry in data.items())


def match_log(text: str, *, nccl_warning: bool = False) -> Cause | None:
    """Return the cause that matches a line of a program's output.

    Args:
        text: The line.
        nccl_warning: NCCL or RCCL marks it WARN, so only causes with `nccl_warn` count.
    """
    text = text[:LINE_CHARACTERS]
    folded = text.casefold()
    if not any(word in folded for word in _WORDS):
        return None
    causes = (cause for cause in catalogue() if cause.nccl_warn or not nccl_warning)
    return next((cause for cause in causes for pattern in cause.log if pattern.search(text)), None)


def match_kernel(text: str) -> tuple[Cause, re.Match[str]] | None:
    """Return the cause that matches a line of the kernel log, and the match."""
    for cause in catalogue():
        for pattern in cause.kernel:
            match = pattern.search(text[:LINE_CHARACTERS])
            if match:
                return cause, match
    return None


def by_signal(number: int) -> Cause | None:
    """Return the cause for the signal that ended a program."""
    return next((cause for cause in catalogue() if number in cause.signals), None)


def _cause(name: str, entry: Mapping[str, Any]) -> Cause:
    return Cause(
        name=name,
        title=entry["title"],
        kind=entry["kind"],
        means=entry["means"],
        fix=tuple(entry["fix"]),
        source=entry["source"],
        needs=entry.get("needs", ""),
        nccl_warn=entry.get("nccl_warn", False),
        probed=entry.get("probed", False),
        explains=frozenset(entry.get("explains", ())),
        signals=tuple(entry.get("signals", ())),
        log=tuple(re.compile(pattern) for pattern in entry.get("log", ())),
        kernel=tuple(re.compile(pattern) for pattern in entry.get("kernel", ())),
        recovered=tuple(re.compile(pattern) for pattern in entry.get("recovered", ())),
        other_end=tuple(re.compile(pattern) for pattern in entry.get("other_end", ())),
    )
