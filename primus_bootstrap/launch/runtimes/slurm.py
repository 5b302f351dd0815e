"""The runtime `slurm`: start one launcher on each node with srun or sbatch, in a container of pyxis if Slurm has that plug-in."""

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
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.detect import host_profile
from primus_bootstrap.launch.run_plan import RUN, USER, Plan, Variable
from primus_bootstrap.launch.runtimes import container, container_devices, container_image, forwarded_plugins, forwarded_settings
from primus_bootstrap.launch.runtimes.direct_plan import check_arguments, chosen_task, run_folder
from primus_bootstrap.launch.runtimes.run_folder import make_run_folder, preparing, step_path
from primus_bootstrap.launch.runtimes.slurm_options import COUNT_VARIABLES, check_export, check_typed, option_words
from primus_bootstrap.launch.settings.layered_settings import in_schema_order

if TYPE_CHECKING:
    from primus_bootstrap.launch.runtimes.direct_plan import LaunchRequest
    from primus_bootstrap.launch.settings.parser import CommandLine

# One launcher per node, which starts the ranks and binds them to CPUs. If the launcher of one node fails, Slurm ends the others.
STEP = ("--ntasks-per-node=1", "--kill-on-bad-exit=1", "--cpu-bind=none")
_AFTER_GRACE_S = 60  # added to --grace of the launchers: Slurm ends the step
_SCRIPT = "job.sbatch"
_SLURM_TIMEOUT_S = 30
_JOB_END_S = 120  # the job ends on its nodes first, epilog included
# srun does not inherit --cpus-per-task from the job: https://slurm.schedmd.com/srun.html#OPT_cpus-per-task (since 22.05)
CPUS_LINE = 'if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi\n'


def make_plan(line: CommandLine, request: LaunchRequest) -> Plan:
    """Plan a run on Slurm.

    Raises:
        PrimusError: Slurm is not installed, a Slurm option would break the run, or the task does not exist.
    """
    settings = request.settings
    task, _ = chosen_task(request)
    check_typed(line.slurm_words)
    launcher = line.slurm_launcher or settings["slurm.launcher"]
    run_dir = str(run_folder(request, task.name))
    options = option_words(settings["slurm.options"], line.slurm_words)
    check_export(options, tuple(settings["direct.env"]))
    step, inner, remarks = _inside(line, request, run_dir)
    command = (*inner, "--", *request.words)
    program = shutil.which(launcher, path=request.environment.get("PATH", os.defpath))
    if program is None and "--dry-run" not in line.given:
        fix = "run this on a node of the Slurm cluster, use the runtime direct, or print the plan only: --dry-run"
        raise PlanError(f"{launcher} is not on the PATH", fix=fix)
    if program is None:
        program, remarks = launcher, (*remarks, f"{launcher} is not on the PATH of this machine; run the command on one that has Slurm")
    files: tuple[tuple[str, str], ...] = ()
    if launcher == "srun":
        prefix, rest = (program, *STEP, f"--job-name={task.name.replace(' ', '-')}", *options, *step), command
    else:
        script = str(Path(run_dir) / _SCRIPT)
        files = ((script, f"#!/bin/bash\n{CPUS_LINE}exec {shlex.join(('srun', *STEP, *step, *command))}\n"),)
        job = (f"--job-name={task.name.replace(' ', '-')}", f"--output={run_dir}/logs/slurm-%j.out", "--open-mode=append", STEP[0])
        prefix, rest = (program, "--parsable", *job, *options, script), ()
    inside = forwarded_settings.variables(request)
    return Plan(
        runtime="slurm",
        task=task.name,
        words=request.words,
        command=request.command,
        run_dir=run_dir,
        cwd=str(request.cwd),
        prefix=prefix,
        program_arguments=rest,
        environment=tuple(Variable(name, value, USER if name in settings["direct.env"] else RUN) for name, value in sorted(inside.items())),
        inherited={
            name: value for name, value in forwarded_settings.without_settings(request.environment).items() if name not in COUNT_VARIABLES
        },
        settings=tuple(in_schema_order(settings)),
        files=files,
        notes=(f"the run folder must be on storage that all nodes share: {run_dir}", *remarks),
    )


