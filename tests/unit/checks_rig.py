"""Fake nodes for the tests of primus_bootstrap.launch.checks: file trees of healthy nodes, and tools with given output."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.checks import catalogue, runner
from primus_bootstrap.launch.checks.expected import Expected, read_expected
from primus_bootstrap.launch.checks.model import Node
from primus_bootstrap.launch.detect import gpus, host_env, sysfs
from primus_bootstrap.launch.detect.render.gpu_facts import FACTS, facts_text
from primus_bootstrap.launch.detect.site import Site
from tests.unit.launch_rig import expand

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict

CHECKS = {check.name: check for check in catalogue.all_checks()}
_BY_RECORD = {name: check for check in CHECKS.values() for name in check.record_names}
ACS_REDIRECTS = 0x1D
NVME_GOOD = '{"critical_warning": 0, "media_errors": 0, "percent_used": 3}'
CHRONY_GOOD = "Leap status     : Normal\nSystem time     : 0.000001203 seconds slow of NTP time\n"


@dataclass(frozen=True)
class Machine:
    """A fake node: a tree of files and a folder of tools."""

    root: Path
    tools: Path
    values: dict[str, Any] = field(default_factory=dict)

    def write(self, path: str, text: object) -> None:
        """Write one file below the root."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write one binary file below the root."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(data)

    def tool(self, name: str, text: str) -> None:
        """Write a tool as a shell script."""
        self.tools.mkdir(parents=True, exist_ok=True)
        (self.tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.tools / name).chmod(0o755)

    def print_from(self, name: str, text: str) -> None:
        """Write a tool that prints a text."""
        self.tool(name, f"cat <<'EOF'\n{text}\nEOF")

    def node(self) -> Node:
        """Return the node as checks receive it."""
        recorded = read_expected(sysfs.Host(self.root))
        values, origins = {**recorded.values, **self.values}, {**recorded.origins, **dict.fromkeys(self.values, "the test")}
        expected = Expected(values, origins, ports=recorded.ports)
        return Node(sysfs.Host(self.root), expected, {"PATH": str(self.tools)}, self.root)

    def record(self, **site: Any) -> None:
        """Write gpu.json as the role gpu_env does, with these site values."""
        found = host_env.detect(sysfs.Host(self.root), self.root, Site("gpu001", **site))
        self.write(FACTS, facts_text(dict(found.document)))

    def records(self, name: str) -> list[Verdict]:
        """Run the check of a record in this process; return its records of that name."""
        check = _BY_RECORD[name]
        return [
            record for record in runner.run_check(check, self.node()) if (record.check or check.name).removeprefix("preflight_") == name
        ]

    def verdicts(self, name: str) -> dict[str, str]:
        """Return the verdict of each device."""
        return {record.device: record.verdict for record in self.records(name)}

    @property
    def gpus(self) -> tuple[str, ...]:
        """The addresses of the GPUs."""
        return tuple(gpu.address for gpu in gpus.find_gpus(sysfs.Host(self.root)).gpus)

    def pci(self, address: str) -> str:
        """Return the path of a PCI device below the root."""
        return f"sys/bus/pci/devices/{address}"


def is_running(pid: int) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def metrics(version: tuple[int, int], *, heat: int = 0, power: int = 0) -> bytes:
    """Return an amdgpu table with the throttlers' times (version 1.7) or bits (version 1.3)."""
    table = bytearray(struct.pack("<HBB", 128, *version) + bytes(124))
    if version == (1, 3):
        struct.pack_into("<Q", table, 112, heat << 32 | power)
    else:
        struct.pack_into("<II", table, 48, power, heat)
    return bytes(table)


def config_space(control: int) -> bytes:
    """Return a bridge's configuration space with an ACS capability after an AER capability."""
    data = bytearray(4096)
    struct.pack_into("<I", data, 0x100, 0x0001 | 1 << 16 | 0x140 << 20)
    struct.pack_into("<IHH", data, 0x140, 0x000D | 1 << 16, 0x1F, control)
    return bytes(data)


def amd_machine(folder: Path) -> Machine:
    """Return a healthy node of eight MI300X with RoCE."""
    machine = Machine(expand("mi300x-roce", folder / "root"), folder / "tools", {"ram_gib": 2000})
    found = gpus.find_gpus(sysfs.Host(machine.root)).gpus
    for index, gpu in enumerate(found):
        _amd_gpu(machine, gpu.address, index)
        for device in (f"sys/devices/{'/'.join(gpu.path)}", f"sys/devices/{'/'.join(gpu.path[:-1])}"):
            _link(machine, device, 16)
        _bridges(machine, gpu.path)
    _kfd(machine, [gpu.address for gpu in found])
    _rdma(machine)
    _host(machine)
    return machine


def plain_machine(folder: Path) -> Machine:
    """Return a healthy node without GPUs and network cards."""
    machine = Machine(folder / "root", folder / "tools", {"ram_gib": 2000})
    machine.write("sys/bus/pci/devices/0000:00:00.0/class", "0x060000")
    _host(machine)
    return machine


