"""The comments of a list of packages, data/backends/<name>.txt, which say what the list cannot pin by hash.

* `# python 3.12`: the environment needs this release of Python.
* `# needs torch==2.13.0`: pip installs it first, if the Python does not have it.
* `# needs amd jax-rocm7-plugin==0.12.0`: only for these GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# pip's own ones are for NVIDIA GPUs.
OF_TORCH = ("torch", "triton")
_NEEDS, _PYTHON = "# needs ", "# python "


def only_python(lines: Sequence[str]) -> str:
    """Return the release of Python that a list needs; empty if it supports several."""
    return next((line[len(_PYTHON) :].strip() for line in lines if line.startswith(_PYTHON)), "")


def pinned(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the packages with hashes, as NAME==VERSION."""
    return tuple(line.split()[0] for line in lines if line.strip() and not line.startswith("#"))


def needed(lines: Sequence[str], gpu_vendor: str) -> dict[str, str]:
    """Return the releases that the comments name for these GPUs, by package."""
    found: dict[str, str] = {}
    for line in lines:
        if line.startswith(_NEEDS):
            *vendor, release = line[len(_NEEDS) :].split()
            if not vendor or vendor == [gpu_vendor]:
                found[release.partition("==")[0].partition("[")[0]] = release
    return found
