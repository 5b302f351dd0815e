"""Find the way in which systemd starts in a container here, by trying: it depends on kernel, cgroups, limits and runtime."""

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
from primus_bootstrap.lab.containers import remove
from primus_bootstrap.lab.lab_values import LabError, MachineError, Say
from primus_bootstrap.lab.program import run

if TYPE_CHECKING:
    from primus_bootstrap.lab.image import Image
    from primus_bootstrap.lab.machine import Machine

FAKE_GPUS = 8
_BOOT_S = 20.0
_GOOD = "running"


@dataclass(frozen=True, slots=True)
class SystemdRecipe:
    """Flags that start systemd here; `title` says them in words, `note` what nodes will lack or show, empty where nothing."""

    title: str
    engine_flags: tuple[str, ...]
    create_flags: tuple[str, ...]
    note: str = ""


# Who makes a container's control group: the engine's own choice first, then the other two.
_PODMAN_GROUPS = tuple(
    SystemdRecipe(manager, (f"--cgroup-manager={manager}",) if manager else (), ()) for manager in ("", "cgroupfs", "systemd")
)
# Docker mounts control groups read-only; systemd gets its own part of the tree to write in.
_DOCKER_GROUPS = tuple(
    SystemdRecipe(f"{space} control groups", (), (f"--cgroupns={space}", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw"))
    for space in ("host", "private")
)


def find_boot_form(machine: Machine, image: Image, say: Say) -> SystemdRecipe:
    """Return the remembered form, or the first one in which systemd reaches `running`.

    Raises:
        MachineError: systemd starts in none.
    """
    memory = _memory(machine, image)
    key = _circumstances(machine, image)
    remembered = _recall(memory, key)
    if remembered:
        return remembered
    say(f"trying how systemd of {image.suite} starts in a container on this machine")
    form = _search(machine, image)
    say(f"systemd of {image.suite} starts: {form.title}" + (f"; {form.note}" if form.note else ""))
    text = json.dumps({"key": key, "form": asdict(form)}, indent=2)
    write_atomic(memory, text + "\n", durable=False)  # what is lost is tried again
    return form


def forget_boot_form(machine: Machine, image: Image) -> None:
    """Forget what worked, so that the next `find_boot_form` tries again."""
    _memory(machine, image).unlink(missing_ok=True)


def bases(machine: Machine) -> tuple[SystemdRecipe, ...]:
    """Return the ways to start systemd at all, in the order of trying: runtimes, control groups, limits."""
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


def with_extras(base: SystemdRecipe) -> tuple[SystemdRecipe, ...]:
    """Return what a way to start systemd can be given on top, the most capable first, and the bare form last."""
    no_fuse = "nodes cannot mount file systems (no FUSE here)"
    extras = (
        ("with FUSE mounts", (*_fuse_flags(), *_fake_gpu_flags()), ""),
        ("without FUSE mounts", _fake_gpu_flags(), no_fuse),
        ("without devices", (), f"{no_fuse} and have no /dev/fakegpu*"),
    )
    return tuple(
        replace(base, title=f"{base.title}, {title}", create_flags=(*base.create_flags, *flags), note=note) for title, flags, note in extras
    )


def _memory(machine: Machine, image: Image) -> Path:
    # One a release: a newer systemd asks more of the machine.
    return machine.cache / f"boot-form-{image.suite}.json"


def _fuse_flags() -> tuple[str, ...]:
    # Confinement profiles forbid mounts even where the capability is there.
    confinement = ("--security-opt", "apparmor=unconfined", "--security-opt", "label=disable")
    return ("--device", "/dev/fuse", "--cap-add", "SYS_ADMIN", *confinement)


def _fake_gpu_flags() -> tuple[str, ...]:
    return tuple(flag for number in range(FAKE_GPUS) for flag in ("--device", f"/dev/null:/dev/fakegpu{number}"))


def _systemd_flags(machine: Machine) -> tuple[str, ...]:
    if machine.engine == "podman":
        # --no-hosts: /etc/hosts is a plain file as on a server, which a role may replace.
        return ("--systemd=always", "--no-hosts")
    scratch = tuple(flag for path in ("/run", "/run/lock", "/tmp") for flag in ("--tmpfs", path))  # noqa: S108
    return (*scratch, "--env", "container=docker", "--stop-signal", "SIGRTMIN+3")


def _runtimes(machine: Machine) -> tuple[Path, ...]:
    """Return the engine's own runtime (an empty path) and, of podman, the others that are installed."""
    if machine.engine != "podman":
        return (Path(),)
    own = run([*machine.engine_argv, "info", "--format", "{{.Host.OCIRuntime.Path}}"], timeout_s=30, check=False).out.strip()
    search = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
    found = [path for path in (shutil.which(name, path=search) for name in ("crun", "runc")) if path]
    return (Path(), *(Path(path) for path in found if not own or Path(path).name != Path(own).name))


def _limits() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the engine's own limits, then this machine's, then low ones: limits cannot be raised without CAP_SYS_RESOURCE."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    files, processes = (value if value > 0 else 1 << 20 for value in (files, processes))

    def flags(most_files: int, most_processes: int) -> tuple[str, ...]:
        number_of_files, number_of_processes = min(files, most_files), min(processes, most_processes)
        return (f"--ulimit=nofile={number_of_files}:{number_of_files}", f"--ulimit=nproc={number_of_processes}:{number_of_processes}")

    return (("", ()), ("limits of this machine", flags(1 << 20, 32768)), ("low limits", flags(1024, 4096)))


def _circumstances(machine: Machine, image: Image) -> str:
    parts = (
        machine.engine,
        machine.engine_version,
        *machine.engine_argv,
        platform.release(),
        image.reference,
        repr(bases(machine)),
        repr(with_extras(SystemdRecipe("", (), ()))),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _recall(memory: Path, key: str) -> SystemdRecipe | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads(memory.read_text())
        form = data["form"]
        if data["key"] == key:
            return SystemdRecipe(form["title"], tuple(form["engine_flags"]), tuple(form["create_flags"]), form["note"])
    return None


@dataclass(frozen=True, slots=True)
class _Trial:
    """How one form did; `state` is systemd's word, or says that nothing started."""

    base: SystemdRecipe
    form: SystemdRecipe
    state: str
    detail: str


def _search(machine: Machine, image: Image) -> SystemdRecipe:
    """Find a base that boots bare (or, where none does, with everything), then give it as much as it bears.

    Bare first keeps the number of trials small: a base that does not start is not tried with every extra.
    """
    every = bases(machine)
    trials: list[_Trial] = []
    best = None
    for extra in (-1, 0):
        best = best or _best_of(machine, image, [(base, with_extras(base)[extra]) for base in every], trials)
    if best is None:
        raise MachineError(
            f"systemd of {image.suite} does not start in a container on this machine:\n" + _summary(trials),
            fix="run the lab on a machine or virtual machine where root has the usual capabilities; with podman, also try "
            f"the other runtime (apt-get install crun runc). `{machine.engine} info` shows what is there",
        )
    richer = _best_of(machine, image, [(best.base, form) for form in with_extras(best.base)[:-1]], trials)
    chosen = richer if richer and (richer.state == _GOOD or best.state != _GOOD) else best
    if chosen.state == _GOOD:
        return chosen.form
    note = "; ".join(part for part in (chosen.form.note, f"systemd is {chosen.state}, failed units: {chosen.detail}") if part)
    return replace(chosen.form, note=note)


def _best_of(machine: Machine, image: Image, forms: list[tuple[SystemdRecipe, SystemdRecipe]], trials: list[_Trial]) -> _Trial | None:
    """Try forms until one starts cleanly; else return the first one that started at all."""
    degraded = None
    for base, form in forms:
        trial = _Trial(base, form, *_boot_once(machine, image, form))
        trials.append(trial)
        if trial.state == _GOOD:
            return trial
        if trial.state == "degraded":
            degraded = degraded or trial
    return degraded


def _summary(trials: list[_Trial]) -> str:
    """Say what went wrong, each cause once, with the forms that met it."""
    causes: dict[str, list[str]] = {}
    for trial in trials:
        cause = re.sub(r"[0-9a-f]{12,}", "…", f"{trial.state}: {trial.detail}")
        causes.setdefault(cause, []).append(trial.form.title)
    return "\n".join(f"  {cause}\n    with {'; '.join(titles)}" for cause, titles in causes.items())


def _boot_once(machine: Machine, image: Image, form: SystemdRecipe) -> tuple[str, str]:
    """Start a throw-away container and wait for systemd; return its state and what explains it."""
    name = f"primus-lab-probe-{os.getpid()}"
    argv = [*machine.engine_argv, *form.engine_flags, "run", "--detach", "--name", name, "--network=none", *form.create_flags]
    try:
        # sshd has no host key in a throw-away container and would fail; systemd reads its arguments as a kernel command line.
        started = run([*argv, image.reference, "/sbin/init", "systemd.mask=ssh.service"], timeout_s=60, check=False)
        if started.code:
            return "does not start", started.err.strip().splitlines()[-1] if started.err.strip() else f"exit status {started.code}"
        return _wait_for_systemd(machine, name)
    finally:
        with contextlib.suppress(LabError):
            remove(machine, [name])


def _wait_for_systemd(machine: Machine, container: str) -> tuple[str, str]:
    deadline = time.monotonic() + _BOOT_S
    state = "no answer"
    while time.monotonic() < deadline:
        done = run([*machine.engine_argv, "exec", container, "systemctl", "is-system-running"], timeout_s=30, check=False)
        state = done.out.strip() or "no answer"
        if state in (_GOOD, "degraded", "maintenance"):
            break
        running = run([*machine.engine_argv, "inspect", "--format", "{{.State.Running}}", container], timeout_s=30, check=False)
        if running.out.strip() == "false":
            state = "ended at once"
            break
        time.sleep(0.2)
    if state == _GOOD:
        return state, ""
    failed = run([*machine.engine_argv, "exec", container, "systemctl", "--failed", "--no-legend", "--plain"], timeout_s=30, check=False)
    units = ", ".join(line.split()[0] for line in failed.out.splitlines() if line.split())
    logs = run([*machine.engine_argv, "logs", container], timeout_s=30, check=False)
    return state, units or (logs.out + logs.err).strip()[-300:] or "it wrote nothing"
