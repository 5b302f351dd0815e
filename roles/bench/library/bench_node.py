#!/usr/bin/python
"""Look at one GPU host before a bench, or measure it: the Ansible module `bench_node`.

`look` tells what the host runs with and whether a bench is due. `measure` runs the given steps one after the other, each with its own
limit, through primus-cli; what needs the host for itself is left out beside jobs. `start` begins one step that runs together with other
hosts and returns at once; `take` waits for its end, and ends it where it hangs. All of them only observe; what was found is judged on the
controller.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.bench_jobs import running_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

PASSED = Path("/var/lib/primus/bench/passed.json")
RECORD = Path("/var/lib/primus/quarantine.json")
OWNER, PENDING = "primus-bench", "bench pending"
PASSED_SCHEMA = "primus.bench-pass/1"
LOCK = Path("/run/primus-bench.lock")
# A step that was started and not yet taken in.
GROUP = Path("/run/primus-bench")
# What Slurm and Kubernetes know this node by; it is there once the node has registered.
KNOWN = (Path("/etc/primus/slurm_node.json"), Path("/etc/kubernetes/kubelet.conf"))
KEPT_CHARS = 2000
JOBS_SHOWN = 4
# linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
# How long a bench waits for another one on this host, as one whose controller was killed.
LOCK_S = 60.0
# A step that was told to end has this long before it is killed.
GRACE_S = 10.0
POLL_S = 0.05
LATE = "the tier's time was over"


def read_json(path: Path) -> dict[str, Any]:
    """Return an object, or nothing where the file is missing or is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def fingerprint(root: Path = Path("/")) -> dict[str, str]:
    """Return what the results depend on: kernel, driver, firmware, and a digest of the environment profile; "" where there is none."""
    profile = read_json(root / "etc/primus/gpu.json").get("profile")
    return {
        "driver": " ".join(_texts(root, ("sys/module/amdgpu/version", "sys/module/nvidia/version"))),
        "firmware": " ".join(
            _texts(root, ("sys/bus/pci/drivers/amdgpu/*/vbios_version", "sys/class/infiniband/*/fw_ver", "sys/class/dmi/id/bios_version"))
            + _nvidia_firmware(root)
        ),
        "kernel": _text(root / "proc/sys/kernel/osrelease"),
        "profile": hashlib.sha256(json.dumps(profile, sort_keys=True).encode()).hexdigest()[:16] if profile else "",
    }


def count_gpus(root: Path = Path("/")) -> int:
    """Return how many GPUs the role gpu_env found on the bus; 0 where it found none, or where nobody looked."""
    found = read_json(root / "etc/primus/gpu.json").get("count")
    return found if isinstance(found, int) else 0


def why_due(passed: Mapping[str, Any], now: Mapping[str, str], tier: str, tiers: Sequence[str]) -> str:
    """Return why the host has to be benched; empty where its last pass still holds: same software, and a tier that is no lower."""
    if passed.get("schema") != PASSED_SCHEMA:
        return "it has never passed"
    before = passed.get("fingerprint") or {}
    changed = [name for name in now if before.get(name, "") != now[name]]
    if changed:
        return f"changed since the last pass: {', '.join(changed)}"
    known = passed.get("tier")
    if known not in tiers or tiers.index(known) < tiers.index(tier):
        return f"the last pass was of the tier {known}"
    return ""


