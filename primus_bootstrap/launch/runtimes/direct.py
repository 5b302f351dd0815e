"""Running a plan on this host: hooks, patches, snapshot, the program with its ranks, the exit code, and what went wrong."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from primus_bootstrap.core import child_processes
from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.child_processes import children_of
from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.errors import PlanError, StepError
from primus_bootstrap.launch import masking
from primus_bootstrap.launch.detect import host_profile
from primus_bootstrap.launch.diagnose import diagnosis
from primus_bootstrap.launch.hooks.discovery import AFTER, BEFORE, ON_FAILURE, unpack_built_in
from primus_bootstrap.launch.hooks.steps import StepRunner, require
from primus_bootstrap.launch.ranks import follow, rank_log, torch_variables
from primus_bootstrap.launch.runtimes import direct_plan
from primus_bootstrap.launch.runtimes.direct_plan import launch_prefix, plan_path
from primus_bootstrap.launch.runtimes.run_folder import make_run_folder, preparing, write_step
from primus_bootstrap.launch.runtimes.run_plan import HOOK, PATCH
from primus_bootstrap.launch.runtimes.self_exec import unpack_workloads
from primus_bootstrap.launch.snapshot import replay, run_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from primus_bootstrap.launch.commandline.parser import CommandLine
    from primus_bootstrap.launch.hooks.steps import StepResult
    from primus_bootstrap.launch.runtimes.direct_plan import LaunchRequest
    from primus_bootstrap.launch.runtimes.run_plan import Plan
    from primus_bootstrap.launch.tasks import Task

UNFINISHED = 75  # sysexits.h EX_TEMPFAIL: stopped early with a good checkpoint
_SKIP, _MODE = "PRIMUS_SKIP_MAIN_LAUNCH", "RUN_MODE"
_ORPHANS_S = 5.0
_NOTED_LINES = 40
_TORCH_TIMEOUT_S = 60


@dataclass(frozen=True)
class RunOptions:
    """What the settings say of the run itself."""

    grace_s: int
    hook_timeout_s: int
    silent: bool
    log_file: str
    torchrun_args: tuple[str, ...]


def _log_path(wanted: str, plan: Plan) -> Path:
    """Return where the terminal is copied to; nodes that share a file system do not share the file."""
    rank = plan.topology.node_rank
    if not wanted:
        return Path(plan.run_dir) / "logs" / f"launcher-{rank:05d}.log"
    return Path(plan.cwd) / (f"{wanted}.{rank}" if plan.topology.nnodes > 1 else wanted)


def _wishes(asked: LaunchRequest) -> RunOptions:
    settings = asked.settings
    return RunOptions(
        settings["direct.grace"],
        settings["direct.hook_timeout_s"],
        settings["direct.silent"],
        settings["direct.log_file"],
        tuple(settings["direct.torchrun_arg"]),
    )


class _Terminal:
    """The terminal and its copy in a file; lines of several threads do not mix. A terminal that is gone or a full disk ends no run.

    The copy is not buffered: what a full disk does not take would fail once more when the file is closed, and hide the run's exit code.
    """

    def __init__(self, copy: IO[bytes], *, silent: bool) -> None:
        self._copy, self._silent = copy, silent
        self._lock = threading.Lock()
        self._noted: deque[str] = deque(maxlen=_NOTED_LINES)

    def note(self, line: str) -> None:
        """Keep a line for the file, and for the terminal should it be the only explanation."""
        self._noted.append(line)
        self._put(line, on_terminal=False)

    def say_noted(self) -> None:
        """Show the last lines that were only noted."""
        for line in self._noted:
            with self._lock, suppress(OSError):
                sys.stdout.write(line + "\n")

    def show(self, line: str) -> None:
        """Show a line of a program: not on a silent terminal."""
        self._put(line, on_terminal=not self._silent)

    def say(self, text: str) -> None:
        """Say something of our own."""
        for line in text.splitlines():
            self._put(line, on_terminal=True)

    def _put(self, line: str, *, on_terminal: bool) -> None:
        with self._lock:
            if on_terminal:
                with suppress(OSError):
                    sys.stdout.write(line + "\n")
                    sys.stdout.flush()
            with suppress(OSError):
                self._copy.write(f"{line}\n".encode("utf-8", "replace"))


def make_plan(_line: CommandLine, asked: LaunchRequest) -> Plan:
    """Plan a run on this host."""
    return direct_plan.make_plan(asked)


def run(plan: Plan, asked: LaunchRequest) -> int:
    """Run a plan to its end; return the exit code that the launcher ends with.

    Raises:
        PrimusError: A hook or patch stopped it, or this host cannot run it.
    """
    task, arguments = direct_plan.chosen_task(asked)
    if task.run:
        return task.run(arguments)
    wishes = _wishes(asked)
    run_dir = Path(plan.run_dir)
    make_run_folder(run_dir)
    if asked.settings["direct.nodes_from"] == "slurm" and plan.topology.node_rank == 0:
        with preparing(run_dir):
            write_step(run_dir, asked.environment)
    started = time.time()
    with _open_log(_log_path(wishes.log_file, plan)) as copy, child_processes.StopSignals() as signals:
        child_processes.become_subreaper()
        terminal = _Terminal(copy, silent=wishes.silent)
        runner = StepRunner(run_dir, plan.topology.node_rank, plan.python, plan.words, wishes.hook_timeout_s, terminal.show, signals)
        launch = _Launch(plan, task, wishes, terminal, signals, runner, asked.settings["direct.workloads"])
        try:
            with preparing(run_dir):
                plan = launch.prepare()
            if plan.full_environment().get(_SKIP, "0") not in ("", "0"):
                terminal.say(f"{_SKIP} is set: the program is not started")
                return 0
            if signals.first is not None:
                terminal.say(f"{signals.first.name} came before the program was started: nothing was done, the same command starts it")
                launch.finish(plan, 128 + signals.first)
                return 128 + signals.first
            code = launch.execute(plan)
        except StepError as error:
            terminal.say(str(error))
            code = 128 + signals.first if signals.first else error.exit_code
            launch.finish(plan, code)
            return code
        finally:
            child_processes.end_descendants(_ORPHANS_S)
        _explain(plan, code, started, launch)
        launch.finish(plan, code)
        return code


@dataclass(frozen=True)
class _Launch:
    """One run on one node."""

    plan: Plan
    task: Task
    wishes: RunOptions
    terminal: _Terminal
    signals: child_processes.StopSignals
    runner: StepRunner
    workloads: str

    def prepare(self) -> Plan:
        """Run what comes before the program; return the plan with its changes."""
        plan = self.plan
        unpack_built_in(Path(plan.run_dir))
        if not self.workloads:
            unpack_workloads(plan.full_environment())
        write_plan(plan)
        for step in (*(hook for hook in plan.hooks if hook.phase == BEFORE), *plan.patches):
            result = self.runner.run(step, plan.full_environment())
            require(result)
            plan = self._changed(plan, result)
            write_plan(plan)
        if self.task.launcher == "torchrun" and not plan.topology.single:
            found = host_profile.host_profile(Path("/"))
            plan = torch_variables.with_names_of(plan, _require_torch(plan), {entry.variable: entry.value for entry in found.entries})
            write_plan(plan)
        run_snapshot.take(plan, Path(plan.run_dir))
        folder = plan.inherited.get("PRIMUS_REPLAY")
        if folder:
            for line in replay.check(Path(folder), plan, strict=plan.inherited.get("PRIMUS_REPLAY_STRICT") == "1"):
                self.terminal.say(line)
        return plan

    def _changed(self, plan: Plan, result: StepResult) -> Plan:
        """Apply what a hook or patch printed."""
        kind = PATCH if result.phase == "patch" else HOOK
        plan = plan.with_variables(result.variables, f"{kind} {Path(result.path).name}")
        extras = tuple(word for name, value in result.extras.items() for word in self.task.added(name, value))
        plan = replace(plan, program_arguments=(*plan.program_arguments, *extras))
        if result.variables.get(_MODE) == "single" and not plan.topology.single:
            shape = replace(plan.topology, single=True, nproc=1)
            plan = replace(
                plan, topology=shape, prefix=launch_prefix(plan.python, shape, self.wishes.torchrun_args, plan.run_dir, bind=False)
            )
        return plan

    def execute(self, plan: Plan) -> int:
        """Start the program, show rank 0, pass signals on, wait; return its exit code."""
        environment = plan.full_environment()
        folder, node, since = Path(plan.run_dir), environment["PRIMUS_NODE"], time.time()
        shown = [plan.topology.node_rank if plan.topology.single else plan.topology.ranks[0]]
        follower = follow.Follower(folder, node, shown, self.terminal.show)
        reading, writing = os.pipe()
        try:
            with os.fdopen(writing, "wb") as output:
                child = child_processes.start(plan.argv, environment, output=output, folder=plan.cwd)
        except OSError as error:
            raise PlanError(f"{plan.argv[0]} cannot be started: {error}", fix="set --python, or see that the program is there") from error
        secrets = plan.secrets()
        reader = threading.Thread(target=_copy_lines, args=(reading, secrets, self.terminal.note), daemon=True)
        reader.start()
        follower.start()
        targets: Callable[[int], tuple[int, ...]] = (lambda pid: (pid,)) if plan.topology.single else children_of
        ended = child_processes.supervise(child, self.signals, grace_s=self.wishes.grace_s, targets=targets)
        child_processes.end_descendants(_ORPHANS_S)
        reader.join(_ORPHANS_S)
        follower.stop()
        failed = rank_log.first_failure_code(folder, node, since)
        if ended and failed is None:
            self.terminal.say_noted()  # torchrun itself: a port in use, nodes that did not come
        return self._exit_code(ended, failed)

    def _exit_code(self, ended: int, ranks: int | None) -> int:
        """Return the launcher's code: torchrun says 1 for everything, so the records of the ranks decide."""
        code = ranks if ranks is not None else 128 - ended if ended < 0 else ended
        if self.signals.first is not None and code not in (0, UNFINISHED):
            return 128 + self.signals.first
        return code

    def finish(self, plan: Plan, code: int) -> None:
        """Run the hooks that come after; one that fails is said, and does not change the exit code."""
        wanted_phases = {AFTER} if code in (0, UNFINISHED) else {AFTER, ON_FAILURE}
        environment = {**plan.full_environment(), "PRIMUS_EXIT_CODE": str(code)}
        # The signal that ended the run, or its twin, does not end what comes after it; another one does.
        with child_processes.StopSignals(ignore_until=self.signals.first_at + child_processes.REPEAT_AFTER_S) as signals:
            runner = replace(self.runner, signals=signals)
            for step in (hook for hook in plan.hooks if hook.phase in wanted_phases):
                try:
                    require(runner.run(step, environment))
                except (StepError, OSError) as error:
                    self.terminal.say(str(error))


