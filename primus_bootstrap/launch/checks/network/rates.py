"""Check the rate of the RDMA ports that training uses.

gpu.json lists these ports. Other ports, for storage or the front end, may be slower by design; the check reports them and does not fail.
A slower port of the same device model may be a training port that was already degraded when gpu.json was written. If the other data do
not decide it, its verdict is `unknown`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import RDMA, Check, Node, Verdicts, pass_or_fail, skipped, unknown
from primus_bootstrap.launch.checks.rdma import active_ports, port_model
from primus_bootstrap.launch.detect.nics import near_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.detect.nics import Port

_RATE, _OTHER = "rdma_rate", "rdma_rate_beside"
_FIX = "check cable, transceiver and the switch port's speed; a port with lost lanes runs at a fraction of its rate"
_FIX_UNCLEAR = f"if training should use this port, {_FIX}; if not, add it to gpu_env_nic_deny"
# The start of the reason with which nics.choose_ports rejects a port because of its rate alone.
_SLOWER = "not in the fastest group"


def _check(node: Node) -> Verdicts:
    ports = active_ports(node)
    found = list(_by_record(node, ports) if node.expected.training_ports else _by_model(node, ports))
    yield from found
    if not any(record.check == _OTHER for record in found):
        yield _other(skipped("every port is checked as a training port"))
    yield from _fast_enough(node, ports)


def _by_record(node: Node, ports: Sequence[Port]) -> Verdicts:
    """Check the ports that training uses according to gpu.json; report why the other ports are not checked."""
    recorded, training = node.expected.ports, node.expected.training_ports
    used = [port for port in ports if port.name in training]
    expected = node.expected.get("rdma_rate_gbit_per_s")
    # Include the recorded rates, because all ports may have become slower since.
    best = max([*map(_rate, used), *(port.rate_gbit_per_s or 0.0 for port in training.values())])
    least = best if expected is None else expected
    source = node.expected.source("rdma_rate_gbit_per_s") or "the fastest port that training uses, now and in /etc/primus/gpu.json"
    models = {port_model(node, port) for port in used}
    slow = []
    for port in ports:
        reason = recorded[port.name].reason if port.name in recorded else _SLOWER
        if port in used:
            yield _compare(port, least, source)
        elif reason.startswith(_SLOWER) and port_model(node, port) in models and 0 < _rate(port) < least:
            slow.append(port)
        else:
            why = "it did not exist when the host was set up" if port.name not in recorded else reason
            yield _other(skipped(f"training does not use this port: {why}", **_fields(port, least, source)))
    yield from _check_slower(node, slow, [port for port in used if _rate(port) >= least], ports, least)


def _by_model(node: Node, ports: Sequence[Port]) -> Verdicts:
    """Compare ports without a record with the fastest port of the same device model."""
    expected = node.expected.get("rdma_rate_gbit_per_s")
    for model in dict.fromkeys(port_model(node, port) for port in ports):
        alike = [port for port in ports if port_model(node, port) == model]
        best = max(map(_rate, alike))
        # If no port of a model reaches the expected rate, the model is slower by design.
        least = expected if expected is not None and best >= expected else best
        source = node.expected.source("rdma_rate_gbit_per_s") if least == expected else "the fastest port of the same device model"
        slow = [port for port in alike if 0 < _rate(port) < least]
        yield from (_compare(port, least, source) for port in alike if port not in slow)
        yield from _check_slower(node, slow, [port for port in alike if _rate(port) >= least], ports, least)


def _compare(port: Port, least: float, source: str) -> Verdict:
    fields = _fields(port, least, source)
    if port.rate_gbit_per_s is None:
        return unknown("its rate cannot be read", fix="see `dmesg` for messages of its driver", **fields)
    return pass_or_fail(good=port.rate_gbit_per_s >= least, reason=f"the port runs at {port.rate_gbit_per_s:g} Gbit/s", fix=_FIX, **fields)


def _check_slower(node: Node, slow: Sequence[Port], fast: Sequence[Port], ports: Sequence[Port], least: float) -> Verdicts:
    """Check ports that are slower than training ports of the same model: by design, or degraded before gpu.json was written.

    Args:
        slow: The slower ports.
        fast: The training ports, or ports of the same model, that run at the full rate.
        least: The full rate (Gbit/s).
    """
    rate, count = node.expected.get("rdma_rate_gbit_per_s"), node.expected.stated("rdma_ports")
    missing = 0 if rate is None or count is None else count - sum(_rate(port) >= rate for port in ports)
    for port in slow:
        fields = _fields(port, least, "the faster ports of the same device model")
        runs = f"the port runs at {port.rate_gbit_per_s:g} Gbit/s"
        if count is not None and len(fast) >= count:
            reason = f"{runs}; {len(fast)} ports of its model run at {least:g} Gbit/s, and {count:g} are expected"
            yield _other(skipped(reason, **fields))
        elif len(slow) <= missing:
            yield pass_or_fail(good=False, reason=f"{runs}; {missing:g} ports of {rate:g} Gbit/s are missing", fix=_FIX, **fields)
        elif _is_only_port_of_a_gpu(node, port, fast):
            reason = f"{runs}, and it is the only port near one GPU; most GPUs have a faster one"
            yield unknown(reason, fix=_FIX_UNCLEAR, **fields)
        else:
            yield _other(unknown(f"{runs}, by design or because it is degraded", fix=_FIX_UNCLEAR, **fields))


def _is_only_port_of_a_gpu(node: Node, port: Port, fast: Sequence[Port]) -> bool:
    """Return whether a GPU shares a PCIe switch with this port and no fast port, while most GPUs share one with a fast port."""
    gpus = node.gpu_findings.gpus
    bare = [gpu for gpu in gpus if near_ports(gpu, fast)[1] != "pcie"]
    return 2 * len(bare) < len(gpus) and any(near_ports(gpu, [port])[1] == "pcie" for gpu in bare)


def _fast_enough(node: Node, ports: Sequence[Port]) -> Verdicts:
    """Check that the expected number of ports has the expected rate."""
    rate, count = node.expected.get("rdma_rate_gbit_per_s"), node.expected.get("rdma_ports")
    if rate is None:
        return
    fast = sum(_rate(port) >= rate for port in ports)
    least = 1 if count is None else int(count)
    fields = {
        "expected": f">= {least}",
        "found": str(fast),
        "unit": f"ports of {rate:g} Gbit/s",
        "source": node.expected.source("rdma_rate_gbit_per_s"),
    }
    yield pass_or_fail(good=fast >= least, reason=f"{fast} ports run at {rate:g} Gbit/s or more", fix=_FIX, **fields)


def _rate(port: Port) -> float:
    return port.rate_gbit_per_s or 0.0


def _fields(port: Port, least: float, source: str) -> dict[str, str]:
    found = "" if port.rate_gbit_per_s is None else f"{port.rate_gbit_per_s:g}"
    return {"device": port.name, "expected": f">= {least:g}", "found": found, "unit": "Gbit/s", "source": source}


def _other(record: Verdict) -> Verdict:
    return replace(record, check=_OTHER)


CHECK = Check(
    "rdma_rate",
    "Every RDMA port that training uses runs at the expected rate, or at the rate of its device model; no other port may be degraded.",
    "rate in /sys/class/infiniband; /etc/primus/gpu.json",
    _check,
    needs=(RDMA,),
    records=(_RATE, _OTHER),
)
