"""The checks of the role `node_health`, with fake root folders and recorded output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.launch import zipapp_file
from tests.unit.health_rig import HEALTH, load_program, make_config, write

if TYPE_CHECKING:
    from pathlib import Path

finding: Any = load_program(HEALTH / "finding.py")
# The mount check uses the unit check, which is therefore loaded first.
unit, disk, mount, clock, memory, kernel, gpus = (
    load_program(HEALTH / f"check_{name}.py") for name in ("unit", "disk", "mount", "clock", "memory_errors", "kernel_log", "gpu_count")
)

MOUNTS = """22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:40 / /jfs rw,nosuid shared:2 - fuse.juicefs JuiceFS:vol rw,user_id=0
24 22 8:2 / /var rw,relatime shared:3 - xfs /dev/sda2 rw
25 24 8:2 / /var ro,relatime shared:4 - xfs /dev/sda2 rw
26 22 8:3 / /with\\040space rw,relatime - ext4 /dev/sda3 ro,errors=remount-ro
"""
TRACKING = """Reference ID    : C0A80001 (ntp1)
Stratum         : 3
System time     : {offset} seconds {side} of NTP time
Leap status     : {leap}
"""


def records_of(module: Any, settings: dict[str, Any]) -> list[dict[str, str]]:
    """Return the records of a check."""
    return list(module.check(settings))


def verdicts_in(records: list[dict[str, str]]) -> dict[str, str]:
    """Return the verdict of each check; every fail and unknown must have a reason and a fix."""
    assert all(record["reason"] and record["fix"] for record in records if record["verdict"] in ("fail", "unknown"))
    return {record["check"]: record["verdict"] for record in records}


def limits(path: str, **changes: float) -> dict[str, Any]:
    """Return the settings of the disk check."""
    return {"path": path, "min_free_gib": 0.0, "min_free_inodes_percent": 0.0, **changes}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a host with file systems of several kinds."""
    (tmp_path / "var" / "lib").mkdir(parents=True)
    (tmp_path / "with space").mkdir()
    (tmp_path / "jfs").mkdir()
    return write(tmp_path, {"proc/1/mountinfo": MOUNTS})


def test_space_and_inodes_are_compared_with_thresholds(root: Path) -> None:
    """Each has its own record with the found value and its unit."""
    good = records_of(disk, {**limits("/"), "root": str(root)})
    full = records_of(disk, {**limits("/", min_free_gib=1e9), "root": str(root)})

    assert verdicts_in(good) == {"disk": "pass", "inodes": "pass", "writable": "pass"}
    assert verdicts_in(full) == {"disk": "fail", "inodes": "pass", "writable": "pass"}
    assert (full[0]["unit"], full[0]["device"]) == ("GiB", "/")
    assert verdicts_in(records_of(disk, {**limits("/", min_free_inodes_percent=101.0), "root": str(root)}))["inodes"] == "fail"


def test_read_only_file_system_fails(root: Path) -> None:
    """The deepest and last mount of the path counts, read-only by option or by a kernel error."""
    assert verdicts_in(records_of(disk, {**limits("/var/lib"), "root": str(root)}))["writable"] == "fail"
    assert verdicts_in(records_of(disk, {**limits("/with space"), "root": str(root)}))["writable"] == "fail"


def test_missing_path_is_skipped(root: Path) -> None:
    """Not every host has a separate file system at every path."""
    assert verdicts_in(records_of(disk, {**limits("/scratch"), "root": str(root)})) == {"disk": "skipped"}


