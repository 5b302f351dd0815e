"""The command line of QEMU, and its monitor, which takes snapshots."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from primus_bootstrap.lab.lab_values import LabError

if TYPE_CHECKING:
    from pathlib import Path

_PROMPT = b"(qemu) "


def qemu_argv(  # noqa: PLR0913 - one parameter per setting
    folder: Path, *, subnet: str, address: str, port: int, cpus: int, memory_mib: int
) -> list[str]:
    """Return QEMU's command for a machine whose files are in a folder.

    The processor is emulated, because nested virtualisation is often absent and sometimes present but unusable. QEMU ends with the
    thread that started it, so that a killed program leaves no machine behind.

    Args:
        folder: The folder with `disk.qcow2` and `seed.tar`. QEMU creates `console.log` and `monitor.sock` in it.
        subnet: The machine's network, a private one of this process.
        address: The machine's address in it.
        port: The port of 127.0.0.1 that leads to the machine's port 22.
        cpus: Processors.
        memory_mib: Memory.
    """
    return [
        *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"),
        *("-nodefaults", "-display", "none", "-machine", "q35", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max"),
        *("-smp", str(cpus), "-m", str(memory_mib)),
        *("-drive", f"file={folder}/disk.qcow2,if=virtio,format=qcow2,cache=unsafe"),
        *("-drive", f"file={folder}/seed.tar,if=virtio,format=raw,readonly=on"),
        *("-netdev", f"user,id=net,net={subnet},dhcpstart={address},hostfwd=tcp:127.0.0.1:{port}-{address}:22"),
        *("-device", "virtio-net-pci,netdev=net", "-device", "virtio-rng-pci"),
        *("-serial", f"file:{folder}/console.log", "-monitor", f"unix:{folder}/monitor.sock,server,nowait"),
    ]


def ask_monitor(monitor: Path, command: str, *, timeout_s: float) -> str:
    """Run a command of QEMU's monitor and return its output.

    Raises:
        LabError: QEMU does not answer in time.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(monitor))
            _read_to_prompt(connection, deadline)
            connection.sendall(f"{command}\n".encode())
            # The first line repeats the command.
            return _read_to_prompt(connection, deadline).partition("\n")[2].strip()
    except OSError as error:
        raise LabError(
            f"QEMU did not carry out `{command}` within {timeout_s:g} s: {error}", fix=f"see {monitor.parent}/console.log and qemu.log"
        ) from error


def _read_to_prompt(connection: socket.socket, deadline: float) -> str:
    text = b""
    while not text.endswith(_PROMPT):
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        part = connection.recv(65536)
        if not part:
            raise ConnectionResetError("QEMU closed its monitor")
        text += part
    return text[: -len(_PROMPT)].decode(errors="replace").replace("\r", "")
