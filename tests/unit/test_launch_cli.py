"""primus_bootstrap.launch.commandline.main: the verbs of primus-cli, their help, and suggestions for unknown words."""

from __future__ import annotations

import re

import pytest

from primus_bootstrap.launch.commandline import main
from primus_bootstrap.launch.tasks import all_tasks

VERBS = (
    "analyze",
    "backend",
    "config",
    "diagnose",
    "env",
    "host-env",
    "preflight",
    "snapshot",
    "tasks",
    "verify-env",
    "estimate",
    "recipe",
)


def run(*words: str) -> int:
    """Run primus-cli in this process; return its exit code."""
    try:
        return main.main(words)
    except SystemExit as end:  # argparse
        return int(end.code or 0)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("words", ["{} --help", "{} -h", "--help {}"])
def test_each_verb_has_its_own_help(verb: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help is printed on stdout and names the verb; nothing runs."""
    code = run(*words.format(verb).split())
    output = capsys.readouterr()

    assert (code, output.err) == (0, "")
    assert re.match(rf"(usage: )?primus-cli {verb}\b", output.out)


def test_the_general_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    """Users find the verbs there."""
    run("--help")
    text = capsys.readouterr().out

    assert [verb for verb in VERBS if f"primus-cli {verb}" not in text] == []


@pytest.mark.parametrize("word", ["verifyenv", "host-nv", "prefligt", "confg", "diagnos", "snapsot", "tsks", "envv", "nothing-like-it"])
def test_an_unknown_word_gets_only_existing_verbs_as_suggestions(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every suggested name is a verb and differs from the unknown word."""
    code = run(word)
    fix = capsys.readouterr().err.partition("fix: ")[2]
    offered = re.findall(r"[a-z]+(?:-[a-z]+)?", fix.removeprefix("did you mean").removeprefix("choose from"))

    assert code == 2
    assert offered
    assert set(offered) <= {*VERBS, "direct", "container", "slurm"} - {word}


@pytest.mark.parametrize("verb", VERBS)
def test_no_existing_verb_is_unknown(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every suggested verb runs; `verify-env; did you mean verify-env?` was an error of the installed program."""
    code = run(verb, "--no-such-option")
    text = capsys.readouterr().err

    assert code == 2
    assert "unknown runtime or verb" not in text


@pytest.mark.parametrize("task", sorted(all_tasks()))
@pytest.mark.parametrize("runtime", ["direct", "container", "slurm srun -N 1"])
def test_each_task_prints_its_help_through_each_runtime(runtime: str, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help needs no image, no srun and no argument of the task."""
    code = run(*f"{runtime} -- {task} --help".split())
    output = capsys.readouterr()

    assert (code, output.err) == (0, "")
    assert re.match(r"(usage: )?primus-cli ", output.out)
    assert task in output.out


@pytest.mark.parametrize("runtime", ["direct", "container"])
def test_the_help_of_a_runtime_lists_each_flag_once(runtime: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The runtime container accepts the flags of direct, and --python exists in both."""
    run(runtime, "--help")
    flags = [word for line in capsys.readouterr().out.splitlines() if line.startswith("  --") for word in line.split() if word[:2] == "--"]

    assert "--python" in flags
    assert len(flags) == len(set(flags))
