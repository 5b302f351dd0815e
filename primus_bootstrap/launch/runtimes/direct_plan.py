"""Plan a run on this host: its processes, environment, hooks and patches. Starts and writes nothing."""

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
from primus_bootstrap.launch.detect import host_profile, numa
from primus_bootstrap.launch.hooks.hook_discovery import BEFORE, find_hooks, not_run
from primus_bootstrap.launch.plugins.plugin_discovery import files_of_task, plugin_tasks, sources
from primus_bootstrap.launch.ranks import rank
from primus_bootstrap.launch.run_plan import PATCH, PROFILE, RUN, USER, Plan, PlannedStep, Variable
from primus_bootstrap.launch.run_topology import Topology, make_topology
from primus_bootstrap.launch.self_exec import own_command, workloads_folder
from primus_bootstrap.launch.settings.layered_settings import in_schema_order
from primus_bootstrap.launch.snapshot import restored_files
from primus_bootstrap.launch.tasks import HERE, PYTHON, Program, Request, Task, all_tasks, find_task, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from primus_bootstrap.launch.detect.gpus import GpuFindings
    from primus_bootstrap.launch.plugins.plugin_discovery import PluginFile
    from primus_bootstrap.launch.settings.layered_settings import Settings

SCRIPT = "script"
HELP = frozenset({"-h", "--help"})


@dataclass(frozen=True)
class LaunchRequest:
    """The input of a plan."""

    words: tuple[str, ...]  # the task and its arguments
    command: tuple[str, ...]  # the whole command line after `primus-cli`
    settings: Settings  # the merged settings
    environment: Mapping[str, str]  # the environment of this process
    cwd: Path  # the working folder
    root: Path = Path("/")  # the root of sys/, proc/ and dev/


def run_folder(request: LaunchRequest, task: str) -> Path:
    """Return the absolute run folder: the one of --output, or ./runs/<time>-<task>."""
    output = request.settings["main.output"]
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{task.replace(' ', '-')}"
    return request.cwd / output if output else request.cwd / "runs" / name


def chosen_task(request: LaunchRequest) -> tuple[Task, tuple[str, ...]]:
    """Return the task and its arguments; --script makes a task of that program."""
    script = request.settings["direct.script"]
    if not script:
        return find_task(request.words, plugin_tasks(_plugin_sources(request)))
    path = (request.cwd / script).resolve()
    if not path.is_file():
        raise UsageError(f"--script {script}: file not found", fix="give the path of a .py file or of an executable")
    if path.suffix != ".py" and not os.access(path, os.X_OK):
        raise UsageError(f"--script {script} is neither a .py file nor executable", fix=f"chmod +x {script}")
    return Task(SCRIPT, "", "", program=lambda task_request: Program((str(path),), task_request.arguments)), request.words


def _plugin_sources(request: LaunchRequest) -> tuple[Path, ...]:
    """Return the files and folders with plug-ins: those of the project and --plugin, or the one of the run that is replayed."""
    replayed = request.environment.get("PRIMUS_REPLAY")
    if replayed:
        return tuple(item.path for item in restored_files.restore(Path(replayed)).plugins[:1])
    return sources(request.settings["direct.plugin"], request.cwd)


def plugins_of(request: LaunchRequest, task: Task) -> tuple[PluginFile, ...]:
    """Return the files of the plug-in that defines a task, its own file first; none if the task is not from a plug-in."""
    if not task.source:
        return ()
    replayed = request.environment.get("PRIMUS_REPLAY")
    if replayed:
        return restored_files.restore(Path(replayed)).plugins
    return files_of_task(task, _plugin_sources(request))


def _planned_steps(request: LaunchRequest, task: Task, run_dir: Path) -> tuple[tuple[PlannedStep, ...], tuple[PlannedStep, ...]]:
    """Return the hooks and the patches; a replay has those of the original run."""
    replayed = request.environment.get("PRIMUS_REPLAY")
    if replayed:
        restored = restored_files.restore(Path(replayed))
        return restored.hooks, restored.patches
    hooks = find_hooks(task.hook_folder, request.cwd, request.settings["direct.hooks"], run_dir)
    return hooks, tuple(_patch(request.cwd, name) for name in request.settings["direct.patch"])


