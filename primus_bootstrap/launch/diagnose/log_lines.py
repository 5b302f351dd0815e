"""Decide which lines of a program's output can name the cause of its failure.

A line is only a note, and never a cause, if its logger marks it as information or a warning, if it says that the program tries again, if it
is source code in a traceback, or if the program went on after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

# Only the beginning of a line is read, because a line can be a dump of a megabyte.
LINE_CHARACTERS = 2000
ERROR, NCCL_WARNING, NOTE = "error", "nccl_warning", "note"

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# What torchrun, mpirun, Ray, srun --label and kubectl logs --timestamps put before a line.
_WRAPPER = re.compile(
    r"(?:\[(?:rank|default)\d+\]: ?|\[\d+,\d+\]<std(?:out|err)>: ?|\([\w:]+ pid=\d+(?:, ip=[\d.]+)?\) ?|\d{1,5}: (?=\S)"
    r"|\d{4}-\d\d-\d\dT[\d:.]+Z? (?=\S))"
)
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b")
_NCCL_LEVEL = re.compile(r"\bNCCL (INFO|TRACE|WARN)\b")
# The level as one letter: glog `[W1122 07:39:53`, TensorFlow `2024-05-01 10:00:00.0: W tensorflow/`, old torch `[W socket.cpp:426]`.
_LETTER = re.compile(
    r"^(?:\[?([DIWEF])\d{3,4} \d\d:\d\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,\d]*: ([DIWEF]) |\[([DIWEF]) \S+:\d+\]"
    r"|([DIWEF]) (?:external|tensorflow)/)"
)
# The level as a word, where loggers put it: `INFO:name:`, `WARNING 05-27 11:47 [file]`, `2025-01-14 [WARNING] [file]`, `a - INFO - b`.
_WORD = re.compile(r"(?:^|[\s\[|(-])(DEBUG|TRACE|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL)(?=[\s\]:|)-]|$)")
_WORD_WITHIN = 160  # characters
# Weights & Biases, which never ends a run; Python's warnings module; libfabric; ROCm's AMD_LOG_LEVEL from 2 (warnings) on.
_OTHER_NOTE = re.compile(r"^wandb: |^(?:\S+:\d+: )?\w*Warning: |^libfabric:.*<(?:warn|info|debug|trace)>|^:[2-9]:\w+\.\w+\s*:")
_TRIED_AGAIN = re.compile(r"\b[Rr]etrying\b|\b[Ww]ill retry\b|\b[Ff]all(?:ing|s)? ?back\b|using internal implementation|continue parsing")
_SOURCE_OF = re.compile(r'^\s*File ".*", line \d+')
# Python reports these errors and goes on.
_IGNORED = re.compile(r"Exception ignored in|Error in atexit\._run_exitfuncs|Error in sys\.excepthook")
# Steps of the program: `step 12 loss 2.4`, `iteration 12/ 500 | lm loss: 2.4`, `{'loss': 0.9, 'epoch': 0.2}`, `step=10, skipped=0`.
_STEP = re.compile(
    r"(?i)\b(?:global.)?(?:step|iteration|iter|epoch)s?\b\W{0,12}\d+.*loss\b|^\W*\{'(?:\w+_)?loss': .*'epoch': |\bstep=\d+, skipped=\d+"
)
# A tqdm bar: `1%|   | 310/28845 [04:10<6:18:45, 1.26it/s]`.
_BAR = re.compile(r"\|\s*(\d+)/(\d+) \[")
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\)")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
# Errors of the program itself, also those with which torch rejects arguments. Neither hardware nor the system raises them.
_PROGRAM_ERROR = re.compile(
    r"^(?:ArithmeticError|AssertionError|AttributeError|IndexError|KeyError|NameError|NotImplementedError|RecursionError|SyntaxError|TypeError"
    r"|UnboundLocalError|ValueError|ZeroDivisionError)\b"
    r"|^RuntimeError: (?:The size of tensor |Sizes of tensors |mat1 and mat2 |Expected all tensors |expected scalar type |stack expects "
    r"|shape '|Given groups=|element \d+ of tensors |one of the variables needed |Trying to backward )"
)


def plain(text: str) -> str:
    """Return the beginning of a line without colours and without what launchers put before it."""
    text = text[:LINE_CHARACTERS]
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    match = _WRAPPER.match(text)
    while match:
        text = text[match.end() :]
        match = _WRAPPER.match(text)
    return text


def severity(text: str) -> str:
    """Return whether a plain line can name a cause: ERROR, NOTE, or NCCL_WARNING (NCCL and RCCL log errors and warnings as WARN)."""
    if _TRIED_AGAIN.search(text):
        return NOTE
    if _EXCEPTION.match(text):
        return ERROR
    letter = _LETTER.match(text)
    if letter:
        return ERROR if next(filter(None, letter.groups())) in "EF" else NOTE
    nccl = _NCCL_LEVEL.search(text)
    word = _WORD.search(text[: nccl.start() if nccl else _WORD_WITHIN])
    if nccl and not word:
        return NCCL_WARNING if nccl[1] == "WARN" else NOTE
    if word:
        return ERROR if word[1] in ("ERROR", "CRITICAL", "FATAL") else NOTE
    return NOTE if _OTHER_NOTE.match(text) else ERROR


def last_progress(texts: Sequence[str]) -> int | None:
    """Return the index of the last plain line that proves that the program went on.

    A bar that does not advance proves nothing: it is printed again when the program ends.
    """
    bars: dict[str, int] = {}
    found: int | None = None
    for index, text in enumerate(texts):
        shown = {total: int(done) for done, total in _BAR.findall(text)}
        advanced = any(done > bars[total] for total, done in shown.items() if total in bars)
        again = any(total in bars for total in shown) and not advanced
        if advanced or (not again and _STEP.search(text) and not _EXCEPTION.match(text)):
            found = index
        bars.update({total: max(done, bars.get(total, done)) for total, done in shown.items()})
    return found


def dead_lines(texts: Sequence[str]) -> frozenset[int]:
    """Return the indexes of plain lines that are source code in a traceback, or an error that Python reports and ignores."""
    found: set[int] = set()
    ignoring = False
    for index, text in enumerate(texts):
        ignoring = ignoring or bool(_IGNORED.search(text))
        if ignoring or (index and text.startswith(" ") and _SOURCE_OF.match(texts[index - 1])):
            found.add(index)
        if ignoring and _EXCEPTION.match(text):
            ignoring = False
    return frozenset(found)


def is_ordinary(text: str) -> bool:
    """Return whether a plain line is neither part of an error nor of a library's report about one."""
    return bool(text.strip()) and not (text[0].isspace() or _LETTER.match(text) or _NCCL_LEVEL.search(text) or text.startswith("wandb: "))