def run_step(step: Mapping[str, Any], folder: Path, left_s: float = math.inf) -> dict[str, Any]:
    """Run one step in a process group of its own, which ends with it; return exit code, what was printed, and why there is no answer.

    It is ended at its own limit, or after `left_s`, where less is left of the tier's time.
    """
    started = time.time()
    words = [word.replace("{run}", str(folder)) for word in step["argv"]]
    # Names below /tmp can be guessed (caches of compiled code, lock files): another account could have put its own there for root.
    environment = {**os.environ, "TMPDIR": str(folder), **{key: str(value) for key, value in (step.get("environment") or {}).items()}}
    out, err = folder / "stdout", folder / "stderr"
    error, code = "", -1
    try:
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
            )
            try:
                code = process.wait(timeout=min(float(step["timeout_s"]), left_s))
            except subprocess.TimeoutExpired:
                late = left_s < float(step["timeout_s"])
                error = f"{LATE}, {left_s:.0f} s after it had begun" if late else f"no answer within {step['timeout_s']} s"
            finally:
                _end_group(process)
    except OSError as problem:
        error = f"{words[0]}: {problem.strerror or problem}"
    return {
        "name": step["name"],
        "code": code,
        "error": error,
        "stdout": _read(out),
        "stderr": _read(err)[-KEPT_CHARS:],
        "results": _lines(folder),
        "started": started,
        "seconds": round(time.time() - started, 3),
    }


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what the step left: a benchmark's ranks must not disturb the next one."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        # What waits in the kernel cannot be killed: it is left behind, and the step has an error.
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            # What has ended stays in the group until it is waited for: the step's own process, and orphans where this one takes them in.
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-process.pid, os.WNOHANG)[0]:
                    pass
            process.poll()
            if not _group_lives(process.pid):
                return
            time.sleep(POLL_S)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _lines(folder: Path) -> list[str]:
    """Return the lines of all results below the step's folder."""
    return [line for path in sorted(folder.rglob("results.jsonl")) for line in _read(path).splitlines() if line.strip()]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _text(path: Path) -> str:
    return _read(path).strip()


def _texts(root: Path, patterns: Iterable[str]) -> list[str]:
    return sorted({text for pattern in patterns for path in root.glob(pattern) if (text := _text(path))})


def _nvidia_firmware(root: Path) -> list[str]:
    lines = [line for path in root.glob("proc/driver/nvidia/gpus/*/information") for line in _read(path).splitlines()]
    return sorted({line.split(":", 1)[1].strip() for line in lines if line.startswith("Video BIOS:")})


@contextlib.contextmanager
def alone(path: Path, wait_s: float) -> Iterator[bool]:
    """Hold the host's lock; yield whether it was to be had in time."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "w") as lock:
        os.fchmod(lock.fileno(), 0o600)  # whoever can open it may hold the lock
        until = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() >= until:
                    yield False
                    return
                time.sleep(0.5)
            else:
                yield True
                return


def measure(
    steps: Sequence[Mapping[str, Any]], base: Path, left_s: float = math.inf, tidy: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Run the steps in folders of their own, which are gone afterwards.

    Each says in `jobs` what ran here right before it or right after it. One that must be `alone` is not run beside jobs, and none is when
    `left_s` are over; `tidy` ends what a step has left.
    """
    done = []
    until, before = time.monotonic() + left_s, running_jobs()
    for step in steps:
        left = until - time.monotonic()
        why_not = f"{LATE} before it began" if left <= 0 else "it was left out" if before and step["alone"] else ""
        if why_not:
            done.append(_left_out(step, why_not, before))
            continue
        folder = Path(tempfile.mkdtemp(prefix="step-", dir=base))
        try:
            gave = run_step(step, folder, left)
        finally:
            tidy()
            shutil.rmtree(folder, ignore_errors=True)
        after = running_jobs()
        done.append({**gave, "jobs": sorted({*before, *after})})
        before = after
    return done


def _left_out(step: Mapping[str, Any], why: str, jobs: Sequence[str]) -> dict[str, Any]:
    """Return what a step gives that was not run."""
    nothing = {"code": -1, "stdout": "", "stderr": "", "results": [], "seconds": 0.0}
    return {"name": step["name"], **nothing, "error": why, "started": time.time(), "jobs": list(jobs)}


def start(step: Mapping[str, Any], number: int, folder: Path) -> None:
    """Begin a step in a process of its own, which keeps the step's limit by itself, whatever becomes of the controller.

    It inherits the host's lock, which is free again when it ends. `number` is that of the round.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    process = os.fork()
    if process:
        _replace(folder / "process.json", {"pid": process, "began": _began(process), "number": number, "limit_s": float(step["timeout_s"])})
        return
    code = 1
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        signal.signal(signal.SIGTERM, _stop)
        _take_orphans_in()
        with tempfile.TemporaryDirectory(prefix="primus-bench-") as own:
            done = measure([step], Path(own), tidy=_end_orphans)[0]
        _replace(folder / "done.json", {"number": number, "step": done})
        code = 0
    finally:
        _end_orphans()
        os._exit(code)


def _take_orphans_in() -> None:
    """Be the parent of whatever a step leaves behind."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_orphans() -> None:
    """Kill what the step left in sessions of its own: ranks that hang must not disturb the next run, nor be taken for a job."""
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until:
        for child in _read(Path(f"/proc/self/task/{os.getpid()}/children")).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.05)


