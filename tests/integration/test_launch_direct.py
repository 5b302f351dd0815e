"""primus_bootstrap.launch.runtimes.direct: runs on this host with real processes, from the command line to the exit code."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.launch_cli_rig import User, wait_for
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINT = """import os, signal, sys, time
def stop(*_):
    print("checkpoint written", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
open(os.environ["RUN_DIR"] + "/ready-" + os.environ.get("RANK", "0"), "w").close()
time.sleep(120)
"""
DEAF = """import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = subprocess.Popen(["bash", "-c", "trap '' TERM; sleep 300 & wait"], start_new_session=True)
with open(os.environ["RUN_DIR"] + "/pids", "w") as file:
    file.write(f"{os.getpid()} {deaf.pid}")
open(os.environ["RUN_DIR"] + "/ready", "w").close()
time.sleep(300)
"""


def runs(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123 - a file of the kernel
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def has_torch() -> bool:
    """Return whether this Python has torch."""
    code = "from importlib.metadata import version; version('torch')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60).returncode == 0


needs_torch = pytest.mark.skipif(not has_torch(), reason="this Python has no torch")


def environment_of(user: User, *options: str, **more: str) -> dict[str, str]:
    """Return the environment of a program."""
    script = user.program("env.py", "import json, os, sys\njson.dump(dict(os.environ), open(os.environ['RUN_DIR'] + '/seen.json', 'w'))\n")
    done = user.run(script, *options, arguments=(), **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((user.run_dir / "seen.json").read_text()))


def test_dry_run_only_prints_the_plan(tmp_path: Path) -> None:
    """It creates no folder, runs no hook, patch or program, and prints no secret."""
    user = User(tmp_path)
    for name in ("hooks/10_h.sh", "fix.sh"):
        user.program(name, f"touch {user.folder}/ran\n")
    before = sorted(user.folder.rglob("*"))
    words = (
        "--dry-run",
        "direct",
        "--nproc",
        "2",
        "--patch",
        "fix.sh",
        "--env",
        "HF_TOKEN=geheim123",
        "--",
        "train",
        "pretrain",
        "train.steps=1",
    )
    done = user.cli(*words)
    lines = done.stdout.splitlines()
    (execute,) = [shlex.split(line)[1:] for line in lines if line.startswith("execute ")]

    assert done.returncode == 0, done.stderr
    assert sorted(user.folder.rglob("*")) == before
    assert f"hook     before: {user.project}/hooks/10_h.sh (project)" in lines
    assert f"patch    {user.project}/fix.sh (--patch)" in lines
    assert "set      HF_TOKEN=***  (user flag --env)" in lines
    assert "geheim123" not in done.stdout + done.stderr
    assert execute[1:6] == ["-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--standalone"]
    assert execute[-2].endswith("workloads/train/pretrain.py")
    assert execute[-1] == "train.steps=1"


def test_the_program_gets_its_arguments_and_its_exit_code_is_returned(tmp_path: Path) -> None:
    """Arguments with spaces are not split."""
    user = User(tmp_path)
    script = user.program("p.py", "import sys\nprint(sys.argv[1:])\nsys.exit(9)\n")
    done = user.run(script, arguments=("a b", "--", "--x=1"))

    assert done.returncode == 9
    assert "['a b', '--', '--x=1']" in done.stdout


def test_any_executable_can_be_the_program(tmp_path: Path) -> None:
    """A shell script runs like a Python file; a signal n gives 128 + n."""
    user = User(tmp_path)
    done = user.run(user.program("p.sh", "#!/bin/bash\necho from the shell\nkill -KILL $$\n"))

    assert "from the shell" in done.stdout
    assert done.returncode == 137


def test_the_precedence_of_variables(tmp_path: Path) -> None:
    """Weakest first: profile, environment, hooks, patches, user."""
    user = User(tmp_path)
    user.program("hooks/10_h.sh", "for name in B C D E F; do echo env.$name=hook; done\n")
    user.program("fix.sh", "for name in C D E F; do echo env.$name=patch; done\n")
    user.program("my.env", "E=file\nF=file\n")
    (user.project / ".primus.yaml").write_text("direct: {env: {D: settings}}\n")
    more = {"A": "here", "B": "here", "NCCL_DEBUG": "INFO"}
    seen = environment_of(user, "--patch", "fix.sh", "--env", "F=flag", "--env", "my.env", **more)

    assert [seen[name] for name in "ABCDEF"] == ["here", "hook", "patch", "settings", "file", "flag"]
    assert seen["NCCL_DEBUG"] == "INFO"
    assert seen["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"


def test_a_run_has_variables_for_folder_task_and_node(tmp_path: Path) -> None:
    """--no-profile omits the profile."""
    user = User(tmp_path)
    seen = environment_of(user, "--no-profile")

    assert (seen["RUN_DIR"], seen["PRIMUS_TASK"], seen["NODE_RANK"], seen["NNODES"]) == (str(user.run_dir), "script", "0", "1")
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in seen


def test_hooks_add_arguments_and_see_the_exit_code(tmp_path: Path) -> None:
    """Arguments of a hook come last; hooks of after get the exit code; hooks of on_failure do not run."""
    user = User(tmp_path)
    user.program("hooks/10_h.py", "def hook(plan):\n    return {'extra': {'optimizer.lr': plan['program_arguments'][0] + '-2'}}\n")
    user.program("hooks/after/10_a.sh", 'echo "after $PRIMUS_EXIT_CODE"\n')
    user.program("hooks/on_failure/10_f.sh", "echo failed\n")
    done = user.run(user.program("p.py", "import sys\nprint(sys.argv[1:])\n"), arguments=("one",))
    plan = json.loads((user.run_dir / "plan.json").read_text())

    assert "['one', 'optimizer.lr=one-2']" in done.stdout
    assert "[after-10_a] after 0" in done.stdout
    assert "failed" not in done.stdout
    assert plan["program_arguments"] == ["one", "optimizer.lr=one-2"]


def test_hooks_of_on_failure_run_and_do_not_change_the_exit_code(tmp_path: Path) -> None:
    """After a failure both phases run; a failing hook is reported."""
    user = User(tmp_path)
    user.program("hooks/after/10_a.sh", "exit 5\n")
    user.program("hooks/on_failure/10_f.sh", 'echo "saw $PRIMUS_EXIT_CODE"\n')
    done = user.run(user.program("p.py", "raise SystemExit(3)\n"))

    assert done.returncode == 3
    assert "10_a.sh: exit code 5" in done.stdout
    assert "[on_failure-10_f] saw 3" in done.stdout


def test_a_failing_patch_stops_the_run_before_the_program(tmp_path: Path) -> None:
    """The program must not start without its patch."""
    user = User(tmp_path)
    user.program("bad.sh", "echo cannot\nexit 1\n")
    user.program("skip.py", "raise SystemExit(2)\n")
    script = user.program("p.py", "print('started')\n")
    skipped = user.run(script, "--patch", "skip.py")
    stopped = user.run(script, "--patch", "bad.sh")

    assert (skipped.returncode, "started" in skipped.stdout) == (0, True)
    assert (stopped.returncode, "started" in stopped.stdout) == (4, False)
    assert "bad.sh: exit code 1\n  | cannot\n  fix: " in stopped.stdout


def test_a_hook_can_skip_the_program(tmp_path: Path) -> None:
    """With PRIMUS_SKIP_MAIN_LAUNCH=1 the run succeeds after hooks and patches."""
    user = User(tmp_path)
    user.program("hooks/10_h.sh", "echo env.PRIMUS_SKIP_MAIN_LAUNCH=1\n")
    done = user.run(user.program("p.py", "print('hello')\n"))

    assert (done.returncode, "hello" in done.stdout) == (0, False)


def test_one_variable_makes_runs_deterministic(tmp_path: Path) -> None:
    """With PRIMUS_DETERMINISTIC=1 the built-in hook sets the variables that are not set yet."""
    user = User(tmp_path)
    with_it = environment_of(user, PRIMUS_DETERMINISTIC="1", NCCL_ALGO="Tree")
    without = environment_of(user)

    assert (with_it["NCCL_ALGO"], with_it["CUBLAS_WORKSPACE_CONFIG"]) == ("Tree", ":4096:8")
    assert "CUBLAS_WORKSPACE_CONFIG" not in without


def test_no_file_of_a_run_contains_a_secret(tmp_path: Path) -> None:
    """Neither files nor terminal show a token of the environment, of a hook, or printed by the program."""
    user = User(tmp_path)
    user.program("hooks/10_h.sh", "echo env.HOOK_SECRET=hookgeheim1\n")
    script = user.program("p.py", "import os\nprint('have', os.environ['HF_TOKEN'], os.environ['HOOK_SECRET'], os.environ['API_KEY'])\n")
    done = user.run(script, "--env", "API_KEY=flaggeheim1", HF_TOKEN="envgeheim1")
    written = b"".join(path.read_bytes() for path in user.run_dir.rglob("*") if path.is_file())

    assert done.returncode == 0, done.stdout
    assert "have *** *** ***" in done.stdout
    assert b"geheim1" not in written + done.stdout.encode() + done.stderr.encode()


def test_the_terminal_output_is_copied_and_can_be_silent(tmp_path: Path) -> None:
    """--silent hides the program's output on the terminal only."""
    user = User(tmp_path)
    script = user.program("p.py", "print('some output')\n")
    loud = user.run(script, "--log_file", "copy.txt")
    silent = user.run(script, "--silent")

    assert "some output" in loud.stdout
    assert "some output" in (user.project / "copy.txt").read_text()
    assert "some output" not in silent.stdout
    assert "some output" in (user.run_dir / "logs" / "launcher-00000.log").read_text()


def test_sigterm_is_passed_on_once_and_75_is_returned(tmp_path: Path) -> None:
    """The program writes its checkpoint; the message says how to resume."""
    user = User(tmp_path)
    script = user.program("p.py", CHECKPOINT)
    child = user.start("--output", str(user.run_dir), "direct", "--single", "--script", str(script), "--")
    wait_for(user.run_dir / "ready-0")
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=60)

    assert child.returncode == 75
    assert output.count("checkpoint written") == 1
    assert f"to resume, run the same command with --output {user.run_dir}" in output


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """After the grace time, the program and its children in other sessions are killed; Ctrl-C gives 130."""
    user = User(tmp_path)
    script = user.program("p.py", DEAF)
    child = user.start("--output", str(user.run_dir), "direct", "--single", "--grace", "1", "--script", str(script), "--")
    wait_for(user.run_dir / "ready")
    pids = [int(word) for word in (user.run_dir / "pids").read_text().split()]
    started = time.monotonic()
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)

    assert child.returncode == 130
    assert time.monotonic() - started < 20
    assert [pid for pid in pids if runs(pid)] == []


