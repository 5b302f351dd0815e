"""The image of a container run: the user's, or the default for the vendor of the GPUs (data/images.yml)."""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.settings.layered_settings import Settings

_SETTING = "container.image"
_VENDORS = {"amd": "AMD", "nvidia": "NVIDIA"}


@cache
def defaults() -> Mapping[str, Mapping[str, str]]:
    """Return the default image and its source by vendor."""
    return dict(yaml.safe_load(pkgutil.get_data("primus_bootstrap.launch", "data/images.yml") or b""))


def chosen(settings: Settings, vendor: str, engine: str = "") -> tuple[str, str]:
    """Return the image, and a remark that says where it comes from.

    Raises:
        UsageError: No image is set, and the vendor has no default.
    """
    image = settings[_SETTING]
    if image:
        return image, f"image: {image} ({settings.origin(_SETTING)})"
    if vendor not in defaults():
        raise UsageError(
            "container: no image is set, and there is no default for a machine without GPUs",
            fix="pass --image IMAGE, write container: {image: IMAGE} in .primus.yaml, or name the GPUs: --gpus amd or --gpus nvidia",
        )
    default = defaults()[vendor]
    image = f"docker://{default['image']}" if engine == "apptainer" else default["image"]
    return image, f"image: {image} (default for {_VENDORS[vendor]} GPUs, {default['source']}; --image replaces it)"


def remark_for_nodes(settings: Settings) -> str:
    """Return the remark on the image of a run whose nodes choose it by their own GPUs."""
    if settings[_SETTING]:
        return chosen(settings, "")[1]
    if settings["container.gpus"] != "auto":
        return chosen(settings, settings["container.gpus"])[1]
    names = " or ".join(f"{item['image']} ({_VENDORS[vendor]})" for vendor, item in defaults().items())
    return f"image: each node chooses the default for its GPUs: {names}; --image replaces it"
