"""The runtime `container`: the same words in an image, by docker, podman or Apptainer. Touches only the container that it started."""

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
from primus_bootstrap.launch.commandline.layered_settings import schema, shown
from primus_bootstrap.launch.detect import host_profile
from primus_bootstrap.launch.runtimes import container_devices, container_limits, forwarded_settings
from primus_bootstrap.launch.runtimes.direct_plan import chosen_task, run_folder
from primus_bootstrap.launch.runtimes.run_folder import make_run_folder, preparing
from primus_bootstrap.launch.runtimes.run_plan import RUN, USER, Plan, Variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.launch.commandline.layered_settings import Setting
    from primus_bootstrap.launch.commandline.parser import CommandLine
    from primus_bootstrap.launch.runtimes.direct_plan import LaunchRequest

_ENGINES = ("docker", "podman", "apptainer")
_ENGINE_ERRORS = {
    125: "the engine itself failed",
    126: "the engine cannot start the container, or the image's python3 cannot be run",
    127: "the image has no such command",
}
_AFTER_GRACE_S = 20  # the run inside has --grace for its checkpoint; then the container's own end and its logs
_REMOVE_TIMEOUT_S = 60
_SELINUX = "sys/fs/selinux/class"  # there where a policy is loaded: https://docs.docker.com/engine/containers/run/#security-configuration
_SITE_FOLDER = Path("/etc/primus")


def make_plan(_line: CommandLine, asked: LaunchRequest) -> Plan:
    """Plan a run in a container.

    Raises:
        PrimusError: No engine or image, a folder that is not there, or a task that does not exist.
    """
    settings = asked.settings
    task, _ = chosen_task(asked)
    run_dir = str(run_folder(asked, task.name))
    engine = _engine(asked)
    image = settings["container.image"]
    if not image:
        raise UsageError("container: there is no image", fix="set --image, or container: {image: ...} in a settings file")
    whose = container_devices.vendor(settings["container.gpus"], host_profile.found_gpus(asked.root))
    inside = forwarded_settings.variables(asked)
    names = sorted({*_passed(asked), *inside})
    folders = tuple(mounts(asked, run_dir))
    make = _apptainer_words if engine == "apptainer" else _docker_words
    built_in = schema()["container.ulimit"].default
    limits, lowered = container_limits.words(engine, settings["container.ulimit"], built_in, asked.root)
    host_words = (*container_devices.words(engine, whose, asked.root), *limits)
    prefix = (shutil.which(engine) or engine, *make(asked, engine, host_words, (folders, names, run_dir)), image)
    return Plan(
        runtime="container",
        task=task.name,
        words=asked.words,
        command=asked.command,
        run_dir=run_dir,
        cwd=str(asked.cwd),
        prefix=prefix,
        program=(
            settings["container.python"],
            str(forwarded_settings.portable_program(run_dir)),
            forwarded_settings.ONLY_FLAGS,
            *inner_words(asked, run_dir),
        ),
        program_arguments=("--", *asked.words),
        environment=_client_environment(engine, asked, inside, names),
        inherited=forwarded_settings.without_settings(asked.environment),
        settings=shown_settings(asked),
        notes=(f"devices: {whose}", f"engine: {engine}", *lowered),
    )


def shown_settings(asked: LaunchRequest) -> tuple[Setting, ...]:
    """Return the settings that matter to a container."""
    return tuple(item for item in shown(asked.settings) if not item.path.startswith("slurm."))


def inner_words(asked: LaunchRequest, run_dir: str) -> tuple[str, ...]:
    """Return the words of the direct run inside."""
    python = asked.settings["direct.python"]
    inside = {} if asked.settings.origin("direct.python") != "built-in" else {"python": asked.settings["container.python"]}
    return ("direct", f"--output={run_dir}", *forwarded_settings.flags(asked, "direct", **(inside or {"python": python})))


