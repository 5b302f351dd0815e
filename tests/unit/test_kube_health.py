"""Test the health reports of nodes, and which Nodes are marked, recover, or stay."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from tests.unit.kube_health_rig import health_programs
from tests.unit.kube_nodes_rig import merged, node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

NOW = 1_000_000.0


class Reading:
    """The result of the health gate."""

    def __init__(self, verdict: str, reason: str = "", written: float = NOW - 10) -> None:
        """Store the Lease."""
        self.verdict, self.reason, self.written = verdict, reason, written


@pytest.fixture(autouse=True)
def programs() -> Iterator[None]:
    """The role's programs as modules, which are unloaded afterwards."""
    with health_programs():
        yield


def load(name: str) -> Any:
    """Return one of the role's programs as a module."""
    return importlib.import_module(name)


def reporting(name: str, verdict: str, *, written: float = NOW - 10) -> dict[str, Any]:
    """Return a Node that reports its health."""
    found = node(name)
    reading = Reading(verdict, "" if verdict == "pass" else "disk: full", written)
    told = {**load("report_health").condition(reading, {}, NOW), "lastHeartbeatTime": load("report_health").stamp(written)}
    found["status"]["conditions"].append(told)
    return found


def decide(nodes: list[dict[str, Any]], *, limit: float = 10, breaker: Mapping[str, Any] | None = None) -> Any:
    """Return the decision for the current time."""
    return load("decide").decide(nodes, NOW, limit, 900.0, breaker or {})


def out(found: dict[str, Any], *, since: float, owner: str = "primus-health") -> dict[str, Any]:
    """Return a Node with a health mark."""
    record = {"host": "x", "owner": owner, "reason": "disk: full", "time": since}
    return dict(merged(found, load("node_marks").mark_patch(found, "health", record)))


def test_failing_node_is_marked() -> None:
    """The record has the reason and the node's time; a passing Node, and one without health checks, stays."""
    plan = decide([reporting("gpu1", "fail"), reporting("gpu2", "pass"), node("plain")], limit=50)

    assert plan.mark == {"gpu1": {"host": "gpu1", "owner": "primus-health", "reason": "disk: full", "time": NOW - 10}}
    assert (plan.release, plan.unknown, plan.breaker) == ([], {}, {})


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (("unknown", NOW - 10), "disk: full"),
        (("fail", NOW - 901), "its report is 901 s old"),
        (("pass", NOW - 901), "its report is 901 s old"),
        (("fail", NOW + 100), "from the future"),
    ],
)
def test_unknown_or_stale_health_changes_nothing(found: tuple[str, float], says: str) -> None:
    """It is reported, and the Node is neither marked nor recovered."""
    verdict, written = found
    plan = decide([reporting("gpu1", verdict, written=written), out(reporting("gpu2", verdict, written=written), since=1.0)])

    assert (plan.mark, plan.release) == ({}, [])
    assert set(plan.unknown) == {"gpu1", "gpu2"}
    assert says in plan.unknown["gpu1"]


def test_only_a_newer_pass_recovers_a_node() -> None:
    """The report must be newer than the failure; a mark of another owner stays."""
    newer = out(reporting("gpu1", "pass"), since=NOW - 11)
    older = out(reporting("gpu2", "pass"), since=NOW - 10)
    theirs = out(reporting("gpu3", "pass"), since=1.0, owner="ada")

    assert decide([newer, older, theirs]).release == ["gpu1"]


def test_marked_node_without_a_report_is_unknown() -> None:
    """The mark stays, for example after a reinstallation."""
    plan = decide([out(node("gpu1"), since=1.0)])

    assert (plan.release, plan.unknown) == ([], {"gpu1": "it is out of service for its health, and no longer reports"})


def test_burst_opens_the_breaker() -> None:
    """5 of 100 failures exceed 4 %: no Node is marked. Passing Nodes recover, and Nodes without reports do not count."""
    ill = [reporting(f"ill{number}", "fail") for number in range(5)]
    well = [reporting(f"well{number}", "pass") for number in range(94)]
    back = out(reporting("back", "pass"), since=1.0)
    plain = [node(f"plain{number}") for number in range(500)]
    plan = decide([*ill, *well, back, *plain], limit=4)

    assert (plan.mark, plan.release, plan.tripped) == ({}, ["back"], True)
    assert plan.breaker["nodes"] == [f"ill{number}" for number in range(5)]
    assert plan.breaker["reason"].startswith("5 of 100 Nodes fail at once and 1 are out: more than 4 (kube_health_limit_percent 4)")
    assert len(decide([*ill, *well, back], limit=5).mark) == 5


def test_marked_nodes_count_for_the_limit() -> None:
    """The limit also applies to failures one by one."""
    nodes = [*(out(reporting(f"out{number}", "fail"), since=1.0) for number in range(4)), reporting("fifth", "fail")]
    well = [reporting(f"well{number}", "pass") for number in range(95)]

    assert decide([*nodes, *well], limit=4).tripped
    assert list(decide([*nodes, *well], limit=5).mark) == ["fifth"]


