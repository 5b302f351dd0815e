"""Read and write `bundle.lock.yaml`."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, cast

import yaml

from primus_bootstrap.bundle.artifacts import KINDS, BundleError, Kind, Lock, Locked, Rendered, Target

SCHEMA = "primus.bundle-lock/1"
NAME = "bundle.lock.yaml"
_HEAD = "# Written by `primus-bootstrap bundle lock`: the downloads of an apply. Keep it beside hosts.yaml, under version control.\n"
_FIELDS = ("name", "version", "url", "sha256", "size_bytes", "path")
_PLURALS: dict[Kind, str] = {"package": "packages", "file": "files", "wheel": "wheels", "image": "images"}


def lock_text(lock: Lock) -> str:
    """Return the text of a lock, the same for equal locks."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "sets": [{**_target(target), "packages": sorted(names)} for target, names in lock.sets],
    }
    document["wheel_sets"] = [{"python": python, "requirements": sorted(names)} for python, names in sorted(lock.wheel_sets, key=str)]
    for kind in KINDS:
        items = sorted((item for item in lock.items if item.kind == kind), key=lambda item: (str(item.target), item.name))
        document[_PLURALS[kind]] = [
            {**_target(item.target), **{name: getattr(item, name) for name in _FIELDS}, **({} if item.pinned else {"pinned": False})}
            for item in items
        ]
    charts = sorted(lock.charts, key=lambda one: (one.role, one.key))
    document["charts"] = [{"role": one.role, "key": one.key, "images": list(one.images)} for one in charts]
    return _HEAD + yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=200)


def parse_lock(text: str, shown: str) -> Lock:
    """Parse the text of a lock file.

    Raises:
        BundleError: The text is not a lock.
    """
    fix = "run `primus-bootstrap bundle lock` to write it again"
    try:
        document = yaml.load(text, Loader=yaml.CSafeLoader)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise BundleError(f"{shown} is not a lock file with the schema {SCHEMA}", fix=fix)
        items = [_locked(kind, entry) for kind in KINDS for entry in document[_PLURALS[kind]]]
        sets = [(Target(entry["release"], entry["architecture"]), frozenset(map(str, entry["packages"]))) for entry in document["sets"]]
        # Earlier versions wrote neither of these two.
        wheel_sets = [(str(entry["python"]), frozenset(map(str, entry["requirements"]))) for entry in document.get("wheel_sets", ())]
        charts = [Rendered(str(entry["role"]), str(entry["key"]), tuple(map(str, entry["images"]))) for entry in document.get("charts", ())]
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{shown} is not a valid lock file: {error}", fix=fix) from error
    return Lock(tuple(items), tuple(sets), tuple(wheel_sets), tuple(charts))


def read_lock(path: Path) -> Lock:
    """Return the lock of a file, or an empty lock without a file."""
    return parse_lock(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else Lock()


def _target(target: Target | None) -> dict[str, str]:
    return {"release": target.release, "architecture": target.architecture} if target else {}


def _locked(kind: Kind, entry: dict[str, Any]) -> Locked:
    values = {name: cast("Any", int if name == "size_bytes" else str)(entry[name]) for name in _FIELDS}
    path = PurePosixPath(values["path"])
    if bool(values["path"]) == (kind == "image"):
        raise ValueError(f"{values['name']}: {'an image has no path' if kind == 'image' else f'a {kind} needs a path'}")
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{path} is outside of the bundle")
    if len(values["sha256"]) != 64 or set(values["sha256"]) - set("0123456789abcdef"):
        raise ValueError(f"{values['name']} has no SHA-256")
    target = Target(entry["release"], entry["architecture"]) if "release" in entry else None
    return Locked(kind=kind, target=target, pinned=bool(entry.get("pinned", True)), **values)
