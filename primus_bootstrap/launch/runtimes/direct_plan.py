"""The plan of a run on this host: which processes, with which environment, hooks and patches. Nothing is started or written here."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.commandline.layered_settings import shown
from primus_bootstrap.launch.detect import host_profile, numa
from primus_bootstrap.launch.hooks.discovery import find_hooks
from primus_bootstrap.launch.ranks import rank
from primus_bootstrap.launch.runtimes.run_plan import PROFILE, RUN, USER, Plan, PlannedStep, Variable
from primus_bootstrap.launch.runtimes.self_exec import own_command, workloads_folder
from primus_bootstrap.launch.runtimes.topology import Topology, make_topology
from primus_bootstrap.launch.tasks import HERE, PYTHON, Program, Request, Task, find_task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.launch.commandline.layered_settings import Settings

SCRIPT = "script"


@dataclass(frozen=True)
class LaunchRequest:
    """What a run is planned from: the task's words, the settings, and where the user stands."""

    words: tuple[str, ...]
    command: tuple[str, ...]
    settings: Settings
    environment: Mapping[str, str]
    cwd: Path
    root: Path = Path("/")


def run_folder(asked: LaunchRequest, task: str) -> Path:
    """Return the absolute run folder: the one asked for, or ./runs/<time>-<task>."""
    wanted = asked.settings["main.output"]
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{task.replace(' ', '-')}"
    return asked.cwd / wanted if wanted else asked.cwd / "runs" / name


def chosen_task(asked: LaunchRequest) -> tuple[Task, tuple[str, ...]]:
    """Return the task and its arguments; with --script a task made from that program."""
    script = asked.settings["direct.script"]
    if not script:
        return find_task(asked.words)
    path = (asked.cwd / script).resolve()
    if not path.is_file():
        raise UsageError(f"--script {script}: there is no such file", fix="give the path of a .py file or of an executable")
    if path.suffix != ".py" and not os.access(path, os.X_OK):
        raise UsageError(f"--script {script} is neither a .py file nor executable", fix=f"chmod +x {script}")
    return Task(SCRIPT, "", "", program=lambda request: Program((str(path),), request.arguments)), asked.words


def make_plan(asked: LaunchRequest) -> Plan:
    """Plan a run on this host.

    Raises:
        PrimusError: The task, a setting or this host does not allow it.
    """
    settings = asked.settings
    task, arguments = chosen_task(asked)
    gpus = host_profile.found_gpus(asked.root)
    topology = make_topology(settings, asked.environment, gpus)
    run_dir = run_folder(asked, task.name)
    if topology.nnodes > 1 and not settings["main.output"]:
        raise PlanError("several nodes need one run folder", fix="set --output to a folder on storage that all nodes share")
    search, variables = _virtual_environment(asked)
    python = shutil.which(settings["direct.python"], path=search)
    if python is None:
        raise PlanError(f"there is no {settings['direct.python']} on the PATH", fix="set --python or --venv to the one that has torch")
    request = Request(arguments, python, lambda: workloads_folder(settings["direct.workloads"], asked.environment))
    program = task.program(request) if task.program else Program(())
    if task.launcher == PYTHON:
        topology = replace(topology, nproc=1, single=True)
    binding = numa.wanted(settings["direct.numa"], gpus, topology.nproc)
    plan = Plan(
        runtime="direct",
        task=task.name,
        words=asked.words,
        command=_typed_command(asked),
        run_dir=str(run_dir),
        cwd=str(asked.cwd),
        python=python,
        prefix=launch_prefix(python, topology, settings["direct.torchrun_arg"], str(run_dir), bind=binding),
        program=_program_words(program.argv, python),
        program_arguments=program.arguments,
        environment=_environment(asked, task, topology, run_dir, variables),
        inherited=asked.environment,
        topology=topology,
        settings=tuple(item for item in shown(settings) if not item.path.startswith(("container.", "slurm."))),
        hooks=find_hooks(task.hook_folder, asked.cwd, settings["direct.hooks"], run_dir),
        patches=tuple(_patch(asked.cwd, name) for name in settings["direct.patch"]),
    )
    return replace(plan, notes=_notes(asked, task, binding=binding))


def _typed_command(asked: LaunchRequest) -> tuple[str, ...]:
    """Return what the user typed: an outer runtime hands it on, because it started this one by other words."""
    handed = asked.environment.get("PRIMUS_COMMAND")
    return tuple(json.loads(handed)) if handed else asked.command


def _program_words(argv: Sequence[str], python: str) -> tuple[str, ...]:
    return (python, *argv) if argv and argv[0].endswith(".py") else tuple(argv)


def launch_prefix(python: str, topology: Topology, extra: Sequence[str], run_dir: str, *, bind: bool) -> tuple[str, ...]:
    """Return the words before the program: torchrun with the shape, and what starts and records each rank."""
    each = (*rank.prefix(run_dir, python), *((*own_command(python), "bind") if bind else ()))
    if topology.single:
        return each
    shape = [f"--nnodes={topology.nnodes}", f"--nproc-per-node={topology.nproc}"]
    if topology.nnodes == 1:
        shape.append("--standalone")  # a free port of its own: two runs on one host do not meet
    elif topology.rendezvous == "c10d":
        endpoint = f"{topology.master_addr}:{topology.master_port}"
        host = "1" if topology.node_rank == 0 else "0"
        shape += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={Path(run_dir).name}", f"--rdzv-conf=is_host={host}"]
    else:
        shape += [f"--node-rank={topology.node_rank}", f"--master-addr={topology.master_addr}", f"--master-port={topology.master_port}"]
    return (python, "-m", "torch.distributed.run", *shape, *extra, "--no-python", *each)


