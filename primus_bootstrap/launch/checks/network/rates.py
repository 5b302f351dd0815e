"""Do the RDMA ports that training uses run at the expected rate, or at that of their like?

gpu.json names them. A port beside them may be slower by build, for storage or for the front end: it is said, and fails nobody. One of the
same device model may be a port of training that had lost speed before anybody recorded it: what else is known decides, or it is unknown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import RDMA, Check, judged, skipped, unknown
from primus_bootstrap.launch.checks.rdma import kind_of, ports_up
from primus_bootstrap.launch.detect.nics import near_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.nics import Port

_RATE, _BESIDE = "rdma_rate", "rdma_rate_beside"
_FIX = "look at cable, transceiver and the switch port's speed; a port that lost lanes runs at a part of its rate"
_FIX_DOUBT = f"if training should use it, {_FIX}; if it is for something else, name it in gpu_env_nic_deny"
# How nics.choose_ports begins where the rate alone spoke against a port; all its other reasons say what a port is.
_SLOWER = "not in the fastest group"


def _look(node: Node) -> Iterator[Verdict]:
    ports = ports_up(node)
    found = list(_by_record(node, ports) if node.expected.training_ports else _by_likes(node, ports))
    yield from found
    if not any(record.check == _BESIDE for record in found):
        yield _beside(skipped("every port is judged as one of training"))
    yield from _fast_enough(node, ports)


def _by_record(node: Node, ports: Sequence[Port]) -> Iterator[Verdict]:
    """Judge the ports that training uses; say of the others why they are not judged."""
    recorded, training = node.expected.ports, node.expected.training_ports
    used = [port for port in ports if port.name in training]
    wanted = node.expected.get("rdma_rate_gbit_per_s")
    # What was recorded counts too: all of them may have lost speed since.
    best = max([*map(_rate, used), *(port.rate_gbit_per_s or 0.0 for port in training.values())])
    least = best if wanted is None else wanted
    source = node.expected.source("rdma_rate_gbit_per_s") or "the fastest port that training uses, now and in /etc/primus/gpu.json"
    kinds = {kind_of(node, port) for port in used}
    slow = []
    for port in ports:
        reason = recorded[port.name].reason if port.name in recorded else _SLOWER
        if port in used:
            yield _judged(port, least, source)
        elif reason.startswith(_SLOWER) and kind_of(node, port) in kinds and 0 < _rate(port) < least:
            slow.append(port)
        else:
            why = "it was not there when the host was set up" if port.name not in recorded else reason
            yield _beside(skipped(f"training does not use it: {why}", **_fields(port, least, source)))
    yield from _doubted(node, slow, [port for port in used if _rate(port) >= least], ports, least)


def _by_likes(node: Node, ports: Sequence[Port]) -> Iterator[Verdict]:
    """Judge ports of which nobody recorded what they are for: those of one device model by the fastest of them."""
    wanted = node.expected.get("rdma_rate_gbit_per_s")
    for kind in dict.fromkeys(kind_of(node, port) for port in ports):
        alike = [port for port in ports if kind_of(node, port) == kind]
        best = max(map(_rate, alike))
        # Ports beside those of training are slower by build: the kind as a whole is.
        least = wanted if wanted is not None and best >= wanted else best
        source = node.expected.source("rdma_rate_gbit_per_s") if least == wanted else "the fastest port of the same device model"
        slow = [port for port in alike if 0 < _rate(port) < least]
        yield from (_judged(port, least, source) for port in alike if port not in slow)
        yield from _doubted(node, slow, [port for port in alike if _rate(port) >= least], ports, least)


def _judged(port: Port, least: float, source: str) -> Verdict:
    fields = _fields(port, least, source)
    if port.rate_gbit_per_s is None:
        return unknown("its rate cannot be read", fix="see `dmesg` for its driver", **fields)
    return judged(good=port.rate_gbit_per_s >= least, reason=f"it runs at {port.rate_gbit_per_s:g} Gbit/s", fix=_FIX, **fields)


def _doubted(node: Node, slow: Sequence[Port], fast: Sequence[Port], ports: Sequence[Port], least: float) -> Iterator[Verdict]:
    """Judge ports that are slower than those of training of the same model: by build, or by a fault that was there before the record.

    Args:
        node: The node.
        slow: The ports in doubt.
        fast: The ports of training, or of the same model, that run at the full rate.
        ports: All ports.
        least: That rate (Gbit/s).
    """
    rate, count = node.expected.get("rdma_rate_gbit_per_s"), node.expected.stated("rdma_ports")
    missing = 0 if rate is None or count is None else count - sum(_rate(port) >= rate for port in ports)
    for port in slow:
        fields = _fields(port, least, "the faster ports of the same device model")
        runs = f"it runs at {port.rate_gbit_per_s:g} Gbit/s"
        if count is not None and len(fast) >= count:
            yield _beside(skipped(f"{runs}; {len(fast)} ports of its model run at {least:g}, and {count:g} are expected", **fields))
        elif len(slow) <= missing:
            yield judged(good=False, reason=f"{runs}, and {missing:g} ports of {rate:g} are missing", fix=_FIX, **fields)
        elif _stands_in(node, port, fast):
            yield unknown(f"{runs}, and it is the only port beside a GPU, where most GPUs have a faster one", fix=_FIX_DOUBT, **fields)
        else:
            yield _beside(unknown(f"{runs}: by build, or it has lost speed; nobody said", fix=_FIX_DOUBT, **fields))


def _stands_in(node: Node, port: Port, fast: Sequence[Port]) -> bool:
    """Return whether a GPU has this port behind its PCIe switch and no fast one, while most GPUs have a fast one."""
    gpus = node.gpu_findings.gpus
    bare = [gpu for gpu in gpus if near_ports(gpu, fast)[1] != "pcie"]
    return 2 * len(bare) < len(gpus) and any(near_ports(gpu, [port])[1] == "pcie" for gpu in bare)


def _fast_enough(node: Node, ports: Sequence[Port]) -> Iterator[Verdict]:
    """Judge that there are as many ports of the expected rate as ports are expected."""
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
    yield judged(good=fast >= least, reason=f"{fast} ports run at {rate:g} Gbit/s or more", fix=_FIX, **fields)


def _rate(port: Port) -> float:
    return port.rate_gbit_per_s or 0.0


def _fields(port: Port, least: float, source: str) -> dict[str, str]:
    found = "" if port.rate_gbit_per_s is None else f"{port.rate_gbit_per_s:g}"
    return {"device": port.name, "expected": f">= {least:g}", "found": found, "unit": "Gbit/s", "source": source}


def _beside(record: Verdict) -> Verdict:
    return replace(record, check=_BESIDE)


CHECK = Check(
    "rdma_rate",
    "Every RDMA port that training uses runs at the expected rate, or at that of its like; none beside them is in doubt.",
    "rate in /sys/class/infiniband; /etc/primus/gpu.json",
    _look,
    needs=(RDMA,),
    records=(_RATE, _BESIDE),
)
