"""primus_bootstrap.launch.checks.gpu on AMD nodes with one fault."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.gpu import links
from primus_bootstrap.launch.checks.model import UnavailableError
from tests.unit.checks_rig import Machine, amd_machine

if TYPE_CHECKING:
    from pathlib import Path


# record, path below the GPU's folder in sysfs, its new content (None: the file is removed), verdict of this GPU
AMD = [
    ("gpu_ecc", "ras/umc_err_count", "ue: 1\nce: 0", "fail"),
    ("gpu_ecc", "ras/gfx_err_count", "ue: 0\nce: 0\nde: 2", "fail"),
    ("gpu_ecc", "ras/umc_err_count", "ue: 0\nce: 900", "pass"),
    ("gpu_ecc", "ras/umc_err_count", "Query failed", "unknown"),
    ("gpu_bad_pages", "ras/gpu_vram_bad_pages", "0x1 : 0x1000 : R\n0x2 : 0x1000 : P", "fail"),
    ("gpu_bad_pages", "ras/gpu_vram_bad_pages", "0x2 : 0x1000 : F", "fail"),
    ("gpu_bad_pages", "ras/gpu_vram_bad_pages", "", "pass"),
    ("gpu_bad_pages", "ras/gpu_vram_bad_pages", "0x1 : 0x1000", "unknown"),
    ("gpu_bad_pages", "ras/gpu_vram_bad_pages", None, "skipped"),
    ("gpu_temperature", "hwmon/hwmon3/temp3_input", 105000, "fail"),
    ("gpu_temperature", "hwmon/hwmon3/temp2_input", "-", "unknown"),
    ("gpu_power_cap", "hwmon/hwmon3/power1_cap", 500000000, "fail"),
    ("gpu_power_cap", "hwmon/hwmon3/power1_cap_default", None, "unknown"),
    ("gpu_clocks", "pp_dpm_sclk", "0: 132Mhz *\n1: 1300Mhz", "fail"),
    ("gpu_clocks", "power_dpm_force_performance_level", "low", "fail"),
    ("gpu_clocks", "power_dpm_force_performance_level", "perf_determinism", "pass"),
    ("gpu_clocks", "pp_dpm_sclk", None, "unknown"),
    ("gpu_serial", "serial_number", "6924240300", "fail"),
    ("gpu_serial", "serial_number", "0000000000000000", "unknown"),
    ("gpu_firmware", "vbios_version", "113-M3000100-101", "fail"),
    ("gpu_firmware", "vbios_version", None, "unknown"),
    ("gpu_idle", "mem_info_vram_used", 9 * 2**30, "fail"),
    ("gpu_idle", "mem_info_vram_used", None, "unknown"),
    ("gpu_partition", "current_compute_partition", "CPX", "fail"),
    ("gpu_numa", "numa_node", -1, "fail"),
    ("gpu_pcie_width", "current_link_width", 8, "fail"),
    ("gpu_pcie_width", "current_link_width", 255, "unknown"),
    ("gpu_pcie_speed", "current_link_speed", "Unknown", "unknown"),
    ("gpu_pcie_speed", "current_link_speed", "2.5 GT/s PCIe", "skipped"),
    ("gpu_driver", "driver", None, "fail"),
    ("iommu", "iommu_group/type", "DMA-FQ", "fail"),
    ("iommu", "iommu_group/type", None, "unknown"),
    ("gpu_throttle", "gpu_metrics", "ab", "unknown"),
    ("gpu_throttle", "gpu_metrics", None, "unknown"),
]


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait between two reads of counters."""
    monkeypatch.setattr(time, "sleep", lambda _: None)


@pytest.mark.parametrize(
    ("record", "path", "content", "verdict"), AMD, ids=[f"{row[0]}-{row[1]}-{row[3]}-{i}" for i, row in enumerate(AMD)]
)
def test_a_fault_of_one_amd_gpu_changes_the_verdict_of_that_gpu_only(
    record: str, path: str, content: object, verdict: str, tmp_path: Path
) -> None:
    """The other GPUs pass. A verdict other than a pass has a reason."""
    machine = amd_machine(tmp_path)
    bad = machine.gpus[3]
    if content is None:
        (machine.root / machine.pci(bad) / path).unlink()
    else:
        machine.write(f"{machine.pci(bad)}/{path}", content)
    found = machine.records(record)
    shared_serial = record == "gpu_serial" and verdict == "fail"
    others = {item.verdict for item in found if item.device not in (bad, "", *((machine.gpus[0],) if shared_serial else ()))}
    of_bad = [item for item in found if item.device == bad]

    assert ([item.verdict for item in of_bad], others) == ([verdict], {"pass"})
    assert bool(of_bad[0].reason) == (verdict != "pass")
    assert bool(of_bad[0].fix) or verdict not in {"fail", "unknown"}


