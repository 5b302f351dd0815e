"""Role `gpu_driver`: install plans from detected hardware, and verdicts on the running driver."""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.launch.detect.gpus import catalogue, find_gpus
from primus_bootstrap.launch.detect.sysfs import Host as SysfsHost
from tests.unit.launch_rig import expand
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Mapping

filters: Any = load_filters("gpu_driver")
facts: Any = load_role_module("gpu_driver", "gpu_driver_host")
effects: Any = load_role_module("gpu_driver", "gpu_driver_effects")

RELEASES: dict[str, Any] = yaml.safe_load((content.roles_dir() / "gpu_driver" / "files" / "releases.yml").read_text(encoding="utf-8"))
# As `apt-cache madison` prints them; versions from AMD's repositories.
OFFERED = filters.available_versions((Path(__file__).parents[1] / "data" / "packages" / "madison-amd.txt").read_text(encoding="utf-8"))
MI300X = {"verdict": "ok", "vendor": "amd", "model": "MI300X", "count": 8, "reason": ""}
H200 = {"verdict": "ok", "vendor": "nvidia", "model": "H200", "count": 8, "reason": ""}
NOBLE = {
    "kernel": "6.8.0-60-generic", "architecture": "x86_64", "distribution": "ubuntu", "version": "24.04", "codename": "noble",
    "container": "", "secure_boot": False, "nvswitches": 0, "installed": {}, "rdma_devices": [], "closed": False,
}  # fmt: skip
BESIDE = ("fabric_manager", "container_toolkit", "rdma")
INSTALLED = {"state": "installed", "version": "6.4.4", "tools": [], "allow_secure_boot": False}


def plan(detected: Mapping[str, Any] = MI300X, host: Mapping[str, Any] = NOBLE, offered: Any = None, **parameters: Any) -> dict[str, Any]:
    """Return the plan for a host; the default is an MI300X on Ubuntu 24.04."""
    found: dict[str, Any] = filters.plan(detected, host, {**INSTALLED, **parameters}, RELEASES, offered)
    return found


def test_packages_have_the_version_of_the_release() -> None:
    """A newer driver in the source is ignored. The module is built for the running kernel."""
    got = plan(offered=OFFERED)

    assert (got["outcome"], got["module"], got["module_version"]) == ("install", "amdgpu", "6.12.12")
    assert got["packages"] == [
        {"name": "linux-headers-6.8.0-60-generic", "version": "6.8.0-60.63"},
        {"name": "linux-modules-extra-6.8.0-60-generic", "version": "6.8.0-60.63"},
        {"name": "amdgpu-dkms", "version": "1:6.12.12.60404-2202139.24.04"},
        {"name": "amd-smi-lib", "version": "25.5.1.60404-129~24.04"},
        {"name": "rocminfo", "version": "1.0.0.60404-129~24.04"},
    ]


def test_distribution_package_of_the_same_name_is_ignored() -> None:
    """Debian has its own rocminfo, which apt lists first if it is newer."""
    offered = {**OFFERED, "rocminfo": ["6.1.2-2", *OFFERED["rocminfo"]]}

    assert plan(offered=offered)["packages"][-1] == {"name": "rocminfo", "version": "1.0.0.60404-129~24.04"}
    assert plan()["sources"]["tools"] == {"packages": "amd-smi-lib rocminfo", "version": "*.60404-*"}


def test_installed_packages_are_not_planned_again() -> None:
    """A complete host has an empty plan; a package with another version is in the plan."""
    installed = {one["name"]: one["version"] for one in plan(offered=OFFERED)["packages"]}

    assert plan(host={**NOBLE, "installed": installed}, offered=OFFERED)["packages"] == []
    installed["amdgpu-dkms"] = "1:6.10.5.60303-2109964.24.04"
    names = [one["name"] for one in plan(host={**NOBLE, "installed": installed}, offered=OFFERED)["packages"]]
    assert names == ["amdgpu-dkms"]


def test_sources_and_pin_follow_the_release() -> None:
    """The driver folder of ROCm 7 has its own number. A pin prevents upgrades of the driver."""
    got = plan(version="7.0.2")["sources"]

    assert [entry["folder"] for entry in got["entries"]] == ["amdgpu/30.10.2/ubuntu", "rocm/apt/7.0.2"]
    assert got["pin"]["version"] == "1:6.14.14.30100200-*"
    assert got["fingerprint"] == "CA8BB4727A47B4D09B4EE8969386B48A1A693C5C"


