"""Why a task failed: digs the real cause out of an Ansible result, and the fix that the role itself gives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MESSAGE_CHARS = 2000
_CENSORED = "hidden: the task sets no_log"
_CENSORED_FIX = "look at the task above it, or run the step by hand on the host: a task with no_log tells nothing"

# Words of Ansible that name nothing: what stands in stderr, in the items or in the inner modules says more.
_HOLLOW = re.compile(
    r"^(non-zero return code"
    r"|one or more items failed"
    r"|all items (completed|skipped)"
    r"|module failure"
    r"|module result deserialization failed"
    r"|the following modules failed to execute"
    r"|task failed: module failed"
    r"|see stdout/stderr)",
    re.IGNORECASE,
)
_FIX = re.compile(r"\s*\bFix:\s*", re.IGNORECASE)
_BEFORE_SSH = re.compile(
    r"^(Task failed: )?(Failed to connect to the host via ssh: |"
    r'Data could not be sent to remote host "[^"]*"\. Make sure this host can be reached over ssh: ?)'
)


@dataclass(frozen=True, slots=True)
class Cause:
    """What went wrong, in one or a few lines, and what to do about it; `fix` may be empty."""

    text: str
    fix: str = ""


def cause_of(result: Mapping[str, Any]) -> Cause:
    """Return the innermost cause of a failed or unreachable result, with the role's own fix where it gives one."""
    if result.get("censored") or result.get("_ansible_no_log"):
        return Cause(_CENSORED, _CENSORED_FIX)
    found = [text for text in _texts(result) if text]
    text = next((item for item in found if not _HOLLOW.match(item)), found[0] if found else "the task failed and said nothing")
    return _split(_without_frame(text))


def _split(text: str) -> Cause:
    """Take causes and fixes apart; a role that found several things wrong says each on a line of its own, with its fix."""
    lines = text.splitlines() if len(_FIX.findall(text)) > 1 else [text]
    parts = [_FIX.split(line, maxsplit=1) for line in lines]
    fixes = [fix.rstrip(".") if len(lines) > 1 else fix for _, *rest in parts for fix in rest]
    return Cause(_shorten("\n".join(what for what, *_ in parts)), _shorten("; ".join(dict.fromkeys(fixes))))


def _texts(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield candidate causes, the most telling first."""
    for inner in (result.get("failed_modules") or {}).values():
        if isinstance(inner, dict):
            yield from _texts(inner)
    for item in result.get("results") or ():
        if isinstance(item, dict) and (item.get("failed") or item.get("unreachable")):
            yield from _item_texts(item)
    message = _clean(result.get("msg"))
    if not _HOLLOW.match(message):
        yield message
    for key in ("module_stderr", "stderr", "module_stdout", "stdout"):
        yield _last_lines(_clean(result.get(key)))
    yield _last_lines(_exception(result.get("exception")))
    rc = result.get("rc")
    yield message if rc is None or not message else f"{message} (exit code {rc})"


def _item_texts(item: Mapping[str, Any]) -> Iterator[str]:
    """Yield the causes of one turn of a loop, with the item's label before them where they do not begin with it."""
    label = item.get("_ansible_item_label", item.get("item", ""))
    for text in _texts(item):
        yield f"{label}: {text}" if text and label and isinstance(label, str) and not text.startswith(label) else text


def _exception(value: Any) -> str:
    return value if isinstance(value, str) and value != "(traceback unavailable)" else ""


def _clean(value: Any) -> str:
    text = "\n".join(str(item) for item in value) if isinstance(value, list) else str(value or "")
    return text.replace("\r", "").strip()


def _last_lines(text: str) -> str:
    """Return the part of an output that names the error: of a traceback the last line, else the last few lines."""
    lines = [line for line in text.splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        return lines[-1].strip()
    return "\n".join(lines[-5:])


def _without_frame(text: str) -> str:
    """Drop what Ansible puts before ssh's own words, and ssh's frame of @ signs."""
    lines = [line for line in _BEFORE_SSH.sub("", text).splitlines() if line.strip("@ ")]
    said = "\n".join(line.strip("@ ") if line.startswith("@") else line for line in lines).strip()
    return said or "the connection broke in the middle of the task"


def _shorten(text: str) -> str:
    text = text.strip()
    return text if len(text) <= MESSAGE_CHARS else f"{text[: MESSAGE_CHARS - 1]}…"
