"""Test the name of a virtual machine's disk and the arguments of QEMU."""

from __future__ import annotations

from pathlib import Path

import pytest

from primus_bootstrap.lab.lab_values import MachineError
from primus_bootstrap.lab.machine import Machine
from primus_bootstrap.lab.vm import vm_image
from primus_bootstrap.lab.vm.qemu import qemu_argv
from primus_bootstrap.lab.vm.vm_image import inspect_for_vms, vm_image_for


def test_disk_name_depends_on_its_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal inputs give equal names; another release, package or script gives another name."""
    machine = Machine("qemu", "7.2", (), "bookworm", ("bookworm", "trixie"), tmp_path)
    trixie = vm_image_for(machine, "trixie").disk

    assert trixie == vm_image_for(machine, "trixie").disk
    assert trixie.parent == tmp_path / "vm"
    others = {vm_image_for(machine, "bookworm").disk}
    for name, value in (("PACKAGES", ("curl",)), ("_CUSTOMIZE", Path(__file__)), ("_DISK_SCRIPT", Path(__file__))):
        with monkeypatch.context() as changed:
            changed.setattr(vm_image, name, value)
            others.add(vm_image_for(machine, "trixie").disk)
    assert len(others | {trixie}) == 5


def test_machine_is_reachable_on_loopback_only_and_ends_with_its_parent() -> None:
    """QEMU forwards one port of 127.0.0.1, has no other listener than a Unix socket, and gets a death signal."""
    argv = qemu_argv(Path("/lab"), subnet="10.187.254.0/24", address="10.187.254.11", port=4022, cpus=2, memory_mib=1024)
    listeners = [word for word in argv if "hostfwd" in word or "server" in word]

    assert argv[:4] == ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"]
    assert listeners == [
        "user,id=net,net=10.187.254.0/24,dhcpstart=10.187.254.11,hostfwd=tcp:127.0.0.1:4022-10.187.254.11:22",
        "unix:/lab/monitor.sock,server,nowait",
    ]
    assert not any("kvm" in word for word in argv)


def test_missing_programs_are_named_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without QEMU the message has the command that installs it."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(vm_image, "PROGRAMS", {"no-such-qemu": "qemu-system-x86"})
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(MachineError) as caught:
        inspect_for_vms()
    assert caught.value.fix == "apt-get install --no-install-recommends qemu-system-x86"
