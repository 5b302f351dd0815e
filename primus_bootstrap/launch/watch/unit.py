"""The program `unit` ("primus-unit"): starts, looks at and stops the units of jobs on this host, as root, for the watcher.

One JSON line comes in on standard input, one goes out. It takes no arguments, and no word of a request is a word of a command: who owns the
job's folder decides whose processes run, job.json decides what runs, and only who can read the folder's key is listened to.
"""

from __future__ import annotations

import argparse
import fcntl
import hmac
import json
import os
import pwd
import re
import select
import socket
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.errors import LaunchError, PlanError, UsageError
from primus_bootstrap.launch.gpus import MIXED, NONE, OK
from primus_bootstrap.launch.own_program import own_command
from primus_bootstrap.launch.watch.attempt import read_boot_id
from primus_bootstrap.launch.watch.spec import JOB_ID, read_job
from primus_bootstrap.launch.watch.ssh import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.watch.spec import Job

SITE = Path("/etc/primus/workload.json")
SITE_SCHEMA = "primus.workload-site/1"
QUARANTINE = Path("/var/lib/primus/quarantine.json")  # written by the role quarantine
_GPUS = Path("/etc/primus/gpu.json")
_GATE = Path("/usr/local/lib/primus/health_gate.py")
_LOCK, _LOCK_S = Path("/run/primus-unit.lock"), 10.0
_READ_S, _COMMAND_S, _OLDER_GONE_S = 10.0, 10.0, 12.0
_LARGEST_BYTES = 1 << 20
_UNIT = re.compile(r"primus-job-(?P<job>" + JOB_ID.pattern + r")-(?P<attempt>[0-9]{1,6})\.service")
_ACTIVE = ("active", "activating", "deactivating", "reloading")
_AFTER_GRACE_S = 30
_APPLY = "apply the phase scheduling to this host"


@dataclass(frozen=True)
class Site:
    """What the host's administrator says: where jobs lie, whose jobs may run, further properties of their units."""

    folder: Path
    min_uid: int
    properties: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """A request about one attempt of one job that is entitled to it."""

    job: Job
    folder: Path
    owner: pwd.struct_passwd
    attempt: int

    @property
    def unit(self) -> str:
        """The name of the attempt's unit."""
        return f"{self.job.unit(self.attempt)}.service"


def main(words: Sequence[str]) -> int:
    """Answer one request; return 0, the answer says the rest."""
    parser = argparse.ArgumentParser(prog="primus-cli unit", description="Units of jobs on this host; for the watcher.")
    parser.add_argument("--site", type=Path, default=SITE, help="the administrator's settings")
    options = parser.parse_args(list(words))
    try:
        answer = {"ok": True, **answer_request(_read_request(), _site(options.site))}
    except LaunchError as error:
        answer = {"ok": False, "error": error.what, "fix": error.fix}
    sys.stdout.write(json.dumps({"schema": SCHEMA, **answer}) + "\n")
    return 0


def answer_request(request: dict[str, Any], site: Site) -> dict[str, Any]:
    """Do what a request asks for; return the answer.

    Raises:
        LaunchError: It is wrong, not entitled, or cannot be done.
    """
    verb = request.get("verb")
    if request.get("schema") != SCHEMA or verb not in ("probe", "start", "status", "stop"):
        raise UsageError("this is no request that is known here", fix="have the same version of primus-cli on all hosts")
    if verb == "probe":
        return _probe()
    asked = _entitled(request, site)
    if verb == "start":
        rank = request.get("rank")
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < asked.job.nodes:
            raise UsageError(f"rank: {rank!r} is no node of the job", fix="have the same version of primus-cli on all hosts")
        return _start(asked, site, rank)
    if verb == "stop":
        return _stop(asked, force=request.get("force") is True)
    return {"state": "running" if _active(asked.unit) else "absent", "boot_id": read_boot_id()}


