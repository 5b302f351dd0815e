"""The runtime `direct`: run a plan on this host with its hooks, patches and snapshot, and report the cause of a failure."""

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
from primus_bootstrap.core.atomic_files import write_atomic, write_if_changed
from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.errors import PlanError, StepError
from primus_bootstrap.launch import masking
from primus_bootstrap.launch.detect import host_profile
from primus_bootstrap.launch.diagnose import diagnosis
from primus_bootstrap.launch.hooks import steps
from primus_bootstrap.launch.hooks.hook_discovery import AFTER, BEFORE, ON_FAILURE, unpack_built_in
from primus_bootstrap.launch.hooks.steps import StepRunner
from primus_bootstrap.launch.ranks import follow, rank_log, torch_variables
from primus_bootstrap.launch.run_plan import HOOK, PATCH
from primus_bootstrap.launch.runtimes import direct_plan
from primus_bootstrap.launch.runtimes.direct_plan import launch_prefix, plan_path
from primus_bootstrap.launch.runtimes.run_folder import make_run_folder, preparing, write_step
from primus_bootstrap.launch.self_exec import unpack_workloads
from primus_bootstrap.launch.snapshot import replay, run_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from primus_bootstrap.launch.hooks.steps import StepResult
    from primus_bootstrap.launch.run_plan import Plan
    from primus_bootstrap.launch.runtimes.direct_plan import LaunchRequest
    from primus_bootstrap.launch.settings.parser import CommandLine
    from primus_bootstrap.launch.tasks import Task

_SKIP, _MODE = "PRIMUS_SKIP_MAIN_LAUNCH", "RUN_MODE"
_ORPHANS_S = 5.0
_RECENT_LINES = 40
_TORCH_TIMEOUT_S = 60


@dataclass(frozen=True)
class RunOptions:
    """The settings of the run itself."""

    grace_s: int
    hook_timeout_s: int
    silent: bool
    log_file: str
    torchrun_args: tuple[str, ...]


def _log_path(setting: str, plan: Plan) -> Path:
    """Return the file for the copy of the terminal output; each node has its own."""
    rank = plan.topology.node_rank
    if not setting:
        return Path(plan.run_dir) / "logs" / f"launcher-{rank:05d}.log"
    return Path(plan.cwd) / (f"{setting}.{rank}" if plan.topology.nnodes > 1 else setting)


def _run_options(request: LaunchRequest) -> RunOptions:
    settings = request.settings
    return RunOptions(
        settings["direct.grace"],
        settings["direct.hook_timeout_s"],
        settings["direct.silent"],
        settings["direct.log_file"],
        tuple(settings["direct.torchrun_arg"]),
    )


class _Terminal:
    """Writes lines to the terminal and to a log file, from several threads. A closed terminal or a full disk does not end the run.

    The file is not buffered: buffered data that a full disk does not accept would fail again at close and hide the run's exit code.
    """

    def __init__(self, copy: IO[bytes], *, silent: bool) -> None:
        self._copy, self._silent = copy, silent
        self._lock = threading.Lock()
        self._recent: deque[str] = deque(maxlen=_RECENT_LINES)

    def log(self, line: str) -> None:
        """Write a line to the file, and remember it for `print_recent`."""
        self._recent.append(line)
        self._write(line, on_terminal=False)

    def print_recent(self) -> None:
        """Print the last lines given to `log` on the terminal."""
        for line in self._recent:
            with self._lock, suppress(OSError):
                sys.stdout.write(line + "\n")

    def print_output(self, line: str) -> None:
        """Write a line of a program; only to the file if silent."""
        self._write(line, on_terminal=not self._silent)

    def print(self, text: str) -> None:
        """Write a message of primus-cli."""
        for line in text.splitlines():
            self._write(line, on_terminal=True)

    def _write(self, line: str, *, on_terminal: bool) -> None:
        with self._lock:
            if on_terminal:
                with suppress(OSError):
                    sys.stdout.write(line + "\n")
                    sys.stdout.flush()
            with suppress(OSError):
                self._copy.write(f"{line}\n".encode("utf-8", "replace"))


def make_plan(_line: CommandLine, request: LaunchRequest) -> Plan:
    """Plan a run on this host."""
    return direct_plan.make_plan(request)


