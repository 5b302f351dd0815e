"""What nvidia-smi says of NVIDIA GPUs: the one place that knows its XML.

The names of elements are those of `nvidia-smi -q -x` of drivers 470 to 580; where a newer driver renamed one, both names are asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from primus_bootstrap.launch.checks.ask import ask
from primus_bootstrap.launch.checks.model import CannotTellError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.launch.checks.model import Node

SOURCE = "nvidia-smi -q -x"
TIMEOUT_S = 30.0  # without persistence mode every call starts the driver on each GPU anew
_NOT_THERE = ("n/a", "not supported", "requested functionality has been deprecated")


@dataclass(frozen=True)
class Smi:
    """One GPU as nvidia-smi describes it."""

    address: str
    serial: str
    element: ET.Element
    driver: str

    def text(self, *paths: str) -> str | None:
        """Return the text of the first of some elements that there is; None where the GPU does not have it.

        Raises:
            CannotTellError: There is none of these elements, or it holds an error.
        """
        for path in paths:
            found = self.element.findtext(path)
            if found is None:
                continue
            text = found.strip().strip("[]")
            if text.lower() in _NOT_THERE:
                return None
            if not text or "err" in text.lower() or text.lower().startswith(("unknown", "gpu requires reset")):
                raise CannotTellError(f"nvidia-smi says {text!r} for {path} of {self.address}", fix=f"nvidia-smi -q -i {self.address}")
            return text
        raise CannotTellError(f"nvidia-smi says nothing of {' or '.join(paths)} of {self.address}", fix=f"nvidia-smi -q -i {self.address}")

    def number(self, *paths: str) -> float | None:
        """Return the number in an element's text (`45 C`), None where the GPU does not have it.

        Raises:
            CannotTellError: It holds no number.
        """
        text = self.text(*paths)
        if text is None:
            return None
        match = re.match(r"-?\d+(?:\.\d+)?", text)
        if match is None:
            raise CannotTellError(f"nvidia-smi says {text!r} for {paths[0]} of {self.address}: no number")
        return float(match[0])

    def below(self, *paths: str) -> Iterator[tuple[str, str]]:
        """Yield name and text of the elements below the first of some elements that there is."""
        found = next((element for path in paths if (element := self.element.find(path)) is not None), None)
        for element in () if found is None else found:
            yield element.tag, (element.text or "").strip()


def query(node: Node) -> tuple[Smi, ...]:
    """Ask nvidia-smi for everything.

    Raises:
        CannotTellError: It gave no answer, or one about other GPUs than the PCI bus shows.
    """
    text = ask(node.environment, ["nvidia-smi", "-q", "-x"], install="the NVIDIA driver")
    try:
        root = ET.fromstring(text)  # noqa: S314 - what the driver's own tool printed
    except ET.ParseError as error:
        raise CannotTellError(f"nvidia-smi printed something else than XML: {error}", fix="run `nvidia-smi -q -x` by hand") from error
    driver = (root.findtext("driver_version") or "").strip()
    found = tuple(Smi(_address(item.get("id", "")), _serial(item), item, driver) for item in root.findall("gpu"))
    absent = sorted({gpu.address for gpu in node.gpus_of("nvidia")} - {gpu.address for gpu in found})
    if not found or absent:
        raise CannotTellError(f"nvidia-smi does not show {', '.join(absent) or 'any GPU'}", fix="see `journalctl -k` for its Xid; reboot")
    return found


def _address(text: str) -> str:
    """Return 00000000:1B:00.0 as sysfs writes it."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _serial(item: ET.Element) -> str:
    for name in ("serial", "uuid"):
        text = (item.findtext(name) or "").strip()
        if text and text.strip("[]").lower() not in _NOT_THERE:
            return text
    return ""
