"""Find container flags with which systemd starts on this machine, by trial: they depend on kernel, cgroups, limits and runtime."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.lab.commands import run
from primus_bootstrap.lab.containers import remove
from primus_bootstrap.lab.lab_values import LabError, MachineError, Progress, SystemdRecipe

if TYPE_CHECKING:
    from primus_bootstrap.lab.image import Image
    from primus_bootstrap.lab.machine import Machine

FAKE_GPUS = 8
_BOOT_S = 20.0
_GOOD = "running"


# The manager of a container's control group: the engine's default first.
_PODMAN_GROUPS = tuple(
    SystemdRecipe(manager, (f"--cgroup-manager={manager}",) if manager else (), ()) for manager in ("", "cgroupfs", "systemd")
)
# Docker mounts control groups read-only, and systemd needs write access.
_DOCKER_GROUPS = tuple(
    SystemdRecipe(f"{space} control groups", (), (f"--cgroupns={space}", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw"))
    for space in ("host", "private")
)


def find_systemd_recipe(machine: Machine, image: Image, progress: Progress) -> SystemdRecipe:
    """Return the cached recipe, or the first one with which systemd reaches `running`.

    Raises:
        MachineError: systemd does not start with any recipe.
    """
    cache = _cache_file(machine, image)
    key = _cache_key(machine, image)
    cached = _read_cache(cache, key)
    if cached:
        return cached
    progress(f"testing how systemd of {image.suite} starts in a container on this machine")
    recipe = _search(machine, image)
    progress(f"systemd of {image.suite} starts with: {recipe.title}" + (f"; {recipe.note}" if recipe.note else ""))
    text = json.dumps({"key": key, "form": asdict(recipe)}, indent=2)
    write_atomic(cache, text + "\n", durable=False)
    return recipe


def forget_systemd_recipe(machine: Machine, image: Image) -> None:
    """Delete the cached recipe, so that the next `find_systemd_recipe` searches again."""
    _cache_file(machine, image).unlink(missing_ok=True)


def base_recipes(machine: Machine) -> tuple[SystemdRecipe, ...]:
    """Return the basic recipes in the order in which they are tried: runtimes, control groups, limits."""
    return tuple(
        SystemdRecipe(
            title=", ".join((runtime.name or f"{machine.engine}'s own runtime", *(part for part in (groups.title, limit_title) if part))),
            engine_flags=(*(("--runtime", str(runtime)) if runtime.name else ()), *groups.engine_flags),
            create_flags=(*_systemd_flags(machine), *groups.create_flags, *limits),
        )
        for runtime in _runtimes(machine)
        for groups in (_PODMAN_GROUPS if machine.engine == "podman" else _DOCKER_GROUPS)
        for limit_title, limits in _limits()
    )


def recipes_with_extras(base: SystemdRecipe) -> tuple[SystemdRecipe, ...]:
    """Return a basic recipe with extra devices, the most capable variant first, and without extras last."""
    no_fuse = "nodes cannot mount file systems (no FUSE here)"
    extras = (
        ("with FUSE mounts", (*_fuse_flags(), *_packet_filter_flags(), *_fake_gpu_flags()), ""),
        ("without FUSE mounts", _fake_gpu_flags(), no_fuse),
        ("without devices", (), f"{no_fuse} and have no /dev/fakegpu*"),
    )
    return tuple(
        replace(base, title=f"{base.title}, {title}", create_flags=(*base.create_flags, *flags), note=note) for title, flags, note in extras
    )


def _cache_file(machine: Machine, image: Image) -> Path:
    # One per release: a newer systemd has more requirements.
    return machine.cache / f"boot-form-{image.suite}.json"


def _fuse_flags() -> tuple[str, ...]:
    # AppArmor and SELinux profiles forbid mounts even with the capability.
    confinement = ("--security-opt", "apparmor=unconfined", "--security-opt", "label=disable")
    return ("--device", "/dev/fuse", "--cap-add", "SYS_ADMIN", *confinement)


def _packet_filter_flags() -> tuple[str, ...]:
    # Of the container's own network only.
    return ("--cap-add", "NET_ADMIN")


def _fake_gpu_flags() -> tuple[str, ...]:
    return tuple(flag for number in range(FAKE_GPUS) for flag in ("--device", f"/dev/null:/dev/fakegpu{number}"))


def _systemd_flags(machine: Machine) -> tuple[str, ...]:
    if machine.engine == "podman":
        # --no-hosts: /etc/hosts is a regular file as on a server, so that a role can replace it.
        return ("--systemd=always", "--no-hosts")
    scratch = tuple(flag for path in ("/run", "/run/lock", "/tmp") for flag in ("--tmpfs", path))  # noqa: S108
    return (*scratch, "--env", "container=docker", "--stop-signal", "SIGRTMIN+3")


def _runtimes(machine: Machine) -> tuple[Path, ...]:
    """Return the engine's default runtime (an empty path) and, for podman, the other installed ones."""
    if machine.engine != "podman":
        return (Path(),)
    default = run([*machine.engine_argv, "info", "--format", "{{.Host.OCIRuntime.Path}}"], timeout_s=30, check=False).stdout.strip()
    search = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
    found = [path for path in (shutil.which(name, path=search) for name in ("crun", "runc")) if path]
    return (Path(), *(Path(path) for path in found if not default or Path(path).name != Path(default).name))


