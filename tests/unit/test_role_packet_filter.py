"""Role `packet_filter`: the rules that follow from the inventory, their text, and the modules that load and verify them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from primus_bootstrap import content
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from tests.role_variables import trusted
from tests.unit.role_module import load_role_module
from tests.unit.test_role_templates import render

if TYPE_CHECKING:
    from pathlib import Path

filters: Any = load_filters("packet_filter")
module: Any = load_role_module("packet_filter", "packet_filter")
effects: Any = load_role_module("packet_filter", "packet_filter_effects")

ADDRESSES = {"db1": ["10.0.0.1"], "db2": ["10.0.0.2", "fd00::2"], "gpu1": ["10.0.0.8"], "gpu2": ["10.0.0.9", "10.1.0.0/24"]}
GROUPS = {"all": list(ADDRESSES), "redis": ["db1", "db2"], "juicefs_client": ["gpu1", "gpu2"], "prometheus": []}
REDIS = {"name": "redis", "groups": ["redis"], "ports": [6380], "sources": ["redis", "juicefs_client", "kube_node"]}
EXPORTER = {"name": "node_exporter", "groups": ["all"], "ports": [9100], "sources": ["prometheus"]}
SSH = {"name": "ssh", "groups": ["all"], "ports": ["22"], "sources": ["anywhere"], "stated": True}


def given(*services: dict[str, Any], groups: tuple[str, ...] = ("all", "redis"), **values: Any) -> dict[str, Any]:
    """Return the input of the filters for a host of these groups."""
    cluster = {"services": services, "groups": GROUPS, "group_names": groups, "addresses": ADDRESSES}
    return {**cluster, "administrators": ["10.9.0.0/16"], "interfaces": ["docker0", "podman*"], **values}


def stated(**values: Any) -> dict[str, Any]:
    """Return an extra rule."""
    return {"name": "more", "groups": ["all"], "stated": True, "ports": ["80"], "sources": ["anywhere"], **values}


def test_only_clients_of_a_service_are_accepted() -> None:
    """The sources are the addresses of the hosts of its client groups; neighbouring addresses become one network."""
    (rule,) = filters.packet_filter_rules(given(REDIS))

    assert rule == {
        "name": "redis",
        "ports": ["6380"],
        "protocols": ["tcp"],
        "anywhere": False,
        "sources": {"ipv4": ["10.0.0.1", "10.0.0.2", "10.0.0.8/31", "10.1.0.0/24"], "ipv6": ["fd00::2"]},
    }


def test_a_service_without_clients_or_on_other_hosts_has_no_rule() -> None:
    """Redis does not listen on gpu1, and no host is in the group prometheus."""
    assert filters.packet_filter_rules(given(REDIS, EXPORTER, groups=("all", "juicefs_client"))) == []
    assert filters.packet_filter_rules(given({**REDIS, "ports": []})) == []


def test_sources_can_be_hosts_groups_networks_and_administrators() -> None:
    """Networks that others contain are left out."""
    sources = ["gpu2", "prometheus", "10.1.0.7", "administrators", "2001:db8::/32"]
    (rule,) = filters.packet_filter_rules(given(stated(ports=["8080", "80-90", "443"], protocols=["tcp", "udp"], sources=sources)))

    assert rule["sources"] == {"ipv4": ["10.0.0.9", "10.1.0.0/24", "10.9.0.0/16"], "ipv6": ["2001:db8::/32"]}
    assert rule["ports"] == ["80-90", "443", "8080"]
    assert rule["protocols"] == ["tcp", "udp"]


def test_addresses_of_a_host_are_those_of_the_inventory() -> None:
    """Loopback addresses and names are left out; a host can be named by its address."""
    variables = {"ip": "10.0.0.1", "ansible_host": "db1.example.com", "access_ip": "127.0.0.1", "packet_filter_addresses": ["10.1.0.1"]}

    assert filters.host_addresses(variables) == ["10.0.0.1", "10.1.0.1"]
    found = filters.packet_filter_addresses(
        {"10.0.0.7": {"inventory_hostname": "10.0.0.7"}, "n1": {"inventory_hostname": "n1"}}, ["10.0.0.7", "n1"]
    )
    assert found == {"10.0.0.7": ["10.0.0.7"], "n1": []}


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"services": [SSH, stated()]}, ""),
        ({"services": [stated(name="web-server")]}, "the rule web-server has a name"),
        ({"services": [stated(ports=["0"])]}, "the rule more has the port 0"),
        ({"services": [stated(ports=["90-80"])]}, "the rule more has the port 90-80"),
        ({"services": [stated(ports=["http"])]}, "the rule more has the port http"),
        ({"services": [stated(sources=["redsi"])]}, "the rule more has the source redsi, which is no address, network, host or group"),
        ({"services": [{**SSH, "sources": ["10.0.0.0/33"]}]}, "packet_filter_ssh_sources has the source 10.0.0.0/33"),
        ({"services": [REDIS, stated(name="redis")]}, "the name redis is taken"),
        ({"administrators": ["office"]}, "packet_filter_admin_sources: office is neither"),
        ({"interfaces": ["br 0"]}, "packet_filter_trusted_interfaces: br 0 is not"),
        ({"addresses": {**ADDRESSES, "n1": []}}, "no IP address is known of n1"),
        ({"addresses": {**ADDRESSES, "n1": ["10.0.0.300"]}}, "packet_filter_addresses: 10.0.0.300 of n1 is neither"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], what: str) -> None:
    """Each problem has a fix. Groups of the cluster's services that hosts.yaml leaves out are no problem."""
    problems = filters.packet_filter_problems({**given(REDIS), **values})

    assert [problem.startswith(what) or what in problem for problem, _ in problems] == ([True] if what else [])
    assert all(fix for _, fix in problems)


