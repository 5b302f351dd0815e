"""Quarantine: records, checks before a release, Slurm's node states, and `node list`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from primus_bootstrap import content
from primus_bootstrap.cli import quarantine_verbs
from primus_bootstrap.cli.main import app
from primus_bootstrap.fleet.messages import Answer, Task
from primus_bootstrap.fleet.service import Quarantine, read_services
from tests.unit.role_module import load_file, load_role_module

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PATH = content.roles_dir() / "quarantine/filter_plugins/quarantine.py"
rules = load_file(PATH, "quarantine_filters")
records = load_role_module("quarantine", "quarantine_record")
slurm = load_role_module("slurm", "slurm_quarantine")
ask = slurm.get_node.__globals__

FAILING = {"check": "disk", "verdict": "fail", "reason": "full"}
HEALTHY = {"verdict": "pass", "reason": "", "written": 2000.0, "checks": []}
RECORD = {"schema": "primus.quarantine/1", "host": "gpu1", "owner": "ada", "reason": "fan broken", "time": 1000.0, "verdicts": []}


def observed(record: dict[str, Any] | None = None, health: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the answers of a host and a controller; the host's clock is ahead of the controller's."""
    here = {"record": record or {}, "health": health or HEALTHY, "now": 1500.0}
    return {"ctl": {"record": record or {}, "health": HEALTHY, "now": 1400.0}, "gpu1": here}


def test_a_record_has_the_failed_verdicts_and_the_time_of_the_host() -> None:
    """A new record has owner, reason, the host's time and the failed verdicts only."""
    health = {**HEALTHY, "verdict": "fail", "checks": [FAILING, {"check": "clock", "verdict": "pass"}]}

    assert rules.quarantine_record(observed(health=health), "gpu1", "ada", "fan broken") == {
        **RECORD,
        "time": 1500.0,
        "clock": "gpu1",
        "verdicts": [FAILING],
    }


def test_repeating_a_quarantine_does_not_change_its_record() -> None:
    """The same owner and reason change nothing, not even the time; another reason makes a new record."""
    assert rules.quarantine_record(observed(RECORD), "gpu1", "ada", "fan broken") == RECORD
    assert rules.quarantine_record(observed(RECORD), "gpu1", "ada", "fan is loud")["time"] == 1500.0


def test_the_record_of_a_dead_host_has_the_time_of_a_controller() -> None:
    """A host that does not answer can be quarantined."""
    dead = {**observed(), "gpu1": {"unreachable": True}}

    assert rules.quarantine_refusal(dead, "gpu1", "ada", "fan broken") == ""
    record = rules.quarantine_record(dead, "gpu1", "ada", "fan broken")
    assert (record["time"], record["clock"]) == (1400.0, "ctl")


@pytest.mark.parametrize(
    ("found", "owner", "reason", "message"),
    [
        (observed(RECORD), "bob", "mine now", "gpu1 is quarantined by ada already: fan broken. Fix: "),
        (observed(), "ada", "no", "the reason is missing, too long"),
        (observed(), "ada", "a {{ template }}", "the reason is missing, too long"),
        (observed(), "a b", "fan broken", "a b is not a valid owner"),
        (
            {"gpu1": {"unreachable": True}},
            "ada",
            "fan broken",
            "neither gpu1 nor a Slurm controller answers, and Kubernetes does not know it",
        ),
    ],
)
def test_an_invalid_quarantine_is_an_error(found: dict[str, Any], owner: str, reason: str, message: str) -> None:
    """Another owner's quarantine stays. Errors are an unsafe reason, and a record that cannot be stored anywhere."""
    refusal = rules.quarantine_refusal(found, "gpu1", owner, reason)

    assert refusal.startswith(message)
    assert "Fix: " in refusal