def make_plan(request: LaunchRequest) -> Plan:
    """Plan a run on this host.

    Raises:
        PrimusError: The task or a setting is wrong, or the run is not possible on this host.
    """
    settings = request.settings
    task, arguments = chosen_task(request)
    run_dir = run_folder(request, task.name)
    remarks = check_arguments(request, run_dir)
    gpus = host_profile.found_gpus(request.root)
    topology = make_topology(settings, request.environment, gpus)
    if topology.nnodes > 1 and not settings["main.output"]:
        raise PlanError(
            f"a run on {topology.nnodes} nodes needs --output", fix="pass --output with a folder on storage that all nodes share"
        )
    hooks, patches = _planned_steps(request, task, run_dir)
    task_request = replace(
        _task_request(request, arguments, (*hooks, *patches)), run_dir=run_dir, ranks=topology.all_devices, gpu=_model(gpus)
    )
    python, variables = _interpreter(request, task, task_request)
    program = task.program(replace(task_request, python=python)) if task.program else Program(())
    if task.launcher == PYTHON:
        topology = replace(topology, nproc=1, single=True)
    elif program.per_node:
        topology = topology.per_node()
    binding = numa.should_bind(settings["direct.numa"], gpus, topology.nproc)
    plan = Plan(
        runtime="direct",
        task=task.name,
        words=request.words,
        command=_typed_command(request),
        run_dir=str(run_dir),
        cwd=str(request.cwd),
        python=python,
        prefix=launch_prefix(python, topology, settings["direct.torchrun_arg"], str(run_dir), bind=binding),
        program=_program_words(program.argv, python),
        program_arguments=program.arguments,
        environment=_environment(request, task, topology, run_dir, (*variables, *_of_program(program))),
        inherited=request.environment,
        topology=topology,
        settings=tuple(item for item in in_schema_order(settings) if not item.path.startswith(("container.", "slurm."))),
        hooks=hooks,
        patches=patches,
        plugins=plugins_of(request, task),
        files=program.files,
        last_rank_logs=program.last_rank_logs,
    )
    return replace(plan, notes=(*remarks, *program.notes, *_notes(request, task, binding=binding)))


def with_arguments(plan: Plan, request: LaunchRequest, task: Task, added: Sequence[str]) -> Plan:
    """Return the plan of the same task with more arguments, those that a hook or a patch printed.

    Raises:
        PrimusError: An argument is wrong.
    """
    _, arguments = chosen_task(request)
    if task.program is None or not added:
        return replace(plan, program_arguments=(*plan.program_arguments, *added))
    run_dir = Path(plan.run_dir)
    task_request = replace(
        _task_request(request, (*arguments, *added)),
        python=plan.python,
        prepared=True,
        run_dir=run_dir,
        ranks=plan.topology.all_devices,
        gpu=_model(host_profile.found_gpus(request.root)),
    )
    program = task.program(task_request)
    return replace(plan, program_arguments=program.arguments, files=program.files).with_variables(program.environment, RUN)


def _interpreter(request: LaunchRequest, task: Task, task_request: Request) -> tuple[str, tuple[Variable, ...]]:
    """Return the Python that runs the program, and the variables of its virtual environment.

    A task with an environment of its own uses that one, unless the command line names an interpreter: settings files name the one of the
    native trainer. In a container, the interpreter is the image's.
    """
    named = request.settings.origin("direct.python").startswith("flag") or any(
        word.partition("=")[0] == "--venv" for word in _typed_command(request)
    )
    own = task.python(task_request) if task.python and not named else ""
    if own:
        return own, ()
    search, variables = _virtual_environment(request)
    python = shutil.which(request.settings["direct.python"], path=search)
    if python is None:
        fix = "pass --venv or --python with the Python that has torch"
        raise PlanError(f"{request.settings['direct.python']} is not on the PATH", fix=fix)
    return python, variables


def _model(gpus: GpuFindings) -> str:
    """Return the model of the GPUs; empty if there are none, or if several models share a PCI id."""
    return gpus.models[0] if len(gpus.models) == 1 else ""


def _of_program(program: Program) -> tuple[Variable, ...]:
    return tuple(Variable(name, value, RUN, "the backend needs it") for name, value in program.environment.items())


def _task_request(request: LaunchRequest, arguments: tuple[str, ...], steps: Sequence[PlannedStep] = ()) -> Request:
    """Return the input of a task, without the interpreter; `steps` are the hooks and patches of the run."""
    return Request(
        arguments,
        "",
        lambda: workloads_folder(request.settings["direct.workloads"], request.environment),
        cwd=request.cwd,
        prepared=any(step.phase in (BEFORE, PATCH) and step.origin != "built-in" for step in steps),
        backend_folder=request.settings["backend.folder"],
    )


