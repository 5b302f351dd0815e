"""The checks of the role `node_health`, each on a host that is a folder or on lines as the kernel and its programs print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.launch import zipapp_file
from tests.unit.health_rig import HEALTH, load_program, make_config, write

if TYPE_CHECKING:
    from pathlib import Path

finding: Any = load_program(HEALTH / "finding.py")
# The check of mounts asks that of units, which is therefore loaded before it.
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


def judged(module: Any, settings: dict[str, Any]) -> list[dict[str, str]]:
    """Return what a check finds."""
    return list(module.judge(settings))


def words(records: list[dict[str, str]]) -> dict[str, str]:
    """Return verdict by check; every fail and unknown must say why, and how to mend it."""
    assert all(record["reason"] and record["fix"] for record in records if record["verdict"] in ("fail", "unknown"))
    return {record["check"]: record["verdict"] for record in records}


def limits(path: str, **changes: float) -> dict[str, Any]:
    """Return the settings of the disk check."""
    return {"path": path, "min_free_gib": 0.0, "min_free_inodes_percent": 0.0, **changes}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Give a host with file systems of several kinds."""
    (tmp_path / "var" / "lib").mkdir(parents=True)
    (tmp_path / "with space").mkdir()
    (tmp_path / "jfs").mkdir()
    return write(tmp_path, {"proc/1/mountinfo": MOUNTS})


def test_room_and_inodes_are_held_against_their_thresholds(root: Path) -> None:
    """What is below a threshold fails for itself, with the number found and its unit."""
    good = judged(disk, {**limits("/"), "root": str(root)})
    full = judged(disk, {**limits("/", min_free_gib=1e9), "root": str(root)})

    assert words(good) == {"disk": "pass", "inodes": "pass", "writable": "pass"}
    assert words(full) == {"disk": "fail", "inodes": "pass", "writable": "pass"}
    assert (full[0]["unit"], full[0]["device"]) == ("GiB", "/")
    assert words(judged(disk, {**limits("/", min_free_inodes_percent=101.0), "root": str(root)}))["inodes"] == "fail"


def test_a_read_only_file_system_fails_by_the_mount_that_holds_the_path(root: Path) -> None:
    """The deepest and last mount counts, and a file system that the kernel made read-only counts as well as a mount option."""
    assert words(judged(disk, {**limits("/var/lib"), "root": str(root)}))["writable"] == "fail"
    assert words(judged(disk, {**limits("/with space"), "root": str(root)}))["writable"] == "fail"


def test_a_path_that_is_not_there_is_skipped(root: Path) -> None:
    """Not every host has a file system of its own at every path."""
    assert words(judged(disk, {**limits("/scratch"), "root": str(root)})) == {"disk": "skipped"}


RUNS, STARTED = {"LoadState": "loaded", "UnitFileState": "enabled"}, {"InactiveExitTimestampMonotonic": "5123456"}
# What systemd says of a unit that another role brings, and what that means.
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


def says(*states: dict[str, str]) -> tuple[int, str]:
    """Return what `systemctl show` prints of units, with its exit status."""
    return 0, "\n\n".join("\n".join(f"{name}={value}" for name, value in state.items()) for state in states)


@pytest.mark.parametrize("name", BROUGHT)
def test_what_another_role_brings_is_missed_once_it_was_let_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that stops or fails is a fail; one that no apply has brought, or that is just brought, started or restarted, is none."""
    state, verdict = BROUGHT[name]
    monkeypatch.setattr(unit, "ask", lambda _: says(state))

    found = judged(unit, {"units": [], "brought": ["munge.service"]})

    assert words(found) == {"unit": verdict}
    assert (found[0]["device"], found[0]["source"]) == ("munge.service", "node_health_brought_units")
    assert found[0]["reason"].startswith("munge.service " if verdict != "pass" else "")


@pytest.mark.parametrize("name", BROUGHT)
def test_a_mount_that_is_gone_is_as_bad_as_its_unit(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is mounted, the unit that mounts it says why; a unit that runs has mounted nothing, which is a fail."""
    state, verdict = BROUGHT[name]
    monkeypatch.setattr(unit, "ask", lambda _: says(state))

    found = judged(mount, {"path": "/scratch", "fstype": "", "unit": "juicefs.service", "root": str(root)})

    assert words(found) == {"mount": "fail" if verdict == "pass" else verdict}
    assert found[0]["reason"].startswith("nothing is mounted at /scratch")
    assert "juicefs.service" in found[0]["reason"] or verdict == "pass"
    assert (found[0]["fix"] == "") == (verdict == "skipped")