@pytest.mark.parametrize(
    ("health", "message"),
    [
        ({**HEALTHY, "written": 999.0}, "the last passing record of gpu1 is older than the quarantine. Fix: "),
        ({**HEALTHY, "written": 1000.0}, "the last passing record of gpu1 is older than the quarantine. Fix: "),
        ({**HEALTHY, "verdict": "fail", "reason": "disk: full"}, "the health of gpu1 is fail: disk: full. Fix: correct that"),
        ({**HEALTHY, "verdict": "unknown", "reason": "stale"}, "the health of gpu1 is unknown: stale. Fix: see `primus-health read`"),
    ],
)
def test_a_release_needs_a_health_record_that_is_newer_than_the_quarantine(health: dict[str, Any], message: str) -> None:
    """Only a passing record that is newer allows the release; unknown does not."""
    refusal = rules.release_refusal(observed(RECORD, health), "gpu1", "ada", proof=True, without_proof=False)

    assert refusal.startswith(message)


def test_a_dead_host_is_not_released() -> None:
    """A host that does not answer is unknown, even with --without-proof."""
    dead = {**observed(RECORD), "gpu1": {"unreachable": True}}

    assert rules.release_refusal(dead, "gpu1", "ada", proof=False, without_proof=True).startswith("gpu1 does not answer")


@pytest.mark.parametrize("record", [RECORD, {}])
def test_a_host_without_python_is_not_released(record: dict[str, Any]) -> None:
    """It answers ssh but its health is unknown, even if no other machine has a record of its quarantine."""
    ill = {**observed(record), "gpu1": {"failed": False, "msg": "non-zero return code", "module_stderr": "sh: 1: python3: not found\n"}}

    refusal = rules.release_refusal(ill, "gpu1", "ada", proof=True, without_proof=False)

    assert refusal.startswith("gpu1 does not answer (sh: 1: python3: not found), so its health is unknown. Fix: ")


def test_a_pass_before_a_controllers_quarantine_does_not_count() -> None:
    """The controller's clock, which dated the quarantine, is 100 s behind, so a pass up to 100 s later is older."""
    record = {**RECORD, "time": 1950.0, "clock": "ctl"}
    found = observed(record, {**HEALTHY, "written": 2049.0})
    found["gpu1"]["now"], found["ctl"]["now"] = 2100.0, 2000.0

    assert "is older than the quarantine" in rules.release_refusal(found, "gpu1", "ada", proof=True, without_proof=False)
    found["gpu1"]["health"]["written"] = 2051.0
    assert rules.release_refusal(found, "gpu1", "ada", proof=True, without_proof=False) == ""


def test_a_clock_that_was_set_back_is_reported() -> None:
    """No record can be newer than a quarantine in the future, so the fix is another quarantine."""
    ahead = observed({**RECORD, "time": 5100.0})

    refusal = rules.release_refusal(ahead, "gpu1", "ada", proof=True, without_proof=False)

    assert "3600 s ahead of its clock" in refusal
    assert "quarantine it again with another reason" in refusal


def test_a_damaged_record_prevents_a_release(tmp_path: Path) -> None:
    """Its owner is unknown. A new quarantine overwrites it."""
    path = tmp_path / "quarantine.json"
    path.write_text('{"owner": "ad')
    found, problem = records.read_record(path)
    torn = observed()
    torn["ctl"]["problem"] = problem

    refusal = rules.release_refusal(torn, "gpu1", "ada", proof=True, without_proof=False)

    assert found == {}
    assert str(path) in refusal
    assert "(on ctl)" in refusal
    assert rules.quarantine_refusal(torn, "gpu1", "ada", "fan broken") == ""
    records.write_record(path, RECORD)
    assert records.read_record(path) == (RECORD, "")


def test_another_owners_quarantine_is_not_released() -> None:
    """The owner must match, even if the host is healthy."""
    refusal = rules.release_refusal(observed(RECORD), "gpu1", "bob", proof=True, without_proof=False)

    assert (
        refusal
        == "the quarantine of gpu1 is ada's (fan broken), not bob's. Fix: ask ada to release it, or give --owner ada if that is you."
    )


def test_a_host_without_health_checks_needs_without_proof() -> None:
    """A newer pass is enough for other hosts; a host that is not quarantined is not changed."""
    assert rules.release_refusal(observed(RECORD), "gpu1", "ada", proof=True, without_proof=False) == ""
    assert "--without-proof" in rules.release_refusal(observed(RECORD), "gpu1", "ada", proof=False, without_proof=False)
    assert rules.release_refusal(observed(RECORD), "gpu1", "ada", proof=False, without_proof=True) == ""
    assert rules.release_refusal(observed(), "gpu1", "bob", proof=True, without_proof=False) == ""


