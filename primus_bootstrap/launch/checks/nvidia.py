"""Read the XML of `nvidia-smi -q -x`, drivers 470 to 580. Where a newer driver renamed an element, callers pass both names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from primus_bootstrap.launch.checks.model import UnavailableError
from primus_bootstrap.launch.checks.tools import run_tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.launch.checks.model import Node

NVLINK_SOURCE = "https://docs.nvidia.com/deploy/nvidia-smi/ (nvlink --status)"
SEE_NVLINK_STATUS = "run `nvidia-smi nvlink --status` and read its output"
TIMEOUT_S = 30.0  # without persistence mode each call initializes the driver on every GPU
_NOT_AVAILABLE = ("n/a", "not supported", "requested functionality has been deprecated")


@dataclass(frozen=True)
class SmiGpu:
    """The output of nvidia-smi for one GPU."""

    address: str
    serial: str
    element: ET.Element

    def text(self, *paths: str) -> str | None:
        """Return the text of the first element that exists, or None if this GPU does not support the value.

        Raises:
            UnavailableError: None of the elements exists, or its text is an error.
        """
        for path in paths:
            found = self.element.findtext(path)
            if found is None:
                continue
            text = found.strip().strip("[]")
            if text.lower() in _NOT_AVAILABLE:
                return None
            if not text or "err" in text.lower() or text.lower().startswith(("unknown", "gpu requires reset")):
                raise UnavailableError(f"nvidia-smi reports {path} of {self.address} as {text!r}", fix=self._query)
            return text
        raise UnavailableError(f"nvidia-smi does not report {' or '.join(paths)} of {self.address}", fix=self._query)

    def number(self, *paths: str) -> float | None:
        """Return the number in an element's text (`45 C`), or None if this GPU does not support the value.

        Raises:
            UnavailableError: The text is an error or contains no number.
        """
        text = self.text(*paths)
        if text is None:
            return None
        match = re.match(r"-?\d+(?:\.\d+)?", text)
        if match is None:
            raise UnavailableError(f"nvidia-smi reports {paths[0]} of {self.address} as {text!r}, which is no number", fix=self._query)
        return float(match[0])

    @property
    def uuid(self) -> str:
        """The name of the GPU in other outputs of nvidia-smi."""
        return (self.element.findtext("uuid") or "").strip()

    @property
    def _query(self) -> str:
        return f"nvidia-smi -q -i {self.address}"

    def children(self, *paths: str) -> Iterator[tuple[str, str]]:
        """Yield name and text of the children of the first element that exists."""
        found = next((element for path in paths if (element := self.element.find(path)) is not None), None)
        for element in () if found is None else found:
            yield element.tag, (element.text or "").strip()


def query(node: Node) -> tuple[SmiGpu, ...]:
    """Return the output of nvidia-smi for every GPU.

    Raises:
        UnavailableError: nvidia-smi failed, or did not report a GPU that is on the PCI bus.
    """
    text = run_tool(node.environment, ["nvidia-smi", "-q", "-x"], install="the NVIDIA driver")
    try:
        root = ET.fromstring(text)  # noqa: S314 - output of the driver's own tool
    except ET.ParseError as error:
        raise UnavailableError(f"the output of nvidia-smi is not XML: {error}", fix="run `nvidia-smi -q -x` and read its output") from error
    found = tuple(SmiGpu(_address(item.get("id", "")), _serial(item), item) for item in root.findall("gpu"))
    absent = sorted({gpu.address for gpu in node.gpus_of("nvidia")} - {gpu.address for gpu in found})
    if not found or absent:
        fix = "see `journalctl -k | grep Xid`, then reboot the node"
        raise UnavailableError(f"nvidia-smi does not report {', '.join(absent) or 'any GPU'}", fix=fix)
    return found


def nvlinks(node: Node, gpus: Sequence[SmiGpu]) -> dict[str, list[str]] | None:
    """Return the state of each NVLink of each GPU by UUID. None: nvidia-smi reports nothing about the only GPU.

    Raises:
        UnavailableError: nvidia-smi failed, or reports no GPU.
    """
    text = run_tool(node.environment, ["nvidia-smi", "nvlink", "--status"], install="the NVIDIA driver", allow_empty=True)
    if not text.strip() and len(gpus) == 1:  # driver 580 prints nothing for a single H200 in a virtual machine
        return None
    parts = re.split(r"^GPU \d+:.*\(UUID: (\S+)\)\s*$", text, flags=re.MULTILINE)
    found = {uuid: re.findall(r"^\s*Link \d+: (.+)$", part, re.MULTILINE) for uuid, part in zip(parts[1::2], parts[2::2])}  # noqa: B905 (3.9)
    if not found:
        raise UnavailableError(f"nvidia-smi nvlink --status printed no GPU: {text.strip()[:100]!r}", fix=SEE_NVLINK_STATUS)
    return found


def active_links(states: Sequence[str]) -> int:
    """Return the number of links that are up: nvidia-smi reports their speed."""
    return sum("GB/s" in state for state in states)


def _address(text: str) -> str:
    """Convert 00000000:1B:00.0 to the notation of sysfs."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _serial(item: ET.Element) -> str:
    for name in ("serial", "uuid"):
        text = (item.findtext(name) or "").strip()
        if text and text.strip("[]").lower() not in _NOT_AVAILABLE:
            return text
    return ""
