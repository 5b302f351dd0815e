#!/usr/bin/python
"""Ansible module `bench_node`: read the bench status of one GPU host, or measure it. No collection has a module for it.

`status` returns the software versions and whether the host needs a bench. `measure` runs the given steps one after the other through
primus-cli, each with its own time limit; steps that need an idle host do not run beside jobs. `start` starts a step of a run over several
hosts and returns at once; `finish` waits for its end and kills it if it hangs. The controller evaluates the results.
"""

from __future__ import annotations

import contextlib
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

from ansible.module_utils.atomic_files import write_atomic
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.bench_jobs import running_jobs
from ansible.module_utils.child_processes import become_subreaper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

PASSED = Path("/var/lib/primus/bench/passed.json")
RECORD = Path("/var/lib/primus/quarantine.json")
OWNER, PENDING = "primus-bench", "bench pending"
PASSED_SCHEMA = "primus.bench-pass/1"
LOCK = Path("/run/primus-bench.lock")
# The folder of a step that was started and not finished.
GROUP = Path("/run/primus-bench")
# These files exist if the node is registered with Slurm or Kubernetes.
REGISTERED = (Path("/etc/primus/slurm_node.json"), Path("/etc/kubernetes/kubelet.conf"))
KEPT_CHARS = 2000
JOBS_SHOWN = 4
# Time to wait for another bench on this host, for example one whose controller was killed.
LOCK_S = 60.0
# Time between SIGTERM and SIGKILL of a step.
GRACE_S = 10.0
POLL_S = 0.05
TIME_OVER = "the time of the tier was over"


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; empty if the file is missing or invalid."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def fingerprint(root: Path = Path("/")) -> dict[str, str]:
    """Return the versions of kernel, driver and firmware, and a digest of the GPU profile; an empty text for each that is missing."""
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
    """Return the number of GPUs that the role gpu_env detected; 0 if it did not run."""
    found = read_json(root / "etc/primus/gpu.json").get("count")
    return found if isinstance(found, int) else 0


def bench_reason(passed: Mapping[str, Any], now: Mapping[str, str], tier: str, tiers: Sequence[str]) -> str:
    """Return why the host needs a bench; empty if its last pass is valid: same versions, and the same or a higher tier."""
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
    """Run one step in a separate process group; return exit code, output, and the error if it has no result.

    It is killed after its own time limit, or after `left_s` if less time of the tier is left.
    """
    started = time.time()
    words = [word.replace("{run}", str(folder)) for word in step["argv"]]
    # Paths below /tmp can be guessed (caches of compiled code, lock files): another account could prepare files for root there.
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
                error = f"{TIME_OVER}, {left_s:.0f} s after its start" if late else f"no answer within {step['timeout_s']} s"
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
    """Kill the process group of a step, so that leftover ranks do not disturb the next step."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        # A process that waits in the kernel cannot be killed. It is left behind, and the step has an error.
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            # Reap ended processes, or they stay in the group: the process of the step, and its orphans if this process is a subreaper.
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
    """Return the lines of all results below the folder of the step."""
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
def host_lock(path: Path, wait_s: float) -> Iterator[bool]:
    """Hold the lock of the host; yield whether it was free in time."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "w") as lock:
        os.fchmod(lock.fileno(), 0o600)  # an account that can open the file could hold the lock
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
    steps: Sequence[Mapping[str, Any]], base: Path, left_s: float = math.inf, cleanup: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Run the steps in temporary folders.

    The result of each has in `jobs` the jobs that ran before or after it. A step with `alone` does not run beside jobs, and no step runs
    after `left_s`. `cleanup` is called after each step.
    """
    done = []
    until, before = time.monotonic() + left_s, running_jobs()
    for step in steps:
        left = until - time.monotonic()
        reason = f"{TIME_OVER} before its start" if left <= 0 else "it was left out" if before and step["alone"] else ""
        if reason:
            done.append(_not_run(step, reason, before))
            continue
        folder = Path(tempfile.mkdtemp(prefix="step-", dir=base))
        try:
            gave = run_step(step, folder, left)
        finally:
            cleanup()
            shutil.rmtree(folder, ignore_errors=True)
        after = running_jobs()
        done.append({**gave, "jobs": sorted({*before, *after})})
        before = after
    return done


def _not_run(step: Mapping[str, Any], why: str, jobs: Sequence[str]) -> dict[str, Any]:
    """Return the result of a step that did not run."""
    nothing = {"code": -1, "stdout": "", "stderr": "", "results": [], "seconds": 0.0}
    return {"name": step["name"], **nothing, "error": why, "started": time.time(), "jobs": list(jobs)}


def start(step: Mapping[str, Any], number: int, folder: Path) -> None:
    """Start a step in a separate process, which applies the time limit itself, independent of the controller.

    It inherits the lock of the host and holds it until it ends. `number` is that of the round.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    process = os.fork()
    if process:
        started = {"pid": process, "began": _start_ticks(process), "number": number, "limit_s": float(step["timeout_s"])}
        _write_json(folder / "process.json", started)
        return
    code = 1
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        signal.signal(signal.SIGTERM, _stop)
        become_subreaper()
        with tempfile.TemporaryDirectory(prefix="primus-bench-") as own:
            done = measure([step], Path(own), cleanup=_kill_orphans)[0]
        _write_json(folder / "done.json", {"number": number, "step": done})
        code = 0
    finally:
        _kill_orphans()
        os._exit(code)