def test_closed_port_is_one_that_no_rule_accepts() -> None:
    """It is below 1024, where no job listens."""
    rules = [{"ports": ["1000-65535"]}, {"ports": ["999"]}]

    assert filters.packet_filter_closed_port(rules) == 998
    assert filters.packet_filter_closed_port([{"ports": ["1-65535"]}]) == 0


def test_next_host_is_another_one() -> None:
    """The last one is followed by the first one."""
    assert [filters.packet_filter_next(host, ["a", "b", "c"]) for host in "abc"] == ["b", "c", "a"]
    assert filters.packet_filter_next("a", ["a"]) == ""
    assert filters.packet_filter_next("a", ["b", "c"]) == "b"


def rules_text(*services: dict[str, Any]) -> str:
    """Return the file of a host of the group redis."""
    return render("packet_filter", "rules.nft.j2", _packet_filter_rules=filters.packet_filter_rules(given(*services)))


def test_rules_file_accepts_the_sources_and_rejects_the_rest() -> None:
    """One set per rule and IP version; the table is replaced in one step."""
    lines = [line.strip() for line in rules_text(SSH, REDIS).splitlines()]

    assert lines[4:7] == ["table inet primus", "delete table inet primus", "table inet primus {"]
    assert 'tcp dport { 22 } accept comment "ssh"' in lines
    assert 'ip saddr @redis_ipv4 tcp dport { 6380 } accept comment "redis"' in lines
    assert 'ip6 saddr @redis_ipv6 tcp dport { 6380 } accept comment "redis"' in lines
    assert "elements = { 10.0.0.1, 10.0.0.2, 10.0.0.8/31, 10.1.0.0/24 }" in lines
    assert 'iifname "podman*" accept' in lines
    assert [line for line in lines if line not in ("", "}")][-1] == "reject with icmpx admin-prohibited"
    assert not any("ssh_ipv" in line for line in lines)


class Host:
    """A host with a table, a timer and the calls of its commands. `unshare` lists what it is given."""

    def __init__(self, table: str = "", *, due: bool = False, refuses: bool = False) -> None:
        """Store the loaded table and whether the rollback timer runs. A host that refuses fails to load rules."""
        self.table, self.due, self.refuses = table, due, refuses
        self.calls: list[str] = []

    def __call__(self, *argv: str, stdin: str = "") -> tuple[int, str]:
        """Answer a command."""
        call = " ".join(argv)
        self.calls.append(call)
        if "list table" in call and "unshare" not in call:
            return (0, self.table) if self.table else (1, "Error: No such file or directory")
        if call.startswith("unshare"):
            return (1, "syntax error") if "wrong" in stdin else (0, stdin)
        if "is-active" in call:
            return (0 if self.due else 3), ""
        if "systemctl stop" in call:
            self.due = False
        if call.startswith("systemd-run"):
            self.due = True
        if call.endswith("-f -"):
            if self.refuses:
                return 1, "Error: no memory"
            self.table = stdin
        return 0, ""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which the previous rules are stored."""
    monkeypatch.setattr(module, "PREVIOUS", tmp_path / "previous.nft")
    return tmp_path


def on(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Let the module work on a host."""
    monkeypatch.setattr(module, "run", host)
    return host


