"""Return the environment profile of this host: from gpu.json of the role gpu_env, or, without that file, from a new detection."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.detect import gpus, host_env, nics, profiles, routes, site, sysfs
from primus_bootstrap.launch.detect.render import gpu_facts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FROM_FILE = f"/{gpu_facts.FACTS}"
_FROM_HOST = "detected now"


@dataclass(frozen=True)
class HostProfile:
    """The variables of a host. `origin` is the path of gpu.json, `detected now`, or `requested`."""

    origin: str
    vendor: str
    model: str
    entries: tuple[profiles.Entry, ...]
    unset: tuple[profiles.Unset, ...]


def host_profile(root: Path) -> HostProfile:
    """Return the profile of the host below a root. Only gpu.json contains the site's values."""
    document = _read_facts(root)
    if document is not None:
        return _from_document(document, _FROM_FILE)
    return _from_document(host_env.detect(sysfs.Host(root), root, site.Site()).document, _FROM_HOST)


def model_profile(model: str) -> HostProfile:
    """Return the profile of a GPU model on a host without RDMA network; variables that depend on the network are unset.

    Raises:
        UsageError: The model does not exist.
    """
    known = gpus.catalogue()["models"]
    if model.lower() == "cpu":
        found = gpus.GpuFindings(gpus.NONE, "requested")
    elif model in known:
        fact = known[model]
        card = gpus.Gpu("", fact["vendor"], "", "", (model,), "", fact["memory_gib"], fact["form"], virtual=False, numa_node=None)
        found = gpus.GpuFindings(gpus.OK, "", (card,))
    else:
        raise UsageError(f"no such GPU model: {model}", fix=did_you_mean(model, [*known, "cpu"]))
    interface = routes.Interface("", "the network of another host is not known here")
    profile = profiles.make_profile(found, nics.Fabric("none", (), "not known here"), interface, site.Site())
    return HostProfile("requested", found.vendor, found.name, tuple(profile.effective().values()), profile.unset)


def found_gpus(root: Path) -> gpus.GpuFindings:
    """Return the GPUs on this host's PCI bus."""
    return gpus.find_gpus(sysfs.Host(root))


def _read_facts(root: Path) -> dict[str, Any] | None:
    try:
        document = json.loads((root / gpu_facts.FACTS).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and document.get("schema") == gpu_facts.SCHEMA else None


def _from_document(document: Mapping[str, Any], origin: str) -> HostProfile:
    names = ("variable", "value", "origin", "reason", "source")
    entries = tuple(profiles.Entry(*(str(item[name]) for name in names)) for item in document["profile"]["variables"])
    unset = tuple(profiles.Unset(**item) for item in document["profile"]["unset"])
    return HostProfile(origin, str(document["vendor"]), str(document["model"]), entries, unset)