RUNS, STARTED = {"LoadState": "loaded", "UnitFileState": "enabled"}, {"InactiveExitTimestampMonotonic": "5123456"}
# States of a unit of another role, and the expected verdict.
BROUGHT: dict[str, tuple[dict[str, str], str]] = {
    "runs": ({**RUNS, **STARTED, "ActiveState": "active", "SubState": "running"}, "pass"),
    "was never brought": ({"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead", "Job": ""}, "skipped"),
    "was installed and not enabled yet": ({**RUNS, "UnitFileState": "disabled", "ActiveState": "inactive", "SubState": "dead"}, "unknown"),
    "was stopped when its host left": (
        {**RUNS, **STARTED, "UnitFileState": "disabled", "ActiveState": "failed", "SubState": "failed"},
        "unknown",
    ),
    "is masked": ({**RUNS, "LoadState": "masked", "UnitFileState": "masked", "ActiveState": "inactive", "SubState": "dead"}, "unknown"),
    "was enabled and not started yet": (
        {**RUNS, "InactiveExitTimestampMonotonic": "0", "ActiveState": "inactive", "SubState": "dead"},
        "unknown",
    ),
    "waits for its turn at boot": (
        {**RUNS, "InactiveExitTimestampMonotonic": "0", "ActiveState": "inactive", "SubState": "dead", "Job": "12"},
        "unknown",
    ),
    "is restarted, and still stops": ({**RUNS, **STARTED, "ActiveState": "deactivating", "SubState": "stop", "Job": "87"}, "unknown"),
    "is restarted, and just down": ({**RUNS, **STARTED, "ActiveState": "inactive", "SubState": "dead", "Job": "87"}, "unknown"),
    "starts": ({**RUNS, **STARTED, "ActiveState": "activating", "SubState": "start-post", "Job": "87"}, "unknown"),
    "starts for the first time": (
        {**RUNS, **STARTED, "ActiveState": "activating", "SubState": "start-post", "Job": "87", "NRestarts": "0"},
        "unknown",
    ),
    "tries once more after crashes": (
        {**RUNS, **STARTED, "ActiveState": "activating", "SubState": "start-post", "Job": "", "NRestarts": "41"},
        "fail",
    ),
    "has crashed, and is restarted by a role": (
        {**RUNS, **STARTED, "ActiveState": "deactivating", "SubState": "stop", "Job": "87", "NRestarts": "1"},
        "unknown",
    ),
    "runs after a crash": ({**RUNS, **STARTED, "ActiveState": "active", "SubState": "running", "NRestarts": "1"}, "pass"),
    "is between two crashes": ({**RUNS, **STARTED, "ActiveState": "activating", "SubState": "auto-restart"}, "fail"),
    "was stopped": ({**RUNS, **STARTED, "ActiveState": "inactive", "SubState": "dead", "Job": ""}, "fail"),
    "failed": ({**RUNS, **STARTED, "ActiveState": "failed", "SubState": "failed"}, "fail"),
    "failed at its first start": (
        {**RUNS, "InactiveExitTimestampMonotonic": "0", "ActiveState": "failed", "SubState": "failed"},
        "fail",
    ),
    "cannot be read": ({"LoadState": "bad-setting", "UnitFileState": "enabled", "ActiveState": "inactive", "SubState": "dead"}, "fail"),
}


def systemctl_show(*states: dict[str, str]) -> tuple[int, str]:
    """Return exit status and output of `systemctl show` for units."""
    return 0, "\n\n".join("\n".join(f"{name}={value}" for name, value in state.items()) for state in states)


@pytest.mark.parametrize("name", BROUGHT)
def test_service_of_another_role_fails_only_after_it_worked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped or failed service fails. Absent, starting and restarting services do not."""
    state, verdict = BROUGHT[name]
    monkeypatch.setattr(unit, "run", lambda _: systemctl_show(state))

    found = records_of(unit, {"units": [], "managed": ["munge.service"]})

    assert verdicts_in(found) == {"unit": verdict}
    assert (found[0]["device"], found[0]["source"]) == ("munge.service", "node_health_managed_units")
    assert found[0]["reason"].startswith("munge.service " if verdict != "pass" else "")


@pytest.mark.parametrize("name", BROUGHT)
def test_missing_mount_has_the_verdict_of_its_unit(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is that of the unit. An active unit without a mount fails."""
    state, verdict = BROUGHT[name]
    monkeypatch.setattr(unit, "run", lambda _: systemctl_show(state))

    found = records_of(mount, {"path": "/scratch", "fstype": "", "unit": "juicefs.service", "root": str(root)})

    assert verdicts_in(found) == {"mount": "fail" if verdict == "pass" else verdict}
    assert found[0]["reason"].startswith("nothing is mounted at /scratch")
    assert "juicefs.service" in found[0]["reason"] or verdict == "pass"
    assert (found[0]["fix"] == "") == (verdict == "skipped")


