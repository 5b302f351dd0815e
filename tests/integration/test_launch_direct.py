"""primus_bootstrap.launch.runtimes.direct: runs on this host, from the command line to the exit code, with real processes."""

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

from tests.unit.launch_cli_rig import User, wait_for
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
    """Say whether a process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123 - a file of the kernel
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def torch_is_there() -> bool:
    """Say whether this Python has torch."""
    code = "from importlib.metadata import version; version('torch')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60).returncode == 0


needs_torch = pytest.mark.skipif(not torch_is_there(), reason="this Python has no torch")


def environment_of(user: User, *options: str, **more: str) -> dict[str, str]:
    """Return the environment that a program got."""
    script = user.program("env.py", "import json, os, sys\njson.dump(dict(os.environ), open(os.environ['RUN_DIR'] + '/seen.json', 'w'))\n")
    done = user.run(script, *options, arguments=(), **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((user.run_dir / "seen.json").read_text()))


def test_dry_run_prints_the_plan_and_does_nothing_else(tmp_path: Path) -> None:
    """No folder, no hook, no patch, no program; and no secret in what is printed."""
    user = User(tmp_path)
    for name in ("hooks/10_h.sh", "fix.sh"):
        user.program(name, f"touch {user.folder}/ran\n")
    before = sorted(user.folder.rglob("*"))
    words = ("--dry-run", "direct", "--nproc", "2", "--patch", "fix.sh", "--env", "HF_TOKEN=geheim123", "--", "train", "pretrain", "a=1")
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
    assert execute[-1] == "a=1"


def test_the_program_gets_its_words_and_its_code_comes_back(tmp_path: Path) -> None:
    """Words with spaces stay whole; the exit code is the program's."""
    user = User(tmp_path)
    script = user.program("p.py", "import sys\nprint(sys.argv[1:])\nsys.exit(9)\n")
    done = user.run(script, arguments=("a b", "--", "--x=1"))

    assert done.returncode == 9
    assert "['a b', '--', '--x=1']" in done.stdout


def test_any_executable_can_be_the_program(tmp_path: Path) -> None:
    """A script of the shell runs as well as Python; a signal that ends it is 128 + its number."""
    user = User(tmp_path)
    done = user.run(user.program("p.sh", "#!/bin/bash\necho from the shell\nkill -KILL $$\n"))

    assert "from the shell" in done.stdout
    assert done.returncode == 137


def test_variables_from_all_sides_in_their_order(tmp_path: Path) -> None:
    """The host's profile yields to the environment, that to hooks, those to patches, and what the user states wins."""
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


def test_a_run_says_where_it_is(tmp_path: Path) -> None:
    """Programs find their folder, task and node by variables; the profile can be left out."""
    user = User(tmp_path)
    seen = environment_of(user, "--no-profile")

    assert (seen["RUN_DIR"], seen["PRIMUS_TASK"], seen["NODE_RANK"], seen["NNODES"]) == (str(user.run_dir), "script", "0", "1")
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in seen


def test_hooks_add_arguments_before_and_look_back_after(tmp_path: Path) -> None:
    """An argument of a hook comes last; hooks of after see the exit code; those of failure are not run."""
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


def test_hooks_of_failure_run_and_do_not_change_the_code(tmp_path: Path) -> None:
    """After a failure both kinds run, one that fails itself is said."""
    user = User(tmp_path)
    user.program("hooks/after/10_a.sh", "exit 5\n")
    user.program("hooks/on_failure/10_f.sh", 'echo "saw $PRIMUS_EXIT_CODE"\n')
    done = user.run(user.program("p.py", "raise SystemExit(3)\n"))

    assert done.returncode == 3
    assert "10_a.sh: it ended with 5" in done.stdout
    assert "[on_failure-10_f] saw 3" in done.stdout


def test_a_patch_that_fails_stops_the_run_before_the_program(tmp_path: Path) -> None:
    """A correctness patch that did not apply is not passed over; the program never starts."""
    user = User(tmp_path)
    user.program("bad.sh", "echo cannot\nexit 1\n")
    user.program("skip.py", "raise SystemExit(2)\n")
    script = user.program("p.py", "print('started')\n")
    skipped = user.run(script, "--patch", "skip.py")
    stopped = user.run(script, "--patch", "bad.sh")

    assert (skipped.returncode, "started" in skipped.stdout) == (0, True)
    assert (stopped.returncode, "started" in stopped.stdout) == (4, False)
    assert "bad.sh: it ended with 1\n  | cannot\n  fix: " in stopped.stdout


def test_a_hook_can_keep_the_program_from_starting(tmp_path: Path) -> None:
    """PRIMUS_SKIP_MAIN_LAUNCH=1 ends the run well after hooks and patches."""
    user = User(tmp_path)
    user.program("hooks/10_h.sh", "echo env.PRIMUS_SKIP_MAIN_LAUNCH=1\n")
    done = user.run(user.program("p.py", "print('hello')\n"))

    assert (done.returncode, "hello" in done.stdout) == (0, False)


def test_determinism_is_one_variable(tmp_path: Path) -> None:
    """The built-in hook sets what is not set yet, and nothing without the variable."""
    user = User(tmp_path)
    with_it = environment_of(user, PRIMUS_DETERMINISTIC="1", NCCL_ALGO="Tree")
    without = environment_of(user)

    assert (with_it["NCCL_ALGO"], with_it["CUBLAS_WORKSPACE_CONFIG"]) == ("Tree", ":4096:8")
    assert "CUBLAS_WORKSPACE_CONFIG" not in without