def test_a_mount_that_works_passes_whatever_its_unit_says(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit is asked only where nothing is mounted; another file system there is a fail, and a systemd that is silent is unknown."""
    monkeypatch.setattr(unit, "ask", lambda _: (1, "Failed to connect to bus"))
    settings = {"unit": "juicefs.service", "root": str(root)}

    assert words(judged(mount, {"path": "/jfs", "fstype": "fuse.juicefs", **settings})) == {"mount": "pass"}
    assert words(judged(mount, {"path": "/jfs", "fstype": "nfs4", **settings})) == {"mount": "fail"}
    found = judged(mount, {"path": "/scratch", "fstype": "", **settings})
    assert words(found) == {"mount": "unknown"}
    assert "Failed to connect to bus" in found[0]["reason"]


def test_a_mount_that_comes_up_between_two_looks_passes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its unit is asked after the first look, and by then it runs: the second look counts."""
    table = root / "proc/1/mountinfo"
    table.write_text(MOUNTS.replace(" /jfs ", " /other "), encoding="utf-8")

    def runs_now(_argv: list[str]) -> tuple[int, str]:
        table.write_text(MOUNTS, encoding="utf-8")
        return says(BROUGHT["runs"][0])

    monkeypatch.setattr(unit, "ask", runs_now)

    assert words(judged(mount, {"path": "/jfs", "fstype": "", "unit": "juicefs.service", "root": str(root)})) == {"mount": "pass"}


def test_a_mount_point_may_be_written_in_another_way(root: Path) -> None:
    """A link on the way and a slash at the end are no other place."""
    (root / "data").symlink_to(root / "jfs")

    assert words(judged(mount, {"path": "/jfs/", "fstype": "fuse.juicefs", "root": str(root)})) == {"mount": "pass"}
    assert words(judged(mount, {"path": "/data", "fstype": "fuse.juicefs", "root": str(root)})) == {"mount": "pass"}
    assert words(judged(mount, {"path": "/", "fstype": "ext4", "root": str(root)})) == {"mount": "pass"}


def test_a_mount_must_be_there_and_of_its_type(root: Path) -> None:
    """A folder that nothing is mounted on, and another file system over it, both fail."""
    found = {
        (path, kind): words(judged(mount, {"path": path, "fstype": kind, "root": str(root)}))["mount"]
        for path, kind in (("/jfs", "fuse.juicefs"), ("/jfs", ""), ("/jfs", "nfs4"), ("/scratch", ""))
    }

    assert found == {("/jfs", "fuse.juicefs"): "pass", ("/jfs", ""): "pass", ("/jfs", "nfs4"): "fail", ("/scratch", ""): "fail"}


def test_a_mount_that_is_there_and_does_not_work_fails(root: Path) -> None:
    """What the kernel still lists while its server or its program is gone is no good mount."""
    (root / "jfs").rmdir()

    assert words(judged(mount, {"path": "/jfs", "root": str(root)})) == {"mount": "fail"}


@pytest.mark.parametrize(
    ("offset", "side", "leap", "verdict"),
    [
        ("0.000012", "slow", "Normal", "pass"),
        ("1.500000", "fast", "Normal", "fail"),
        ("0.900000", "fast", "Insert second", "pass"),
        ("0.000000", "slow", "Not synchronised", "unknown"),
    ],
)
def test_the_clock_is_judged_by_what_chrony_says(offset: str, side: str, leap: str, verdict: str) -> None:
    """Too far off fails; a clock that follows no server is unknown, because nobody knows how far off it is."""
    found = clock.judge_tracking(TRACKING.format(offset=offset, side=side, leap=leap), 1.0)

    assert words([found]) == {"clock": verdict}


def test_words_of_chrony_that_are_not_known_are_unknown() -> None:
    """Another form of answer is not read as good."""
    assert words([clock.judge_tracking("506 Cannot talk to daemon", 1.0)]) == {"clock": "unknown"}


def test_a_container_leaves_clock_and_kernel_log_to_the_machine_below(tmp_path: Path) -> None:
    """Both are skipped with the reason, whatever the machine's own would say."""
    root = write(tmp_path, {"run/systemd/container": "podman\n"})
    found = [*judged(clock, {"root": str(root), "max_offset_s": 1.0}), *judged(kernel, {"root": str(root), "window_s": 60})]

    assert words(found) == {"clock": "skipped", "kernel_log": "skipped"}
    assert all("podman" in record["reason"] for record in found)


def edac(**files: str) -> dict[str, str]:
    """Return the counters of one memory controller, whose counting began a week ago."""
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
def test_memory_errors_are_judged_dimm_by_dimm(tmp_path: Path, files: dict[str, str], verdicts: list[str]) -> None:
    """One uncorrected error fails, corrected ones by their number a day; counters that cannot be read are unknown."""
    settings = {**make_config()["memory_errors"], "root": str(write(tmp_path, files))}
    found = judged(memory, settings)
    words(found)

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
def test_lines_of_broken_hardware_fail(name: str) -> None:
    """Each kind is found among harmless lines, alone, with the line itself and its number of occurrences."""
    found = list(kernel.judge_lines([*HARMLESS, BROKEN[name], BROKEN[name]], make_config()["kernel_log"]))

    assert words(found) == {f"kernel_log_{name}": "fail"}
    assert found[0]["found"] == "2"
    assert BROKEN[name][:60] in found[0]["reason"]


def test_errors_that_were_corrected_and_faults_of_programs_pass() -> None:
    """They are no reason to take a node out."""
    assert words(list(kernel.judge_lines(HARMLESS, make_config()["kernel_log"]))) == {"kernel_log": "pass"}


def test_the_site_adds_patterns_and_ignores_lines() -> None:
    """What the site ignores is ignored for every pattern, the site's own included."""
    own = {"name": "fan", "pattern": r"fan \d+ failed", "fix": "replace the fan"}
    settings = {**make_config()["kernel_log"], "patterns": [own], "ignore": ["fan 9 ", "0000:3b:00"]}
    found = list(kernel.judge_lines([BROKEN["xid_79"], "fan 9 failed", "fan 2 failed"], settings))

    assert words(found) == {"kernel_log_fan": "fail"}
    assert (found[0]["found"], found[0]["fix"]) == ("1", "replace the fan")


def test_only_lines_of_the_window_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The journal is asked first and the kernel second; an error older than the window is over, and an unreadable log is unknown."""
    answers = {"journalctl": (0, f"1000.5 n1 kernel: {BROKEN['memory']}\n9000.5 n1 kernel: all is well")}
    monkeypatch.setattr(kernel, "ask", lambda argv: answers.get(argv[0], (1, f"{argv[0]}: Operation not permitted")))
    monkeypatch.setattr(kernel.time, "time", lambda: 9001.0)
    settings = {**make_config()["kernel_log"], "root": str(tmp_path)}

    assert words(judged(kernel, {**settings, "window_s": 100})) == {"kernel_log": "pass"}
    assert words(judged(kernel, {**settings, "window_s": 9000})) == {"kernel_log_memory": "fail"}
    answers["journalctl"] = (0, "")
    found = judged(kernel, settings)
    assert words(found) == {"kernel_log": "unknown"}
    assert "Operation not permitted" in found[0]["reason"]


def test_the_kernel_is_asked_where_there_is_no_journal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without journald, dmesg's own lines are read, also those of a kernel that names the caller behind the time."""
    log = f"[    0.000000][    T0] Linux version 6.8.0\n[    1.500000] a line\n[    2.000000][ T1234] {BROKEN['memory']}"
    answers = {"journalctl": (127, "journalctl is not installed"), "dmesg": (0, log)}
    monkeypatch.setattr(kernel, "ask", lambda argv: answers[argv[0]])
    found = judged(kernel, {**make_config()["kernel_log"], "root": str(tmp_path), "window_s": 10**9})

    assert words(found) == {"kernel_log_memory": "fail"}
    assert len(kernel.read_log()) == 3


def test_a_file_system_that_answers_with_an_error_fails(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is gone below its mount is a fail with the kernel's words, not a check without an answer."""

    def broken(path: str) -> None:
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr(disk.os, "statvfs", broken)
    found = judged(disk, {**limits("/var/lib"), "root": str(root)})

    assert words(found) == {"disk": "fail"}
    assert "Input/output error" in found[0]["reason"]


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the program with which the role gpu_env counts, as it lies on a host."""
    path = tmp_path_factory.mktemp("lib") / "launch.pyz"
    zipapp_file.write_zipapp(path)
    return str(path)


def count_settings(counter: str, tree: Path, *, expected: int, facts: str = "/nowhere/gpu.json") -> dict[str, Any]:
    """Return the settings of the GPU check."""
    return {"program": counter, "sysfs": str(tree), "expected": expected, "facts": facts}


def test_without_the_program_nobody_counts(tmp_path: Path) -> None:
    """That is unknown where the inventory expects GPUs, and skipped where nothing expects any."""
    nowhere = str(tmp_path / "launch.pyz")

    assert words(judged(gpus, count_settings(nowhere, tmp_path, expected=8))) == {"gpu_count": "unknown"}
    assert words(judged(gpus, count_settings(nowhere, tmp_path, expected=0))) == {"gpu_count": "skipped"}


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
def test_a_daemon_must_be_active(state: tuple[str, str, str], verdict: str) -> None:
    """Starting is unknown, but between two crashes is fail."""
    names = ("LoadState", "ActiveState", "SubState")

    assert words([unit.judge_state("slurmd.service", dict(zip(names, state, strict=True)))]) == {"unit": verdict}


@pytest.mark.parametrize("word", ["deactivating", "inactive"])
def test_a_daemon_that_is_restarted_is_unknown(word: str) -> None:
    """As long as systemd has a job for it, its state is not the last word: a restart takes no node out of service."""
    assert words([unit.judge_state("slurmd.service", {"LoadState": "loaded", "ActiveState": word, "Job": "87"})]) == {"unit": "unknown"}


def test_each_daemon_has_its_own_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of systemd is read block by block; one that does not match the question is unknown."""
    answer = "LoadState=loaded\nActiveState=active\nSubState=running\n\nLoadState=not-found\nActiveState=inactive\nSubState=dead"
    monkeypatch.setattr(unit, "ask", lambda _: (0, answer))

    assert [record["verdict"] for record in judged(unit, {"units": ["a.service", "b.service"]})] == ["pass", "fail"]
    assert [record["verdict"] for record in judged(unit, {"units": ["a.service"]})] == ["unknown"]
    both = judged(unit, {"units": ["a.service"], "brought": ["b.service"]})
    assert [(record["device"], record["verdict"]) for record in both] == [("a.service", "pass"), ("b.service", "skipped")]
