"""Role `prometheus`: targets from the inventory, settings, and verdicts of the verification."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from tests.role_variables import variable
from tests.unit.role_module import load_role_module
from tests.unit.test_role_templates import render

if TYPE_CHECKING:
    from collections.abc import Mapping

filters: Any = load_filters("prometheus")
effects: Any = load_role_module("prometheus", "prometheus_effects")


class Api:
    """A Prometheus with canned answers; `judged` returns the verdicts by check and device."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        """Store the answers by path."""
        self.answers = answers
        self.service = effects.Service({"host": "p1"}, "prometheus")
        self.service.read = lambda path: {"data": self.answers.get(path.partition("?")[0].removeprefix("/api/v1/"))}
        self.prometheus = effects.Prometheus(self.service, "", "prometheus.service")

    def judged(self) -> dict[str, str]:
        """Return the verdicts."""
        return {
            f"{one['check'].removeprefix('prometheus.')} {one.get('device', '')}".strip(): one["verdict"]
            for one in self.service.verdicts.records
        }


def target(job: str, instance: str, health: str, error: str = "") -> dict[str, Any]:
    """Return a target in the format of Prometheus 2.42."""
    return {"labels": {"job": job, "instance": instance}, "health": health, "lastError": error}


@pytest.mark.parametrize(
    ("distribution", "version", "minimum"),
    [("Debian", "12", "TLS12"), ("Ubuntu", "24", "TLS12"), ("Ubuntu", "22", None), ("Debian", "22", "TLS12")],
)
def test_a_scrape_requires_tls_1_2_where_prometheus_knows_the_setting(distribution: str, version: str, minimum: str | None) -> None:
    """Prometheus 2.31 of Ubuntu 22.04 does not start with it."""
    facts = {"os_family": "Debian", "distribution": distribution, "distribution_major_version": version}
    jobs = variable("prometheus", "_prometheus_jobs", facts)

    assert {job["tls_config"].get("min_version") for job in jobs} == {minimum}
    assert {job["tls_config"]["ca_file"] for job in jobs} == {"/etc/primus/tls/ca.crt"}


def test_upstreams_release_knows_the_setting_on_ubuntu_22_04_too() -> None:
    """The limit is one of the distribution's package."""
    facts = {"os_family": "Debian", "distribution": "Ubuntu", "distribution_major_version": "22"}
    jobs = variable("prometheus", "_prometheus_jobs", facts, prometheus_source="upstream")

    assert {job["tls_config"].get("min_version") for job in jobs} == {"TLS12"}


@pytest.mark.parametrize(
    ("role", "program", "unit"),
    [
        ("prometheus", "/opt/prometheus/3.5.0/prometheus", "prometheus.service"),
        ("alertmanager", "/opt/alertmanager/0.28.1/prometheus-alertmanager", "prometheus-alertmanager.service"),
        ("node_exporter", "/opt/node_exporter/1.9.1/prometheus-node-exporter", "prometheus-node-exporter.service"),
    ],
)
def test_units_on_rocky_start_the_upstream_program_with_the_same_restrictions(role: str, program: str, unit: str) -> None:
    """The role writes the unit that Debian's package would bring; the drop-in is the same but for the program."""
    facts = {"os_family": "RedHat", "distribution": "Rocky", "distribution_version": "9.5", "distribution_major_version": "9"}
    rocky, debian = (
        render(role, "unit.conf.j2", ansible_facts=facts | {"os_family": family, "architecture": "x86_64"})
        for family in ("RedHat", "Debian")
    )
    base = render(role, f"{unit}.j2", ansible_facts=facts)

    assert rocky == debian.replace(f"/usr/bin/{program.rpartition('/')[2]}", program) != debian
    assert f"ExecStart={program}\n" in base
    assert "User=prometheus\n" in base
    assert "WantedBy=multi-user.target\n" in base


def test_targets_are_the_hosts_of_the_inventory() -> None:
    """`ip` precedes `ansible_host` and the name; IPv6 gets brackets. Labels contain rack and groups."""
    hostvars = {
        "n1": {"ip": "10.0.0.1", "ansible_host": "203.0.113.1", "rack": "r1", "group_names": ["slurm_node", "gpu_node"]},
        "n2": {"ansible_host": "fd00::2", "node_exporter_port": 9200, "group_names": []},
        "n3": {},
    }
    found = filters.prometheus_targets(hostvars, hostvars, "node_exporter_port", 9100)

    assert found == [
        {"targets": ["10.0.0.1:9100"], "labels": {"instance": "n1", "groups": ",gpu_node,slurm_node,", "rack": "r1"}},
        {"targets": ["[fd00::2]:9200"], "labels": {"instance": "n2", "groups": ","}},
        {"targets": ["n3:9100"], "labels": {"instance": "n3", "groups": ","}},
    ]


