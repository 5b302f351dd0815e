"""Module `host_tuning` with a fake root folder; some files lead to the real kernel."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_module import Programs, load_role_module

tuning: Any = load_role_module("baseline", "host_tuning")


def make_host(root: Path, *, check: bool = False, answers: dict[str, tuple[int, str]] | None = None) -> Any:
    """Return a host with this root folder."""
    return tuning.Host("n1", check=check, root=str(root), run=Programs(answers))


def put(root: Path, path: str, text: str) -> Path:
    """Write a file of the fake host."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def link(root: Path, path: str, target: str) -> None:
    """Link a path of the fake host to a file of the real kernel."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to(target)


def outcomes(host: Any) -> dict[str, str]:
    """Return the verdict of each check."""
    return {record["check"].removeprefix("baseline."): record["verdict"] for record in host.verdicts}


def test_kernel_parameter_is_set_now_and_at_boot(tmp_path: Path) -> None:
    """A different value is written to the kernel and to sysctl.d; the next run changes nothing."""
    kernel = put(tmp_path, "/proc/sys/vm/max_map_count", "65530\n")
    first = make_host(tmp_path)
    tuning.set_sysctls(first, {"vm.max_map_count": 1048576})
    second = make_host(tmp_path)
    tuning.set_sysctls(second, {"vm.max_map_count": 1048576})

    assert kernel.read_text() == "1048576"
    assert (tmp_path / "etc/sysctl.d/99-zz-primus.conf").read_text() == tuning.HEADER + "vm.max_map_count = 1048576\n"
    assert outcomes(first) == {"sysctl.vm.max_map_count": "pass"}
    assert (len(first.diffs), second.diffs) == (2, [])


def test_kernel_parameters_are_read_last_at_boot(tmp_path: Path) -> None:
    """The boot reads the files by name, and the last file wins. The file of an earlier version is removed."""
    put(tmp_path, "/proc/sys/fs/protected_fifos", "1\n")
    put(tmp_path, "/usr/lib/sysctl.d/99-protect-links.conf", "fs.protected_fifos = 1\n")
    put(tmp_path, "/etc/sysctl.d/99-sysctl.conf", "fs.protected_fifos = 0\n")
    put(tmp_path, "/etc/sysctl.d/90-primus.conf", "fs.protected_fifos = 2\n")
    tuning.set_sysctls(make_host(tmp_path), {"fs.protected_fifos": 2})
    files = [*tmp_path.glob("usr/lib/sysctl.d/*"), *tmp_path.glob("etc/sysctl.d/*")]

    assert "fs.protected_fifos = 2\n" in max(files, key=lambda file: file.name).read_text()
    assert len(files) == 3


def test_white_space_between_numbers_is_ignored(tmp_path: Path) -> None:
    """The kernel uses tabs, hosts.yaml uses blanks."""
    put(tmp_path, "/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")
    host = make_host(tmp_path)
    tuning.set_sysctls(host, {"net.ipv4.tcp_rmem": "4096 131072 6291456"})

    assert outcomes(host) == {"sysctl.net.ipv4.tcp_rmem": "pass"}
    assert [diff["after_header"] for diff in host.diffs] == ["/etc/sysctl.d/99-zz-primus.conf"]


def test_container_does_not_change_the_shared_kernel(tmp_path: Path) -> None:
    """Values of the host's kernel are skipped, also for boot and in privileged containers."""
    put(tmp_path, "/run/systemd/container", "podman\n")
    kernel = put(tmp_path, "/proc/sys/vm/max_map_count", "65530\n")
    own = put(tmp_path, "/proc/sys/net/core/somaxconn", "4096\n")
    pages = put(tmp_path, "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    put(tmp_path, "/proc/swaps", "Filename Type\n/dev/sda2 partition\n")
    host = make_host(tmp_path)
    tuning.set_sysctls(host, {"vm.max_map_count": 1048576, "net.core.somaxconn": 65535, "net.core.rmem_max": 1})
    tuning.set_sysfs(host, [{"check": "thp", "pattern": "/sys/kernel/mm/transparent_hugepage/enabled", "value": "never", "absent": "-"}])
    tuning.turn_swap_off(host, True)  # noqa: FBT003
    tuning.set_kernel_arguments(host, ["iommu=pt"])
    tuning.load_modules(host, ["ib_umad"])
    tuning.set_time_service(host, "chrony.service")

    skipped = {check for check, verdict in outcomes(host).items() if verdict == "skipped"}
    assert skipped == {
        "sysctl.vm.max_map_count", "sysctl.net.core.rmem_max", "thp", "swap", "kernel_arguments", "kernel_module.ib_umad", "time",
    }  # fmt: skip
    assert all(
        "podman" in record["reason"] or "no net.core" in record["reason"] for record in host.verdicts if record["verdict"] == "skipped"
    )
    assert (kernel.read_text(), own.read_text(), pages.read_text()[:8]) == ("65530\n", "65535", "always [")
    assert (tmp_path / "etc/sysctl.d/99-zz-primus.conf").read_text() == tuning.HEADER + "net.core.somaxconn = 65535\n"
    assert not (tmp_path / "etc/tmpfiles.d/90-primus.conf").exists()
    assert host.run.calls == []


def test_read_only_kernel_file_is_skipped_with_its_reason(tmp_path: Path) -> None:
    """EACCES or EPERM of the real kernel; no file for boot is written."""
    link(tmp_path, "/proc/sys/kernel/ostype", "/proc/sys/kernel/ostype")
    host = make_host(tmp_path)
    tuning.set_sysctls(host, {"kernel.ostype": "Plan9"})

    assert outcomes(host) == {"sysctl.kernel.ostype": "skipped"}
    assert host.verdicts[0]["found"] == "Linux"
    assert host.verdicts[0]["reason"].startswith("/proc/sys/kernel/ostype: ")
    assert not (tmp_path / "etc").exists()


def test_rejected_value_fails(tmp_path: Path) -> None:
    """EINVAL of the real kernel means a wrong value in hosts.yaml. The record has a fix."""
    link(tmp_path, "/proc/sys/kernel/score", "/proc/self/oom_score_adj")
    host = make_host(tmp_path)
    tuning.set_sysctls(host, {"kernel.score": 99999})

    assert outcomes(host) == {"sysctl.kernel.score": "fail"}
    assert host.failures == [
        "sysctl.kernel.score: the kernel refuses the value 99999: invalid argument. Fix: set a value that this kernel supports"
    ]


def test_truncated_value_fails(tmp_path: Path) -> None:
    """The kernel stores another value than the written one."""
    name = Path("/proc/self/comm").read_text(encoding="utf-8")
    link(tmp_path, "/proc/sys/kernel/name", "/proc/self/comm")
    host = make_host(tmp_path)
    try:
        tuning.set_sysctls(host, {"kernel.name": "longer-than-fifteen-letters"})
    finally:
        Path("/proc/self/comm").write_text(name, encoding="utf-8")

    assert outcomes(host) == {"sysctl.kernel.name": "fail"}
    assert "shows longer-than-fif" in host.failures[0]


def test_misspelt_parameter_fails_outside_a_container(tmp_path: Path) -> None:
    """The record has a fix. A parameter that depends on the kernel's build is skipped."""
    host = make_host(tmp_path)
    tuning.set_sysctls(host, {"vm.max_map_cuont": 1, "kernel.numa_balancing": 0})

    assert outcomes(host) == {"sysctl.kernel.numa_balancing": "skipped", "sysctl.vm.max_map_cuont": "fail"}
    assert "Fix: correct the name in baseline_sysctl_extra" in host.failures[0]


def test_governor_of_every_processor_is_set(tmp_path: Path) -> None:
    """One different processor is a change; the boot line covers all."""
    pattern = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    files = [put(tmp_path, pattern.replace("*", str(cpu)), "performance\n") for cpu in range(3)]
    files.append(put(tmp_path, pattern.replace("*", "3"), "powersave\n"))
    host = make_host(tmp_path)
    tuning.set_sysfs(host, [{"check": "governor", "pattern": pattern, "value": "performance", "absent": "no driver"}])

    assert {file.read_text().strip() for file in files} == {"performance"}
    assert host.diffs[0]["before"] == "performance, powersave\n"
    assert (tmp_path / "etc/tmpfiles.d/90-primus.conf").read_text() == tuning.HEADER + f"w- {pattern} - - - - performance\n"


def test_machine_without_frequency_driver_skips_the_governor(tmp_path: Path) -> None:
    """Virtual machines have no scaling_governor; the role gives the reason."""
    host = make_host(tmp_path)
    tuning.set_sysfs(host, [{"check": "governor", "pattern": "/sys/devices/x*", "value": "performance", "absent": "no driver"}])

    assert [(record["verdict"], record["reason"]) for record in host.verdicts] == [("skipped", "no driver")]


LIMITS = {"memlock": {"soft": -1, "hard": -1, "scale": 1024}, "nofile": {"soft": 100, "hard": 200, "scale": 1}}


def test_limits_are_written_for_logins_and_services(tmp_path: Path) -> None:
    """limits.d has separate lines for root, because `*` excludes it. Systemd is reloaded."""
    host = make_host(tmp_path)
    tuning.set_limits(host, LIMITS, may=lambda *_: True)

    assert (tmp_path / "etc/security/limits.d/90-primus.conf").read_text().splitlines()[1:] == [
        "* soft memlock unlimited", "* hard memlock unlimited", "root soft memlock unlimited", "root hard memlock unlimited",
        "* soft nofile 100", "* hard nofile 200", "root soft nofile 100", "root hard nofile 200",
    ]  # fmt: skip
    services = (tmp_path / "etc/systemd/system.conf.d/90-primus.conf").read_text().splitlines()
    assert services[1:] == ["[Manager]", "DefaultLimitMEMLOCK=infinity:infinity", "DefaultLimitNOFILE=100:200"]
    assert host.run.calls == ["systemctl daemon-reload"]
    assert outcomes(host) == {"limit.memlock": "pass", "limit.nofile": "pass"}


def test_limit_that_root_cannot_raise_is_skipped(tmp_path: Path) -> None:
    """PAM would refuse every login. The reason has the hard limit, and other limits are set."""
    host = make_host(tmp_path)
    tuning.set_limits(host, LIMITS, may=lambda number, *_: number != resource.RLIMIT_MEMLOCK)

    assert outcomes(host) == {"limit.memlock": "skipped", "limit.nofile": "pass"}
    assert "memlock" not in (tmp_path / "etc/security/limits.d/90-primus.conf").read_text()


def test_missing_reload_is_done_by_the_next_run(tmp_path: Path) -> None:
    """The file exists but systemd was not reloaded; the next run reloads it once."""
    killed = make_host(tmp_path)
    killed.run_pending = lambda *_: None
    tuning.set_limits(killed, LIMITS, may=lambda *_: True)
    second, third = make_host(tmp_path), make_host(tmp_path)
    tuning.set_limits(second, LIMITS, may=lambda *_: True)
    tuning.set_limits(third, LIMITS, may=lambda *_: True)

    assert killed.run.calls == []
    assert (second.run.calls, third.run.calls) == (["systemctl daemon-reload"], [])
    assert [diff["after_header"] for diff in second.diffs] == ["systemd"]


def test_swap_is_disabled_now_and_at_boot(tmp_path: Path) -> None:
    """The areas are disabled and their fstab lines commented out; other lines stay."""
    put(tmp_path, "/proc/swaps", "Filename\tType\n/dev/sda2 partition\n")
    table = put(tmp_path, "/etc/fstab", "# swap below\nUUID=1 / ext4 defaults 0 1\nUUID=2\tnone\tswap\tsw 0 0\n#UUID=3 none swap sw 0 0\n")
    host = make_host(tmp_path)
    tuning.turn_swap_off(host, True)  # noqa: FBT003

    assert table.read_text().splitlines()[1:] == [
        "UUID=1 / ext4 defaults 0 1",
        "# off by primus-bootstrap: UUID=2\tnone\tswap\tsw 0 0",
        "#UUID=3 none swap sw 0 0",
    ]
    assert "swapoff -a" in host.run.calls
    assert outcomes(host) == {"swap": "pass"}


def test_swap_units_do_not_start_at_the_next_boot(tmp_path: Path) -> None:
    """Swap partitions that systemd finds by itself and units of an administrator are not in /etc/fstab: their target is masked."""
    put(tmp_path, "/proc/swaps", "Filename\tType\n")
    host = make_host(tmp_path, answers={"systemctl show": (0, "LoadState=loaded\nActiveState=active")})
    tuning.turn_swap_off(host, True)  # noqa: FBT003
    masked = make_host(tmp_path, answers={"systemctl show": (0, "LoadState=masked\nActiveState=inactive")})
    tuning.turn_swap_off(masked, True)  # noqa: FBT003

    assert host.run.calls[1:] == ["systemctl stop swap.target", "systemctl mask swap.target"]
    assert (masked.run.calls[1:], masked.diffs, outcomes(masked)) == ([], [], {"swap": "pass"})


def test_failed_swapoff_has_its_cause(tmp_path: Path) -> None:
    """The record contains the program's error message."""
    put(tmp_path, "/proc/swaps", "Filename\tType\n/dev/sda2 partition\n")
    host = make_host(tmp_path, answers={"swapoff -a": (4, "swapoff: /dev/sda2: Cannot allocate memory")})
    tuning.turn_swap_off(host, True)  # noqa: FBT003

    assert host.failures[0].startswith("swap: swapoff: /dev/sda2: Cannot allocate memory. Fix: ")


def test_kernel_arguments_need_a_reboot(tmp_path: Path) -> None:
    """They are written to GRUB's drop-in. Until /proc/cmdline has them the check fails and names the playbook."""
    put(tmp_path, "/usr/sbin/update-grub", "")
    line = put(tmp_path, "/proc/cmdline", "root=/dev/sda1 quiet\n")
    first = make_host(tmp_path)
    tuning.set_kernel_arguments(first, ["iommu=pt"])
    line.write_text("root=/dev/sda1 quiet iommu=pt\n")
    booted = make_host(tmp_path)
    tuning.set_kernel_arguments(booted, ["iommu=pt"])

    assert first.run.calls == ["update-grub"]
    assert 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX iommu=pt"' in (tmp_path / "etc/default/grub.d/90-primus.cfg").read_text()
    assert (outcomes(first), first.failures) == ({"kernel_arguments": "fail"}, [])
    assert first.verdicts[0]["fix"].endswith("day2/reboot_node.yml --limit n1")
    assert (outcomes(booted), booted.diffs) == ({"kernel_arguments": "pass"}, [])


def test_kernel_arguments_of_rhel_are_added_and_removed_with_grubby(tmp_path: Path) -> None:
    """Only arguments that the role has added are removed. A second run starts no program."""
    put(tmp_path, "/usr/sbin/grubby", "")
    line = put(tmp_path, "/proc/cmdline", "root=/dev/sda1 quiet\n")
    calls = []
    for arguments in (["iommu=pt", "pci=realloc=off"], ["iommu=pt", "pci=realloc=off"], ["iommu=pt"], []):
        host = make_host(tmp_path)
        tuning.set_kernel_arguments(host, arguments)
        calls.append(list(host.run.calls))
        line.write_text("root=/dev/sda1 quiet iommu=pt pci=realloc=off\n")

    assert calls == [
        ["grubby --update-kernel=ALL --args=iommu=pt pci=realloc=off"],
        [],
        ["grubby --update-kernel=ALL --remove-args=pci=realloc=off", "grubby --update-kernel=ALL --args=iommu=pt"],
        ["grubby --update-kernel=ALL --remove-args=iommu=pt", "true"],
    ]
    assert not (tmp_path / "etc/primus/kernel-arguments").exists()


def test_former_kernel_arguments_that_stay_are_reported(tmp_path: Path) -> None:
    """The file keeps them, so the next run tries again."""
    put(tmp_path, "/usr/sbin/grubby", "")
    put(tmp_path, "/proc/cmdline", "quiet\n")
    tuning.set_kernel_arguments(make_host(tmp_path), ["iommu=pt"])
    host = make_host(tmp_path, answers={"grubby --update-kernel=ALL": (1, "grubby: no space left")})
    tuning.set_kernel_arguments(host, [])

    assert outcomes(host) == {"kernel_arguments": "fail"}
    assert "iommu=pt" in (tmp_path / "etc/primus/kernel-arguments").read_text()


def test_hosts_block_is_first_and_replaced_completely(tmp_path: Path) -> None:
    """It precedes Debian's 127.0.1.1 line. An empty block removes it."""
    original = "127.0.0.1 localhost\n127.0.1.1 n1\n"
    hosts = put(tmp_path, "/etc/hosts", original)
    seen = []
    for content in ("10.0.0.1 n1\n", "10.0.0.1 n1\n10.0.0.2 cp1\n", ""):
        tuning.set_blocks(make_host(tmp_path), [{"path": "/etc/hosts", "content": content}])
        seen.append(hosts.read_text())

    assert seen[0].splitlines()[:4] == ["# BEGIN primus-bootstrap", "10.0.0.1 n1", "# END primus-bootstrap", "127.0.0.1 localhost"]
    assert seen[1].splitlines()[1:3] == ["10.0.0.1 n1", "10.0.0.2 cp1"]
    assert seen[1].count("BEGIN") == 1
    assert seen[2] == original


def test_modules_are_loaded_and_missing_ones_fail(tmp_path: Path) -> None:
    """A module is loaded now and at boot; modprobe's message is the cause."""
    put(tmp_path, "/sys/module/ib_umad/refcnt", "0")
    host = make_host(tmp_path, answers={"modprobe --": (1, "modprobe: FATAL: Module nosuch not found")})
    tuning.load_modules(host, ["ib-umad", "nosuch"])

    assert outcomes(host) == {"kernel_module.ib-umad": "pass", "kernel_module.nosuch": "fail"}
    assert (tmp_path / "etc/modules-load.d/90-primus.conf").read_text() == tuning.HEADER + "ib-umad\n"
    assert "Module nosuch not found" in host.failures[0]


def test_only_existing_timers_are_masked(tmp_path: Path) -> None:
    """One call queries all units; masked and missing ones need no change."""
    states = "LoadState=loaded\nActiveState=active\n\nLoadState=masked\n\nLoadState=not-found"
    host = make_host(tmp_path, answers={"systemctl show": (0, states)})
    tuning.mask_units(host, ["a.timer", "b.timer", "c.timer"])

    assert host.run.calls[1:] == ["systemctl stop a.timer", "systemctl mask a.timer"]


def test_failed_state_of_a_masked_timer_is_reset(tmp_path: Path) -> None:
    """It would leave the host degraded."""
    states = "LoadState=masked\nActiveState=failed\n\nLoadState=masked\nActiveState=inactive"
    host = make_host(tmp_path, answers={"systemctl show": (0, states)})
    tuning.mask_units(host, ["a.timer", "b.timer"])

    assert host.run.calls[1:] == ["systemctl reset-failed a.timer"]


@pytest.mark.parametrize(
    ("state", "pending", "calls"),
    [
        ("LoadState=loaded\nActiveState=active\nUnitFileState=enabled", False, []),
        ("LoadState=loaded\nActiveState=active\nUnitFileState=enabled", True, ["systemctl restart chrony.service"]),
        (
            "LoadState=loaded\nActiveState=inactive\nUnitFileState=disabled",
            True,
            ["systemctl enable chrony.service", "systemctl restart chrony.service"],
        ),
    ],
)
def test_time_service_restarts_after_a_configuration_change(tmp_path: Path, state: str, calls: list[str], *, pending: bool) -> None:
    """Otherwise it is not restarted; a stopped service is enabled and started."""
    mark = put(tmp_path, "/var/lib/primus/baseline/chrony.service.pending", "")
    if not pending:
        mark.unlink()
    host = make_host(tmp_path, answers={"systemctl show": (0, state)})
    tuning.set_time_service(host, "chrony.service")

    assert host.run.calls[1:] == calls
    assert outcomes(host) == {"time": "pass"}
    assert not mark.exists()


def test_missing_right_to_set_the_clock_skips_time(tmp_path: Path) -> None:
    """The capability bounding set of process 1 decides."""
    put(tmp_path, "/proc/1/status", "CapBnd:\t00000000a80425fb\n")
    host = make_host(tmp_path)
    tuning.set_time_service(host, "chrony.service")

    assert [(record["verdict"], record["reason"]) for record in host.verdicts] == [
        ("skipped", "root cannot set the clock on this host (no CAP_SYS_TIME)")
    ]


def test_time_zone_is_a_link_and_an_unknown_one_fails(tmp_path: Path) -> None:
    """/etc/localtime links to an existing zone only."""
    put(tmp_path, "/usr/share/zoneinfo/Etc/UTC", "")
    put(tmp_path, "/etc/hostname", "n1\n")
    first, second, unknown = make_host(tmp_path), make_host(tmp_path), make_host(tmp_path)
    tuning.set_timezone(first, "Etc/UTC")
    tuning.set_timezone(second, "Etc/UTC")
    tuning.set_timezone(unknown, "Mars/Olympus")

    assert str((tmp_path / "etc/localtime").readlink()) == "/usr/share/zoneinfo/Etc/UTC"
    assert (len(first.diffs), second.diffs) == (1, [])
    assert "no /usr/share/zoneinfo/Mars/Olympus" in unknown.failures[0]


def test_failed_write_reports_its_path_and_leaves_no_partial_file(tmp_path: Path) -> None:
    """A full disk leaves the old file unchanged."""
    target = put(tmp_path, "/etc/chrony.conf", "old\n")
    host = make_host(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, hard))  # Python ignores SIGXFSZ, so a write beyond the limit is an OSError.
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            host.write("/etc/chrony.conf", "new and longer\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert caught.value.filename == str(target)
    assert [file.name for file in target.parent.iterdir()] == ["chrony.conf"]
    assert target.read_text() == "old\n"
