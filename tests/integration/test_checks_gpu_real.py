"""primus_bootstrap.launch.checks.gpu: what each check says of a healthy node and of one thing that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.checks import runner
from tests.unit.checks_rig import CHECKS, Machine, amd_machine, metrics, nvidia_machine, nvlink_text, set_smi, smi_text

if TYPE_CHECKING:
    from pathlib import Path

FIRST_NVLINK_COUNT = 18
# What is allowed beside a pass on a healthy node, by check.
_ASIDE = {"versions": {"skipped"}, "rdma_ports": {"skipped"}, "rdma_rate": {"skipped"}, "rdma_gid": {"skipped"}}


@pytest.mark.parametrize("build", [amd_machine, nvidia_machine])
def test_a_healthy_node_passes_everything(build: object, tmp_path: Path) -> None:
    """No check of hardware or machine accuses or doubts a node on which nothing is wrong."""
    machine: Machine = build(tmp_path)  # type: ignore[operator]
    found = {
        (check.name, record.verdict, record.reason)
        for check in CHECKS.values()
        if check.area != "job" and check.name != "kernel_log"  # those look at the real machine
        for record in runner.look(check, machine.node())
    }

    assert {item for item in found if item[1] != "pass" and item[1] not in _ASIDE.get(item[0], ())} == set()


# record, text of the GPU's XML, what stands for it, verdict on this GPU
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
def test_one_nvidia_gpu_with_one_thing_wrong(record: str, old: str, new: str, verdict: str, tmp_path: Path) -> None:
    """What nvidia-smi says of one GPU decides on that GPU alone."""
    machine = nvidia_machine(tmp_path)
    set_smi(machine, smi_text(machine, 3, old, new))
    found = machine.verdicts(record)

    assert found.pop(machine.gpus[3]) == verdict
    if record == "gpu_serial":
        assert found.pop(machine.gpus[0]) == "fail"
    assert set(found.values()) == {"pass"}


# what nvidia-smi does -> words of the reason
LIES = {
    "exit 0": "said nothing",
    "echo '<nvidia_smi_log></nvidia_smi_log>'; echo 'Failed to initialize NVML' >&2": "ended with 0 and said on stderr: Failed",
    "echo 'Unable to determine the device handle'": "something else than XML",
    "echo '<nvidia_smi_log></nvidia_smi_log>'": "does not show 0000:1b:00.0",
    "echo 'No devices were found'; exit 6": "ended with 6: No devices were found",
}


@pytest.mark.parametrize("script", LIES)
def test_a_tool_that_lies_is_no_answer(script: str, tmp_path: Path) -> None:
    """Exit code 0 with an error on stderr, garbage, nothing, or fewer GPUs than the bus shows: unknown with the tool's words."""
    machine = nvidia_machine(tmp_path)
    machine.tool("nvidia-smi", script)
    (record,) = machine.look("gpu_ecc")

    assert record.verdict == "unknown"
    assert LIES[script] in record.reason
    assert record.fix


@pytest.mark.parametrize("mode", [0o644, None])
def test_a_tool_that_is_missing_or_may_not_be_run_is_no_answer(mode: int | None, tmp_path: Path) -> None:
    """Without nvidia-smi, or without the right to run it, nothing is known of the GPUs' memory."""
    machine = nvidia_machine(tmp_path)
    tool = machine.tools / "nvidia-smi"
    if mode is None:
        tool.unlink()
    else:
        tool.chmod(mode)
    (record,) = machine.look("gpu_idle")

    assert (record.verdict, bool(record.fix)) == ("unknown", True)
    assert ("is not installed" if mode is None else "cannot be run: Permission denied") in record.reason


def test_an_inactive_nvlink_fails_on_its_gpu(tmp_path: Path) -> None:
    """One of 18 links is away; without any link there is nothing to judge; garbage is unknown."""
    machine = nvidia_machine(tmp_path)
    set_smi(machine, smi_text(machine), nvlink_text(machine, inactive=2))
    found = {record.device: (record.verdict, record.found) for record in machine.look("gpu_links")}
    set_smi(machine, smi_text(machine), "\n".join(line for line in nvlink_text(machine).splitlines() if "Link" not in line))
    without = machine.look("gpu_links")
    set_smi(machine, smi_text(machine), "Segmentation fault")

    assert found.pop(machine.gpus[2]) == ("fail", str(FIRST_NVLINK_COUNT - 1))
    assert set(found.values()) == {("pass", str(FIRST_NVLINK_COUNT))}
    assert [record.verdict for record in without] == ["skipped"]
    assert [record.verdict for record in machine.look("gpu_links")] == ["unknown"]


def test_versions_are_compared_with_what_is_expected(tmp_path: Path) -> None:
    """Driver and video BIOS are compared only where the inventory states them."""
    machine = nvidia_machine(tmp_path)
    machine.values.update(gpu_driver="580.1", gpu_firmware="96.00.9f.00.01", gpu_partition="Disabled")
    driver = machine.look("gpu_driver")[-1]

    assert (driver.verdict, driver.expected, driver.found) == ("fail", "580.1", "nvidia 580.159.04")
    assert set(machine.verdicts("gpu_firmware").values()) == {"pass"}
    assert set(machine.verdicts("gpu_partition").values()) == {"pass"}


"""primus_bootstrap.launch.checks.gpu: what each check says of a healthy node and of one thing that is wrong."""


def test_throttling_is_what_grows_between_two_readings(tmp_path: Path) -> None:
    """Time that a throttler was at work since boot is no verdict; heat right now is; the power cap never is."""
    machine = amd_machine(tmp_path)
    hot, capped, strange = machine.gpus[:3]
    machine.write_bytes(f"{machine.pci(hot)}/gpu_metrics", metrics((1, 3), heat=4))
    machine.write_bytes(f"{machine.pci(capped)}/gpu_metrics", metrics((1, 3), power=1))
    machine.write_bytes(f"{machine.pci(strange)}/gpu_metrics", metrics((1, 6)))
    found = machine.verdicts("gpu_throttle")

    assert [found[gpu] for gpu in machine.gpus[:4]] == ["fail", "pass", "unknown", "pass"]
