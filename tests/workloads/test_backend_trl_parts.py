"""workloads.backends.trl without TRL: data files, rewards and the file of a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from workloads.backends.trl import data, rewards
from workloads.backends.trl.job import Job, read_job
from workloads.common.errors import DataError, SettingsError

if TYPE_CHECKING:
    from pathlib import Path

_ANSWERED = "<think>two and two</think>\n<answer> 4 </answer>"


def _file(folder: Path, *rows: Any) -> str:
    path = folder / "data.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(path)


def test_examples_have_the_columns_of_sft(tmp_path: Path) -> None:
    """`response` is the name of the native trainer; other columns are left out."""
    file = _file(tmp_path, {"prompt": "a", "response": "b", "id": 1}, "", {"prompt": "c", "completion": "d"})
    assert data.read_examples([file], prompts_only=False) == [{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}]
    assert not data.has_dialogues([{"prompt": "a", "completion": "b"}])


def test_prompts_keep_the_columns_for_the_rewards(tmp_path: Path) -> None:
    """GRPO's model writes the completions."""
    assert data.read_examples([_file(tmp_path, {"prompt": "a", "answer": "b"})], prompts_only=True) == [{"prompt": "a", "answer": "b"}]


def test_messages_are_kept(tmp_path: Path) -> None:
    """They need a chat template."""
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    found = data.read_examples([_file(tmp_path, {"messages": talk})], prompts_only=False)
    assert found == [{"messages": talk}]
    assert data.has_dialogues(found)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (({"prompt": "a"},), ":1: unknown form"),
        (({"prompt": "a", "completion": "b"}, {"text": "c"}), ":2: unknown form"),
        (({"messages": [{"role": "user"}]},), ":1: unknown form"),
        (("{",), ":1: not JSON"),
        (({"prompt": "a", "completion": "b"}, {"messages": [{"role": "user", "content": "c"}]}), ":2: the columns ['messages'] are not"),
        ((), "no examples"),
    ],
)
def test_wrong_data_is_an_error_with_the_line(rows: tuple[Any, ...], what: str, tmp_path: Path) -> None:
    """Exit code 66."""
    with pytest.raises(DataError) as raised:
        data.read_examples([_file(tmp_path, *rows)], prompts_only=False)
    assert what in raised.value.what


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """A traceback would hide the path."""
    with pytest.raises(DataError, match="cannot be read"):
        data.read_examples([str(tmp_path / "none.jsonl")], prompts_only=False)


def test_built_in_rewards() -> None:
    """Completions are texts, or lists of messages."""
    exact, form, length = rewards.reward_functions(["exact_match", "format", "length:10"])
    assert exact(completions=[_ANSWERED, "4", "5"], answer=["4", 4, "4"]) == [1.0, 1.0, 0.0]
    assert form(completions=[_ANSWERED, "4", _ANSWERED + "x"]) == [1.0, 0.0, 0.0]
    assert length(completions=["", "12345", "1234567890", "x" * 15, "x" * 30]) == [0.0, 0.5, 1.0, 0.5, 0.0]
    assert exact(completions=[[{"role": "assistant", "content": "4"}]], answer=["4"]) == [1.0]
    assert [function.__name__ for function in (exact, form, length)] == ["exact_match", "format", "length"]
    with pytest.raises(DataError, match="needs the column answer"):
        exact(completions=["4"], prompts=["2+2="])


def test_a_reward_of_the_user(tmp_path: Path) -> None:
    """It gets the columns by name."""
    file = tmp_path / "mine.py"
    file.write_text(
        "def score(completions, level, **columns):\n    return [float(len(text) * by) for text, by in zip(completions, level)]\n"
    )
    (own,) = rewards.reward_functions([f"{file}:score"])
    assert own(completions=["ab", "c"], level=[2, 3], prompts=["", ""]) == [4.0, 3.0]
    for name, what in (
        (f"{file}:other", "has no function other"),
        (f"{tmp_path / 'none.py'}:score", "No such file"),
        ("nice", "no such reward"),
    ):
        with pytest.raises(SettingsError) as raised:
            rewards.reward_functions([name])
        assert what in raised.value.what


def test_a_job_of_another_version_is_refused(tmp_path: Path) -> None:
    """The message says how the file is written."""
    path = tmp_path / "trl.json"
    path.write_text(json.dumps({"method": "sft"}))
    with pytest.raises(SettingsError, match="not the file of a run"):
        read_job(path)
    content = dict.fromkeys(Job.__dataclass_fields__, "")
    path.write_text(json.dumps({**content, "method": "grpo"}))
    assert read_job(path).method == "grpo"
