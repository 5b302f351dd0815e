"""primus_bootstrap.launch.runtimes.slurm: the options of srun and sbatch, and runs with fake ones that execute the command."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.runtimes.slurm_options import option_words
from tests.integration.launch_cli_rig import User, wait_for

if TYPE_CHECKING:
    from pathlib import Path

# A fake srun that runs one task per node on this host: --help, -N, the variables of a step, the highest exit code; SIGTERM kills its tasks.
SRUN = """#!/usr/bin/env python3
import os, signal, subprocess, sys
words = sys.argv[1:]
if words == ["--help"]:
    print(open(os.environ["HOME"] + "/srun.help").read() if os.path.exists(os.environ["HOME"] + "/srun.help") else "usage: srun")
    sys.exit(0)
with open(os.environ["HOME"] + "/srun.log", "a") as log:
    print(*words, sep="\\x1f", file=log)
start, nodes = 0, int(os.environ.get("SLURM_NNODES", "1"))
while words[start].startswith("-"):
    if words[start] == "-N":
        start, nodes = start + 1, int(words[start + 1])
    start += 1
hosts = ",".join(["localhost", *(f"host{number}" for number in range(1, nodes))])
step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": hosts}
tasks = []
for number in range(nodes):
    environment = {**os.environ, **step, "SLURM_NODEID": str(number), "SLURMD_NODENAME": f"n{number}"}
    tasks.append(subprocess.Popen(words[start:], env=environment))
with open(os.environ["HOME"] + "/step", "w") as file:
    print(*(task.pid for task in tasks), file=file)
def kill(*_):
    print("srun: forcing job termination", flush=True)
    [task.kill() for task in tasks]
signal.signal(signal.SIGTERM, kill)
sys.exit(max(code if code >= 0 else 128 - code for code in [task.wait() for task in tasks]))
"""
# A fake scancel that signals the tasks of the fake step.
SCANCEL = """#!/usr/bin/env python3
import os, signal, sys
if sys.argv[1:] == ["77"]:
    sys.exit(os.remove(os.environ["HOME"] + "/queued"))
if sys.argv[1:] != ["--signal=TERM", "77.0"]:
    sys.exit(f"scancel: error: {sys.argv[1:]}")
[os.kill(int(pid), signal.SIGTERM) for pid in open(os.environ["HOME"] + "/step").read().split()]
"""
# A fake squeue for a job that Slurm requeues after exit code 75: the second call shows it running.
SQUEUE = """#!/usr/bin/env python3
import os, sys
assert "--jobs=77" in sys.argv[1:], sys.argv
home = os.environ["HOME"]
if os.path.exists(home + "/queued"):
    print("RUNNING")
elif os.path.exists(home + "/completing"):
    os.rename(home + "/completing", home + "/queued")
    print("COMPLETING")
"""
# A fake sbatch that records its arguments, prints a job number, and runs the script on the first node.
SBATCH = """#!/usr/bin/env python3
import os, subprocess, sys
words = sys.argv[1:]
with open(os.environ["HOME"] + "/sbatch.log", "a") as log:
    print(*words, sep="\\x1f", file=log)
