"""Read the expected values of a node from the command line, --expect-json, and /etc/primus/gpu.json (recorded when the host was set up)."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.checks.limits import table
from primus_bootstrap.launch.detect.render.gpu_facts import FACTS, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from primus_bootstrap.launch.detect import sysfs

_TYPES: dict[str, tuple[type, ...]] = {"number": (int, float), "text": (str,), "switch": (bool,), "texts": (dict,)}
_RECORD = f"/{FACTS}"


@dataclass(frozen=True)
class RecordedPort:
    """An RDMA port in gpu.json: whether training uses it, the reason, and its rate at that time (None: not readable)."""

    chosen: bool
    reason: str
    rate_gbit_per_s: float | None


@dataclass(frozen=True)
class Expected:
    """The expected values of a node."""

    values: Mapping[str, Any] = field(default_factory=dict)  # the values by name; data/checks/expected.yml lists the names
    origins: Mapping[str, str] = field(default_factory=dict)  # the source of each value
    problem: str = ""  # why gpu.json could not be read, or an empty string
    ports: Mapping[str, RecordedPort] = field(default_factory=dict)  # the RDMA ports in gpu.json by name (`mlx5_0:1`)

    def get(self, name: str) -> Any:
        """Return the expected value, or None."""
        return self.values.get(name)

    def source(self, name: str) -> str:
        """Return the source of an expected value, or an empty string."""
        return self.origins.get(name, "")

    def stated(self, name: str) -> Any:
        """Return the expected value if a person stated it; None if it was only recorded in gpu.json."""
        return None if self.source(name) == _RECORD else self.get(name)

    @property
    def training_ports(self) -> Mapping[str, RecordedPort]:
        """The recorded RDMA ports that training uses."""
        return {name: port for name, port in self.ports.items() if port.chosen}


def read_expected(host: sysfs.Host, file: str = "", flags: Mapping[str, Any] | None = None, *, source: str = "--expect-json") -> Expected:
    """Return the expected values: `flags` override `file`, which overrides gpu.json.

    Args:
        host: The root that contains etc/primus/gpu.json.
        file: A JSON file, `-` for standard input, empty for none.
        flags: Values from the command line; None is ignored.
        source: The name of the file in the results.

    Raises:
        UsageError: The file is not a JSON object, or it has an unknown name or a value of the wrong type.
    """
    recorded = _recorded(host.path(FACTS))
    layers: list[tuple[str, Mapping[str, Any]]] = [(_RECORD, recorded.values)]
    if file:
        layers.append((source, _parsed(file)))
    layers.append(("command line", {name: value for name, value in (flags or {}).items() if value is not None}))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        values.update(layer)
        origins.update(dict.fromkeys(layer, origin))
    return Expected(values, origins, recorded.problem, recorded.ports)


def _recorded(path: Path) -> Expected:
    """Return the values in gpu.json. `problem` is set if the file exists and cannot be used."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return Expected()
    except (OSError, ValueError) as error:
        return Expected(problem=f"{path} cannot be read: {error}")
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return Expected(problem=f"{path} does not have the schema {SCHEMA}")
    if data.get("verdict") != "ok":
        return Expected()
    ports = {
        str(port.get("name")): RecordedPort(bool(port.get("chosen")), str(port.get("reason") or ""), port.get("rate_gbit_per_s"))
        for port in data.get("network", {}).get("ports", ())
    }
    chosen = sum(port.chosen for port in ports.values())
    found = {"gpus": data.get("count"), "gpu_model": data.get("model"), "rdma_ports": chosen or None}
    return Expected({name: value for name, value in found.items() if value}, ports=ports)


def _parsed(file: str) -> dict[str, Any]:
    fix = f"pass a JSON object with some of these keys: {', '.join(table('expected'))}"
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
        data = json.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"--expect-json {file}: {error}", fix=fix) from error
    if not isinstance(data, dict):
        raise UsageError(f"--expect-json {file}: not a JSON object", fix=fix)
    for what, fix in faults(data):
        raise UsageError(f"--expect-json {file}: {what}", fix=fix)
    return {name: value for name, value in data.items() if value is not None}


def faults(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield unknown names and values of the wrong type, each with a fix. None is no expectation."""
    for name, value in values.items():
        entry = table("expected").get(name)
        if entry is None:
            yield f"unknown key {name}", did_you_mean(str(name), table("expected"))
        elif value is not None and not _has_type(value, entry["type"]):
            yield f"{name} is {value!r}, not a {entry['type']}", f"give a {entry['type']}: {entry['meaning']}"


def _has_type(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "switch" or not isinstance(value, bool))
