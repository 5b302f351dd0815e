"""Translation of recorded events of the real Ansible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from primus_bootstrap.engine.events import (
    Event,
    HostResult,
    PhaseFinished,
    PhaseStarted,
    Recap,
    VerdictFound,
    event_from_json,
    event_to_json,
)
from primus_bootstrap.engine.plan_values import Step
from primus_bootstrap.engine.playbooks import Play
from primus_bootstrap.engine.translate import Translator, diff_text, verdicts_in

EVENTS = Path(__file__).parents[1] / "data" / "events"


def translated(name: str, *phases: tuple[str, int], fatal: bool = False) -> tuple[Translator, list[Event]]:
    """Translate a recording; `phases` are (name, number of plays)."""
    steps = [(number, Step(phase, f"{phase}.yml", ("a",), (), "")) for number, (phase, _) in enumerate(phases, start=1)]
    plays = [[Play("all", (), any_errors_fatal=fatal)] * count for _, count in phases]
    translator = Translator(steps, plays, len(steps), clock=iter(range(1, 1000)).__next__)
    events = [event for raw in json.loads((EVENTS / f"{name}.json").read_text(encoding="utf-8")) for event in translator.read(raw)]
    return translator, events


def test_every_kind_of_result_has_its_status() -> None:
    """ok, changed, skipped, ignored and failed, with the cause of failures. A no_log task that changes something is `changed`."""
    _, events = translated("results", ("baseline", 1))

    got = {event.task: (event.status, event.message, event.fix) for event in events if isinstance(event, HostResult) and event.host == "c"}
    assert got == {
        "Succeed": ("ok", "", ""),
        "Change": ("changed", "", ""),
        "Skip": ("skipped", "", ""),
        "Fail and go on": ("ignored", "non-zero return code (exit code 1)", ""),
        "Break": ("failed", "broken for a moment", ""),
        "Mend it": ("ok", "", ""),
        "Handle a secret": ("changed", "", ""),
        "Handle secrets in a loop": ("changed", "", ""),
        "Handle secrets and change nothing": ("ok", "", ""),
        "Hand over verdicts": ("ok", "", ""),
        "Loop and fail once": ("skipped", "", ""),
        "Refuse": ("failed", "kernel 5.4 is older than 5.15.", "install a newer kernel and reboot."),
    }


def test_verdicts_are_read_from_the_output_of_a_task() -> None:
    """Records within other output are found; a record without a host gets the host of the task."""
    _, events = translated("results", ("baseline", 1))

    found = [event.verdict for event in events if isinstance(event, VerdictFound) and event.verdict.host == "a"]
    assert [(verdict.check, verdict.verdict, verdict.fix) for verdict in found] == [("clock", "pass", ""), ("mtu", "fail", "set it")]


def test_the_recap_excludes_failures_that_a_rescue_block_handled() -> None:
    """All three hosts failed once and were rescued; the recap lists the two that failed later."""
    _, events = translated("results", ("baseline", 1))

    (recap,) = [event for event in events if isinstance(event, Recap)]
    assert (sorted(recap.failed), recap.unreachable) == (["b", "c"], ())


def test_an_ignored_unreachable_host_is_not_lost() -> None:
    """The event has no field for `ignore_unreachable`. The result is `ignored` with ssh's message, and the recap excludes the host."""
    translator, events = translated("unreachable_ignored", ("baseline", 1))

    (result,) = [event for event in events if isinstance(event, HostResult)]
    (recap,) = [event for event in events if isinstance(event, Recap)]
    assert (result.status, "Connection refused" in result.message) == ("ignored", True)
    assert (recap, translator.stopped_at) == (Recap((), ()), None)


def test_phases_are_found_by_counting_plays_without_batches() -> None:
    """Two phases have two plays each, the first of them in batches of one host."""
    _, events = translated("serial", ("baseline", 2), ("gpu", 2))

    bounds = [(type(event).__name__, event.phase) for event in events if isinstance(event, PhaseStarted | PhaseFinished)]
    counts = [(event.phase, event.counts) for event in events if isinstance(event, PhaseFinished)]
    assert bounds == [("PhaseStarted", "baseline"), ("PhaseFinished", "baseline"), ("PhaseStarted", "gpu"), ("PhaseFinished", "gpu")]
    assert counts == [(phase, (("a", 2, 0, 0), ("b", 2, 0, 0))) for phase in ("baseline", "gpu")]


def test_missing_plays_abort_the_phase() -> None:
    """Ansible has no event for the plays that it skips; the phase in which it stopped is aborted."""
    translator, events = translated("fatal", ("kubernetes", 1), ("storage", 2), fatal=True)

    assert [(event.phase, event.aborted) for event in events if isinstance(event, PhaseFinished)] == [("kubernetes", True)]
    assert translator.stopped_at == (1, True)