def test_a_slow_link_fails_only_under_load(tmp_path: Path) -> None:
    """A slow link of an idle GPU is skipped; if the load is not known, it is unknown."""
    machine = amd_machine(tmp_path)
    for gpu, busy in zip(machine.gpus, (0, 95, "no"), strict=False):
        machine.write(f"{machine.pci(gpu)}/current_link_speed", "16.0 GT/s PCIe")
        machine.write(f"{machine.pci(gpu)}/gpu_busy_percent", busy)
    found = machine.verdicts("gpu_pcie_speed")

    assert [found[gpu] for gpu in machine.gpus[:4]] == ["skipped", "fail", "unknown", "pass"]
    assert set(machine.verdicts("gpu_pcie_width").values()) == {"pass"}


def test_a_link_as_wide_as_its_slot_passes(tmp_path: Path) -> None:
    """The expected width is the smaller maximum of both ends."""
    machine = amd_machine(tmp_path)
    gpu = machine.gpus[0]
    bridge = (machine.root / machine.pci(gpu)).resolve().parent
    (bridge / "max_link_width").write_text("8\n")
    machine.write(f"{machine.pci(gpu)}/current_link_width", 8)

    assert machine.verdicts("gpu_pcie_width")[gpu] == "pass"


def test_the_model_is_compared_with_the_expected_model(tmp_path: Path) -> None:
    """If no model is expected, any single model passes."""
    machine = amd_machine(tmp_path)
    found = [machine.records("gpu_model")[0]]
    for model in ("MI300X", "MI325X"):
        machine.values["gpu_model"] = model
        found += machine.records("gpu_model")

    assert [(record.verdict, record.expected, record.found) for record in found] == [
        ("pass", "one model", "MI300X"),
        ("pass", "MI300X", "MI300X"),
        ("fail", "MI325X", "MI300X"),
    ]


def test_a_missing_xgmi_link_fails_with_the_other_end(tmp_path: Path) -> None:
    """If a GPU is missing in the hive, all GPUs fail."""
    machine = amd_machine(tmp_path)
    link = machine.root / "sys/class/kfd/kfd/topology/nodes/1/io_links/2/properties"
    link.unlink()
    link.parent.rmdir()
    failed = [record for record in machine.records("gpu_links") if record.verdict == "fail"]
    (machine.root / "sys/class/kfd/kfd/topology/nodes/8/properties").write_text("simd_count 1216\nhive_id 0\n")

    assert [(record.device, record.found, record.reason) for record in failed] == [(machine.gpus[0], "6", "no XGMI link to 0000:26:00")]
    assert set(machine.verdicts("gpu_links").values()) == {"fail"}


@pytest.mark.parametrize("count", [1, 2])
def test_an_empty_nvlink_status_is_accepted_for_a_single_gpu(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """nvidia-smi prints nothing for a single GPU in a virtual machine. For several GPUs an empty output is an error."""
    found = [nvidia.SmiGpu(f"0000:00:0{number}.0", str(number), ET.Element("gpu")) for number in range(count)]
    monkeypatch.setattr(nvidia, "query", lambda _: found)
    monkeypatch.setattr(nvidia, "run_tool", lambda *_, **options: "" if options["allow_empty"] else pytest.fail("must allow empty output"))
    node: Any = SimpleNamespace(environment={}, gpus_of=lambda vendor: found if vendor == "nvidia" else [])

    if count == 1:
        assert [record.verdict for record in links.CHECK.run(node)] == ["skipped"]
        return
    with pytest.raises(UnavailableError, match="printed no GPU"):
        list(links.CHECK.run(node))


def test_a_missing_device_file_fails_outside_containers(tmp_path: Path) -> None:
    """A container may have some of the host's GPUs only."""
    machine = amd_machine(tmp_path)
    (machine.root / "dev/dri/renderD130").unlink()
    (bare,) = machine.records("gpu_access")
    machine.write("run/.containerenv", "")
    (inside,) = machine.records("gpu_access")

    assert (bare.verdict, bare.found, inside.verdict) == ("fail", "8", "pass")


def test_a_node_without_gpus_is_skipped(tmp_path: Path) -> None:
    """A node with an unreadable PCI bus is unknown."""
    empty, unreadable = Machine(tmp_path / "a", tmp_path), Machine(tmp_path / "b", tmp_path)
    empty.write("sys/bus/pci/devices/0000:00:00.0/class", "0x060000")
    unreadable.write("sys/bus/pci/devices/0000:00:00.0/class", "0x120000")

    assert [record.verdict for record in empty.records("gpu_ecc")] == ["skipped"]
    assert [record.verdict for record in unreadable.records("gpu_ecc")] == ["unknown"]
