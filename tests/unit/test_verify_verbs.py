"""The verb `verify`: one row per service and host from the results of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from primus_bootstrap import content
from primus_bootstrap.cli import verify_verbs
from primus_bootstrap.cli.main import app
from primus_bootstrap.cli.verify_verbs import Results, Row, exit_code, failures_first, fold_rows, make_rows, problem_texts
from primus_bootstrap.core.verdicts import Verdict
from primus_bootstrap.engine.events import HostResult, Recap, VerdictFound

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Outcome
    from primus_bootstrap.engine.events import Event, Status


def result(role: str, host: str, task: str = "Look", status: Status = "ok", **more: Any) -> HostResult:
    """Return the result of a task of 0.25 s."""
    return HostResult(host=host, phase="verify", role=role, task=task, task_path="", status=status, seconds=0.25, **more)


def record(check: str, word: Outcome, host: str = "n1", **more: Any) -> VerdictFound:
    """Return a verdict of a task."""
    return VerdictFound("verify", Verdict(check=check, host=host, verdict=word, **more))


def rows(*events: Event, expected: tuple[tuple[str, str], ...] = ()) -> dict[tuple[str, str], Row]:
    """Return the rows by service and host."""
    results = Results()
    for event in events:
        results.add(event)
    return {(row.service, row.host): row for row in make_rows(expected, results)}


def test_verdicts_belong_to_the_role_of_their_task() -> None:
    """A row has the worst verdict, the names of passed checks, the number of skipped ones and the duration of the tasks."""
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


def test_a_task_can_return_verdicts_for_other_hosts() -> None:
    """A verdict belongs to the host that it names, not to the host of the task."""
    found = rows(result("munge", "n1"), record("decode", "pass", "n1"), record("decode", "fail", "n2", reason="another key", fix="copy it"))

    assert {key: row.verdict for key, row in found.items()} == {("munge", "n1"): "pass", ("munge", "n2"): "fail"}


def test_a_role_without_verdicts_passes_if_its_tasks_succeed() -> None:
    """If all tasks were skipped, the row is skipped. Ansible's own check of the arguments does not count."""
    argument_check = "Validating arguments against arg spec 'verify' - Whether it works"
    found = rows(
        result("a", "n1", argument_check),
        result("a", "n1", "Open a session"),
        result("a", "n1", "Not here", "skipped"),
        result("b", "n1", argument_check),
        result("b", "n1", "Not here", "skipped"),
    )

    assert (found["a", "n1"].verdict, found["a", "n1"].proven) == ("pass", "Open a session")
    assert (found["b", "n1"].verdict, found["b", "n1"].proven) == ("skipped", "nothing")


def test_a_failed_task_fails_with_its_cause_and_fix() -> None:
    """It fails the row even if every verdict passed; failed verdicts replace its message."""
    recap = Recap(failed=("n1",), unreachable=())
    task = rows(result("a", "n1"), record("x", "pass"), result("a", "n1", "Prove", "failed", message="no mount", fix="mount it"), recap)
    verdict = rows(result("a", "n1", "Prove", "failed", message="long"), record("x", "fail", reason="no mount", fix="mount it"), recap)

    assert [(row.verdict, row.reason, row.fix) for row in task.values()] == [("fail", "no mount", "mount it")]
    assert [(row.verdict, row.reason, row.fix) for row in verdict.values()] == [("fail", "x: no mount", "mount it")]


def test_a_failure_that_a_rescue_block_handled_does_not_count() -> None:
    """Ansible's recap lists the hosts that failed."""
    found = rows(result("a", "n1", "Try", "failed", message="no"), result("a", "n1", "Repair"), Recap(failed=(), unreachable=()))

    assert found["a", "n1"].verdict == "pass"


