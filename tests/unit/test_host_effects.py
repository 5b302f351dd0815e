"""Module `host_effects`: compares limits, names, time and apt settings of a host with the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

effects: Any = load_role_module("baseline", "host_effects")

LIMITS = {"nofile": {"soft": 100, "hard": 200, "scale": 1}, "memlock": {"soft": -1, "hard": 8, "scale": 1024}}
# In the format of /proc/self/limits.
SHOWN = """Limit                     Soft Limit           Hard Limit           Units
Max processes             4096                 4096                 processes
Max open files            100                  200                  files
Max locked memory         unlimited            8192                 bytes
"""


def make_host(answers: dict[str, tuple[int, str]], root: str = "/") -> Any:
    """Return a host with program output by name; other programs are missing."""

    def run(argv: Sequence[str]) -> tuple[int, str]:
        return answers.get(argv[0], (127, f"{argv[0]} is not installed"))

    return effects.Host("n1", check=True, root=root, run=run)


def outcomes(host: Any) -> dict[str, str]:
    """Return the verdict of each check."""
    return {record["check"].removeprefix("baseline.effect."): record["verdict"] for record in host.verdicts}


def test_limits_are_checked_for_services_and_logins() -> None:
    """Each is a separate check with the kernel's units; skipped limits are not checked."""
    host = make_host({"systemd-run": (0, SHOWN), "su": (0, SHOWN.replace("200 ", "150 "))})
    effects.check_limits(host, LIMITS, ["baseline.limit.nproc"])

    assert outcomes(host) == {
        "limit.nofile.service": "pass", "limit.memlock.service": "pass", "limit.nofile.login": "fail", "limit.memlock.login": "pass",
    }  # fmt: skip
    assert len(host.failures) == 1
    assert host.failures[0].startswith("effect.limit.nofile.login: expected 100 200, found 100 150. Fix: remove the file in ")


def test_skipped_limits_are_not_read() -> None:
    """If all limits are skipped, no session is opened."""
    host = make_host({})
    effects.check_limits(host, LIMITS, ["baseline.limit.nofile", "baseline.limit.memlock"])

    assert host.verdicts == []


def test_failed_observation_is_unknown() -> None:
    """A missing program gives unknown with a reason."""
    host = make_host({})
    effects.check_limits(host, {"nofile": LIMITS["nofile"]}, [])
    effects.check_names(host, ["10.0.0.1 cp1"])
    effects.check_upgrades(host)

    assert set(outcomes(host).values()) == {"unknown"}
    assert {record["reason"] for record in host.verdicts} == {"the command that reads it failed"}
    assert host.failures == []


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ((0, "10.0.0.1        STREAM cp1\n10.0.0.1        DGRAM"), "pass"),
        ((0, "127.0.1.1       STREAM cp1\n10.0.0.1        STREAM"), "fail"),
        ((2, ""), "fail"),
    ],
)
def test_name_must_resolve_to_its_address_first(answer: tuple[int, str], verdict: str) -> None:
    """Programs use the first address. An unknown name fails."""
    host = make_host({"getent": answer})
    effects.check_names(host, ["10.0.0.1 cp1"])

    assert outcomes(host) == {"name.cp1": verdict}


@pytest.mark.parametrize(
    ("state", "tracking", "expected"),
    [
        ("active", "Reference ID : 1\nLeap status     : Normal", {"time.service": "pass", "time.synchronised": "pass"}),
        ("active", "Reference ID : 0\nLeap status     : Not synchronised", {"time.service": "pass", "time.synchronised": "unknown"}),
        ("failed", "506 Cannot talk to daemon", {"time.service": "fail", "time.synchronised": "unknown"}),
    ],
)
def test_time_service_must_follow_a_server(state: str, tracking: str, expected: dict[str, str]) -> None:
    """A stopped service fails; one without a server is unknown."""
    host = make_host({"systemctl": (0, state), "chronyc": (0, tracking)})
    effects.check_time(host, "chrony.service")

    assert outcomes(host) == expected


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [((0, 'APT::Periodic::Enable "0";'), "pass"), ((0, 'APT::Periodic::Enable "1";'), "fail"), ((0, ""), "fail")],
)
def test_apt_must_report_that_upgrades_are_off(answer: tuple[int, str], verdict: str) -> None:
    """All of apt's files count; a missing setting means that upgrades are on."""
    host = make_host({"apt-config": answer})
    effects.check_upgrades(host)

    assert outcomes(host) == {"unattended_upgrades": verdict}


@pytest.mark.parametrize(
    ("answer", "verdict"), [((0, "l"), "pass"), ((0, "a"), "fail"), ((0, "not set"), "fail"), ((255, "Error parsing 99.conf"), "unknown")]
)
def test_needrestart_must_only_list(tmp_path: Path, answer: tuple[int, str], verdict: str) -> None:
    """All of needrestart's files count; without a mode, Ubuntu 24.04 restarts services by itself."""
    host = make_host({"perl": answer}, root=str(tmp_path))
    host.at(effects.NEEDRESTART_CONF).parent.mkdir(parents=True)
    host.at(effects.NEEDRESTART_CONF).touch()
    effects.check_needrestart(host)

    assert outcomes(host) == {"needrestart": verdict}
    assert bool(host.failures) is (verdict == "fail")


def test_host_without_needrestart_is_skipped(tmp_path: Path) -> None:
    """The drop-in is written nevertheless, so the folder alone does not count."""
    host = make_host({}, root=str(tmp_path))
    host.at("/etc/needrestart/conf.d").mkdir(parents=True)
    effects.check_needrestart(host)

    assert outcomes(host) == {"needrestart": "skipped"}
    assert host.failures == []


@pytest.mark.parametrize(("answer", "verdict"), [((0, "10.0.0.1 STREAM ntp1"), "pass"), ((2, ""), "fail"), ((124, "timed out"), "unknown")])
def test_a_time_server_must_have_an_address(answer: tuple[int, str], verdict: str) -> None:
    """Otherwise the report has the server's name and a fix, but the run does not fail."""
    host = make_host({"getent": answer})
    effects.check_time_servers(host, ["ntp1.example"])

    assert outcomes(host) == {"time.server.ntp1.example": verdict}
    assert ("ntp1.example in baseline_ntp_servers" in host.verdicts[0]["fix"]) is (verdict != "pass")
    assert host.failures == []
