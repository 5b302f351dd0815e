"""Module `host_tuning` with a fake root folder and the real kernel."""

from __future__ import annotations

import resource
from pathlib import Path

from tests.unit.test_host_tuning import make_host, outcomes, put, tuning


def snapshot(root: Path) -> dict[str, str]:
    """Return the text of every file."""
    return {str(file.relative_to(root)): file.read_text() for file in sorted(root.rglob("*")) if file.is_file()}


def test_check_mode_writes_nothing_and_lists_differences(tmp_path: Path) -> None:
    """No file changes, and no program that changes the host runs."""
    put(tmp_path, "/proc/sys/vm/max_map_count", "65530\n")
    put(tmp_path, "/proc/swaps", "Filename Type\n/dev/sda2 partition\n")
    put(tmp_path, "/etc/fstab", "/dev/sda2 none swap sw 0 0\n")
    put(tmp_path, "/usr/sbin/update-grub", "")
    before = snapshot(tmp_path)
    host = make_host(tmp_path, check=True)
    tuning.tune(
        host,
        {
            "files": [{"path": "/etc/chrony.conf", "content": "pool x\n", "notify": "chrony", "create": True}],
            "blocks": [{"path": "/etc/hosts", "content": "10.0.0.1 cp1\n"}],
            "masked_units": ["apt-daily.timer"],
            "sysctl": {"vm.max_map_count": 1048576},
            "kernel_modules": ["ib_umad"],
            "limits": {"nofile": {"soft": 10, "hard": 20, "scale": 1}},
            "swap_off": True,
            "kernel_arguments": ["iommu=pt"],
            "timezone": "Etc/UTC",
            "time_service": "chrony.service",
        },
    )

    assert snapshot(tmp_path) == before
    assert {call.split()[1] for call in host.run.calls} == {"show"}
    changed = {diff["after_header"] for diff in host.diffs}
    assert {"/etc/chrony.conf", "/etc/hosts", "/etc/fstab", "swap", "sysctl.vm.max_map_count", "kernel_module.ib_umad"} <= changed
    assert outcomes(host)["sysctl.vm.max_map_count"] == "fail"
    assert host.failures == []


def test_raising_a_limit_is_tried() -> None:
    """The current hard limit is accepted and a limit above the kernel's maximum is not. The trial changes nothing."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    bound = int(Path("/proc/sys/fs/nr_open").read_text(encoding="utf-8"))

    assert tuning.can_set_limit(resource.RLIMIT_NOFILE, before[1], before[1])
    assert not tuning.can_set_limit(resource.RLIMIT_NOFILE, bound + 1, bound + 1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
