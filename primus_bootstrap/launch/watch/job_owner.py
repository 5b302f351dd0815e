"""The owner of a job's folder, read through a descriptor below folders that only root can change.

The folder of all jobs belongs to root, and each job's folder to the job's user. A job runs as the owner of its folder; root never takes
the account from a file in it. Files in a job's folder are read with the rights of its owner, not with root's.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError, PrimusError, UsageError
from primus_bootstrap.launch import safe_files
from primus_bootstrap.launch.account import become
from primus_bootstrap.launch.watch.job_spec import JOB_ID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_READ_S = 10.0
_FIX_FOLDERS = "`primus-bootstrap apply hosts.yaml --phase scheduling` repairs the owner and mode of the path above"


class NoSuchJobError(PrimusError):
    """The job has no folder. No other error has this exit code."""

    exit_code = 44


@dataclass(frozen=True)
class OwnedFiles:
    """The owner of a job's folder, and the content of the requested files."""

    owner: pwd.struct_passwd
    contents: tuple[bytes, ...]


def read_owned(root: Path, job_id: str, names: Sequence[str], *, timeout_s: float = _READ_S) -> OwnedFiles:
    """Open a job's folder once, and read files in it with the rights of its owner.

    Args:
        root: The folder of all jobs.
        names: Files in its folder; each must be a regular file of the folder's owner.
        timeout_s: Time limit for everything, in seconds.

    Raises:
        NoSuchJobError: There is no such folder.
        PlanError: A path is not safe, its owner has no account, or the storage does not answer in time.
    """
    if not JOB_ID.fullmatch(job_id):
        raise UsageError(f"{job_id!r} is not a job id", fix="give an id that `primus-bootstrap workload list hosts.yaml --all` prints")

    def read() -> tuple[int, tuple[bytes, ...]]:
        with safe_files.open_folder(root) as jobs, jobs.folder(job_id) as folder:
            number = folder.owner
            if os.geteuid() == 0 and number:
                become(pwd.getpwuid(number))
            return number, tuple(folder.read(name, owner=number) for name in names)

    path = root / job_id
    try:
        number, contents = safe_files.within(timeout_s, read)
        return OwnedFiles(pwd.getpwuid(number), contents)
    except FileNotFoundError as error:
        raise NoSuchJobError(
            f"{path}: there is no such job, or one of its files is missing",
            fix="`primus-bootstrap workload list hosts.yaml --all` lists all jobs",
        ) from error
    except KeyError as error:
        raise PlanError(
            f"{path}: its owner has no account on this host: {error}", fix="add it to users_groups_accounts, and apply"
        ) from error
    except (OSError, TimeoutError) as error:
        raise PlanError(f"{path}: {error}", fix=_FIX_FOLDERS) from error


def owner_of(root: Path, job_id: str) -> pwd.struct_passwd:
    """Return the account that owns a job's folder.

    Raises:
        PrimusError: See `read_owned`.
    """
    return read_owned(root, job_id, ()).owner


def check_own_folder(path: Path, *, parents: bool = True) -> None:
    """Check that a job's folder belongs to the account of this process, and that only root can replace it.

    Args:
        path: The job's folder.
        parents: Check the folders above it too. In a pod the volume's driver creates these.

    Raises:
        PlanError: It belongs to another account, or others can replace it.
    """
    me = os.geteuid()
    try:
        if parents:
            safe_files.open_folder(path, owner=me).close()
            return
        found = path.lstat()
        if found.st_uid != me:
            raise safe_files.UnsafePathError(str(path), f"belongs to the account number {found.st_uid}, and this process runs as {me}")
    except OSError as error:
        raise PlanError(f"{path}: not accepted as a job's folder: {error}", fix=_FIX_FOLDERS) from error
