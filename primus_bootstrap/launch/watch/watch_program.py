"""`primus-cli watch`: the commands for jobs, called by the watcher's unit, the verbs `workload` and users.

primus-cli watch create  --root ROOT  < job.json
primus-cli watch run     --folder ROOT/ID [--every-s 2]
primus-cli watch show    --folder ROOT/ID [--json]
primus-cli watch log     --folder ROOT/ID --rank N [--lines N] [--follow]
primus-cli watch request --folder ROOT/ID cancel|resume
primus-cli watch owner   --folder ROOT/ID
primus-cli watch list    --root ROOT [--json]
primus-cli watch probe   NODE

Files in a job's folder belong to its user. Root changes to that account before it reads them.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import pwd
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import LockedError, PlanError, PrimusError, UsageError
from primus_bootstrap.launch import safe_files
from primus_bootstrap.launch.account import become
from primus_bootstrap.launch.untrusted import parse_json, printable
from primus_bootstrap.launch.watch import job_folder as folders
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import log_view
from primus_bootstrap.launch.watch.broker_client import SOCKET, Broker, NoAnswerError, RefusedError
from primus_bootstrap.launch.watch.job_folder import JobFolder
from primus_bootstrap.launch.watch.job_owner import NoSuchJobError, check_own_folder, owner_of
from primus_bootstrap.launch.watch.job_spec import DIRECT, JOB_ID, KUBERNETES
from primus_bootstrap.launch.watch.kube_broker import BrokeredCluster
from primus_bootstrap.launch.watch.loop import STALE_S, TICK_S, Watcher, ends_on_signals
from primus_bootstrap.launch.watch.targets.direct import DirectTarget
from primus_bootstrap.launch.watch.targets.kubernetes import KubernetesTarget
from primus_bootstrap.launch.watch.targets.slurm import SlurmTarget

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.targets import Target

log = logging.getLogger(__name__)

STATUS_SCHEMA, LIST_SCHEMA = "primus.job-status/1", "primus.job-list/1"
_EVENTS = 20
_EVENT_KEYS = {"time", "kind", "attempt", "host", "reason", "step"}
_EVENTS_BYTES = 1 << 16
_JOB_S, _LIST_S = 5.0, 60.0  # time limits of a list, for one job and for all
_LIST_BYTES, _SHOWN = 128 << 10, 200  # size limit of one user's full entries in a list; characters of a text beyond it
_PROBE_S = 12.0


def main(words: Sequence[str] | None = None) -> int:
    """Run primus-watch; return its exit code."""
    options = _parser().parse_args(list(sys.argv[1:] if words is None else words))
    try:
        return int(options.call(options))
    except PrimusError as error:
        sys.stderr.write(f"primus-watch: {error}\n")
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="primus-watch", description="Watches training jobs and restarts them; the state is in the job's folder."
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    create = verbs.add_parser("create", help="create a job's folder from job.json on standard input")
    create.add_argument("--root", type=Path, required=True, help="folder of all jobs, on shared storage")
    create.set_defaults(call=_create)
    run = verbs.add_parser("run", help="watch a job until its end")
    run.add_argument("--every-s", type=float, default=TICK_S, help=f"seconds between two observations ({TICK_S:.0f})")
    show = verbs.add_parser("show", help="show the state of a job")
    show.add_argument(
        "--events-from", type=int, metavar="BYTES", help="print the events from this offset of their file on, instead of the newest"
    )
    log_ = verbs.add_parser("log", help="print the end of a rank's log")
    log_.add_argument("--rank", type=int, default=0, help="the rank (0)")
    log_.add_argument("--lines", type=int, default=log_view.LINES, help=f"number of lines ({log_view.LINES})")
    log_.add_argument("--follow", action="store_true", help="continue until the job has ended")
    list_ = verbs.add_parser("list", help="list the jobs that you may read")
    list_.add_argument("--root", type=Path, required=True, help="folder of all jobs")
    request = verbs.add_parser("request", help="request that the watcher cancels or resumes the job")
    request.add_argument("what", choices=folders.REQUESTS)
    owner = verbs.add_parser("owner", help="print the account that owns the job's folder")
    for verb, call in ((run, _run), (show, _show), (log_, _log), (request, _request), (owner, _owner)):
        verb.add_argument("--folder", type=Path, required=True, help="the job's folder")
        verb.set_defaults(call=call)
    probe = verbs.add_parser("probe", help="print the health of a host of workload_node, through the broker")
    probe.add_argument("node", help="its name in hosts.yaml")
    probe.set_defaults(call=_probe)
    for verb in (run, probe):
        verb.add_argument("--broker", type=Path, default=SOCKET, help="the broker's socket")
    list_.set_defaults(call=_list)
    for verb in (show, list_):
        verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _create(options: argparse.Namespace) -> int:
    folder, changed = folders.create(options.root, sys.stdin.read())
    sys.stdout.write(json.dumps({"changed": changed, "folder": str(folder.path)}) + "\n")
    return 0


def _run(options: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    folder = JobFolder(options.folder)
    if _removed(folder):
        log.info("%s: the job's folder was removed; the watcher ends", folder.path)
        return 0
    check_own_folder(folder.path)
    job = _own_job(folder)
    try:
        with _lock_file(folder).open("w", encoding="utf-8") as file:
            _lock(folder, file)
            watcher = Watcher(job, folder, make_target(job, folder, Broker(options.broker)), options.every_s)
            with ends_on_signals(watcher):
                watcher.run()
    except OSError as error:
        fix = "free space, or repair the storage; systemd restarts the watcher, and the job continues meanwhile"
        raise PlanError(f"{folder.path}: the shared storage failed: {error}", fix=fix) from error
    return 0


def _own_job(folder: JobFolder) -> Job:
    """Return the job; it must belong to the account of this process."""
    job, me = folder.job(), _account(os.geteuid())
    if job.user != me:
        raise PlanError(f"{folder.job_file}: the job belongs to {job.user}, and this is {me}", fix="submit the job again")
    return job


def _lock(folder: JobFolder, file: IO[str]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise LockedError(f"{folder.path}: another watcher leads this job", fix="stop it; systemd restarts this one") from error


def _removed(folder: JobFolder) -> bool:
    """Return whether the job's folder was removed. If the storage is not mounted, the folder of all jobs is unreadable or empty."""
    try:
        return not folder.path.exists() and any(folder.path.parent.iterdir())
    except OSError:
        return False