def test_a_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    """A second Ctrl-C does not wait for the grace time."""
    user = User(tmp_path)
    script = user.program("p.py", DEAF)
    child = user.start("--output", str(user.run_dir), "direct", "--single", "--grace", "100", "--script", str(script), "--")
    wait_for(user.run_dir / "ready")
    started = time.monotonic()
    child.send_signal(signal.SIGINT)
    time.sleep(1.5)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)

    assert child.returncode == 130
    assert time.monotonic() - started < 20


@needs_torch
def test_a_killed_launcher_leaves_no_program(tmp_path: Path) -> None:
    """After SIGKILL of the launcher, torchrun and its ranks end and still write their checkpoint."""
    user = User(tmp_path)
    script = user.program("p.py", CHECKPOINT)
    child = user.start("--output", str(user.run_dir), "direct", "--nproc", "2", "--script", str(script), "--")
    for rank in range(2):
        wait_for(user.run_dir / f"ready-{rank}")
    records = [user.run_dir / "logs" / f"rank-0000{rank}.json" for rank in range(2)]
    pids = [json.loads(record.read_text())["pid"] for record in records]
    os.kill(child.pid, signal.SIGKILL)
    child.communicate(timeout=60)
    # The record is written after the last lines of the program.
    until(
        lambda: all(json.loads(record.read_text())["exit_code"] is not None for record in records),
        "the end of the ranks' records",
        limit_s=60,
    )

    assert [pid for pid in pids if runs(pid)] == []
    assert "checkpoint written" in (user.run_dir / "logs" / "rank-00000.log").read_text()


