"""What was asked of a lab, and what it remembers of that beside its keys: `lab up` without options means the same hosts again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.atomic_files import write_if_changed
from primus_bootstrap.lab.lab_values import DEFAULT_COUNT, LabError

if TYPE_CHECKING:
    from primus_bootstrap.lab.lab_values import Form

SCHEMA = "primus.lab/1"
# In place of releases: every one that this machine can build.
ALL = "all"


@dataclass(frozen=True, slots=True)
class Request:
    """What one `lab up` asks for; None means as it was, else the default.

    `nodes` is how many hosts hosts.yaml is to name, `spares` how many more are to be up that it does not name. `releases` are
    apt's code names, taken in turn, or `all`. `form` is how much hosts.yaml is to hold. `mounts` are folders of
    this machine that every host is to see, as `SOURCE:TARGET`; an empty tuple asks for none.
    """

    nodes: int | None = None
    spares: int | None = None
    releases: tuple[str, ...] | None = None
    form: Form | None = None
    mounts: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """How many hosts a lab has, of which releases in turn, and which folders of this machine they see (`SOURCE:TARGET`)."""

    nodes: int
    spares: int
    releases: tuple[str, ...]
    mounts: tuple[str, ...] = ()


def decide_shape(request: Request, remembered: Shape | None, *, named: int, available: tuple[str, ...]) -> Shape:
    """Return the shape that the lab is to have.

    Args:
        request: What was asked for just now.
        remembered: What the lab had before, None where it is new.
        named: How many hosts hosts.yaml names, 0 where there is none.
        available: The releases that this machine can build, the default one first.

    Raises:
        LabError: A release cannot be built here, or a mount cannot be made.
    """
    releases = available if request.releases == (ALL,) else request.releases
    wrong = [name for name in releases or () if name not in available]
    if wrong:
        raise LabError(f"the lab of this machine cannot be of the release {', '.join(wrong)}", fix=f"choose from: {', '.join(available)}")
    before = remembered or Shape(named or DEFAULT_COUNT, 0, available[:1])
    nodes = before.nodes if request.nodes is None else request.nodes
    spares = before.spares if request.spares is None else request.spares
    if spares < 0:
        raise LabError(f"a lab cannot have {spares} spare hosts", fix="ask for 0 or more")
    # A host that was added to hosts.yaml since is one of the spares, or one more.
    spares = max(spares, 0 if request.nodes is not None else named - nodes)
    mounts = before.mounts if request.mounts is None else tuple(dict.fromkeys(map(_whole_mount, request.mounts)))
    return Shape(nodes, spares, releases or before.releases, mounts)


def _whole_mount(text: str) -> str:
    """Return a mount with its folder's whole path.

    Raises:
        LabError: There is no such folder, or it would have no place in a host.
    """
    source, _, target = text.rpartition(":")
    path = Path(source).expanduser().resolve()
    if not source or not path.is_dir() or ":" in str(path):
        raise LabError(f"--mount {text}: {source or text} is no folder of this machine", fix="give FOLDER:/path/in/the/hosts")
    if not target.startswith("/") or ".." in Path(target).parts or target.rstrip("/") == "":
        raise LabError(
            f"--mount {text}: {target!r} is no place in a host", fix="give FOLDER:/path/in/the/hosts, with a whole path after the colon"
        )
    return f"{path}:{target.rstrip('/')}"


def recall(state: Path) -> Shape | None:
    """Return the shape that a lab remembers, None where it remembers none.

    Raises:
        LabError: The file is not what was written.
    """
    path = _file(state)
    if not path.exists():
        return None
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        # Labs of earlier versions have no mounts.
        return Shape(int(data["nodes"]), int(data["spares"]), _texts(data["releases"]), _texts(data.get("mounts", [])))
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path} is not what `lab up` writes: {error}", fix=f"remove {path}; the lab is then as hosts.yaml says") from error


def remember(state: Path, shape: Shape) -> bool:
    """Write a lab's shape into the folder of its state; return whether that was another one."""
    path = _file(state)
    text = json.dumps({"schema": SCHEMA, **asdict(shape)}, indent=2) + "\n"
    return write_if_changed(path, text)


def _texts(items: list[Any]) -> tuple[str, ...]:
    return tuple(str(item) for item in items)


def _file(state: Path) -> Path:
    return state / "lab.json"
