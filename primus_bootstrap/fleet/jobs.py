"""Ask a service host about the training jobs that it keeps, and hand requests to their watchers: shell lines out, values back."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.untrusted import parse_json, printable_data
from primus_bootstrap.launch.watch.job_owner import NoSuchJobError
from primus_bootstrap.launch.watch.job_state import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Mapping

# The exit code of `primus-cli watch` for a job that there is not.
NO_SUCH_JOB = NoSuchJobError.exit_code


@dataclass(frozen=True, slots=True)
class JobStore:
    """Where jobs are kept: their folder, and the program that reads it."""

    folder: str
    program: str

    def job(self, job: str) -> str:
        """Return a job's folder."""
        return f"{self.folder}/{job}"


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its watcher last wrote it down.

    `phase` is the watcher's word, `submitted` where no watcher has taken it up yet. `stale` means that no watcher has written for longer
    than one does that lives: what is shown may be old. A job whose files cannot be read is `unknown`, never left out. Times are seconds
    since the epoch, 0 where there is none. `events_end` is where the next events begin.
    """

    id: str
    name: str
    user: str
    target: str
    phase: str
    reason: str
    fix: str
    stale: bool
    attempt: int
    restarts: int
    step: int | None
    checkpoint: int | None
    hosts: tuple[str, ...]
    excluded: tuple[str, ...]
    since: float
    updated: float
    attempts: tuple[Mapping[str, Any], ...]
    events: tuple[Mapping[str, Any], ...]
    events_end: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing goes on any more."""
        return self.phase in TERMINAL

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return asdict(self)


def read_job(data: Mapping[str, Any]) -> Job:
    """Read one job as `primus-cli watch show --json` prints it."""
    data = printable_data(data)
    job, state = data["job"], data.get("state") or {}
    return Job(
        id=job["id"],
        name=job["name"],
        user=job["user"],
        target=job["target"],
        phase=state.get("phase", "unknown" if data.get("problem") else "submitted"),
        reason=state.get("reason", "" if state else data.get("problem") or "no watcher has taken it up yet"),
        fix=state.get("fix", ""),
        stale=bool(data.get("stale")),
        attempt=state.get("attempt", 0),
        restarts=state.get("restarts", 0),
        step=state.get("step"),
        checkpoint=state.get("checkpoint"),
        hosts=tuple(host["name"] for host in state.get("hosts") or ()),
        excluded=tuple(one["host"] for one in state.get("excluded") or ()),
        since=state.get("since") or 0.0,
        updated=state.get("updated") or 0.0,
        attempts=tuple(state.get("attempts") or ()),
        events=tuple(data.get("events") or ()),
        events_end=int(data.get("events_end") or 0),
    )


def read_list(text: str) -> tuple[Job, ...]:
    """Read what `primus-cli watch list --json` prints."""
    return tuple(_listed(one) for one in parse_json(text)["jobs"])


def _listed(data: Mapping[str, Any]) -> Job:
    """Read one job of a list; a state that is none, which its user can write, keeps nobody else's job from being shown."""
    try:
        return read_job(data)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        job = {key: str(data["job"][key]) for key in ("id", "name", "user", "target")}
        return read_job({"job": job, "problem": f"its state cannot be read: {error!r}"})


def list_line(place: JobStore) -> str:
    """Return the line that prints every job."""
    return _watch(place, "list", "--root", place.folder, "--json")


def show_line(place: JobStore, job: str, *, events_from: int | None = None) -> str:
    """Return the line that prints one job with its newest events, or with those from `events_from` on: 0, or `events_end` of the last."""
    more = () if events_from is None else ("--events-from", str(events_from))
    return _watch(place, "show", "--folder", place.job(job), "--json", *more)


def cancel_line(place: JobStore, job: str, *, unwatched: bool = False) -> str:
    """Return the line that asks a job's watcher to stop it; an unwatched job gets a watcher on this host that does."""
    return _kept_line(place, job, "cancel") if unwatched else _request(place, job, "cancel")


def resume_line(place: JobStore, job: str) -> str:
    """Return the line that asks for a job to go on, and has a watcher for it on this host, now and at boot."""
    return _kept_line(place, job, "resume")


def _kept_line(place: JobStore, job: str, what: str) -> str:
    unit = f"primus-watch@{job}.service"
    drop_in = f"/etc/systemd/system/{unit}.d"
    steps = (
        # The owner of the folder, as the program has seen it; nothing in the folder is asked.
        f"owner=$({_watch(place, 'owner', '--folder', place.job(job))})",
        _request(place, job, what),
        f"mkdir -p {drop_in}",
        f"""printf '[Service]\\nUser=%s\\n' "$owner" > {drop_in}/user.conf""",
        "systemctl daemon-reload",
        # Started anew: one that is about to end would not see the request any more.
        f"systemctl --quiet enable {unit}",
        f"systemctl restart {unit}",
    )
    return " && ".join(steps)


def log_line(place: JobStore, job: str, rank: int, *, lines: int, follow: bool) -> str:
    """Return the line that prints the end of a rank's log; with `follow` it goes on until the job has come to its end."""
    words = ("log", "--folder", place.job(job), "--rank", str(rank), "--lines", str(lines), *(("--follow",) if follow else ()))
    return f"exec {_watch(place, *words)}"


def _request(place: JobStore, job: str, what: str) -> str:
    return _watch(place, "request", "--folder", place.job(job), what)


def _watch(place: JobStore, *words: str) -> str:
    return shlex.join(("/usr/bin/python3", "-I", place.program, "watch", *words))
