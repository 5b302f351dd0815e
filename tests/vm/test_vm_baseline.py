"""Test on a kernel of its own what the role baseline sets, and what a container cannot show. The machine was applied and rebooted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.vm.vm_rig import AppliedVm

pytestmark = [pytest.mark.vm, pytest.mark.timeout(10800), pytest.mark.long("roles/baseline", "primus_bootstrap/lab/vm")]

# What this machine does not have. Everything else must pass.
_ABSENT = {"baseline.cpu_governor", "baseline.effect.needrestart"}


def test_verify_skips_only_what_the_machine_does_not_have(vm: AppliedVm) -> None:
    """After the reboot no check fails or is unknown, and only what is absent is skipped."""
    found = vm.verify()

    assert found["exit_code"] == 0, found
    assert vm.verdicts("fail", "unknown") == {}
    assert set(vm.verdicts("skipped")) == _ABSENT


def test_kernel_arguments_are_in_effect_after_the_reboot(vm: AppliedVm) -> None:
    """GRUB passed the arguments, the kernel reserved the huge pages, and transparent huge pages are off."""
    assert {"transparent_hugepage=never", "hugepages=32"} <= set(vm.sh("cat /proc/cmdline").split())
    assert vm.sh("cat /proc/sys/vm/nr_hugepages") == "32"
    assert "[never]" in vm.sh("cat /sys/kernel/mm/transparent_hugepage/enabled")


def test_settings_survive_the_reboot(vm: AppliedVm) -> None:
    """Both swap files stay off, and the kernel parameters and the module are loaded at boot."""
    assert vm.sh("wc -l < /proc/swaps") == "1"
    assert vm.sh("cat /proc/sys/vm/max_map_count /proc/sys/fs/inotify/max_user_instances").split() == ["1048576", "8192"]
    assert vm.sh("test -d /sys/module/br_netfilter && echo loaded") == "loaded"


def test_limits_of_a_login_and_of_a_service(vm: AppliedVm) -> None:
    """A login over SSH and a new service have the limits of the role, and locked memory has no limit."""
    login = vm.machine.ssh("ulimit -Sn; ulimit -Hn; ulimit -l", timeout_s=600).stdout.split()
    service = vm.sh("systemd-run --quiet --wait --pipe --collect /bin/sh -c 'ulimit -Sn; ulimit -Hn; ulimit -l'").split()

    assert (login, service) == (["65535", "1048576", "unlimited"],) * 2
