"""Reward functions of GRPO: built-in ones, and functions in Python files of the user.

TRL calls them with `completions` and the columns of the data as keyword arguments; they return a number per completion.
"""

from __future__ import annotations

import re
import runpy
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from workloads.common.errors import DataError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Reward = Callable[..., list[float]]

_FORMAT = re.compile(r"\s*<think>.*?</think>\s*<answer>.*?</answer>\s*", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def text_of(completion: Any) -> str:
    """Return the text of a completion, which TRL gives as a text or as a list of messages."""
    return completion if isinstance(completion, str) else "".join(str(message["content"]) for message in completion)


def exact_match(completions: Sequence[Any], **columns: Any) -> list[float]:
    """Return 1.0 for each completion that equals the column `answer`, else 0.0; only the part in <answer> counts, if there is one.

    Raises:
        DataError: The data has no column `answer`.
    """
    if "answer" not in columns:
        raise DataError("the reward exact_match needs the column answer", fix='add "answer" to each line of data.files')
    return [float(_answer(text_of(done)) == str(wanted).strip()) for done, wanted in zip(completions, columns["answer"], strict=True)]


def _answer(text: str) -> str:
    found = _ANSWER.search(text)
    return (found[1] if found else text).strip()


def format_reward(completions: Sequence[Any], **_columns: Any) -> list[float]:
    """Return 1.0 for each completion of the form <think>...</think><answer>...</answer>, else 0.0."""
    return [float(_FORMAT.fullmatch(text_of(done)) is not None) for done in completions]


def length_reward(wanted: int, completions: Sequence[Any], **_columns: Any) -> list[float]:
    """Return 1.0 for a completion of `wanted` characters; it falls linearly to 0.0 for an empty one and for twice the length."""
    return [max(0.0, 1.0 - abs(len(text_of(done)) - wanted) / wanted) for done in completions]


def reward_functions(names: Sequence[str]) -> list[Reward]:
    """Return the functions of exact_match, format, length:N and FILE.py:FUNCTION.

    Raises:
        SettingsError: There is no such function.
    """
    return [_function(name) for name in names]


def _function(name: str) -> Reward:
    if ".py:" in name:
        return _own_function(name)
    kind, _, number = name.partition(":")
    if kind == "length" and number.isdecimal() and int(number):
        return _named(partial(length_reward, int(number)), "length")
    found: dict[str, Reward] = {"exact_match": exact_match, "format": format_reward}
    if name not in found:
        raise SettingsError(f"rewards: {name}: no such reward", fix="use exact_match, format, length:N or FILE.py:FUNCTION")
    return _named(found[name], name)


def _own_function(name: str) -> Reward:
    file, _, function = name.rpartition(":")
    try:
        found = runpy.run_path(file).get(function)
    except OSError as error:
        raise SettingsError(f"rewards: {file}: {error.strerror}", fix="correct the path in rewards") from error
    if not callable(found):
        raise SettingsError(f"rewards: {file} has no function {function}", fix=f"define {function}(completions, **columns) in it")
    return _named(found, function)


def _named(function: Reward, name: str) -> Reward:
    """Return the function with a name, by which TRL logs it."""

    @wraps(function, assigned=(), updated=())
    def call(completions: Sequence[Any], **columns: Any) -> list[float]:
        return function(completions=completions, **columns)

    call.__name__ = name
    return call