def test_no_file_of_a_run_holds_a_secret(tmp_path: Path) -> None:
    """A token in the environment, of a hook, and printed by the program is in no file and not on the terminal."""
    user = User(tmp_path)
    user.program("hooks/10_h.sh", "echo env.HOOK_SECRET=hookgeheim1\n")
    script = user.program("p.py", "import os\nprint('have', os.environ['HF_TOKEN'], os.environ['HOOK_SECRET'], os.environ['API_KEY'])\n")
    done = user.run(script, "--env", "API_KEY=flaggeheim1", HF_TOKEN="envgeheim1")
    written = b"".join(path.read_bytes() for path in user.run_dir.rglob("*") if path.is_file())

    assert done.returncode == 0, done.stdout
    assert "have *** *** ***" in done.stdout
    assert b"geheim1" not in written + done.stdout.encode() + done.stderr.encode()


def test_the_terminal_has_a_copy_and_can_be_silent(tmp_path: Path) -> None:
    """What the terminal shows is in a file; silent keeps the program off the terminal only."""
    user = User(tmp_path)
    script = user.program("p.py", "print('some output')\n")
    loud = user.run(script, "--log_file", "copy.txt")
    silent = user.run(script, "--silent")

    assert "some output" in loud.stdout
    assert "some output" in (user.project / "copy.txt").read_text()
    assert "some output" not in silent.stdout
    assert "some output" in (user.run_dir / "logs" / "launcher-00000.log").read_text()


def test_sigterm_is_passed_on_once_and_a_checkpoint_is_75(tmp_path: Path) -> None:
    """The program has time for its checkpoint; the launcher ends with its 75 and says how to go on."""
    user = User(tmp_path)
    script = user.program("p.py", CHECKPOINT)
    child = user.start("--output", str(user.run_dir), "direct", "--single", "--script", str(script), "--")
    wait_for(user.run_dir / "ready-0")
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=60)

    assert child.returncode == 75
    assert output.count("checkpoint written") == 1
    assert f"the same command with --output {user.run_dir} goes on" in output


def test_nothing_is_left_of_a_program_that_does_not_listen(tmp_path: Path) -> None:
    """When the grace is over, the program and what it started in a session of its own are ended; Ctrl-C ends in 130."""
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


def test_an_insisting_user_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    """A second Ctrl-C after a moment ends everything at once."""
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
    """SIGKILL of the launcher ends torchrun and its ranks, which still write their checkpoint."""
    user = User(tmp_path)
    script = user.program("p.py", CHECKPOINT)
    child = user.start("--output", str(user.run_dir), "direct", "--nproc", "2", "--script", str(script), "--")
    for rank in range(2):
        wait_for(user.run_dir / f"ready-{rank}")
    records = [user.run_dir / "logs" / f"rank-0000{rank}.json" for rank in range(2)]
    pids = [json.loads(record.read_text())["pid"] for record in records]
    os.kill(child.pid, signal.SIGKILL)
    child.communicate(timeout=60)
    # A rank's last lines are copied after its program's end; its record says when that is done.
    until(
        lambda: all(json.loads(record.read_text())["exit_code"] is not None for record in records),
        "the end of the ranks' records",
        limit_s=60,
    )

    assert [pid for pid in pids if runs(pid)] == []
    assert "checkpoint written" in (user.run_dir / "logs" / "rank-00000.log").read_text()


@needs_torch
def test_torchrun_starts_a_process_a_rank_and_rank_0_is_on_the_terminal(tmp_path: Path) -> None:
    """Each rank has its file; the terminal has rank 0 with its prefix; threads are torchrun's choice, said in the plan."""
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
    """The signal goes to the ranks once, past torchrun, and the code is 75 where torchrun itself says 1."""
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
def test_the_code_of_the_rank_that_failed_first_comes_back(tmp_path: Path) -> None:
    """One rank fails, the others are ended by torchrun: its code counts."""
    user = User(tmp_path)
    script = user.program("p.py", "import os, sys, time\nif os.environ['RANK'] == '1':\n    sys.exit(66)\ntime.sleep(60)\n")
    done = user.cli("--output", str(user.run_dir), "direct", "--nproc", "2", "--script", str(script), "--")

    assert done.returncode == 66


def test_a_python_without_torch_is_said_before_torchrun(tmp_path: Path) -> None:
    """No traceback of torchrun's absence: which Python, and what to set."""
    user = User(tmp_path)
    user.stand_in("bare", f'#!/bin/bash\nexec {sys.executable} -S -I "$@"\n')
    done = user.cli("--output", str(user.run_dir), "direct", "--python", "bare", "--script", str(user.program("p.py", "")), "--")

    assert done.returncode == 3
    assert "bare has no torch" in done.stdout + done.stderr


def test_a_virtual_environment_comes_first(tmp_path: Path) -> None:
    """Its Python runs the program; a folder that is none is refused. VENV_ACTIVATE names one as well."""
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


def test_several_nodes_need_one_folder(tmp_path: Path) -> None:
    """Without --output each node would write to a folder of its own name."""
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
def test_nodes_meet_where_they_are_told(tmp_path: Path, options: tuple[str, ...], expected: list[str]) -> None:
    """Static numbers, or torchrun's own rendezvous."""
    user = User(tmp_path)
    words = ("--dry-run", "--output", str(user.run_dir), "direct", "--nnodes", "2", "--node-rank", "1", "--master-addr", "n0", *options)
    done = user.cli(*words, "--", "train", "pretrain")
    (line,) = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("execute ")]

    assert line[4 : 4 + len(expected)] == expected


@needs_torch
def test_two_nodes_on_one_host(tmp_path: Path) -> None:
    """Two launchers with the same folder make one run of two ranks."""
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
