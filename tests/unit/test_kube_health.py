"""What a node reports of its health, and which Nodes go out of service for it, come back, and are left alone."""

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
    """What the health gate read."""

    def __init__(self, verdict: str, reason: str = "", written: float = NOW - 10) -> None:
        """Keep it."""
        self.verdict, self.reason, self.written = verdict, reason, written


@pytest.fixture(autouse=True)
def programs() -> Iterator[None]:
    """The role's programs find each other as on a host, and are forgotten afterwards."""
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
    """Decide now."""
    return load("decide").decide(nodes, NOW, limit, 900.0, breaker or {})


def out(found: dict[str, Any], *, since: float, owner: str = "primus-health") -> dict[str, Any]:
    """Return a Node that is out of service for its health."""
    record = {"host": "x", "owner": owner, "reason": "disk: full", "time": since}
    return dict(merged(found, load("node_marks").mark_patch(found, "health", record)))


def test_what_fails_goes_and_its_record_has_the_reports_own_time() -> None:
    """The mark says why, and when by the node's own clock; who passes, and who has no health checks, stays."""
    plan = decide([reporting("gpu1", "fail"), reporting("gpu2", "pass"), node("plain")], limit=50)

    assert plan.mark == {"gpu1": {"host": "gpu1", "owner": "primus-health", "reason": "disk: full", "time": NOW - 10}}
    assert (plan.release, plan.unknown, plan.breaker) == ([], {}, {})


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (("unknown", NOW - 10), "disk: full"),
        (("fail", NOW - 901), "its report is 901 s old"),
        (("pass", NOW - 901), "its report is 901 s old"),
        (("fail", NOW + 100), "of the future"),
    ],
)
def test_what_is_unknown_or_stale_is_left_alone_and_reported(found: tuple[str, float], says: str) -> None:
    """It is neither taken out nor put back, whatever it said when it was fresh."""
    verdict, written = found
    plan = decide([reporting("gpu1", verdict, written=written), out(reporting("gpu2", verdict, written=written), since=1.0)])

    assert (plan.mark, plan.release) == ({}, [])
    assert set(plan.unknown) == {"gpu1", "gpu2"}
    assert says in plan.unknown["gpu1"]


def test_a_newer_pass_brings_back_and_an_older_one_does_not() -> None:
    """The report must have been written after the failing one; a mark of another owner is not ours to lift."""
    newer = out(reporting("gpu1", "pass"), since=NOW - 11)
    older = out(reporting("gpu2", "pass"), since=NOW - 10)
    theirs = out(reporting("gpu3", "pass"), since=1.0, owner="ada")

    assert decide([newer, older, theirs]).release == ["gpu1"]


def test_a_marked_node_that_reports_no_more_is_unknown() -> None:
    """It was installed anew, or its report was taken off: the mark stays until somebody knows."""
    plan = decide([out(node("gpu1"), since=1.0)])

    assert (plan.release, plan.unknown) == ([], {"gpu1": "it is out of service for its health, and reports no more"})


def test_a_burst_trips_the_breaker_and_none_goes() -> None:
    """5 of 100 at a limit of 4 %: something that they share. Those that pass still come back, and those without reports do not count."""
    ill = [reporting(f"ill{number}", "fail") for number in range(5)]
    well = [reporting(f"well{number}", "pass") for number in range(94)]
    back = out(reporting("back", "pass"), since=1.0)
    plain = [node(f"plain{number}") for number in range(500)]
    plan = decide([*ill, *well, back, *plain], limit=4)

    assert (plan.mark, plan.release, plan.tripped) == ({}, ["back"], True)
    assert plan.breaker["nodes"] == [f"ill{number}" for number in range(5)]
    assert plan.breaker["reason"].startswith("5 of 100 Nodes fail at once and 1 are out: more than 4 (kube_health_limit_percent 4)")
    assert len(decide([*ill, *well, back], limit=5).mark) == 5


def test_those_that_are_out_already_count() -> None:
    """One by one the limit is reached as well."""
    nodes = [*(out(reporting(f"out{number}", "fail"), since=1.0) for number in range(4)), reporting("fifth", "fail")]
    well = [reporting(f"well{number}", "pass") for number in range(95)]

    assert decide([*nodes, *well], limit=4).tripped
    assert list(decide([*nodes, *well], limit=5).mark) == ["fifth"]


