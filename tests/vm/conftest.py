"""Fixtures of the tests on a virtual machine: one machine a session, to which the cluster was applied once."""

from __future__ import annotations

import os
from ipaddress import IPv4Network
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.apt_settings import read_apt_settings
from primus_bootstrap.lab.lab_values import MachineError, make_lab
from primus_bootstrap.lab.vm.virtual_machine import running_machine
from primus_bootstrap.lab.vm.vm_image import ensure_vm_image, inspect_for_vms, vm_image_for
from tests.vm.vm_rig import BOOT_S, AppliedVm

if TYPE_CHECKING:
    from collections.abc import Iterator

# A network of QEMU's process; nothing outside it sees these addresses.
_SUBNET = IPv4Network("10.187.254.0/24")
_SUITE = "trixie"


@pytest.fixture(scope="session")
def bare_vm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppliedVm]:
    """Start a machine with the packages of a fresh server, two swap files and a time server."""
    try:
        machine = inspect_for_vms()
    except MachineError as error:
        pytest.skip(f"this machine cannot run virtual machines: {error}")
    settings = read_apt_settings(machine.codename, sudo=machine.sudo)
    image = vm_image_for(machine, _SUITE)
    ensure_vm_image(machine, image, settings, print)
    folder = tmp_path_factory.mktemp("vm")
    lab = make_lab(f"vm{os.getpid()}", folder, subnet=_SUBNET, count=1, suites=(_SUITE,))
    with running_machine(machine, lab, lab.nodes[0], image, settings) as started:
        started.wait_until_ready(timeout_s=BOOT_S)
        vm = AppliedVm(started)
        vm.write_hosts_file()
        vm.prepare()
        yield vm


@pytest.fixture(scope="session")
def vm(bare_vm: AppliedVm) -> AppliedVm:
    """The machine after `apply` and the reboot by the day-2 playbook, which the kernel arguments wait for."""
    first = bare_vm.apply("--phase", "preflight", "--phase", "baseline")
    assert first.returncode == 0, first.stdout + first.stderr
    assert list(bare_vm.verdicts("fail")) == ["baseline.kernel_arguments"], first.stdout
    before = bare_vm.boot_id()
    done = bare_vm.reboot()
    assert done.returncode == 0, done.stdout + done.stderr + bare_vm.machine.last_console_lines()
    assert bare_vm.boot_id() != before
    return bare_vm