def _bridges(machine: Machine, path: tuple[str, ...]) -> None:
    """Write the sysfs files of the bridges above a GPU."""
    for depth in range(2, len(path)):
        bridge = machine.root / "sys/devices" / "/".join(path[:depth])
        entry = machine.root / machine.pci(bridge.name)
        if not entry.exists():
            for name, text in (("vendor", "0x1022"), ("device", "0x14ab"), ("class", "0x060400")):
                (bridge / name).write_text(f"{text}\n")
            entry.symlink_to(bridge)
        (entry / "config").write_bytes(config_space(0x11))


def _amd_gpu(machine: Machine, address: str, index: int) -> None:
    at = machine.pci(address)
    (machine.root / at / "driver").symlink_to("../../../../bus/pci/drivers/amdgpu")
    attributes = {
        "serial_number": f"69242403{index:02}", "vbios_version": "113-M3000100-102", "gpu_busy_percent": 0, "mem_info_vram_used": 297664512,
        "current_compute_partition": "SPX", "current_memory_partition": "NPS1", "power_dpm_force_performance_level": "auto",
        "pp_dpm_sclk": "0: 132Mhz *\n1: 2100Mhz", "ras/umc_err_count": "ue: 0\nce: 3", "ras/gfx_err_count": "ue: 0\nce: 0\nde: 0",
        "ras/gpu_vram_bad_pages": "0x00000012 : 0x00001000 : R", "hwmon/hwmon3/temp2_input": 45000, "hwmon/hwmon3/temp2_crit": 100000,
        "hwmon/hwmon3/temp2_label": "junction", "hwmon/hwmon3/temp3_input": 40000, "hwmon/hwmon3/temp3_crit": 105000,
        "hwmon/hwmon3/power1_cap": 750000000, "hwmon/hwmon3/power1_cap_default": 750000000, "iommu_group/type": "identity",
    }  # fmt: skip
    for name, value in attributes.items():
        machine.write(f"{at}/{name}", value)
    machine.write_bytes(f"{at}/gpu_metrics", metrics((1, 7), heat=7, power=1234))
    machine.write(f"dev/dri/renderD{128 + index}", "")


def _link(machine: Machine, device: str, width: int) -> None:
    for which in ("current", "max"):
        machine.write(f"{device}/{which}_link_width", width)
        machine.write(f"{device}/{which}_link_speed", "32.0 GT/s PCIe")


def _kfd(machine: Machine, addresses: list[str]) -> None:
    machine.write("dev/kfd", "")
    nodes = "sys/class/kfd/kfd/topology/nodes"
    machine.write(f"{nodes}/0/properties", "cpu_cores_count 96\nsimd_count 0\nhive_id 0")
    for index, address in enumerate(addresses, 1):
        location = int(address[5:7], 16) << 8
        machine.write(f"{nodes}/{index}/properties", f"simd_count 1216\nhive_id 8085\nlocation_id {location}\ndomain 0")
        machine.write(f"{nodes}/{index}/io_links/0/properties", f"type 2\nnode_from {index}\nnode_to 0")
        for other in range(1, len(addresses) + 1):
            if other != index:
                machine.write(f"{nodes}/{index}/io_links/{other}/properties", f"type 11\nnode_from {index}\nnode_to {other}")


def _rdma(machine: Machine) -> None:
    for device in (machine.root / "sys/class/infiniband").iterdir():
        at = f"sys/class/infiniband/{device.name}"
        machine.write(f"{at}/fw_ver", "231.2.63.0")
        machine.write(f"{at}/board_id", "storage" if device.name == "mlx5_0" else "BCM957608")
        _link(machine, f"{at}/device", 16)
        for port in (device / "ports").iterdir():
            machine.write(f"{at}/ports/{port.name}/counters/symbol_error", 5)
    for interface in (machine.root / "sys/class/net").iterdir():
        machine.write(f"sys/class/net/{interface.name}/mtu", 9000)
        machine.write(f"sys/class/net/{interface.name}/carrier_down_count", 2)
        machine.write(f"sys/class/net/{interface.name}/device/vendor", "0x14e4")


def _host(machine: Machine) -> None:
    meminfo = "MemTotal:       2000000000 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\nHugetlb:               0 kB"
    files = {
        "proc/meminfo": meminfo, "proc/swaps": "Filename Type Size Used Priority", "proc/uptime": "86400.00 1.00",
        "proc/sys/kernel/numa_balancing": 0, "proc/sys/kernel/tainted": 12289, "proc/sys/kernel/osrelease": "6.8.0-60-generic",
        "proc/1/mountinfo": "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n23 22 0:5 / /proc ro - proc proc ro",
        "sys/class/dmi/id/bios_version": "1.7.5", "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]",
        "sys/devices/system/edac/mc/mc0/ue_count": 0, "sys/devices/system/edac/mc/mc0/ce_count": 0,
        "sys/devices/system/edac/mc/mc0/seconds_since_reset": 86400,
        "sys/class/nvme/nvme0/state": "live", "sys/class/nvme/nvme0/serial": "S6XX", "var/tmp": "", "tmp/x": "",
    }  # fmt: skip
    for path, text in files.items():
        machine.write(path, text)
    for index in range(2):
        machine.write(f"sys/devices/system/node/node{index}/meminfo", f"Node {index} MemTotal:       1000000000 kB")
        machine.write(f"sys/devices/system/node/node{index}/cpulist", f"{index * 2}-{index * 2 + 1}")
    for cpu in range(4):
        machine.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", "performance")
    machine.print_from("nvme", NVME_GOOD)
    machine.print_from("chronyc", CHRONY_GOOD)


