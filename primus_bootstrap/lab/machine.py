"""What this machine offers a lab: its release, a container engine, root, a cache folder. Says what is missing and how to get it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from primus_bootstrap.lab.lab_values import MachineError
from primus_bootstrap.lab.program import last_lines, run

_DEBIAN_SUITES = ("bookworm", "trixie")


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine as the lab sees it.

    `engine` is `podman` or `docker`, `engine_version` what it says of itself. `sudo` goes before every command that needs
    root, empty where we are root. `codename` is the machine's own release, `suites` the releases that a node can have, the
    default one first.
    """

    engine: str
    engine_version: str
    sudo: tuple[str, ...]
    codename: str
    suites: tuple[str, ...]
    cache: Path

    @property
    def engine_argv(self) -> tuple[str, ...]:
        """How to call the engine."""
        return (*(() if self.engine == "docker" and _docker_socket_is_open() else self.sudo), self.engine)


def look_at_machine() -> Machine:
    """Find out what this machine offers.

    Raises:
        MachineError: Something is missing; the message says what and how to get it.
    """
    codename, suites = release(Path("/etc/os-release"))
    sudo = _sudo()
    engine, version = _engine(sudo)
    if shutil.which("mmdebstrap") is None:
        raise MachineError("mmdebstrap is not installed", fix="apt-get install mmdebstrap (or `make setup` in a checkout)")
    return Machine(engine, version, sudo, codename, suites, cache_dir())


def release(os_release: Path) -> tuple[str, tuple[str, ...]]:
    """Return the machine's code name and the releases that a host of its lab can have, the default one first.

    Raises:
        MachineError: The machine is neither Debian nor Ubuntu nor made from them.
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
        f"the lab builds its hosts from the packages of Debian or Ubuntu; this machine is {fields.get('PRETTY_NAME', 'something else')}",
        fix="run the lab on a Debian 12 or 13 or Ubuntu 22.04 or 24.04 machine; apply works from here, towards real hosts",
    )


def cache_dir() -> Path:
    """Return the folder of built images, made where absent.

    Raises:
        MachineError: It cannot be written.
    """
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "primus-bootstrap"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(f"cannot write the cache {folder}: {error.strerror}", fix="set XDG_CACHE_HOME to a folder of yours") from error
    return folder


def _sudo() -> tuple[str, ...]:
    if os.geteuid() == 0:
        return ()
    if shutil.which("sudo") is None:
        return ()
    if run(["sudo", "-n", "true"], timeout_s=10, check=False).code and sys.stdin.isatty():
        # Asks on the terminal; sudo remembers the answer for the calls that follow.
        subprocess.run(["sudo", "-v"], timeout=300, check=False)
    return ("sudo", "-n")


def _docker_socket_is_open() -> bool:
    return os.access("/var/run/docker.sock", os.R_OK | os.W_OK)


def _engine(sudo: tuple[str, ...]) -> tuple[str, str]:
    """Return the first engine that answers, and its version; rootless engines give nodes no address that this machine can reach."""
    tried = []
    for engine in ("podman", "docker"):
        if shutil.which(engine) is None:
            tried.append(f"{engine}: not installed")
            continue
        prefix = () if engine == "docker" and _docker_socket_is_open() else sudo
        if not prefix and os.geteuid() and engine == "podman":
            tried.append("podman: needs root for a network of its own, and sudo is not installed")
            continue
        # `info` looks at storage and kernel, `version` of docker at its daemon: what cannot work here fails now.
        question = ("info", "--format", "{{.Version.Version}}") if engine == "podman" else ("version", "--format", "{{.Server.Version}}")
        answer = run([*prefix, engine, *question], timeout_s=30, check=False)
        if answer.code == 0:
            return engine, answer.out.strip()
        tried.append(f"{engine}: {last_lines(answer.err, 2)}")
    raise MachineError(
        "no container engine works here:\n  " + "\n  ".join(tried),
        fix="as root: apt-get install podman runc netavark aardvark-dns iptables nftables (or `make setup` in a checkout); where podman is "
        "installed, `podman info` as root shows what it lacks, and a container or a sandbox may not be allowed to start containers",
    )