def _limits() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the engine's default limits, this machine's, and low ones: raising a limit needs CAP_SYS_RESOURCE."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    files, processes = (value if value > 0 else 1 << 20 for value in (files, processes))

    def flags(most_files: int, most_processes: int) -> tuple[str, ...]:
        number_of_files, number_of_processes = min(files, most_files), min(processes, most_processes)
        return (f"--ulimit=nofile={number_of_files}:{number_of_files}", f"--ulimit=nproc={number_of_processes}:{number_of_processes}")

    return (("", ()), ("limits of this machine", flags(1 << 20, 32768)), ("low limits", flags(1024, 4096)))


def _cache_key(machine: Machine, image: Image) -> str:
    parts = (
        machine.engine,
        machine.engine_version,
        *machine.engine_argv,
        platform.release(),
        image.reference,
        repr(base_recipes(machine)),
        repr(recipes_with_extras(SystemdRecipe("", (), ()))),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _read_cache(cache: Path, key: str) -> SystemdRecipe | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads(cache.read_text())
        recipe = data["form"]
        if data["key"] == key:
            return SystemdRecipe(recipe["title"], tuple(recipe["engine_flags"]), tuple(recipe["create_flags"]), recipe["note"])
    return None


@dataclass(frozen=True, slots=True)
class _Trial:
    """The result of one recipe: systemd's state, or that it did not start, and the cause."""

    base: SystemdRecipe
    recipe: SystemdRecipe
    state: str
    detail: str


def _search(machine: Machine, image: Image) -> SystemdRecipe:
    """Find a base that starts without extras, or else with all extras; then add as many extras as possible.

    Testing without extras first keeps the number of trials small.
    """
    trials: list[_Trial] = []
    best = None
    for extra in (-1, 0):
        best = best or _best_of(machine, image, [(base, recipes_with_extras(base)[extra]) for base in base_recipes(machine)], trials)
    if best is None:
        raise MachineError(
            f"systemd of {image.suite} does not start in a container on this machine:\n" + _summary(trials),
            fix="run the lab on a machine or virtual machine where root has the usual capabilities; with podman, also install "
            f"the other runtime (apt-get install crun runc). `{machine.engine} info` shows the current one",
        )
    richer = _best_of(machine, image, [(best.base, recipe) for recipe in recipes_with_extras(best.base)[:-1]], trials)
    chosen = richer if richer and (richer.state == _GOOD or best.state != _GOOD) else best
    if chosen.state == _GOOD:
        return chosen.recipe
    note = "; ".join(part for part in (chosen.recipe.note, f"systemd is {chosen.state}, failed units: {chosen.detail}") if part)
    return replace(chosen.recipe, note=note)


def _best_of(machine: Machine, image: Image, recipes: list[tuple[SystemdRecipe, SystemdRecipe]], trials: list[_Trial]) -> _Trial | None:
    """Try recipes until systemd reaches `running`; else return the first `degraded` one, or None."""
    degraded = None
    for base, recipe in recipes:
        trial = _Trial(base, recipe, *_boot_once(machine, image, recipe))
        trials.append(trial)
        if trial.state == _GOOD:
            return trial
        if trial.state == "degraded":
            degraded = degraded or trial
    return degraded


def _summary(trials: list[_Trial]) -> str:
    """Return each cause once, with the recipes that failed because of it."""
    causes: dict[str, list[str]] = {}
    for trial in trials:
        cause = re.sub(r"[0-9a-f]{12,}", "…", f"{trial.state}: {trial.detail}")
        causes.setdefault(cause, []).append(trial.recipe.title)
    return "\n".join(f"  {cause}\n    with {'; '.join(titles)}" for cause, titles in causes.items())


def _boot_once(machine: Machine, image: Image, recipe: SystemdRecipe) -> tuple[str, str]:
    """Start a temporary container and wait for systemd; return its state and the cause of a failure."""
    name = f"primus-lab-probe-{os.getpid()}"
    argv = [*machine.engine_argv, *recipe.engine_flags, "run", "--detach", "--name", name, "--network=none", *recipe.create_flags]
    try:
        # Without a host key sshd would fail. systemd parses its arguments like a kernel command line.
        started = run([*argv, image.reference, "/sbin/init", "systemd.mask=ssh.service"], timeout_s=60, check=False)
        if started.code:
            return "does not start", started.stderr.strip().splitlines()[-1] if started.stderr.strip() else f"exit code {started.code}"
        return _wait_for_systemd(machine, name)
    finally:
        with contextlib.suppress(LabError):
            remove(machine, [name])


def _wait_for_systemd(machine: Machine, container: str) -> tuple[str, str]:
    deadline = time.monotonic() + _BOOT_S
    state = "no answer"
    while time.monotonic() < deadline:
        done = run([*machine.engine_argv, "exec", container, "systemctl", "is-system-running"], timeout_s=30, check=False)
        state = done.stdout.strip() or "no answer"
        if state in (_GOOD, "degraded", "maintenance"):
            break
        running = run([*machine.engine_argv, "inspect", "--format", "{{.State.Running}}", container], timeout_s=30, check=False)
        if running.stdout.strip() == "false":
            state = "the container exited"
            break
        time.sleep(0.2)
    if state == _GOOD:
        return state, ""
    failed = run([*machine.engine_argv, "exec", container, "systemctl", "--failed", "--no-legend", "--plain"], timeout_s=30, check=False)
    units = ", ".join(line.split()[0] for line in failed.stdout.splitlines() if line.split())
    logs = run([*machine.engine_argv, "logs", container], timeout_s=30, check=False)
    return state, units or (logs.stdout + logs.stderr).strip()[-300:] or "no output"
