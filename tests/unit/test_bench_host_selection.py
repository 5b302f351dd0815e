"""What a job is offered: nobody who is out of service, spares in their place, and an error where too few are left."""

from __future__ import annotations

import pytest

from primus_bootstrap.bench.placement.host_order import Speed
from primus_bootstrap.bench.placement.host_selection import ExcludedHost, select_hosts, unavailable_hosts
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.fleet.service import Quarantine, Service

HOSTS, SPARES = ["gpu1", "gpu2", "gpu3"], ["gpu8", "gpu9"]
ECC = ExcludedHost("gpu3", "is quarantined by ada (ECC errors)")
SILENT = ExcludedHost("gpu1", "may be quarantined: it does not answer (no route)", known=False)


def test_a_spare_takes_the_place_of_a_quarantined_host_that_is_needed() -> None:
    """It is said of whom and why; a spare that is quarantined itself takes nobody's."""
    out = {"gpu3": ECC, "gpu8": ExcludedHost("gpu8", "is quarantined by primus-bench (bench pending)")}
    offer = select_hosts(HOSTS, SPARES, nodes=3, unavailable=out, speeds={})

    assert (offer.hosts, offer.spares) == (("gpu1", "gpu2"), ("gpu9",))
    assert offer.lines() == (
        "gpu3 is quarantined by ada (ECC errors); spare gpu9 takes its place",
        "gpu8 is quarantined by primus-bench (bench pending); it is left out",
    )


def test_where_others_are_enough_no_spare_is_taken() -> None:
    """Two of three hosts serve a job of two; the spares wait for what is lost later."""
    offer = select_hosts(HOSTS, SPARES, nodes=2, unavailable={"gpu3": ECC, "gpu1": SILENT}, speeds={})
    less = select_hosts(HOSTS, SPARES, nodes=2, unavailable={"gpu3": ECC}, speeds={})

    assert offer.replaced == {"gpu1": "gpu8"}
    assert (less.replaced, less.spares, less.lines()) == (
        {},
        ("gpu8", "gpu9"),
        ("gpu3 is quarantined by ada (ECC errors); it is left out",),
    )


def test_too_few_hosts_are_an_error_before_anything_starts() -> None:
    """Who is missing and why, and what to do: releasing for those that are known, looking for those that are not."""
    with pytest.raises(PlanError) as known:
        select_hosts(HOSTS, [], nodes=3, unavailable={"gpu3": ECC}, speeds={})
    with pytest.raises(PlanError) as unknown:
        select_hosts(HOSTS, ["gpu8"], nodes=3, unavailable={"gpu1": SILENT, "gpu8": SILENT}, speeds={})

    assert known.value.what == "workload_nodes is 3, and only 2 hosts can be offered: gpu3 is quarantined by ada (ECC errors)"
    assert known.value.fix == "release healthy hosts (primus-bootstrap node release), or request fewer hosts (workload_nodes)"
    assert unknown.value.fix.startswith("repair hosts of unknown state (primus-bootstrap node list), or")


def test_slow_hosts_are_offered_last_and_it_is_said() -> None:
    """Hosts and spares each in their own order: a slow host is still no spare."""
    slow = Speed(0.8, "gemm", "0")
    offer = select_hosts(HOSTS, SPARES, nodes=2, unavailable={}, speeds={"gpu1": slow, "gpu8": slow, "gpu2": Speed(1.0, "gemm")})

    assert (offer.hosts, offer.spares) == (("gpu2", "gpu3", "gpu1"), ("gpu9", "gpu8"))
    assert offer.lines() == tuple(f"{host} is slow and comes last (gemm on 0: 80 % of its peers' median)" for host in ("gpu1", "gpu8"))


def test_who_is_out_of_service() -> None:
    """Any owner's record counts; one that cannot be read is no good one; a silent host is known where a controller of Slurm knows it."""
    found = unavailable_hosts(
        [
            Service("in", answered=True),
            Service("pending", answered=True, quarantine=Quarantine("primus-bench", "bench pending", 5.0)),
            Service("dead", answered=False, quarantine=Quarantine("ada", "fan {{ broken }}", 5.0)),
            Service("torn", answered=True, quarantine=Quarantine("unknown", "x.json cannot be read", 0.0, readable=False)),
            Service("silent", answered=False, health_reason="no answer within 15 s"),
            Service("slurms", answered=False, slurm="down*"),
        ]
    )

    assert {host: (one.reason, one.known) for host, one in found.items()} == {
        "pending": ("is quarantined by primus-bench (bench pending)", True),
        "dead": ("is quarantined by ada (fan (( broken )))", True),
        "torn": ("may be quarantined: x.json cannot be read", False),
        "silent": ("may be quarantined: it does not answer (no answer within 15 s)", False),
    }
