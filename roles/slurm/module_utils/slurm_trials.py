# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Jobs of a few seconds that show whether Slurm works: one over two nodes, and one that gives way to another and comes back.

They take only nodes that are idle, name them, and end themselves: on a busy cluster nobody else's job waits for them, none is preempted.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, NamedTuple

from ansible.module_utils.slurm_ask import CALL_S, call, fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ansible.module_utils.slurm_ask import Answer, Caller, SeenNode

NAME = "primus-verify"
# How long an idle node may take to start a job, and one trial may take in all.
START_S = 8
TRIAL_S = 20.0
POLL_S = 0.3
# Trials are root's jobs. slurmdbd makes this account and this QOS for it by itself: https://slurm.schedmd.com/accounting.html
SEAT, SEAT_QOS = "root", "normal"

# What a task prints of itself: its node, the GPUs that it is given, and names of the profile that it lacks.
LOOK = r"""
gpus=${ROCR_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES:-}}
count=$([ -z "$gpus" ] || echo "$gpus" | tr ',' '\n' | wc -l)
lacks=$(sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' /etc/primus/env.d/*.env 2> /dev/null | sort -u \
    | while read -r name; do printenv "$name" > /dev/null || printf '%s,' "$name"; done)
known=$(cat /etc/primus/env.d/*.env 2> /dev/null | grep -c '^[A-Za-z_]')
echo "seen $SLURMD_NODENAME gpus=${count:-0} profile=$known lacks=${lacks:-none}"
"""


class Trial(NamedTuple):
    """What a trial showed: a verdict word, what was expected and found, and what to do about it."""

    verdict: str
    expected: str
    found: str
    fix: str = ""


class Lane(NamedTuple):
    """A way to submit: a partition and the words that choose it, with its tier and its nodes as Slurm writes them.

    `most` is how many nodes a trial may have there, `qos` which QOS it takes (none = all).
    """

    name: str
    words: tuple[str, ...]
    tier: int
    gives_way: bool
    nodes: frozenset[str]
    most: int = 2
    qos: frozenset[str] = frozenset()


class Lanes(NamedTuple):
    """The partitions in which a trial can run, and why the others take none."""

    open: list[Lane]
    closed: list[str]


def idle(nodes: Sequence[SeenNode]) -> list[SeenNode]:
    """Return the nodes on which nothing runs and something may."""
    return [node for node in nodes if node.states == {"IDLE"}]


