# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Run test jobs of a few seconds: one on two nodes, and one that is preempted and requeued.

They use only idle nodes, by name, and end by themselves. On a busy cluster they delay and preempt no other job.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, NamedTuple

from ansible.module_utils.slurm_commands import CALL_S, call, fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ansible.module_utils.slurm_commands import Answer, Caller, NodeState

JOB_NAME = "primus-verify"
# Time limits for the start of a job on an idle node, and for a whole test.
START_S = 8
JOB_S = 20.0
RESTART_S = 60.0  # a busy node starts a requeued job late
POLL_S = 0.3
# Test jobs run as root. slurmdbd creates this account and this QOS: https://slurm.schedmd.com/accounting.html
JOB_ACCOUNT, JOB_QOS = "root", "normal"

# Prints the node, the number of allocated GPUs, and the variables of the GPU profile that are missing.
REPORT_SCRIPT = r"""
gpus=${ROCR_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES:-}}
count=$([ -z "$gpus" ] || echo "$gpus" | tr ',' '\n' | wc -l)
lacks=$(sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' /etc/primus/env.d/*.env 2> /dev/null | sort -u \
    | while read -r name; do printenv "$name" > /dev/null || printf '%s,' "$name"; done)
known=$(cat /etc/primus/env.d/*.env 2> /dev/null | grep -c '^[A-Za-z_]')
echo "seen $SLURMD_NODENAME gpus=${count:-0} profile=$known lacks=${lacks:-none}"
"""


# Opens each device file that is an argument, and prints the files that the user cannot open, with owner and mode.
OPEN_SCRIPT = r"""
count=0
for file; do
    [ -e "$file" ] || continue
    if ( : <> "$file" ) 2> /dev/null; then count=$((count + 1)); continue; fi
    echo "refused $SLURMD_NODENAME $file $(stat -c '%U:%G %04a' "$file")"
done
echo "opened $SLURMD_NODENAME $count $(id -Gn)"
"""
# Device files beside those of the GPUs themselves that every program of a vendor opens.
CONTROL_FILES = {"amd": ("/dev/kfd",), "nvidia": ("/dev/nvidiactl", "/dev/nvidia-uvm")}


class CheckResult(NamedTuple):
    """The result of a check: a verdict, the expected and the found value, and the fix."""

    verdict: str
    expected: str
    found: str
    fix: str = ""


class Partition(NamedTuple):
    """A partition (or a QOS in it) with the options that select it.

    `max_nodes` limits the nodes of a test job, `qos` are the allowed QOS (empty: all).
    """

    name: str
    options: tuple[str, ...]
    tier: int
    preemptible: bool
    nodes: frozenset[str]
    max_nodes: int = 2
    qos: frozenset[str] = frozenset()


class Partitions(NamedTuple):
    """The partitions in which a test job can run, and the reasons why the others reject it."""

    open: list[Partition]
    closed: list[str]


def idle(nodes: Sequence[NodeState]) -> list[NodeState]:
    """Return the idle nodes."""
    return [node for node in nodes if node.states == {"IDLE"}]


