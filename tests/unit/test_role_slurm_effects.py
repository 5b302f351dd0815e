"""Module `slurm_effects`: verdicts on controllers, nodes and jobs. Unknown and skipped never count as a pass."""

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
trials: Any = sys.modules["ansible.module_utils.slurm_test_jobs"]
ask: Any = sys.modules["ansible.module_utils.slurm_commands"]

TESTS = ("job", "preemption")
NOBODY = effects.UserTest((), effects.Path("/nowhere"))
PING = "Slurmctld(primary) at ctl1 is UP\nSlurmctld(backup) at ctl2 is UP\n"


def node(name: str, states: str = "IDLE", *, reason: str = "", gpus: str = "gpu:mi300x:8") -> Any:
    """Return a node as the controllers report it."""
    return ask.NodeState(name, frozenset(states.split("+")), reason, gpus)


def partition(name: str, *nodes: str, tier: int = 1, preemptible: bool = True) -> Any:
    """Return a partition."""
    return trials.Partition(name, (f"--partition={name}",), tier, preemptible, frozenset(nodes))


@pytest.fixture
def answer_all(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int | None], None]:
    """Give this answer to every command."""

    def answer(text: str, status: int | None = 0) -> None:
        monkeypatch.setattr(effects, "call", lambda _words, _limit_s: ask.Answer(status, text))

    return answer