def check_arguments(request: LaunchRequest, run_dir: Path, find: Callable[[Path], Path | None] = lambda path: path) -> tuple[str, ...]:
    """Check the arguments of the task where the command is typed; return remarks for the plan.

    Args:
        request: The run; another primus-cli may start it, in a container or on other nodes.
        run_dir: Its folder.
        find: Returns where a file of the run is on this machine; None if only the image may have it.

    Raises:
        UsageError: An argument or a file of the task is wrong.
    """
    task, arguments = chosen_task(request)
    if task.check is None:
        return ()
    hooks, patches = _planned_steps(request, task, run_dir)
    return task.check(replace(_task_request(request, arguments, (*hooks, *patches)), find=find))


def help_of_task(request: LaunchRequest) -> str | None:
    """Return the help of the task if its arguments ask for it; None if they do not, or if the task's program prints its own help."""
    if request.settings["direct.script"] or not HELP & set(request.words):
        return None
    known = all_tasks(plugin_tasks(_plugin_sources(request)))
    words = tuple(word for word in request.words if word not in HELP)
    group = [task for name, task in known.items() if not words or name.startswith(f"{' '.join(words)} ")]
    if group and " ".join(words) not in known:  # no task, or only the first word of some
        return table(group)
    task, arguments = find_task(words, plugin_tasks(_plugin_sources(request)))
    return task.help(_task_request(request, arguments)) if task.help else None


def _typed_command(request: LaunchRequest) -> tuple[str, ...]:
    """Return the command line as the user typed it; an outer runtime forwards it in PRIMUS_COMMAND.

    A variable of this name that no runtime has set is ignored.
    """
    try:
        forwarded = json.loads(request.environment.get("PRIMUS_COMMAND", "null"))
    except (ValueError, RecursionError):
        return request.command
    is_command = isinstance(forwarded, list) and bool(forwarded) and all(isinstance(word, str) for word in forwarded)
    return tuple(forwarded) if is_command else request.command


def _program_words(argv: Sequence[str], python: str) -> tuple[str, ...]:
    return (python, *argv) if argv and argv[0].endswith(".py") else tuple(argv)


def launch_prefix(python: str, topology: Topology, extra: Sequence[str], run_dir: str, *, bind: bool) -> tuple[str, ...]:
    """Return the words before the program: torchrun with the topology, then the supervisor of each rank."""
    rank_words = (*rank.prefix(run_dir, python), *((*own_command(python), "bind") if bind else ()))
    if topology.single:
        return rank_words
    shape = [f"--nnodes={topology.nnodes}", f"--nproc-per-node={topology.nproc}"]
    if topology.nnodes == 1:
        shape.append("--standalone")  # torchrun selects a free port, so that two runs on one host do not conflict
    elif topology.rendezvous == "c10d":
        endpoint = f"{topology.master_addr}:{topology.master_port}"
        host = "1" if topology.node_rank == 0 else "0"
        shape += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={Path(run_dir).name}", f"--rdzv-conf=is_host={host}"]
    else:
        shape += [f"--node-rank={topology.node_rank}", f"--master-addr={topology.master_addr}", f"--master-port={topology.master_port}"]
    return (python, "-m", "torch.distributed.run", *shape, *extra, "--no-python", *rank_words)


def _virtual_environment(request: LaunchRequest) -> tuple[str, tuple[Variable, ...]]:
    """Return the search path and the variables of the virtual environment, if there is one."""
    path = request.environment.get("PATH", os.defpath)
    venv, activate = request.settings["direct.venv"], request.environment.get("VENV_ACTIVATE", "")
    if not venv and not activate:
        return path, ()
    folder, origin = (request.cwd / venv, "direct.venv") if venv else (Path(activate).parent.parent, "VENV_ACTIVATE")
    programs = folder / "bin"
    if not (programs / "python").exists():
        raise PlanError(f"{origin}: {folder} is not a virtual environment", fix="give the folder that contains bin/python")
    search = f"{programs}{os.pathsep}{path}"
    return search, (Variable("PATH", search, f"{RUN} {origin}"), Variable("VIRTUAL_ENV", str(folder), f"{RUN} {origin}"))