def test_without_proof_does_not_release_a_host_with_failed_checks() -> None:
    """It is only for hosts without health checks."""
    health = {**HEALTHY, "verdict": "fail", "reason": "disk: full"}

    assert rules.release_refusal(observed(RECORD, health), "gpu1", "ada", proof=True, without_proof=True).startswith(
        "the health of gpu1 is fail"
    )


def test_the_newest_copy_of_a_record_counts() -> None:
    """If the host was quarantined again while it was dead, the controllers' record is newer than its own."""
    newer = {**RECORD, "time": 1200.0, "reason": "dead"}

    assert rules.quarantine_standing({"gpu1": {"record": RECORD}, "ctl": {"record": newer}, "ctl2": {}}) == newer


class Controllers:
    """Slurm's controllers with one node: its state, reason and jobs, and the commands that were sent."""

    def __init__(self, state: str, reason: str = "", jobs: str = "") -> None:
        """Store the state of the node."""
        self.state, self.reason, self.jobs = state, reason, jobs
        self.sent: list[str] = []

    def __call__(self, words: Sequence[str], _limit_s: float) -> Any:
        """Answer a command."""
        if words[0] == "squeue":
            return ask["Answer"](0, self.jobs)
        if words[1] == "update":
            self.sent.append(" ".join(words[3:]))
            return ask["Answer"](0, "")
        return ask["Answer"](0, f"NodeName=gpu1 State={self.state} Reason={self.reason} [root@2026-01-01T00:00:00]")


@pytest.mark.parametrize(
    ("state", "reason", "commands"),
    [
        ("IDLE", "", ["State=DRAIN Reason=primus quarantine: ada: fan broken"]),
        ("DOWN*", "Not responding", ["State=DRAIN Reason=primus quarantine: ada: fan broken"]),
        ("IDLE+DRAIN", "primus: health: disk full", ["State=DRAIN Reason=primus quarantine: ada: fan broken"]),
        ("IDLE+DRAIN", "primus quarantine: ada: fan broken", []),
        ("IDLE+DRAIN", "moving the rack", []),
    ],
)
def test_a_quarantine_does_not_replace_an_administrators_reason(state: str, reason: str, commands: list[str]) -> None:
    """A node that is in service, dead, or drained by the health check gets the reason of the quarantine."""
    controllers = Controllers(state, reason)
    slurm.Nodes(caller=controllers).quarantine("gpu1", "ada", "fan broken", requeue=False)

    assert controllers.sent == commands


def test_force_requeues_running_jobs() -> None:
    """A node with jobs goes down, so that they run on other nodes. A node without jobs is not changed further."""
    busy, idle = (
        Controllers("MIXED+DRAIN", "primus quarantine: ada: x y z", "7"),
        Controllers("IDLE+DRAIN", "primus quarantine: ada: x y z"),
    )
    for controllers in (busy, idle):
        slurm.Nodes(caller=controllers).quarantine("gpu1", "ada", "x y z", requeue=True)

    assert busy.sent == ["State=DOWN Reason=primus quarantine: ada: x y z"]
    assert idle.sent == []


@pytest.mark.parametrize(
    ("state", "reason", "commands"),
    [
        ("IDLE+DRAIN", "primus quarantine: ada: fan broken", ["State=RESUME"]),
        ("IDLE+DRAIN", "primus quarantine: bob: fan broken", []),
        ("IDLE+DRAIN", "moving the rack", []),
        ("IDLE+DRAIN", "primus: health: disk full", []),
        ("IDLE", "", []),
    ],
)
def test_a_release_removes_only_the_drain_of_its_owner(state: str, reason: str, commands: list[str]) -> None:
    """Other drains stay."""
    controllers = Controllers(state, reason)
    slurm.Nodes(caller=controllers).release("gpu1", "ada")

    assert controllers.sent == commands


