"""What a quarantine writes, what refuses a release, what Slurm is told, and how a look at all hosts is put together."""

from __future__ import annotations

import importlib.util
import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from primus_bootstrap import content
from primus_bootstrap.cli import quarantine_verbs
from primus_bootstrap.cli.main import app
from primus_bootstrap.fleet.messages import Answer
from primus_bootstrap.fleet.service import Quarantine, read_services
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PATH = content.roles_dir() / "quarantine/filter_plugins/quarantine.py"
SPEC = importlib.util.spec_from_file_location("quarantine_filters", PATH)
assert SPEC
assert SPEC.loader
rules = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(rules)
records = load_role_module("quarantine", "quarantine_record")
slurm = load_role_module("slurm", "slurm_quarantine")
ask = slurm.look_at_node.__globals__

FAILING = {"check": "disk", "verdict": "fail", "reason": "full"}
HEALTHY = {"verdict": "pass", "reason": "", "written": 2000.0, "checks": []}
RECORD = {"schema": "primus.quarantine/1", "host": "gpu1", "owner": "ada", "reason": "fan broken", "time": 1000.0, "verdicts": []}


def seen(record: dict[str, Any] | None = None, health: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what a host and a controller say; the host's clock is ahead of the controller's."""
    here = {"record": record or {}, "health": health or HEALTHY, "now": 1500.0}
    return {"ctl": {"record": record or {}, "health": HEALTHY, "now": 1400.0}, "gpu1": here}


def test_a_record_carries_the_failing_verdicts_and_the_hosts_time() -> None:
    """A new record says who, why and when by the host's own clock, and holds the records that fail, no others."""
    health = {**HEALTHY, "verdict": "fail", "checks": [FAILING, {"check": "clock", "verdict": "pass"}]}

    assert rules.quarantine_record(seen(health=health), "gpu1", "ada", "fan broken") == {
        **RECORD,
        "time": 1500.0,
        "clock": "gpu1",
        "verdicts": [FAILING],
    }


def test_the_same_quarantine_again_keeps_its_record() -> None:
    """The same owner and reason change nothing, the time neither; another reason is a new record."""
    assert rules.quarantine_record(seen(RECORD), "gpu1", "ada", "fan broken") == RECORD
    assert rules.quarantine_record(seen(RECORD), "gpu1", "ada", "fan is loud")["time"] == 1500.0


def test_of_a_dead_host_the_controllers_clock_counts() -> None:
    """A host that does not answer is quarantined all the same, by a controller's time."""
    dead = {**seen(), "gpu1": {"unreachable": True}}

    assert rules.quarantine_refusal(dead, "gpu1", "ada", "fan broken") == ""
    record = rules.quarantine_record(dead, "gpu1", "ada", "fan broken")
    assert (record["time"], record["clock"]) == (1400.0, "ctl")


@pytest.mark.parametrize(
    ("found", "owner", "reason", "says"),
    [
        (seen(RECORD), "bob", "mine now", "gpu1 is quarantined by ada already: fan broken. Fix: "),
        (seen(), "ada", "no", "the reason is missing, too long"),
        (seen(), "ada", "a {{ template }}", "the reason is missing, too long"),
        (seen(), "a b", "fan broken", "a b is no name of an owner"),
        ({"gpu1": {"unreachable": True}}, "ada", "fan broken", "neither gpu1 nor a Slurm controller answers, nor does Kubernetes know it"),
    ],
)
def test_a_quarantine_is_refused(found: dict[str, Any], owner: str, reason: str, says: str) -> None:
    """Another owner's quarantine stands; a reason that would be misread is refused, and a quarantine that nobody could keep."""
    said = rules.quarantine_refusal(found, "gpu1", owner, reason)

    assert said.startswith(says)
    assert "Fix: " in said


@pytest.mark.parametrize(
    ("health", "says"),
    [
        ({**HEALTHY, "written": 999.0}, "the last passing record of gpu1 is older than the quarantine. Fix: "),
        ({**HEALTHY, "written": 1000.0}, "the last passing record of gpu1 is older than the quarantine. Fix: "),
        ({**HEALTHY, "verdict": "fail", "reason": "disk: full"}, "the health of gpu1 is fail: disk: full. Fix: mend what it names"),
        ({**HEALTHY, "verdict": "unknown", "reason": "stale"}, "the health of gpu1 is unknown: stale. Fix: see `primus-health read`"),
    ],
)
def test_a_release_without_a_newer_pass_is_refused(health: dict[str, Any], says: str) -> None:
    """Only a passing record that is newer than the quarantine is a proof; unknown is none."""
    said = rules.release_refusal(seen(RECORD, health), "gpu1", "ada", proof=True, without_proof=False)

    assert said.startswith(says)


def test_a_dead_host_is_not_released() -> None:
    """A host that does not answer is unknown, also where a person vouches for it."""
    dead = {**seen(RECORD), "gpu1": {"unreachable": True}}

    assert rules.release_refusal(dead, "gpu1", "ada", proof=False, without_proof=True).startswith("gpu1 does not answer")


@pytest.mark.parametrize("record", [RECORD, {}])
def test_a_host_too_ill_to_be_asked_is_not_released(record: dict[str, Any]) -> None:
    """It answers ssh and has no Python: unknown, with what it said; also where nobody else has a record of its quarantine."""
    ill = {**seen(record), "gpu1": {"failed": False, "msg": "non-zero return code", "module_stderr": "sh: 1: python3: not found\n"}}

    said = rules.release_refusal(ill, "gpu1", "ada", proof=True, without_proof=False)

    assert said.startswith("gpu1 does not answer (sh: 1: python3: not found), so its health is unknown. Fix: ")


def test_a_pass_from_before_a_controllers_quarantine_is_no_proof() -> None:
    """The controller's clock, which dated it while the host was silent, is 100 s behind: a pass of up to 100 s later is older."""
    record = {**RECORD, "time": 1950.0, "clock": "ctl"}
    found = seen(record, {**HEALTHY, "written": 2049.0})
    found["gpu1"]["now"], found["ctl"]["now"] = 2100.0, 2000.0

    assert "is older than the quarantine" in rules.release_refusal(found, "gpu1", "ada", proof=True, without_proof=False)
    found["gpu1"]["health"]["written"] = 2051.0
    assert rules.release_refusal(found, "gpu1", "ada", proof=True, without_proof=False) == ""


def test_a_clock_that_was_set_back_is_named() -> None:
    """Nothing can be newer than a quarantine in the future: waiting for the next look would not help, another record does."""
    ahead = seen({**RECORD, "time": 5100.0})

    said = rules.release_refusal(ahead, "gpu1", "ada", proof=True, without_proof=False)

    assert "3600 s ahead of its clock" in said
    assert "quarantine it again with another reason" in said


def test_a_record_that_cannot_be_read_is_no_release(tmp_path: Path) -> None:
    """A torn file is neither a record nor none: who owns it is unknown; a quarantine writes it anew."""
    path = tmp_path / "quarantine.json"
    path.write_text('{"owner": "ad')
    found, problem = records.read_record(path)
    torn = seen()
    torn["ctl"]["problem"] = problem

    said = rules.release_refusal(torn, "gpu1", "ada", proof=True, without_proof=False)

    assert found == {}
    assert str(path) in said
    assert "(on ctl)" in said
    assert rules.quarantine_refusal(torn, "gpu1", "ada", "fan broken") == ""
    records.write_record(path, RECORD)
    assert records.read_record(path) == (RECORD, "")


def test_another_owners_quarantine_is_not_released() -> None:
    """However healthy: the owner must match."""
    said = rules.release_refusal(seen(RECORD), "gpu1", "bob", proof=True, without_proof=False)

    assert said == "the quarantine of gpu1 is ada's (fan broken), not bob's. Fix: leave it to them, or give --owner ada if that is you."


def test_a_proof_releases_and_a_host_without_checks_needs_a_person() -> None:
    """A newer pass is enough; a host outside gpu_node needs somebody who vouches; one that is not quarantined is left alone."""
    assert rules.release_refusal(seen(RECORD), "gpu1", "ada", proof=True, without_proof=False) == ""
    assert "--without-proof" in rules.release_refusal(seen(RECORD), "gpu1", "ada", proof=False, without_proof=False)
    assert rules.release_refusal(seen(RECORD), "gpu1", "ada", proof=False, without_proof=True) == ""
    assert rules.release_refusal(seen(), "gpu1", "bob", proof=True, without_proof=False) == ""


def test_a_pass_does_not_stand_in_for_a_person() -> None:
    """--without-proof is for hosts that cannot prove anything: one with checks that fail stays."""
    health = {**HEALTHY, "verdict": "fail", "reason": "disk: full"}

    assert rules.release_refusal(seen(RECORD, health), "gpu1", "ada", proof=True, without_proof=True).startswith(
        "the health of gpu1 is fail"
    )


def test_the_newest_copy_of_a_record_counts() -> None:
    """The host was quarantined anew while it was dead: the controllers' record wins over its own older one."""
    newer = {**RECORD, "time": 1200.0, "reason": "dead"}

    assert rules.quarantine_standing({"gpu1": {"record": RECORD}, "ctl": {"record": newer}, "ctl2": {}}) == newer


class Controllers:
    """Slurm's controllers: one node in a state, with a reason and jobs; what was told is kept."""

    def __init__(self, state: str, reason: str = "", jobs: str = "") -> None:
        """Keep what they know."""
        self.state, self.reason, self.jobs = state, reason, jobs
        self.told: list[str] = []

    def __call__(self, words: Sequence[str], _limit_s: float) -> Any:
        """Answer a command."""
        if words[0] == "squeue":
            return ask["Answer"](0, self.jobs)
        if words[1] == "update":
            self.told.append(" ".join(words[3:]))
            return ask["Answer"](0, "")
        return ask["Answer"](0, f"NodeName=gpu1 State={self.state} Reason={self.reason} [root@2026-01-01T00:00:00]")


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        ("IDLE", "", ["State=DRAIN Reason=primus quarantine: ada: fan broken"]),
        ("DOWN*", "Not responding", ["State=DRAIN Reason=primus quarantine: ada: fan broken"]),
        ("IDLE+DRAIN", "primus: health: disk full", ["State=DRAIN Reason=primus quarantine: ada: fan broken"]),
        ("IDLE+DRAIN", "primus quarantine: ada: fan broken", []),
        ("IDLE+DRAIN", "moving the rack", []),
    ],
)
def test_draining_leaves_an_administrators_reason(state: str, reason: str, told: list[str]) -> None:
    """A node in service, dead, or drained by the health check gets the quarantine's reason; an administrator's own stays."""
    controllers = Controllers(state, reason)
    slurm.Nodes(caller=controllers).quarantine("gpu1", "ada", "fan broken", force=False)

    assert controllers.told == told


