"""The program `unit` ("primus-unit"): starts, looks at and stops the units of jobs on this host, as root, for the watchers' broker.

One JSON line comes in on standard input, one goes out, and no word of a request is a word of a command. The owner of the job's folder
decides whose processes run: the folder is opened once, and everything in it is read through that descriptor with its owner's rights. The
owner must be the account that the broker names, and one that root has named as allowed to have jobs. Refusals go to the system log.
"""

from __future__ import annotations

import argparse
import fcntl
import hmac
import json
import os
import re
import select
import socket
import sys
import syslog
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.errors import PlanError, PrimusError, UsageError
from primus_bootstrap.launch.detect.gpus import MIXED, NONE, OK
from primus_bootstrap.launch.runtimes.self_exec import own_command
from primus_bootstrap.launch.safe_files import open_lock
from primus_bootstrap.launch.untrusted import parse_json
from primus_bootstrap.launch.watch.attempt import read_boot_id
from primus_bootstrap.launch.watch.job_owner import read_owned
from primus_bootstrap.launch.watch.job_spec import JOB_ID, read_job
from primus_bootstrap.launch.watch.ssh import SCHEMA

if TYPE_CHECKING:
    import pwd
    from collections.abc import Sequence

    from primus_bootstrap.launch.watch.job_spec import Job

SITE = Path("/etc/primus/workload.json")
SITE_SCHEMA = "primus.workload-site/2"
# Written by earlier releases, without accounts: jobs that run are looked at and stopped, and none is started.
_OLD_SITE_SCHEMA = "primus.workload-site/1"
QUARANTINE = Path("/var/lib/primus/quarantine.json")  # written by the role quarantine
_GPUS = Path("/etc/primus/gpu.json")
_GATE = Path("/usr/local/lib/primus/health_gate.py")
_LOCK, _LOCK_S = Path("/run/primus-unit.lock"), 10.0
_READ_S, _COMMAND_S, _OLDER_GONE_S = 10.0, 10.0, 12.0
_SUDO = "/usr/bin/sudo"
_LARGEST_BYTES = 1 << 20
_UNIT = re.compile(r"primus-job-(?P<job>" + JOB_ID.pattern + r")-(?P<attempt>[0-9]{1,6})\.service")
_ACTIVE = ("active", "activating", "deactivating", "reloading")
_AFTER_GRACE_S = 30
_APPLY = "apply the phase scheduling to this host"


@dataclass(frozen=True)
class HostRules:
    """What the host's administrator has written: where jobs lie, which accounts may have jobs, further properties of their units.

    `refuse_sudo` refuses accounts that sudo gives any right here, whatever `accounts` says. `accounts` is None where this host has the
    settings of an earlier release.
    """

    folder: Path
    min_uid: int
    properties: tuple[str, ...]
    accounts: tuple[str, ...] | None = None
    refuse_sudo: bool = True


@dataclass(frozen=True)
class UnitRequest:
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
    except PrimusError as error:
        syslog.openlog("primus-unit", syslog.LOG_PID, syslog.LOG_AUTHPRIV)
        syslog.syslog(syslog.LOG_WARNING, f"refused: {error.what}")
        answer = {"ok": False, "error": error.what, "fix": error.fix}
    sys.stdout.write(json.dumps({"schema": SCHEMA, **answer}) + "\n")
    return 0


def answer_request(request: dict[str, Any], site: HostRules) -> dict[str, Any]:
    """Do what a request asks for; return the answer.

    Raises:
        PrimusError: It is wrong, not entitled, or cannot be done.
    """
    verb = request.get("verb")
    if request.get("schema") != SCHEMA or verb not in ("probe", "start", "status", "stop"):
        raise UsageError("this is no request that is known here", fix="have the same version of primus-cli on all hosts")
    if verb == "probe":
        return _probe()
    asked = _entitled(request, site)
    if verb == "start":
        _may_start(asked.owner, site)
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
        return dict(parse_json(taken))
    except (ValueError, TypeError) as error:
        raise UsageError("the request is no JSON line", fix="let the watcher ask") from error