def test_working_mount_passes_without_its_unit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit is queried only without a mount. Another file system fails; no answer of systemd is unknown."""
    monkeypatch.setattr(unit, "run", lambda _: (1, "Failed to connect to bus"))
    settings = {"unit": "juicefs.service", "root": str(root)}

    assert verdicts_in(records_of(mount, {"path": "/jfs", "fstype": "fuse.juicefs", **settings})) == {"mount": "pass"}
    assert verdicts_in(records_of(mount, {"path": "/jfs", "fstype": "nfs4", **settings})) == {"mount": "fail"}
    found = records_of(mount, {"path": "/scratch", "fstype": "", **settings})
    assert verdicts_in(found) == {"mount": "unknown"}
    assert "Failed to connect to bus" in found[0]["reason"]


def test_mount_that_appears_during_the_check_passes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mount is read again after the unit."""
    table = root / "proc/1/mountinfo"
    table.write_text(MOUNTS.replace(" /jfs ", " /other "), encoding="utf-8")

    def runs_now(_argv: list[str]) -> tuple[int, str]:
        table.write_text(MOUNTS, encoding="utf-8")
        return systemctl_show(BROUGHT["runs"][0])

    monkeypatch.setattr(unit, "run", runs_now)

    assert verdicts_in(records_of(mount, {"path": "/jfs", "fstype": "", "unit": "juicefs.service", "root": str(root)})) == {"mount": "pass"}


def test_mount_point_is_normalized(root: Path) -> None:
    """A link in the path and a trailing slash are accepted."""
    (root / "data").symlink_to(root / "jfs")

    assert verdicts_in(records_of(mount, {"path": "/jfs/", "fstype": "fuse.juicefs", "root": str(root)})) == {"mount": "pass"}
    assert verdicts_in(records_of(mount, {"path": "/data", "fstype": "fuse.juicefs", "root": str(root)})) == {"mount": "pass"}
    assert verdicts_in(records_of(mount, {"path": "/", "fstype": "ext4", "root": str(root)})) == {"mount": "pass"}


def test_mount_must_exist_with_its_type(root: Path) -> None:
    """A plain folder and another file system fail."""
    found = {
        (path, kind): verdicts_in(records_of(mount, {"path": path, "fstype": kind, "root": str(root)}))["mount"]
        for path, kind in (("/jfs", "fuse.juicefs"), ("/jfs", ""), ("/jfs", "nfs4"), ("/scratch", ""))
    }

    assert found == {("/jfs", "fuse.juicefs"): "pass", ("/jfs", ""): "pass", ("/jfs", "nfs4"): "fail", ("/scratch", ""): "fail"}


def test_broken_mount_fails(root: Path) -> None:
    """The kernel lists the mount, but its server or program has ended."""
    (root / "jfs").rmdir()

    assert verdicts_in(records_of(mount, {"path": "/jfs", "root": str(root)})) == {"mount": "fail"}


@pytest.mark.parametrize(
    ("offset", "side", "leap", "verdict"),
    [
        ("0.000012", "slow", "Normal", "pass"),
        ("1.500000", "fast", "Normal", "fail"),
        ("0.900000", "fast", "Insert second", "pass"),
        ("0.000000", "slow", "Not synchronised", "unknown"),
    ],
)
def test_clock_is_checked_with_chrony(offset: str, side: str, leap: str, verdict: str) -> None:
    """A large offset fails; without a server the offset is unknown."""
    found = clock.check_tracking(TRACKING.format(offset=offset, side=side, leap=leap), 1.0)

    assert verdicts_in([found]) == {"clock": verdict}


def test_unexpected_output_of_chrony_is_unknown() -> None:
    """It is not a pass."""
    assert verdicts_in([clock.check_tracking("506 Cannot talk to daemon", 1.0)]) == {"clock": "unknown"}


def test_container_skips_clock_and_kernel_log(tmp_path: Path) -> None:
    """They belong to the machine below."""
    root = write(tmp_path, {"run/systemd/container": "podman\n"})
    found = [*records_of(clock, {"root": str(root), "max_offset_s": 1.0}), *records_of(kernel, {"root": str(root), "window_s": 60})]

    assert verdicts_in(found) == {"clock": "skipped", "kernel_log": "skipped"}
    assert all("podman" in record["reason"] for record in found)


def edac(**files: str) -> dict[str, str]:
    """Return the counters of one memory controller, reset a week ago."""
    base = "sys/devices/system/edac/mc/mc0"
    return {f"{base}/{name.replace('__', '/')}": text for name, text in {"seconds_since_reset": "604800\n", **files}.items()}