def test_force_has_jobs_queued_again_only_where_there_are_some() -> None:
    """With force a node that has jobs goes down, so that they run elsewhere; without jobs nothing more is told."""
    busy, idle = (
        Controllers("MIXED+DRAIN", "primus quarantine: ada: x y z", "7"),
        Controllers("IDLE+DRAIN", "primus quarantine: ada: x y z"),
    )
    for controllers in (busy, idle):
        slurm.Nodes(caller=controllers).quarantine("gpu1", "ada", "x y z", force=True)

    assert busy.told == ["State=DOWN Reason=primus quarantine: ada: x y z"]
    assert idle.told == []


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        ("IDLE+DRAIN", "primus quarantine: ada: fan broken", ["State=RESUME"]),
        ("IDLE+DRAIN", "primus quarantine: bob: fan broken", []),
        ("IDLE+DRAIN", "moving the rack", []),
        ("IDLE+DRAIN", "primus: health: disk full", []),
        ("IDLE", "", []),
    ],
)
def test_only_this_owners_drain_is_lifted(state: str, reason: str, told: list[str]) -> None:
    """A release lifts the drain of the quarantine itself, and no other."""
    controllers = Controllers(state, reason)
    slurm.Nodes(caller=controllers).release("gpu1", "ada")

    assert controllers.told == told