def _open_log(path: Path) -> IO[bytes]:
    try:
        return path.open("ab", buffering=0)
    except OSError as error:
        raise PlanError(f"the log {path} cannot be written: {error}", fix="set --log-file to a file in a folder that exists") from error


def write_plan(plan: Plan) -> None:
    """Write the plan, secrets masked."""
    path = plan_path(Path(plan.run_dir), plan.topology.node_rank)
    write_atomic(path, json.dumps(plan.to_json(), indent=2) + "\n")


def _copy_lines(reading: int, secrets: tuple[str, ...], sink: Callable[[str], None]) -> None:
    with os.fdopen(reading, "r", encoding="utf-8", errors="replace") as text:
        for line in text:
            sink(masking.mask_text(line.rstrip("\n"), secrets))


def _require_torch(plan: Plan) -> str:
    """Return the version of the program's torch, empty where looking it up took too long."""
    command = [plan.python, "-c", "from importlib.metadata import version; print(version('torch'))"]
    try:
        done = run_command(command, env=plan.full_environment(), timeout_s=_TORCH_TIMEOUT_S)
    except TimeoutError:
        return ""  # a slow file system: torchrun itself will say it
    if done.code:
        fix = "set --venv or --python to the one that has torch, or run with --single"
        raise PlanError(f"{plan.python} has no torch, which starts the ranks", fix=fix)
    return done.stdout.strip()


def _explain(plan: Plan, code: int, started: float, launch: _Launch) -> None:
    say, stopped = launch.terminal.say, launch.signals.first
    if code == UNFINISHED:
        say(f"stopped early with a checkpoint (exit {UNFINISHED}); the same command with --output {plan.run_dir} goes on")
    elif code:
        found = diagnosis.after_failure(Path(plan.run_dir), plan.topology.node_rank, started, plan.full_environment()["PRIMUS_NODE"])
        if stopped is not None and found.cause is None:
            say(f"stopped by {stopped.name} to primus-cli (exit {code}); the program did not say that it has written a checkpoint")
        else:
            say(found.text())
    say(f"run folder: {plan.run_dir}")
