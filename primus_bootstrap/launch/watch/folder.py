"""A job's folder on shared storage: where everything lies, how it is made, and the small files that others drop into it."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.errors import PlanError, UsageError
from primus_bootstrap.launch.files import replace_text
from primus_bootstrap.launch.watch import state as states
from primus_bootstrap.launch.watch.spec import Job, read_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CANCEL, RESUME = "cancel", "resume"
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
        try:
            text = self.job_file.read_text("utf-8")
        except OSError as error:
            raise UsageError(f"{self.job_file}: cannot be read: {error}", fix="give the folder of a job that you may read") from error
        job = read_job(text, origin=str(self.job_file))
        if job.id != self.path.name:
            raise UsageError(
                f"{self.job_file}: the job is {job.id}, and its folder {self.path.name}", fix="do not move or copy job folders"
            )
        return job

    def state(self) -> states.State | None:
        """Read state.json; None before the watcher has written one."""
        return states.load(self.state_file)

    def key(self) -> str:
        """Return the proof that a request comes from somebody who may read this folder."""
        try:
            return (self.path / "key").read_text("utf-8").strip()
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
        """Add a line to a file of JSON lines; a line that a crash left unfinished is ended first."""
        path = self.path / name
        line = json.dumps(record) + "\n"
        with path.open("ab+") as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(line.encode())

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

    Raises:
        UsageError: The job is wrong, another one has its id, or it names another user than the one who calls.
        PlanError: The folder cannot be made.
    """
    job = read_job(text, origin="job.json")
    me = pwd.getpwuid(os.geteuid()).pw_name
    if job.user != me:
        raise UsageError(f"user: the job is {job.user}'s, and this is {me}", fix=f"run this as {job.user}")
    folder = JobFolder(root / job.id)
    if folder.path.exists():
        if folder.job().asked_for() == job.asked_for():
            return folder, False
        raise UsageError(f"{folder.path}: there is another job with this id", fix="choose another id")
    temporary = None
    try:
        temporary = Path(tempfile.mkdtemp(dir=root, prefix=f".{job.id}."))
        for name in _FOLDERS:
            (temporary / name).mkdir()
        replace_text(temporary / "job.json", text if text.endswith("\n") else text + "\n", mode=0o600)
        replace_text(temporary / "key", secrets.token_hex(32) + "\n", mode=0o600)
        temporary.rename(folder.path)
    except OSError as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        raise PlanError(
            f"{root}: the job's folder cannot be made: {error}", fix="have a folder on shared storage that users may write to"
        ) from error
    return folder, True