def test_targets_of_a_large_fleet_take_under_two_seconds() -> None:
    """The variables of each of 10,000 hosts are read once."""
    read_hosts: list[str] = []

    class HostVars:
        def __getitem__(self, name: str) -> dict[str, Any]:
            read_hosts.append(name)
            return {"ansible_host": "10.0.0.1", "group_names": ["gpu_node"]}

    names = [f"gpu{number:05}" for number in range(10_000)]
    started = time.process_time()
    found = filters.prometheus_targets(names, HostVars(), "node_exporter_port", 9100)
    text = json.dumps(found)

    assert read_hosts == names
    assert time.process_time() - started < 2
    assert len(json.loads(text)) == 10_000


def test_disabled_alerts_are_removed() -> None:
    """A group without rules is removed too; other rules stay."""
    files = [str(path) for path in (content.roles_dir() / "prometheus" / "files" / "rules").glob("*.yml")]
    every = [rule["alert"] for group in filters.prometheus_rule_groups(files, []) for rule in group["rules"]]
    fewer = filters.prometheus_rule_groups(files, ["ClockOff", "JobWithoutProgress", "CheckpointsFail"])
    names = [rule["alert"] for group in fewer for rule in group["rules"]]

    assert sorted(set(every) - set(names)) == ["CheckpointsFail", "ClockOff", "JobWithoutProgress"]
    assert len(every) - len(names) == 3
    assert "training" not in {group["name"] for group in fewer}


@pytest.mark.parametrize(
    ("numbers", "names"),
    [
        ((15, 30, 0), []),
        ((5, 2, 0), []),
        ((60, 3650, 500), []),
        ((4, 30, 0), ["prometheus_scrape_interval_s"]),
        ((61, 1, -1), ["prometheus_scrape_interval_s", "prometheus_retention_days", "prometheus_retention_gib"]),
        ((15, 3651, 0), ["prometheus_retention_days"]),
    ],
)
def test_values_out_of_range_are_reported(numbers: tuple[int, int, int], names: list[str]) -> None:
    """Such values would prevent rules from firing."""
    assert [name for name, _, _ in filters.prometheus_problems(*numbers)] == names


def test_healthy_server_passes() -> None:
    """All hosts up, all rules loaded, all Alertmanagers connected, retention as configured (14d is shown as 2w)."""
    api = Api(
        {
            "targets": {"activeTargets": [target("node", "n1", "up"), target("node", "n2", "up")]},
            "rules": {"groups": [{"rules": [{"name": "NodeDown", "health": "ok"}, {"name": "Own", "health": "unknown"}]}]},
            "alertmanagers": {"activeAlertmanagers": [{"url": "https://10.0.0.1:9093/api/v2/alerts"}]},
            "status/flags": {"storage.tsdb.retention.time": "2w"},
        }
    )
    api.prometheus.check_targets({"node": ["n1", "n2"]}, 0, lambda _: None)
    api.prometheus.check_rules(["NodeDown", "Own"])
    api.prometheus.check_alertmanagers(["10.0.0.1:9093"])
    api.prometheus.check_configuration("14d", "prometheus_config_last_reload_successful 1\n")

    assert api.judged() == {"targets node": "pass", "rules": "pass", "alertmanagers": "pass", "retention": "pass", "configuration": "pass"}


def test_missing_targets_and_rules_and_rule_errors_fail() -> None:
    """Each gets a name and a fix. A host without a target counts too."""
    api = Api(
        {
            "targets": {"activeTargets": [target("node", "n1", "down", "connection refused")]},
            "rules": {"groups": [{"rules": [{"name": "Own", "health": "err", "lastError": "many-to-many"}]}]},
            "alertmanagers": {"activeAlertmanagers": []},
            "status/flags": {"storage.tsdb.retention.time": "15d"},
        }
    )
    api.prometheus.check_targets({"node": ["n1", "n2"]}, 0, lambda _: None)
    api.prometheus.check_rules(["NodeDown"])
    api.prometheus.check_alertmanagers(["10.0.0.1:9093"])
    api.prometheus.check_configuration("30d", "prometheus_config_last_reload_successful 0\n")
    reasons = [one["reason"] for one in api.service.verdicts.records]

    assert set(api.judged().values()) == {"fail"}
    assert reasons[0] == "not scraped: n1: connection refused; n2: not a target"
    assert reasons[1] == "not loaded: NodeDown; Own: many-to-many"
    assert all(one["fix"] for one in api.service.verdicts.records)


def test_unreachable_server_is_unknown() -> None:
    """No answer neither passes nor fails."""
    api = Api({})
    api.prometheus.check_targets({"node": ["n1"]}, 0, lambda _: None)
    api.prometheus.check_rules(["NodeDown"])
    api.prometheus.check_alertmanagers(["10.0.0.1:9093"])
    api.prometheus.check_configuration("30d", "")

    assert set(api.judged().values()) == {"unknown"}