def test_debian_uses_the_repository_of_ubuntu_22_04() -> None:
    """AMD has no folder for Debian and refers to that of Ubuntu 22.04."""
    bookworm = {**NOBLE, "distribution": "debian", "version": "12", "codename": "bookworm", "kernel": "6.1.0-28-amd64"}

    assert plan(host=bookworm)["sources"]["entries"][0]["suite"] == "jammy"


def test_newest_releases_are_selectable_and_older_ones_stay() -> None:
    """The driver of ROCm 7.1 and later has its own numbers, and each series its own module."""
    trixie = {**NOBLE, "distribution": "debian", "version": "13", "codename": "trixie", "kernel": "6.12.57+deb13-amd64"}
    newest, debian = plan(version="7.2.4"), plan(host=trixie, version="7.1.1")

    assert (newest["module_version"], newest["sources"]["pin"]["version"]) == ("6.16.13", "1:6.16.13.30300400-*")
    assert [entry["folder"] for entry in newest["sources"]["entries"]] == ["amdgpu/30.30.4/ubuntu", "rocm/apt/7.2.4"]
    assert {entry["suite"] for entry in debian["sources"]["entries"]} == {"noble"}
    assert debian["module_version"] == "6.16.6"
    for version in ("6.2.0", "6.4.0", "7.0.0"):
        assert plan(version=version)["outcome"] == "install"
    for version in ("570.172.08", "580.95.05", "590.48.01", "595.91.07"):
        assert plan(H200, version=version)["outcome"] == "install"


@pytest.mark.parametrize(
    ("detected", "version", "reason"),
    [
        ({"model": "MI355X"}, "7.2.4", "7.2.4 supports MI355X on ubuntu22.04, ubuntu24.04, rhel9, not on debian13"),
        ({"model": "MI300A"}, "7.1.1", "not on debian13"),
        (H200, "595.91.07", "595.91.07 supports H200 on ubuntu22.04, ubuntu24.04, not on debian13"),
    ],
)
def test_a_system_that_no_source_confirms_is_refused(detected: Any, version: str, reason: str) -> None:
    """If two documents of a vendor disagree, the list has what both confirm."""
    trixie = {**NOBLE, "distribution": "debian", "version": "13", "codename": "trixie", "kernel": "6.12.57+deb13-amd64"}

    assert reason in plan({**MI300X, **detected}, trixie, version=version)["reason"]


def test_every_series_has_sources_and_a_date() -> None:
    """A list without them cannot be checked later. A driver that the repository lacks is not listed."""
    for vendor in ("amd", "nvidia"):
        for name, series in RELEASES[vendor]["series"].items():
            assert all(source.startswith("https://") for source in series["sources"]), name
            assert series["sources"], name
            assert isinstance(series["read"], dt.date), name
    assert "7.2.2" not in RELEASES["amd"]["series"]["7.2"]["releases"]


def test_nvswitches_require_the_fabric_manager() -> None:
    """The package name contains the driver branch. PCIe cards need no fabric manager."""
    hgx = plan(H200, {**NOBLE, "nvswitches": 4}, version="570.172.08")
    card = plan({**H200, "model": "L40S"}, version="580.95.05")

    assert [one["name"] for one in hgx["packages"]][1:] == ["nvidia-open", "nvidia-fabricmanager-570", "nvidia-container-toolkit"]
    assert {one["version"] for one in hgx["packages"][1:3]} == {"570.172.08-*"}
    assert (hgx["fabric"], hgx["module_version"]) == (True, "570.172.08")
    assert [one["name"] for one in card["packages"]][1:] == ["nvidia-open", "nvidia-container-toolkit"]
    assert card["sources"]["entries"] == [{"folder": "ubuntu2404/x86_64/", "suite": "/", "component": ""}]
    assert card["sources"]["key"] == "ubuntu2404/x86_64/3bf863cc.pub"