@pytest.mark.parametrize(
    ("files", "verdicts"),
    [
        ({}, ["skipped"]),
        (edac(ue_count="0\n", ce_count="70\n"), ["pass"]),
        (edac(ue_count="0\n", ce_count="71\n"), ["fail"]),
        (edac(ue_count="1\n", ce_count="0\n"), ["fail"]),
        (edac(ue_count="0\n", ce_count="11\n", seconds_since_reset="60\n"), ["fail"]),
        (edac(ue_count="0\n", ce_count="10\n", seconds_since_reset="60\n"), ["pass"]),
        (edac(ue_count="what\n", ce_count="0\n"), ["unknown"]),
        (edac(ue_count="0\n"), ["unknown"]),
        (edac(ue_count="9\n", ce_count="9\n", dimm0__dimm_ue_count="0\n", dimm0__dimm_ce_count="1\n", dimm1__dimm_ue_count="2\n",
              dimm1__dimm_ce_count="0\n", dimm1__dimm_label="CPU0_DIMM_B1\n"), ["pass", "fail"]),
        (edac(dimm0__dimm_ue_count="0\n", dimm0__dimm_ce_count="0\n", ue_noinfo_count="1\n", ce_noinfo_count="0\n"), ["pass", "fail"]),
    ],
)  # fmt: skip
def test_memory_errors_are_checked_for_each_dimm(tmp_path: Path, files: dict[str, str], verdicts: list[str]) -> None:
    """One uncorrected error fails; corrected ones have a limit per day. Unreadable counters are unknown."""
    settings = {**make_config()["memory_errors"], "root": str(write(tmp_path, files))}
    found = records_of(memory, settings)
    verdicts_in(found)

    assert [record["verdict"] for record in found] == verdicts
    assert "CPU0_DIMM_B1" not in str(files) or found[1]["device"] == "mc0/CPU0_DIMM_B1"


BROKEN = {
    "machine_check": "mce: [Hardware Error]: CPU 4: Machine Check Exception: 5 Bank 7: be00000000800400",
    "memory": "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0)",
    "amdgpu_ras": "amdgpu 0000:05:00.0: amdgpu: socket: 0, die: 0 2 new uncorrectable hardware errors detected in umc block",
    "xid_79": "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
    "nvswitch": "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 28 Minion Link DLREQ interrupt",
    "pci_express": "pcieport 0000:00:01.1: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)",
    "disk": "md/raid1:md0: Disk failure on nvme1n1p2, disabling device.",
    "file_system": "EXT4-fs (nvme0n1p2): Remounting filesystem read-only",
}
HARMLESS = (
    "NVRM: Xid (PCI:0000:3b:00): 31, pid=1234, name=python3, Ch 00000008, MMU Fault",
    "NVRM: Xid (PCI:0000:3b:00): 790, pid=1234",
    "[Hardware Error]: Corrected error, no action required.",
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0)",
    "EDAC MC0: Giving out device to module skx_edac",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Non-fatal, Link 36 LTSSM Fault Up",
    "pcieport 0000:00:01.1: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "amdgpu 0000:05:00.0: amdgpu: 3 correctable hardware errors detected in umc block",
    "amdgpu 0000:05:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
)


@pytest.mark.parametrize("name", BROKEN)
def test_hardware_errors_in_the_log_fail(name: str) -> None:
    """Each kind is found among other lines; the record has the line and its count."""
    found = list(kernel.check_lines([*HARMLESS, BROKEN[name], BROKEN[name]], make_config()["kernel_log"]))

    assert verdicts_in(found) == {f"kernel_log_{name}": "fail"}
    assert found[0]["found"] == "2"
    assert BROKEN[name][:60] in found[0]["reason"]


def test_corrected_errors_and_program_faults_pass() -> None:
    """They do not drain a node."""
    assert verdicts_in(list(kernel.check_lines(HARMLESS, make_config()["kernel_log"]))) == {"kernel_log": "pass"}


def test_site_adds_patterns_and_ignores_lines() -> None:
    """Ignored lines are ignored for every pattern."""
    own = {"name": "fan", "pattern": r"fan \d+ failed", "fix": "replace the fan"}
    settings = {**make_config()["kernel_log"], "patterns": [own], "ignore": ["fan 9 ", "0000:3b:00"]}
    found = list(kernel.check_lines([BROKEN["xid_79"], "fan 9 failed", "fan 2 failed"], settings))

    assert verdicts_in(found) == {"kernel_log_fan": "fail"}
    assert (found[0]["found"], found[0]["fix"]) == ("1", "replace the fan")