def test_pending_target_is_polled_again() -> None:
    """A target may be pending after a start or after one failed scrape."""
    api = Api({"targets": {"activeTargets": [target("node", "n1", "unknown"), target("node", "n2", "down")]}})

    def sleep(_: float) -> None:
        api.answers = {"targets": {"activeTargets": [target("node", "n1", "up"), target("node", "n2", "up")]}}

    api.prometheus.check_targets({"node": ["n1", "n2"]}, 60, sleep)

    assert api.judged() == {"targets node": "pass"}


NO_ROUTE = "Get https://10.0.0.2:9100/metrics: dial tcp 10.0.0.2:9100: connect: no route to host"
TIMED_OUT = "Get https://10.0.0.3:9100/metrics: context deadline exceeded"


def test_target_on_a_lost_host_and_a_time_out_are_unknown() -> None:
    """The monitoring host does not fail for them, and does not wait for the lost host."""
    active = [target("node", "n1", "up"), target("node", "n2", "down", NO_ROUTE), target("node", "n3", "down", TIMED_OUT)]
    api = Api({"targets": {"activeTargets": active}})
    naps: list[float] = []
    api.prometheus.check_targets({"node": ["n1", "n2"]}, 60, naps.append, ["n1", "n3"])
    api.prometheus.check_targets({"node": ["n1", "n2", "n3"]}, 0, naps.append, ["n1", "n3"])
    (lost, both) = api.service.verdicts.records

    assert naps == []
    assert (lost["verdict"], both["verdict"]) == ("unknown", "unknown")
    assert both["reason"] == f"unknown: n2: this run did not reach the host ({NO_ROUTE}); n3: its last scrape timed out"
    assert both["found"] == "1 up"


def test_target_that_refuses_on_a_host_that_answers_fails() -> None:
    """So does a host that this run has reached and to which the monitoring host has no route. Lost hosts are named beside it."""
    refused = "dial tcp 10.0.0.3:9100: connect: connection refused"
    active = [target("node", "n1", "down", NO_ROUTE), target("node", "n2", "down", NO_ROUTE), target("node", "n3", "down", refused)]
    api = Api({"targets": {"activeTargets": active}})
    api.prometheus.check_targets({"node": ["n1", "n2", "n3"]}, 0, lambda _: None, ["n1", "n3"])
    (found,) = api.service.verdicts.records

    assert found["verdict"] == "fail"
    assert found["reason"].startswith(f"not scraped: n1: {NO_ROUTE}; n3: {refused}; unknown: n2: this run did not reach the host")


def test_without_alertmanager_verification_reports_a_skip() -> None:
    """The report notes that alerts reach no receiver, without failing."""
    api = Api({})
    api.prometheus.check_alertmanagers([])

    assert api.judged() == {"alertmanagers": "skipped"}
    assert "are not sent" in api.service.verdicts.records[0]["reason"]


def test_unit_lists_its_files_and_contains_no_secret() -> None:
    """Files for start and reload have separate digests; the command line has no password."""
    variables = {"prometheus_password": "secret-of-the-test-0123", "ansible_host": "10.0.0.1", "inventory_dir": "/etc/x", "role_path": "/x"}
    text = render("prometheus", "unit.conf.j2", **variables)
    arguments = next(line for line in text.splitlines() if line.startswith("ExecStart=/"))

    assert "--storage.tsdb.retention.time=30d" in arguments
    assert "--storage.tsdb.retention.size" not in arguments
    assert "--web.config.file=/etc/prometheus/primus/web.yml" in arguments
    assert "secret-of-the-test" not in text
    assert text.count("/run/primus-prometheus/loaded") == 2


def test_retention_size_is_passed_to_prometheus() -> None:
    """`prometheus_retention_gib` is a command line option in powers of 1024, for which Prometheus writes GB."""
    variables = {"prometheus_password": "secret-of-the-test-0123", "ansible_host": "10.0.0.1", "inventory_dir": "/etc/x", "role_path": "/x"}
    text = render("prometheus", "unit.conf.j2", prometheus_retention_gib=500, **variables)

    assert "--storage.tsdb.retention.size=500GB" in next(line for line in text.splitlines() if line.startswith("ExecStart=/"))


def test_durations_are_compared_by_value() -> None:
    """Prometheus prints 14d as 2w and 30d as 30d."""
    assert effects._hours("2w") == effects._hours("14d") == 336
    assert effects._hours("1d12h") == 36


def test_vars_contain_variables_of_the_role_only() -> None:
    """Covers each public variable of playbooks/vars/prometheus.yml."""
    passed = yaml.safe_load((content.playbooks_dir() / "vars" / "prometheus.yml").read_text("utf-8"))
    options = yaml.safe_load((content.roles_dir() / "prometheus" / "meta" / "argument_specs.yml").read_text("utf-8"))

    assert {name for name in passed if not name.startswith("_")} <= set(options["argument_specs"]["main"]["options"])