def _kill_orphans() -> None:
    """Kill orphans of a step in other sessions: ranks that hang must not disturb the next run or look like a job."""
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
    raise SystemExit(1)  # this also kills the processes of the step


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(value), mode=0o600, durable=False)


def finish(number: int, folder: Path, *, stop: bool) -> dict[str, Any]:
    """Wait for the end of the started step and return its result, or `cut` with the reason if it has none; `stop` kills it at once."""
    known = read_json(folder / "process.json")
    if known.get("number") != number:
        return {"cut": "its step does not exist"}
    pid, began = int(known["pid"]), known["began"]
    until = time.monotonic() + (0.0 if stop else float(known["limit_s"]) + 3 * GRACE_S)
    while _start_ticks(pid) == began and time.monotonic() < until:
        time.sleep(0.2)
    for end in (signal.SIGTERM, signal.SIGKILL):
        if _start_ticks(pid) == began:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, end)
        until = time.monotonic() + 3 * GRACE_S
        while _start_ticks(pid) == began and time.monotonic() < until:
            time.sleep(0.2)
    done = read_json(folder / "done.json")
    shutil.rmtree(folder, ignore_errors=True)
    if done.get("number") == number:
        return {"step": done["step"]}
    return {"cut": "it was killed, because another host of its group did not start" if stop else "its step ended without a result"}


def _start_ticks(pid: int) -> str:
    """Return the start time of a process (ticks since boot), which identifies it if its pid is reused; empty if it has ended."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return fields[19] if fields and fields[0] != "Z" else ""


def read_status(tier: str, tiers: Sequence[str]) -> dict[str, Any]:
    """Return the software versions, whether the host needs a bench, and its quarantine record."""
    versions = fingerprint()
    record = read_json(RECORD)
    due = bench_reason(read_json(PASSED), versions, tier, tiers) if tier in tiers else ""
    if record.get("owner") == OWNER and record.get("reason") != PENDING:
        due = ""  # a host that failed is measured again on request, not by every apply
    serves = any(path.exists() for path in REGISTERED)
    return {"fingerprint": versions, "due": due, "record": record, "gpus": count_gpus(), "serves": serves, "now": time.time()}


def start_if_idle(step: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Start a step if the host is idle; return `started`, or `absent` with the reason."""
    jobs = running_jobs()
    if jobs:
        return {"absent": f"jobs run on it: {', '.join(jobs[:JOBS_SHOWN])}"}
    with host_lock(LOCK, LOCK_S) as free:
        if not free:
            return {"absent": f"another bench runs on it ({LOCK} is locked)"}
        start(step, number, GROUP)
    return {"started": True}


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["status", "measure", "start", "finish"]},
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
    options = module.params
    if options["state"] == "status":
        module.exit_json(changed=False, **read_status(options["tier"], options["tiers"]))
    if options["state"] == "finish":
        module.exit_json(changed=False, **finish(options["number"], GROUP, stop=options["stop"]))
    if options["state"] == "start":
        module.exit_json(changed=False, **start_if_idle(options["steps"][0], options["number"]))
    with host_lock(LOCK, LOCK_S) as free, tempfile.TemporaryDirectory(prefix="primus-bench-") as folder:
        if not free:
            module.fail_json(msg=f"another bench runs on this host ({LOCK} is locked). Fix: wait for its end, or run `fuser {LOCK}` there")
        Path(folder, "expected.json").write_text(json.dumps(options["expected"]), encoding="utf-8")
        steps = [
            {**step, "argv": [word.replace("{expected}", f"{folder}/expected.json") for word in step["argv"]]} for step in options["steps"]
        ]
        become_subreaper()
        module.exit_json(changed=False, steps=measure(steps, Path(folder), options["left_s"], _kill_orphans), now=time.time())


if __name__ == "__main__":
    main()
