"""The module `slurm_effects`: what controllers, nodes and jobs show, judged; unknown and skipped are never a pass."""

from __future__ import annotations

import errno
import json
import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

effects: Any = load_role_module("slurm", "slurm_effects")
trials: Any = sys.modules["ansible.module_utils.slurm_trials"]
ask: Any = sys.modules["ansible.module_utils.slurm_ask"]

PING = "Slurmctld(primary) at ctl1 is UP\nSlurmctld(backup) at ctl2 is UP\n"


def node(name: str, states: str = "IDLE", *, reason: str = "", gpus: str = "gpu:mi300x:8") -> Any:
    """Return a node as the controllers see it."""
    return ask.SeenNode(name, frozenset(states.split("+")), reason, gpus)


def lane(name: str, *nodes: str, tier: int = 1, gives_way: bool = True) -> Any:
    """Return a partition."""
    return trials.Lane(name, (f"--partition={name}",), tier, gives_way, frozenset(nodes))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int | None], None]:
    """Let every command print this."""

    def answer(text: str, status: int | None = 0) -> None:
        monkeypatch.setattr(effects, "call", lambda _words, _limit_s: ask.Answer(status, text))

    return answer


@pytest.mark.parametrize(("free_mib", "verdict"), [(5000, "pass"), (256, "pass"), (255, "fail"), (0, "fail")])
def test_a_full_disk_under_the_state_is_named(
    free_mib: int, verdict: str, asked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little space fails with the folder, what is free, and what to do."""
    asked("0\n")
    monkeypatch.setattr(effects.os, "statvfs", lambda _folder: SimpleNamespace(f_bavail=free_mib * 256, f_frsize=4096))
    look = effects.Look("ctl1")

    effects.look_at_space(look, str(tmp_path))

    found = look.verdicts[0]
    assert (found["check"], found["verdict"], found["found"]) == ("slurm.state_space", verdict, f"{free_mib} MiB free")
    assert found.get("fix", str(tmp_path)).find(str(tmp_path)) >= 0


def test_a_state_folder_that_is_not_there_is_unknown(asked: Any, tmp_path: Path) -> None:
    """A folder that cannot be looked at is neither full nor empty."""
    asked("0\n")
    look = effects.Look("ctl1")

    effects.look_at_space(look, str(tmp_path / "none"))

    assert look.verdicts[0]["verdict"] == "unknown"


@pytest.mark.parametrize(("pid", "root"), [("4321\n", "/proc/4321/root"), ("0\n", ""), ("", ""), ("no such unit", "")])
def test_the_state_is_looked_at_where_slurmctld_sees_it(pid: str, root: str, asked: Any) -> None:
    """Its unit has mounts of its own: what this host has mounted says nothing of them."""
    asked(pid)

    assert effects.root_of_slurmctld() == root


@pytest.mark.parametrize(
    ("number", "verdict", "fix"),
    [
        (errno.ENOTCONN, "fail", "restart slurmctld"),
        (errno.ENOENT, "unknown", "apply"),
        (errno.EACCES, "pass", ""),  # a container's root may not look there: what the host sees counts
        (0, "fail", "restart slurmctld"),
    ],
)
def test_a_mount_that_only_slurmctld_still_sees_fails(
    number: int, verdict: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared file system was mounted anew, and slurmctld holds on to the mount before it: it answers, and saves nothing."""
    root = "/proc/4321/root"

    def stat(path: str) -> SimpleNamespace:
        if path.startswith(root) and number:
            raise OSError(number, os.strerror(number), path)
        return SimpleNamespace(st_dev=66 if path.startswith(root) else 67)

    room = SimpleNamespace(f_bavail=10**9, f_frsize=4096)
    monkeypatch.setattr(effects, "os", SimpleNamespace(stat=stat, statvfs=lambda _folder: room))

    found = effects.judge_space(str(tmp_path), root)

    assert (found.verdict, fix in found.fix) == (verdict, True)


@pytest.mark.parametrize(
    ("host", "ping", "verdict", "leads"),
    [
        ("ctl1", PING, "pass", True),
        ("ctl2", PING, "pass", False),
        ("ctl2", PING.replace("ctl1 is UP", "ctl1 is DOWN"), "pass", True),
        ("ctl1", PING.replace("ctl1 is UP", "ctl1 is DOWN"), "fail", False),
        ("ctl1", "Slurmctld(primary) at ctl1.example.com is UP", "pass", True),
    ],
)
def test_each_controller_speaks_for_itself_and_one_for_all(host: str, ping: str, verdict: str, *, leads: bool, asked: Any) -> None:
    """The first one that is up makes the rest of the look; one that is down fails."""
    asked(ping)
    look = effects.Look(host)

    assert effects.look_at_controllers(look, "controller") is leads
    assert [record["verdict"] for record in look.verdicts] == [verdict]


def test_controllers_that_give_no_answer_in_time_are_unknown(asked: Any) -> None:
    """A time-out is no proof that slurmctld is down."""
    asked("timed out", None)
    look = effects.Look("ctl1")

    assert effects.look_at_controllers(look, "controller") is False
    assert look.verdicts[0]["verdict"] == "unknown"
    assert look.verdicts[0]["fix"]


@pytest.mark.parametrize(
    ("ping", "status", "verdict", "goes_on"),
    [(PING, 0, "pass", True), (PING.replace("UP", "DOWN"), 1, "fail", False), ("timed out", None, "unknown", False)],
)
def test_a_node_that_is_looked_at_alone_asks_any_controller(
    ping: str, status: int | None, verdict: str, *, goes_on: bool, asked: Any
) -> None:
    """It goes on to itself only where somebody answers; what nobody says is not held against the node."""
    asked(ping, status)
    look = effects.Look("n1")

    assert effects.look_at_controllers(look, "node") is goes_on
    assert [(one["check"], one["verdict"]) for one in look.verdicts] == [("slurm.answered", verdict)]


def test_a_node_knows_its_own_description(asked: Any, tmp_path: Path) -> None:
    """It is held against the one file that it has, and the other nodes of the cluster are not its business."""
    asked("NodeName=n1 Gres=gpu:mi300x:8 State=IDLE ThreadsPerCore=1\nNodeName=n2 Gres=(null) State=DOWN ThreadsPerCore=1")
    (tmp_path / "slurm_node.json").write_text('{"gpu_type": "mi300x", "gpu_count": 8}', encoding="utf-8")
    look = effects.Look("n1")
    found = effects.look_at_nodes(look, ["n1"], tmp_path / "slurm_node.json")

    assert [one.name for one in found] == ["n1"]
    assert [(one["host"], one["check"], one["verdict"]) for one in look.verdicts] == [
        ("n1", "slurm.node", "pass"),
        ("n1", "slurm.gpus", "pass"),
    ]


@pytest.mark.parametrize(
    ("states", "reason", "verdict"),
    [
        ("IDLE", "", "pass"),
        ("MIXED", "", "pass"),
        ("ALLOCATED+COMPLETING", "", "pass"),
        ("DOWN+NOT_RESPONDING", "Not responding", "fail"),
        ("IDLE+INVALID_REG", "gres/gpu count reported lower than configured (0 < 8)", "fail"),
        ("DRAIN+IDLE", "primus: health: disk / is full", "fail"),
        ("DRAIN+IDLE", "primus quarantine: fan", "skipped"),
        ("DRAIN+IDLE", "new memory on Monday", "skipped"),
        ("UNKNOWN", "", "unknown"),
        ("IDLE+NOT_RESPONDING", "", "fail"),
    ],
)
def test_a_node_serves_is_broken_or_was_taken_out(states: str, reason: str, verdict: str) -> None:
    """Somebody's drain is passed over with the reason; a drain by bad health, and what is down, fails."""
    got = effects.judge_state(node("n1", states, reason=reason))

    assert got.verdict == verdict
    assert reason in got.found


@pytest.mark.parametrize(
    ("count", "gpus", "serves", "verdict"),
    [
        (8, "gpu:mi300x:8", True, "pass"),
        (8, "gpu:mi300x:7", True, "fail"),
        (8, "", True, "fail"),
        (0, "gpu:mi300x:8", True, "fail"),
        (8, "gpu:mi300x:8", False, "unknown"),
        (0, "", True, "skipped"),
    ],
)
def test_gpus_are_those_of_the_description(count: int, gpus: str, verdict: str, *, serves: bool, tmp_path: Path) -> None:
    """Fewer or more than described fails; a node that does not serve shows nothing; one without GPU is passed over."""
    fragment = tmp_path / "n1.json"
    fragment.write_text(json.dumps({"gpu_type": "mi300x", "gpu_count": count}), encoding="utf-8")
    look = effects.Look("ctl1")
    effects.look_at_gpus(look, node("n1", gpus=gpus), fragment, serves=serves)

    assert [(record["host"], record["verdict"]) for record in look.verdicts] == [("n1", verdict)]


def test_a_member_that_slurm_does_not_know_is_unknown(asked: Any, tmp_path: Path) -> None:
    """A host that no run has reached is neither good nor bad; it is named with what to do."""
    asked("NodeName=n1 Gres=(null) State=IDLE ThreadsPerCore=1")
    (tmp_path / "n1.json").write_text('{"gpu_type": "", "gpu_count": 0}', encoding="utf-8")
    look = effects.Look("ctl1")
    effects.look_at_nodes(look, ["n1", "n2"], tmp_path)

    assert [(record["host"], record["check"], record["verdict"]) for record in look.verdicts] == [
        ("n1", "slurm.node", "pass"),
        ("n1", "slurm.gpus", "skipped"),
        ("n2", "slurm.node", "unknown"),
    ]


def test_jobs_take_idle_nodes_with_gpus_of_one_partition() -> None:
    """Nodes with work or without service are left alone; two alike are better than one."""
    nodes = [node("n1", "MIXED"), node("n2", gpus=""), node("n3"), node("n4"), node("n5", "IDLE+DRAIN")]
    small, big = lane("small", "n3"), lane("big", "n1", "n2", "n3", "n4", "n5")

    assert [one.name for one in trials.pick_pair(nodes, [small, big])[1]] == ["n3", "n4"]
    assert trials.pick_pair([node("n1", "ALLOCATED")], [big]) is None


# As scontrol 22.05.8 prints a partition on one line, shortened.
PARTITION = (
    "PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL DisableRootJobs=NO MaxNodes=UNLIMITED MinNodes=0 Nodes={nodes} "
    "PriorityTier=1 ReqResv=NO PreemptMode=REQUEUE State=UP"
)


class Controllers:
    """Controllers with these partitions, each with what differs from a plain one; srun refuses and says so, and is remembered."""

    def __init__(self, partitions: dict[str, dict[str, str]], config: str = "") -> None:
        """Keep the answers."""
        lines = [PARTITION.format(name=name, nodes=changes.pop("Nodes", "n3,n4")) for name, changes in partitions.items()]
        for number, changes in enumerate(partitions.values()):
            for key, value in changes.items():
                rest = " ".join(word for word in lines[number].split() if not word.startswith(f"{key}="))
                lines[number] = f"{rest} {key}={value}"
        self.partitions, self.config = "\n".join(lines), config
        self.jobs: list[str] = []

    def __call__(self, words: Sequence[str], _limit_s: float) -> Any:
        """Answer one command."""
        if words[0] == "srun":
            self.jobs.append(" ".join(words))
            return ask.Answer(0, "\n".join(f"seen {name} gpus=8 profile=1 lacks=none" for name in words[5].partition("=")[2].split(",")))
        if words[1:3] == ["show", "hostnames"]:
            return ask.Answer(0, words[3].replace(",", "\n"))
        return ask.Answer(0, self.partitions if words[-1] == "partitions" else self.config)


ENFORCE = "AccountingStorageEnforce = associations,limits,qos\n"


@pytest.mark.parametrize(
    ("changes", "config", "why"),
    [
        ({"State": "DOWN"}, "", "is DOWN"),
        ({"Nodes": "(null)"}, "", "has no node"),
        ({"MinNodes": "4"}, "", "takes only jobs of 4 nodes and more"),
        ({"DisableRootJobs": "YES"}, "", "takes no job of root"),
        ({"ReqResv": "YES"}, "", "takes only jobs of a reservation"),
        ({"AllowAccounts": "team,lab"}, ENFORCE, "takes only the accounts team,lab"),
        ({"DenyAccounts": "root"}, ENFORCE, "refuses the account root"),
        ({"DenyQos": "normal"}, ENFORCE, "refuses the QOS normal"),
    ],
)
def test_a_job_goes_where_a_partition_takes_it(changes: dict[str, str], config: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other partition gets it; where there is no other, jobs are unknown with the reason, and nothing was submitted."""
    both, alone = Controllers({"shut": {**changes}, "main": {}}, config), Controllers({"shut": {**changes}}, config)
    verdicts = []
    for slurm in (both, alone):
        monkeypatch.setattr(effects, "call", slurm)
        monkeypatch.setattr(effects, "lanes", lambda slurm=slurm, **given: trials.lanes(slurm, **given))
        monkeypatch.setattr(effects, "job_over_nodes", lambda lane, pair, slurm=slurm: trials.job_over_nodes(lane, pair, slurm))
        look = effects.Look("ctl1")
        effects.look_at_jobs(look, [node("n3"), node("n4")])
        verdicts.append(look.verdicts)

    assert [one["verdict"] for one in verdicts[0]] == ["pass", "skipped"]
    assert "--partition=main --nodes=2" in both.jobs[0]
    assert [one["verdict"] for one in verdicts[1]] == ["unknown", "unknown"]
    assert f"partition shut {why}" in verdicts[1][0]["found"]
    assert alone.jobs == []


def test_a_trial_keeps_to_what_a_partition_allows() -> None:
    """One node where more are not allowed, a QOS that it takes, and accounts that bind nobody close nothing."""
    slurm = Controllers({"one": {"MaxNodes": "1"}, "special": {"AllowQos": "urgent,big", "AllowAccounts": "team"}})
    one, special = trials.lanes(slurm, bound=False).open

    assert len(trials.pick_pair([node("n3"), node("n4")], [one])[1]) == 1
    assert special.words == ("--partition=special", "--qos=urgent")
    assert trials.preemption_pair([special], [("urgent", "normal"), ("urgent", "big")], "preempt/qos")[0].words[1:] == ("--qos=big",)


@pytest.mark.parametrize(
    ("text", "status", "verdict"),
    [
        ("seen n3 gpus=8 profile=9 lacks=none\nseen n4 gpus=8 profile=9 lacks=none", 0, "pass"),
        ("seen n3 gpus=8 profile=9 lacks=none", 1, "fail"),
        ("seen n3 gpus=8 profile=9 lacks=none\nseen n4 gpus=7 profile=9 lacks=none", 0, "fail"),
        ("seen n3 gpus=8 profile=9 lacks=none\nseen n4 gpus=8 profile=9 lacks=NCCL_DEBUG,", 0, "fail"),
        ("srun: error: Unable to allocate resources: Requested nodes are busy", 1, "unknown"),
        ("timed out after 20 seconds", None, "unknown"),
        ("slurmstepd: error: execve(): /bin/sh: Permission denied", 2, "fail"),
    ],
)
def test_a_job_must_run_on_each_node_with_all_it_should_see(text: str, status: int | None, verdict: str) -> None:
    """Every GPU and every variable on every node; a job that got no node shows nothing."""
    got = trials.judge_job(ask.Answer(status, text), ["n3", "n4"], 8, "all")

    assert got.verdict == verdict
    assert (got.fix == "") == (verdict == "pass")


def test_tiers_or_qos_decide_who_gives_way() -> None:
    """By tier, a partition whose jobs give way and one above it with a node in common; by QOS, the pair that Slurm names."""
    low, high, fixed = lane("low", "n1"), lane("high", "n1", tier=10), lane("fixed", "n1", gives_way=False)
    by_tier = trials.preemption_pair([fixed, low, high], [], "preempt/partition_prio")
    by_qos = trials.preemption_pair([low], [("urgent", "normal"), ("normal", "")], "preempt/qos")

    assert [one.name for one in by_tier] == ["low", "high"]
    assert [one.words[-1] for one in by_qos] == ["--qos=normal", "--qos=urgent"]
    assert trials.preemption_pair([fixed, high], [], "preempt/partition_prio") is None
    assert trials.preemption_pair([low, high], [], "preempt/none") is None
    assert trials.preemption_pair([low, lane("high", "n2", tier=10)], [], "preempt/partition_prio") is None


class Queue:
    """Slurm's queue for the two jobs of the trial: `stages` are the states that each is told to be in, one a question."""

    def __init__(self, low: Sequence[str], high: Sequence[str]) -> None:
        """Keep what to answer; the last state is for good."""
        self.stages = {"1": list(low), "2": list(high)}
        self.said: list[str] = []

    def then(self, low: Sequence[str], high: Sequence[str]) -> Queue:
        """Say what a second pair of jobs is told to be in."""
        self.stages |= {"3": list(low), "4": list(high)}
        return self

    def __call__(self, words: Sequence[str], _limit_s: float) -> Any:
        """Answer one command."""
        self.said.append(" ".join(words[:2]))
        if words[0] == "sbatch":
            return ask.Answer(0, str(sum(one.startswith("sbatch") for one in self.said)))
        if words[1:2] == ["--oneliner"]:
            stages = self.stages[words[-1]]
            state = stages.pop(0) if len(stages) > 1 else stages[0]
            return ask.Answer(0, f"JobId={words[-1]} JobState={state.split()[0]} Restarts={[*state.split(), '0'][1]} BatchFlag=1")
        return ask.Answer(0, "")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (["PENDING", "RUNNING", "PENDING 1", "COMPLETED 1"], ["PENDING", "COMPLETED"], "pass"),
        (["PENDING"], ["COMPLETED"], "unknown"),
        (["RUNNING"], ["PENDING"], "fail"),
        (["RUNNING", "PREEMPTED"], ["COMPLETED"], "fail"),
        (["RUNNING", "PENDING 1"], ["COMPLETED"], "unknown"),
    ],
)
def test_a_job_gives_way_comes_back_and_finishes(low: list[str], high: list[str], verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way in which it can go wrong has its verdict, and in every one both jobs are gone afterwards."""
    monkeypatch.setattr(trials, "START_S", 0.05)
    monkeypatch.setattr(trials, "TRIAL_S", 0.05)
    queue = Queue(low, high)
    got = trials.Preemption("n1", queue, lambda _: None).run(lane("low", "n1"), lane("high", "n1", tier=10))

    assert got.verdict == verdict
    assert queue.said[-1] == "scancel --quiet"


@pytest.mark.parametrize(
    ("second", "verdict", "found"),
    [
        (["RUNNING", "PENDING 1", "COMPLETED 1"], "pass", "job 3 gave way to job 4"),
        (["RUNNING", "PENDING 1", "FAILED 1"], "unknown", "FAILED"),
    ],
)
def test_a_job_that_failed_when_it_came_back_is_tried_once_more(
    second: list[str], verdict: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second pair decides, and what the first one showed is said all the same."""
    monkeypatch.setattr(trials, "START_S", 0.05)
    monkeypatch.setattr(trials, "TRIAL_S", 0.05)
    queue = Queue(["RUNNING", "PENDING 1", "FAILED 1"], ["COMPLETED"]).then(second, ["COMPLETED"])
    got = trials.Preemption("n1", queue, lambda _: None).run(lane("low", "n1"), lane("high", "n1", tier=10))

    assert got.verdict == verdict
    assert found in got.found
    assert "; before that, it was queued again, and is FAILED" in got.found
    assert queue.said[-1] == "scancel --quiet"


# As `scontrol show config` of Slurm 22.05 prints it, shortened.
CONFIG = """AccountingStorageEnforce = {enforce}
JobContainerType        = {container}
PrivateData             = {private}
"""


@pytest.mark.parametrize(
    ("config", "wanted", "verdicts"),
    [
        (("associations,limits,qos", "job_container/tmpfs", "accounts,jobs,usage"), ["jobs", "usage"], ["pass", "pass", "pass"]),
        (("none", "job_container/none", "none"), ["jobs"], ["fail", "skipped", "skipped"]),
        (("associations", "(null)", "jobs"), [], ["skipped", "skipped", "skipped"]),
    ],
)
def test_what_keeps_users_apart_is_told(config: tuple[str, str, str], wanted: list[str], verdicts: list[str], asked: Any) -> None:
    """What is stated and not in force fails; what this cluster cannot have is skipped, with the reason."""
    asked(CONFIG.format(enforce=config[0], container=config[1], private=config[2]))
    look = effects.Look("ctl1")

    effects.look_at_isolation(look, wanted)

    checks = ["slurm.private_data", "slurm.job_limits", "slurm.private_tmp"]
    assert [(one["check"], one["verdict"]) for one in look.verdicts] == list(zip(checks, verdicts, strict=True))
    assert all(one["reason"] for one in look.verdicts if one["verdict"] != "pass")
