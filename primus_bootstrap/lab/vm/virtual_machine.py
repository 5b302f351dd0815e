"""Start, reach, snapshot and stop one virtual machine."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.lab.commands import run
from primus_bootstrap.lab.lab_values import USER, Lab, LabError, LabNode
from primus_bootstrap.lab.node_files import node_archive
from primus_bootstrap.lab.ssh_keys import ensure_keys, host_key_file, public_key
from primus_bootstrap.lab.vm.qemu import ask_monitor, qemu_argv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.core.commands import Completed
    from primus_bootstrap.lab.apt_settings import AptSettings
    from primus_bootstrap.lab.machine import Machine
    from primus_bootstrap.lab.vm.vm_image import VmImage

_CONSOLE_LINES = 15
_STOP_S = 20.0
# An emulated processor on a busy machine needs minutes for the keys of a login.
_LOGIN_S = 400.0


@dataclass(frozen=True, slots=True)
class VirtualMachine:
    """A machine of a lab. `folder` contains its disk and logs, `port` of 127.0.0.1 leads to its sshd."""

    lab: Lab
    node: LabNode
    folder: Path
    port: int

    @property
    def console(self) -> Path:
        """The output of its boot loader, kernel and systemd."""
        return self.folder / "console.log"

    def last_console_lines(self) -> str:
        """Return the end of the console's output."""
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        return "\n".join(text.splitlines()[-_CONSOLE_LINES:])

    def ssh(self, command: str, *, timeout_s: float = 120.0) -> Completed:
        """Run a command as the administrator, who has sudo; the exit code is 255 if ssh failed.

        Raises:
            LabError: The command did not end in time.
        """
        options = ["BatchMode=yes", "ConnectTimeout=300", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", "LogLevel=ERROR"]
        options.append(f'UserKnownHostsFile="{self.lab.known_hosts}"')
        words = [word for option in options for word in ("-o", option)]
        argv = ["ssh", "-F", "none", "-n", *words, "-i", str(self.lab.key_file), "-p", str(self.port), f"{USER}@127.0.0.1", command]
        return run(argv, timeout_s=timeout_s, check=False)

    def wait_until_ready(self, *, timeout_s: float) -> None:
        """Wait until SSH works and systemd has started everything.

        Raises:
            LabError: The machine was not ready in time.
        """
        deadline, reason = time.monotonic() + timeout_s, "ssh was not tried"
        while time.monotonic() < deadline:
            with contextlib.suppress(LabError):
                done = self.ssh("systemctl is-system-running", timeout_s=min(_LOGIN_S, max(1.0, deadline - time.monotonic())))
                reason = done.stdout.strip() if done.code != 255 else done.last_words()
                if reason in ("running", "degraded"):
                    return
            time.sleep(2)
        raise LabError(
            f"{self.node.name} was not ready within {timeout_s:g} s ({reason}). End of its console:\n{self.last_console_lines()}",
            fix=f"read {self.console}; an emulated machine needs most of one processor while it boots",
        )

    def save_snapshot(self, name: str, *, timeout_s: float = 600.0) -> None:
        """Save the memory and the disk, so that `restore_snapshot` can go back to this moment.

        Raises:
            LabError: QEMU could not save them.
        """
        self._ask(f"savevm {name}", timeout_s)

    def restore_snapshot(self, name: str, *, timeout_s: float = 600.0) -> None:
        """Return to a saved moment. The machine's clock continues from there until its time service corrects it.

        Raises:
            LabError: There is no such snapshot.
        """
        self._ask(f"loadvm {name}", timeout_s)

    def _ask(self, command: str, timeout_s: float) -> None:
        answer = ask_monitor(self.folder / "monitor.sock", command, timeout_s=timeout_s)
        if answer:
            raise LabError(f"QEMU refused `{command}`: {answer}", fix="start the machine again")


@contextlib.contextmanager
def running_machine(  # noqa: PLR0913 - all needed
    machine: Machine, lab: Lab, node: LabNode, image: VmImage, settings: AptSettings, *, cpus: int = 2, memory_mib: int = 1536
) -> Iterator[VirtualMachine]:
    """Create a machine from an image, start it for the block, then stop it and delete its disk.

    Raises:
        LabError: QEMU did not start.
    """
    folder = lab.lab_state / node.name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    ensure_keys(lab)
    started = VirtualMachine(lab, node, folder, _free_port())
    _create_files(machine, started, image, settings)
    argv = qemu_argv(folder, subnet=str(lab.subnet), address=node.address, port=started.port, cpus=cpus, memory_mib=memory_mib)
    with (folder / "qemu.log").open("wb") as log, subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process:
        try:
            time.sleep(1)  # long enough for QEMU to refuse its arguments
            if process.poll() is not None:
                reason = (folder / "qemu.log").read_text(errors="replace").strip()
                raise LabError(f"QEMU ended at once: {reason}", fix=f"run it by hand to see more: {' '.join(argv)}")
            yield started
        finally:
            _stop(process)
            (folder / "disk.qcow2").unlink(missing_ok=True)


def _create_files(machine: Machine, started: VirtualMachine, image: VmImage, settings: AptSettings) -> None:
    """Create the disk, the archive with the machine's own files, and the pinned host key."""
    lab, node, folder = started.lab, started.node, started.folder
    extra = {"/etc/hostname": f"{node.name}\n", "/etc/resolv.conf": f"nameserver {lab.subnet.network_address + 3}\n"}
    write_atomic(folder / "seed.tar", node_archive(machine, lab, node, settings, extra), mode=0o600)
    disk = folder / "disk.qcow2"
    disk.unlink(missing_ok=True)
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(image.disk), "-F", "raw", str(disk)], timeout_s=60)
    write_atomic(lab.known_hosts, f"[127.0.0.1]:{started.port} {public_key(host_key_file(lab, node))}\n", mode=0o600)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
        return
    process.kill()
    process.wait(_STOP_S)
