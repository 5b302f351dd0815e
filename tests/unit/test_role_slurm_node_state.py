"""The module `slurm_node_state`: draining, waiting and resuming by what the controllers say, never asking the node."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Sequence

state: Any = load_role_module("slurm", "slurm_node_state")
ask: Any = sys.modules["ansible.module_utils.slurm_ask"]

# As scontrol 22.05.8 prints a node on one line, shortened.
NODE = "NodeName=n2 CPUTot=16 Gres=gpu:mi300x:8(S:0-1) NodeAddr=10.0.0.2 State={state} ThreadsPerCore=1 Partitions=main {reason}"


class Slurm:
    """A cluster of one node: answers as Slurm would, and remembers what it was told to change."""

    def __init__(self, states: str, reason: str = "", jobs: Sequence[str] = ("",)) -> None:
        """Keep the node's state and reason; `jobs` are squeue's answers, the last one for good."""
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
        told = f"Reason={self.reason} [root@2026-11-22T01:00:00]" if self.reason else "ExtSensorsTemp=n/s"
        return ask.Answer(0, NODE.format(state=self.states, reason=told))


def service(slurm: Any, *, check: bool = False) -> Any:
    """Return the service of n2 on a made-up cluster; waiting takes no time."""
    return state.Service("n2", check=check, caller=slurm, wait=lambda _: None)


def drained(wait_s: float = 0.05, *, force: bool = False) -> dict[str, Any]:
    """Return the wish for a drain."""
    return {"state": "drained", "reason": "primus: removed", "wait_s": wait_s, "force": force}


def test_an_idle_node_is_drained_at_once() -> None:
    """One update with the reason, and no waiting for jobs that are not there."""
    slurm = Slurm("IDLE")
    one = service(slurm)
    said = state.bring_about(one, drained())

    assert (said, one.changed, slurm.updates) == ("", True, ["State=DRAIN Reason=primus: removed"])


def test_a_drained_node_stays_as_it_is() -> None:
    """The second run changes nothing, whatever the reason of the first was."""
    slurm = Slurm("IDLE+DRAIN", "primus: removed")
    one = service(slurm)
    state.bring_about(one, drained())

    assert (one.changed, slurm.updates) == (False, [])


def test_a_node_that_is_ill_leaves_for_good() -> None:
    """The health check would lift its own drain while the node's last jobs are waited for; a person's reason stays."""
    ill, manned = Slurm("IDLE+DRAIN", "primus: health: disk / is full"), Slurm("IDLE+DRAIN", "new memory on Monday")
    state.bring_about(service(ill), drained())
    state.bring_about(service(manned), drained())

    assert ill.updates == ["State=DRAIN Reason=primus: removed"]
    assert manned.updates == []


def test_jobs_are_waited_for() -> None:
    """The drain is done when squeue names no job any more."""
    slurm = Slurm("MIXED", jobs=["7 (ada)", "7 (ada)", ""])
    one = service(slurm)
    state.bring_about(one, drained(wait_s=5))

    assert slurm.updates == ["State=DRAIN Reason=primus: removed"]
    assert slurm.jobs == [""]


def test_jobs_that_stay_are_named_with_both_ways_out() -> None:
    """Nobody's job is ended without being asked for; the message says whose it is."""
    with pytest.raises(state.RefusedError, match=r"still has 1 jobs after 0 s: 7 \(ada\)\. Fix: .*slurm_drain_force"):
        state.bring_about(service(Slurm("MIXED", jobs=["7 (ada)"])), drained())


def test_force_sets_the_node_down_only_when_waiting_was_in_vain() -> None:
    """Down queues its jobs again and needs no word from a dead node; jobs that end in time are not touched."""
    stuck, patient = Slurm("MIXED", jobs=["7 (ada)", "7 (ada)", ""]), Slurm("MIXED", jobs=["7 (ada)", ""])
    state.bring_about(service(stuck), drained(wait_s=0, force=True))
    state.bring_about(service(patient), drained(wait_s=5, force=True))

    assert [words.split()[0] for words in stuck.updates] == ["State=DRAIN", "State=DOWN"]
    assert [words.split()[0] for words in patient.updates] == ["State=DRAIN"]


def test_check_mode_changes_and_waits_for_nothing() -> None:
    """It says that it would change something, and tells Slurm nothing."""
    slurm = Slurm("MIXED", jobs=["7 (ada)"])
    one = service(slurm, check=True)
    state.bring_about(one, drained(wait_s=60, force=True))

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
def test_only_a_drain_of_our_own_is_lifted(states: str, reason: str, updates: list[str]) -> None:
    """Another owner's reason stays, a quarantine is not ours to lift, and a node in service needs nothing."""
    slurm = Slurm(states, reason)
    said = state.bring_about(service(slurm), {"state": "resumed"})

    assert slurm.updates == updates
    assert bool(said) == ("DRAIN" in states and not updates)


def test_a_node_that_slurm_does_not_know_is_no_error() -> None:
    """Neither verb changes anything: a second removal, or a host that never ran jobs."""

    def unknown(words: Sequence[str], _limit_s: float) -> Any:
        return ask.Answer(1, f"slurm_load_node error: Node {words[-1]} not found")

    assert state.bring_about(service(unknown), drained()) == "Slurm knows no n2"
    assert state.bring_about(service(unknown), {"state": "resumed"}) == "Slurm knows no n2"


@pytest.mark.parametrize("answer", [(1, "Unable to contact slurm controller (connect failure)"), (None, "timed out after 15 seconds")])
def test_silent_controllers_are_an_error_and_not_an_unknown_node(answer: tuple[int | None, str]) -> None:
    """That nobody answers says nothing about the node."""
    with pytest.raises(ConnectionError, match=r"contact|timed out"):
        state.bring_about(service(lambda _words, _limit_s: ask.Answer(*answer)), drained())


def test_words_of_states_are_read_in_every_spelling() -> None:
    """A star is a node that does not answer; plus signs join words; reasons keep their blanks and lose Slurm's stamp."""
    reason = "Reason=two words [root@2026-11-22T01:00:00]"
    lines = [NODE.format(state=word, reason=reason) for word in ("DOWN*", "IDLE+DRAIN", "MIXED+PLANNED")]
    nodes = ask.parse_nodes("\n".join(lines))

    assert [sorted(node.states) for node in nodes] == [["DOWN", "NOT_RESPONDING"], ["DRAIN", "IDLE"], ["MIXED", "PLANNED"]]
    assert {(node.reason, node.gpus) for node in nodes} == {("two words", "gpu:mi300x:8")}


@pytest.mark.parametrize(("after", "refused"), [("IDLE", False), ("IDLE+DRAIN", True), ("DOWN", True)])
def test_a_drain_that_the_other_controller_lifts_meanwhile_is_lifted(after: str, *, refused: bool) -> None:
    """Both see it, one is first, and Slurm refuses the second one; a refusal that leaves the node out of service counts."""

    class Late(Slurm):
        def __call__(self, words: Sequence[str], limit_s: float) -> Any:
            if words[1:2] == ["update"]:
                self.states = after
                return ask.Answer(1, "slurm_update error: Invalid node state specified")
            return super().__call__(words, limit_s)

    with pytest.raises(state.RefusedError) if refused else nullcontext():
        state.bring_about(service(Late("IDLE+DRAIN", "primus: removed")), {"state": "resumed"})