def test_grace_gets_the_packages_of_its_architecture() -> None:
    """NVIDIA's folder for Arm servers is sbsa. AMD has no packages for them, and a repository for x86 would install none."""
    grace = {**NOBLE, "architecture": "aarch64"}
    got = plan({**H200, "model": "GB200"}, grace, version="580.95.05")
    amd = plan(MI300X, grace)

    assert got["sources"]["entries"] == [{"folder": "ubuntu2404/sbsa/", "suite": "/", "component": ""}]
    assert (got["sources"]["key"], got["sources"]["architecture"]) == ("ubuntu2404/sbsa/3bf863cc.pub", "arm64")
    assert plan()["sources"]["architecture"] == "amd64"
    assert amd["outcome"] == "refused"
    assert "for x86_64, not for aarch64" in amd["reason"]


def test_fourth_generation_of_nvswitches_needs_the_subnet_manager() -> None:
    """B200's fabric manager starts nvlsm, whose version is not that of the driver. H200 does not need it."""
    b200 = {one["name"]: one["version"] for one in plan({**H200, "model": "B200"}, version="580.95.05")["packages"]}
    h200 = {one["name"] for one in plan(H200, {**NOBLE, "nvswitches": 4}, version="580.95.05")["packages"]}

    assert (b200["nvlsm"], b200["nvidia-fabricmanager"]) == ("", "580.95.05-*")
    assert "nvlsm" not in h200


def test_debian_needs_no_more_modules() -> None:
    """Only Ubuntu has its kernel's modules in two packages."""
    bookworm = {**NOBLE, "distribution": "debian", "version": "12", "codename": "bookworm", "kernel": "6.1.0-28-amd64"}

    assert not any("modules-extra" in one["name"] for one in plan(host=bookworm)["packages"])
    assert "linux-modules-extra-6.8.0-60-generic" in [one["name"] for one in plan()["packages"]]


def test_host_without_gpus_is_skipped() -> None:
    """Nothing is installed without a GPU, whatever hosts.yaml contains."""
    got = plan({"verdict": "none", "vendor": "cpu", "model": "", "count": 0, "reason": ""}, version="nonsense")

    assert (got["outcome"], got["packages"], got["reason"]) == ("skipped", [], "this host has no GPU on its PCI bus")


def test_container_is_skipped() -> None:
    """A container sees the GPUs of its host but cannot load a driver."""
    got = plan(host={**NOBLE, "container": "podman"})

    assert (got["outcome"], got["reason"]) == ("skipped", "the driver belongs to the machine that runs this podman container")


@pytest.mark.parametrize(
    ("detected", "host", "parameters", "reason", "fix"),
    [
        ({**MI300X, "verdict": "mixed", "vendor": ""}, {}, {}, "cannot be determined: mixed", "GPUs of one vendor"),
        ({}, {}, {"version": ""}, r"gpu_driver_version \(none\) is not a known release", "6.4.4, 7.0.0"),
        ({}, {}, {"version": "6.4.9"}, "gpu_driver_version 6.4.9 is not a known release", "releases.yml"),
        (H200, {}, {"version": "6.4.4"}, "gpu_driver_version 6.4.4 is not a known release for nvidia", "570.…, 580.…"),
        (H200, {}, {"version": "580"}, "gpu_driver_version 580 is not a known release", "570.…, 580.…"),
        ({"model": "MI355X"}, {}, {}, "6.4.4 does not support MI355X", "6.4.4 supports MI100, "),
        ({"model": "MI250/MI355X"}, {}, {}, "6.4.4 does not support MI355X", "choose a release"),
        ({}, {"version": "20.04"}, {}, "not on ubuntu20.04", "install one of ubuntu22.04"),
        ({}, {"kernel": "6.14.0-24-generic"}, {}, "with kernels 6.8, 6.11, but 6.14.0-24-generic runs", "boot a kernel of 6.8, 6.11"),
        ({}, {"kernel": "6.80.0-1"}, {}, "but 6.80.0-1 runs", "boot a kernel"),
        ({"model": "MI325X"}, {}, {}, "6.4.4 supports MI325X on ubuntu22.04, not on ubuntu24.04", "install one of ubuntu22.04"),
        (
            {}, {"version": "22.04", "kernel": "6.8.0-60-generic"}, {"version": "6.2.2"},
            "supports MI300X on ubuntu22.04 with kernels 5.15, but 6.8.0", "another release",
        ),
        ({}, {"secure_boot": True}, {}, "Secure Boot is on", "mokutil"),
        ({}, {"closed": True}, {}, "uses the bundle only", "gpu_driver_state: present, and install the driver in the host's image"),
        ({}, {"distribution": "rocky", "version": "9.6", "kernel": "5.14.0-570.el9"}, {}, "on ubuntu and debian only", "present"),
    ],
)  # fmt: skip
def test_unsupported_hardware_or_system_is_refused(detected: Any, host: Any, parameters: Any, reason: str, fix: str) -> None:
    """Each error names the detected value and a fix; the plan is empty."""
    got = plan({**MI300X, **detected}, {**NOBLE, **host}, **parameters)

    assert got["outcome"] == "refused"
    assert re.search(reason, got["reason"])
    assert fix in got["fix"]
    assert (got["packages"], got["sources"]) == ([], {})


