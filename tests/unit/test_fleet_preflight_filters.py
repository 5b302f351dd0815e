"""Test the filters of the role `preflight`: equal machine IDs, failed checks, ports, and the test for root."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from primus_bootstrap.core.verdicts import parse_verdict
from primus_bootstrap.inventory.schema.specs import load_options
from tests.unit.role_module import load_file

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture
def filters() -> ModuleType:
    """Load the role's filter plugins."""
    return load_file(content.roles_dir() / "preflight/filter_plugins/preflight.py")


def probe(machine_id: str, *verdicts: dict[str, str]) -> dict[str, Any]:
    """Return Ansible's registered result of a probe."""
    return {"stdout": json.dumps({"facts": {"machine_id": machine_id}, "verdicts": verdicts}) + "\r\n", "stderr": ""}


def record(check: str, verdict: str) -> dict[str, str]:
    """Return a record with a reason and a fix."""
    return {"check": check, "verdict": verdict, "reason": f"{check} is odd", "fix": f"mend {check}", "host": "a"}


def test_hosts_with_the_same_machine_id_fail(filters: ModuleType) -> None:
    """The records name the other host; hosts of an earlier play count, hosts without an answer do not."""
    hostvars = {
        "a": {"__preflight_probe": probe("1")},
        "b": {"__preflight_probe": probe("2")},
        "c": {"__preflight_probe": probe("1")},
        "d": {},
    }

    found = filters.preflight_identities(list("abcd"), hostvars, ["b", "c", "d"], [])["verdicts"]

    assert [(one["host"], one["verdict"], one["reason"]) for one in found] == [
        ("c", "fail", "a has the same machine-id"),
        ("b", "pass", ""),
    ]
    assert all(parse_verdict(one).to_json() == one for one in found)


def test_many_equal_machine_ids_are_summarized(filters: ModuleType) -> None:
    """The reason names three hosts and the number of the others."""
    hosts = [f"gpu{number:03}" for number in range(100)]
    found = filters.preflight_identities(hosts, {host: {"__preflight_probe": probe("1")} for host in hosts}, hosts, [])["verdicts"]

    assert found[0]["reason"] == "gpu001, gpu002, gpu003 and 96 more have the same machine-id"
    assert len(found) == 100


def test_machine_id_check_can_be_skipped(filters: ModuleType) -> None:
    """The skipped record has the site's reason."""
    hostvars = {host: {"__preflight_probe": probe("1")} for host in "ab"}

    found = filters.preflight_identities(list("ab"), hostvars, list("ab"), [{"check": "machine_id_unique", "reason": "test bed"}])

    assert [(one["verdict"], one["reason"], one["fix"]) for one in found["verdicts"]] == [("skipped", "test bed", "")] * 2


@pytest.mark.parametrize(("unknown_fails", "refused"), [(False, ["disk"]), (True, ["disk", "unknown: mtu"])])
def test_only_failures_stop_a_host(filters: ModuleType, unknown_fails: bool, refused: list[str]) -> None:  # noqa: FBT001
    """Unknown results stop a host only with preflight_unknown_fails; skipped checks never do."""
    result = probe("1", record("disk", "fail"), record("mtu", "unknown"), record("os", "pass"), record("sudo", "skipped"))
    twins = {"msg": json.dumps({"verdicts": [{**record("machine_id_unique", "fail"), "host": "b"}]})}

    found = filters.preflight_findings(result, twins, "a", unknown_fails)

    assert [
        line.rpartition(": ")[0].removesuffix(": disk is odd. Fix").removesuffix(": mtu is odd. Fix") for line in found["failures"]
    ] == refused
    assert found["unknown"] == ["unknown: mtu: mtu is odd. Fix: mend mtu"]


def test_host_without_a_record_is_refused(filters: ModuleType) -> None:
    """A host without Python has no record and is refused with the reason."""
    found = filters.preflight_findings(
        {"stdout": "", "stderr": "no python3 on this host\n", "rc": 127}, {"msg": '{"verdicts": []}'}, "a", unknown_fails=False
    )

    assert found["failures"][0].startswith("the probe failed: no python3 on this host. Fix: install python3")


def test_slow_host_is_refused_with_the_limit(filters: ModuleType) -> None:
    """The message has the limit and the variable that raises it, instead of advice about Python."""
    late = {"failed": True, "msg": "Task failed: Timed out after 60 second(s).", "timedout": {"frame": "", "period": 60}}

    [line] = filters.preflight_findings(late, {"msg": '{"verdicts": []}'}, "a", unknown_fails=False)["failures"]

    assert line.startswith("probe: no answer within 60 s (preflight_timeout_s). Fix: ")
    assert "set preflight_timeout_s to more seconds" in line