@needs_torch
def test_torchrun_starts_one_process_per_rank(tmp_path: Path) -> None:
    """Each rank has its file; the terminal shows rank 0 with its prefix; the plan shows torchrun's thread count."""
    user = User(tmp_path)
    script = user.program(
        "p.py", "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['OMP_NUM_THREADS'])\n"
    )
    done = user.cli("--output", str(user.run_dir), "direct", "--nproc", "2", "--script", str(script), "--")

    assert done.returncode == 0, done.stdout
    assert "/0] rank 0 of 2 1" in done.stdout
    assert "rank 1 of 2" not in done.stdout
    assert (user.run_dir / "logs" / "rank-00001.log").read_text() == "rank 1 of 2 1\n"


@needs_torch
def test_all_ranks_of_torchrun_write_their_checkpoint(tmp_path: Path) -> None:
    """Each rank gets the signal once, not through torchrun; the exit code is 75, not torchrun's 1."""
    user = User(tmp_path)
    script = user.program("p.py", CHECKPOINT)
    child = user.start("--output", str(user.run_dir), "direct", "--nproc", "2", "--script", str(script), "--")
    for rank in range(2):
        wait_for(user.run_dir / f"ready-{rank}")
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=60)
    logs = [(user.run_dir / "logs" / f"rank-0000{rank}.log").read_text() for rank in range(2)]

    assert child.returncode == 75, output
    assert logs == ["checkpoint written\n"] * 2
    assert "Traceback" not in output


