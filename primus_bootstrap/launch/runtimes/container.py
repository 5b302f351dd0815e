"""The runtime `container`: run the task in an image with docker, podman or Apptainer. Removes only the container that it started."""

from __future__ import annotations

import fnmatch
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core import child_processes
from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.detect import host_profile
from primus_bootstrap.launch.run_plan import RUN, USER, Plan, Variable
from primus_bootstrap.launch.runtimes import container_devices, container_image, container_limits, forwarded_plugins, forwarded_settings
from primus_bootstrap.launch.runtimes.container_mounts import check_mounts
from primus_bootstrap.launch.runtimes.direct_plan import check_arguments, chosen_task, run_folder
from primus_bootstrap.launch.runtimes.run_folder import make_run_folder, preparing
from primus_bootstrap.launch.settings.layered_settings import in_schema_order, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from primus_bootstrap.launch.runtimes.direct_plan import LaunchRequest
    from primus_bootstrap.launch.settings.layered_settings import Setting
    from primus_bootstrap.launch.settings.parser import CommandLine

_ENGINES = ("docker", "podman", "apptainer")
_ENGINE_ERRORS = {
    125: "the engine itself failed",
    126: "the engine cannot start the container, or the image's python3 cannot be run",
    127: "the image has no such command",
}
_AFTER_GRACE_S = 20  # added to --grace of the run inside: the engine stops the container and collects its logs
_REMOVE_TIMEOUT_S = 60
_SELINUX = "sys/fs/selinux/class"  # exists if a policy is loaded: https://docs.docker.com/engine/containers/run/#security-configuration
_SITE_FOLDER = Path("/etc/primus")


def make_plan(_line: CommandLine, request: LaunchRequest) -> Plan:
    """Plan a run in a container.

    Raises:
        PrimusError: There is no engine or image, or a folder or the task does not exist.
    """
    settings = request.settings
    task, _ = chosen_task(request)
    run_dir = str(run_folder(request, task.name))
    folders = tuple(mounts(request, run_dir))
    remarks = check_arguments(request, Path(run_dir), mounted_files(folders))
    engine = _engine(request)
    vendor = container_devices.vendor(settings["container.gpus"], host_profile.found_gpus(request.root))
    image, image_remark = container_image.chosen(settings, vendor, engine)
    inside = forwarded_settings.variables(request)
    names = sorted({*_passed(request), *inside})
    make = _apptainer_words if engine == "apptainer" else _docker_words
    built_in = schema()["container.ulimit"].default
    limits, lowered = container_limits.words(engine, settings["container.ulimit"], built_in, request.root)
    host_words = (*container_devices.words(engine, vendor, request.root), *limits)
    prefix = (shutil.which(engine) or engine, *make(request, engine, host_words, (folders, names, run_dir)), image)
    return Plan(
        runtime="container",
        task=task.name,
        words=request.words,
        command=request.command,
        run_dir=run_dir,
        cwd=str(request.cwd),
        prefix=prefix,
        program=(
            settings["container.python"],
            str(forwarded_settings.portable_program(run_dir)),
            forwarded_settings.ONLY_FLAGS,
            *inner_words(request, run_dir),
        ),
        program_arguments=("--", *request.words),
        environment=_client_environment(engine, request, inside, names),
        inherited=forwarded_settings.without_settings(request.environment),
        settings=shown_settings(request),
        notes=(f"GPU devices: {vendor}", f"engine: {engine}", image_remark, *lowered, *remarks),
    )


def shown_settings(request: LaunchRequest) -> tuple[Setting, ...]:
    """Return the settings of the runtimes container and direct."""
    return tuple(item for item in in_schema_order(request.settings) if not item.path.startswith("slurm."))


def inner_words(request: LaunchRequest, run_dir: str) -> tuple[str, ...]:
    """Return the command line of the direct run in the container."""
    python = request.settings["direct.python"]
    inside = {} if request.settings.origin("direct.python") != "built-in" else {"python": request.settings["container.python"]}
    replaced = {**(inside or {"python": python}), **forwarded_plugins.setting(request, run_dir)}
    return ("direct", f"--output={run_dir}", *forwarded_settings.flags(request, "direct", **replaced))