def test_a_service_that_was_not_checked_is_unknown() -> None:
    """Services of unreachable hosts, and services after a failure on the same host, are unknown and have a reason."""
    found = rows(
        result("a", "n1", status="failed", message="broken"),
        result("a", "n2", status="unreachable", message="no route", fix="see the cable"),
        Recap(failed=("n1",), unreachable=("n2",)),
        expected=(("a", "n1"), ("b", "n1"), ("a", "n2"), ("b", "n2"), ("a", "n3")),
    )

    assert {key: row.verdict for key, row in found.items()} == {
        ("a", "n1"): "fail", ("b", "n1"): "unknown", ("a", "n2"): "unknown", ("b", "n2"): "unknown", ("a", "n3"): "unknown",
    }  # fmt: skip
    assert found["b", "n1"].reason == "not checked: a failed earlier on this host"
    assert (found["b", "n2"].reason, found["b", "n2"].fix) == ("not checked: the host does not answer", "see the cable")
    assert all(row.fix for key, row in found.items() if key in {("b", "n1"), ("a", "n3")})


def test_services_that_were_not_checked_for_one_reason_are_one_problem() -> None:
    """A failure without a fix gets a general one."""
    hosts = ("n1", "n2")
    found = rows(
        *(result("a", host, status="failed", message="broken") for host in hosts),
        Recap(failed=hosts, unreachable=()),
        expected=tuple((service, host) for service in ("a", "b", "c") for host in hosts),
    )

    assert list(problem_texts(found.values())) == [
        "\nfail a on n1, n2\n  broken\n  fix: primus-bootstrap apply hosts.yaml, then verify again",
        "\nunknown 2 services on n1, n2\n  not checked: a failed earlier on this host\n  fix: repair a, then verify again",
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
def test_fail_and_unknown_have_exit_code_4(words: list[Outcome], of_run: int, code: int) -> None:
    """An exit code of the run itself takes precedence."""
    assert exit_code(of_run, [Row("a", f"n{number}", word, "") for number, word in enumerate(words)]) == code


def test_good_rows_of_a_large_cluster_are_folded() -> None:
    """Good hosts of a service become one row with the seconds of the slowest; a problem appears once, with all its hosts."""
    fleet = [Row("a", f"n{number}", "pass", "it works", seconds=float(number)) for number in range(50)]
    bad = [Row("a", f"m{number}", "fail", "nothing", "broken", "repair it") for number in range(2)]
    folded = list(fold_rows([*fleet, *bad]))

    assert [(row.host, row.verdict, row.seconds) for row in folded] == [
        ("m0", "fail", 0.0),
        ("m1", "fail", 0.0),
        ("50 hosts", "pass", 49.0),
    ]
    assert list(problem_texts([*fleet, *bad])) == ["\nfail a on m0, m1\n  broken\n  fix: repair it"]


def test_services_with_failures_come_first() -> None:
    """Then those with unknown rows. The rows of a service stay together, its failures first."""
    words: dict[str, tuple[Outcome, ...]] = {
        "a": ("pass", "pass"),
        "b": ("pass", "unknown"),
        "c": ("skipped", "fail"),
        "d": ("pass", "pass"),
    }
    given = [Row(service, f"n{number}", outcomes[number], "") for number in (0, 1) for service, outcomes in words.items()]

    assert [(row.service, row.host) for row in failures_first(given)] == [
        ("c", "n1"), ("c", "n0"), ("b", "n1"), ("b", "n0"), ("a", "n0"), ("a", "n1"), ("d", "n0"), ("d", "n1"),
    ]  # fmt: skip


@pytest.mark.parametrize(("flags", "variables"), [((), ()), (("--deep",), ("slurm_verify_jobs_max_age_h=0",))])
def test_deep_repeats_the_test_jobs(flags: tuple[str, ...], variables: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `--deep` sets the maximum age of proofs to 0 for the run."""
    given: list[tuple[str, ...]] = []

    def run_plan(_cluster: Any, _plan: Any, options: Any, _add: Any) -> None:
        given.append(options.extra_vars)
        raise KeyboardInterrupt

    monkeypatch.setattr(verify_verbs, "run_plan", run_plan)
    CliRunner().invoke(app, ["verify", str(content.topologies_dir() / "lab" / "hosts.yaml"), *flags])

    assert given == [variables]
