"""In which order a job is offered hosts: what benches measured of them, and what they did not."""

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
    """Return a bench that measured these."""
    return bench_run((), (), values=values)


def test_slow_hosts_come_last_and_unmeasured_ones_before_them() -> None:
    """The least slow of the slow first; the good ones as hosts.yaml has them, however they differ within the noise."""
    known = host_speeds([value("a", "0", 500), value("b", "0", 590), value("d", "0", 600), value("e", "0", 610), value("f", "0", 400)])

    assert order_hosts(["f", "b", "c", "a", "e", "d"], known) == ("b", "e", "d", "c", "a", "f")


def test_the_worst_device_of_the_worst_check_is_what_a_host_is_worth() -> None:
    """A training job waits for its slowest GPU."""
    late = [replace(value(host, "", seconds), benchmark="launch", unit="us", better="lower") for host, seconds in (("a", 8), ("b", 10))]
    known = host_speeds([*late, *(value(host, gpu, 600) for host in "ab" for gpu in "01"), value("a", "2", 450), value("b", "2", 600)])

    assert (known["a"].check, known["a"].device) == ("gemm", "2")
    assert known["a"].share == pytest.approx(0.75)
    assert (known["b"].check, known["b"].slow) == ("launch", True)
    assert known["a"].text() == "gemm on 2: 75 % of its peers' median"


@pytest.mark.parametrize(("outcome", "slow"), [("fail", True), ("unknown", False), ("pass", False)])
def test_a_value_that_a_bench_failed_makes_a_host_slow(outcome: Outcome, slow: bool) -> None:  # noqa: FBT001
    """Judging knows the noise and the floor: two hundredths behind may be proved. What is unknown is no slowness."""
    known = host_speeds([value("a", "0", 588, outcome), value("b", "0", 600), value("c", "0", 600)])

    assert known["a"].slow is slow
    assert order_hosts(["a", "b"], known) == (("b", "a") if slow else ("a", "b"))


def test_a_host_without_a_peer_is_not_measured() -> None:
    """Alone of its model or its versions it has nobody to be compared with: that is not good, and not bad."""
    alone = replace(value("a", "0", 100), model="H200")
    newer = replace(value("b", "0", 100), stack="rocm 7.1")
    known = host_speeds([alone, newer, value("c", "0", 600), value("d", "0", 600)])

    assert [known[host].share for host in "ab"] == [None, None]
    assert order_hosts(["a", "b", "c"], known) == ("c", "a", "b")


def test_what_is_no_speed_of_one_host_is_passed_over() -> None:
    """Of two hosts together, of no stated direction, or of a size that no logarithm has."""
    strange = [value("a,b", "0", 1), replace(value("a", "0", 1), better=""), value("a", "0", 0.0)]

    assert host_speeds(strange) == {}


def test_only_the_newest_word_on_a_host_counts() -> None:
    """A host that was mended and benched alone is compared with what the others showed before; older benches are not read in vain."""
    read = []

    def runs() -> Iterator[BenchRun]:
        for name, one in (
            ("alone", run(value("a", "0", 600))),
            ("all", run(*(value(host, "0", 600) for host in "bc"), value("a", "0", 300))),
        ):
            read.append(name)
            yield one

    known = host_speeds(newest_values(runs(), ["a", "b", "c"]))
    list(newest_values(runs(), ["a"]))

    assert known["a"].share == pytest.approx(1.0)
    assert read == ["alone", "all", "alone"]
