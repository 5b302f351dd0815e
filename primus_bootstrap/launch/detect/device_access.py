"""List the device files of the GPUs, and check whether an account can open them."""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from typing import TYPE_CHECKING

from primus_bootstrap.launch.account import become
from primus_bootstrap.launch.safe_files import within

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

# The first open of an NVIDIA device without the persistence daemon initialises the GPU, which takes seconds for each.
_OPEN_S = 60.0


def device_names(vendor: str, in_dev: Iterable[str], in_dri: Iterable[str]) -> tuple[str, ...]:
    """Return the device files below /dev that a program needs for the GPUs of a vendor, by the names in /dev and /dev/dri."""
    if vendor == "amd":
        return ("kfd", *(f"dri/{name}" for name in sorted(in_dri) if name.startswith("renderD")))
    return ("nvidiactl", "nvidia-uvm", *(name for name in sorted(in_dev) if re.fullmatch(r"nvidia\d+", name)))


def permissions(path: Path) -> str:
    """Return group and mode of a file, such as `training 0660`."""
    found = path.stat()
    return f"{group_name(found.st_gid)} {stat.S_IMODE(found.st_mode):04o}"


def group_name(number: int) -> str:
    """Return the name of a group, or its number if it has no name on this host."""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def refused_devices(account: str, paths: Sequence[Path]) -> Mapping[Path, str]:
    """Open files for reading and writing as an account, in a child process; return the error of each that it cannot open.

    Raises:
        OSError: The process of the account gave no answer in time.
        KeyError: The host has no such account.
    """
    owner = pwd.getpwnam(account)

    def refused() -> dict[Path, str]:
        become(owner)
        return {path: error for path in paths if (error := _open_error(path))}

    found: dict[Path, str] = within(_OPEN_S, refused)
    return found


def groups_of(account: str) -> tuple[str, ...]:
    """Return the names of an account's groups.

    Raises:
        KeyError: The host has no such account.
    """
    return tuple(group_name(number) for number in os.getgrouplist(account, pwd.getpwnam(account).pw_gid))


def _open_error(path: Path) -> str:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    return ""
