"""The programs that slurmd calls on a node: health, epilog and task prolog, as they lie in the role."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import util
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FILES = content.roles_dir() / "slurm" / "files"
# As scontrol 22.05.8 prints a node on one line, shortened.
NODE = "NodeName=n2 CPUTot=16 State={state} ThreadsPerCore=1 Reason={reason} [root@2026-11-22T01:00:00]"
DISK = "disk /: 0.1 GiB are free, fewer than 1"


def load(path: Path) -> Any:
    """Import a program; what lies beside it on a node is found as it is there."""
    if str(FILES.parent / "module_utils") not in sys.path:
        sys.path.append(str(FILES.parent / "module_utils"))
    spec = util.spec_from_file_location(f"slurm_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


health: Any = load(FILES / "health.py")
epilog: Any = load(FILES / "epilog.py")


class Host:
    """A node whose gate gives one answer and whose controllers tell one state; what it asks them to change is remembered."""

    def __init__(self, gate: tuple[int | None, str], state: str, reason: str = "") -> None:
        """Keep the answers."""
        self.gate, self.state, self.reason = gate, state, reason
        self.updates: list[str] = []

    def __call__(self, words: Sequence[str], _limit_s: float) -> Any:
        """Answer one command."""
        answer = sys.modules["slurm_ask"].Answer
        if words[0] == health.GATE:
            return answer(*self.gate)
        if words[1] == "update":
            self.updates.append(" ".join(words[2:]))
            return answer(0, "")
        return answer(0, NODE.format(state=self.state, reason=self.reason))


@pytest.mark.parametrize(
    ("gate", "state", "reason", "updates"),
    [
        ((1, DISK), "IDLE", "", [f"NodeName=n2 State=DRAIN Reason=primus: health: {DISK}"]),
        ((1, DISK), "IDLE+DRAIN", "primus: health: clock", [f"NodeName=n2 State=DRAIN Reason=primus: health: {DISK}"]),
        ((1, DISK), "IDLE+DRAIN", f"primus: health: {DISK}", []),
        ((1, DISK), "IDLE+DRAIN", "new memory on Monday", []),
        ((0, "pass"), "IDLE+DRAIN", f"primus: health: {DISK}", ["NodeName=n2 State=RESUME"]),
        ((0, "pass"), "IDLE+DRAIN", "primus: removed", []),
        ((0, "pass"), "IDLE+DRAIN", "primus quarantine: fan", []),
        ((0, "pass"), "IDLE+DRAIN", "new memory on Monday", []),
        ((0, "pass"), "IDLE", "", []),
        ((3, "there is no health.json"), "IDLE", "", []),
        ((3, "stale"), "IDLE+DRAIN", f"primus: health: {DISK}", []),
        ((None, "timed out"), "IDLE+DRAIN", f"primus: health: {DISK}", []),
    ],
)
def test_only_a_fail_drains_and_only_our_own_drain_is_lifted(
    gate: tuple[int | None, str], state: str, reason: str, updates: list[str], tmp_path: Path
) -> None:
    """Unknown leaves the node as it is; another's reason stays; a changed reason is told."""
    fragment = tmp_path / "node.json"
    fragment.write_text(json.dumps({"name": "n2"}), encoding="utf-8")
    host = Host(gate, state, reason)

    assert health.main(host, fragment) == 0
    assert host.updates == updates


@pytest.fixture
def leftover() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Real processes that are gone after the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def start(environment: dict[str, str], code: str = "") -> subprocess.Popen[bytes]:
    """Start a process that stays, with this environment alone; return once it runs its own program."""
    program = f"{code}\nimport time; print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


def test_the_epilog_ends_what_the_job_left_and_nothing_else(leftover: list[subprocess.Popen[bytes]]) -> None:
    """A daemon of the job goes, also one that ignores SIGTERM; another job's, a login shell's and a plain process stay."""
    job = {"SLURM_JOB_ID": "71", "SLURMD_NODENAME": "n2"}
    mine, stubborn = start(job), start(job, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    others = [start({**job, "SLURM_JOB_ID": "72"}), start({"SLURM_JOB_ID": "71"}), start({})]
    leftover += [mine, stubborn, *others]
    found = epilog.end(os.getuid(), "71")

    assert found == sorted([mine.pid, stubborn.pid])
    assert (mine.wait(5), stubborn.wait(5)) == (-15, -9)
    assert [process.poll() for process in others] == [None, None, None]


def test_the_epilog_leaves_accounts_of_the_system_alone(leftover: list[subprocess.Popen[bytes]]) -> None:
    """A job of root is nobody's leftover; the program ends well whatever it is given."""
    mine = start({"SLURM_JOB_ID": "71", "SLURMD_NODENAME": "n2"})
    leftover.append(mine)
    for environment in ({"SLURM_JOB_ID": "71", "SLURM_JOB_UID": "0"}, {"SLURM_JOB_ID": "71"}, {}):
        assert subprocess.run([sys.executable, "-I", FILES / "epilog.py"], env=environment, check=False, timeout=120).returncode == 0

    assert mine.poll() is None


def task_prolog(folder: Path, environment: dict[str, str]) -> list[str]:
    """Return what the task prolog prints for a task with this environment, with the profile's files in a folder."""
    text = (FILES / "task_prolog.sh").read_text(encoding="utf-8").replace("/etc/primus/env.d", str(folder))
    done = subprocess.run(["/bin/sh"], input=text, capture_output=True, text=True, check=True, env=environment, timeout=120)
    assert done.stderr == ""
    return sorted(done.stdout.splitlines())


def test_the_task_prolog_gives_the_profile_and_leaves_the_jobs_own_values(tmp_path: Path) -> None:
    """Later files win, quotes are read as systemd does, and a variable that the task has, even empty, stays."""
    (tmp_path / "10-base.env").write_text('# why\nNCCL_DEBUG="WARN"\nA_PATH="/x y"\nODD="a\\"b\\$c"\n', encoding="utf-8")
    (tmp_path / "90-site.env").write_text('A_PATH="/z"\nKEPT="profile"\n', encoding="utf-8")
    (tmp_path / "readme").write_text("NOT=read\n", encoding="utf-8")

    assert task_prolog(tmp_path, {"NCCL_DEBUG": "", "KEPT": "job"}) == ["export A_PATH=/z", 'export ODD=a"b$c']


def test_the_task_prolog_is_silent_where_there_is_no_profile(tmp_path: Path) -> None:
    """A node without role gpu_env gives its tasks nothing, and no error."""
    assert task_prolog(tmp_path / "absent", {}) == []
