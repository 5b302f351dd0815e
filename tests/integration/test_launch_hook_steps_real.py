"""primus_bootstrap.launch.hooks.steps: the changes, the end and the output of hooks and patches."""

from __future__ import annotations

import json
import os
import signal
import time
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.child_processes import StopSignals, descendants
from primus_bootstrap.core.errors import StepError
from primus_bootstrap.launch.hooks.steps import StepResult, StepRunner, check
from primus_bootstrap.launch.run_plan import PlannedStep
from tests.integration.launch_cli_rig import User

if TYPE_CHECKING:
    from pathlib import Path


class Rig:
    """A run folder and a runner of steps in it."""

    def __init__(self, folder: Path, *, timeout_s: float = 30, signals: StopSignals | None = None) -> None:
        """Make the folder."""
        self.folder = folder
        (folder / "logs").mkdir(exist_ok=True)
        self.shown: list[str] = []
        self.runner = StepRunner(folder, 0, "python3", ("train", "pretrain", "x=1"), timeout_s, self.shown.append, signals or StopSignals())

    def step(self, name: str, text: str, phase: str = "before", **environment: str) -> StepResult:
        """Write a hook and run it."""
        path = self.folder / name
        path.write_text(text)
        return self.runner.run(PlannedStep(phase, str(path), "project"), {"PATH": os.environ["PATH"], **environment})


def test_a_shell_hook_changes_variables_and_arguments(tmp_path: Path) -> None:
    """Only complete lines of the format count; all output is shown and logged."""
    rig = Rig(tmp_path)
    text = 'echo "env.A=1 2=3"\necho "extra.optimizer.lr=3e-4"\necho "see env.B=2"\necho "$PRIMUS_PHASE $1 $3" >&2\n'
    result = rig.step("10_a.sh", text)
    check(result)

    assert (result.variables, result.extras, result.outcome) == ({"A": "1 2=3"}, {"optimizer.lr": "3e-4"}, "done")
    assert "[before-10_a] before train x=1" in rig.shown
    assert (tmp_path / "logs/step-0-before-10_a.log").read_text().splitlines()[2] == "see env.B=2"


def test_a_python_hook_gets_the_plan_and_returns_its_changes(tmp_path: Path) -> None:
    """hook(plan) takes and returns plain data; it can import a module in its folder."""
    (tmp_path / "plan.json").write_text(json.dumps({"topology": {"nnodes": 4}}))
    (tmp_path / "site_rules.py").write_text("FACTOR = 2\n")
    changes = "{'env': {'N': plan['topology']['nnodes'] * FACTOR}, 'extra': {'a.b': 1}}"
    text = f"from site_rules import FACTOR\n\ndef hook(plan):\n    return {changes}\n"
    result = Rig(tmp_path).step("10_a.py", text, PRIMUS_PLAN=str(tmp_path / "plan.json"))

    assert (result.variables, result.extras, result.code) == ({"N": "8"}, {"a.b": "1"}, 0)


def test_a_python_script_without_the_function_is_run(tmp_path: Path) -> None:
    """It prints its changes like a shell hook, and gets the task's words."""
    result = Rig(tmp_path).step("10_a.py", "import sys\nprint('env.W=' + '-'.join(sys.argv[1:]))\nsys.exit(0)\n")

    assert result.variables == {"W": "train-pretrain-x=1"}


def test_unknown_keys_of_a_hook_are_an_error(tmp_path: Path) -> None:
    """A misspelt key must not be lost."""
    (tmp_path / "plan.json").write_text("{}")
    result = Rig(tmp_path).step("10_a.py", "def hook(plan):\n    return {'enw': {}}\n", PRIMUS_PLAN=str(tmp_path / "plan.json"))
    with pytest.raises(StepError, match="return only the keys env and extra"):
        check(result)