@needs_torch
def test_the_exit_code_of_the_rank_that_failed_first_is_returned(tmp_path: Path) -> None:
    """After it, torchrun stops the other ranks."""
    user = User(tmp_path)
    script = user.program("p.py", "import os, sys, time\nif os.environ['RANK'] == '1':\n    sys.exit(66)\ntime.sleep(60)\n")
    done = user.cli("--output", str(user.run_dir), "direct", "--nproc", "2", "--script", str(script), "--")

    assert done.returncode == 66


def test_a_python_without_torch_is_an_error(tmp_path: Path) -> None:
    """The message names the Python and the flags to pass."""
    user = User(tmp_path)
    user.fake_program("bare", f'#!/bin/bash\nexec {sys.executable} -S -I "$@"\n')
    done = user.cli("--output", str(user.run_dir), "direct", "--python", "bare", "--script", str(user.program("p.py", "")), "--")

    assert done.returncode == 3
    assert "bare has no torch" in done.stdout + done.stderr


def test_a_virtual_environment_comes_first(tmp_path: Path) -> None:
    """Its Python runs the program; another folder is an error. VENV_ACTIVATE has the same effect."""
    user = User(tmp_path)
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (venv / "bin" / name).symlink_to(sys.executable)
    seen = environment_of(user, "--venv", str(venv))
    by_variable = environment_of(user, VENV_ACTIVATE=str(venv / "bin" / "activate"))
    wrong = user.run(user.program("p.py", ""), "--venv", str(user.home))

    assert seen["VIRTUAL_ENV"] == by_variable["VIRTUAL_ENV"] == str(venv)
    assert seen["PATH"].startswith(f"{venv}/bin:")
    assert (wrong.returncode, "is not a virtual environment" in wrong.stderr) == (3, True)


def test_several_nodes_need_output(tmp_path: Path) -> None:
    """Without --output each node would use a folder of its own."""
    done = User(tmp_path).cli("--dry-run", "direct", "--nnodes", "2", "--node-rank", "0", "--master-addr", "a", "--", "train", "pretrain")

    assert (done.returncode, "a run on 2 nodes needs --output" in done.stderr) == (3, True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["--nnodes=2", "--nproc-per-node=1", "--node-rank=1", "--master-addr=n0", "--master-port=29400"]),
        (
            ("--rendezvous", "c10d", "--master-port", "5"),
            ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=n0:5", "--rdzv-id=run", "--rdzv-conf=is_host=0"],
        ),
    ],
)
def test_rendezvous_arguments_of_torchrun(tmp_path: Path, options: tuple[str, ...], expected: list[str]) -> None:
    """With node ranks (static), or c10d."""
    user = User(tmp_path)
    words = ("--dry-run", "--output", str(user.run_dir), "direct", "--nnodes", "2", "--node-rank", "1", "--master-addr", "n0", *options)
    done = user.cli(*words, "--", "train", "pretrain")
    (line,) = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("execute ")]

    assert line[4 : 4 + len(expected)] == expected


@needs_torch
def test_two_nodes_on_one_host(tmp_path: Path) -> None:
    """Two launchers with the same folder run two ranks."""
    user = User(tmp_path)
    script = user.program("p.py", "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    words = (
        "--output",
        str(user.run_dir),
        "direct",
        "--nnodes",
        "2",
        "--nproc",
        "1",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        "28711",
    )
    children = [user.start(*words, "--node-rank", str(number), "--script", str(script), "--") for number in range(2)]
    outputs = [child.communicate(timeout=60)[0] for child in children]

    assert [child.returncode for child in children] == [0, 0], outputs
    assert ["rank 0 of 2" in outputs[0], "rank 1 of 2" in outputs[1]] == [True, True]
    assert {"plan.json", "plan-00001.json"} <= {path.name for path in user.run_dir.iterdir()}
