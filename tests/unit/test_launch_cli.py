"""primus_bootstrap.launch.commandline.main: the verbs of primus-cli, their help, and what is suggested for a word that is none."""

from __future__ import annotations

import re

import pytest

from primus_bootstrap.launch.commandline import main

VERBS = ("config", "diagnose", "env", "host-env", "preflight", "snapshot", "tasks", "verify-env")


def run(*words: str) -> int:
    """Run primus-cli in this process; return its exit code."""
    try:
        return main.main(words)
    except SystemExit as end:  # argparse
        return int(end.code or 0)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("words", ["{} --help", "{} -h", "--help {}"])
def test_help_of_a_verb_is_that_verbs_own(verb: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It goes to stdout, names the verb, and nothing is run."""
    code = run(*words.format(verb).split())
    said = capsys.readouterr()

    assert (code, said.err) == (0, "")
    assert re.match(rf"(usage: )?primus-cli {verb}\b", said.out)


def test_the_general_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    """A verb that is not named there is found by nobody."""
    run("--help")
    text = capsys.readouterr().out

    assert [verb for verb in VERBS if f"primus-cli {verb}" not in text] == []


@pytest.mark.parametrize("word", ["verifyenv", "host-nv", "prefligt", "confg", "diagnos", "snapsot", "tsks", "envv", "nothing-like-it"])
def test_a_word_that_is_no_verb_gets_only_verbs_that_exist(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every name in the fix can be typed, and is not the refused word itself."""
    code = run(word)
    fix = capsys.readouterr().err.partition("fix: ")[2]
    offered = re.findall(r"[a-z]+(?:-[a-z]+)?", fix.removeprefix("did you mean").removeprefix("choose from"))

    assert code == 2
    assert offered
    assert set(offered) <= {*VERBS, "direct", "container", "slurm"} - {word}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_that_exists_is_refused_as_unknown(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`verify-env; did you mean verify-env?` was the answer of the installed program: what is suggested, it runs."""
    code = run(verb, "--no-such-option") if verb != "tasks" else 2
    text = capsys.readouterr().err

    assert code == 2
    assert "unknown runtime or verb" not in text
