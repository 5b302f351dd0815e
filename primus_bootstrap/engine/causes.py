"""Finds the cause of a failed task in Ansible's result, and the fix if the role's message contains one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MESSAGE_CHARS = 2000
_CENSORED = "hidden: the task sets no_log"
_CENSORED_FIX = "read the results of the tasks before it, or run the step by hand on the host"

# Messages of Ansible without a cause. The cause is in stderr, in the loop items or in the inner modules.
_NO_CAUSE = re.compile(
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
    """What went wrong and what to do about it; `fix` may be empty."""

    text: str
    fix: str = ""


def cause_of(result: Mapping[str, Any]) -> Cause:
    """Return the innermost cause of a failed or unreachable result, with the fix from the role's message."""
    if result.get("censored") or result.get("_ansible_no_log"):
        return Cause(_CENSORED, _CENSORED_FIX)
    texts = [text for text in _texts(result) if text]
    text = next((text for text in texts if not _NO_CAUSE.match(text)), texts[0] if texts else "the task failed without a message")
    return _split(_without_frame(text))


def _split(text: str) -> Cause:
    """Separate causes and fixes; a message with several problems has one problem and its fix per line."""
    lines = text.splitlines() if len(_FIX.findall(text)) > 1 else [text]
    parts = [_FIX.split(line, maxsplit=1) for line in lines]
    fixes = [fix.rstrip(".") if len(lines) > 1 else fix for _, *rest in parts for fix in rest]
    return Cause(_shorten("\n".join(what for what, *_ in parts)), _shorten("; ".join(dict.fromkeys(fixes))))


def _texts(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield possible causes, the most specific one first."""
    for inner in (result.get("failed_modules") or {}).values():
        if isinstance(inner, dict):
            yield from _texts(inner)
    for item in result.get("results") or ():
        if isinstance(item, dict) and (item.get("failed") or item.get("unreachable")):
            yield from _item_texts(item)
    message = _clean(result.get("msg"))
    if not _NO_CAUSE.match(message):
        yield message
    for key in ("module_stderr", "stderr", "module_stdout", "stdout"):
        yield _last_lines(_clean(result.get(key)))
    yield _last_lines(_exception(result.get("exception")))
    rc = result.get("rc")
    yield message if rc is None or not message else f"{message} (exit code {rc})"


def _item_texts(item: Mapping[str, Any]) -> Iterator[str]:
    """Yield the causes of one loop item, each starting with the label of the item."""
    label = item.get("_ansible_item_label", item.get("item", ""))
    for text in _texts(item):
        yield f"{label}: {text}" if text and label and isinstance(label, str) and not text.startswith(label) else text


def _exception(value: Any) -> str:
    return value if isinstance(value, str) and value != "(traceback unavailable)" else ""


def _clean(value: Any) -> str:
    text = "\n".join(str(item) for item in value) if isinstance(value, list) else str(value or "")
    return text.replace("\r", "").strip()


def _last_lines(text: str) -> str:
    """Return the last line of a traceback, or the last five lines of any other output."""
    lines = [line for line in text.splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        return lines[-1].strip()
    return "\n".join(lines[-5:])


def _without_frame(text: str) -> str:
    """Remove Ansible's introduction from ssh's error message, and ssh's frame of @ signs."""
    lines = [line for line in _BEFORE_SSH.sub("", text).splitlines() if line.strip("@ ")]
    message = "\n".join(line.strip("@ ") if line.startswith("@") else line for line in lines).strip()
    return message or "the connection broke during the task"


def _shorten(text: str) -> str:
    text = text.strip()
    return text if len(text) <= MESSAGE_CHARS else f"{text[: MESSAGE_CHARS - 1]}…"
