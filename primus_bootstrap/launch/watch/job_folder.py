"""A job's folder on shared storage: where everything lies, how it is made, and the small files that others drop into it."""

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
LARGEST_JOB_BYTES = 4 << 20  # a job that names thousands of hosts
REQUESTS = (CANCEL, RESUME)
_FOLDERS = ("requests", "attempts", "run")
# What belongs to one attempt although it is written into the run folder, which all attempts share.
GAUGES = "metrics.prom"
_OF_AN_ATTEMPT = ("logs", "failure.json", "plan*.json", GAUGES)


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job."""

    path: Path

    @property
    def job_file(self) -> Path:
        """What the job is."""
        return self.path / "job.json"

    @property
    def state_file(self) -> Path:
        """Where it stands."""
        return self.path / "state.json"

    @property
    def run(self) -> Path:
        """The run folder of the newest attempt; steps and checkpoints go on over all attempts."""
        return self.path / "run"

    def attempt(self, number: int) -> Path:
        """Return what is kept of one attempt."""
        return self.path / "attempts" / str(number)

    def job(self) -> Job:
        """Read job.json.

        Raises:
            UsageError: It is not there or wrong.
        """
        return self.read()[0]

    def read(self) -> tuple[Job, str]:
        """Read job.json once; return the job and the text that it was read from.

        Raises:
            UsageError: It is not there or wrong.
        """
        try:
            text = safe_files.read_regular(self.job_file, max_bytes=LARGEST_JOB_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise UsageError(f"{self.job_file}: cannot be read: {error}", fix="give the folder of a job that you may read") from error
        job = read_job(text, origin=str(self.job_file))
        if job.id != self.path.name:
            raise UsageError(
                f"{self.job_file}: the job is {job.id}, and its folder {self.path.name}", fix="do not move or copy job folders"
            )
        return job, text

    def state(self) -> states.State | None:
        """Read state.json; None before the watcher has written one."""
        return states.load(self.state_file)

    def key(self) -> str:
        """Return the proof that a request comes from somebody who may read this folder."""
        try:
            return safe_files.read_regular(self.path / "key").decode("utf-8", "replace").strip()
        except OSError as error:
            raise PlanError(f"{self.path}/key: cannot be read: {error}", fix="run as the job's user") from error

    def requests(self) -> frozenset[str]:
        """Return what was asked for and not acted upon yet."""
        return frozenset(name for name in REQUESTS if (self.path / "requests" / name).exists())

    def request(self, name: str) -> None:
        """Ask the watcher for something; what was asked for before and not acted upon yet counts no more."""
        try:
            for other in REQUESTS:
                if other != name:
                    self.answered(other)
            (self.path / "requests" / name).touch()
        except OSError as error:
            raise PlanError(f"{self.path}/requests: cannot be written: {error}", fix="run as the job's user") from error

    def answered(self, name: str) -> None:
        """Remove a request that the state knows of."""
        with suppress(FileNotFoundError):
            (self.path / "requests" / name).unlink()

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Add a line to a file of JSON lines, on disk before this returns; a line that a crash left unfinished is ended first."""
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
        """Move what an attempt left in the run folder to what is kept of it; a second call moves what is left."""
        target = self.attempt(number)
        target.mkdir(parents=True, exist_ok=True)
        for pattern in patterns:
            for path in self.run.glob(pattern):
                if not (target / path.name).exists():
                    path.rename(target / path.name)


def create(root: Path, text: str) -> tuple[JobFolder, bool]:
    """Make a job's folder at once; return it, and whether it was made now.

    The folder of all jobs belongs to root, so root makes a job's folder and hands it to the job's user as its last act. Other accounts can
    make folders only where they own the folder of all jobs.

    Raises:
        UsageError: The job is wrong, another one has its id, or its user is neither the one who calls nor known here.
        PlanError: The folder cannot be made.
    """
    job = read_job(text, origin="job.json")
    owner = _user(job)
    folder = JobFolder(root / job.id)
    try:
        with safe_files.open_folder(root, owner=os.geteuid()) as jobs:
            if _exists(jobs, job.id):
                return folder, _same(folder, job)
            _make(jobs, job.id, text if text.endswith("\n") else text + "\n", owner)
    except OSError as error:
        fix = "look at the path that is named; `primus-bootstrap apply hosts.yaml --phase scheduling` sets owners and modes right"
        raise PlanError(f"{root}: the job's folder cannot be made: {error}", fix=fix) from error
    return folder, True


def _user(job: Job) -> pwd.struct_passwd:
    """Return the account whose job it is."""
    me = pwd.getpwuid(os.geteuid())
    if job.user == me.pw_name:
        return me
    if os.geteuid():
        raise UsageError(f"user: the job is {job.user}'s, and this is {me.pw_name}", fix=f"run this as {job.user}, or as root")
    try:
        return pwd.getpwnam(job.user)
    except KeyError as error:
        raise UsageError(f"user: there is no account {job.user} here", fix="add it to users_groups_accounts, and apply") from error


def _exists(jobs: safe_files.Folder, name: str) -> bool:
    try:
        jobs.stat(name)
    except FileNotFoundError:
        return False
    return True


def _same(folder: JobFolder, job: Job) -> bool:
    """Return False, for nothing was made, where the job that is there is the same.

    Raises:
        UsageError: It is another one.
    """
    there = read_owned(folder.path.parent, job.id, ("job.json",))
    found = read_job(there.contents[0].decode("utf-8", "replace"), origin=str(folder.job_file))
    if there.owner.pw_name == job.user and found.request() == job.request():
        return False
    raise UsageError(f"{folder.path}: there is another job with this id", fix="choose another id")


def _make(jobs: safe_files.Folder, name: str, text: str, owner: pwd.struct_passwd) -> None:
    """Fill a folder under another name, hand it over, and give it its name: a kill leaves nothing that looks like a job."""
    hidden = f".{name}.{secrets.token_hex(4)}"
    mine, my_group = os.geteuid(), os.getegid()
    jobs.make_folder(hidden, owner=mine, group=my_group, mode=0o700)
    try:
        with jobs.folder(hidden, owner=mine) as made:
            for content, file in ((text, "job.json"), (secrets.token_hex(32) + "\n", "key")):
                made.write(file, content.encode(), mode=0o600, owner=owner.pw_uid, group=owner.pw_gid)
            for inner in _FOLDERS:
                made.make_folder(inner, owner=owner.pw_uid, group=owner.pw_gid, mode=0o755)
            os.fchown(made.descriptor, owner.pw_uid, owner.pw_gid)
        os.rename(hidden, name, src_dir_fd=jobs.descriptor, dst_dir_fd=jobs.descriptor)
    except OSError:
        shutil.rmtree(Path(jobs.path, hidden), ignore_errors=True)
        raise
