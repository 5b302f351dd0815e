"""Check this machine's requirements for a lab: its release, a container engine, root and a cache folder."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from primus_bootstrap.lab.commands import run
from primus_bootstrap.lab.lab_values import MachineError

_DEBIAN_SUITES = ("bookworm", "trixie")


@dataclass(frozen=True, slots=True)
class Machine:
    """The properties of this machine that the lab uses.

    `engine` is `podman` or `docker`, or `qemu` for virtual machines. `sudo` is the prefix of a command that needs root; empty for
    root. `codename` is the machine's release, `suites` the releases that a node can have, the default one first.
    """

    engine: str
    engine_version: str
    sudo: tuple[str, ...]
    codename: str
    suites: tuple[str, ...]
    cache: Path

    @property
    def engine_argv(self) -> tuple[str, ...]:
        """The engine's command with its prefix."""
        return (*(() if self.engine == "docker" and _docker_socket_is_open() else self.sudo), self.engine)


def inspect_machine() -> Machine:
    """Return the properties of this machine.

    Raises:
        MachineError: A requirement is missing.
    """
    codename, suites = release(Path("/etc/os-release"))
    sudo = sudo_prefix()
    engine, version = _engine(sudo)
    if shutil.which("mmdebstrap") is None:
        raise MachineError("mmdebstrap is not installed", fix="apt-get install mmdebstrap, or run `make setup` in a checkout")
    return Machine(engine, version, sudo, codename, suites, cache_dir())


def release(os_release: Path) -> tuple[str, tuple[str, ...]]:
    """Return the machine's code name and the releases that its nodes can have, the default one first.

    Raises:
        MachineError: The machine is neither Debian nor Ubuntu nor derived from them.
    """
    try:
        fields = platform._parse_os_release(os_release.read_text().splitlines())  # type: ignore[attr-defined]  # noqa: SLF001
    except OSError:
        fields = {}
    family = (fields.get("ID", ""), *fields.get("ID_LIKE", "").split())
    ubuntu = fields.get("UBUNTU_CODENAME", "") or (fields.get("VERSION_CODENAME", "") if "ubuntu" in family else "")
    if ubuntu:
        return ubuntu, (ubuntu,)
    if "debian" in family:
        return fields.get("DEBIAN_CODENAME", "") or fields.get("VERSION_CODENAME", "") or "sid", _DEBIAN_SUITES
    raise MachineError(
        f"the lab needs Debian or Ubuntu, and this machine runs {fields.get('PRETTY_NAME', 'another system')}",
        fix="run `lab up` on Debian 12 or 13 or Ubuntu 22.04 or 24.04; `apply` to real hosts works from this machine",
    )


def cache_dir() -> Path:
    """Return the cache folder, and create it if it is missing.

    Raises:
        MachineError: It cannot be created.
    """
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "primus-bootstrap"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"cannot create the cache folder {folder}: {error.strerror}", fix="set XDG_CACHE_HOME to a folder that you can write"
        ) from error
    return folder


def sudo_prefix() -> tuple[str, ...]:
    """Return the prefix of a command that needs root: empty for root, and where sudo is not installed."""
    if os.geteuid() == 0:
        return ()
    if shutil.which("sudo") is None:
        return ()
    if run(["sudo", "-n", "true"], timeout_s=10, check=False).code and sys.stdin.isatty():
        # Prompts for the password; later calls use sudo's cached credentials.
        subprocess.run(["sudo", "-v"], timeout=300, check=False)
    return ("sudo", "-n")


def _docker_socket_is_open() -> bool:
    return os.access("/var/run/docker.sock", os.R_OK | os.W_OK)


def _engine(sudo: tuple[str, ...]) -> tuple[str, str]:
    """Return the first engine that works, and its version. A rootless engine does not: its nodes have no reachable address."""
    failures = []
    for engine in ("podman", "docker"):
        if shutil.which(engine) is None:
            failures.append(f"{engine}: not installed")
            continue
        prefix = () if engine == "docker" and _docker_socket_is_open() else sudo
        if not prefix and os.geteuid() and engine == "podman":
            failures.append("podman: needs root to create a network, and sudo is not installed")
            continue
        # podman's `info` checks storage and kernel, docker's `version` the daemon.
        question = ("info", "--format", "{{.Version.Version}}") if engine == "podman" else ("version", "--format", "{{.Server.Version}}")
        answer = run([*prefix, engine, *question], timeout_s=30, check=False)
        if answer.code == 0:
            return engine, answer.stdout.strip()
        failures.append(f"{engine}: {answer.last_words(2) or 'no output'}")
    raise MachineError(
        "no container engine works on this machine:\n  " + "\n  ".join(failures),
        fix="as root: apt-get install podman runc netavark aardvark-dns iptables nftables (or `make setup` in a checkout). "
        "If podman is installed, run `podman info` as root to see the cause; a container often may not start containers",
    )
