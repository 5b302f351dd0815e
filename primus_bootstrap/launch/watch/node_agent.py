"""The program `unit` (primus-unit): starts, queries and stops the units of jobs on this host, as root, for the broker.

It reads one JSON line from standard input and writes one. No part of a request becomes part of a command line. Processes run as the owner
of the job's folder: the folder is opened once, and its files are read through that descriptor with the owner's rights. The owner must be
the account that the broker names, and root must allow it to have jobs. Refusals are written to the system log.
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
from primus_bootstrap.core.structured import InvalidDataError, read, readable
from primus_bootstrap.launch.detect.gpus import MIXED, NONE, OK
from primus_bootstrap.launch.safe_files import open_lock
from primus_bootstrap.launch.self_exec import own_command
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
# The format of earlier releases, without accounts: running jobs can be queried and stopped, and none is started.
_OLD_SITE_SCHEMA = "primus.workload-site/1"
QUARANTINE = Path("/var/lib/primus/quarantine.json")  # the role quarantine writes it
_GPUS = Path("/etc/primus/gpu.json")
_GATE = Path("/usr/local/lib/primus/health_gate.py")
_LOCK, _LOCK_S = Path("/run/primus-unit.lock"), 10.0
_READ_S, _COMMAND_S, _KILL_S = 10.0, 10.0, 12.0
_SUDO = "/usr/bin/sudo"
_MAX_BYTES = 1 << 20
_UNIT = re.compile(r"primus-job-(?P<job>" + JOB_ID.pattern + r")-(?P<attempt>[0-9]{1,6})\.service")
_ACTIVE = ("active", "activating", "deactivating", "reloading")
_AFTER_GRACE_S = 30
_APPLY = "apply the phase scheduling to this host"
_SAME_RELEASE = "install the same release of primus-cli on all hosts"
_BY_WATCHER = "send requests through the job's own watcher"


@readable
@dataclass(frozen=True)
class HostRules:
    """The administrator's settings of this host."""

    folder: Path
    min_uid: int = 1000  # lowest number of an account that may have jobs
    properties: tuple[str, ...] = ()  # more systemd properties of the units
    accounts: tuple[str, ...] | None = None  # accounts that may have jobs; None: the settings are of an earlier release
    refuse_sudo: bool = True  # refuse accounts that sudo gives any right on this host, even if `accounts` contains them


@dataclass(frozen=True)
class UnitRequest:
    """An authorized request about one attempt of a job."""

    job: Job
    folder: Path
    owner: pwd.struct_passwd
    attempt: int

    @property
    def unit(self) -> str:
        """Name of the attempt's unit."""
        return f"{self.job.unit(self.attempt)}.service"


def main(words: Sequence[str]) -> int:
    """Answer one request; the exit code is 0, also if the answer is an error."""
    parser = argparse.ArgumentParser(
        prog="primus-cli unit", description="Starts, queries and stops the units of jobs on this host, for the broker."
    )
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
    """Carry out a request, and return the answer.

    Raises:
        PrimusError: The request is invalid or not authorized, or it failed.
    """
    verb = request.get("verb")
    if request.get("schema") != SCHEMA or verb not in ("probe", "start", "status", "stop"):
        raise UsageError("unknown request", fix=_SAME_RELEASE)
    if verb == "probe":
        return _probe()
    unit_request = _authorize(request, site)
    if verb == "start":
        _check_account(unit_request.owner, site)
        rank = request.get("rank")
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < unit_request.job.nodes:
            raise UsageError(f"rank: {rank!r} is not a node of the job", fix=_SAME_RELEASE)
        return _start(unit_request, site, rank)
    if verb == "stop":
        return _stop(unit_request, force=request.get("force") is True)
    return {"state": "running" if _active(unit_request.unit) else "absent", "boot_id": read_boot_id()}