def _environment(request: LaunchRequest, task: Task, topology: Topology, run_dir: Path, venv: Sequence[Variable]) -> tuple[Variable, ...]:
    """Return the variables to set, by name. The user's replace those of the run, which replace those of the host's profile."""
    grace = request.settings["direct.grace"]
    run_variables = {
        "RUN_DIR": (str(run_dir), "where the program writes"),
        "PRIMUS_TASK": (task.name, ""),
        "PRIMUS_NODE": (node_name(request), ""),
        "PRIMUS_PLAN": (str(plan_path(run_dir, topology.node_rank)), "the file with this plan"),
        "NNODES": (str(topology.nnodes), ""),
        "NODE_RANK": (str(topology.node_rank), ""),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": (str(grace), "torchrun waits for checkpoints as long as --grace"),
    }
    if topology.nproc > 1 and "OMP_NUM_THREADS" not in request.environment:
        run_variables["OMP_NUM_THREADS"] = ("1", "torchrun's default for several processes")
    if task.launcher == PYTHON or topology.devices:
        run_variables["RANK"] = (str(topology.node_rank), "one process per node")
        run_variables.update({"WORLD_SIZE": (str(topology.nnodes), ""), "LOCAL_RANK": ("0", "")})
    if topology.devices and topology.nnodes > 1:
        run_variables["MASTER_ADDR"] = (topology.master_addr, "the processes of all nodes meet there")
        run_variables["MASTER_PORT"] = (str(topology.master_port), "")
    variables = {item.name: item for item in _profile(request)}
    variables.update({name: Variable(name, value, RUN, reason) for name, (value, reason) in run_variables.items()})
    variables.update({item.name: item for item in venv})
    user = request.settings.items["direct.env"]
    for name, value in user.value.items():
        variables[name] = Variable(name, _as_text(name, value, user.origins[name]), f"{USER} {user.origins[name]}")
    return tuple(variables[name] for name in sorted(variables))


def _profile(request: LaunchRequest) -> list[Variable]:
    if not request.settings["direct.profile"]:
        return []
    profile = host_profile.host_profile(request.root)
    return [
        Variable(entry.variable, entry.value, f"{PROFILE} {entry.origin}", entry.reason)
        for entry in profile.entries
        if entry.variable not in request.environment
    ]


def _as_text(name: str, value: object, origin: str) -> str:
    if isinstance(value, bool):
        raise UsageError(f"{origin}: direct.env: {name}: expected a text, got {value!r}", fix='write it in quotes: "1" or "true"')
    text = str(value)
    if "\0" in text or not name.isidentifier():
        raise UsageError(f"{origin}: direct.env: {name!r} is not a valid variable", fix="use letters, digits and _ in the name")
    return text


def node_name(request: LaunchRequest) -> str:
    """Return this node's name: the one of Slurm if nodes_from is slurm, otherwise the host name."""
    slurm = request.environment.get("SLURMD_NODENAME") if request.settings["direct.nodes_from"] == "slurm" else ""
    return slurm or socket.gethostname()


def plan_path(run_dir: Path, node_rank: int) -> Path:
    """Return the file of a node's plan."""
    return run_dir / ("plan.json" if node_rank == 0 else f"plan-{node_rank:05d}.json")


def _patch(cwd: Path, name: str) -> PlannedStep:
    path = cwd / name
    if not path.is_file() or path.suffix not in (".sh", ".py"):
        raise UsageError(f"--patch {name}: not a .sh or .py file, or not found", fix="give the path of a .sh or .py file")
    return PlannedStep(PATCH, str(path), "--patch")


def _notes(request: LaunchRequest, task: Task, *, binding: bool) -> tuple[str, ...]:
    notes = ["each rank is bound to the CPUs and memory near its GPU"] if binding else []
    if request.environment.get("PRIMUS_SKIP_MAIN_LAUNCH", "0") not in ("", "0"):
        notes.append("PRIMUS_SKIP_MAIN_LAUNCH is set: only hooks and patches run, the program is not started")
    if "PRIMUS_REPLAY" not in request.environment:
        known = [item.hook_folder for item in all_tasks(plugin_tasks(_plugin_sources(request))).values()]
        notes += not_run(task.hook_folder, known, request.cwd, request.settings["direct.hooks"])
    if task.launcher == HERE:
        notes.append("the task runs in this process; no run folder is created")
    return tuple(notes)