def _site(path: Path) -> HostRules:
    try:
        data = parse_json(path.read_text("utf-8"))
        properties = tuple(str(item) for item in data.get("properties", ()))
        named = data.get("accounts")
        accounts = None if named is None else tuple(str(name) for name in named)
        schema = data["schema"]
        site = HostRules(Path(data["folder"]), int(data.get("min_uid", 1000)), properties, accounts, data.get("refuse_sudo") is not False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{path}: cannot be used: {error}", fix=_APPLY) from error
    if schema != (_OLD_SITE_SCHEMA if site.accounts is None else SITE_SCHEMA):
        raise PlanError(f"{path}: schema {schema!r}; this program reads {SITE_SCHEMA}", fix=_APPLY)
    return site


def _entitled(request: dict[str, Any], site: HostRules) -> UnitRequest:
    """Return the job that a request is about, once the folder's owner and its key have shown that the request is entitled."""
    job_id, attempt, key = request.get("job"), request.get("attempt"), request.get("key")
    well_formed = isinstance(job_id, str) and JOB_ID.fullmatch(job_id) and isinstance(attempt, int) and 0 < attempt < 10**6
    if not well_formed or not isinstance(key, str) or not key or isinstance(attempt, bool):
        raise UsageError("the request names no job, attempt and key", fix="let the watcher ask")
    found = read_owned(site.folder, str(job_id), ("key", "job.json"), timeout_s=_READ_S)
    folder, owner = site.folder / str(job_id), found.owner
    if owner.pw_uid < site.min_uid:
        raise UsageError(f"{folder}: is no folder of a user's", fix=f"jobs are of users with a number from {site.min_uid} on")
    if request.get("user", owner.pw_name) != owner.pw_name:
        raise UsageError(f"{folder}: belongs to {owner.pw_name}, and {request['user']} asks", fix="let the job's own watcher ask")
    if not hmac.compare_digest(found.contents[0].strip(), key.encode()):
        raise UsageError(f"{folder}: the key is not that of the job", fix="let the job's own watcher ask")
    job = read_job(found.contents[1].decode("utf-8", "replace"), origin=str(folder / "job.json"))
    if job.id != job_id or job.user != owner.pw_name:
        raise UsageError(f"{folder}: holds the job {job.id} of {job.user}", fix="submit the job again")
    return UnitRequest(job, folder, owner, int(attempt or 0))


def _may_start(owner: pwd.struct_passwd, site: HostRules) -> None:
    """Make sure that an account may have jobs here: root has named it, and sudo gives it no right on this host.

    Raises:
        PrimusError: It may not.
    """
    name = owner.pw_name
    if site.accounts is None:
        raise PlanError("this host has not been told which accounts may have jobs", fix=_APPLY)
    if name not in site.accounts:
        fix = "jobs are of accounts in users_groups_accounts without sudo_rules; add it there, and apply the phases baseline and scheduling"
        raise UsageError(f"{name} may have no jobs on this host", fix=fix)
    if site.refuse_sudo and Path(_SUDO).exists() and "may run the following" in _run([_SUDO, "-n", "-l", "-U", name], check=False):
        raise UsageError(f"{name} has rights through sudo on this host", fix=f"submit the job as another account, or take sudo from {name}")


def _probe() -> dict[str, Any]:
    """Return what a host says of itself before it takes part."""
    health = {"verdict": "unknown", "written": 0.0, "reason": "this host has no health checks (role node_health)"}
    if _GATE.exists():
        done = _run([sys.executable, "-I", str(_GATE), "read", "--json"], check=False)
        try:
            health = dict(parse_json(done))
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
        record = parse_json(path.read_text("utf-8"))
        return f"in quarantine by {record['owner']}: {record['reason']}"
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"in quarantine; {path} cannot be read: {error}"


def _gpus() -> int | None:
    """Return how many GPUs the role gpu_env found here; None where that is unknown."""
    try:
        data = parse_json(_GPUS.read_text("utf-8"))
        return int(data["count"]) if data["verdict"] in (OK, MIXED, NONE) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _start(asked: UnitRequest, site: HostRules, rank: int) -> dict[str, Any]:
    """Start the attempt's unit, once nothing of an older one runs here; one start at a time: two jobs must not both find it free."""
    with open_lock(_LOCK) as held:
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


def _start_alone(asked: UnitRequest, site: HostRules, rank: int) -> dict[str, Any]:
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


def _stop(asked: UnitRequest, *, force: bool) -> dict[str, Any]:
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
        environment = {**os.environ, "LC_ALL": "C"}
        done = run_command(words, timeout_s=_COMMAND_S, cwd="/", env=environment)
    except OSError as error:
        raise PlanError(f"{words[0]}: {error}", fix="look at systemd on this host") from error
    if check and done.code:
        said = " ".join((done.stderr or done.stdout).split())
        raise PlanError(f"{words[0]} ended with exit code {done.code}: {said}", fix="see journalctl on this host")
    return done.stdout
