"""Test how a virtual machine is started, saved and stopped, with an empty disk, so that nothing has to boot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from ipaddress import IPv4Network
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.apt_settings import AptSettings
from primus_bootstrap.lab.lab_values import LabError, MachineError, make_lab
from primus_bootstrap.lab.vm.qemu import ask_monitor
from primus_bootstrap.lab.vm.virtual_machine import running_machine
from primus_bootstrap.lab.vm.vm_image import VmImage, inspect_for_vms
from tests.lab.lab_rig import ROOT
from tests.waiting import until

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from primus_bootstrap.lab.vm.virtual_machine import VirtualMachine

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900), pytest.mark.long("primus_bootstrap/lab/vm")]


def _start(folder: Path) -> AbstractContextManager[VirtualMachine]:
    """Return a machine with an empty disk, not yet started."""
    disk = folder / "empty.raw"
    disk.touch()
    os.truncate(disk, 16 << 20)
    lab = make_lab("vmtest", folder, subnet=IPv4Network("10.187.253.0/24"), count=1, suites=("trixie",))
    settings = AptSettings("trixie", (), (), (), ())
    return running_machine(inspect_for_vms(), lab, lab.nodes[0], VmImage("trixie", disk), settings, cpus=1, memory_mib=128)


def _monitor(folder: Path) -> Path:
    return folder / ".primus/vmtest/node1/monitor.sock"


def _answers(folder: Path) -> bool:
    try:
        return "running" in ask_monitor(_monitor(folder), "info status", timeout_s=10)
    except LabError:
        return False


@pytest.fixture(autouse=True)
def _need_qemu() -> None:
    try:
        inspect_for_vms()
    except MachineError as error:
        pytest.skip(f"this machine cannot run virtual machines: {error}")


def test_machine_ends_with_the_block_and_its_disk_is_deleted(tmp_path: Path) -> None:
    """After the block QEMU does not answer, the disk is gone, and the console's output stays."""
    with _start(tmp_path) as machine:
        assert _answers(tmp_path)
        assert (machine.folder / "disk.qcow2").exists()

    assert not _answers(tmp_path)
    assert not (machine.folder / "disk.qcow2").exists()
    assert machine.console.exists()


def test_snapshot_that_exists_is_restored_and_another_one_is_refused(tmp_path: Path) -> None:
    """`restore_snapshot` goes back to a saved moment; an unknown name is an error with QEMU's words."""
    with _start(tmp_path) as machine:
        machine.save_snapshot("begin")
        assert "begin" in ask_monitor(_monitor(tmp_path), "info snapshots", timeout_s=60)
        machine.restore_snapshot("begin")
        with pytest.raises(LabError, match="other"):
            machine.restore_snapshot("other")


def test_machine_that_does_not_boot_is_reported_in_time(tmp_path: Path) -> None:
    """The error names the machine, the limit and the file with its console."""
    with _start(tmp_path) as machine, pytest.raises(LabError, match="node1 was not ready within 5 s") as caught:
        machine.wait_until_ready(timeout_s=5)
    assert "console.log" in caught.value.fix


def test_killed_program_leaves_no_machine(tmp_path: Path) -> None:
    """If the program that started it is killed, QEMU ends as well."""
    script = "import sys, time; from pathlib import Path; from tests.vm.test_vm_machine import _start\n"
    script += "with _start(Path(sys.argv[1])): print('started', flush=True); time.sleep(600)"
    argv = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "started\n"
            assert _answers(tmp_path)
        finally:
            program.send_signal(signal.SIGKILL)

    until(lambda: not _answers(tmp_path), "QEMU still runs")