def _engine(request: LaunchRequest) -> str:
    setting = request.settings["container.engine"]
    candidates = _ENGINES if setting == "auto" else (setting,)
    path = request.environment.get("PATH", os.defpath)
    found = next((name for name in candidates if shutil.which(name, path=path)), "")
    if not found:
        raise PlanError(
            f"no container engine is installed (looked for {', '.join(candidates)})",
            fix="install one (role container_runtime), or pass --engine with one that is installed",
        )
    return found


def _passed(request: LaunchRequest) -> list[str]:
    """Return the names of the variables to pass: those that match a pattern and are not settings."""
    patterns = request.settings["container.env_pass"]
    names = forwarded_settings.without_settings(request.environment)
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def mounts(request: LaunchRequest, run_dir: str, *, here: bool = True) -> Iterator[str]:
    """Yield SOURCE:TARGET[:options] for everything that the run reads or writes.

    Args:
        request: The run.
        run_dir: Its folder.
        here: A mount of the user must exist on this machine. False: other machines start the container.

    Raises:
        UsageError: A path cannot be mounted.
    """
    settings = request.settings
    program = forwarded_settings.portable_program(run_dir)
    built_in = [str(request.cwd), run_dir]
    for folder in (request.cwd, Path(run_dir)):
        _check_separators(folder, str(folder))
    if settings["direct.workloads"]:
        built_in.append(f"{settings['direct.workloads']}::ro")
    if Path(run_dir) not in program.parents:
        built_in.append(f"{program}:{program}:ro")
    if _SITE_FOLDER.is_dir():
        built_in.append(f"{_SITE_FOLDER}:{_SITE_FOLDER}:ro")
    files = [*settings["direct.patch"], *([settings["direct.script"]] if settings["direct.script"] else [])]
    replayed = [request.environment["PRIMUS_REPLAY"]] if request.environment.get("PRIMUS_REPLAY") else []
    outside = {(request.cwd / name).resolve().parent for name in files} | {
        (request.cwd / name).resolve() for name in (*settings["direct.hooks"], *replayed)
    }
    built_in += [f"{folder}:{folder}:ro" for folder in sorted(outside) if request.cwd not in (folder, *folder.parents)]
    origin = settings.origin("container.volume").replace("flag --", "--")
    check_mounts(settings["container.volume"], request.cwd, origin)
    mounted: set[str] = set()
    for volume in (*built_in, *settings["container.volume"]):
        source, _, rest = volume.partition(":")
        path = (request.cwd / source).absolute()
        rest = f"{path}{rest}" if rest.startswith(":") else rest
        missing = volume in settings["container.volume"] and not path.exists()
        if missing and here:
            raise UsageError(
                f"{origin} {volume}: {path} does not exist", fix=f"mkdir -p {path} (the engine would create an empty folder owned by root)"
            )
        _check_separators(path, volume)
        mount = f"{path}:{rest or path}"
        if mount not in mounted:
            mounted.add(mount)
            yield mount


def mounted_files(folders: Sequence[str]) -> Callable[[Path], Path | None]:
    """Return a function that finds a file of the container on this host; it returns None without a mount SOURCE:TARGET of the file here."""
    sources = {Path(mount.split(":")[1]): Path(mount.split(":")[0]) for mount in folders}

    def find(path: Path) -> Path | None:
        inside = Path(os.path.normpath(path))
        target = next((parent for parent in (inside, *inside.parents) if parent in sources), None)
        return sources[target] / inside.relative_to(target) if target and sources[target].exists() else None

    return find


def _check_separators(path: Path, given: str) -> None:
    """Raise if a path contains a separator: mounts are written SOURCE:TARGET, and lists of mounts have commas."""
    if ":" in str(path) or "," in str(path):
        raise UsageError(
            f"container: {given} cannot be mounted: its path contains ':' or ','", fix="rename the folder, or use a symbolic link to it"
        )


def _docker_words(
    request: LaunchRequest, engine: str, host_words: Sequence[str], parts: tuple[Sequence[str], Sequence[str], str]
) -> tuple[str, ...]:
    mounts, names, run_dir = parts
    settings = request.settings
    single = {"ipc": "ipc", "network": "network", "shm_size": "shm-size", "pull": "pull"}
    repeated = {"device": "device", "cap_add": "cap-add", "security_opt": "security-opt"}
    return (
        "run",
        "--rm",
        f"--name={container_name(request)}",
        f"--label=primus.run={run_dir}",
        f"--cidfile={cid_file(run_dir, request)}",
        f"--workdir={request.cwd}",
        *(f"--{word}={settings[f'container.{key}']}" for key, word in single.items() if settings[f"container.{key}"]),
        *host_words,
        *(f"--{word}={value}" for key, word in repeated.items() for value in settings[f"container.{key}"]),
        *(("--privileged",) if settings["container.privileged"] else ()),
        *(
            ("--security-opt=label=disable",) if engine == "podman" or (request.root / _SELINUX).is_dir() else ()
        ),  # labels would block the mounts
        *(f"--volume={mount}" for mount in mounts),
        *(f"--env={name}" for name in names),
        *settings["container.engine_arg"],
        "--entrypoint=",
    )


