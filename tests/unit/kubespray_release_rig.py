"""The release of Kubespray in PRIMUS_KUBESPRAY_DIR."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.inventory.kubespray_release import load_releases

if TYPE_CHECKING:
    from pathlib import Path


def checked_out_release(folder: Path) -> str:
    """Return the name of the release whose version a checkout has."""
    number = yaml.safe_load((folder / "galaxy.yml").read_text(encoding="utf-8"))["version"]
    return next(name for name, release in load_releases().items() if release.number == number)
