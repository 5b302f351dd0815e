"""Data sets of post-training: local JSONL files whose lines are checked before the model is loaded.

A line has `prompt` and `completion` (or `response`), both texts or both lists of messages, or it has `messages`. GRPO needs `prompt` only;
all other columns of a line are passed to the reward functions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.common.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FORM = 'write lines such as {"prompt": "2+2=", "completion": "4"} or {"messages": [{"role": "user", "content": "2+2="}, ...]}'
_PROMPTS = 'write lines such as {"prompt": "2+2=", "answer": "4"}'


def read_examples(files: Iterable[str], *, prompts_only: bool) -> list[dict[str, Any]]:
    """Return the examples of the files; `prompts_only` for GRPO, whose model writes the completions.

    Raises:
        DataError: A file cannot be read, a line has another form, lines have different columns, or there is none.
    """
    names = list(files)
    found = [row for name in names for row in _read(Path(name), prompts_only=prompts_only)]
    if not found:
        raise DataError(f"{', '.join(names)}: no examples", fix=_PROMPTS if prompts_only else _FORM)
    return found


def _read(path: Path, *, prompts_only: bool) -> Iterator[dict[str, Any]]:
    columns: set[str] = set()
    for number, text in _lines(path):
        try:
            row = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path}:{number}: not JSON: {error}", fix="write one JSON object per line") from error
        example = _prompt(row) if prompts_only else _example(row)
        if example is None:
            raise DataError(f"{path}:{number}: unknown form", fix=_PROMPTS if prompts_only else _FORM)
        columns = columns or set(example)
        if set(example) != columns:
            what = f"{path}:{number}: the columns {sorted(example)} are not those of the first line, {sorted(columns)}"
            raise DataError(what, fix="write the same columns in every line")
        yield example


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}", fix="correct data.files, or mount the storage") from error


def _example(row: Any) -> dict[str, Any] | None:
    """Return the columns that SFT uses; None if the line has another form."""
    if not isinstance(row, dict):
        return None
    if "messages" in row:
        return {"messages": row["messages"]} if _is_dialogue(row["messages"]) else None
    prompt, completion = row.get("prompt"), row.get("completion", row.get("response"))
    texts = isinstance(prompt, str) and isinstance(completion, str)
    return {"prompt": prompt, "completion": completion} if texts or (_is_dialogue(prompt) and _is_dialogue(completion)) else None


def _prompt(row: Any) -> dict[str, Any] | None:
    """Return all columns of a line with a prompt; None if the line has another form."""
    if not isinstance(row, dict) or not (isinstance(row.get("prompt"), str) or _is_dialogue(row.get("prompt"))):
        return None
    return dict(row)


def _is_dialogue(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) and {"role", "content"} <= set(item) for item in value)


def has_dialogues(examples: list[dict[str, Any]]) -> bool:
    """Return whether the examples are lists of messages, which need the chat template of a tokenizer."""
    return "messages" in examples[0] or isinstance(examples[0].get("prompt"), list)