def _apptainer_words(
    request: LaunchRequest, _engine: str, host_words: Sequence[str], parts: tuple[Sequence[str], Sequence[str], str]
) -> tuple[str, ...]:
    mounts, _, _ = parts
    return (
        "exec",
        "--cleanenv",
        f"--pwd={request.cwd}",
        *host_words,
        *(f"--bind={mount}" for mount in mounts),
        *request.settings["container.engine_arg"],
    )


def _client_environment(engine: str, request: LaunchRequest, inside: dict[str, str], names: Sequence[str]) -> tuple[Variable, ...]:
    """Return the variables for the engine's process: docker and podman read values by name, Apptainer by the prefix APPTAINERENV_."""
    variables = [Variable(name, value, USER if name in request.settings["direct.env"] else RUN, "") for name, value in inside.items()]
    if engine == "apptainer":
        values = {**request.environment, **inside}
        variables += [Variable(f"APPTAINERENV_{name}", values[name], RUN, "passed into the container") for name in names]
    return tuple(sorted(variables, key=lambda item: item.name))


def container_name(request: LaunchRequest) -> str:
    """Return the container's name, unique on this host."""
    run = request.environment.get("SLURM_JOB_ID") or str(os.getpid())
    return request.settings["container.name"] or f"primus-{run}-{request.environment.get('SLURM_STEP_ID', '0')}-{_node_number(request)}"


def _node_number(request: LaunchRequest) -> str:
    return request.environment.get("SLURM_NODEID") or request.environment.get("NODE_RANK") or "0"


def cid_file(run_dir: str, request: LaunchRequest) -> Path:
    """Return the file to which the engine writes the container's id."""
    return Path(run_dir) / f"container-{_node_number(request)}-{os.getpid()}.cid"


def run(plan: Plan, request: LaunchRequest) -> int:
    """Start the container, pass signals on, wait for it and remove it; return its exit code."""
    make_run_folder(Path(plan.run_dir))
    with preparing(Path(plan.run_dir)):
        forwarded_settings.write_portable_program(request, plan.run_dir)
    with child_processes.StopSignals() as signals:
        child_processes.become_subreaper()
        child = child_processes.start(plan.argv, plan.full_environment(), folder=plan.cwd)
        grace = request.settings["direct.grace"] + _AFTER_GRACE_S
        code = child_processes.supervise(child, signals, grace_s=grace)
        _end_container(plan, request)
        child_processes.end_descendants(1)
    if code in _ENGINE_ERRORS:
        sys.stderr.write(
            f"primus-cli: {_ENGINE_ERRORS[code]} (exit {code})\n  fix: read the engine's message above. The image needs python3 and torch. "
            "If the message is about rlimits, pass values that this machine allows: --ulimit memlock=8388608\n"
        )
    return 128 - code if code < 0 else code


def _end_container(plan: Plan, request: LaunchRequest) -> None:
    """Remove the container of this run, by the id that the engine wrote, if it still exists. Does not change the exit code."""
    file = cid_file(plan.run_dir, request)
    try:
        identifier = file.read_text("utf-8").strip()
    except FileNotFoundError:
        return
    except OSError as error:
        fix = f"find it with `{plan.argv[0]} ps` and remove it with `{plan.argv[0]} rm --force ID`"
        sys.stderr.write(f"primus-cli: {file} cannot be read ({error.strerror}); the container may still be running\n  fix: {fix}\n")
        return
    if identifier:
        try:
            run_command([plan.argv[0], "rm", "--force", identifier], timeout_s=_REMOVE_TIMEOUT_S)
        except TimeoutError:
            command = f"{plan.argv[0]} rm --force {identifier}"
            sys.stderr.write(
                f"primus-cli: no answer from the engine in {_REMOVE_TIMEOUT_S} s; the container may still run\n  fix: {command}\n"
            )
            return
    with suppress(OSError):
        file.unlink()
