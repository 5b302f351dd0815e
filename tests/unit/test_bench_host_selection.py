"""Selecting the hosts of a job: hosts out of service are left out, spares replace them, and too few hosts are an error."""

from __future__ import annotations

import pytest

from primus_bootstrap.bench.placement.host_order import Speed
from primus_bootstrap.bench.placement.host_selection import ExcludedHost, select_hosts, unavailable_hosts
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.fleet.service import Quarantine, Service

HOSTS, SPARES = ["gpu1", "gpu2", "gpu3"], ["gpu8", "gpu9"]
ECC = ExcludedHost("gpu3", "is quarantined by ada (ECC errors)")
SILENT = ExcludedHost("gpu1", "does not answer (no route)", known=False)


def test_a_spare_replaces_a_quarantined_host() -> None:
    """The message has host and reason; a quarantined spare replaces no host."""
    unavailable = {"gpu3": ECC, "gpu8": ExcludedHost("gpu8", "is quarantined by primus-bench (bench pending)")}
    selection = select_hosts(HOSTS, SPARES, nodes=3, unavailable=unavailable, speeds={})

    assert (selection.hosts, selection.spares) == (("gpu1", "gpu2"), ("gpu9",))
    assert selection.lines() == (
        "gpu3 is quarantined by ada (ECC errors); spare gpu9 takes its place",
        "gpu8 is quarantined by primus-bench (bench pending); it is left out",
    )


def test_no_spare_is_used_if_the_others_are_enough() -> None:
    """Two of three hosts are enough for a job of two."""
    selection = select_hosts(HOSTS, SPARES, nodes=2, unavailable={"gpu3": ECC, "gpu1": SILENT}, speeds={})
    enough = select_hosts(HOSTS, SPARES, nodes=2, unavailable={"gpu3": ECC}, speeds={})

    assert selection.replaced == {"gpu1": "gpu8"}
    assert (enough.replaced, enough.spares, enough.lines()) == (
        {},
        ("gpu8", "gpu9"),
        ("gpu3 is quarantined by ada (ECC errors); it is left out",),
    )


def test_too_few_hosts_are_an_error() -> None:
    """It has hosts and reasons, and the fix depends on whether their state is known."""
    with pytest.raises(PlanError) as known:
        select_hosts(HOSTS, [], nodes=3, unavailable={"gpu3": ECC}, speeds={})
    with pytest.raises(PlanError) as unknown:
        select_hosts(HOSTS, ["gpu8"], nodes=3, unavailable={"gpu1": SILENT, "gpu8": SILENT}, speeds={})

    assert known.value.what == "workload_nodes is 3, and only 2 hosts can be offered: gpu3 is quarantined by ada (ECC errors)"
    assert (
        known.value.fix == "release healthy hosts (primus-bootstrap node release hosts.yaml gpu3), or request fewer hosts (workload_nodes)"
    )
    assert unknown.value.fix.startswith("start or repair the other hosts (primus-bootstrap node list hosts.yaml), or")


def test_slow_hosts_come_last() -> None:
    """Hosts and spares have separate orders: a slow host does not become a spare."""
    slow = Speed(0.8, "gemm", "0")
    selection = select_hosts(HOSTS, SPARES, nodes=2, unavailable={}, speeds={"gpu1": slow, "gpu8": slow, "gpu2": Speed(1.0, "gemm")})

    assert (selection.hosts, selection.spares) == (("gpu2", "gpu3", "gpu1"), ("gpu9", "gpu8"))
    assert selection.lines() == tuple(f"{host} is slow and comes last (gemm on 0: 80 % of its peers' median)" for host in ("gpu1", "gpu8"))


def test_unavailable_hosts() -> None:
    """Records of any owner count, damaged ones too, and so do silent hosts."""
    found = unavailable_hosts(
        [
            Service("in", answered=True),
            Service("pending", answered=True, quarantine=Quarantine("primus-bench", "bench pending", 5.0)),
            Service("dead", answered=False, quarantine=Quarantine("ada", "fan {{ broken }}", 5.0)),
            Service("torn", answered=True, quarantine=Quarantine("unknown", "x.json cannot be read", 0.0, readable=False)),
            Service("silent", answered=False, health_reason="no answer within 15 s"),
            Service("slurms", answered=False, slurm="idle", health_reason="no route to host"),
            Service("rebooted", answered=True, slurm="down"),
        ]
    )

    assert {host: (entry.reason, entry.known) for host, entry in found.items()} == {
        "pending": ("is quarantined by primus-bench (bench pending)", True),
        "dead": ("is quarantined by ada (fan (( broken )))", True),
        "torn": ("may be quarantined: x.json cannot be read", False),
        "silent": ("does not answer (no answer within 15 s)", False),
        "slurms": ("does not answer (no route to host)", False),
    }


def test_a_job_of_slurm_gets_no_node_that_slurm_has_lost() -> None:
    """Slurm would keep the job PENDING. A node that is drained, powered down or in use is left to Slurm."""
    states = ["down", "down*", "idle*", "mixed*", "idle", "allocated", "drained", "idle~", ""]
    services = [Service(f"n{number}", answered=True, slurm=state, slurm_reason="Not responding") for number, state in enumerate(states)]

    assert {host: entry.reason for host, entry in unavailable_hosts(services, by_slurm=True).items()} == {
        "n0": "is down in Slurm: Not responding",
        "n1": "is down* in Slurm: Not responding",
        "n2": "is idle* in Slurm: Not responding",
        "n3": "is mixed* in Slurm: Not responding",
    }
    assert unavailable_hosts(services) == {}