def _engine(asked: LaunchRequest) -> str:
    wanted = asked.settings["container.engine"]
    candidates = _ENGINES if wanted == "auto" else (wanted,)
    path = asked.environment.get("PATH", os.defpath)
    found = next((name for name in candidates if shutil.which(name, path=path)), "")
    if not found:
        raise PlanError(
            f"none of these is installed here: {', '.join(candidates)}", fix="install one (role container_runtime), or set --engine"
        )
    return found


def _passed(asked: LaunchRequest) -> list[str]:
    """Return the names of variables that go in: those that match a pattern, and are no settings."""
    patterns = asked.settings["container.env_pass"]
    names = forwarded_settings.without_settings(asked.environment)
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def mounts(asked: LaunchRequest, run_dir: str) -> Iterator[str]:
    """Return SOURCE:TARGET[:options] of everything that the run inside reads or writes."""
    settings = asked.settings
    program = forwarded_settings.portable_program(run_dir)
    own = [str(asked.cwd), run_dir]
    for folder in (asked.cwd, Path(run_dir)):
        _refuse_separators(folder, str(folder))
    if settings["direct.workloads"]:
        own.append(f"{settings['direct.workloads']}::ro")
    if Path(run_dir) not in program.parents:
        own.append(f"{program}:{program}:ro")
    if _SITE_FOLDER.is_dir():
        own.append(f"{_SITE_FOLDER}:{_SITE_FOLDER}:ro")
    files = [*settings["direct.patch"], *([settings["direct.script"]] if settings["direct.script"] else [])]
    outside = {(asked.cwd / name).resolve().parent for name in files} | {(asked.cwd / name).resolve() for name in settings["direct.hooks"]}
    own += [f"{folder}:{folder}:ro" for folder in sorted(outside) if asked.cwd not in (folder, *folder.parents)]
    seen: set[str] = set()
    for volume in (*own, *settings["container.volume"]):
        source, _, rest = volume.partition(":")
        path = (asked.cwd / source).absolute()
        rest = f"{path}{rest}" if rest.startswith(":") else rest
        if volume in settings["container.volume"] and not path.exists():
            raise UsageError(
                f"--volume {volume}: there is no {path}", fix="make it first: an engine would make an empty folder that root owns"
            )
        _refuse_separators(path, volume)
        mount = f"{path}:{rest or path}"
        if mount not in seen:
            seen.add(mount)
            yield mount


def _refuse_separators(path: Path, given: str) -> None:
    """Refuse a folder whose name every engine would take for two: mounts are SOURCE:TARGET, and lists of them have commas."""
    if ":" in str(path) or "," in str(path):
        raise UsageError(
            f"container: {given} cannot be mounted: there is a ':' or ',' in its name", fix="use a folder without, or give it a link"
        )


def _docker_words(
    asked: LaunchRequest, engine: str, host_words: Sequence[str], parts: tuple[Sequence[str], Sequence[str], str]
) -> tuple[str, ...]:
    mounts, names, run_dir = parts
    settings = asked.settings
    one = {"ipc": "ipc", "network": "network", "shm_size": "shm-size", "pull": "pull"}
    many = {"device": "device", "cap_add": "cap-add", "security_opt": "security-opt"}
    return (
        "run",
        "--rm",
        f"--name={container_name(asked)}",
        f"--label=primus.run={run_dir}",
        f"--cidfile={cid_file(run_dir, asked)}",
        f"--workdir={asked.cwd}",
        *(f"--{word}={settings[f'container.{key}']}" for key, word in one.items() if settings[f"container.{key}"]),
        *host_words,
        *(f"--{word}={value}" for key, word in many.items() for value in settings[f"container.{key}"]),
        *(("--privileged",) if settings["container.privileged"] else ()),
        *(("--security-opt=label=disable",) if engine == "podman" or (asked.root / _SELINUX).is_dir() else ()),  # it would deny the mounts
        *(f"--volume={mount}" for mount in mounts),
        *(f"--env={name}" for name in names),
        *settings["container.engine_arg"],
        "--entrypoint=",
    )