def test_a_breaker_that_stands_holds_until_a_person_takes_it_away() -> None:
    """Also one Node alone is not taken out while it stands; it does not trip twice."""
    plan = decide([reporting("gpu1", "fail"), *(reporting(f"w{n}", "pass") for n in range(50))], breaker={"reason": "before"})

    assert (plan.mark, plan.tripped, plan.breaker) == ({}, False, {"reason": "before"})


def test_one_node_may_always_go_but_for_a_limit_of_zero() -> None:
    """Of two Nodes 10 % would be none; 0 means that nobody is ever taken out."""
    assert list(decide([reporting("gpu1", "fail"), reporting("gpu2", "pass")]).mark) == ["gpu1"]
    assert decide([reporting("gpu1", "fail")], limit=0).mark == {}


def test_a_node_says_a_change_at_once_and_the_same_only_now_and_then() -> None:
    """What was told 100 s ago is not told again; another reason, or 240 s, is. The time of the last change stays."""
    report = load("report_health")
    first = report.condition(Reading("fail", "disk: full"), {}, NOW)
    before = {**first, "told": NOW}

    assert first["status"] == "False"
    assert not report.is_due(report.condition(Reading("fail", "disk: full"), before, NOW + 100), before, NOW + 100, 240)
    assert report.is_due(report.condition(Reading("fail", "clock"), before, NOW + 100), before, NOW + 100, 240)
    assert report.is_due(first, before, NOW + 240, 240)
    assert report.is_due(first, before, NOW - 5, 240)
    assert report.condition(Reading("fail", "clock"), before, NOW + 100)["lastTransitionTime"] == first["lastTransitionTime"]
    assert report.condition(Reading("pass"), before, NOW + 100)["lastTransitionTime"] == report.stamp(NOW + 100)


def test_an_unknown_health_is_told_as_unknown() -> None:
    """A file that is missing or stale has no time of its own that counts: the report is of now."""
    told = load("report_health").condition(Reading("unknown", "there is no health.json", 0.0), {}, NOW)

    assert (told["status"], told["lastHeartbeatTime"], told["message"]) == (
        "Unknown",
        load("report_health").stamp(NOW),
        "there is no health.json",
    )


def test_a_kubelets_kubeconfig_is_read_without_yaml(tmp_path: Path) -> None:
    """As kubeadm writes it; a file that names no server is refused, not taken for one."""
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
    """A server that keeps one Lease."""

    found: ClassVar[dict[str, Any]] = {}

    def ask(self, method: str, path: str, body: Any = None, kind: str = "") -> dict[str, Any]:
        """Read, make or change it."""
        del path, kind
        if method == "GET" and not self.found:
            raise load("judge_health").RequestError("not found", 404)
        if method != "GET":
            Leases.found = {"metadata": {"resourceVersion": "1"}, "spec": body["spec"]}
        return self.found


def test_one_control_plane_judges_at_a_time() -> None:
    """Who holds the Lease renews it; another waits until it has not been renewed for three looks."""
    takes_turn = load("judge_health").takes_turn

    assert takes_turn(Leases(), "cp1", NOW, 180.0)
    assert not takes_turn(Leases(), "cp2", NOW + 60, 180.0)
    assert takes_turn(Leases(), "cp1", NOW + 60, 180.0)
    assert takes_turn(Leases(), "cp2", NOW + 241, 180.0)
    Leases.found = {}


@pytest.mark.parametrize(
    ("last", "verdict"),
    [
        ("{", "unknown"),
        (json.dumps({"written": NOW - 181, "judges": True}), "unknown"),
        (json.dumps({"written": NOW, "judges": False}), "pass"),
        (json.dumps({"written": NOW, "judges": True, "breaker": {}, "out": ["gpu1"], "unknown": {}}), "pass"),
        (json.dumps({"written": NOW, "judges": True, "breaker": {"reason": "5 of 100"}, "out": [], "unknown": {}}), "fail"),
    ],
)
def test_the_proof_knows_unknown_from_good(tmp_path: Path, last: str, verdict: str) -> None:
    """No look, a damaged or an old one is unknown; a breaker is a failure with the command that resets it."""
    (tmp_path / "last").write_text(last)
    found = load("judge_health").shown(tmp_path / "last", {"holder": "cp1", "interval_s": 60}, NOW)

    assert found["verdict"] == verdict
    assert verdict == "pass" or found["fix"]