def _read_request() -> dict[str, Any]:
    """Read one line within _READ_S."""
    data = b""
    deadline = time.monotonic() + _READ_S
    while b"\n" not in data and len(data) < _MAX_BYTES:
        ready, _, _ = select.select([0], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(0, 1 << 16) if ready else b""
        if not piece:
            break
        data += piece
    try:
        return dict(parse_json(data))
    except (ValueError, TypeError) as error:
        raise UsageError("the request is not a line of JSON", fix=_BY_WATCHER) from error


def _site(path: Path) -> HostRules:
    try:
        data = parse_json(path.read_text("utf-8"))
        is_old = isinstance(data, dict) and data.get("schema") == _OLD_SITE_SCHEMA
        rules = read(HostRules, data, origin=str(path), schema=_OLD_SITE_SCHEMA if is_old else SITE_SCHEMA, ignore_unknown=True)
    except InvalidDataError as error:
        raise PlanError(error.what, fix=_APPLY) from error
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: cannot be read: {error}", fix=_APPLY) from error
    if is_old != (rules.accounts is None):
        raise PlanError(f"{path}: accounts belong to {SITE_SCHEMA} only, which requires them", fix=_APPLY)
    return rules


def _authorize(request: dict[str, Any], site: HostRules) -> UnitRequest:
    """Return the job of a request, after checking the owner of its folder and the key in it."""
    job_id, attempt, key = request.get("job"), request.get("attempt"), request.get("key")
    well_formed = isinstance(job_id, str) and JOB_ID.fullmatch(job_id) and isinstance(attempt, int) and 0 < attempt < 10**6
    if not well_formed or not isinstance(key, str) or not key or isinstance(attempt, bool):
        raise UsageError("the request has no valid job, attempt and key", fix=_BY_WATCHER)
    found = read_owned(site.folder, str(job_id), ("key", "job.json"), timeout_s=_READ_S)
    folder, owner = site.folder / str(job_id), found.owner
    if owner.pw_uid < site.min_uid:
        raise UsageError(f"{folder}: its owner is not a user", fix=f"submit jobs as users with a number from {site.min_uid} on")
    if request.get("user", owner.pw_name) != owner.pw_name:
        raise UsageError(f"{folder}: belongs to {owner.pw_name}, and the request is from {request['user']}", fix=_BY_WATCHER)
    if not hmac.compare_digest(found.contents[0].strip(), key.encode()):
        raise UsageError(f"{folder}: the key is not the job's key", fix=_BY_WATCHER)
    job = read_job(found.contents[1].decode("utf-8", "replace"), origin=str(folder / "job.json"))
    if job.id != job_id or job.user != owner.pw_name:
        raise UsageError(f"{folder}: contains the job {job.id} of {job.user}", fix="submit the job again")
    return UnitRequest(job, folder, owner, int(attempt or 0))


def _check_account(owner: pwd.struct_passwd, site: HostRules) -> None:
    """Check that an account may have jobs on this host: root has named it, and sudo gives it no rights.

    Raises:
        PrimusError: It may not have jobs.
    """
    name = owner.pw_name
    if site.accounts is None:
        raise PlanError("the settings of this host do not name the accounts that may have jobs", fix=_APPLY)
    if name not in site.accounts:
        fix = "add it to users_groups_accounts without sudo_rules, and apply the phases baseline and scheduling"
        raise UsageError(f"{name} may not have jobs on this host", fix=fix)
    if site.refuse_sudo and Path(_SUDO).exists() and "may run the following" in _run([_SUDO, "-n", "-l", "-U", name], check=False):
        raise UsageError(
            f"sudo gives {name} rights on this host", fix=f"submit the job as another account, or remove the sudo rights of {name}"
        )


def _probe() -> dict[str, Any]:
    """Return the health, GPUs and running units of this host."""
    health = {"verdict": "unknown", "written": 0.0, "reason": "this host has no health checks (role node_health)"}
    if _GATE.exists():
        done = _run([sys.executable, "-I", str(_GATE), "read", "--json"], check=False)
        try:
            health = dict(parse_json(done))
        except (ValueError, TypeError):
            health["reason"] = "the health gate did not answer"
    quarantine = _quarantine()
    if quarantine:
        health.update(verdict="fail", reason=quarantine)
    units = [name for name in _units("*") if _active(name)]
    fields = {"health": health.get("verdict"), "written": health.get("written"), "reason": health.get("reason")}
    return {"node": socket.gethostname(), "boot_id": read_boot_id(), "units": units, "gpus": _gpus(), "now": time.time(), **fields}


def _quarantine(path: Path = QUARANTINE) -> str:
    """Return who quarantined this host, and why; empty if it is in service."""
    try:
        record = parse_json(path.read_text("utf-8"))
        return f"in quarantine by {record['owner']}: {record['reason']}"
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"in quarantine; {path} cannot be read: {error}"


def _gpus() -> int | None:
    """Return the number of GPUs that the role gpu_env found; None if it is unknown."""
    try:
        data = parse_json(_GPUS.read_text("utf-8"))
        return int(data["count"]) if data["verdict"] in (OK, MIXED, NONE) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _start(request: UnitRequest, site: HostRules, rank: int) -> dict[str, Any]:
    """Start the attempt's unit after older attempts have ended. One start at a time: two jobs must not both find the host free."""
    with open_lock(_LOCK) as held:
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise PlanError("another job is being started on this host", fix="wait: the watcher retries") from error
            time.sleep(0.2)
        return _start_locked(request, site, rank)


def _start_locked(request: UnitRequest, site: HostRules, rank: int) -> dict[str, Any]:
    if _active(request.unit):
        return {"state": "running", "boot_id": read_boot_id()}
    own_units = {name: int(match["attempt"]) for name in _units("*") if (match := _UNIT.fullmatch(name)) and match["job"] == request.job.id}
    if any(number > request.attempt for number in own_units.values()):
        raise UsageError(f"attempt {request.attempt} has ended: a newer one runs on this host", fix=_BY_WATCHER)
    for name in own_units:
        _end_older(name)
    others = [name for name in _units("*") if name not in own_units and _active(name)]
    if others and request.job.gpus_per_node:
        raise PlanError(f"{', '.join(others)} runs on this host, and GPUs are not shared", fix="cancel that job, or use another host")
    inner = (
        *own_command(sys.executable),
        "attempt",
        "--folder",
        str(request.folder),
        "--attempt",
        str(request.attempt),
        "--rank",
        str(rank),
    )
    owner = request.owner
    properties = (
        "Restart=no",
        "KillMode=mixed",  # the launcher forwards SIGTERM; after the time limit all processes are killed
        f"TimeoutStopSec={request.job.grace_s + _AFTER_GRACE_S}",
        "OOMPolicy=continue",  # the launcher reports which rank was killed
        f"WorkingDirectory=-{owner.pw_dir}",
        *site.properties,
    )
    words = [
        "systemd-run",
        "--quiet",
        "--collect",
        "--service-type=exec",
        f"--unit={request.unit}",
        f"--uid={owner.pw_uid}",
        f"--gid={owner.pw_gid}",
    ]
    _run(
        [
            *words,
            f"--description=job {request.job.id}, attempt {request.attempt}",
            *(f"--property={item}" for item in properties),
            "--",
            *inner,
        ]
    )
    return {"state": "started", "boot_id": read_boot_id()}


def _stop(request: UnitRequest, *, force: bool) -> dict[str, Any]:
    if _active(request.unit):
        if force:
            _run(["systemctl", "kill", "--kill-who=all", "--signal=SIGKILL", request.unit], check=False)
        _run(["systemctl", "stop", "--no-block", request.unit], check=False)
    return {"state": "running" if _active(request.unit) else "absent", "boot_id": read_boot_id()}


def _end_older(name: str) -> None:
    """Kill a unit of an older attempt, which has no lease any more."""
    _run(["systemctl", "kill", "--kill-who=all", "--signal=SIGKILL", name], check=False)
    deadline = time.monotonic() + _KILL_S
    while _active(name):
        if time.monotonic() > deadline:
            raise PlanError(f"{name} of an older attempt cannot be killed", fix="reboot this host if it has processes in state D")
        time.sleep(0.2)


def _units(job: str) -> list[str]:
    """Return the names of the units of jobs on this host."""
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
        raise PlanError(f"{words[0]}: {error}", fix="check systemd on this host") from error
    if check and done.code:
        output = " ".join((done.stderr or done.stdout).split())
        raise PlanError(f"{words[0]} ended with exit code {done.code}: {output}", fix="read journalctl on this host")
    return done.stdout