def _apptainer_words(
    asked: LaunchRequest, _engine: str, host_words: Sequence[str], parts: tuple[Sequence[str], Sequence[str], str]
) -> tuple[str, ...]:
    mounts, _, _ = parts
    return (
        "exec",
        "--cleanenv",
        f"--pwd={asked.cwd}",
        *host_words,
        *(f"--bind={mount}" for mount in mounts),
        *asked.settings["container.engine_arg"],
    )


def _client_environment(engine: str, asked: LaunchRequest, inside: dict[str, str], names: Sequence[str]) -> tuple[Variable, ...]:
    """Return what the engine's own process gets; docker and podman read values by name, Apptainer by a prefix."""
    found = [Variable(name, value, USER if name in asked.settings["direct.env"] else RUN, "") for name, value in inside.items()]
    if engine == "apptainer":
        values = {**asked.environment, **inside}
        found += [Variable(f"APPTAINERENV_{name}", values[name], RUN, "goes in") for name in names]
    return tuple(sorted(found, key=lambda item: item.name))


def container_name(asked: LaunchRequest) -> str:
    """Return the container's name: one that no other run on this host has."""
    run = asked.environment.get("SLURM_JOB_ID") or str(os.getpid())
    return asked.settings["container.name"] or f"primus-{run}-{asked.environment.get('SLURM_STEP_ID', '0')}-{_node_number(asked)}"


def _node_number(asked: LaunchRequest) -> str:
    return asked.environment.get("SLURM_NODEID") or asked.environment.get("NODE_RANK") or "0"


def cid_file(run_dir: str, asked: LaunchRequest) -> Path:
    """Return the file in which the engine writes which container it started."""
    return Path(run_dir) / f"container-{_node_number(asked)}-{os.getpid()}.cid"


def run(plan: Plan, asked: LaunchRequest) -> int:
    """Start the container, pass signals on, wait, and see that it is gone; return its exit code."""
    make_run_folder(Path(plan.run_dir))
    with preparing(Path(plan.run_dir)):
        forwarded_settings.write_portable_program(asked, plan.run_dir)
    with child_processes.StopSignals() as signals:
        child_processes.become_subreaper()
        child = child_processes.start(plan.argv, plan.full_environment(), folder=plan.cwd)
        grace = asked.settings["direct.grace"] + _AFTER_GRACE_S
        code = child_processes.supervise(child, signals, grace_s=grace)
        _end_container(plan, asked)
        child_processes.end_descendants(1)
    if code in _ENGINE_ERRORS:
        sys.stderr.write(
            f"primus-cli: {_ENGINE_ERRORS[code]} (exit {code})\n  fix: see the engine's message above; the image needs python3 and torch; "
            "where it speaks of rlimits, give the ones that this machine allows: --ulimit memlock=8388608\n"
        )
    return 128 - code if code < 0 else code


def _end_container(plan: Plan, asked: LaunchRequest) -> None:
    """End the container of this run, by the id that the engine wrote, should it still be there; nothing here changes its exit code."""
    file = cid_file(plan.run_dir, asked)
    try:
        identifier = file.read_text("utf-8").strip()
    except FileNotFoundError:
        return
    except OSError as error:
        fix = f"see `{plan.argv[0]} ps`, and remove it there"
        sys.stderr.write(f"primus-cli: {file} cannot be read ({error.strerror}); the container may still run\n  fix: {fix}\n")
        return
    if identifier:
        try:
            run_command([plan.argv[0], "rm", "--force", identifier], timeout_s=_REMOVE_TIMEOUT_S)
        except TimeoutError:
            command = f"{plan.argv[0]} rm --force {identifier}"
            sys.stderr.write(
                f"primus-cli: the engine did not answer within {_REMOVE_TIMEOUT_S} s; its container may still run\n  fix: {command}\n"
            )
            return
    with suppress(OSError):
        file.unlink()
