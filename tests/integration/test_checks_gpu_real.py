"""primus_bootstrap.launch.checks.gpu on NVIDIA nodes, with real tools and time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.checks import runner
from tests.unit.checks_rig import CHECKS, Machine, amd_machine, metrics, nvidia_machine, nvlink_text, set_smi, smi_text

if TYPE_CHECKING:
    from pathlib import Path

FIRST_NVLINK_COUNT = 18
# Verdicts other than a pass that are allowed on a healthy node, by check.
_ALLOWED = {"versions": {"skipped"}, "rdma_ports": {"skipped"}, "rdma_rate": {"skipped"}, "rdma_gid": {"skipped"}}


@pytest.mark.parametrize("build", [amd_machine, nvidia_machine])
def test_a_healthy_node_passes_every_check(build: object, tmp_path: Path) -> None:
    """No check of hardware or host fails or is unknown."""
    machine: Machine = build(tmp_path)  # type: ignore[operator]
    found = {
        (check.name, record.verdict, record.reason)
        for check in CHECKS.values()
        if check.area != "job" and check.name != "kernel_log"  # these read the real host
        for record in runner.run_check(check, machine.node())
    }

    assert {item for item in found if item[1] != "pass" and item[1] not in _ALLOWED.get(item[0], ())} == set()


# record, text of the GPU's XML, its replacement, verdict of this GPU
NVIDIA = [
    ("gpu_ecc", "<dram_uncorrectable>0", "<dram_uncorrectable>2", "fail"),
    ("gpu_ecc", "<current_ecc>Enabled", "<current_ecc>Disabled", "fail"),
    ("gpu_ecc", "<current_ecc>Enabled", "<current_ecc>N/A", "skipped"),
    ("gpu_ecc", "<dram_uncorrectable>0", "<dram_uncorrectable>[Unknown Error]", "unknown"),
    ("gpu_bad_pages", "<remapped_row_pending>No", "<remapped_row_pending>Yes", "fail"),
    ("gpu_bad_pages", "<remapped_row_failure>No", "<remapped_row_failure>Yes", "fail"),
    ("gpu_bad_pages", "<remapped_row_pending>No</remapped_row_pending>", "", "unknown"),
    ("gpu_temperature", "<gpu_temp_tlimit>56 C", "<gpu_temp_tlimit>-1 C", "fail"),
    ("gpu_temperature", "<gpu_temp_tlimit>56 C", "<gpu_temp_tlimit>ERR!", "unknown"),
    ("gpu_temperature", "<gpu_temp_tlimit>56 C</gpu_temp_tlimit>", "<gpu_temp_slow_threshold>31 C</gpu_temp_slow_threshold>", "fail"),
    ("gpu_throttle", "hw_thermal_slowdown>Not Active", "hw_thermal_slowdown>Active", "fail"),
    ("gpu_throttle", "hw_slowdown>Not Active", "hw_slowdown>N/A", "unknown"),
    ("gpu_power_cap", "<current_power_limit>700.00 W", "<current_power_limit>400.00 W", "fail"),
    ("gpu_clocks", "<sm_clock>1980 MHz", "<sm_clock>1200 MHz", "fail"),
    ("gpu_idle", "<used>4 MiB", "<used>70000 MiB", "fail"),
    ("gpu_idle", "<used>4 MiB", "<used>[GPU requires reset]", "unknown"),
    ("gpu_partition", "<current_mig>Disabled", "<current_mig>Enabled", "fail"),
    ("gpu_serial", "<serial>165003", "<serial>165000", "fail"),
]


@pytest.mark.parametrize(("record", "old", "new", "verdict"), NVIDIA, ids=[f"{row[0]}-{row[3]}-{i}" for i, row in enumerate(NVIDIA)])
def test_a_fault_of_one_nvidia_gpu_changes_the_verdict_of_that_gpu_only(
    record: str, old: str, new: str, verdict: str, tmp_path: Path
) -> None:
    """The other GPUs pass."""
    machine = nvidia_machine(tmp_path)
    set_smi(machine, smi_text(machine, 3, old, new))
    found = machine.verdicts(record)

    assert found.pop(machine.gpus[3]) == verdict
    if record == "gpu_serial":
        assert found.pop(machine.gpus[0]) == "fail"
    assert set(found.values()) == {"pass"}


# script of nvidia-smi -> part of the reason
FAILURES = {
    "exit 0": "nvidia-smi printed nothing",
    "echo '<nvidia_smi_log></nvidia_smi_log>'; echo 'Failed to initialize NVML' >&2": "wrote an error with exit code 0: Failed",
    "echo 'Unable to determine the device handle'": "is not XML",
    "echo '<nvidia_smi_log></nvidia_smi_log>'": "does not report 0000:1b:00.0",
    "echo 'No devices were found'; exit 6": "failed with exit code 6: No devices were found",
}


@pytest.mark.parametrize("script", FAILURES)
def test_a_failing_tool_gives_unknown(script: str, tmp_path: Path) -> None:
    """An error on stderr with exit code 0, garbage, no output, or fewer GPUs than on the PCI bus."""
    machine = nvidia_machine(tmp_path)
    machine.tool("nvidia-smi", script)
    (record,) = machine.records("gpu_ecc")

    assert record.verdict == "unknown"
    assert FAILURES[script] in record.reason
    assert record.fix


@pytest.mark.parametrize("mode", [0o644, None])
def test_a_missing_or_not_executable_tool_gives_unknown(mode: int | None, tmp_path: Path) -> None:
    """The reason states which of the two."""
    machine = nvidia_machine(tmp_path)
    tool = machine.tools / "nvidia-smi"
    if mode is None:
        tool.unlink()
    else:
        tool.chmod(mode)
    (record,) = machine.records("gpu_idle")

    assert (record.verdict, bool(record.fix)) == ("unknown", True)
    assert ("is not installed" if mode is None else "cannot be run: Permission denied") in record.reason


def test_an_inactive_nvlink_fails_on_its_gpu(tmp_path: Path) -> None:
    """GPUs without NVLink are skipped; unexpected output is unknown."""
    machine = nvidia_machine(tmp_path)
    set_smi(machine, smi_text(machine), nvlink_text(machine, inactive=2))
    found = {record.device: (record.verdict, record.found) for record in machine.records("gpu_links")}
    set_smi(machine, smi_text(machine), "\n".join(line for line in nvlink_text(machine).splitlines() if "Link" not in line))
    without = machine.records("gpu_links")
    set_smi(machine, smi_text(machine), "Segmentation fault")

    assert found.pop(machine.gpus[2]) == ("fail", str(FIRST_NVLINK_COUNT - 1))
    assert set(found.values()) == {("pass", str(FIRST_NVLINK_COUNT))}
    assert [record.verdict for record in without] == ["skipped"]
    assert [record.verdict for record in machine.records("gpu_links")] == ["unknown"]


def test_versions_are_compared_with_expected_versions(tmp_path: Path) -> None:
    """Driver, video BIOS and MIG mode."""
    machine = nvidia_machine(tmp_path)
    machine.values.update(gpu_driver="580.1", gpu_firmware="96.00.9f.00.01", gpu_partition="Disabled")
    driver = machine.records("gpu_driver")[-1]

    assert (driver.verdict, driver.expected, driver.found) == ("fail", "580.1", "nvidia 580.159.04")
    assert set(machine.verdicts("gpu_firmware").values()) == {"pass"}
    assert set(machine.verdicts("gpu_partition").values()) == {"pass"}


def test_only_active_throttlers_for_heat_or_power_supply_fail(tmp_path: Path) -> None:
    """Throttling since boot and the power cap pass; a table of an unsupported version is unknown."""
    machine = amd_machine(tmp_path)
    hot, capped, unsupported = machine.gpus[:3]
    machine.write_bytes(f"{machine.pci(hot)}/gpu_metrics", metrics((1, 3), heat=4))
    machine.write_bytes(f"{machine.pci(capped)}/gpu_metrics", metrics((1, 3), power=1))
    machine.write_bytes(f"{machine.pci(unsupported)}/gpu_metrics", metrics((1, 6)))
    found = machine.verdicts("gpu_throttle")

    assert [found[gpu] for gpu in machine.gpus[:4]] == ["fail", "pass", "unknown", "pass"]