def _read_request() -> dict[str, Any]:
    """Read one line, in time."""
    taken = b""
    deadline = time.monotonic() + _READ_S
    while b"\n" not in taken and len(taken) < _LARGEST_BYTES:
        ready, _, _ = select.select([0], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(0, 1 << 16) if ready else b""
        if not piece:
            break
        taken += piece
    try:
        return dict(json.loads(taken))
    except (ValueError, TypeError) as error:
        raise UsageError("the request is no JSON line", fix="let the watcher ask") from error


def _site(path: Path) -> Site:
    try:
        data = json.loads(path.read_text("utf-8"))
        properties = tuple(str(item) for item in data.get("properties", ()))
        schema, site = data["schema"], Site(Path(data["folder"]), int(data.get("min_uid", 1000)), properties)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{path}: cannot be used: {error}", fix=_APPLY) from error
    if schema != SITE_SCHEMA:
        raise PlanError(f"{path}: schema {schema!r}; this program reads {SITE_SCHEMA}", fix=_APPLY)
    return site


def _entitled(request: dict[str, Any], site: Site) -> Asked:
    """Return the job that a request is about, once it has shown the key of the job's folder.

    Everything below that folder is the user's: it is read as that user, and never as root.
    """
    job_id, attempt, key = request.get("job"), request.get("attempt"), request.get("key")
    well_formed = isinstance(job_id, str) and JOB_ID.fullmatch(job_id) and isinstance(attempt, int) and 0 < attempt < 10**6
    if not well_formed or not isinstance(key, str) or not key or isinstance(attempt, bool):
        raise UsageError("the request names no job, attempt and key", fix="let the watcher ask")
    folder = site.folder / str(job_id)
    try:
        found = folder.lstat()
        owner = pwd.getpwuid(found.st_uid)
    except (OSError, KeyError) as error:
        raise PlanError(f"{folder}: cannot be looked at: {error}", fix="mount the shared storage here, and have its users here") from error
    if not stat.S_ISDIR(found.st_mode) or owner.pw_uid < site.min_uid:
        raise UsageError(f"{folder}: is no folder of a user's", fix=f"jobs are of users with a number from {site.min_uid} on")
    if not hmac.compare_digest(_read_as(owner, folder / "key").strip(), key.encode()):
        raise UsageError(f"{folder}: the key is not that of the job", fix="let the job's own watcher ask")
    job = read_job(_read_as(owner, folder / "job.json").decode("utf-8", "replace"), origin=str(folder / "job.json"))
    if job.id != job_id or job.user != owner.pw_name:
        raise UsageError(f"{folder}: holds the job {job.id} of {job.user}", fix="submit the job again")
    return Asked(job, folder, owner, int(attempt or 0))


def _read_as(owner: pwd.struct_passwd, path: Path) -> bytes:
    """Read a file with the rights of its owner: a link to a file of root's leads nowhere, and storage that hangs does not hang us."""
    become: dict[str, Any] = {}
    if os.geteuid() != owner.pw_uid:
        become = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    words = ["head", "--bytes", str(_LARGEST_BYTES), "--", str(path)]
    try:
        done = subprocess.run(words, capture_output=True, check=True, timeout=_READ_S, stdin=subprocess.DEVNULL, cwd="/", **become)
    except (OSError, subprocess.SubprocessError) as error:
        raise PlanError(f"{path}: cannot be read as {owner.pw_name}: {error}", fix="look at the shared storage on this host") from error
    return bytes(done.stdout)


def _probe() -> dict[str, Any]:
    """Return what a host says of itself before it takes part."""
    health = {"verdict": "unknown", "written": 0.0, "reason": "this host has no health checks (role node_health)"}
    if _GATE.exists():
        done = _run([sys.executable, "-I", str(_GATE), "read", "--json"], check=False)
        try:
            health = dict(json.loads(done))
        except (ValueError, TypeError):
            health["reason"] = "the health gate gave no answer"
    held = _quarantine()
    if held:
        health.update(verdict="fail", reason=held)
    units = [name for name in _units("*") if _active(name)]
    told = {"health": health.get("verdict"), "written": health.get("written"), "reason": health.get("reason")}
    return {"node": socket.gethostname(), "boot_id": read_boot_id(), "units": units, "gpus": _gpus(), "now": time.time(), **told}


def _quarantine(path: Path = QUARANTINE) -> str:
    """Say by whom this host was taken out of service, and why; empty where it was not."""
    try:
        record = json.loads(path.read_text("utf-8"))
        return f"in quarantine by {record['owner']}: {record['reason']}"
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"in quarantine; {path} cannot be read: {error}"


def _gpus() -> int | None:
    """Return how many GPUs the role gpu_env found here; None where that is unknown."""
    try:
        data = json.loads(_GPUS.read_text("utf-8"))
        return int(data["count"]) if data["verdict"] in (OK, MIXED, NONE) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _start(asked: Asked, site: Site, rank: int) -> dict[str, Any]:
    """Start the attempt's unit, once nothing of an older one runs here; one start at a time: two jobs must not both find it free."""
    with _LOCK.open("w", encoding="utf-8") as held:
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise PlanError("another job is being started here", fix="nothing; the watcher asks again") from error
            time.sleep(0.2)
        return _start_alone(asked, site, rank)


def _start_alone(asked: Asked, site: Site, rank: int) -> dict[str, Any]:
    if _active(asked.unit):
        return {"state": "running", "boot_id": read_boot_id()}
    mine = {name: int(match["attempt"]) for name in _units("*") if (match := _UNIT.fullmatch(name)) and match["job"] == asked.job.id}
    if any(number > asked.attempt for number in mine.values()):
        raise UsageError(f"attempt {asked.attempt} is over: a newer one is here", fix="let the job's own watcher ask")
    for name in mine:
        _end_older(name)
    others = [name for name in _units("*") if name not in mine and _active(name)]
    if others and asked.job.gpus_per_node:
        raise PlanError(f"{', '.join(others)} runs here, and GPUs are not shared", fix="cancel it, or take another host")
    inner = (*own_command(sys.executable), "attempt", "--folder", str(asked.folder), "--attempt", str(asked.attempt), "--rank", str(rank))
    owner = asked.owner
    properties = (
        "Restart=no",
        "KillMode=mixed",  # the launcher passes SIGTERM on; what is left at the end of the time is killed as a whole
        f"TimeoutStopSec={asked.job.grace_s + _AFTER_GRACE_S}",
        "OOMPolicy=continue",  # the launcher says which rank was killed
        f"WorkingDirectory=-{owner.pw_dir}",
        *site.properties,
    )
    words = [
        "systemd-run",
        "--quiet",
        "--collect",
        "--service-type=exec",
        f"--unit={asked.unit}",
        f"--uid={owner.pw_uid}",
        f"--gid={owner.pw_gid}",
    ]
    _run(
        [*words, f"--description=job {asked.job.id}, attempt {asked.attempt}", *(f"--property={item}" for item in properties), "--", *inner]
    )
    return {"state": "started", "boot_id": read_boot_id()}


def _stop(asked: Asked, *, force: bool) -> dict[str, Any]:
    if _active(asked.unit):
        if force:
            _run(["systemctl", "kill", "--kill-who=all", "--signal=SIGKILL", asked.unit], check=False)
        _run(["systemctl", "stop", "--no-block", asked.unit], check=False)
    return {"state": "running" if _active(asked.unit) else "absent", "boot_id": read_boot_id()}


def _end_older(name: str) -> None:
    """End a unit of an older attempt, which has no lease any more, at once."""
    _run(["systemctl", "kill", "--kill-who=all", "--signal=SIGKILL", name], check=False)
    deadline = time.monotonic() + _OLDER_GONE_S
    while _active(name):
        if time.monotonic() > deadline:
            raise PlanError(f"{name} of an older attempt cannot be ended", fix="look for processes in state D on this host; reboot it")
        time.sleep(0.2)


def _units(job: str) -> list[str]:
    """Return the names of units of jobs that systemd knows of here."""
    pattern = f"primus-job-{job}.service"
    listed = _run(["systemctl", "list-units", "--all", "--plain", "--no-legend", "--full", "--no-pager", pattern]).splitlines()
    names = [line.split()[0] for line in listed if line.strip()]
    return [name for name in names if _UNIT.fullmatch(name)]


def _active(name: str) -> bool:
    return _run(["systemctl", "show", name, "--property=ActiveState", "--value"]).strip() in _ACTIVE


def _run(words: list[str], *, check: bool = True) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_COMMAND_S, stdin=subprocess.DEVNULL, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlanError(f"{words[0]}: {error}", fix="look at systemd on this host") from error
    if check and done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise PlanError(f"{words[0]} ended with exit code {done.returncode}: {said}", fix="see journalctl on this host")
    return done.stdout