def run(plan: Plan, request: LaunchRequest) -> int:
    """Run a plan; return the exit code of primus-cli.

    Raises:
        PrimusError: The run cannot be started on this host.
    """
    task, arguments = direct_plan.chosen_task(request)
    if task.run:
        return task.run(arguments)
    options = _run_options(request)
    run_dir = Path(plan.run_dir)
    make_run_folder(run_dir)
    if request.settings["direct.nodes_from"] == "slurm" and plan.topology.node_rank == 0:
        with preparing(run_dir):
            write_step(run_dir, request.environment)
    started = time.time()
    with _open_log(_log_path(options.log_file, plan)) as copy, child_processes.StopSignals() as signals:
        child_processes.become_subreaper()
        terminal = _Terminal(copy, silent=options.silent)
        show = terminal.print_output
        runner = StepRunner(run_dir, plan.topology.node_rank, plan.python, plan.words, options.hook_timeout_s, show, signals)
        launch = _Launch(plan, task, options, terminal, signals, runner, request)
        try:
            with preparing(run_dir):
                plan = launch.prepare()
            if plan.full_environment().get(_SKIP, "0") not in ("", "0"):
                terminal.print(f"{_SKIP} is set: the program is not started")
                return 0
            if signals.first is not None:
                terminal.print(f"{signals.first.name} arrived before the program was started; the same command starts it")
                launch.finish(plan, 128 + signals.first)
                return 128 + signals.first
            code = launch.execute(plan)
        except StepError as error:
            terminal.print(str(error))
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
    options: RunOptions
    terminal: _Terminal
    signals: child_processes.StopSignals
    runner: StepRunner
    request: LaunchRequest

    def prepare(self) -> Plan:
        """Run hooks and patches, take the snapshot and check a replay; return the changed plan."""
        plan = self.plan
        unpack_built_in(Path(plan.run_dir))
        if not self.request.settings["direct.workloads"]:
            unpack_workloads(plan.full_environment())
        write_plan(plan)
        for step in (*(hook for hook in plan.hooks if hook.phase == BEFORE), *plan.patches):
            result = self.runner.run(step, plan.full_environment())
            steps.check(result)
            plan = self._changed(plan, result)
            write_plan(plan)
        if self.task.launcher == "torchrun" and not plan.topology.single:
            found = host_profile.host_profile(Path("/"))
            plan = torch_variables.renamed(plan, _require_torch(plan), {entry.variable: entry.value for entry in found.entries})
            write_plan(plan)
        for path, text in plan.files:
            write_if_changed(Path(path), text)
        run_snapshot.take(plan, Path(plan.run_dir))
        folder = plan.inherited.get("PRIMUS_REPLAY")
        if folder:
            for line in replay.check(Path(folder), plan, strict=plan.inherited.get("PRIMUS_REPLAY_STRICT") == "1"):
                self.terminal.print(line)
        return plan

    def _changed(self, plan: Plan, result: StepResult) -> Plan:
        """Return the plan with the changes that a hook or patch printed."""
        kind = PATCH if result.phase == "patch" else HOOK
        plan = plan.with_variables(result.variables, f"{kind} {Path(result.path).name}")
        extras = tuple(word for name, value in result.extras.items() for word in self.task.added(name, value))
        plan = direct_plan.with_arguments(plan, self.request, self.task, extras)
        if result.variables.get(_MODE) == "single" and not plan.topology.single:
            shape = replace(plan.topology, single=True, nproc=1)
            plan = replace(
                plan, topology=shape, prefix=launch_prefix(plan.python, shape, self.options.torchrun_args, plan.run_dir, bind=False)
            )
        return plan

    def execute(self, plan: Plan) -> int:
        """Start the program, print the output of this node's first rank, pass signals on, wait; return the exit code."""
        environment = plan.full_environment()
        folder, node, since = Path(plan.run_dir), environment["PRIMUS_NODE"], time.time()
        ranks = _shown_ranks(plan)
        follower = follow.Follower(folder, node, ranks, self.terminal.print_output)
        reader, writer = os.pipe()
        try:
            with os.fdopen(writer, "wb") as output:
                child = child_processes.start(plan.argv, environment, output=output, folder=plan.cwd)
        except OSError as error:
            fix = "check that the program exists, or pass --python"
            raise PlanError(f"{plan.argv[0]} cannot be started: {error}", fix=fix) from error
        thread = threading.Thread(target=_copy_lines, args=(reader, plan.secrets(), self.terminal.log), daemon=True)
        thread.start()
        follower.start()
        targets: Callable[[int], tuple[int, ...]] = (lambda pid: (pid,)) if plan.topology.single else child_processes.children_of
        launcher_code = child_processes.supervise(child, self.signals, grace_s=self.options.grace_s, targets=targets)
        child_processes.end_descendants(_ORPHANS_S)
        thread.join(_ORPHANS_S)
        follower.stop()
        rank_code = rank_log.first_failure_code(folder, node, since)
        if launcher_code and rank_code is None:
            self.terminal.print_recent()  # torchrun failed: a port in use, nodes that did not join
        return self._exit_code(launcher_code, rank_code)

    def _exit_code(self, launcher_code: int, rank_code: int | None) -> int:
        """Return the exit code of the run: torchrun exits with 1 for every failure, so the code of the failed rank takes precedence."""
        code = rank_code if rank_code is not None else 128 - launcher_code if launcher_code < 0 else launcher_code
        if self.signals.first is not None and code not in (0, rank_log.UNFINISHED):
            return 128 + self.signals.first
        return code

    def finish(self, plan: Plan, code: int) -> None:
        """Run the hooks of the phases after and on_failure; a failing hook is reported and does not change the exit code."""
        phases = {AFTER} if code in (0, rank_log.UNFINISHED) else {AFTER, ON_FAILURE}
        environment = {**plan.full_environment(), "PRIMUS_EXIT_CODE": str(code)}
        # The signal that ended the run, which may arrive twice, does not stop these hooks; a later one does.
        with child_processes.StopSignals(ignore_until=self.signals.first_at + child_processes.REPEAT_AFTER_S) as signals:
            runner = replace(self.runner, signals=signals)
            for step in (hook for hook in plan.hooks if hook.phase in phases):
                try:
                    steps.check(runner.run(step, environment))
                except (StepError, OSError) as error:
                    self.terminal.print(str(error))


