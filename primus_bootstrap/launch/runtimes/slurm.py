"""The runtime `slurm`: one launcher on each node of a step, by srun now or by sbatch later, in a container by pyxis where that is there."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core import child_processes
from primus_bootstrap.core.commands import Completed, run_command
from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.commandline.layered_settings import shown
from primus_bootstrap.launch.runtimes import container, forwarded_settings
from primus_bootstrap.launch.runtimes.direct_plan import chosen_task, run_folder
from primus_bootstrap.launch.runtimes.run_folder import make_run_folder, preparing, step_path
from primus_bootstrap.launch.runtimes.run_plan import RUN, USER, Plan, Variable
from primus_bootstrap.launch.runtimes.slurm_options import COUNT_VARIABLES, option_words, refuse_lost_variables, refuse_what_breaks_a_run

if TYPE_CHECKING:
    from primus_bootstrap.launch.commandline.parser import CommandLine
    from primus_bootstrap.launch.runtimes.direct_plan import LaunchRequest

# One launcher a node; it starts the ranks and binds them to CPUs itself. Where one node's launcher fails, the others end: the run is over.
STEP = ("--ntasks-per-node=1", "--kill-on-bad-exit=1", "--cpu-bind=none")
_AFTER_GRACE_S = 60  # the launchers have --grace and end their ranks; Slurm collects the step
_SCRIPT = "job.sbatch"
_SLURM_TIMEOUT_S = 30
_LEAVE_S = 120  # the job ends on its nodes first, epilog included
# srun does not take --cpus-per-task of the job over: https://slurm.schedmd.com/srun.html#OPT_cpus-per-task (since 22.05)
CPUS_LINE = 'if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi\n'


def make_plan(line: CommandLine, asked: LaunchRequest) -> Plan:
    """Plan a run on Slurm.

    Raises:
        PrimusError: Slurm is not here, an option of the user's contradicts one launcher a node, or a task does not exist.
    """
    settings = asked.settings
    task, _ = chosen_task(asked)
    refuse_what_breaks_a_run(line.slurm_words)
    launcher = line.slurm_launcher or settings["slurm.launcher"]
    run_dir = str(run_folder(asked, task.name))
    options = option_words(settings["slurm.options"], line.slurm_words)
    refuse_lost_variables(options, tuple(settings["direct.env"]))
    step, inner = _inside(line, asked, run_dir)
    command = (*inner, "--", *asked.words)
    path = asked.environment.get("PATH", os.defpath)
    program = shutil.which(launcher, path=path)
    if program is None:
        raise PlanError(f"there is no {launcher} on the PATH", fix="run this on a node of the Slurm cluster, or take direct")
    files: tuple[tuple[str, str], ...] = ()
    if launcher == "srun":
        prefix, rest = (program, *STEP, f"--job-name={task.name.replace(' ', '-')}", *options, *step), command
    else:
        script = str(Path(run_dir) / _SCRIPT)
        files = ((script, f"#!/bin/bash\n{CPUS_LINE}exec {shlex.join(('srun', *STEP, *step, *command))}\n"),)
        own = (f"--job-name={task.name.replace(' ', '-')}", f"--output={run_dir}/logs/slurm-%j.out", "--open-mode=append", STEP[0])
        prefix, rest = (program, "--parsable", *own, *options, script), ()
    inside = forwarded_settings.variables(asked)
    return Plan(
        runtime="slurm",
        task=task.name,
        words=asked.words,
        command=asked.command,
        run_dir=run_dir,
        cwd=str(asked.cwd),
        prefix=prefix,
        program_arguments=rest,
        environment=tuple(Variable(name, value, USER if name in settings["direct.env"] else RUN) for name, value in sorted(inside.items())),
        inherited={
            name: value for name, value in forwarded_settings.without_settings(asked.environment).items() if name not in COUNT_VARIABLES
        },
        settings=tuple(shown(settings)),
        files=files,
        notes=(f"the run folder must be on storage that all nodes share: {run_dir}",),
    )


def _inside(line: CommandLine, asked: LaunchRequest, run_dir: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return pyxis' words for the step, where it starts the container, and the words that each node runs."""
    program = asked.settings["slurm.program"]
    own = (program,) if program else ("python3", str(forwarded_settings.portable_program(run_dir)))
    start = (*own, forwarded_settings.ONLY_FLAGS)
    direct = forwarded_settings.flags(asked, "direct", nodes_from="slurm")
    entry = (
        "container"
        if "container" in line.runtimes or (len(line.runtimes) == 1 and asked.settings["slurm.entry"] == "container")
        else "direct"
    )
    if entry == "direct":
        return (), (*start, "direct", f"--output={run_dir}", *direct)
    if not _pyxis(asked):
        return (), (*start, "container", f"--output={run_dir}", *forwarded_settings.flags(asked, "container"), *direct)
    if not asked.settings["container.image"]:
        raise UsageError("container: there is no image", fix="set --image, or container: {image: ...} in a settings file")
    mounts = ",".join(container.mounts(asked, run_dir))
    names = ",".join(sorted(forwarded_settings.variables(asked)))
    words = (
        f"--container-image={pyxis_image(asked.settings['container.image'])}",
        f"--container-mounts={mounts}",
        f"--container-workdir={asked.cwd}",
        f"--container-env={names}",
    )
    inside = (asked.settings["container.python"], str(forwarded_settings.portable_program(run_dir)), forwarded_settings.ONLY_FLAGS)
    return words, (*inside, "direct", f"--output={run_dir}", *direct)