def make_target(job: Job, folder: JobFolder, broker: Broker) -> Target:
    """Return the target that runs a job's attempts."""
    if job.target == KUBERNETES:
        document = parse_json(safe_files.read_regular(folder.job_file, max_bytes=folders.MAX_JOB_BYTES))
        return KubernetesTarget(job, folder, BrokeredCluster(job, document, broker))
    return DirectTarget(job, folder, broker) if job.target == DIRECT else SlurmTarget(job, folder)


def _lock_file(folder: JobFolder) -> Path:
    return folder.path / "watch.lock"


def _show(options: argparse.Namespace) -> int:
    _as_owner(options.folder)
    folder = JobFolder(options.folder)
    status = _status(folder)
    if options.events_from is not None:
        status["events"], status["events_end"] = events_from(folder.path / "events.jsonl", options.events_from)
    sys.stdout.write(json.dumps(status) + "\n" if options.json else _text(status))
    return 0


def _list(options: argparse.Namespace) -> int:
    try:
        names = safe_files.within(_LIST_S, lambda: sorted(path.name for path in options.root.iterdir() if JOB_ID.fullmatch(path.name)))
    except (OSError, TimeoutError) as error:
        reason = f"cannot be read: {error.strerror or error}" if not isinstance(error, FileNotFoundError) else "does not exist"
        raise PlanError(
            f"{options.root}, the folder of all jobs, {reason}",
            fix="mount the shared storage and create the folder: primus-bootstrap apply hosts.yaml --phase storage --phase scheduling",
        ) from error
    deadline = time.monotonic() + _LIST_S
    found = [item for name in names if (item := _list_item(options.root / name, min(_JOB_S, deadline - time.monotonic()))) is not None]
    found = _limit_sizes(found)
    if options.json:
        sys.stdout.write(json.dumps({"schema": LIST_SCHEMA, "jobs": found}) + "\n")
    else:
        sys.stdout.writelines(f"{_line(item)}\n" for item in found)
    return 0