SMI_GPU = """<gpu id="0000{address}"><serial>{serial}</serial><uuid>GPU-{serial}</uuid>
<mig_mode><current_mig>Disabled</current_mig></mig_mode>
<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
<clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
<clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>
<clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
<clocks_event_reason_hw_power_brake_slowdown>Not Active</clocks_event_reason_hw_power_brake_slowdown>
<clocks_event_reason_sw_thermal_slowdown>Not Active</clocks_event_reason_sw_thermal_slowdown></clocks_event_reasons>
<fb_memory_usage><total>143771 MiB</total><used>4 MiB</used></fb_memory_usage><utilization><gpu_util>0 %</gpu_util></utilization>
<ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode><ecc_errors><volatile><sram_correctable>0</sram_correctable>
<sram_uncorrectable_parity>0</sram_uncorrectable_parity><dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors>
<remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_pending>No</remapped_row_pending>
<remapped_row_failure>No</remapped_row_failure></remapped_rows>
<temperature><gpu_temp>31 C</gpu_temp><gpu_temp_tlimit>56 C</gpu_temp_tlimit></temperature>
<gpu_power_readings>
<current_power_limit>700.00 W</current_power_limit><default_power_limit>700.00 W</default_power_limit></gpu_power_readings>
<max_clocks><sm_clock>1980 MHz</sm_clock></max_clocks></gpu>"""


def smi_text(machine: Machine, broken: int = -1, old: str = "", new: str = "") -> str:
    """Return the output of nvidia-smi; for the GPU with index `broken`, replace a text."""
    parts = [SMI_GPU.format(address=address.upper(), serial=f"16500{index}") for index, address in enumerate(machine.gpus)]
    if broken >= 0:
        assert old in parts[broken]
        parts[broken] = parts[broken].replace(old, new)
    return "<?xml version='1.0' ?>\n<nvidia_smi_log><driver_version>580.159.04</driver_version>" + "\n".join(parts) + "</nvidia_smi_log>"


def nvlink_text(machine: Machine, inactive: int = -1) -> str:
    """Return the output of `nvidia-smi nvlink --status`; the GPU with index `inactive` has one inactive link."""
    lines = []
    for index in range(len(machine.gpus)):
        lines.append(f"GPU {index}: NVIDIA H200 (UUID: GPU-16500{index})")
        lines += [f"\t Link {link}: {'<inactive>' if index == inactive and link == 3 else '26.562 GB/s'}" for link in range(18)]
    return "\n".join(lines)


def set_smi(machine: Machine, text: str, links: str = "") -> None:
    """Write an nvidia-smi that prints `text`, or `links` for the subcommand nvlink."""
    tools = machine.tools
    tools.mkdir(parents=True, exist_ok=True)
    (tools / "smi.xml").write_text(text)
    (tools / "links.txt").write_text(links or nvlink_text(machine))
    machine.tool("nvidia-smi", f'if [ "$1" = nvlink ]; then cat {tools}/links.txt; else cat {tools}/smi.xml; fi')


def nvidia_machine(folder: Path) -> Machine:
    """Return a healthy node of eight H200 with InfiniBand."""
    machine = Machine(expand("h200-ib", folder / "root"), folder / "tools", {"ram_gib": 2000})
    for index, gpu in enumerate(gpus.find_gpus(sysfs.Host(machine.root)).gpus):
        (machine.root / machine.pci(gpu.address) / "driver").symlink_to("../../../../bus/pci/drivers/nvidia")
        _link(machine, machine.pci(gpu.address), 16)
        _bridges(machine, gpu.path)
        machine.write(f"proc/driver/nvidia/gpus/{gpu.address}/information", "Model: NVIDIA H200\nVideo BIOS: 96.00.9f.00.01")
        machine.write(f"dev/nvidia{index}", "")
    machine.write("dev/nvidiactl", "")
    machine.write("dev/nvidia-uvm", "")
    machine.write("sys/module/nvidia/version", "580.159.04")
    _rdma(machine)
    _host(machine)
    machine.print_from("ibv_devinfo", "hca_id: x\n\tport: 1\n\t\tmax_mtu: 4096 (5)\n\t\tactive_mtu: 4096 (5)")
    set_smi(machine, smi_text(machine))
    return machine
