"""The verb `verify`: one row a service and host, of what roles hand over; what nobody looked at is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.cli.verify_verbs import Proofs, Row, exit_code, fold_rows, make_rows, problem_texts
from primus_bootstrap.core.verdicts import Verdict
from primus_bootstrap.engine.events import HostResult, Recap, VerdictFound

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Outcome
    from primus_bootstrap.engine.events import Event, Status


def result(role: str, host: str, task: str = "Look", status: Status = "ok", **more: Any) -> HostResult:
    """Return the end of one task on one host, after a quarter of a second."""
    return HostResult(host=host, phase="verify", role=role, task=task, task_path="", status=status, seconds=0.25, **more)


def record(check: str, word: Outcome, host: str = "n1", **more: Any) -> VerdictFound:
    """Return a record as a task hands it over."""
    return VerdictFound("verify", Verdict(check=check, host=host, verdict=word, **more))


def rows(*events: Event, expected: tuple[tuple[str, str], ...] = ()) -> dict[tuple[str, str], Row]:
    """Return the rows by service and host."""
    proofs = Proofs()
    for event in events:
        proofs.add(event)
    return {(row.service, row.host): row for row in make_rows(expected, proofs)}


def test_records_are_grouped_by_the_role_that_handed_them_over() -> None:
    """The worst record is the row's verdict; what passed is named, what was skipped is counted, seconds are the tasks'."""
    found = rows(
        result("slurm", "n1"),
        result("slurm", "n1"),
        record("srun", "pass"),
        record("preempt", "pass", device="qos high"),
        record("gres", "skipped"),
        result("redis", "n1"),
        record("ping", "unknown", reason="no answer", fix="look"),
        record("aof", "pass"),
    )

    assert [(row.verdict, row.proven, row.seconds) for row in found.values()] == [
        ("pass", "srun, preempt qos high (1 skipped)", 0.5),
        ("unknown", "aof", 0.25),
    ]
    assert (found["redis", "n1"].reason, found["redis", "n1"].fix) == ("ping: no answer", "look")


def test_one_task_may_speak_for_several_hosts() -> None:
    """A record counts for the host that it names, not for the one on which the task ran."""
    found = rows(result("munge", "n1"), record("decode", "pass", "n1"), record("decode", "fail", "n2", reason="another key", fix="copy it"))

    assert {place: row.verdict for place, row in found.items()} == {("munge", "n1"): "pass", ("munge", "n2"): "fail"}


def test_a_role_without_records_says_by_its_tasks() -> None:
    """Tasks that went through are the proof; where all were skipped, nothing was proven."""
    own = "Validating arguments against arg spec 'verify' - Whether it works"  # Ansible's task, before any of the role's
    found = rows(
        result("a", "n1", own),
        result("a", "n1", "Open a session"),
        result("a", "n1", "Not here", "skipped"),
        result("b", "n1", own),
        result("b", "n1", "Not here", "skipped"),
    )

    assert (found["a", "n1"].verdict, found["a", "n1"].proven) == ("pass", "Open a session")
    assert (found["b", "n1"].verdict, found["b", "n1"].proven) == ("skipped", "nothing")


def test_a_failed_task_fails_with_its_cause_and_fix() -> None:
    """It counts though every record passed; records that failed speak for it where there are any."""
    recap = Recap(failed=("n1",), unreachable=())
    alone = rows(result("a", "n1"), record("x", "pass"), result("a", "n1", "Prove", "failed", message="no mount", fix="mount it"), recap)
    told = rows(result("a", "n1", "Prove", "failed", message="a long story"), record("x", "fail", reason="no mount", fix="mount it"), recap)

    assert [(row.verdict, row.reason, row.fix) for row in alone.values()] == [("fail", "no mount", "mount it")]
    assert [(row.verdict, row.reason, row.fix) for row in told.values()] == [("fail", "x: no mount", "mount it")]


def test_a_failure_that_a_rescue_mended_is_none() -> None:
    """Ansible's recap says who really failed."""
    found = rows(result("a", "n1", "Try", "failed", message="no"), result("a", "n1", "Mend"), Recap(failed=(), unreachable=()))

    assert found["a", "n1"].verdict == "pass"


def test_what_was_not_looked_at_is_unknown() -> None:
    """A host without an answer, and the services after a failure on the same host, are never good; each says why."""
    found = rows(
        result("a", "n1", status="failed", message="broken"),
        result("a", "n2", status="unreachable", message="no route", fix="see the cable"),
        Recap(failed=("n1",), unreachable=("n2",)),
        expected=(("a", "n1"), ("b", "n1"), ("a", "n2"), ("b", "n2"), ("a", "n3")),
    )

    assert {place: row.verdict for place, row in found.items()} == {
        ("a", "n1"): "fail", ("b", "n1"): "unknown", ("a", "n2"): "unknown", ("b", "n2"): "unknown", ("a", "n3"): "unknown",
    }  # fmt: skip
    assert found["b", "n1"].reason == "not looked at, because a failed on this host before"
    assert (found["b", "n2"].reason, found["b", "n2"].fix) == ("not looked at: the host does not answer", "see the cable")
    assert all(row.fix for place, row in found.items() if place in {("b", "n1"), ("a", "n3")})


def test_what_one_problem_hides_is_said_once() -> None:
    """All services of all hosts that were not looked at for one reason; a failure without a fix of its own has one all the same."""
    hosts = ("n1", "n2")
    found = rows(
        *(result("a", host, status="failed", message="broken") for host in hosts),
        Recap(failed=hosts, unreachable=()),
        expected=tuple((service, host) for service in ("a", "b", "c") for host in hosts),
    )

    assert list(problem_texts(found.values())) == [
        "\nfail a on n1, n2\n  broken\n  fix: primus-bootstrap apply, then verify again",
        "\nunknown 2 services on n1, n2\n  not looked at, because a failed on this host before\n  fix: mend a, then verify again",
    ]


@pytest.mark.parametrize(
    ("words", "of_run", "code"),
    [
        (["pass", "skipped"], 0, 0),
        (["pass", "fail"], 0, 4),
        (["unknown"], 0, 4),
        (["pass"], 4, 4),
        (["pass"], 130, 130),
    ],
)
def test_fail_and_unknown_end_with_4(words: list[Outcome], of_run: int, code: int) -> None:
    """What ended the run itself stays as it is."""
    assert exit_code(of_run, [Row("a", f"n{number}", word, "") for number, word in enumerate(words)]) == code


def test_a_large_fleet_shows_what_is_wrong_and_folds_the_rest() -> None:
    """Good hosts of one service become one row with the slowest's seconds; a problem is told once, with all its hosts."""
    fleet = [Row("a", f"n{number}", "pass", "it works", seconds=float(number)) for number in range(50)]
    bad = [Row("a", f"m{number}", "fail", "nothing", "broken", "mend it") for number in range(2)]
    folded = list(fold_rows([*fleet, *bad]))

    assert [(row.host, row.verdict, row.seconds) for row in folded] == [
        ("m0", "fail", 0.0),
        ("m1", "fail", 0.0),
        ("50 hosts", "pass", 49.0),
    ]
    assert list(problem_texts([*fleet, *bad])) == ["\nfail a on m0, m1\n  broken\n  fix: mend it"]