nodes = next((words[index + 1] for index, word in enumerate(words) if word == "-N"), "1")
print("77")
job = {"SLURM_NNODES": nodes, "SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "4"}
sys.exit(subprocess.run([words[-1]], env={**os.environ, **job}).returncode)
"""
WHO = """import os
print("node", os.environ["NODE_RANK"], "of", os.environ["NNODES"], "is", os.environ["PRIMUS_NODE"], os.environ.get("M"), flush=True)
"""


@pytest.fixture
def user(tmp_path: Path) -> User:
    """A user with Slurm."""
    found = User(tmp_path)
    found.fake_program("srun", SRUN)
    found.fake_program("sbatch", SBATCH)
    found.fake_program("scancel", SCANCEL)
    found.fake_program("squeue", SQUEUE)
    return found


def words_of(user: User, program: str) -> list[str]:
    """Return the words of the last call of srun or sbatch."""
    return (user.home / f"{program}.log").read_text().splitlines()[-1].split("\x1f")


def planned(user: User, *words: str, **environment: str) -> str:
    """Return a plan as text."""
    done = user.cli("--dry-run", "--output", str(user.run_dir), "slurm", *words, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def execute_line(plan: str) -> list[str]:
    """Return the command that a plan executes."""
    (line,) = [line for line in plan.splitlines() if line.startswith("execute ")]
    return shlex.split(line)[1:]


def test_srun_starts_one_launcher_per_node_with_the_users_options(user: User) -> None:
    """The user's options are unchanged and come last, so that they take precedence."""
    words = execute_line(
        planned(
            user, "srun", "-N", "8", "-p", "gpu", "--exclusive", "--", "direct", "--nproc", "4", "--", "train", "pretrain", "train.steps=1"
        )
    )

    assert words[1:5] == ["--ntasks-per-node=1", "--kill-on-bad-exit=1", "--cpu-bind=none", "--job-name=train-pretrain"]
    assert words[5:10] == ["-N", "8", "-p", "gpu", "--exclusive"]
    assert words[10:14] == ["python3", f"{user.run_dir}/primus-cli.pyz", "--only-flags", "direct"]
    assert words[14:] == [f"--output={user.run_dir}", "--nproc=4", "--nodes-from=slurm", "--", "train", "pretrain", "train.steps=1"]
    assert not user.run_dir.exists()


def test_the_settings_of_a_container_are_forwarded(user: User) -> None:
    """Each node uses the same settings, including lists; no secret is on the command line."""
    plan = planned(
        user, "srun", "-N", "2", "--", "container", "--image", "i", "--ulimit=[]", "--env", "HF_TOKEN=geheim123", "--", "train", "pretrain"
    )
    words = execute_line(plan)

    assert words[words.index("--only-flags") + 1 :][:2] == ["container", f"--output={user.run_dir}"]
    assert {"--image=i", "--ulimit=[]", "--nodes-from=slurm", "--env=HF_TOKEN"} <= set(words)
    assert "geheim123" not in plan


def test_pyxis_starts_the_container_if_srun_has_it(user: User) -> None:
    """The mounts and the image are options of srun; slurm.pyxis can switch it off."""
    (user.home / "srun.help").write_text("      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n")
    line = ("srun", "-N", "2", "--", "container", "--image", "nvcr.io/nvidia/pytorch:25.09", "--", "train", "pretrain")
    with_pyxis = execute_line(planned(user, *line))
    without = execute_line(planned(user, *line, PRIMUS_CLI_SLURM_PYXIS="off"))

    assert "--container-image=nvcr.io#nvidia/pytorch:25.09" in with_pyxis
    assert f"--container-workdir={user.project}" in with_pyxis
    assert with_pyxis[with_pyxis.index("--only-flags") + 1] == "direct"
    assert without[without.index("--only-flags") + 1] == "container"


@pytest.mark.parametrize("option", ["-n4", "--ntasks=4", "--ntasks-per-node=8"])
def test_several_launchers_per_node_are_an_error(user: User, option: str) -> None:
    """The launcher starts the ranks, not Slurm."""
    done = user.cli("slurm", "srun", option, "--", "train", "pretrain")

    assert done.returncode == 2
    assert f"slurm: {option}: primus-cli starts one launcher on each node" in done.stderr


def test_task_counts_of_an_allocation_are_not_passed_to_srun(user: User) -> None:
    """Otherwise srun would read these variables as options and start more launchers."""
    user.fake_program("srun", '#!/bin/bash\nenv > "$HOME/seen"\n')
    counts = {"SLURM_NTASKS": "16", "SLURM_NPROCS": "16", "SLURM_NTASKS_PER_NODE": "8", "SLURM_NNODES": "2"}
    done = user.cli("--output", str(user.run_dir), "slurm", "srun", "--", "preflight", **counts)
    seen = {line.partition("=")[0] for line in (user.home / "seen").read_text().splitlines()}

    assert done.returncode == 0, done.stderr
    assert set(counts) & seen == {"SLURM_NNODES"}


@pytest.mark.parametrize("option", ["--array=0-3", "-a0-3"])
def test_an_array_is_an_error(user: User, option: str) -> None:
    """Its tasks would overwrite each other's logs in one folder. The same applies to the settings."""
    done = user.cli("slurm", "sbatch", option, "--", "train", "pretrain")

    assert (done.returncode, f"slurm: {option}: the tasks of an array" in done.stderr) == (2, True), done.stderr
    with pytest.raises(UsageError, match="array"):
        option_words({"array": "0-3"}, ())


@pytest.mark.parametrize(
    ("words", "fine"),
    [(("--export=NONE",), False), (("--export", "PATH"), False), (("--export=ALL",), True), (("--export=PATH,M=3",), True)],
)
def test_an_export_that_loses_variables_is_an_error(user: User, words: tuple[str, ...], fine: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """The values of --env are passed in Slurm's environment."""
    done = user.cli("--dry-run", "slurm", "srun", *words, "--", "direct", "--env", "M=geheim1234", "--", "train", "pretrain")

    assert done.returncode == (0 if fine else 2), done.stderr
    assert fine or "--export does not pass these variables of --env to the nodes: M" in done.stderr


def test_a_missing_srun_is_an_error(tmp_path: Path) -> None:
    """A laptop has no Slurm."""
    if shutil.which("srun"):
        pytest.skip("this machine has srun")
    done = User(tmp_path).cli("slurm", "srun", "--", "train", "pretrain")

    assert (done.returncode, done.stderr.splitlines()[0]) == (3, "primus-cli: srun is not on the PATH")


@pytest.mark.parametrize("launcher", ["srun", "sbatch"])
def test_every_node_runs_one_launcher(user: User, launcher: str) -> None:
    """Two nodes give two launchers with the same folder, address and port, also with sbatch."""
    script = user.program("who.py", WHO)
    options = ("--script", str(script), "--torchrun-arg=--bogus", "--env", "M=geheim1234", "--single")
    line = ("--output", str(user.run_dir), "slurm", launcher, "-N", "1", "--", "direct", *options, "--", "x")
    done = user.cli(*line)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "[n0/0] node 0 of 1 is n0 geheim1234" in done.stdout
    assert "geheim1234" not in " ".join(words_of(user, "srun"))
    if launcher == "sbatch":
        assert words_of(user, "sbatch")[-1] == f"{user.run_dir}/job.sbatch"
        assert "SRUN_CPUS_PER_TASK" in (user.run_dir / "job.sbatch").read_text()


@pytest.mark.parametrize("launcher", ["srun", "sbatch"])
def test_a_task_runs_once_on_each_of_two_nodes(user: User, launcher: str) -> None:
    """A task with one process per node uses one run folder and the node's number."""
    done = user.cli("--output", str(user.run_dir), "slurm", launcher, "-N", "2", "--", "preflight", "--min-free-gib", "0")
    names = sorted(path.name for path in user.run_dir.glob("preflight-*.jsonl"))

    assert names == ["preflight-n0.jsonl", "preflight-n1.jsonl"], done.stdout + done.stderr
    assert sorted(path.name for path in user.run_dir.glob("plan*.json")) == ["plan-00001.json", "plan.json"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_gives_every_node_time_for_a_checkpoint(user: User, number: signal.Signals) -> None:
    """SIGTERM goes to the step, not to srun, which would kill its tasks; the exit code is that of the programs."""
    text = "import os, sys, time, signal\nsignal.signal(15, lambda *_: sys.exit(75))\nopen('ready', 'w').close()\ntime.sleep(60)\n"
    script = user.program("p.py", text)
    child = user.start("--output", str(user.run_dir), "slurm", "srun", "--", "direct", "--single", "--script", str(script), "--")
    wait_for(user.project / "ready")
    os.kill(child.pid, number)
    output, _ = child.communicate(timeout=60)

    assert child.returncode == 75, output
    assert "SIGTERM sent to step 77.0; its ranks have 120 s" in output
    assert "forcing job termination" not in output


def test_a_signal_ends_srun_before_the_step_starts(user: User) -> None:
    """A pending job has nothing to save; the step of an earlier run in the folder is not signalled."""
    user.fake_program("srun", "#!/bin/bash\ntrap 'echo revoked; exit 1' TERM\ntouch \"$HOME/waits\"\nsleep 60 & wait\n")
    (user.run_dir / "logs").mkdir(parents=True)
    (user.run_dir / "logs" / "slurm-step").write_text("77.0\n")
    child = user.start("--output", str(user.run_dir), "slurm", "srun", "--", "preflight")
    wait_for(user.home / "waits")
    os.kill(child.pid, signal.SIGTERM)
    output, _ = child.communicate(timeout=60)

    assert (child.returncode, "revoked" in output, "asked to stop" in output) == (1, True, False), output


@pytest.mark.parametrize("inside", ["", "70"])
def test_a_job_requeued_by_slurm_is_cancelled(user: User, inside: str) -> None:
    """After exit code 75 it would only occupy its nodes; the user's own allocation is not cancelled."""
    (user.home / "completing").touch()
    script = user.project / "stop.py"
    script.write_text("raise SystemExit(75)")
    words = ("slurm", "srun", "--", "direct", "--single", "--script", str(script))
    done = user.cli("--output", str(user.run_dir), *words, **({"SLURM_JOB_ID": inside} if inside else {}))

    assert done.returncode == 75, done.stderr
    assert [(user.home / name).exists() for name in ("completing", "queued")] == [bool(inside), False]