@pytest.mark.parametrize(("state", "refused"), [("IDLE", False), ("IDLE+DRAIN", True)])
def test_a_drain_that_the_other_controller_lifts_meanwhile_is_lifted(state: str, *, refused: bool) -> None:
    """Both see it, one is first, and Slurm refuses the second one; a refusal that leaves the drain where it is counts."""

    class Late(Controllers):
        def __call__(self, words: Sequence[str], limit_s: float) -> Any:
            if words[1] == "update":
                self.state = state
                return ask["Answer"](1, "slurm_update error: Invalid node state specified")
            return super().__call__(words, limit_s)

    nodes = slurm.Nodes(caller=Late("IDLE+DRAIN", "primus quarantine: ada: fan broken"))
    with pytest.raises(slurm.RefusedError) if refused else nullcontext():
        nodes.release("gpu1", "ada")


def test_records_of_a_controller_are_read_in_order(tmp_path: Path) -> None:
    """Every file of the folder is a quarantine that stands."""
    for name in ("gpu2", "gpu1"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**RECORD, "host": name}))

    assert [one["host"] for one in slurm.records_in(tmp_path)] == ["gpu1", "gpu2"]


@pytest.mark.parametrize("text", ['{"host": "gpu1", "own', "[]", '{"host": "gpu1"}', "null"])
def test_a_torn_record_of_a_controller_is_named(tmp_path: Path, text: str) -> None:
    """Nobody is let back, and nobody taken out, before a person has looked at it."""
    slurm.write_records(tmp_path, [RECORD])
    (tmp_path / "torn.json").write_text(text)

    with pytest.raises(slurm.RefusedError, match=r"torn\.json is no record of a quarantine: .* Fix: remove it"):
        slurm.records_in(tmp_path)