def gpu_count(node: SeenNode) -> int:
    """Return how many GPUs a node has for Slurm, of whatever type."""
    return sum(int(number) for number in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", node.gpus))


def lanes(caller: Caller = call, *, bound: bool) -> Lanes:
    """Return the partitions that take jobs of root of one or two nodes, and why the others do not; `bound`: accounts bind jobs."""
    told = [fields(line) for line in caller(["scontrol", "--oneliner", "show", "partitions"], CALL_S).text.splitlines()]
    found = Lanes([], [])
    for one in told:
        name = one.get("PartitionName", "")
        if not name:
            continue
        if why := why_closed(one, bound=bound):
            found.closed.append(f"partition {name} {why}")
            continue
        names = caller(["scontrol", "show", "hostnames", one["Nodes"]], CALL_S).text.split()
        qos = _words_of(one, "AllowQos")
        words = (f"--partition={name}", *([] if not qos or SEAT_QOS in qos else [f"--qos={qos[0]}"]))
        most = min(2, int(one["MaxNodes"])) if one.get("MaxNodes", "").isdecimal() else 2
        tier, gives_way = int(one.get("PriorityTier", "1")), one.get("PreemptMode") != "OFF"
        found.open.append(Lane(name, words, tier, gives_way, frozenset(names), most, frozenset(qos)))
    return found


def why_closed(one: Mapping[str, str], *, bound: bool) -> str:
    """Return why a partition takes no job of a trial, which is root's and of one or two nodes; empty where it takes one."""
    allowed, least = _words_of(one, "AllowAccounts"), one.get("MinNodes", "0")
    reasons = {
        f"is {one.get('State', 'in no known state')}": one.get("State") != "UP",
        "has no node": one.get("Nodes", "(null)") in ("", "(null)"),
        "takes no job of root": one.get("DisableRootJobs") == "YES",
        "takes only jobs of a reservation": one.get("ReqResv") == "YES",
        f"takes only the accounts {','.join(allowed)}": bound and bool(allowed) and SEAT not in allowed,
        f"refuses the account {SEAT}": bound and SEAT in _words_of(one, "DenyAccounts"),
        f"refuses the QOS {SEAT_QOS}": bound and SEAT_QOS in _words_of(one, "DenyQos"),
        f"takes only jobs of {least} nodes and more": least.isdecimal() and int(least) > 1,
        "takes no job of any node": one.get("MaxNodes") == "0",
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _words_of(one: Mapping[str, str], key: str) -> list[str]:
    """Return a partition's list; none where it is for all."""
    return [word for word in one.get(key, "").split(",") if word not in ("", "ALL", "(null)")]


def pick_pair(nodes: Sequence[SeenNode], partitions: Sequence[Lane]) -> tuple[Lane, list[SeenNode]] | None:
    """Return up to two idle nodes of one partition that have the same GPUs, those with GPUs first."""
    best: tuple[Lane, list[SeenNode]] | None = None
    for lane in partitions:
        here = sorted((node for node in idle(nodes) if node.name in lane.nodes), key=lambda node: (-gpu_count(node), node.gpus, node.name))
        pair = [node for node in here[: lane.most] if node.gpus == here[0].gpus]
        if pair and (best is None or len(pair) > len(best[1])):
            best = lane, pair
    return best


def job_over_nodes(lane: Lane, nodes: Sequence[SeenNode], caller: Caller = call) -> Trial:
    """Run one task on each node with all its GPUs, and read what each saw."""
    gpus = gpu_count(nodes[0])
    names = [node.name for node in nodes]
    words = ["srun", f"--job-name={NAME}", *lane.words, f"--nodes={len(names)}", "--ntasks-per-node=1", f"--nodelist={','.join(names)}"]
    words += [f"--gres=gpu:{gpus}"] if gpus else []
    answer = caller([*words, "--time=1", f"--immediate={START_S}", "--quiet", "/bin/sh", "-c", LOOK], TRIAL_S)
    expected = f"{len(names)} nodes, {gpus} GPUs each, every variable of their profiles"
    return judge_job(answer, names, gpus, expected)


def judge_job(answer: Answer, names: Sequence[str], gpus: int, expected: str) -> Trial:
    """Judge what the tasks printed; a job that got no nodes shows nothing."""
    seen = {match[1]: match for match in re.finditer(r"^seen (\S+) gpus=(\d+) profile=(\d+) lacks=(\S+)$", answer.text, re.MULTILINE)}
    fix = "run the same by hand: srun --nodes=2 --gpus-per-node=8 hostname; then `sinfo -R` and /var/log/slurm/slurmd.log on the nodes"
    if not seen and (answer.status is None or "Unable to allocate" in answer.text):
        return Trial("unknown", expected, f"the nodes were idle and gave no job within {START_S} s: {answer.text[-150:]}", fix)
    bad = [name for name in names if name not in seen]
    few = [f"{name} gave {seen[name][2]} GPUs" for name in names if name in seen and int(seen[name][2]) != gpus]
    lacking = [f"{name} lacks {seen[name][4]}" for name in names if name in seen and seen[name][4] != "none"]
    if answer.status == 0 and not bad and not few and not lacking:
        profile = ", ".join(f"{name}: {seen[name][3]}" for name in names)
        return Trial("pass", expected, f"{', '.join(names)} with {gpus} GPUs each; variables of the profile: {profile}")
    found = "; ".join([*(f"nothing from {name}" for name in bad), *few, *lacking]) or answer.text[-150:]
    return Trial("fail", expected, found, fix)


def preemption_pair(partitions: Sequence[Lane], qos: Sequence[tuple[str, str]], by: str) -> tuple[Lane, Lane] | None:
    """Return who gives way and who takes: by QOS where Slurm says so (pairs of winner and loser), else by tiers of partitions."""
    if by == "preempt/qos":
        for winner, losers in qos:
            for loser in filter(None, losers.split(",")):
                for lane in partitions:
                    if lane.qos and not {winner, loser} <= lane.qos:
                        continue
                    low = lane._replace(words=(lane.words[0], f"--qos={loser}"), name=f"QOS {loser}")
                    return low, lane._replace(words=(lane.words[0], f"--qos={winner}"), name=f"QOS {winner}")
    if by == "preempt/partition_prio":
        for low in sorted(partitions, key=lambda lane: lane.tier):
            for high in sorted(partitions, key=lambda lane: -lane.tier):
                if high.tier > low.tier and low.gives_way and low.nodes & high.nodes:
                    return low, high
    return None


class Preemption:
    """A job that gives way, is queued again and finishes, and the one that it gives way to."""

    def __init__(self, node: str, caller: Caller = call, wait: Callable[[float], None] = time.sleep) -> None:
        """Keep on which node, and how to ask and wait."""
        self.node = node
        self.caller = caller
        self.wait = wait
        self.jobs: list[str] = []
        self.refusal = ""

    def submit(self, lane: Lane, script: str) -> str:
        """Submit a job that takes the whole node; return its number, empty where Slurm refuses it."""
        words = [
            "sbatch",
            "--parsable",
            f"--job-name={NAME}",
            *lane.words,
            f"--nodelist={self.node}",
            "--nodes=1",
            "--exclusive",
            "--requeue",
        ]
        answer = self.caller([*words, "--time=2", "--output=/dev/null", "--chdir=/", f"--wrap={script}"], CALL_S)
        number = answer.text.split(";")[0].strip() if answer.status == 0 else ""
        self.jobs += [number] if number else []
        self.refusal = "" if number else f": {answer.text[-150:]}"
        return number

    def told(self, number: str) -> dict[str, str]:
        """Return what Slurm says of a job."""
        told: dict[str, str] = fields(self.caller(["scontrol", "--oneliner", "show", "job", number], CALL_S).text)
        return told

    def reaches(self, number: str, limit_s: float, **wanted: str) -> bool:
        """Wait until the job's fields are the wanted ones."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            told = self.told(number)
            if all(told.get(name) == value for name, value in wanted.items()):
                return True
            self.wait(POLL_S)
        return False

    def run(self, low: Lane, high: Lane) -> Trial:
        """Let one preempt the other; both are gone afterwards."""
        try:
            trial = self._run(low, high)
            if trial.verdict != "unknown" or all(self.told(number).get("JobState") != "FAILED" for number in self.jobs):
                return trial
            # Seen once in hundreds, and not explained. A second pair decides, and what the first one showed stays in the report.
            second = self._run(low, high)
            return second._replace(found=f"{second.found}; before that, {trial.found}")
        finally:
            if self.jobs:
                self.caller(["scancel", "--quiet", *self.jobs], CALL_S)

    def _run(self, low: Lane, high: Lane) -> Trial:
        expected = f"a job of {high.name} preempts one of {low.name}, which is queued again and finishes"
        fix = "see `scontrol show job`, PreemptMode and PriorityTier in `scontrol show partition`, and /var/log/slurm/slurmctld.log"
        # The second start ends at once; the first one waits to be preempted.
        first = self.submit(low, '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || exec sleep 60')
        if not first or not self.reaches(first, START_S, JobState="RUNNING"):
            return Trial(
                "unknown", expected, f"{self.node} was idle and did not start a job of {low.name} within {START_S} s{self.refusal}", fix
            )
        second = self.submit(high, "exit 0")
        if not second:
            return Trial("unknown", expected, f"Slurm takes no job of {high.name}{self.refusal}", fix)
        if not self.reaches(second, TRIAL_S, JobState="COMPLETED"):
            return Trial("fail", expected, f"a job of {high.name} did not run while one of {low.name} had {self.node}", fix)
        if not self.reaches(first, START_S, JobState="PENDING", Restarts="1"):
            return Trial("fail", expected, f"the job that gave way is {self.told(first).get('JobState', 'gone')}, not queued again", fix)
        # A job that was queued again may start after two minutes; this one need not wait.
        self.caller(["scontrol", "update", f"JobId={first}", "StartTime=now"], CALL_S)
        if not self.reaches(first, TRIAL_S, JobState="COMPLETED"):
            told = self.told(first)
            state = (
                f"{told.get('JobState', 'gone')} (exit code {told.get('ExitCode', 'not known')}, reason {told.get('Reason', 'not known')})"
            )
            return Trial("unknown", expected, f"it was queued again, and is {state} after {TRIAL_S:.0f} s", fix)
        return Trial("pass", expected, f"job {first} gave way to job {second} on {self.node}, was queued again and finished")