def test_secure_boot_with_an_enrolled_key_is_accepted() -> None:
    """A variable confirms that the firmware has the key."""
    assert plan(host={**NOBLE, "secure_boot": True}, allow_secure_boot=True)["outcome"] == "install"


def test_unreadable_pci_bus_is_unknown() -> None:
    """Unknown differs from no GPU and from an unsupported GPU."""
    got = plan({**MI300X, "verdict": "unknown", "vendor": "amd", "model": "", "reason": "0000:05:00.0: its vendor id cannot be read"})

    assert got["outcome"] == "unknown"
    assert "0000:05:00.0" in got["reason"]


def test_version_without_a_source_is_refused() -> None:
    """The error lists the versions of the mirror."""
    got = plan(version="6.4.2", offered=OFFERED)

    assert got["outcome"] == "refused"
    assert got["reason"].startswith("no package source has amdgpu-dkms 1:6.12.12.60402-* (available: 1:6.14.14.30100200-2226257.24.04, ")


def test_state_present_installs_nothing() -> None:
    """Only the expected version is computed; kernel and Secure Boot are not checked."""
    odd = {**NOBLE, "kernel": "6.99.0", "secure_boot": True}

    assert plan(host=odd, state="present")["outcome"] == "present"
    assert plan(host=odd, state="present")["module_version"] == "6.12.12"
    assert plan(host=odd, state="present", version="")["module_version"] == ""
    assert plan(host=odd, state="present")["packages"] == []


def test_matrix_contains_detectable_models_only() -> None:
    """A misspelt model would refuse every host with it. Each series lists kernels and release folders."""
    for vendor in ("amd", "nvidia"):
        for name, series in RELEASES[vendor]["series"].items():
            assert set(series["models"]) <= set(catalogue()["models"]), name
            for systems in (series["systems"], *filter(None, series["models"].values())):
                assert set(systems) <= set(series["systems"]), name
                assert all(re.fullmatch(r"\d+\.\d+", kernel) for kernels in systems.values() for kernel in kernels), name
            for version, release in series.get("releases", {}).items():
                assert version.startswith(f"{name}."), version
                assert set(release) == {"driver", "rocm", "build"}, version


@pytest.mark.parametrize(
    ("tree", "outcome"), [("mi300x-roce", "install"), ("cpu", "skipped"), ("mixed", "refused"), ("broken-ids", "unknown")]
)
def test_plans_for_recorded_sysfs_trees(tmp_path: Path, tree: str, outcome: str) -> None:
    """Covers detection from sysfs and the plan."""
    found = find_gpus(SysfsHost(expand(tree, tmp_path)))
    got = plan({"verdict": found.verdict, "vendor": found.vendor, "model": found.name, "count": len(found.gpus), "reason": found.reason})

    assert got["outcome"] == outcome


def test_hosts_of_a_rack_are_grouped() -> None:
    """Racks are ordered by their first host. A host without a rack is its own group."""
    racks = {"g1": "a", "g2": "b", "g3": "a", "g5": "b"}
    got = filters.rack_batches(["g1", "g2", "g3", "g4", "g5", "g6"], racks)

    assert got == {"hosts": ["g1", "g3", "g2", "g5", "g4", "g6"], "sizes": [2, 2, 1, 1]}
    assert filters.rack_batches([], {}) == {"hosts": [], "sizes": []}