def _inside(line: CommandLine, request: LaunchRequest, run_dir: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the options of pyxis for the step (none without pyxis), the command that each node runs, and remarks for the plan.

    Raises:
        UsageError: The task's arguments are wrong, or there is no image.
    """
    program = request.settings["slurm.program"]
    start = (*((program,) if program else ("python3", str(forwarded_settings.portable_program(run_dir)))), forwarded_settings.ONLY_FLAGS)
    direct = forwarded_settings.flags(request, "direct", nodes_from="slurm", **forwarded_plugins.setting(request, run_dir))
    entry = (
        "container"
        if "container" in line.runtimes or (len(line.runtimes) == 1 and request.settings["slurm.entry"] == "container")
        else "direct"
    )
    if entry == "direct":
        return (), (*start, "direct", f"--output={run_dir}", *direct), check_arguments(request, Path(run_dir))
    pyxis = _pyxis(request)
    folders = tuple(container.mounts(request, run_dir, here=pyxis))
    remarks = check_arguments(request, Path(run_dir), container.mounted_files(folders))
    if not pyxis:
        words = (*start, "container", f"--output={run_dir}", *forwarded_settings.flags(request, "container"), *direct)
        return (), words, (container_image.remark_for_nodes(request.settings), *remarks)
    vendor = container_devices.vendor(request.settings["container.gpus"], host_profile.found_gpus(request.root))
    image, image_remark = container_image.chosen(request.settings, vendor)
    names = ",".join(sorted(forwarded_settings.variables(request)))
    words = (
        f"--container-image={pyxis_image(image)}",
        f"--container-mounts={','.join(folders)}",
        f"--container-workdir={request.cwd}",
        f"--container-env={names}",
    )
    inside = (request.settings["container.python"], str(forwarded_settings.portable_program(run_dir)), forwarded_settings.ONLY_FLAGS)
    return words, (*inside, "direct", f"--output={run_dir}", *direct), (image_remark, *remarks)


def _pyxis(request: LaunchRequest) -> bool:
    """Return whether Slurm's plug-in pyxis (https://github.com/NVIDIA/pyxis) starts the container; it adds options to srun."""
    setting = request.settings["slurm.pyxis"]
    if setting != "auto":
        return bool(setting == "on")
    try:
        done = run_command(["srun", "--help"], timeout_s=30, env=request.environment)
    except OSError:
        return False
    return "--container-image" in done.stdout


def pyxis_image(image: str) -> str:
    """Return an image's name for pyxis: `registry#name` if the first part is a registry; names of files are unchanged.

    Docker Hub is the default, and its registry has another host name than its images:
    https://github.com/NVIDIA/enroot/blob/master/doc/cmd/import.md
    """
    first, slash, rest = image.partition("/")
    if first == "docker.io":
        return rest
    if (
        slash
        and not image.startswith(("/", "."))
        and "#" not in image
        and "://" not in image
        and ("." in first or ":" in first or first == "localhost")
    ):
        return f"{first}#{rest}"
    return image


def run(plan: Plan, request: LaunchRequest) -> int:
    """Run the step with srun, or submit the job with sbatch; return the exit code (for srun, the highest of all nodes)."""
    make_run_folder(Path(plan.run_dir))
    with preparing(Path(plan.run_dir)):
        forwarded_settings.write_portable_program(request, plan.run_dir)
        for name, text in plan.files:
            Path(name).write_text(text, "utf-8")
            Path(name).chmod(0o700)
        if not plan.files:  # srun: node 0 of the step writes the file again
            step_path(Path(plan.run_dir)).unlink(missing_ok=True)
    grace = request.settings["direct.grace"]
    with child_processes.StopSignals() as signals:
        child_processes.become_subreaper()
        child = child_processes.start(plan.argv, plan.full_environment(), folder=plan.cwd)
        code = child_processes.supervise(child, signals, grace_s=grace + _AFTER_GRACE_S, request_stop=lambda: _stop_step(plan, grace))
        if code != 0 and not plan.files and "SLURM_JOB_ID" not in plan.full_environment():
            _wait_for_job_end(plan, signals)
        child_processes.end_descendants(1)
    return 128 - code if code < 0 else code


def _stop_step(plan: Plan, grace_s: int) -> bool:
    """Send SIGTERM to the programs of the step with scancel; return False if there is no step yet or scancel failed.

    srun kills them (SIGKILL) when it gets a SIGTERM, which leaves no time for a checkpoint:
    job_force_termination in https://github.com/SchedMD/slurm/blob/master/src/srun/libsrun/srun_job.c
    """
    try:
        step = step_path(Path(plan.run_dir)).read_text("utf-8", "replace").strip()
    except OSError:
        return False
    done = _slurm(plan, "scancel", "--signal=TERM", step)
    problem = "scancel could not be run, or did not answer" if done is None else done.stderr.strip() if done.code else ""
    if problem:
        sys.stderr.write(f"primus-cli: cannot stop step {step}: {problem}\n  fix: scancel --signal=TERM {step}\n")
        return False
    sys.stderr.write(
        f"primus-cli: SIGTERM sent to step {step}; its ranks have {grace_s} s for a checkpoint. Send the signal again to end it at once\n"
    )
    return True


def _wait_for_job_end(plan: Plan, signals: child_processes.StopSignals) -> None:
    """Wait until srun's job has ended, and cancel it if Slurm requeues it. After a repeated signal, check only once.

    slurmctld requeues every job whose exit code is in RequeueExit (75 here); without srun such a job would only occupy its nodes:
    job_hold_requeue in https://github.com/SchedMD/slurm/blob/slurm-22-05-9-1/src/slurmctld/job_mgr.c
    """
    try:
        job = step_path(Path(plan.run_dir)).read_text("utf-8", "replace").strip().partition(".")[0]
    except OSError:
        return  # no step was started
    deadline = time.monotonic() + _JOB_END_S
    while queue := _slurm(plan, "squeue", "--noheader", f"--jobs={job}", "--format=%T"):
        state = queue.stdout.strip()
        if "Invalid job id" in queue.stderr or (queue.code == 0 and not state):
            return
        if queue.code == 0 and state != "COMPLETING":
            _slurm(plan, "scancel", job)
        if signals.repeated or time.monotonic() > deadline:
            break
        time.sleep(1)
    sys.stderr.write(f"primus-cli: it is unknown whether job {job} has ended\n  fix: squeue --jobs={job}; if it is listed, scancel {job}\n")


def _slurm(plan: Plan, *command: str) -> Completed | None:
    """Run a Slurm command; return None if it cannot be run or does not answer."""
    with contextlib.suppress(OSError):
        return run_command(command, timeout_s=_SLURM_TIMEOUT_S, env=plan.full_environment())
    return None
