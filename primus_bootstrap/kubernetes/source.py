"""The source of Kubespray's release, from hosts.yaml, and its files in a bundle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from primus_bootstrap.core.errors import PlanError

_LOCK = "bundle.lock.yaml"
_FIX = "on a machine with internet access: primus-bootstrap bundle lock -i hosts.yaml, then bundle create; copy the folder to this machine"


@dataclass(frozen=True, slots=True)
class KubespraySource:
    """The first of `folder`, `archive` (with its `sha256`), `bundle` and git at `url` that is set.

    `release` is the release's name; empty for the default one. `packages` is a folder of wheels; if empty, pip uses the bundle's wheels,
    or its index without a bundle. `archive_url` is the archive's upstream address, which is its name in a bundle.
    """

    release: str = ""
    folder: str = ""
    archive: str = ""
    sha256: str = ""
    url: str = ""
    packages: str = ""
    bundle: str = ""
    archive_url: str = ""


def from_bundle(source: KubespraySource) -> KubespraySource:
    """Return a source that uses only the bundle, and the archive, folder or wheels that hosts.yaml names.

    Raises:
        PlanError: The bundle does not contain the archive or the wheels.
    """
    bundle = Path(source.bundle).expanduser()
    lock = _lock(bundle)
    packages = source.packages or str(_wheels(bundle, lock))
    if source.archive or source.folder:
        return replace(source, packages=packages)
    entry = next((one for one in lock.get("files") or () if one["name"] == source.archive_url), None)
    if entry is None:
        raise PlanError(f"{bundle / _LOCK} does not contain {source.archive_url}", fix=_FIX)
    archive = bundle / entry["path"]
    if not archive.is_file():
        raise PlanError(f"{archive} does not exist", fix=_FIX)
    return replace(source, archive=str(archive), sha256=str(entry["sha256"]), packages=packages)


def _lock(bundle: Path) -> dict[str, Any]:
    try:
        lock = yaml.load((bundle / _LOCK).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except OSError as error:
        raise PlanError(f"{bundle / _LOCK}: {error.strerror}", fix=f"correct airgap_bundle, or create the bundle: {_FIX}") from error
    except yaml.YAMLError as error:
        raise PlanError(f"{bundle / _LOCK} cannot be read: {error}", fix=_FIX) from error
    if not isinstance(lock, dict):
        raise PlanError(f"{bundle / _LOCK} is not a lock file of a bundle", fix=_FIX)
    return lock


def _wheels(bundle: Path, lock: dict[str, Any]) -> Path:
    missing = [one["path"] for one in lock.get("wheels") or () if not (bundle / one["path"]).is_file()]
    if missing or not lock.get("wheels"):
        what = f"{bundle} lacks {', '.join(missing)}" if missing else f"{bundle / _LOCK} lists no wheels for Kubespray's Ansible"
        raise PlanError(what, fix=_FIX)
    return bundle / "wheels"