@pytest.mark.parametrize(("state", "refused"), [("IDLE", False), ("IDLE+DRAIN", True)])
def test_a_drain_that_another_controller_removed_is_no_error(state: str, *, refused: bool) -> None:
    """Slurm refuses the second removal. It is an error only if the node is still drained."""

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
    """Every file of the folder is a current quarantine."""
    for name in ("gpu2", "gpu1"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**RECORD, "host": name}))

    assert [record["host"] for record in slurm.read_records(tmp_path)] == ["gpu1", "gpu2"]


@pytest.mark.parametrize("text", ['{"host": "gpu1", "own', "[]", '{"host": "gpu1"}', "null"])
def test_a_damaged_record_of_a_controller_is_an_error(tmp_path: Path, text: str) -> None:
    """No node is drained or released before a person has checked the file."""
    slurm.write_records(tmp_path, [RECORD])
    (tmp_path / "torn.json").write_text(text)

    with pytest.raises(slurm.RefusedError, match=r"torn\.json is not a quarantine record: .* Fix: remove it"):
        slurm.read_records(tmp_path)


def test_a_lost_record_is_restored_from_slurms_reason(tmp_path: Path) -> None:
    """A node that is drained for a quarantine without a record gets a record; the second call changes nothing."""
    controllers = Controllers("IDLE+DRAIN", "primus quarantine: ada: fan broken, see: ticket 7")
    first, second = slurm.Nodes(caller=controllers), slurm.Nodes(caller=controllers)
    first.restore_records(tmp_path, set())
    records = slurm.read_records(tmp_path)
    second.restore_records(tmp_path, {record["host"] for record in records})

    assert [(record["host"], record["owner"], record["reason"]) for record in records] == [("gpu1", "ada", "fan broken, see: ticket 7")]
    assert (first.changed, second.changed) == (True, False)


@pytest.mark.parametrize(("state", "reason"), [("IDLE+DRAIN", "moving the rack"), ("IDLE+DRAIN", "primus: health: disk"), ("IDLE", "")])
def test_other_drains_do_not_become_quarantines(tmp_path: Path, state: str, reason: str) -> None:
    """Nodes in service, and nodes that an administrator or the health check drained, get no record."""
    nodes = slurm.Nodes(caller=Controllers(state, reason))
    nodes.restore_records(tmp_path, set())

    assert (nodes.changed, slurm.read_records(tmp_path)) == (False, [])


def test_the_quarantine_of_a_host_that_does_not_answer_is_shown() -> None:
    """The record comes from a controller. The health of the host is unknown."""
    answer = {
        "quarantine": {},
        "health": {"verdict": "", "reason": ""},
        "records": {"gpu1": RECORD},
        "slurm": {"gpu1": ["drained*", "primus quarantine: ada: fan broken"], "gpu2": ["idle", "none"]},
    }
    answers = [
        Answer("ctl", exit_code=0, stdout=f"hello\n{json.dumps(answer)}\n"),
        Answer("gpu1", cause="timeout", detail="no answer within 15 s"),
        Answer("gpu2", exit_code=0, stdout=json.dumps({**answer, "records": {}, "slurm": {}, "health": {"verdict": "pass", "reason": ""}})),
    ]
    gpu1, gpu2 = read_services(answers, ["gpu1", "gpu2"])

    assert (gpu1.answered, gpu1.health, gpu1.health_reason, gpu1.slurm) == (False, "unknown", "no answer within 15 s", "drained*")
    assert gpu1.quarantine == Quarantine("ada", "fan broken", 1000.0)
    assert (gpu2.quarantine, gpu2.health, gpu2.slurm, gpu2.slurm_reason) == (None, "pass", "idle", "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5", "its answer is invalid: expected a mapping, found 5"),
        ('{"quarantine": {}}', "its answer is invalid: health: missing"),
        ('{"quarantine": {}, "health": {"verdict": "pass"}}', "its answer is invalid: health.reason: missing"),
        ('{"quarantine": {"owner": "ada", "reason": "x", "time": "now"}, "health": 1}', "its answer is invalid: quarantine.time: expected"),
        ("[" * 100_000, "it gave no answer"),
    ],
)
def test_an_invalid_answer_hides_no_other_host(text: str, reason: str) -> None:
    """A host with another version of the script is unknown, and the others are reported."""
    good = json.dumps({"quarantine": {}, "health": {"verdict": "pass", "reason": ""}, "records": {}, "slurm": {}})
    answers = [Answer("gpu1", exit_code=0, stdout=text), Answer("gpu2", exit_code=0, stdout=good)]
    gpu1, gpu2 = read_services(answers, ["gpu1", "gpu2"])

    assert (gpu1.answered, gpu1.health) == (False, "unknown")
    assert gpu1.health_reason.startswith(reason)
    assert (gpu2.answered, gpu2.health) == (True, "pass")