def _stop(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(1)  # what the step started ends with it


def _replace(path: Path, value: Mapping[str, Any]) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(value), encoding="utf-8")
    draft.replace(path)


def take(number: int, folder: Path, *, stop: bool) -> dict[str, Any]:
    """Wait for the end of the step that was started, and return what it gave, or `cut` and why it gave nothing; `stop` ends it at once."""
    known = read_json(folder / "process.json")
    if known.get("number") != number:
        return {"cut": "nothing of its step is left"}
    pid, began = int(known["pid"]), known["began"]
    until = time.monotonic() + (0.0 if stop else float(known["limit_s"]) + 3 * GRACE_S)
    while _began(pid) == began and time.monotonic() < until:
        time.sleep(0.2)
    for end in (signal.SIGTERM, signal.SIGKILL):
        if _began(pid) == began:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, end)
        until = time.monotonic() + 3 * GRACE_S
        while _began(pid) == began and time.monotonic() < until:
            time.sleep(0.2)
    done = read_json(folder / "done.json")
    shutil.rmtree(folder, ignore_errors=True)
    if done.get("number") == number:
        return {"step": done["step"]}
    return {"cut": "it was ended, because another host of its group had not started" if stop else "its step ended without an answer"}


def _began(pid: int) -> str:
    """Return when a process began (ticks since boot), which tells it from a later one of that number; empty where it has ended."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return fields[19] if fields and fields[0] != "Z" else ""


def look(tier: str, tiers: Sequence[str]) -> dict[str, Any]:
    """Return what the host runs with, whether a bench is due, and what keeps it out of service."""
    seen = fingerprint()
    record = read_json(RECORD)
    due = why_due(read_json(PASSED), seen, tier, tiers) if tier in tiers else ""
    if record.get("owner") == OWNER and record.get("reason") != PENDING:
        due = ""  # a person benches it when it is mended, and not every apply
    serves = any(path.exists() for path in KNOWN)
    return {"fingerprint": seen, "due": due, "record": record, "gpus": count_gpus(), "serves": serves, "now": time.time()}


def start_alone(step: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Begin a step where the host is free, and say so; or why it is absent."""
    jobs = running_jobs()
    if jobs:
        return {"absent": f"jobs run on it: {', '.join(jobs[:JOBS_SHOWN])}"}
    with alone(LOCK, LOCK_S) as free:
        if not free:
            return {"absent": f"another bench runs on it ({LOCK} is locked)"}
        start(step, number, GROUP)
    return {"started": True}


def main() -> None:
    """Read the arguments, look or measure, and say what was found."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["look", "measure", "start", "take"]},
            "tier": {"type": "str", "default": ""},
            "tiers": {"type": "list", "elements": "str", "default": []},
            "steps": {"type": "list", "elements": "dict", "default": []},
            "expected": {"type": "dict", "default": {}},
            "left_s": {"type": "float"},
            "number": {"type": "int", "default": 0},
            "stop": {"type": "bool", "default": False},
        },
        required_if=[("state", "measure", ["left_s"])],
        supports_check_mode=True,
    )
    wanted = module.params
    if wanted["state"] == "look":
        module.exit_json(changed=False, **look(wanted["tier"], wanted["tiers"]))
    if wanted["state"] == "take":
        module.exit_json(changed=False, **take(wanted["number"], GROUP, stop=wanted["stop"]))
    if wanted["state"] == "start":
        module.exit_json(changed=False, **start_alone(wanted["steps"][0], wanted["number"]))
    with alone(LOCK, LOCK_S) as free, tempfile.TemporaryDirectory(prefix="primus-bench-") as folder:
        if not free:
            module.fail_json(msg=f"another bench runs on this host ({LOCK} is locked). Fix: wait for it, or see `fuser {LOCK}` there")
        Path(folder, "expected.json").write_text(json.dumps(wanted["expected"]), encoding="utf-8")
        steps = [
            {**step, "argv": [word.replace("{expected}", f"{folder}/expected.json") for word in step["argv"]]} for step in wanted["steps"]
        ]
        _take_orphans_in()
        module.exit_json(changed=False, steps=measure(steps, Path(folder), wanted["left_s"], _end_orphans), now=time.time())


if __name__ == "__main__":
    main()