def test_loaded_rules_are_written_only_when_they_are_confirmed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer starts before the rules are loaded, and has the table that was in effect before."""
    host, path = on(Host("old"), monkeypatch), folder / "rules.nft"

    assert module.difference(path, "new") == f"{path} has other rules"
    module.load("new", 60)

    assert (host.table, host.due, path.exists()) == ("new", True, False)
    assert module.PREVIOUS.read_text() == module.EMPTY + "old"
    began = next(number for number, call in enumerate(host.calls) if call.startswith("systemd-run") and "--on-active=60s" in call)
    assert began < host.calls.index("/usr/sbin/nft -f -")
    assert module.difference(path, "new") == "an earlier run has loaded rules and not confirmed them"

    assert module.confirm(path, "new", 60) == ""
    assert (host.due, path.read_text(), path.stat().st_mode & 0o777) == (False, "new", 0o600)
    assert module.difference(path, "new") == ""


def test_rules_that_were_rolled_back_are_not_confirmed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller was too late; nothing is written for the next boot."""
    on(Host("old"), monkeypatch)

    error = module.confirm(folder / "rules.nft", "new", 60)
    assert "did not connect within 60 s, and the previous rules are back" in error
    assert "packet_filter_rollback_s" in error
    assert not (folder / "rules.nft").exists()


@pytest.mark.usefixtures("folder")
def test_an_interrupted_run_does_not_replace_the_previous_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unconfirmed rules are not a state to return to."""
    on(Host("unconfirmed", due=True), monkeypatch)
    module.PREVIOUS.write_text("good")

    module.load("new", 60)

    assert module.PREVIOUS.read_text() == "good"


@pytest.mark.usefixtures("folder")
def test_rules_that_nft_does_not_accept_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are tried in a network namespace of their own first."""
    host = on(Host("old"), monkeypatch)

    with pytest.raises(module.CommandError, match="nft does not accept the rules: syntax error"):
        module.load("wrong", 60)

    assert (host.table, host.due) == ("old", False)


@pytest.mark.usefixtures("folder")
def test_a_failed_load_stops_the_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has changed that would have to be undone."""
    host = on(Host("old", refuses=True), monkeypatch)

    with pytest.raises(module.CommandError, match="no memory"):
        module.load("new", 60)

    assert (host.table, host.due) == ("old", False)


def test_a_change_by_hand_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is right, the table is not."""
    on(Host("changed"), monkeypatch)
    (folder / "rules.nft").write_text("new")

    assert module.difference(folder / "rules.nft", "new") == f"the loaded table is not that of {folder / 'rules.nft'}"


@pytest.mark.parametrize(
    ("number", "closed_port", "expected"),
    [
        (errno.EHOSTUNREACH, 1023, "pass"),
        (errno.ECONNREFUSED, 1023, "fail"),
        (0, 1023, "fail"),
        (errno.ETIMEDOUT, 1023, "unknown"),
        (0, 0, "skipped"),
    ],
)
def test_only_the_answer_of_a_filter_counts_as_rejected(
    number: int, closed_port: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port without a program answers otherwise, and would hide that the filter is missing."""
    answers = {22: 0, 1023: number}
    monkeypatch.setattr(effects, "connect", lambda _address, port: (answers[port], effects.ANSWERS.get(answers[port], "timed out")))
    verdicts = effects.Verdicts("packet_filter", "n1")
    effects.check(verdicts, "n2", "10.0.0.1", 22, closed_port)

    assert [(one["check"], one["verdict"]) for one in verdicts.records] == [
        ("packet_filter.accepts", "pass"),
        ("packet_filter.rejects", expected),
    ]


@pytest.mark.parametrize(
    ("state", "ufw", "found"),
    [
        ({"ActiveState": "inactive", "LoadState": "not-found"}, {"msg": "file not present"}, ""),
        ({}, {"found": 0}, ""),
        ({"ActiveState": "active"}, {"found": 0}, "firewalld"),
        ({"ActiveState": "inactive"}, {"found": 1}, "ufw"),
    ],
)
def test_another_firewall_is_detected(state: dict[str, str], ufw: dict[str, Any], found: str) -> None:
    """The values are those that systemd_service and lineinfile return, also on a host that has neither."""
    tasks = yaml.safe_load((content.roles_dir() / "packet_filter/tasks/preflight.yml").read_text(encoding="utf-8"))
    known = {"__packet_filter_firewalld": {"status": state}, "__packet_filter_ufw": ufw}
    templar = Templar(loader=DataLoader(), variables={**trusted(tasks[-1]["vars"]), **known})

    assert templar.template(trust_as_template("{{ _packet_filter_active }}")) == found