def _shown_ranks(plan: Plan) -> list[int]:
    """Return the ranks whose output is shown: the first one of this node, and the last one of the run if it prints the progress."""
    shape = plan.topology
    if shape.single:
        return [shape.node_rank]
    last = shape.nnodes * shape.nproc - 1
    shows_last = plan.last_rank_logs and last in shape.ranks and last != shape.ranks[0]
    return [shape.ranks[0], *([last] if shows_last else [])]


def _open_log(path: Path) -> IO[bytes]:
    try:
        return path.open("ab", buffering=0)
    except OSError as error:
        raise PlanError(f"the log {path} cannot be written: {error}", fix="pass --log-file with a file in an existing folder") from error


def write_plan(plan: Plan) -> None:
    """Write the plan, secrets masked."""
    path = plan_path(Path(plan.run_dir), plan.topology.node_rank)
    write_atomic(path, json.dumps(plan.to_json(), indent=2) + "\n")


def _copy_lines(reader: int, secrets: tuple[str, ...], sink: Callable[[str], None]) -> None:
    with os.fdopen(reader, "r", encoding="utf-8", errors="replace") as text:
        for line in text:
            sink(masking.mask_text(line.rstrip("\n"), secrets))


def _require_torch(plan: Plan) -> str:
    """Return the version of the program's torch; empty if the lookup exceeded its time limit.

    Raises:
        PlanError: The program's Python has no torch.
    """
    command = [plan.python, "-c", "from importlib.metadata import version; print(version('torch'))"]
    try:
        done = run_command(command, env=plan.full_environment(), timeout_s=_TORCH_TIMEOUT_S)
    except TimeoutError:
        return ""  # a slow file system; torchrun reports a missing torch
    if done.code:
        fix = f"install it there ({plan.python} -m pip install torch), or pass --venv or --python (a submitted job: workload_venv)"
        raise PlanError(f"{plan.python} has no torch, which is needed to start the ranks", fix=fix)
    return done.stdout.strip()


def _explain(plan: Plan, code: int, started: float, launch: _Launch) -> None:
    """Print the cause of a failure and the run folder."""
    show, stopped = launch.terminal.print, launch.signals.first
    if code == rank_log.UNFINISHED:
        show(f"stopped early with a checkpoint (exit {rank_log.UNFINISHED}); to resume, run the same command with --output {plan.run_dir}")
    elif code:
        found = diagnosis.after_failure(Path(plan.run_dir), plan.topology.node_rank, started, plan.full_environment()["PRIMUS_NODE"])
        if stopped is not None and found.cause is None:
            show(f"stopped by {stopped.name} (exit {code}); the program did not report a checkpoint")
        else:
            show(found.text())
    show(f"run folder: {plan.run_dir}")
