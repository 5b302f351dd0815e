"""The folder of a job on shared storage: its files, how it is created, and the requests of users."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.atomic_files import sync_folder, write_all
from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch import safe_files
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch.job_owner import read_owned
from primus_bootstrap.launch.watch.job_spec import Job, read_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CANCEL, RESUME = "cancel", "resume"
MAX_JOB_BYTES = 4 << 20  # a job may name thousands of hosts
REQUESTS = (CANCEL, RESUME)
_FOLDERS = ("requests", "attempts", "run")
# Files of one attempt in the run folder, which all attempts share.
GAUGES = "metrics.prom"
_OF_AN_ATTEMPT = ("logs", "failure.json", "plan*.json", GAUGES)


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job."""

    path: Path

    @property
    def job_file(self) -> Path:
        """The description of the job."""
        return self.path / "job.json"

    @property
    def state_file(self) -> Path:
        """The state of the job."""
        return self.path / "state.json"

    @property
    def run(self) -> Path:
        """The run folder. Steps and checkpoints of all attempts are in it, logs only of the newest."""
        return self.path / "run"

    def attempt(self, number: int) -> Path:
        """Return the folder of one attempt."""
        return self.path / "attempts" / str(number)

    def job(self) -> Job:
        """Read job.json.

        Raises:
            UsageError: The file is missing or invalid.
        """
        return self.read()[0]

    def read(self) -> tuple[Job, str]:
        """Read job.json once; return the job and the text.

        Raises:
            UsageError: The file is missing or invalid.
        """
        try:
            text = safe_files.read_regular(self.job_file, max_bytes=MAX_JOB_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise UsageError(f"{self.job_file}: cannot be read: {error}", fix="give the folder of a job that you may read") from error
        job = read_job(text, origin=str(self.job_file))
        if job.id != self.path.name:
            raise UsageError(f"{self.job_file}: the job's id is {job.id}, not {self.path.name}", fix="do not move or copy job folders")
        return job, text

    def state(self) -> states.State | None:
        """Read state.json; return None before the watcher has written one."""
        return states.load(self.state_file)

    def key(self) -> str:
        """Return the key that proves read access to this folder."""
        try:
            return safe_files.read_regular(self.path / "key").decode("utf-8", "replace").strip()
        except OSError as error:
            raise PlanError(f"{self.path}/key: cannot be read: {error}", fix="run as the job's user") from error

    def requests(self) -> frozenset[str]:
        """Return the requests that the watcher has not applied yet."""
        return frozenset(name for name in REQUESTS if (self.path / "requests" / name).exists())

    def request(self, name: str) -> None:
        """Write a request for the watcher; it replaces earlier requests."""
        try:
            for other in REQUESTS:
                if other != name:
                    self.remove_request(other)
            (self.path / "requests" / name).touch()
        except OSError as error:
            raise PlanError(f"{self.path}/requests: cannot be written: {error}", fix="run as the job's user") from error

    def remove_request(self, name: str) -> None:
        """Remove a request that the state contains."""
        with suppress(FileNotFoundError):
            (self.path / "requests" / name).unlink()

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Append a line to a file of JSON lines and sync it; a line that a crash left incomplete is terminated first."""
        path = self.path / name
        line = json.dumps(record).encode() + b"\n"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            unfinished = size and os.pread(descriptor, 1, size - 1) != b"\n"
            write_all(descriptor, b"\n" + line if unfinished else line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not size:
            sync_folder(self.path)

    def set_aside(self, number: int, patterns: Sequence[str] = _OF_AN_ATTEMPT) -> None:
        """Move an attempt's files from the run folder to its own folder; a second call moves the rest."""
        target = self.attempt(number)
        target.mkdir(parents=True, exist_ok=True)
        for pattern in patterns:
            for path in self.run.glob(pattern):
                if not (target / path.name).exists():
                    path.rename(target / path.name)


def create(root: Path, text: str) -> tuple[JobFolder, bool]:
    """Create a job's folder; return it, and whether it is new.

    The folder of all jobs belongs to root. Root creates a job's folder, and gives it to the job's user as the last step. Other accounts
    can create folders only if they own the folder of all jobs.

    Raises:
        UsageError: The job is invalid, its id is in use, or its user is neither the caller nor an account of this host.
        PlanError: The folder cannot be created.
    """
    job = read_job(text, origin="job.json")
    owner = _user(job)
    folder = JobFolder(root / job.id)
    try:
        with safe_files.open_folder(root, owner=os.geteuid()) as jobs:
            if _exists(jobs, job.id):
                return folder, _same(folder, job)
            _create_folder(jobs, job.id, text if text.endswith("\n") else text + "\n", owner)
    except OSError as error:
        fix = "`primus-bootstrap apply hosts.yaml --phase scheduling` repairs the owner and mode of the path above"
        raise PlanError(f"{root}: the job's folder cannot be created: {error}", fix=fix) from error
    return folder, True


def _user(job: Job) -> pwd.struct_passwd:
    """Return the account of the job's user."""
    me = pwd.getpwuid(os.geteuid())
    if job.user == me.pw_name:
        return me
    if os.geteuid():
        raise UsageError(f"user: the job belongs to {job.user}, and this is {me.pw_name}", fix=f"run this as {job.user}, or as root")
    try:
        return pwd.getpwnam(job.user)
    except KeyError as error:
        raise UsageError(f"user: this host has no account {job.user}", fix="add it to users_groups_accounts, and apply") from error


def _exists(jobs: safe_files.Folder, name: str) -> bool:
    try:
        jobs.stat(name)
    except FileNotFoundError:
        return False
    return True


def _same(folder: JobFolder, job: Job) -> bool:
    """Return False if the existing job is the same: nothing was created.

    Raises:
        UsageError: It is another job.
    """
    existing = read_owned(folder.path.parent, job.id, ("job.json",))
    found = read_job(existing.contents[0].decode("utf-8", "replace"), origin=str(folder.job_file))
    if existing.owner.pw_name == job.user and found.request() == job.request():
        return False
    raise UsageError(f"{folder.path}: another job has this id", fix="choose another id")


def _create_folder(jobs: safe_files.Folder, name: str, text: str, owner: pwd.struct_passwd) -> None:
    """Fill a folder under a hidden name, change its owner, and rename it: a kill leaves nothing that looks like a job."""
    hidden = f".{name}.{secrets.token_hex(4)}"
    uid, gid = os.geteuid(), os.getegid()
    jobs.make_folder(hidden, owner=uid, group=gid, mode=0o700)
    try:
        with jobs.folder(hidden, owner=uid) as folder:
            for content, file in ((text, "job.json"), (secrets.token_hex(32) + "\n", "key")):
                folder.write(file, content.encode(), mode=0o600, owner=owner.pw_uid, group=owner.pw_gid)
            for inner in _FOLDERS:
                folder.make_folder(inner, owner=owner.pw_uid, group=owner.pw_gid, mode=0o755)
            os.fchown(folder.descriptor, owner.pw_uid, owner.pw_gid)
        os.rename(hidden, name, src_dir_fd=jobs.descriptor, dst_dir_fd=jobs.descriptor)
    except OSError:
        shutil.rmtree(Path(jobs.path, hidden), ignore_errors=True)
        raise