def test_open_breaker_stays_until_it_is_reset() -> None:
    """While it is open, no Node is marked, and it does not open again."""
    plan = decide([reporting("gpu1", "fail"), *(reporting(f"w{n}", "pass") for n in range(50))], breaker={"reason": "before"})

    assert (plan.mark, plan.tripped, plan.breaker) == ({}, False, {"reason": "before"})


def test_limit_allows_at_least_one_node() -> None:
    """10 % of two Nodes allow one; 0 allows none."""
    assert list(decide([reporting("gpu1", "fail"), reporting("gpu2", "pass")]).mark) == ["gpu1"]
    assert decide([reporting("gpu1", "fail")], limit=0).mark == {}


def test_report_is_repeated_after_240_s() -> None:
    """A changed reason is reported at once, the same one after 240 s; the transition time stays."""
    report = load("report_health")
    first = report.condition(Reading("fail", "disk: full"), {}, NOW)
    before = {**first, "reported": NOW}

    assert first["status"] == "False"
    assert not report.is_due(report.condition(Reading("fail", "disk: full"), before, NOW + 100), before, NOW + 100, 240)
    assert report.is_due(report.condition(Reading("fail", "clock"), before, NOW + 100), before, NOW + 100, 240)
    assert report.is_due(first, before, NOW + 240, 240)
    assert report.is_due(first, before, NOW - 5, 240)
    assert report.condition(Reading("fail", "clock"), before, NOW + 100)["lastTransitionTime"] == first["lastTransitionTime"]
    assert report.condition(Reading("pass"), before, NOW + 100)["lastTransitionTime"] == report.stamp(NOW + 100)


def test_unknown_health_is_reported_with_the_current_time() -> None:
    """The time of a missing or stale file is not used."""
    told = load("report_health").condition(Reading("unknown", "there is no health.json", 0.0), {}, NOW)

    assert (told["status"], told["lastHeartbeatTime"], told["message"]) == (
        "Unknown",
        load("report_health").stamp(NOW),
        "there is no health.json",
    )


def test_kubeconfig_is_parsed_without_yaml(tmp_path: Path) -> None:
    """The format is kubeadm's; a file without a server is refused."""
    conf = tmp_path / "kubelet.conf"
    conf.write_text(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: QUJD\n    server: https://10.0.0.1:6443\n  name: x\n"
        "users:\n- name: system:node:gpu1\n  user:\n    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n"
        "    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem\n"
    )
    request = load("api_request")

    assert request.read_kubeconfig(conf) == {
        "certificate-authority-data": "QUJD",
        "server": "https://10.0.0.1:6443",
        "client-certificate": "/var/lib/kubelet/pki/kubelet-client-current.pem",
        "client-key": "/var/lib/kubelet/pki/kubelet-client-current.pem",
    }
    conf.write_text("{}")
    with pytest.raises(request.RequestError, match="names no server"):
        request.read_kubeconfig(conf)


class Leases:
    """A server with one Lease."""

    found: ClassVar[dict[str, Any]] = {}

    def ask(self, method: str, path: str, body: Any = None, kind: str = "") -> dict[str, Any]:
        """Read, create or change the Lease."""
        del path, kind
        if method == "GET" and not self.found:
            raise load("evaluate_health").RequestError("not found", 404)
        if method != "GET":
            Leases.found = {"metadata": {"resourceVersion": "1"}, "spec": body["spec"]}
        return self.found


def test_one_control_plane_decides_at_a_time() -> None:
    """The holder renews the Lease; another waits until it was not renewed for three looks."""
    holds_lease = load("evaluate_health").holds_lease

    assert holds_lease(Leases(), "cp1", NOW, 180.0)
    assert not holds_lease(Leases(), "cp2", NOW + 60, 180.0)
    assert holds_lease(Leases(), "cp1", NOW + 60, 180.0)
    assert holds_lease(Leases(), "cp2", NOW + 241, 180.0)
    Leases.found = {}


@pytest.mark.parametrize(
    ("last", "verdict"),
    [
        ("{", "unknown"),
        (json.dumps({"written": NOW - 181, "active": True}), "unknown"),
        (json.dumps({"written": NOW, "active": False}), "pass"),
        (json.dumps({"written": NOW, "active": True, "breaker": {}, "out": ["gpu1"], "unknown": {}}), "pass"),
        (json.dumps({"written": NOW, "active": True, "breaker": {"reason": "5 of 100"}, "out": [], "unknown": {}}), "fail"),
    ],
)
def test_verification_reports_unknown(tmp_path: Path, last: str, verdict: str) -> None:
    """A missing, damaged or old decision is unknown; an open breaker fails with the command that resets it."""
    (tmp_path / "last").write_text(last)
    found = load("evaluate_health").last_verdict(tmp_path / "last", {"holder": "cp1", "interval_s": 60}, NOW)

    assert found["verdict"] == verdict
    assert verdict == "pass" or found["fix"]