@pytest.mark.parametrize(("code", "outcome"), [(0, "applied"), (2, "skipped"), (1, "failed"), (3, "failed")])
def test_a_patch_is_applied_skipped_or_stops_the_run(tmp_path: Path, code: int, outcome: str) -> None:
    """0 is applied, 2 is skipped; another code stops the run with the patch's last lines."""
    result = Rig(tmp_path).step("fix.sh", f"echo why\nexit {code}\n", phase="patch")

    assert result.outcome == outcome
    if outcome == "failed":
        with pytest.raises(StepError, match=f"exit code {code}\n  . why"):
            check(result)
    else:
        check(result)


def test_exit_code_2_of_a_hook_is_a_failure(tmp_path: Path) -> None:
    """Only patches can be skipped."""
    with pytest.raises(StepError, match="exit code 2"):
        check(Rig(tmp_path).step("10_a.sh", "exit 2\n"))


def test_a_hook_that_exceeds_its_time_limit_is_killed_with_its_children(tmp_path: Path) -> None:
    """Also if it ignores SIGTERM."""
    started = time.monotonic()
    rig = Rig(tmp_path, timeout_s=3)
    with pytest.raises(StepError, match="timed out") as raised:
        check(rig.step("10_a.sh", "trap '' TERM\nsleep 60 &\necho waiting\nsleep 60\n"))

    assert "waiting" in str(raised.value)
    assert "--hook-timeout-s" in raised.value.fix
    assert time.monotonic() - started < 10
    assert descendants(os.getpid()) == ()


def test_a_signal_ends_a_hook(tmp_path: Path) -> None:
    """SIGTERM does not wait for the hook."""
    signals = StopSignals()
    with signals:
        os.kill(os.getpid(), signal.SIGTERM)
        result = Rig(tmp_path, signals=signals).step("10_a.sh", "sleep 60\n")

    assert result.outcome == "stopped"


def test_secrets_of_a_hook_are_set_and_masked(tmp_path: Path) -> None:
    """A hook may fetch a token; it is neither shown nor written."""
    rig = Rig(tmp_path)
    result = rig.step("10_a.sh", 'echo "env.HF_TOKEN=topsecret1"\necho "old $OLD_TOKEN and topsecret1"\n', OLD_TOKEN="oldsecret1")
    everything = "".join(path.read_text() for path in (tmp_path / "logs").iterdir()) + "\n".join(rig.shown)

    assert result.variables == {"HF_TOKEN": "topsecret1"}
    assert "secret1" not in everything
    assert "env.HF_TOKEN=***" in everything


def test_an_invalid_variable_name_is_an_error(tmp_path: Path) -> None:
    """env.a.b=c is a typing error for extra.a.b=c."""
    with pytest.raises(StepError, match=r"'a\.b' is not a valid variable name"):
        check(Rig(tmp_path).step("10_a.sh", "echo env.a.b=c\n"))


def test_a_value_with_a_line_break_is_an_error(tmp_path: Path) -> None:
    """Only the first line would be set."""
    user = User(tmp_path)
    user.program("hooks/10_two.py", "def hook(plan):\n    return {'env': {'CERT': 'a\\nb'}}\n")
    done = user.run(user.program("p.py", "print('started')\n"))

    assert (done.returncode, "started" in done.stdout) == (4, False), done.stdout
    assert "hook() returned env.CERT with a line break" in done.stdout


def test_only_the_end_of_a_hooks_output_is_kept_in_memory(tmp_path: Path) -> None:
    """The log has 60 MB, including a line without end; changes before and after it count."""
    rig = Rig(tmp_path, timeout_s=120)
    rig.runner = replace(rig.runner, show=lambda _line: None)
    text = (
        "import sys\n"
        "print('env.FIRST=1')\n"
        "for number in range(20000): print(number, 'x' * 400)\n"
        "sys.stdout.write('y' * (1 << 23) + 'env.NONE=1\\n')\n"
        "print('env.LAST=2')\n"
    )
    tracemalloc.start()
    result = rig.step("10_a.py", text)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    log = tmp_path / "logs/step-0-before-10_a.log"

    assert result.variables == {"FIRST": "1", "LAST": "2"}
    assert log.stat().st_size > 16_000_000
    assert peak_bytes < 6_000_000
    assert (len(result.last_lines), result.last_lines[-1]) == (10, "env.LAST=2")
    assert max(map(len, result.last_lines)) <= 2000