def test_only_lines_of_the_window_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The journal is read first, then dmesg. Older errors are ignored; an unreadable log is unknown."""
    answers = {"journalctl": (0, f"1000.5 n1 kernel: {BROKEN['memory']}\n9000.5 n1 kernel: all is well")}
    monkeypatch.setattr(kernel, "run", lambda argv: answers.get(argv[0], (1, f"{argv[0]}: Operation not permitted")))
    monkeypatch.setattr(kernel.time, "time", lambda: 9001.0)
    settings = {**make_config()["kernel_log"], "root": str(tmp_path)}

    assert verdicts_in(records_of(kernel, {**settings, "window_s": 100})) == {"kernel_log": "pass"}
    assert verdicts_in(records_of(kernel, {**settings, "window_s": 9000})) == {"kernel_log_memory": "fail"}
    answers["journalctl"] = (0, "")
    found = records_of(kernel, settings)
    assert verdicts_in(found) == {"kernel_log": "unknown"}
    assert "Operation not permitted" in found[0]["reason"]


def test_dmesg_is_read_without_a_journal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Includes the format with a caller after the time."""
    log = f"[    0.000000][    T0] Linux version 6.8.0\n[    1.500000] a line\n[    2.000000][ T1234] {BROKEN['memory']}"
    answers = {"journalctl": (127, "journalctl is not installed"), "dmesg": (0, log)}
    monkeypatch.setattr(kernel, "run", lambda argv: answers[argv[0]])
    found = records_of(kernel, {**make_config()["kernel_log"], "root": str(tmp_path), "window_s": 10**9})

    assert verdicts_in(found) == {"kernel_log_memory": "fail"}
    assert len(kernel.read_log()) == 3


def test_file_system_with_an_io_error_fails(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk below a mount is lost; the record has the kernel's message."""

    def broken(path: str) -> None:
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr(disk.os, "statvfs", broken)
    found = records_of(disk, {**limits("/var/lib"), "root": str(root)})

    assert verdicts_in(found) == {"disk": "fail"}
    assert "Input/output error" in found[0]["reason"]


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Install the counting program of the role gpu_env on a host."""
    path = tmp_path_factory.mktemp("lib") / "launch.pyz"
    zipapp_file.write_zipapp(path)
    return str(path)


def count_settings(counter: str, tree: Path, *, expected: int, facts: str = "/nowhere/gpu.json") -> dict[str, Any]:
    """Return the settings of the GPU check."""
    return {"program": counter, "sysfs": str(tree), "expected": expected, "facts": facts}


def test_without_the_counting_program_gpus_are_unknown(tmp_path: Path) -> None:
    """If no GPU is expected, the check is skipped."""
    nowhere = str(tmp_path / "launch.pyz")

    assert verdicts_in(records_of(gpus, count_settings(nowhere, tmp_path, expected=8))) == {"gpu_count": "unknown"}
    assert verdicts_in(records_of(gpus, count_settings(nowhere, tmp_path, expected=0))) == {"gpu_count": "skipped"}


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        (("loaded", "active", "running"), "pass"),
        (("loaded", "reloading", "reload"), "pass"),
        (("loaded", "inactive", "dead"), "fail"),
        (("loaded", "failed", "failed"), "fail"),
        (("loaded", "activating", "start"), "unknown"),
        (("loaded", "activating", "auto-restart"), "fail"),
        (("not-found", "inactive", "dead"), "fail"),
    ],
)
def test_daemon_must_be_active(state: tuple[str, str, str], verdict: str) -> None:
    """Starting is unknown, but restarting after a crash fails."""
    names = ("LoadState", "ActiveState", "SubState")

    assert verdicts_in([unit.check_state("slurmd.service", dict(zip(names, state, strict=True)))]) == {"unit": verdict}


@pytest.mark.parametrize("word", ["deactivating", "inactive"])
def test_restarting_daemon_is_unknown(word: str) -> None:
    """While systemd has a job for the unit, its state is not final."""
    assert verdicts_in([unit.check_state("slurmd.service", {"LoadState": "loaded", "ActiveState": word, "Job": "87"})]) == {
        "unit": "unknown"
    }


def test_each_daemon_has_its_own_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is parsed by block; a block that does not match the unit is unknown."""
    answer = "LoadState=loaded\nActiveState=active\nSubState=running\n\nLoadState=not-found\nActiveState=inactive\nSubState=dead"
    monkeypatch.setattr(unit, "run", lambda _: (0, answer))

    assert [record["verdict"] for record in records_of(unit, {"units": ["a.service", "b.service"]})] == ["pass", "fail"]
    assert [record["verdict"] for record in records_of(unit, {"units": ["a.service"]})] == ["unknown"]
    both = records_of(unit, {"units": ["a.service"], "managed": ["b.service"]})
    assert [(record["device"], record["verdict"]) for record in both] == [("a.service", "pass"), ("b.service", "skipped")]
