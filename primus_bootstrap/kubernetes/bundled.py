"""Kubespray's archive and wheels in a bundle: where `bundle create` put them, and that they are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.errors import PlanError

if TYPE_CHECKING:
    from primus_bootstrap.kubernetes.source import Source

_LOCK = "bundle.lock.yaml"
_FIX = "with a way to the outside: primus-bootstrap bundle lock, then bundle create; bring the folder here"


def from_bundle(source: Source) -> Source:
    """Return a source that reaches nothing but the bundle; what hosts.yaml names beside it, archive or folder of wheels, stays.

    Raises:
        PlanError: the bundle does not hold it.
    """
    bundle = Path(source.bundle).expanduser()
    lock = _lock(bundle)
    packages = source.packages or str(_wheels(bundle, lock))
    if source.archive or source.folder:
        return replace(source, packages=packages)
    entry = next((one for one in lock.get("files") or () if one["name"] == source.archive_url), None)
    if entry is None:
        raise PlanError(f"{bundle / _LOCK} holds no {source.archive_url}", fix=_FIX)
    archive = bundle / entry["path"]
    if not archive.is_file():
        raise PlanError(f"the bundle lacks {entry['path']}", fix=_FIX)
    return replace(source, archive=str(archive), sha256=str(entry["sha256"]), packages=packages)


def _lock(bundle: Path) -> dict[str, Any]:
    try:
        found = yaml.load((bundle / _LOCK).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except OSError as error:
        raise PlanError(f"{bundle / _LOCK}: {error.strerror}", fix=f"correct airgap_bundle, or make the bundle: {_FIX}") from error
    except yaml.YAMLError as error:
        raise PlanError(f"{bundle / _LOCK} cannot be read: {error}", fix=_FIX) from error
    if not isinstance(found, dict):
        raise PlanError(f"{bundle / _LOCK} is no lock", fix=_FIX)
    return found


def _wheels(bundle: Path, lock: dict[str, Any]) -> Path:
    missing = [one["path"] for one in lock.get("wheels") or () if not (bundle / one["path"]).is_file()]
    if missing or not lock.get("wheels"):
        what = f"the bundle lacks {', '.join(missing)}" if missing else f"{bundle / _LOCK} holds no wheels for Kubespray's Ansible"
        raise PlanError(what, fix=_FIX)
    return bundle / "wheels"