@pytest.mark.parametrize(("free_mib", "verdict"), [(5000, "pass"), (256, "pass"), (255, "fail"), (0, "fail")])
def test_full_disk_below_the_state_folder_is_reported(
    free_mib: int, verdict: str, answer_all: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record has folder, free space and fix."""
    answer_all("0\n")
    monkeypatch.setattr(effects.os, "statvfs", lambda _folder: SimpleNamespace(f_bavail=free_mib * 256, f_frsize=4096))
    verdicts = effects.Verdicts("slurm", "ctl1")

    effects.add_space_verdict(verdicts, str(tmp_path))

    found = verdicts.records[0]
    assert (found["check"], found["verdict"], found["found"]) == ("slurm.state_space", verdict, f"{free_mib} MiB free")
    assert found.get("fix", str(tmp_path)).find(str(tmp_path)) >= 0


def test_missing_state_folder_is_unknown(answer_all: Any, tmp_path: Path) -> None:
    """An unreadable folder has no known free space."""
    answer_all("0\n")
    verdicts = effects.Verdicts("slurm", "ctl1")

    effects.add_space_verdict(verdicts, str(tmp_path / "none"))

    assert verdicts.records[0]["verdict"] == "unknown"


@pytest.mark.parametrize(("pid", "root"), [("4321\n", "/proc/4321/root"), ("0\n", ""), ("", ""), ("no such unit", "")])
def test_state_folder_is_read_in_the_mount_namespace_of_slurmctld(pid: str, root: str, answer_all: Any) -> None:
    """The unit may have other mounts than the host."""
    answer_all(pid)

    assert effects.slurmctld_root() == root


@pytest.mark.parametrize(
    ("number", "verdict", "fix"),
    [
        (errno.ENOTCONN, "fail", "restart slurmctld"),
        (errno.ENOENT, "unknown", "apply"),
        (errno.EACCES, "pass", ""),  # Root in a container may not look there, so the host's view counts.
        (0, "fail", "restart slurmctld"),
    ],
)
def test_stale_mount_of_slurmctld_fails(number: int, verdict: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a remount, slurmctld still uses the old mount: it answers but saves nothing."""
    root = "/proc/4321/root"

    def stat(path: str) -> SimpleNamespace:
        if path.startswith(root) and number:
            raise OSError(number, os.strerror(number), path)
        return SimpleNamespace(st_dev=66 if path.startswith(root) else 67)

    room = SimpleNamespace(f_bavail=10**9, f_frsize=4096)
    monkeypatch.setattr(effects, "os", SimpleNamespace(stat=stat, statvfs=lambda _folder: room))

    found = effects.check_space(str(tmp_path), root)

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
def test_each_controller_is_checked_and_one_answers_queries(host: str, ping: str, verdict: str, *, leads: bool, answer_all: Any) -> None:
    """The first active controller answers the other queries. A stopped one fails."""
    answer_all(ping)
    verdicts = effects.Verdicts("slurm", host)

    assert effects.check_controllers(verdicts, "controller") is leads
    assert [record["verdict"] for record in verdicts.records] == [verdict]


def test_controllers_without_an_answer_are_unknown(answer_all: Any) -> None:
    """A time-out does not prove that slurmctld is down."""
    answer_all("timed out", None)
    verdicts = effects.Verdicts("slurm", "ctl1")

    assert effects.check_controllers(verdicts, "controller") is False
    assert verdicts.records[0]["verdict"] == "unknown"
    assert verdicts.records[0]["fix"]


@pytest.mark.parametrize(
    ("ping", "status", "verdict", "goes_on"),
    [(PING, 0, "pass", True), (PING.replace("UP", "DOWN"), 1, "fail", False), ("timed out", None, "unknown", False)],
)
def test_single_node_queries_any_controller(ping: str, status: int | None, verdict: str, *, goes_on: bool, answer_all: Any) -> None:
    """Node checks need an answer. Without one, the node does not fail."""
    answer_all(ping, status)
    verdicts = effects.Verdicts("slurm", "n1")

    assert effects.check_controllers(verdicts, "node") is goes_on
    assert [(one["check"], one["verdict"]) for one in verdicts.records] == [("slurm.answered", verdict)]


def test_node_is_compared_with_its_own_description(answer_all: Any, tmp_path: Path) -> None:
    """It reads its copy of the file; other nodes are ignored."""
    answer_all("NodeName=n1 Gres=gpu:mi300x:8 State=IDLE ThreadsPerCore=1\nNodeName=n2 Gres=(null) State=DOWN ThreadsPerCore=1")
    (tmp_path / "slurm_node.json").write_text('{"gpu_type": "mi300x", "gpu_count": 8}', encoding="utf-8")
    verdicts = effects.Verdicts("slurm", "n1")
    found = effects.check_nodes(verdicts, ["n1"], tmp_path / "slurm_node.json")

    assert [one.name for one in found] == ["n1"]
    assert [(one["host"], one["check"], one["verdict"]) for one in verdicts.records] == [
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
def test_node_states_map_to_verdicts(states: str, reason: str, verdict: str) -> None:
    """A manual drain is skipped with its reason. A drain for bad health and a node that is down fail."""
    got = effects.check_state(node("n1", states, reason=reason))

    assert got.verdict == verdict
    assert reason in got.found


@pytest.mark.parametrize(
    ("count", "gpus", "in_service", "verdict"),
    [
        (8, "gpu:mi300x:8", True, "pass"),
        (8, "gpu:mi300x:7", True, "fail"),
        (8, "", True, "fail"),
        (0, "gpu:mi300x:8", True, "fail"),
        (8, "gpu:mi300x:8", False, "unknown"),
        (0, "", True, "skipped"),
    ],
)
def test_number_of_gpus_must_match(count: int, gpus: str, verdict: str, *, in_service: bool, tmp_path: Path) -> None:
    """More or fewer fail. An inactive node shows none; nodes without GPU are skipped."""
    description = tmp_path / "n1.json"
    description.write_text(json.dumps({"gpu_type": "mi300x", "gpu_count": count}), encoding="utf-8")
    verdicts = effects.Verdicts("slurm", "ctl1")
    effects.check_gpus(verdicts, node("n1", gpus=gpus), description, in_service=in_service)

    assert [(record["host"], record["verdict"]) for record in verdicts.records] == [("n1", verdict)]


def test_unknown_member_is_unknown(answer_all: Any, tmp_path: Path) -> None:
    """No run has reached the host; the record has a fix."""
    answer_all("NodeName=n1 Gres=(null) State=IDLE ThreadsPerCore=1")
    (tmp_path / "n1.json").write_text('{"gpu_type": "", "gpu_count": 0}', encoding="utf-8")
    verdicts = effects.Verdicts("slurm", "ctl1")
    effects.check_nodes(verdicts, ["n1", "n2"], tmp_path)

    assert [(record["host"], record["check"], record["verdict"]) for record in verdicts.records] == [
        ("n1", "slurm.node", "pass"),
        ("n1", "slurm.gpus", "skipped"),
        ("n2", "slurm.node", "unknown"),
    ]


@pytest.mark.parametrize(("answering", "verdict"), [((), "fail"), (("ctl1",), "unknown"), (("ctl1", "n1"), "fail")])
def test_a_node_that_the_run_lost_is_not_the_controllers_fault(
    answering: Sequence[str], verdict: str, answer_all: Any, tmp_path: Path
) -> None:
    """Its own failure is in the report. A node that answers and is down in Slurm fails."""
    answer_all("NodeName=n1 Gres=(null) State=DOWN+NOT_RESPONDING ThreadsPerCore=1")
    (tmp_path / "n1.json").write_text('{"gpu_type": "", "gpu_count": 0}', encoding="utf-8")
    verdicts = effects.Verdicts("slurm", "ctl1")
    effects.check_nodes(verdicts, ["n1"], tmp_path, answering)

    first = verdicts.records[0]
    assert (first["check"], first["verdict"]) == ("slurm.node", verdict)
    assert ("this run did not reach the host" in first.get("reason", "")) is (verdict == "unknown")


def test_trial_jobs_use_idle_gpu_nodes_of_one_partition() -> None:
    """Busy and inactive nodes are skipped. Two equal nodes are preferred."""
    nodes = [node("n1", "MIXED"), node("n2", gpus=""), node("n3"), node("n4"), node("n5", "IDLE+DRAIN")]
    small, big = partition("small", "n3"), partition("big", "n1", "n2", "n3", "n4", "n5")

    assert [one.name for one in trials.pick_pair(nodes, [small, big])[1]] == ["n3", "n4"]
    assert trials.pick_pair([node("n1", "ALLOCATED")], [big]) is None


# As scontrol 22.05.8 prints a partition on one line, shortened.
PARTITION = (
    "PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL DisableRootJobs=NO MaxNodes=UNLIMITED MinNodes=0 Nodes={nodes} "
    "PriorityTier=1 ReqResv=NO PreemptMode=REQUEUE State=UP"
)


class Controllers:
    """Controllers with partitions that differ from the default; srun fails, and its calls are recorded."""

    def __init__(self, partitions: dict[str, dict[str, str]], config: str = "") -> None:
        """Store the answers."""
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
        ({"MinNodes": "4"}, "", "accepts only jobs with at least 4 nodes"),
        ({"DisableRootJobs": "YES"}, "", "rejects jobs of root"),
        ({"ReqResv": "YES"}, "", "accepts only jobs in reservations"),
        ({"AllowAccounts": "team,lab"}, ENFORCE, "accepts only the accounts team,lab"),
        ({"DenyAccounts": "root"}, ENFORCE, "rejects the account root"),
        ({"DenyQos": "normal"}, ENFORCE, "rejects the QOS normal"),
    ],
)
def test_job_uses_a_partition_that_accepts_it(changes: dict[str, str], config: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without such a partition, the job checks are unknown with a reason and no job is submitted."""
    both, alone = Controllers({"shut": {**changes}, "main": {}}, config), Controllers({"shut": {**changes}}, config)
    records = []
    for slurm in (both, alone):
        monkeypatch.setattr(effects, "call", slurm)
        monkeypatch.setattr(effects, "find_partitions", lambda slurm=slurm, **given: trials.find_partitions(slurm, **given))
        monkeypatch.setattr(effects, "run_multi_node_job", lambda one, pair, slurm=slurm: trials.run_multi_node_job(one, pair, slurm))
        verdicts = effects.Verdicts("slurm", "ctl1")
        effects.check_jobs(verdicts, [node("n3"), node("n4")], ["job", "preemption"], NOBODY)
        records.append(verdicts.records)

    assert [one["verdict"] for one in records[0]] == ["pass", "skipped"]
    assert "--partition=main --nodes=2" in both.jobs[0]
    assert [one["verdict"] for one in records[1]] == ["unknown", "unknown"]
    assert f"partition shut {why}" in records[1][0]["found"]
    assert alone.jobs == []


def test_trial_job_respects_partition_limits() -> None:
    """Covers node limits and allowed QOS. Account limits apply only if enforced."""
    slurm = Controllers({"one": {"MaxNodes": "1"}, "special": {"AllowQos": "urgent,big", "AllowAccounts": "team"}})
    one, special = trials.find_partitions(slurm, bound=False).open

    assert len(trials.pick_pair([node("n3"), node("n4")], [one])[1]) == 1
    assert special.options == ("--partition=special", "--qos=urgent")
    assert trials.preemption_pair([special], [("urgent", "normal"), ("urgent", "big")], "preempt/qos")[0].options[1:] == ("--qos=big",)


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
def test_job_must_run_on_each_node_with_gpus_and_variables(text: str, status: int | None, verdict: str) -> None:
    """Every node needs all of them. A pending job proves nothing."""
    got = trials.check_job_output(ask.Answer(status, text), ["n3", "n4"], 8, "all")

    assert got.verdict == verdict
    assert (got.fix == "") == (verdict == "pass")


def test_preemption_pair_follows_tiers_or_qos() -> None:
    """By tier: two partitions with a common node. By QOS: the configured pair."""
    low, high, fixed = partition("low", "n1"), partition("high", "n1", tier=10), partition("fixed", "n1", preemptible=False)
    by_tier = trials.preemption_pair([fixed, low, high], [], "preempt/partition_prio")
    by_qos = trials.preemption_pair([low], [("urgent", "normal"), ("normal", "")], "preempt/qos")

    assert [one.name for one in by_tier] == ["low", "high"]
    assert [one.options[-1] for one in by_qos] == ["--qos=normal", "--qos=urgent"]
    assert trials.preemption_pair([fixed, high], [], "preempt/partition_prio") is None
    assert trials.preemption_pair([low, high], [], "preempt/none") is None
    assert trials.preemption_pair([low, partition("high", "n2", tier=10)], [], "preempt/partition_prio") is None


class Queue:
    """Slurm's queue for the two trial jobs: `stages` are the states of each, one per query."""

    def __init__(self, low: Sequence[str], high: Sequence[str]) -> None:
        """Store the answers; the last state repeats."""
        self.stages = {"1": list(low), "2": list(high)}
        self.calls: list[str] = []

    def then(self, low: Sequence[str], high: Sequence[str]) -> Queue:
        """Set the states of a second pair of jobs."""
        self.stages |= {"3": list(low), "4": list(high)}
        return self

    def __call__(self, words: Sequence[str], _limit_s: float) -> Any:
        """Answer one command."""
        self.calls.append(" ".join(words[:2]))
        if words[0] == "sbatch":
            return ask.Answer(0, str(sum(one.startswith("sbatch") for one in self.calls)))
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
def test_preempted_job_is_requeued_and_finishes(low: list[str], high: list[str], verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure has its verdict; both jobs are always removed."""
    monkeypatch.setattr(trials, "START_S", 0.05)
    monkeypatch.setattr(trials, "JOB_S", 0.05)
    monkeypatch.setattr(trials, "RESTART_S", 0.05)
    queue = Queue(low, high)
    got = trials.PreemptionTest("n1", queue, lambda _: None).run(partition("low", "n1"), partition("high", "n1", tier=10))

    assert got.verdict == verdict
    assert queue.calls[-1] == "scancel --quiet"


@pytest.mark.parametrize(
    ("second", "verdict", "found"),
    [
        (["RUNNING", "PENDING 1", "COMPLETED 1"], "pass", "job 4 preempted job 3"),
        (["RUNNING", "PENDING 1", "FAILED 1"], "unknown", "FAILED"),
    ],
)
def test_failed_requeue_is_tried_once_more(second: list[str], verdict: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pair decides; the first result is reported."""
    monkeypatch.setattr(trials, "START_S", 0.05)
    monkeypatch.setattr(trials, "JOB_S", 0.05)
    monkeypatch.setattr(trials, "RESTART_S", 0.05)
    queue = Queue(["RUNNING", "PENDING 1", "FAILED 1"], ["COMPLETED"]).then(second, ["COMPLETED"])
    got = trials.PreemptionTest("n1", queue, lambda _: None).run(partition("low", "n1"), partition("high", "n1", tier=10))

    assert got.verdict == verdict
    assert found in got.found
    assert "; before that, the job was requeued, and is FAILED" in got.found
    assert queue.calls[-1] == "scancel --quiet"


# As `scontrol show config` of Slurm 22.05 prints it, shortened.
CONFIG = """AccountingStorageEnforce = {enforce}
JobContainerType        = {container}
PrivateData             = {private}
"""


@pytest.mark.parametrize(
    ("config", "private_data", "expected"),
    [
        (("associations,limits,qos", "job_container/tmpfs", "accounts,jobs,usage"), ["jobs", "usage"], ["pass", "pass", "pass"]),
        (("none", "job_container/none", "none"), ["jobs"], ["fail", "skipped", "skipped"]),
        (("associations", "(null)", "jobs"), [], ["skipped", "skipped", "skipped"]),
    ],
)
def test_user_isolation_settings_are_checked(
    config: tuple[str, str, str], private_data: list[str], expected: list[str], answer_all: Any
) -> None:
    """A configured but inactive setting fails; an unsupported one is skipped with a reason."""
    answer_all(CONFIG.format(enforce=config[0], container=config[1], private=config[2]))
    verdicts = effects.Verdicts("slurm", "ctl1")

    effects.check_isolation(verdicts, private_data, [])

    checks = ["slurm.private_data", "slurm.job_limits", "slurm.private_tmp"]
    assert [(one["check"], one["verdict"]) for one in verdicts.records[1:]] == list(zip(checks, expected, strict=True))
    assert all(one["reason"] for one in verdicts.records if one["verdict"] != "pass")


@pytest.mark.parametrize(
    ("tracking", "tasks", "containers", "verdict"),
    [
        ("proctrack/cgroup", "task/cgroup,task/affinity", [False, False], "pass"),
        ("proctrack/linuxproc", "task/none", [False, True], "unknown"),
        ("proctrack/cgroup", "task/affinity", [False], "unknown"),
        ("proctrack/linuxproc", "(null)", [True, True], "skipped"),
        ("proctrack/linuxproc", "(null)", [], "unknown"),
    ],
)
def test_cluster_that_does_not_confine_jobs_is_unknown(
    tracking: str, tasks: str, containers: list[bool], verdict: str, tmp_path: Path
) -> None:
    """It is a warning of the verification, with a fix. A lab of containers is skipped."""
    paths = [tmp_path / f"n{number}.json" for number in range(len(containers))]
    for path, container in zip(paths, containers, strict=True):
        path.write_text(json.dumps({"container": container}), encoding="utf-8")
    verdicts = effects.Verdicts("slurm", "ctl1")

    effects.check_confinement(verdicts, f"ProctrackType           = {tracking}\nTaskPlugin              = {tasks}\n", paths)

    (found,) = verdicts.records
    assert (found["check"], found["verdict"]) == ("slurm.confinement", verdict)
    assert verdict != "unknown" or ("can use GPUs" in found["reason"] and found["fix"])


def describe(folder: Path, **nodes: list[str]) -> Path:
    """Write the descriptions of AMD nodes with these GPU device files."""
    for name, files in nodes.items():
        (folder / f"{name}.json").write_text(json.dumps({"gpu_files": files, "gpu_vendor": "amd"}), encoding="utf-8")
    return folder


def test_job_of_an_ordinary_user_opens_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first account that Slurm knows runs it, on the nodes of the other job, with the device files of all of them."""
    calls: list[list[str]] = []

    def run(words: Sequence[str], _limit_s: float) -> Any:
        calls.append(list(words))
        return ask.Answer(0, "opened n3 3 training\nopened n4 3 training")

    monkeypatch.setattr(effects, "run_user_job", lambda *given: trials.run_user_job(*given, run))
    test = effects.user_test(["eve", "ada"], ["ada"], describe(tmp_path, n3=["/dev/dri/renderD128"], n4=["/dev/dri/renderD129"]))
    verdicts = effects.Verdicts("slurm", "ctl1")
    effects.check_user_gpus(verdicts, (partition("main", "n3", "n4"), [node("n3"), node("n4")]), test)

    assert (verdicts.records[0]["check"], verdicts.records[0]["verdict"]) == ("slurm.user_gpus", "pass")
    assert calls[0][:5] == ["runuser", "-u", "ada", "--", "srun"]
    assert {"--partition=main", "--nodelist=n3,n4", "--gres=gpu:8"} <= set(calls[0])
    assert calls[0][-4:] == ["sh", "/dev/dri/renderD128", "/dev/kfd", "/dev/dri/renderD129"]


@pytest.mark.parametrize(
    ("text", "verdict", "found"),
    [
        ("opened n3 9 training\nopened n4 9 training", "pass", "n3: 9 device files, n4: 9 device files"),
        (
            "refused n4 /dev/kfd root:render 0660\nopened n4 8 training ada\nopened n3 9 training ada",
            "fail",
            "ada (groups training ada) cannot open n4: /dev/kfd (root:render 0660)",
        ),
        ("opened n3 9 training", "unknown", "no job of ada ran"),
        ("srun: error: Unable to allocate resources: Invalid account", "unknown", "Invalid account"),
    ],
)
def test_gpu_that_the_user_cannot_open_is_named(text: str, verdict: str, found: str) -> None:
    """With its mode and the groups of the account. A job that did not run proves nothing."""
    got = trials.check_user_output(ask.Answer(0, text), ["n3", "n4"], "ada")

    assert (got.verdict, found in got.found) == (verdict, True)
    assert bool(got.fix) == (verdict != "pass")


@pytest.mark.parametrize(
    ("accounts", "users", "gpus", "reason"),
    [
        ([], [], "gpu:mi300x:8", "no account without sudo_rules"),
        (["ada"], ["eve"], "gpu:mi300x:8", "slurm_users has no account"),
        (["ada"], [], "", "no idle node has GPUs"),
    ],
)
def test_without_user_or_gpu_the_check_is_skipped(accounts: list[str], users: list[str], gpus: str, reason: str, tmp_path: Path) -> None:
    """The reason tells which of them is missing."""
    test = effects.user_test(accounts, users, describe(tmp_path, n3=["/dev/dri/renderD128"]))
    verdicts = effects.Verdicts("slurm", "ctl1")
    effects.check_user_gpus(verdicts, (partition("main", "n3"), [node("n3", gpus=gpus)]), test)

    assert verdicts.records[0]["verdict"] == "skipped"
    assert reason in verdicts.records[0]["reason"]


def proofs(tmp_path: Path, current: str, *, max_age_h: int = 24) -> Any:
    """Return the proofs of both test jobs in a folder of the test."""
    folder = tmp_path / "proofs"
    return {check: effects.ProofRecord(f"slurm.{check}", current, max_age_h, folder=folder, clock=lambda: 1000.0) for check in TESTS}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the test jobs: the job passes, and preemption is skipped as on a busy cluster. Return the tests of each run."""
    runs: list[Any] = []

    def check_jobs(verdicts: Any, _nodes: Any, checks: Any, _users: Any) -> None:
        runs.append(list(checks))
        if "job" in checks:
            verdicts.add("job", "pass", expected="1 node", found="node1")
        if "preemption" in checks:
            verdicts.skip("preemption", "no idle node")

    monkeypatch.setattr(effects, "check_jobs", check_jobs)
    monkeypatch.setattr(effects, "fingerprint", lambda files, units, facts: repr((sorted(map(str, files)), units, list(facts))))
    return runs


def verify_jobs(tmp_path: Path, nodes: Any, *, max_age_h: int = 24) -> dict[str, Any]:
    """Return the verdict of each test job, by its name."""
    verdicts = effects.Verdicts("slurm", "ctl1")
    effects.prove_jobs(verdicts, nodes, proofs(tmp_path, effects.job_fingerprint(tmp_path, nodes), max_age_h=max_age_h), NOBODY)
    return {one["check"].removeprefix("slurm."): one for one in verdicts.records}


def test_test_jobs_run_again_only_after_a_change_or_on_request(tmp_path: Path, ran: list[Any]) -> None:
    """A second verification shows the first one's pass with its age; a changed node, or an age of 0, runs the jobs."""
    (tmp_path / "slurm.conf").write_text("")
    idle_node, drained = [node("node1")], [node("node1", "IDLE+DRAIN", gpus="")]

    assert verify_jobs(tmp_path, idle_node)["job"]["found"] == "node1"
    assert verify_jobs(tmp_path, idle_node)["job"]["found"] == "node1 (proved 0 min ago)"
    assert "job" in verify_jobs(tmp_path, drained)
    assert "job" in verify_jobs(tmp_path, idle_node, max_age_h=0)
    assert [run.count("job") for run in ran] == [1, 0, 1, 1]


@pytest.mark.usefixtures("ran")
def test_boot_of_a_node_runs_the_test_jobs_again(tmp_path: Path) -> None:
    """Permissions of device files may change at a boot."""
    nodes = [ask.parse_nodes(f"NodeName=n1 State=IDLE Gres=gpu:8 BootTime=2026-11-{day}T08:00:00 SlurmdStartTime=x") for day in (27, 28)]
    first, second = (effects.job_fingerprint(tmp_path, list(found)) for found in nodes)

    assert nodes[0][0].booted == "2026-11-27T08:00:00"
    assert first != second


def test_skipped_test_job_is_tried_again(tmp_path: Path, ran: list[Any]) -> None:
    """A busy cluster proves nothing: the next verification tries the skipped test only."""
    assert verify_jobs(tmp_path, [node("node1")])["preemption"]["verdict"] == "skipped"
    assert verify_jobs(tmp_path, [node("node1")])["preemption"]["reason"] == "no idle node"
    assert ran == [["job", "preemption"], ["preemption"]]


def test_failed_test_job_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is never kept."""
    monkeypatch.setattr(effects, "check_jobs", lambda verdicts, *_: verdicts.add("job", "fail", fix="see the log"))
    for _ in range(2):
        verdicts = effects.Verdicts("slurm", "ctl1")
        effects.prove_jobs(verdicts, [node("node1")], proofs(tmp_path, "same"), NOBODY)
        assert verdicts.records[0]["verdict"] == "fail"
        assert not (tmp_path / "proofs" / "slurm.job.json").exists()