@pytest.mark.parametrize("reason", ["ab", "a {{ b }}", "it's", "a\nb", "x" * 161, "fan broken", "ECC on GPU 3 (ticket 77)"])
def test_verb_and_playbook_accept_the_same_reasons(reason: str) -> None:
    """Both use the same pattern."""
    refused = rules.quarantine_refusal(observed(), "gpu1", "ada", reason)

    assert bool(quarantine_verbs._REASON.match(reason)) is (refused == "")


def test_the_owner_behind_sudo_is_the_login_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two people who both use sudo are two owners."""
    monkeypatch.setenv("SUDO_USER", "ada")
    assert quarantine_verbs.login_name() == "ada"
    monkeypatch.delenv("SUDO_USER")
    monkeypatch.setenv("LOGNAME", "bob")
    assert quarantine_verbs.login_name() == "bob"


@pytest.mark.parametrize(("words", "owner"), [([], "me"), (["--owner", "ada"], "ada")])
@pytest.mark.parametrize("verb", ["quarantine", "release"])
def test_the_login_name_is_the_default_owner(monkeypatch: pytest.MonkeyPatch, verb: str, words: Sequence[str], owner: str) -> None:
    """`--owner` sets another owner."""
    calls: list[dict[str, str]] = []

    def run(_cluster: object, _name: str, _playbook: object, _options: object, values: dict[str, str], **_: object) -> Any:
        calls.append(values)
        return SimpleNamespace(exit_code=0, changed=1)

    monkeypatch.setattr(quarantine_verbs, "_load_host", lambda *_: (None, "gpu1"))
    monkeypatch.setattr(quarantine_verbs, "_run", run)
    monkeypatch.setattr(quarantine_verbs, "login_name", lambda: "me")
    reason = ["--reason", "fan broken"] if verb == "quarantine" else []
    done = CliRunner().invoke(app, ["node", verb, "gpu1", *reason, *words])

    assert done.exit_code == 0, done.output
    assert [values["quarantine_owner"] for values in calls] == [owner]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer("gpu1", exit_code=0), ""),
        (Answer("gpu1", cause="timeout", detail="no answer within 90 s"), "running them failed: no answer"),
    ],
)
def test_a_release_can_run_the_health_checks_first(monkeypatch: pytest.MonkeyPatch, answer: Answer, message: str) -> None:
    """The release reads their record. If they cannot be run, it still decides by the last record."""
    tasks: list[Task] = []
    steps: list[str] = []

    def ask(_cluster: object, _targets: object, task: Task) -> list[Answer]:
        steps.append("checks")
        tasks.append(task)
        return [answer]

    def run(*_: object, **__: object) -> Any:
        steps.append("release")
        return SimpleNamespace(exit_code=0, changed=1)

    monkeypatch.setattr(quarantine_verbs, "_load_host", lambda *_: (None, "gpu1"))
    monkeypatch.setattr(quarantine_verbs, "targets_of_limit", lambda *_: ())
    monkeypatch.setattr(quarantine_verbs, "known_hosts_path", lambda _: "known_hosts")
    monkeypatch.setattr(quarantine_verbs, "ask_hosts", ask)
    monkeypatch.setattr(quarantine_verbs, "_run", run)
    done = CliRunner().invoke(app, ["node", "release", "gpu1", "--wait", "90"])

    assert done.exit_code == 0, done.output
    assert steps == ["checks", "release"]
    assert (tasks[0].timeout_s, "systemctl start primus-health" in tasks[0].command) == (90.0, True)
    assert message in done.stderr
    assert ("failed" in done.stderr) is bool(message)