def gpu_count(node: NodeState) -> int:
    """Return the number of GPUs of a node, of all types."""
    return sum(int(number) for number in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", node.gpus))


def find_partitions(caller: Caller = call, *, bound: bool) -> Partitions:
    """Return the partitions in which root can run a job on one or two nodes. `bound`: jobs need an account."""
    shown = [fields(line) for line in caller(["scontrol", "--oneliner", "show", "partitions"], CALL_S).text.splitlines()]
    found = Partitions([], [])
    for one in shown:
        name = one.get("PartitionName", "")
        if not name:
            continue
        if why := rejection_reason(one, bound=bound):
            found.closed.append(f"partition {name} {why}")
            continue
        names = caller(["scontrol", "show", "hostnames", one["Nodes"]], CALL_S).text.split()
        qos = _words_of(one, "AllowQos")
        options = (f"--partition={name}", *([] if not qos or JOB_QOS in qos else [f"--qos={qos[0]}"]))
        max_nodes = min(2, int(one["MaxNodes"])) if one.get("MaxNodes", "").isdecimal() else 2
        tier, preemptible = int(one.get("PriorityTier", "1")), one.get("PreemptMode") != "OFF"
        found.open.append(Partition(name, options, tier, preemptible, frozenset(names), max_nodes, frozenset(qos)))
    return found


def rejection_reason(one: Mapping[str, str], *, bound: bool) -> str:
    """Return why a partition rejects a job of root on one or two nodes; empty if it accepts it."""
    allowed, min_nodes = _words_of(one, "AllowAccounts"), one.get("MinNodes", "0")
    reasons = {
        f"is {one.get('State', 'in an unknown state')}": one.get("State") != "UP",
        "has no node": one.get("Nodes", "(null)") in ("", "(null)"),
        "rejects jobs of root": one.get("DisableRootJobs") == "YES",
        "accepts only jobs in reservations": one.get("ReqResv") == "YES",
        f"accepts only the accounts {','.join(allowed)}": bound and bool(allowed) and JOB_ACCOUNT not in allowed,
        f"rejects the account {JOB_ACCOUNT}": bound and JOB_ACCOUNT in _words_of(one, "DenyAccounts"),
        f"rejects the QOS {JOB_QOS}": bound and JOB_QOS in _words_of(one, "DenyQos"),
        f"accepts only jobs with at least {min_nodes} nodes": min_nodes.isdecimal() and int(min_nodes) > 1,
        "accepts no jobs (MaxNodes=0)": one.get("MaxNodes") == "0",
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _words_of(one: Mapping[str, str], key: str) -> list[str]:
    """Return a list of a partition; empty if it is unrestricted."""
    return [word for word in one.get(key, "").split(",") if word not in ("", "ALL", "(null)")]


def pick_pair(nodes: Sequence[NodeState], partitions: Sequence[Partition]) -> tuple[Partition, list[NodeState]] | None:
    """Return up to two idle nodes with the same GPUs in one partition; nodes with GPUs are preferred."""
    best: tuple[Partition, list[NodeState]] | None = None
    for partition in partitions:
        found = [node for node in idle(nodes) if node.name in partition.nodes]
        found.sort(key=lambda node: (-gpu_count(node), node.gpus, node.name))
        pair = [node for node in found[: partition.max_nodes] if node.gpus == found[0].gpus]
        if pair and (best is None or len(pair) > len(best[1])):
            best = partition, pair
    return best


def run_multi_node_job(partition: Partition, nodes: Sequence[NodeState], caller: Caller = call) -> CheckResult:
    """Run one task with all GPUs on each node, and check what each task reports."""
    gpus = gpu_count(nodes[0])
    names = [node.name for node in nodes]
    words = ["srun", f"--job-name={JOB_NAME}", *partition.options, f"--nodes={len(names)}", "--ntasks-per-node=1"]
    words += [f"--nodelist={','.join(names)}", *([f"--gres=gpu:{gpus}"] if gpus else [])]
    answer = caller([*words, "--time=1", f"--immediate={START_S}", "--quiet", "/bin/sh", "-c", REPORT_SCRIPT], JOB_S)
    expected = f"{len(names)} nodes, {gpus} GPUs each, all variables of the GPU profile"
    return check_job_output(answer, names, gpus, expected)


def check_job_output(answer: Answer, names: Sequence[str], gpus: int, expected: str) -> CheckResult:
    """Check the output of the tasks; unknown if the job got no nodes."""
    seen = {match[1]: match for match in re.finditer(r"^seen (\S+) gpus=(\d+) profile=(\d+) lacks=(\S+)$", answer.text, re.MULTILINE)}
    fix = "run the same by hand: srun --nodes=2 --gpus-per-node=8 hostname; then `sinfo -R` and /var/log/slurm/slurmd.log on the nodes"
    if not seen and (answer.status is None or "Unable to allocate" in answer.text):
        return CheckResult("unknown", expected, f"the nodes were idle, and no job started within {START_S} s: {answer.text[-150:]}", fix)
    silent = [name for name in names if name not in seen]
    few = [f"{name} gave {seen[name][2]} GPUs" for name in names if name in seen and int(seen[name][2]) != gpus]
    lacking = [f"{name} lacks {seen[name][4]}" for name in names if name in seen and seen[name][4] != "none"]
    if answer.status == 0 and not silent and not few and not lacking:
        profile = ", ".join(f"{name}: {seen[name][3]}" for name in names)
        return CheckResult("pass", expected, f"{', '.join(names)} with {gpus} GPUs each; variables of the GPU profile: {profile}")
    found = "; ".join([*(f"no output from {name}" for name in silent), *few, *lacking]) or answer.text[-150:]
    return CheckResult("fail", expected, found, fix)


def run_user_job(partition: Partition, nodes: Sequence[NodeState], user: str, files: Sequence[str], caller: Caller = call) -> CheckResult:
    """Open the GPUs of each node in a job of an ordinary user. Root, who runs the other job, can open them with any mode."""
    names = [node.name for node in nodes]
    words = ["runuser", "-u", user, "--", "srun", f"--job-name={JOB_NAME}", f"--partition={partition.name}", "--chdir=/"]
    words += [f"--nodes={len(names)}", "--ntasks-per-node=1", f"--nodelist={','.join(names)}", f"--gres=gpu:{gpu_count(nodes[0])}"]
    words += ["--time=1", f"--immediate={START_S}", "--quiet", "/bin/sh", "-c", OPEN_SCRIPT, "sh", *files]
    return check_user_output(caller(words, JOB_S), names, user)


def check_user_output(answer: Answer, names: Sequence[str], user: str) -> CheckResult:
    """Check what the tasks of the user report; unknown if the job did not run."""
    expected = f"{user} opens the GPUs of {', '.join(names)}"
    opened = {match[1]: match for match in re.finditer(r"^opened (\S+) (\d+) (.+)$", answer.text, re.MULTILINE)}
    refused = re.findall(r"^refused (\S+) (\S+) (\S+ \d+)$", answer.text, re.MULTILINE)
    if refused:
        shown = "; ".join(f"{node}: {file} ({mode})" for node, file, mode in refused[:4])
        more = f" and {len(refused) - 4} more" if len(refused) > 4 else ""
        groups = opened[refused[0][0]][3] if refused[0][0] in opened else "unknown"
        fix = f"set gpu_env_device_group to a group of {user}, or add its group to `groups` of the account; then apply the phase gpu"
        return CheckResult("fail", expected, f"{user} (groups {groups}) cannot open {shown}{more}", fix)
    if any(name not in opened for name in names):
        fix = f"run it by hand: runuser -u {user} -- srun --chdir=/ --gres=gpu:1 id"
        return CheckResult("unknown", expected, f"no job of {user} ran: {answer.text[-150:] or answer.status}", fix)
    counts = ", ".join(f"{name}: {opened[name][2]} device files" for name in names)
    return CheckResult("pass", expected, counts)


def preemption_pair(partitions: Sequence[Partition], qos: Sequence[tuple[str, str]], by: str) -> tuple[Partition, Partition] | None:
    """Return where the preempted and the preempting job are submitted.

    Args:
        partitions: The partitions that accept test jobs.
        qos: Names of QOS, each with the comma-separated names of those that it preempts.
        by: PreemptType of Slurm.
    """
    if by == "preempt/qos":
        for winner, losers in qos:
            for loser in filter(None, losers.split(",")):
                for one in partitions:
                    if one.qos and not {winner, loser} <= one.qos:
                        continue
                    low = one._replace(options=(one.options[0], f"--qos={loser}"), name=f"QOS {loser}")
                    return low, one._replace(options=(one.options[0], f"--qos={winner}"), name=f"QOS {winner}")
    if by == "preempt/partition_prio":
        for low in sorted(partitions, key=lambda one: one.tier):
            for high in sorted(partitions, key=lambda one: -one.tier):
                if high.tier > low.tier and low.preemptible and low.nodes & high.nodes:
                    return low, high
    return None


class PreemptionTest:
    """A job that is preempted, requeued and finished, and the job that preempts it."""

    def __init__(self, node: str, caller: Caller = call, wait: Callable[[float], None] = time.sleep) -> None:
        """Store the node, and how to run commands and wait."""
        self.node = node
        self.caller = caller
        self.wait = wait
        self.jobs: list[str] = []
        self.rejection = ""

    def submit(self, partition: Partition, script: str) -> str:
        """Submit a job that takes the whole node; return its id, empty if Slurm rejects it."""
        words = [
            "sbatch",
            "--parsable",
            f"--job-name={JOB_NAME}",
            *partition.options,
            f"--nodelist={self.node}",
            "--nodes=1",
            "--exclusive",
            "--requeue",
        ]
        answer = self.caller([*words, "--time=2", "--output=/dev/null", "--chdir=/", f"--wrap={script}"], CALL_S)
        number = answer.text.split(";")[0].strip() if answer.status == 0 else ""
        self.jobs += [number] if number else []
        self.rejection = "" if number else f": {answer.text[-150:]}"
        return number

    def job_fields(self, number: str) -> dict[str, str]:
        """Return the fields of a job."""
        found: dict[str, str] = fields(self.caller(["scontrol", "--oneliner", "show", "job", number], CALL_S).text)
        return found

    def wait_for(self, number: str, limit_s: float, **expected: str) -> bool:
        """Wait until the job has these values; return whether it has them in time."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            found = self.job_fields(number)
            if all(found.get(name) == value for name, value in expected.items()):
                return True
            self.wait(POLL_S)
        return False

    def run(self, low: Partition, high: Partition) -> CheckResult:
        """Run both jobs and cancel them afterwards."""
        try:
            first = self._run(low, high)
            if first.verdict != "unknown" or all(self.job_fields(number).get("JobState") != "FAILED" for number in self.jobs):
                return first
            # In about one of some hundred runs the job fails for an unknown reason. A second pair decides; the report has both results.
            second = self._run(low, high)
            return second._replace(found=f"{second.found}; before that, {first.found}")
        finally:
            if self.jobs:
                self.caller(["scancel", "--quiet", *self.jobs], CALL_S)

    def _run(self, low: Partition, high: Partition) -> CheckResult:
        expected = f"a job of {high.name} preempts one of {low.name}, which is requeued and finishes"
        fix = "see `scontrol show job`, PreemptMode and PriorityTier in `scontrol show partition`, and /var/log/slurm/slurmctld.log"
        # The first start waits to be preempted; the second one exits immediately.
        first = self.submit(low, '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || exec sleep 60')
        if not first or not self.wait_for(first, START_S, JobState="RUNNING"):
            found = f"{self.node} was idle and did not start a job of {low.name} within {START_S} s{self.rejection}"
            return CheckResult("unknown", expected, found, fix)
        second = self.submit(high, "exit 0")
        if not second:
            return CheckResult("unknown", expected, f"Slurm rejects a job of {high.name}{self.rejection}", fix)
        if not self.wait_for(second, JOB_S, JobState="COMPLETED"):
            return CheckResult("fail", expected, f"a job of {high.name} did not run while one of {low.name} ran on {self.node}", fix)
        if not self.wait_for(first, START_S, JobState="PENDING", Restarts="1"):
            state = self.job_fields(first).get("JobState", "missing")
            return CheckResult("fail", expected, f"the preempted job is {state}, not requeued", fix)
        # A requeued job starts after two minutes by default.
        self.caller(["scontrol", "update", f"JobId={first}", "StartTime=now"], CALL_S)
        if not self.wait_for(first, RESTART_S, JobState="COMPLETED"):
            shown = self.job_fields(first)
            state, code, reason = (shown.get(name, "unknown") for name in ("JobState", "ExitCode", "Reason"))
            found = f"the job was requeued, and is {state} (exit code {code}, reason {reason}) after {RESTART_S:.0f} s"
            return CheckResult("unknown", expected, found, f"verify again; if it stays unknown, {fix}")
        return CheckResult("pass", expected, f"job {second} preempted job {first} on {self.node}, which was requeued and finished")