def _pyxis(asked: LaunchRequest) -> bool:
    """Say whether the container is started by Slurm's plug-in pyxis (https://github.com/NVIDIA/pyxis), which adds options to srun."""
    wanted = asked.settings["slurm.pyxis"]
    if wanted != "auto":
        return bool(wanted == "on")
    try:
        done = run_command(["srun", "--help"], timeout_s=30, env=asked.environment)
    except OSError:
        return False
    return "--container-image" in done.stdout


def pyxis_image(image: str) -> str:
    """Return an image's name as pyxis takes it: `registry#name`, where the first part is a registry; files stay as they are."""
    first, slash, rest = image.partition("/")
    if (
        slash
        and not image.startswith(("/", "."))
        and "#" not in image
        and "://" not in image
        and ("." in first or ":" in first or first == "localhost")
    ):
        return f"{first}#{rest}"
    return image


def run(plan: Plan, asked: LaunchRequest) -> int:
    """Start srun, or hand the job to sbatch; return its exit code, which is the highest of all nodes."""
    make_run_folder(Path(plan.run_dir))
    with preparing(Path(plan.run_dir)):
        forwarded_settings.write_portable_program(asked, plan.run_dir)
        for name, text in plan.files:
            Path(name).write_text(text, "utf-8")
            Path(name).chmod(0o700)
        if not plan.files:  # srun: its step will write which one it is
            step_path(Path(plan.run_dir)).unlink(missing_ok=True)
    grace = asked.settings["direct.grace"]
    with child_processes.StopSignals() as signals:
        child_processes.become_subreaper()
        child = child_processes.start(plan.argv, plan.full_environment(), folder=plan.cwd)
        code = child_processes.supervise(child, signals, grace_s=grace + _AFTER_GRACE_S, request_stop=lambda: _ask_step(plan, grace))
        if code != 0 and not plan.files and "SLURM_JOB_ID" not in plan.full_environment():
            _leave_job(plan, signals)
        child_processes.end_descendants(1)
    return 128 - code if code < 0 else code


def _ask_step(plan: Plan, grace_s: int) -> bool:
    """Have Slurm send SIGTERM to the programs of the step; False where there is no step yet, or Slurm does not do it.

    srun itself kills them (SIGKILL) when it gets a SIGTERM, which leaves no time for a checkpoint:
    job_force_termination in https://github.com/SchedMD/slurm/blob/master/src/srun/libsrun/srun_job.c
    """
    try:
        step = step_path(Path(plan.run_dir)).read_text("utf-8", "replace").strip()
    except OSError:
        return False
    done = _slurm(plan, "scancel", "--signal=TERM", step)
    problem = "scancel did not start, or gave no answer" if done is None else done.stderr.strip() if done.code else ""
    if problem:
        sys.stderr.write(f"primus-cli: step {step} could not be asked to stop: {problem}\n  fix: look at it with squeue --steps\n")
        return False
    sys.stderr.write(f"primus-cli: step {step} is asked to stop; its ranks have {grace_s} s for a checkpoint. Once more ends it at once\n")
    return True


def _leave_job(plan: Plan, signals: child_processes.StopSignals) -> None:
    """Wait until the job that srun made is over, and cancel it where Slurm queues it again; who insists on the end waits for one look.

    slurmctld does that to every job with an exit code of RequeueExit (75 here), though nobody would be in it and it would hold its nodes:
    job_hold_requeue in https://github.com/SchedMD/slurm/blob/slurm-22-05-9-1/src/slurmctld/job_mgr.c
    """
    try:
        job = step_path(Path(plan.run_dir)).read_text("utf-8", "replace").strip().partition(".")[0]
    except OSError:
        return  # there was none
    deadline = time.monotonic() + _LEAVE_S
    while seen := _slurm(plan, "squeue", "--noheader", f"--jobs={job}", "--format=%T"):
        state = seen.stdout.strip()
        if "Invalid job id" in seen.stderr or (seen.code == 0 and not state):
            return
        if seen.code == 0 and state != "COMPLETING":
            _slurm(plan, "scancel", job)
        if signals.repeated or time.monotonic() > deadline:
            break
        time.sleep(1)
    sys.stderr.write(
        f"primus-cli: Slurm does not say whether job {job} is over\n  fix: squeue --jobs={job}; where it is there, scancel {job}\n"
    )


def _slurm(plan: Plan, *command: str) -> Completed | None:
    """Run a command of Slurm's; None where it did not start or gave no answer."""
    with contextlib.suppress(OSError):
        return run_command(command, timeout_s=_SLURM_TIMEOUT_S, env=plan.full_environment())
    return None