@pytest.mark.parametrize(
    ("result", "works", "message"),
    [
        ({"stdout": "0\r\n"}, True, ""),
        ({"stdout": "welcome\r\n0\r\n"}, True, ""),
        ({"stdout": "1000\r\n", "stderr": ""}, False, "1000"),
        ({"msg": "Task failed: Missing sudo password", "failed": True}, False, "Missing sudo password"),
        (
            {"msg": "Task failed: Timed out after 9 second(s).", "timedout": {"period": 9}},
            False,
            "no answer within 9 s (preflight_timeout_s)",
        ),
        ({}, False, ""),
    ],
)
def test_root_is_detected_by_id(filters: ModuleType, result: dict[str, Any], works: bool, message: str) -> None:  # noqa: FBT001
    """Only `0` as the last word of `id -u` is root."""
    assert filters.preflight_become(result) == {"works": works, "message": message}


PORTS = [
    {"port": 6817, "group": "slurm_controller", "process": "slurmctld"},
    {"port": 6818, "group": "slurm_node", "process": "slurmd"},
    {"port": 6443, "group": "all", "process": "kube-apiserver"},
]


def test_port_of_a_service_variable_is_checked(filters: ModuleType) -> None:
    """A service's variable overrides the default; groups without the host are ignored."""
    found = filters.preflight_ports(PORTS, ["slurm_controller", "all"], {"slurm_controller_port": 7000, "slurm_node_port": 7001})

    assert [(one["port"], one["process"]) for one in found] == [(7000, "slurmctld"), (6443, "kube-apiserver")]


def test_port_of_two_services_is_a_conflict(filters: ModuleType) -> None:
    """The record names both services; the same port twice for one service is no conflict."""
    ports = filters.preflight_ports([*PORTS, PORTS[0]], ["slurm_controller", "slurm_node"], {"slurm_node_port": 6817})
    found = filters.preflight_findings(probe("m"), {"msg": '{"verdicts": []}'}, "a", unknown_fails=False, ports=ports)

    assert found["failures"] == ["port 6817 is set for slurmctld and for slurmd. Fix: set a different port for each"]


def test_only_ports_are_conflicts(filters: ModuleType) -> None:
    """Other failures, unknown results and missing answers are no conflicts; a duplicate port is one."""
    ports = filters.preflight_ports(PORTS, ["slurm_controller", "slurm_node"], {"slurm_node_port": 6817})
    taken = probe("m", record("port", "fail"), record("disk", "fail"))
    ill = probe("m", record("port", "unknown"), record("disk", "fail"), record("port", "pass"))

    assert filters.preflight_conflicts(taken, []) == ["port: port is odd. Fix: mend port"]
    assert filters.preflight_conflicts(ill, []) == filters.preflight_conflicts({"stdout": "", "rc": 127}, []) == []
    assert filters.preflight_conflicts(ill, ports) == ["port 6817 is set for slurmctld and for slurmd. Fix: set a different port for each"]


def test_default_ports_equal_those_of_the_roles(filters: ModuleType) -> None:
    """The table of preflight equals the defaults of the roles."""
    options = load_options()
    shipped = {one["process"]: one["port"] for one in options["preflight_ports"].default}

    stated = {name: options[variable].default for name, variable in filters.PORT_VARIABLES.items()}

    # By default no service uses Redis' port without TLS.
    assert stated == {**{name: shipped[name] for name in filters.PORT_VARIABLES}, "redis-server": 6379}


@pytest.mark.parametrize(
    ("stated", "port"),
    [
        ({}, 6380),
        ({"redis_port": 7000}, 6380),
        ({"redis_tls_port": 7001}, 7001),
        ({"redis_tls": False}, 6379),
        ({"redis_tls": "no", "redis_port": 7000}, 7000),
        ({"redis_tls_cert_file": "a.crt"}, 6379),
        ({"redis_tls_cert_file": "a.crt", "redis_tls_port": 7001}, 7001),
    ],
)
def test_port_of_redis_follows_its_tls_settings(filters: ModuleType, stated: dict[str, object], port: int) -> None:
    """The port is the TLS port, or the plain one if the site sets it or uses its certificate."""
    table = [{"port": 6380, "group": "redis", "process": "redis-server"}]

    assert [one["port"] for one in filters.preflight_ports(table, ["redis"], stated)] == [port]
