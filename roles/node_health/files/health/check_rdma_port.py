"""Check that the RDMA ports that jobs use are up. Reads sysfs only.

Layout: https://docs.kernel.org/admin-guide/abi-stable.html, /sys/class/infiniband.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from finding import FAIL, PASS, SKIPPED, UNKNOWN, finding, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from finding import Finding, Settings

UP = "ACTIVE LinkUp"
FIX = "check cable, transceiver and switch port; on InfiniBand, also the subnet manager. If jobs do not need it: set node_health_rdma_ports"
APPLY = "apply the phase gpu again, which writes the facts"


def check(settings: Settings) -> Iterator[Finding]:
    """Check the ports that match `ports` (hosts.yaml), else those that `facts` (gpu.json) lists for training.

    Virtual functions and all other ports are ignored. If `count` is set, the facts must list as many ports: a port that was down when they
    were written is not among them.
    """
    sysfs = Path(settings["sysfs"], "sys/class/infiniband")
    present = [port for port in read_ports(sysfs) if not is_virtual(sysfs, port)]
    if settings["ports"]:
        yield from check_stated(sysfs, present, settings["ports"])
        return
    facts = Path(settings["facts"])
    if not facts.is_file():
        yield finding("rdma_port", SKIPPED, reason=f"{facts} does not exist: no RDMA port is expected on this host")
        return
    try:
        listed = json.loads(facts.read_text("utf-8"))["network"]["ports"]
        expected = [str(port["name"]) for port in listed if port["chosen"]]
        denied = {str(port["name"]) for port in listed if port["denied"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield finding("rdma_port", UNKNOWN, source=str(facts), reason=f"{facts} has no list of ports: {error}", fix=APPLY)
        return
    yield from (check_port(sysfs, port, str(facts)) for port in expected)
    if len(expected) < settings["count"]:
        down = [port for port in present if port not in denied and read_state(sysfs, port) != UP]
        yield too_few(len(expected), settings["count"], down)
    elif not expected:
        yield finding("rdma_port", SKIPPED, reason=f"{facts} lists no RDMA port for training")


def check_stated(sysfs: Path, present: Sequence[str], patterns: Sequence[str]) -> Iterator[Finding]:
    """Check the ports that match each pattern of a device (mlx5_*) or a port (mlx5_0:1). A pattern without a port fails."""
    source = "node_health_rdma_ports"
    done: set[str] = set()
    for pattern in patterns:
        matching = [port for port in present if fnmatchcase(port, pattern) or fnmatchcase(port.partition(":")[0], pattern)]
        if not matching:
            reason = f"no RDMA port matches {pattern}"
            yield finding("rdma_port", FAIL, device=pattern, expected=UP, found="missing", source=source, reason=reason, fix=FIX)
        yield from (check_port(sysfs, port, source) for port in matching if port not in done)
        done.update(matching)


def check_port(sysfs: Path, port: str, source: str) -> Finding:
    """Check one port; unknown if its state cannot be read."""
    device, _, number = port.partition(":")
    fields = {"device": port, "expected": UP, "source": source, "fix": FIX}
    if not (sysfs / device / "ports" / number).is_dir():
        return finding("rdma_port", FAIL, **fields, found="missing", reason=f"RDMA port {port} is missing")
    state = read_state(sysfs, port)
    if not state:
        return finding("rdma_port", UNKNOWN, **fields, reason=f"the state of RDMA port {port} cannot be read")
    return finding("rdma_port", PASS if state == UP else FAIL, **fields, found=state, reason=f"RDMA port {port} is {state}")


def too_few(found: int, expected: int, down: Sequence[str]) -> Finding:
    """Return the record for fewer training ports than hosts.yaml states, with the ports that are down."""
    reason = f"{found} RDMA ports for training, {expected} are expected" + (f"; not up: {', '.join(down)}" if down else "")
    fields = {"expected": expected, "found": found, "unit": "ports", "source": "hosts.yaml: gpu_env_nic_count"}
    return finding("rdma_port", FAIL, **fields, reason=reason, fix=f"{FIX.partition('. If')[0]}, then {APPLY}")


def read_ports(sysfs: Path) -> list[str]:
    """Return the ports of all devices in the notation of NCCL_IB_HCA, such as mlx5_0:1."""
    return sorted(f"{path.parent.parent.name}:{path.name}" for path in sysfs.glob("*/ports/*"))


def is_virtual(sysfs: Path, port: str) -> bool:
    """Return whether the port belongs to a virtual function of a device on this host."""
    return (sysfs / port.partition(":")[0] / "device" / "physfn").exists()


def read_state(sysfs: Path, port: str) -> str:
    """Return logical and physical state of a port, such as `ACTIVE LinkUp`; empty if they cannot be read."""
    device, _, number = port.partition(":")
    try:
        texts = [(sysfs / device / "ports" / number / name).read_text("utf-8") for name in ("state", "phys_state")]
    except OSError:
        return ""
    return " ".join(text.partition(":")[2].strip() for text in texts).strip()


if __name__ == "__main__":
    serve(check)