def make_root(tmp_path: Path) -> Path:
    """Return the root of a fake host with four NVSwitches and another NVIDIA device."""
    devices = tmp_path / "sys/bus/pci/devices"
    for number, (vendor, kind) in enumerate([("0x10de", "0x068000")] * 4 + [("0x10de", "0x030200"), ("0x1002", "0x068000")]):
        (devices / str(number)).mkdir(parents=True)
        (devices / str(number) / "vendor").write_text(f"{vendor}\n", encoding="utf-8")
        (devices / str(number) / "class").write_text(f"{kind}\n", encoding="utf-8")
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n', encoding="utf-8")
    firmware = tmp_path / "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    firmware.parent.mkdir(parents=True)
    firmware.write_bytes(b"\x06\x00\x00\x00\x01")
    return tmp_path


def test_host_facts_are_read_from_its_files(tmp_path: Path) -> None:
    """Covers distribution, firmware, switches, packages and RDMA devices."""
    query = "installed gpg 2.4.4\nconfig-files amdgpu-dkms 1:6.8.5\n"
    got = facts.read_facts(make_root(tmp_path), "6.8.0-60-generic", "x86_64", lambda _: query)

    assert got == {
        **NOBLE, "secure_boot": True, "nvswitches": 4, "installed": {"gpg": "2.4.4"}, "rdma_devices": ["mlx5_0"],
    }  # fmt: skip


def no_program(_: Any) -> tuple[int | None, str]:
    """Answer as a host without this program."""
    return None, "FileNotFoundError"


def records(
    root: Path, *, run: Any = no_program, facts: Mapping[str, Any] = NOBLE, options: Any = None, **planned: Any
) -> list[dict[str, Any]]:
    """Return the verdicts on a fake host."""
    plan = {
        "outcome": "present", "module": "amdgpu", "module_version": "6.12.12", "fabric": False, "packages": [],
        "reason": "because", "fix": "do",
    }  # fmt: skip
    parameters = {"host": "n1", "plan": {**plan, **planned}, "facts": facts, "options": options or {}}
    found: list[dict[str, Any]] = effects.verify(parameters, root, run).records
    return found