def test_any_errors_fatal_in_the_last_play_aborts_the_phase() -> None:
    """No later play is missing, but the hosts that did not fail did not finish the play."""
    translator, _ = translated("fatal_last", ("kubernetes", 1), fatal=True)

    assert translator.stopped_at == (1, True)


def test_a_complete_run_is_not_aborted() -> None:
    """Hosts failed one by one in a play in which the others continue."""
    translator, _ = translated("results", ("baseline", 1))

    assert (translator.ended, translator.stopped_at) == (True, None)


def test_skipped_difference_of_a_large_file_is_mentioned() -> None:
    """Without it, `diff` shows the changed task with no text."""
    result = {"diff": [{"before": "", "src_larger": 104448}, {"before": "a\n", "after": "b\n"}]}

    got = diff_text(result)

    assert got.splitlines()[0] == "(large or binary file: differences are not shown)"
    assert got.splitlines()[-1] == "+b"


def test_differences_of_a_loop_are_one_text() -> None:
    """The text is a unified diff of every file of the loop."""
    _, events = translated("diff", ("baseline", 1))

    (changed,) = [event for event in events if isinstance(event, HostResult)]
    assert changed.diff.splitlines() == [
        "--- before",
        "+++ /srv/site/one.conf",
        "@@ -0,0 +1 @@",
        "+name = one",
        "--- before",
        "+++ /srv/site/two.conf",
        "@@ -0,0 +1 @@",
        "+name = two",
    ]


def test_no_secret_of_a_no_log_task_is_in_an_event() -> None:
    """The task echoes a word and sets no_log; no event contains the word."""
    _, events = translated("results", ("baseline", 1))

    assert "sesame" not in "".join(map(repr, events))


def test_events_are_equal_after_a_round_trip_through_json() -> None:
    """An unknown kind is None."""
    _, events = translated("results", ("baseline", 1))

    assert [event_from_json(json.loads(json.dumps(event_to_json(event)))) for event in events] == events
    assert event_from_json({"event": "FromTheFuture", "x": 1}) is None


def test_events_of_a_nested_ansible_belong_to_the_phase() -> None:
    """The hosts that it lost are lost for the run. Its recap does not end the run."""
    steps = [(1, Step("kubernetes", "kubernetes.yml", ("a", "b"), (), ""))]
    translator = Translator(steps, [[Play("all", ())]], 1, clock=iter(range(1, 100)).__next__)
    failed = {"host": "b", "task": "etcd : Join", "role": "kubespray", "res": {"msg": "no quorum"}}
    raws: list[dict[str, Any]] = [
        {"event": "playbook_on_play_start", "event_data": {"uuid": "1"}},
        {"event": "playbook_on_task_start", "event_data": {"task": "etcd : Join", "role": "kubespray"}, "foreign": True},
        {
            "event": "runner_on_ok",
            "event_data": {"host": "a", "task": "etcd : Join", "role": "kubespray", "res": {"changed": True}},
            "foreign": True,
        },
        {"event": "runner_on_failed", "event_data": failed, "foreign": True},
        {"event": "playbook_on_stats", "event_data": {"failures": {"b": 1}, "dark": {}}, "foreign": True},
        {"event": "playbook_on_stats", "event_data": {"failures": {"a": 1}, "dark": {}}},
    ]

    events = [event for raw in raws for event in translator.read(raw)]

    results = [(event.host, event.status, event.phase, event.role, event.message) for event in events if isinstance(event, HostResult)]
    assert results == [("a", "changed", "kubernetes", "kubespray", ""), ("b", "failed", "kubernetes", "kubespray", "no quorum")]
    assert [event for event in events if isinstance(event, Recap)] == [Recap(failed=("a", "b"), unreachable=())]


def test_a_damaged_verdict_is_unknown_and_does_not_end_the_run() -> None:
    """Neither a wrong number nor deeply nested JSON raises an error: output of a host is not trusted."""
    outputs = {
        "not a number": '{"verdicts": [{"check": "clock", "verdict": "pass", "started": "soon"}]}',
        "nested without end": '{"verdicts": ' + "[" * 100_000,
        "a list": '{"verdicts": [1, {"check": "mtu", "verdict": "pass"}]}',
    }
    found = [verdict for text in outputs.values() for verdict in verdicts_in({"stdout": text}, "n1")]

    assert [(verdict.check, verdict.host, verdict.verdict) for verdict in found] == [("clock", "n1", "unknown"), ("mtu", "n1", "pass")]
    assert "could not convert" in found[0].reason
