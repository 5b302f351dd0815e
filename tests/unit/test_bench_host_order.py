"""The order of hosts for a job, from measured and missing values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.bench.placement.host_order import host_speeds, newest_values, order_hosts
from tests.unit.bench_report_rig import bench_run, value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.bench.report.bench_report import BenchRun, ReportedValue
    from primus_bootstrap.core.verdicts import Outcome


def run(*values: ReportedValue) -> BenchRun:
    """Return a bench with these values."""
    return bench_run((), (), values=values)


def test_slow_hosts_come_last_and_unmeasured_ones_before_them() -> None:
    """The least slow host is the first of the slow ones; good hosts are in the order of hosts.yaml."""
    measured = host_speeds([value("a", "0", 500), value("b", "0", 590), value("d", "0", 600), value("e", "0", 610), value("f", "0", 400)])

    assert order_hosts(["f", "b", "c", "a", "e", "d"], measured) == ("b", "e", "d", "c", "a", "f")


def test_the_worst_device_and_check_count() -> None:
    """A training job waits for its slowest GPU."""
    late = [replace(value(host, "", seconds), benchmark="launch", unit="us", better="lower") for host, seconds in (("a", 8), ("b", 10))]
    measured = host_speeds([*late, *(value(host, gpu, 600) for host in "ab" for gpu in "01"), value("a", "2", 450), value("b", "2", 600)])

    assert (measured["a"].check, measured["a"].device) == ("gemm", "2")
    assert measured["a"].share == pytest.approx(0.75)
    assert (measured["b"].check, measured["b"].slow) == ("launch", True)
    assert measured["a"].text() == "gemm on 2: 75 % of its peers' median"


@pytest.mark.parametrize(("outcome", "slow"), [("fail", True), ("unknown", False), ("pass", False)])
def test_a_failed_value_makes_a_host_slow(outcome: Outcome, slow: bool) -> None:  # noqa: FBT001
    """The evaluation knows noise and floor, so 2 % may be proved; an unknown value is not slow."""
    measured = host_speeds([value("a", "0", 588, outcome), value("b", "0", 600), value("c", "0", 600)])

    assert measured["a"].slow is slow
    assert order_hosts(["a", "b"], measured) == (("b", "a") if slow else ("a", "b"))


def test_a_host_without_peers_counts_as_not_measured() -> None:
    """A different model or version has nothing to compare with."""
    alone = replace(value("a", "0", 100), model="H200")
    newer = replace(value("b", "0", 100), stack="rocm 7.1")
    measured = host_speeds([alone, newer, value("c", "0", 600), value("d", "0", 600)])

    assert [measured[host].share for host in "ab"] == [None, None]
    assert order_hosts(["a", "b", "c"], measured) == ("c", "a", "b")


def test_values_that_are_not_the_speed_of_one_host_are_ignored() -> None:
    """Values of two hosts, without a direction, or of zero."""
    strange = [value("a,b", "0", 1), replace(value("a", "0", 1), better=""), value("a", "0", 0.0)]

    assert host_speeds(strange) == {}


def test_the_newest_value_of_a_host_counts() -> None:
    """A repaired host is compared with earlier values of the others, and older benches are not read."""
    read = []

    def runs() -> Iterator[BenchRun]:
        for name, one in (
            ("alone", run(value("a", "0", 600))),
            ("all", run(*(value(host, "0", 600) for host in "bc"), value("a", "0", 300))),
        ):
            read.append(name)
            yield one

    measured = host_speeds(newest_values(runs(), ["a", "b", "c"]))
    list(newest_values(runs(), ["a"]))

    assert measured["a"].share == pytest.approx(1.0)
    assert read == ["alone", "all", "alone"]