def by_check(found: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return verdict and found value by check."""
    return {one["check"].removeprefix("gpu_driver."): (one["verdict"], one["found"]) for one in found}


@pytest.mark.parametrize(
    ("dump", "closed"),
    [
        ('Dir::Etc::sourceparts "/dev/null";\n', True),
        ('Dir::Etc::sourceparts "sources.list.d";\n', False),
        ('Dir::Etc::sourceparts::x "/dev/null";\n', False),
        ("", False),
    ],
)
def test_host_that_uses_bundle_mirrors_only_is_detected(dump: str, closed: bool) -> None:  # noqa: FBT001 (a case)
    """Covers `apt-config dump` with and without the settings of the role airgap."""
    assert facts.reads_no_sources(dump) is closed


def driver_verdicts(root: Path, outcome: str = "present", version: str = "6.12.12", **options: Any) -> dict[str, tuple[str, str]]:
    """Return verdict and found value of the driver and option checks."""
    found = by_check(records(root, outcome=outcome, module_version=version, options=options))
    return {check: words for check, words in found.items() if check not in BESIDE}


def load(root: Path, version: str = "6.12.12", module: str = "amdgpu", **parameters: str) -> Path:
    """Load a module on the fake host."""
    folder = root / "sys/module" / module
    (folder / "parameters").mkdir(parents=True, exist_ok=True)
    (folder / "version").write_text(f"{version}\n", encoding="utf-8")
    for name, value in parameters.items():
        (folder / "parameters" / name).write_text(f"{value}\n", encoding="utf-8")
    return root


def test_version_must_match(tmp_path: Path) -> None:
    """A missing driver or another version fails. Without a required version any driver passes."""
    assert driver_verdicts(tmp_path) == {"loaded": ("fail", "not loaded")}
    module = tmp_path / "sys/module/amdgpu"
    module.mkdir(parents=True)
    assert driver_verdicts(tmp_path) == {"loaded": ("fail", "the kernel's own")}
    assert driver_verdicts(tmp_path, version="") == {"loaded": ("pass", "the kernel's own")}
    (module / "version").write_text("6.10.5\n", encoding="utf-8")
    assert driver_verdicts(tmp_path) == {"loaded": ("fail", "6.10.5")}
    (module / "version").write_text("6.12.12\n", encoding="utf-8")
    assert driver_verdicts(tmp_path) == {"loaded": ("pass", "6.12.12")}


@pytest.mark.parametrize(
    ("on_disk", "waits"), [((0, "6.12.12"), True), ((0, "6.10.5"), False), ((0, ""), False), ((1, "not found"), True), ((None, ""), True)]
)
def test_outdated_module_needs_a_reboot_if_that_loads_the_right_one(tmp_path: Path, on_disk: Any, waits: bool) -> None:  # noqa: FBT001 (a case)
    """The mark in /run has no effect. If the installed module also differs, a reboot does not help."""
    found = records(load(tmp_path, "6.10.5"), run=lambda _: on_disk)

    assert effects.needs_reboot(found) is waits
    assert (found[0]["fix"] == effects.FIX_REBOOT) is waits
    assert waits or "dkms status" in found[0]["fix"]


def test_unloaded_module_needs_a_reboot_only_after_an_installation(tmp_path: Path) -> None:
    """A module that failed to load at boot will fail again."""
    assert not effects.needs_reboot(records(tmp_path))
    mark = tmp_path / "run/reboot-required"
    mark.parent.mkdir()
    mark.write_text("", encoding="utf-8")
    assert effects.needs_reboot(records(tmp_path))


@pytest.mark.parametrize(("written_s", "waits"), [(2000, True), (None, True), (500, False)])
def test_option_needs_a_reboot_unless_present_at_boot(tmp_path: Path, written_s: int | None, waits: bool) -> None:  # noqa: FBT001 (a case)
    """An option that was present at boot but is not in force will not be fixed by a reboot."""
    root = load(tmp_path, noretry="0")
    (root / "proc").mkdir()
    (root / "proc/stat").write_text("cpu 1 2\nbtime 1000\n", encoding="utf-8")
    if written_s:
        file = root / effects.OPTIONS_FILE
        file.parent.mkdir(parents=True)
        file.write_text("options amdgpu noretry=1\n", encoding="utf-8")
        os.utime(file, (written_s, written_s))
    found = records(root, options={"amdgpu": {"noretry": 1}})

    assert by_check(found)["option.amdgpu.noretry"] == ("fail", "0")
    assert effects.needs_reboot(found) is waits
    assert waits or "initramfs" in found[-1]["fix"]


def test_no_reboot_is_needed_in_containers_and_on_healthy_hosts(tmp_path: Path) -> None:
    """A container uses the kernel of its host."""
    root = load(tmp_path, noretry="0")
    inside = records(root, facts={**NOBLE, "container": "podman"}, outcome="skipped", options={"amdgpu": {"noretry": 1}})

    assert [one["verdict"] for one in inside] == ["skipped", "skipped"]
    assert not effects.needs_reboot(inside)
    assert not effects.needs_reboot(records(root, options={"amdgpu": {"noretry": 0}}))


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [((0, "active"), "pass"), ((3, "failed"), "fail"), ((4, "inactive"), "fail"), ((3, "activating"), "unknown"), ((None, ""), "unknown")],
)
def test_fabric_manager_must_run_with_nvswitches(tmp_path: Path, answer: Any, verdict: str) -> None:
    """GPUs behind NVSwitches need it. A starting service, or no answer from systemd, is unknown."""
    calls: list[Any] = []

    def run(argv: Any) -> Any:
        calls.append(argv)
        return answer

    found = records(load(tmp_path, "580.95.05", "nvidia"), run=run, module="nvidia", module_version="580.95.05", fabric=True)

    assert by_check(found)["fabric_manager"] == (verdict, answer[1])
    assert calls == [["systemctl", "is-active", "nvidia-fabricmanager.service"]]


def test_fabric_manager_is_skipped_without_nvswitches(tmp_path: Path) -> None:
    """It is also skipped while the driver has the wrong version: the driver check fails then."""
    without = by_check(records(load(tmp_path)))
    waiting = by_check(records(load(tmp_path, "6.10.5"), fabric=True))

    assert without["fabric_manager"] == ("skipped", "")
    assert (waiting["fabric_manager"], waiting["loaded"]) == (("skipped", ""), ("fail", "6.10.5"))


def test_fabric_manager_is_checked_without_an_installation() -> None:
    """NVSwitches need it with any installed driver, with or without a required version."""
    hgx = {**NOBLE, "nvswitches": 4}

    assert plan(H200, hgx, state="present", version="")["fabric"]
    assert plan(H200, hgx, state="present", version="580.95.05")["fabric"]
    assert not plan(host=hgx, state="present", version="")["fabric"]


@pytest.mark.parametrize(
    ("package", "answer", "verdict", "program"),
    [
        ("nvidia-container-toolkit", (0, "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: x"), "pass", "nvidia-ctk"),
        ("amd-container-toolkit", (0, "1.1.0"), "pass", "amd-ctk"),
        ("nvidia-container-toolkit", (None, "FileNotFoundError"), "fail", "nvidia-ctk"),
        ("rocm", (0, ""), "skipped", ""),
    ],
)
def test_container_toolkit_must_run_if_requested(tmp_path: Path, package: str, answer: Any, verdict: str, program: str) -> None:
    """The check is skipped if the toolkit is not requested."""
    called: list[str] = []

    def run(argv: Any) -> Any:
        called.append(argv[0])
        return answer

    found = by_check(records(load(tmp_path), run=run, packages=[{"name": "amdgpu-dkms"}, {"name": package}]))

    assert found["container_toolkit"] == (verdict, "" if verdict == "skipped" else answer[1].splitlines()[0])
    assert called == [program] * (verdict != "skipped")


def test_every_rdma_device_can_be_opened(tmp_path: Path) -> None:
    """A device without a verbs device fails. No device is skipped, or unknown if a NIC could have one."""
    root, mlx = load(tmp_path), {**NOBLE, "rdma_devices": ["mlx5_0", "mlx5_1"]}
    assert by_check(records(root))["rdma"] == ("skipped", "")
    (root / "sys/bus/pci/drivers/mlx5_core/0000:f4:00.0").mkdir(parents=True)
    (root / "sys/bus/pci/drivers/mlx5_core/module").mkdir()
    assert by_check(records(root))["rdma"] == ("unknown", "")
    for number in range(2):
        assert by_check(records(root, facts=mlx))["rdma"] == ("fail", "mlx5_0" * number)
        verbs = root / f"sys/class/infiniband_verbs/uverbs{number}"
        verbs.mkdir(parents=True)
        (verbs / "ibdev").write_text(f"mlx5_{number}\n", encoding="utf-8")
    assert by_check(records(root, facts=mlx))["rdma"] == ("pass", "mlx5_0, mlx5_1")


def test_options_of_rdma_modules_are_checked(tmp_path: Path) -> None:
    """They follow the same rules as GPU module options, including the reboot."""
    root = load(tmp_path, module="mlx5_core", prof_sel="2")
    found = records(load(root), options={"mlx5_core": {"prof_sel": 3}})

    assert by_check(found)["option.mlx5_core.prof_sel"] == ("fail", "2")
    assert effects.needs_reboot(found)


@pytest.mark.parametrize(
    ("outcome", "check", "verdict"), [("skipped", "loaded", "skipped"), ("unknown", "plan", "unknown"), ("refused", "plan", "fail")]
)
def test_without_a_plan_no_check_passes(tmp_path: Path, outcome: str, check: str, verdict: str) -> None:
    """No GPU is skipped, an unreadable bus is unknown, a refused plan fails; other checks do not run."""
    assert driver_verdicts(tmp_path, outcome) == {check: (verdict, "")}


def test_options_are_compared_with_sysfs(tmp_path: Path) -> None:
    """Booleans have several spellings. A hidden option is unknown; an option of a missing module is skipped."""
    folder = tmp_path / "sys/module/amdgpu/parameters"
    folder.mkdir(parents=True)
    (folder / "noretry").write_text("1\n", encoding="utf-8")
    (folder / "debug").write_text("N\n", encoding="utf-8")
    got = driver_verdicts(tmp_path, version="", amdgpu={"noretry": 0, "debug": False, "hidden": 3}, ib_core={"x": 1})

    assert got["option.amdgpu.noretry"] == ("fail", "1")
    assert got["option.amdgpu.debug"] == ("pass", "N")
    assert got["option.amdgpu.hidden"] == ("unknown", "")
    assert got["option.ib_core.x"] == ("skipped", "")
