"""The options of `lab up`, and the lab's shape, which is saved so that `lab up` without options keeps it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.atomic_files import write_if_changed
from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.lab.lab_values import DEFAULT_COUNT, LabError

if TYPE_CHECKING:
    from primus_bootstrap.lab.lab_values import Form

SCHEMA = "primus.lab/1"
# Instead of releases: all that this machine can build.
ALL = "all"


@dataclass(frozen=True, slots=True)
class Request:
    """The options of one `lab up`. None means the saved value, or else the default.

    `nodes` is the number of hosts in hosts.yaml, `spares` the number of hosts beyond them. `releases` are apt's code names, assigned
    in rotation, or `all`. `mounts` are folders of this machine that every host can read, as `SOURCE:TARGET`; empty means none.
    `torch` adds the folder of `torch_mount` to them.
    """

    nodes: int | None = None
    spares: int | None = None
    releases: tuple[str, ...] | None = None
    form: Form | None = None
    mounts: tuple[str, ...] | None = None
    torch: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of hosts and spares of a lab, their releases in rotation, and their mounts (`SOURCE:TARGET`)."""

    nodes: int
    spares: int
    releases: tuple[str, ...]
    mounts: tuple[str, ...] = ()


def decide_shape(request: Request, remembered: Shape | None, *, named: int, available: tuple[str, ...]) -> Shape:
    """Return the desired shape of the lab.

    Args:
        request: The options of `lab up`.
        remembered: The saved shape; None for a new lab.
        named: The number of hosts in hosts.yaml; 0 without a file.
        available: The releases that this machine can build, the default one first.

    Raises:
        UsageError: A release, a mount or the number of spares is invalid.
    """
    releases = available if request.releases == (ALL,) else request.releases
    unavailable = [name for name in releases or () if name not in available]
    if unavailable:
        raise UsageError(
            f"this machine cannot build hosts of the release {', '.join(unavailable)}", fix=f"choose from: {', '.join(available)}"
        )
    before = remembered or Shape(named or DEFAULT_COUNT, 0, available[:1])
    nodes = before.nodes if request.nodes is None else request.nodes
    spares = before.spares if request.spares is None else request.spares
    if spares < 0:
        raise UsageError(f"a lab cannot have {spares} spare hosts", fix="use --spare with 0 or more")
    # Hosts that were added to hosts.yaml count as spares.
    spares = max(spares, 0 if request.nodes is not None else named - nodes)
    mounts = before.mounts if request.mounts is None else tuple(dict.fromkeys(map(_absolute_mount, request.mounts)))
    return Shape(nodes, spares, releases or before.releases, mounts)


def _absolute_mount(text: str) -> str:
    """Return a mount with the absolute path of its folder.

    Raises:
        UsageError: The folder does not exist, or the target is not an absolute path.
    """
    source, _, target = text.rpartition(":")
    path = Path(source).expanduser().resolve()
    if not source or not path.is_dir() or ":" in str(path):
        raise UsageError(f"--mount {text}: {source or text} is not a folder of this machine", fix="use --mount FOLDER:/PATH/IN/HOSTS")
    if not target.startswith("/") or ".." in Path(target).parts or target.rstrip("/") == "":
        raise UsageError(f"--mount {text}: {target!r} is not an absolute path below /", fix="use --mount FOLDER:/PATH/IN/HOSTS")
    return f"{path}:{target.rstrip('/')}"


def load_shape(state: Path) -> Shape | None:
    """Return the saved shape of a lab, or None without one.

    Raises:
        LabError: The file is damaged.
    """
    path = _file(state)
    if not path.exists():
        return None
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        # Earlier versions did not write mounts.
        return Shape(int(data["nodes"]), int(data["spares"]), _texts(data["releases"]), _texts(data.get("mounts", [])))
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path} is damaged: {error}", fix=f"rm {path}; `lab up` then takes the number of hosts from hosts.yaml") from error


def save_shape(state: Path, shape: Shape) -> bool:
    """Save a lab's shape in its state folder; return whether it changed."""
    path = _file(state)
    text = json.dumps({"schema": SCHEMA, **asdict(shape)}, indent=2) + "\n"
    return write_if_changed(path, text)


def _texts(items: list[Any]) -> tuple[str, ...]:
    return tuple(str(item) for item in items)


def _file(state: Path) -> Path:
    return state / "lab.json"