def _virtual_environment(asked: LaunchRequest) -> tuple[str, tuple[Variable, ...]]:
    """Return the search path and the variables of the virtual environment, where one is asked for."""
    path = asked.environment.get("PATH", os.defpath)
    wanted, activate = asked.settings["direct.venv"], asked.environment.get("VENV_ACTIVATE", "")
    if not wanted and not activate:
        return path, ()
    folder, origin = (asked.cwd / wanted, "direct.venv") if wanted else (Path(activate).parent.parent, "VENV_ACTIVATE")
    programs = folder / "bin"
    if not (programs / "python").exists():
        raise PlanError(f"{origin}: {folder} is no virtual environment", fix="give the folder that has bin/python in it")
    search = f"{programs}{os.pathsep}{path}"
    return search, (Variable("PATH", search, f"{RUN} {origin}"), Variable("VIRTUAL_ENV", str(folder), f"{RUN} {origin}"))


def _environment(asked: LaunchRequest, task: Task, topology: Topology, run_dir: Path, venv: Sequence[Variable]) -> tuple[Variable, ...]:
    """Return every variable that is set: the host's profile below what is there already, the run's own, and the user's above all."""
    grace = asked.settings["direct.grace"]
    own = {
        "RUN_DIR": (str(run_dir), "where the program writes"),
        "PRIMUS_TASK": (task.name, ""),
        "PRIMUS_NODE": (node_name(asked), ""),
        "PRIMUS_PLAN": (str(plan_path(run_dir, topology.node_rank)), "this plan as a file"),
        "NNODES": (str(topology.nnodes), ""),
        "NODE_RANK": (str(topology.node_rank), ""),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": (str(grace), "torchrun waits for checkpoints as long as we do"),
    }
    if topology.nproc > 1 and "OMP_NUM_THREADS" not in asked.environment:
        own["OMP_NUM_THREADS"] = ("1", "torchrun's own choice for several processes")
    if task.launcher == PYTHON:
        own.update(
            {"RANK": (str(topology.node_rank), "one process a node"), "WORLD_SIZE": (str(topology.nnodes), ""), "LOCAL_RANK": ("0", "")}
        )
    variables = {item.name: item for item in _profile(asked)}
    variables.update({name: Variable(name, value, RUN, reason) for name, (value, reason) in own.items()})
    variables.update({item.name: item for item in venv})
    stated = asked.settings.items["direct.env"]
    for name, value in stated.value.items():
        variables[name] = Variable(name, _as_text(name, value, stated.origins[name]), f"{USER} {stated.origins[name]}")
    return tuple(variables[name] for name in sorted(variables))


def _profile(asked: LaunchRequest) -> list[Variable]:
    if not asked.settings["direct.profile"]:
        return []
    profile = host_profile.host_profile(asked.root)
    return [
        Variable(entry.variable, entry.value, f"{PROFILE} {entry.origin}", entry.reason)
        for entry in profile.entries
        if entry.variable not in asked.environment
    ]


def _as_text(name: str, value: object, origin: str) -> str:
    if isinstance(value, bool):
        raise UsageError(f"{origin}: direct.env: {name} needs a text, {value!r} is none", fix='quote it, like "1" or "true"')
    text = str(value)
    if "\0" in text or not name.isidentifier():
        raise UsageError(f"{origin}: direct.env: {name!r} cannot be a variable", fix="use letters, digits and _ in the name")
    return text


def node_name(asked: LaunchRequest) -> str:
    """Return this node's name: Slurm's, where Slurm numbers the nodes, or the host's."""
    slurm = asked.environment.get("SLURMD_NODENAME") if asked.settings["direct.nodes_from"] == "slurm" else ""
    return slurm or socket.gethostname()


def plan_path(run_dir: Path, node_rank: int) -> Path:
    """Return where a node's plan is written."""
    return run_dir / ("plan.json" if node_rank == 0 else f"plan-{node_rank:05d}.json")


def _patch(cwd: Path, name: str) -> PlannedStep:
    path = cwd / name
    if not path.is_file() or path.suffix not in (".sh", ".py"):
        raise UsageError(f"--patch {name}: there is no such .sh or .py file", fix="give the path of a shell or Python patch")
    return PlannedStep("patch", str(path), "--patch")


def _notes(asked: LaunchRequest, task: Task, *, binding: bool) -> tuple[str, ...]:
    notes = ["each rank is bound to the CPUs and memory next to its GPU"] if binding else []
    if asked.environment.get("PRIMUS_SKIP_MAIN_LAUNCH", "0") not in ("", "0"):
        notes.append("PRIMUS_SKIP_MAIN_LAUNCH is set: hooks and patches run, the program does not")
    if task.launcher == HERE:
        notes.append("runs in this process; no run folder is made")
    return tuple(notes)