def last_exception(texts: Sequence[str]) -> str:
    """Return the last plain line with an exception of Python; empty if there is none."""
    return next((text for text in reversed(texts) if _EXCEPTION.match(text)), "")


def is_exception(text: str) -> bool:
    """Return whether a plain line is the message of a Python exception."""
    return bool(_EXCEPTION.match(text))


@dataclass(frozen=True)
class Report:
    """The report of the exception that ended the program."""

    start: int = 0  # The index of its first line; 0 if it is not known
    named: bool = True  # Whether the exception names a cause; if not, only the program itself can raise it


def last_report(texts: Sequence[str], named: Collection[int]) -> Report:
    """Return where the report of the exception begins that ended the program.

    That is the last exception that names a cause, or that only the program itself can raise. The program handled exceptions before it: it
    went on until this one. An exception that this one was raised from belongs to the report.

    Args:
        texts: Plain lines.
        named: The indexes of lines that name a cause.
    """
    last = next((index for index in range(len(texts) - 1, -1, -1) if _decisive(texts[index], named=index in named)), None)
    if last is None:
        return Report()
    start = _traceback_above(texts, last, exceptions=0)
    while start is not None:
        above = [index for index in range(max(0, start - 3), start) if texts[index].strip()]
        chained = bool(above) and texts[above[-1]].startswith(_CHAINED)
        earlier = _traceback_above(texts, above[-1], exceptions=1) if chained else None
        if earlier is None:
            return Report(start, last in named)
        start = earlier
    return Report(last, last in named)


def _decisive(text: str, *, named: bool) -> bool:
    return is_exception(text) and (named or bool(_PROGRAM_ERROR.match(text)))


def _traceback_above(texts: Sequence[str], end: int, *, exceptions: int) -> int | None:
    """Return the index of the traceback above a line; None if more than `exceptions` exceptions are in between."""
    for index in range(end - 1, -1, -1):
        if _TRACEBACK.match(texts[index]):
            return index
        if _EXCEPTION.match(texts[index]):
            exceptions -= 1
            if exceptions < 0:
                return None
    return None
