"""The wheels of the environment of a training backend, from the list that `primus-cli backend install` reads.

They are for the release of Python on the hosts, which can differ from that of this machine: NAME==VERSION (Python 3.12).
"""

from __future__ import annotations

import re
import sys

from primus_bootstrap.core.errors import PrimusError
from primus_bootstrap.launch.backends import environments, package_list, registry

_NAME = re.compile(r"(?P<requirement>\S+) \(Python (?P<python>[\d.]+)\)")


def backend_wheels(name: str, gpus: str) -> tuple[str, ...]:
    """Return the needed wheels, with those for the vendor of the GPUs (amd, nvidia or empty). torch and what has extras is not among them.

    Raises:
        ValueError: There is no such backend.
    """
    try:
        lines = environments.packages(registry.backend(name)).splitlines()
    except PrimusError as error:
        raise ValueError(f"{error.what}: {error.fix}") from error
    python = package_list.only_python(lines) or f"{sys.version_info.major}.{sys.version_info.minor}"
    needed = package_list.needed(lines, gpus).items()
    plain = [release for package, release in needed if package not in package_list.OF_TORCH and "[" not in release]
    return tuple(f"{item} (Python {python})" for item in (*package_list.pinned(lines), *plain))


def python_options(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the requirement of a name, and pip's options for its release of Python; none for the one of this machine.

    The lists pin what works, also where a package states a newer Python than it needs.
    """
    found = _NAME.fullmatch(name)
    if not found:
        return name, ()
    return found["requirement"], ("--ignore-requires-python", f"--python-version={found['python']}")
