"""What a check makes of the output of a tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.commands import Completed
from primus_bootstrap.launch.checks import tools
from primus_bootstrap.launch.checks.model import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> list[Completed]:
    """The results of the next calls."""
    answers: list[Completed] = []

    def run(_argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str]) -> Completed:
        assert timeout_s > 0
        assert env["LC_ALL"] == "C"
        return answers.pop(0)

    monkeypatch.setattr(tools, "run_command", run)
    return answers


def test_output_is_returned_as_it_is(answer: list[Completed]) -> None:
    """Also with nothing but output required."""
    answer += [Completed(0, "two lines\nof text\n", "")] * 2
    assert tools.run_tool({}, ["tool"]) == "two lines\nof text\n"
    assert tools.run_tool({}, ["tool"], allow_empty=True) == "two lines\nof text\n"


def test_no_output_is_unavailable_unless_allowed(answer: list[Completed]) -> None:
    """White space is no output."""
    answer += [Completed(0, " \n", "")] * 2
    assert tools.run_tool({}, ["tool"], allow_empty=True) == " \n"
    with pytest.raises(UnavailableError, match="tool printed nothing"):
        tools.run_tool({}, ["tool"])


@pytest.mark.parametrize(
    ("done", "reason"),
    [
        (Completed(9, "out", "first\nlast"), "tool failed with exit code 9: last"),
        (Completed(9, "out", ""), "tool failed with exit code 9: out"),
        (Completed(9, "", ""), "tool failed with exit code 9: no output"),
        (Completed(0, "out", "warning"), "tool wrote an error with exit code 0: warning"),
    ],
)
def test_failures_quote_the_last_line(answer: list[Completed], done: Completed, reason: str) -> None:
    """Tools of vendors report errors with exit code 0 too."""
    answer.append(done)
    with pytest.raises(UnavailableError, match=reason) as error:
        tools.run_tool({}, ["tool", "--list"])
    assert "`tool --list`" in str(error.value.fix)
