"""Training jobs on the service hosts: shell commands for `primus-cli watch`, and the status that it prints."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.launch.untrusted import parse_json, printable_data
from primus_bootstrap.launch.watch.job_owner import NoSuchJobError
from primus_bootstrap.launch.watch.job_state import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Mapping

# Exit code of `primus-cli watch` for an unknown job.
NO_SUCH_JOB = NoSuchJobError.exit_code
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The last state that a watcher wrote of its job."""

    id: str
    name: str
    user: str
    target: str
    phase: str  # the phase; `submitted` before a watcher has started, `unknown` if the job's files cannot be read
    reason: str
    fix: str
    stale: bool  # the watcher has not written for longer than a running one would, so the state may be old
    attempt: int
    restarts: int
    step: int | None
    checkpoint: int | None
    hosts: tuple[str, ...]
    excluded: tuple[str, ...]
    since: float  # start of the phase, in seconds since the epoch; 0 if there is none
    updated: float  # when the state was written, in seconds since the epoch; 0 if there is none
    attempts: tuple[Mapping[str, Any], ...]
    events: tuple[Mapping[str, Any], ...]  # the events that were requested
    events_end: int = 0  # where the next events begin, in bytes

    @property
    def ended(self) -> bool:
        """Whether the job is in a terminal phase."""
        return self.phase in TERMINAL


def read_status(data: Mapping[str, Any]) -> JobStatus:
    """Read one job, as `primus-cli watch show --json` prints it."""
    data = printable_data(data)
    job, state = data["job"], data.get("state") or {}
    return JobStatus(
        id=job["id"],
        name=job["name"],
        user=job["user"],
        target=job["target"],
        phase=state.get("phase", "unknown" if data.get("problem") else "submitted"),
        reason=state.get("reason", "" if state else data.get("problem") or "no watcher has started yet"),
        fix=state.get("fix", ""),
        stale=bool(data.get("stale")),
        attempt=state.get("attempt", 0),
        restarts=state.get("restarts", 0),
        step=state.get("step"),
        checkpoint=state.get("checkpoint"),
        hosts=tuple(host["name"] for host in state.get("hosts") or ()),
        excluded=tuple(entry["host"] for entry in state.get("excluded") or ()),
        since=state.get("since") or 0.0,
        updated=state.get("updated") or 0.0,
        attempts=tuple(state.get("attempts") or ()),
        events=tuple(data.get("events") or ()),
        events_end=int(data.get("events_end") or 0),
    )


def read_show(text: str) -> JobStatus:
    """Read the output of `primus-cli watch show --json`.

    Raises:
        RunError: It cannot be read.
    """
    try:
        return read_status(_last_line(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(text, error) from error


def read_list(text: str) -> tuple[JobStatus, ...]:
    """Read the output of `primus-cli watch list --json`.

    Raises:
        RunError: It cannot be read.
    """
    try:
        return tuple(_listed(data) for data in _last_line(text)["jobs"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(text, error) from error


def _last_line(text: str) -> Any:
    """Return the answer, which is the last line: a login script may print text before it."""
    return parse_json(text.strip().rpartition("\n")[2])


def _unreadable(text: str, error: Exception) -> RunError:
    what = f"the answer of primus-cli watch cannot be read ({error!r}): {text.strip()[-_SHOWN_CHARS:]!r}"
    return RunError(what, fix="install this version on the service hosts: primus-bootstrap apply hosts.yaml --phase gpu --phase scheduling")


def _listed(data: Mapping[str, Any]) -> JobStatus:
    """Read one job of a list. Users can write their jobs' states: an invalid one must not hide the other jobs."""
    try:
        return read_status(data)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        job = {key: str(data["job"][key]) for key in ("id", "name", "user", "target")}
        return read_status({"job": job, "problem": f"its state cannot be read: {error!r}"})


@dataclass(frozen=True, slots=True)
class JobCommands:
    """The shell commands for jobs on a service host."""

    folder: str  # the folder of all jobs
    program: str  # the path of primus-cli

    def list_all(self) -> str:
        """Return the command that prints all jobs."""
        return self._watch("list", "--root", self.folder, "--json")

    def show(self, job: str, *, events_from: int | None = None) -> str:
        """Return the command that prints one job, with its newest events or with those from a byte offset on."""
        offset = () if events_from is None else ("--events-from", str(events_from))
        return self._watch("show", "--folder", self._job_folder(job), "--json", *offset)

    def log(self, job: str, rank: int, *, lines: int, follow: bool) -> str:
        """Return the command that prints the end of a rank's log; with `follow` it continues until the job has ended."""
        words = ("--rank", str(rank), "--lines", str(lines), *(("--follow",) if follow else ()))
        return f"exec {self._watch('log', '--folder', self._job_folder(job), *words)}"

    def cancel(self, job: str, *, start_watcher: bool = False) -> str:
        """Return the command that requests cancellation; `start_watcher` is for a job whose watcher does not run."""
        return self._request_and_watch(job, "cancel") if start_watcher else self._request(job, "cancel")

    def resume(self, job: str) -> str:
        """Return the command that requests continuation, and starts a watcher on this host, now and at boot."""
        return self._request_and_watch(job, "resume")

    def _request_and_watch(self, job: str, request: str) -> str:
        unit = f"primus-watch@{job}.service"
        drop_in = f"/etc/systemd/system/{unit}.d"
        steps = (
            # The program determines the owner from the folder itself, not from a file in it.
            f"owner=$({self._watch('owner', '--folder', self._job_folder(job))})",
            self._request(job, request),
            f"mkdir -p {drop_in}",
            f"""printf '[Service]\\nUser=%s\\n' "$owner" > {drop_in}/user.conf""",
            "systemctl daemon-reload",
            f"systemctl --quiet enable {unit}",
            # A running watcher that is about to end would not see the request.
            f"systemctl restart {unit}",
        )
        return " && ".join(steps)

    def _request(self, job: str, request: str) -> str:
        return self._watch("request", "--folder", self._job_folder(job), request)

    def _job_folder(self, job: str) -> str:
        return f"{self.folder}/{job}"

    def _watch(self, *words: str) -> str:
        return shlex.join(("/usr/bin/python3", "-I", self.program, "watch", *words))