def test_a_lost_record_is_written_again_from_slurms_reason(tmp_path: Path) -> None:
    """A node that Slurm keeps drained for a quarantine, and whose record is gone, has one again; then nothing is lost any more."""
    controllers = Controllers("IDLE+DRAIN", "primus quarantine: ada: fan broken, see: ticket 7")
    first, second = slurm.Nodes(caller=controllers), slurm.Nodes(caller=controllers)
    first.adopt(tmp_path, set())
    records = slurm.records_in(tmp_path)
    second.adopt(tmp_path, {one["host"] for one in records})

    assert [(one["host"], one["owner"], one["reason"]) for one in records] == [("gpu1", "ada", "fan broken, see: ticket 7")]
    assert (first.changed, second.changed) == (True, False)


@pytest.mark.parametrize(("state", "reason"), [("IDLE+DRAIN", "moving the rack"), ("IDLE+DRAIN", "primus: health: disk"), ("IDLE", "")])
def test_no_other_drain_becomes_a_quarantine(tmp_path: Path, state: str, reason: str) -> None:
    """What an administrator or the health check drained, and what serves, is recorded by nobody."""
    nodes = slurm.Nodes(caller=Controllers(state, reason))
    nodes.adopt(tmp_path, set())

    assert (nodes.changed, slurm.records_in(tmp_path)) == (False, [])


def test_a_silent_host_is_unknown_and_still_quarantined() -> None:
    """What a controller knows of a host counts where the host does not answer; its health is unknown, not good."""
    told = {
        "quarantine": {},
        "health": {"verdict": "", "reason": ""},
        "records": {"gpu1": RECORD},
        "slurm": {"gpu1": ["drained*", "primus quarantine: ada: fan broken"], "gpu2": ["idle", "none"]},
    }
    answers = [
        Answer("ctl", exit_code=0, stdout=f"hello\n{json.dumps(told)}\n"),
        Answer("gpu1", cause="timeout", detail="no answer within 15 s"),
        Answer("gpu2", exit_code=0, stdout=json.dumps({**told, "records": {}, "slurm": {}, "health": {"verdict": "pass", "reason": ""}})),
    ]
    gpu1, gpu2 = read_services(answers, ["gpu1", "gpu2"])

    assert (gpu1.answered, gpu1.health, gpu1.health_reason, gpu1.slurm) == (False, "unknown", "no answer within 15 s", "drained*")
    assert gpu1.quarantine == Quarantine("ada", "fan broken", 1000.0)
    assert (gpu2.quarantine, gpu2.health, gpu2.slurm, gpu2.slurm_reason) == (None, "pass", "idle", "")


@pytest.mark.parametrize("reason", ["ab", "a {{ b }}", "it's", "a\nb", "x" * 161, "fan broken", "ECC on GPU 3 (ticket 77)"])
def test_command_line_and_role_refuse_the_same_reasons(reason: str) -> None:
    """What the verb lets pass the playbook lets pass, and the other way round."""
    refused = rules.quarantine_refusal(seen(), "gpu1", "ada", reason)

    assert bool(quarantine_verbs._REASON.match(reason)) is (refused == "")


def test_behind_sudo_the_owner_is_still_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two people who both became root are two owners."""
    monkeypatch.setenv("SUDO_USER", "ada")
    assert quarantine_verbs.login_name() == "ada"
    monkeypatch.delenv("SUDO_USER")
    monkeypatch.setenv("LOGNAME", "bob")
    assert quarantine_verbs.login_name() == "bob"


@pytest.mark.parametrize(("words", "owner"), [([], "me"), (["--owner", "ada"], "ada")])
@pytest.mark.parametrize("verb", ["quarantine", "release"])
def test_a_quarantine_is_of_who_types_it_unless_an_owner_is_named(
    monkeypatch: pytest.MonkeyPatch, verb: str, words: Sequence[str], owner: str
) -> None:
    """`--owner` speaks for somebody else; without it the login name counts."""
    given: list[dict[str, str]] = []

    def run(_cluster: object, _name: str, _playbook: object, _options: object, values: dict[str, str], **_: object) -> Any:
        given.append(values)
        return SimpleNamespace(exit_code=0, changed=1)

    monkeypatch.setattr(quarantine_verbs, "_load_host", lambda *_: (None, "gpu1"))
    monkeypatch.setattr(quarantine_verbs, "_run", run)
    monkeypatch.setattr(quarantine_verbs, "login_name", lambda: "me")
    reason = ["--reason", "fan broken"] if verb == "quarantine" else []
    done = CliRunner().invoke(app, ["node", verb, "gpu1", *reason, *words])

    assert done.exit_code == 0, done.output
    assert [values["quarantine_owner"] for values in given] == [owner]
