"""Module `slurm_node_state`: drains, waits for and resumes nodes through the controllers."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Sequence

state: Any = load_role_module("slurm", "slurm_node_state")
ask: Any = sys.modules["ansible.module_utils.slurm_commands"]

# As scontrol 22.05.8 prints a node on one line, shortened.
NODE = "NodeName=n2 CPUTot=16 Gres=gpu:mi300x:8(S:0-1) NodeAddr=10.0.0.2 State={state} ThreadsPerCore=1 Partitions=main {reason}"


class Slurm:
    """A cluster of one node that answers as Slurm does and records changes."""

    def __init__(self, states: str, reason: str = "", jobs: Sequence[str] = ("",)) -> None:
        """Store state and reason; `jobs` are the answers of squeue, the last one repeats."""
        self.states, self.reason, self.jobs = states, reason, list(jobs)
        self.updates: list[str] = []

    def __call__(self, words: Sequence[str], limit_s: float) -> Any:
        """Answer one command."""
        assert limit_s > 0
        if words[1:2] == ["update"]:
            self.updates.append(" ".join(words[3:]))
            return ask.Answer(0, "")
        if words[0] == "squeue":
            return ask.Answer(0, self.jobs.pop(0) if len(self.jobs) > 1 else self.jobs[0])
        reason_field = f"Reason={self.reason} [root@2026-11-22T01:00:00]" if self.reason else "ExtSensorsTemp=n/s"
        return ask.Answer(0, NODE.format(state=self.states, reason=reason_field))


def service(slurm: Any, *, check: bool = False) -> Any:
    """Return the service of n2 on a fake cluster; waiting takes no time."""
    return state.Service("n2", check=check, caller=slurm, wait=lambda _: None)


def drain_request(wait_s: float = 0.05, *, force: bool = False) -> dict[str, Any]:
    """Return a drain request."""
    return {"state": "drained", "reason": "primus: removed", "wait_s": wait_s, "force": force}


def test_idle_node_is_drained_at_once() -> None:
    """One update with the reason; no waiting."""
    slurm = Slurm("IDLE")
    one = service(slurm)
    message = state.apply(one, drain_request())

    assert (message, one.changed, slurm.updates) == ("", True, ["State=DRAIN Reason=primus: removed"])


def test_drained_node_is_not_changed() -> None:
    """A second run changes nothing, whatever the reason."""
    slurm = Slurm("IDLE+DRAIN", "primus: removed")
    one = service(slurm)
    state.apply(one, drain_request())

    assert (one.changed, slurm.updates) == (False, [])


def test_removal_replaces_a_health_drain() -> None:
    """The health check would undo its own drain during the wait. A manual reason stays."""
    ill, manned = Slurm("IDLE+DRAIN", "primus: health: disk / is full"), Slurm("IDLE+DRAIN", "new memory on Monday")
    state.apply(service(ill), drain_request())
    state.apply(service(manned), drain_request())

    assert ill.updates == ["State=DRAIN Reason=primus: removed"]
    assert manned.updates == []


def test_drain_waits_for_running_jobs() -> None:
    """It ends when squeue lists no job."""
    slurm = Slurm("MIXED", jobs=["7 (ada)", "7 (ada)", ""])
    one = service(slurm)
    state.apply(one, drain_request(wait_s=5))

    assert slurm.updates == ["State=DRAIN Reason=primus: removed"]
    assert slurm.jobs == [""]


def test_remaining_jobs_are_reported_with_both_fixes() -> None:
    """No job is cancelled without a request; the message names the owner."""
    with pytest.raises(state.RefusedError, match=r"still has 1 jobs after 0 s: 7 \(ada\)\. Fix: .*slurm_drain_force"):
        state.apply(service(Slurm("MIXED", jobs=["7 (ada)"])), drain_request())


def test_force_sets_the_node_down_after_the_wait() -> None:
    """Jobs are requeued without an answer of the node. Jobs that end in time finish."""
    stuck, patient = Slurm("MIXED", jobs=["7 (ada)", "7 (ada)", ""]), Slurm("MIXED", jobs=["7 (ada)", ""])
    state.apply(service(stuck), drain_request(wait_s=0, force=True))
    state.apply(service(patient), drain_request(wait_s=5, force=True))

    assert [words.split()[0] for words in stuck.updates] == ["State=DRAIN", "State=DOWN"]
    assert [words.split()[0] for words in patient.updates] == ["State=DRAIN"]


def test_check_mode_neither_changes_nor_waits() -> None:
    """It reports a pending change."""
    slurm = Slurm("MIXED", jobs=["7 (ada)"])
    one = service(slurm, check=True)
    state.apply(one, drain_request(wait_s=60, force=True))

    assert (one.changed, slurm.updates) == (True, [])


@pytest.mark.parametrize(
    ("states", "reason", "updates"),
    [
        ("IDLE+DRAIN", "primus: removed", ["State=RESUME"]),
        ("DOWN+DRAIN", "primus: health: disk / is full", ["State=RESUME"]),
        ("IDLE+DRAIN", "fan is loud", []),
        ("IDLE+DRAIN", "primus quarantine by ada", []),
        ("IDLE", "", []),
    ],
)
def test_only_own_drains_are_resumed(states: str, reason: str, updates: list[str]) -> None:
    """Drains with other reasons and quarantines stay; active nodes need no change."""
    slurm = Slurm(states, reason)
    message = state.apply(service(slurm), {"state": "resumed"})

    assert slurm.updates == updates
    assert bool(message) == ("DRAIN" in states and not updates)


def test_node_unknown_to_slurm_is_accepted() -> None:
    """Neither verb changes anything. Examples: a repeated removal, a host without jobs."""

    def unknown(words: Sequence[str], _limit_s: float) -> Any:
        return ask.Answer(1, f"slurm_load_node error: Node {words[-1]} not found")

    assert state.apply(service(unknown), drain_request()) == "Slurm does not know n2"
    assert state.apply(service(unknown), {"state": "resumed"}) == "Slurm does not know n2"


@pytest.mark.parametrize("answer", [(1, "Unable to contact slurm controller (connect failure)"), (None, "timed out after 15 seconds")])
def test_unreachable_controllers_are_an_error(answer: tuple[int | None, str]) -> None:
    """The error differs from an unknown node."""
    with pytest.raises(ConnectionError, match=r"contact|timed out"):
        state.apply(service(lambda _words, _limit_s: ask.Answer(*answer)), drain_request())


def test_state_strings_are_parsed() -> None:
    """A star means no answer, plus signs join states. Reasons keep blanks and lose Slurm's time stamp."""
    reason = "Reason=two words [root@2026-11-22T01:00:00]"
    lines = [NODE.format(state=word, reason=reason) for word in ("DOWN*", "IDLE+DRAIN", "MIXED+PLANNED")]
    nodes = ask.parse_nodes("\n".join(lines))

    assert [sorted(node.states) for node in nodes] == [["DOWN", "NOT_RESPONDING"], ["DRAIN", "IDLE"], ["MIXED", "PLANNED"]]
    assert {(node.reason, node.gpus) for node in nodes} == {("two words", "gpu:mi300x:8")}


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("admin: set State=RESUME after RMA=4711 T=hot", "admin: set State=RESUME after RMA=4711 T=hot"),
        ("set State=IDLE Gres=none [root@2026-11-22T01:00:00]", "set State=IDLE Gres=none"),
        ("see [ops@site] State=IDLE [root@2026-11-22T01:00:00] Comment=Reason=x", "see [ops@site] State=IDLE"),
        ("no stamp Comment=two words", "no stamp"),
    ],
)
def test_reason_with_fields_changes_no_state(printed: str, reason: str) -> None:
    """A reason is free text: the state before it counts, and the reason stays whole, without what Slurm prints after it."""
    (node,) = ask.parse_nodes(NODE.format(state="IDLE+DRAIN", reason=f"Reason={printed}"))

    assert (sorted(node.states), node.reason, node.gpus) == (["DRAIN", "IDLE"], reason, "gpu:mi300x:8")


@pytest.mark.parametrize(("after", "refused"), [("IDLE", False), ("IDLE+DRAIN", True), ("DOWN", True)])
def test_concurrent_resume_by_another_controller_is_accepted(after: str, *, refused: bool) -> None:
    """Slurm rejects the second resume. A rejection fails only if the node stays drained."""

    class Late(Slurm):
        def __call__(self, words: Sequence[str], limit_s: float) -> Any:
            if words[1:2] == ["update"]:
                self.states = after
                return ask.Answer(1, "slurm_update error: Invalid node state specified")
            return super().__call__(words, limit_s)

    with pytest.raises(state.RefusedError) if refused else nullcontext():
        state.apply(service(Late("IDLE+DRAIN", "primus: removed")), {"state": "resumed"})