def _limit_sizes(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shorten the entries of a user beyond the size limit, so that the files of one user cannot fill the whole answer."""
    sizes: dict[str, int] = {}
    limited = []
    for item in items:
        user = item["job"]["user"]
        sizes[user] = sizes.get(user, 0) + len(json.dumps(item))
        limited.append(item if sizes[user] <= _LIST_BYTES else _shortened(item))
    return limited


def _shortened(item: dict[str, Any]) -> dict[str, Any]:
    """Return an entry without hosts and attempts, and with the beginning of each text."""
    job = {key: value[:_SHOWN] for key, value in item["job"].items()}
    state = item["state"] and {
        key: value[:_SHOWN] if isinstance(value, str) else value
        for key, value in item["state"].items()
        if isinstance(value, (str, int, float, type(None)))
    }
    return {**item, "job": job, "state": state}


def _list_item(path: Path, limit_s: float) -> dict[str, Any] | None:
    """Return a job for a list, read as its owner in a separate process; None if this account may not read it, or it was removed."""

    def read() -> dict[str, Any] | None:
        _as_owner(path)
        folder = JobFolder(path)
        with suppress(FileNotFoundError, PermissionError):  # removed meanwhile, or of another account
            folder.job_file.lstat()
            if os.access(path, os.X_OK):
                return _listed(folder)
        return None

    if limit_s <= 0:
        return _unread(path.name, "", f"{path}: the list reached its time limit before this job")
    found: dict[str, Any] | None
    try:
        found = safe_files.within(limit_s, read)
    except (PrimusError, OSError, TimeoutError) as error:
        return None if isinstance(error, NoSuchJobError) else _unread(path.name, "", f"{path}: cannot be read: {error}")
    return found


def _as_owner(path: Path) -> None:
    """Change from root to the owner of a job's folder: its files belong to a user."""
    if os.geteuid() == 0:
        become(owner_of(path.parent, path.name))


def _log(options: argparse.Namespace) -> int:
    _as_owner(options.folder)
    return log_view.show(JobFolder(options.folder), options.rank, lines=options.lines, follow=options.follow)


def _owner(options: argparse.Namespace) -> int:
    sys.stdout.write(owner_of(options.folder.parent, options.folder.name).pw_name + "\n")
    return 0


def _probe(options: argparse.Namespace) -> int:
    try:
        answer = Broker(options.broker).ask_node(options.node, {"verb": "probe"}, timeout_s=_PROBE_S)
    except (NoAnswerError, RefusedError) as error:
        raise PlanError(f"{options.node}: {error}", fix="apply the phase scheduling to this host and to that one") from error
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def _request(options: argparse.Namespace) -> int:
    _as_owner(options.folder)
    folder = JobFolder(options.folder)
    folder.job()
    folder.request(options.what)
    sys.stdout.write(f"requested {options.what}; the watcher applies it within seconds\n")
    return 0


def _status(folder: JobFolder, *, events: int = _EVENTS) -> dict[str, Any]:
    """Return a job with its state and newest events, as plain data.

    Raises:
        UsageError: job.json is missing or invalid, or names another account than the owner of the folder.
    """
    # One read only: its owner may replace the file at any time.
    job, text = folder.read()
    owner = folder.path.stat().st_uid
    if owner and _account(owner) != job.user:
        raise UsageError(
            f"{folder.job_file}: the job belongs to {job.user}, and its folder to {_account(owner)}", fix="do not change the user of a job"
        )
    state = folder.state()
    live = state is not None and state.phase not in states.TERMINAL
    return {
        "schema": STATUS_SCHEMA,
        "job": parse_json(text),
        "state": None if state is None else state.to_json(),
        "stale": bool(live and state is not None and time.time() - state.updated > STALE_S),
        "events": _events(folder.path / "events.jsonl")[-events:] if events else [],
    }


def _listed(folder: JobFolder) -> dict[str, Any]:
    """Return a job for a list: without events, and with its newest attempt only. If it cannot be read, the reason is included."""
    try:
        status = _status(folder, events=0)
        _line(status)  # a job that cannot be printed must not end the list
    except Exception as error:  # noqa: BLE001 - a user's files must not hide the jobs of others
        return _unread(folder.path.name, _account(folder.path.stat().st_uid), str(error))
    # Only what a list shows: job.json and state.json may have megabytes.
    status["job"] = {key: status["job"][key] for key in ("id", "name", "user", "target")}
    if status["state"]:
        status["state"]["attempts"] = status["state"]["attempts"][-1:]
    return status


def _unread(name: str, user: str, problem: str) -> dict[str, Any]:
    job = {"id": name, "name": name[:-7], "user": user, "target": ""}
    return {"schema": STATUS_SCHEMA, "job": job, "state": None, "stale": False, "events": [], "problem": problem}


def _account(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _events(path: Path) -> list[Any]:
    """Return the newest events."""
    try:
        return _parsed(safe_files.read_tail(path, _EVENTS_BYTES))[-_EVENTS:]
    except OSError:
        return []


def events_from(path: Path, offset: int) -> tuple[list[Any], int]:
    """Return the events from an offset of the file on, as many as one answer contains, and the offset after them."""
    piece = log_view.read_piece(path, max(0, offset))
    if piece is None:
        return [], offset
    whole = piece.data.rfind(b"\n") + 1
    if not whole and len(piece.data) == log_view.PIECE_BYTES:
        whole = len(piece.data)  # no event is that long: skip what a user wrote there
    return _parsed(piece.data[:whole]), piece.offset + whole


def _parsed(lines: bytes) -> list[Any]:
    """Return the events in these lines; invalid lines are skipped, because the file belongs to the job's user."""
    events = []
    for line in lines.decode("utf-8", "replace").split("\n"):
        with suppress(ValueError):
            event = parse_json(line)
            if isinstance(event, dict) and event.keys() >= _EVENT_KEYS and isinstance(event["time"], (int, float)):
                events.append(event)
    return events


def _line(status: dict[str, Any]) -> str:
    job, problem = status["job"], status.get("problem", "")
    unread = {
        "phase": "unknown" if problem else states.PENDING,
        "step": None,
        "attempt": 0,
        "reason": problem or "no watcher has started yet",
    }
    state = status["state"] or unread
    step = "-" if state["step"] is None else state["step"]
    stale = " (its watcher does not run)" if status["stale"] else ""
    return printable(
        f"{job['id']}  {job['user']}  {job['target']}  {state['phase']}{stale}  attempt {state['attempt']}  step {step}  {state['reason']}"
    )


def _text(status: dict[str, Any]) -> str:
    lines = [_line(status)]
    state = status["state"] or {}
    lines += [f"  fix: {state['fix']}"] if state.get("fix") else []
    lines += [f"  checkpoint: step {state['checkpoint']}"] if state.get("checkpoint") is not None else []
    lines += [f"  excludes {item['host']}: {item['reason']}" for item in state.get("excluded", ())]
    for event in status["events"]:
        when = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(event["time"]))
        words = [event["kind"], event["host"], event["reason"], "" if event["step"] is None else f"step {event['step']}"]
        lines.append(f"  {when}  {'  '.join(word for word in words if word)}")
    return "\n".join(map(printable, lines)) + "\n"


if __name__ == "__main__":
    sys.exit(main())
