"""Whose a job folder is: looked at once, through a descriptor, below folders that only root can change.

The folder of all jobs belongs to root, and each job's folder to the job's user. Whoever owns a job's folder decides as whom it runs, so
root never takes that from a file in it. What lies below a job's folder is read with the rights of its owner, never with root's.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError, PrimusError, UsageError
from primus_bootstrap.launch import safe_files
from primus_bootstrap.launch.watch.job_spec import JOB_ID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_READ_S = 10.0
_FIX_FOLDERS = "look at the path that is named; `primus-bootstrap apply hosts.yaml --phase scheduling` sets owners and modes right"


class NoSuchJobError(PrimusError):
    """There is no folder of that job; the exit code is one that no other error has."""

    exit_code = 44


@dataclass(frozen=True)
class OwnedFiles:
    """Who owns a job's folder, and the content of the files that were asked for."""

    owner: pwd.struct_passwd
    contents: tuple[bytes, ...]


def read_owned(root: Path, job_id: str, names: Sequence[str], *, timeout_s: float = _READ_S) -> OwnedFiles:
    """Open a job's folder once, and read files in it as its owner.

    Args:
        root: the folder of all jobs.
        job_id: the job.
        names: files in its folder; each must be a regular file of the folder's owner.
        timeout_s: seconds for all of it.

    Raises:
        NoSuchJobError: There is no such folder.
        PlanError: A path cannot be trusted, has an owner without an account, or does not answer in time.
    """
    if not JOB_ID.fullmatch(job_id):
        raise UsageError(f"{job_id!r} is no job id", fix="give an id as `primus-bootstrap workload list` shows it")

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
        raise NoSuchJobError(f"{path}: there is no such job, or a file of it is missing", fix="see `workload list`") from error
    except KeyError as error:
        raise PlanError(f"{path}: its owner has no account here: {error}", fix="add it to users_groups_accounts, and apply") from error
    except (OSError, TimeoutError) as error:
        raise PlanError(f"{path}: cannot be used: {error}", fix=_FIX_FOLDERS) from error


def owner_of(root: Path, job_id: str) -> pwd.struct_passwd:
    """Return the account that owns a job's folder.

    Raises:
        PrimusError: See `read_owned`.
    """
    return read_owned(root, job_id, ()).owner


def become(owner: pwd.struct_passwd) -> None:
    """Give root's rights up for those of an account, for good; nothing happens where this process has them already."""
    if os.geteuid() == owner.pw_uid:
        return
    os.initgroups(owner.pw_name, owner.pw_gid)
    os.setresgid(owner.pw_gid, owner.pw_gid, owner.pw_gid)
    os.setresuid(owner.pw_uid, owner.pw_uid, owner.pw_uid)
    os.environ.update(HOME=owner.pw_dir, USER=owner.pw_name, LOGNAME=owner.pw_name)


def check_own_folder(path: Path, *, parents: bool = True) -> None:
    """Make sure that a job's folder belongs to whoever runs this, and that nobody but root can put another one in its place.

    Args:
        path: the job's folder.
        parents: look at the folders above it too. In a pod they are what the volume's driver made.

    Raises:
        PlanError: It is another account's, or others can replace it.
    """
    me = os.geteuid()
    try:
        if parents:
            safe_files.open_folder(path, owner=me).close()
            return
        found = path.lstat()
        if found.st_uid != me:
            raise safe_files.UnsafePathError(str(path), f"belongs to the account number {found.st_uid}, and this is {me}")
    except OSError as error:
        raise PlanError(f"{path}: is not taken as a job's folder: {error}", fix=_FIX_FOLDERS) from error
