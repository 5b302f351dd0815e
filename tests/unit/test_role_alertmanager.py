"""Role `alertmanager`: settings rendered from variables and checked with amtool, and verdicts of its verification."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.inventory.ansible.role_filters import load_filters
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

filters: Any = load_filters("alertmanager")
effects: Any = load_role_module("alertmanager", "alertmanager_effects")
AMTOOL = shutil.which("amtool")

RECEIVERS = [
    {"name": "operators", "email_to": ["a@example.com", "b@example.com"], "send_resolved": False},
    {"name": "oncall", "webhook_url": "https://hooks.example.com/token", "webhook_user": "am", "webhook_password": "secret"},
]
ROUTES = [{"receiver": "oncall", "matchers": ['severity="critical"'], "continue": True}]
TIMING = {"group_by": ["alertname"], "group_wait_s": 30, "repeat_h": 12}
SMTP = {"server": "mail:587", "from": "am@example.com", "user": "am", "password": "secret", "tls": True}
NO_MAIL = dict.fromkeys(("server", "from", "user", "password"), "") | {"tls": True}


def settings(**changes: Any) -> dict[str, Any]:
    """Return the settings of a site with two receivers."""
    words = {"receivers": RECEIVERS, "routes": ROUTES, "timing": TIMING, "smtp": SMTP, **changes}
    config: dict[str, Any] = filters.alertmanager_settings(words["receivers"], words["routes"], words["timing"], words["smtp"])
    return config


@pytest.mark.skipif(AMTOOL is None, reason="amtool is not installed (Debian: prometheus-alertmanager); Molecule runs it too")
@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        ("alertname=NodeDown severity=critical", "oncall"),
        ("alertname=DiskNearlyFull severity=warning", "operators"),
        ("alertname=Watchdog severity=none", "nobody"),
        ("alertname=NodeQuarantined severity=info", "nobody"),
        ("alertname=PrimusVerification severity=none deliver=no", "nobody"),
        ("alertname=PrimusVerification severity=none deliver=yes", "operators"),
    ],
)
def test_amtool_accepts_the_settings_and_routes_alerts(tmp_path: Path, labels: str, receivers: str) -> None:
    """Alerts go to the matching receiver, else to the first one. Test alerts go to the receiver `nobody`."""
    path = tmp_path / "alertmanager.yml"
    path.write_text(yaml.safe_dump(settings(), sort_keys=False))
    check = subprocess.run([str(AMTOOL), "check-config", str(path)], capture_output=True, text=True, check=False, timeout=60)
    routed = subprocess.run(
        [str(AMTOOL), "config", "routes", "test", f"--config.file={path}", *labels.split()],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert check.returncode == 0, check.stdout + check.stderr
    assert routed.stdout.strip().split(",")[0] == receivers


def test_receivers_are_translated_to_alertmanager_settings() -> None:
    """Covers every mail address, optional logins and resolve messages."""
    config = {one["name"]: one for one in settings()["receivers"]}

    assert [one["to"] for one in config["operators"]["email_configs"]] == ["a@example.com", "b@example.com"]
    assert config["operators"]["email_configs"][0]["send_resolved"] is False
    assert config["oncall"]["webhook_configs"] == [
        {
            "url": "https://hooks.example.com/token",
            "send_resolved": True,
            "http_config": {"basic_auth": {"username": "am", "password": "secret"}},
        }
    ]
    assert settings()["global"]["smtp_auth_password"] == "secret"


def test_without_receivers_no_message_is_sent() -> None:
    """Alertmanager runs and shows alerts; without a mail server no mail settings are written."""
    config = settings(receivers=[], routes=[], smtp=NO_MAIL)

    assert config["route"]["receiver"] == "nobody"
    assert config["receivers"] == [{"name": "nobody"}]
    assert "global" not in config


@pytest.mark.parametrize(
    ("receivers", "routes", "words"),
    [
        (RECEIVERS, ROUTES, []),
        ([], [], []),
        ([{"name": "a"}], [], ["receiver a has no destination"]),
        ([{"name": "nobody", "webhook_url": "https://x"}], [], ["has the name nobody"]),
        ([{"name": "a", "webhook_url": "hooks.example.com/token"}], [], ["webhook_url of receiver a is not a URL"]),
        ([{"name": "a", "webhook_url": "https://x"}] * 2, [], ["receiver a is defined twice"]),
        (RECEIVERS, [{"receiver": "oncall", "routes": [{"receiver": "typo"}]}], ["a route uses the receiver typo"]),
    ],
)
def test_invalid_receivers_and_routes_are_reported(receivers: list[Any], routes: list[Any], words: list[str]) -> None:
    """Each problem, also in nested routes, gets a fix. No URL is quoted."""
    found = filters.alertmanager_problems(receivers, routes, "mail:587", "am@example.com")

    assert len(found) == len(words)
    assert all(word in text and "Fix: " in text and "token" not in text for word, text in zip(words, found, strict=True))


def test_mail_receiver_requires_a_mail_server() -> None:
    """Mail without a server is refused."""
    found = filters.alertmanager_problems(RECEIVERS, ROUTES, "", "")

    assert [text.partition(",")[0] for text in found] == ["receiver operators uses mail"]


class Peer:
    """An Alertmanager that stores alerts and delivers to receivers as configured."""

    def __init__(self, *, routes_to: str = "", takes: bool | None = True, ends: bool = True, answers: bool = True) -> None:
        """Store the behaviour: `routes_to` receives every alert; if `takes` is None, the receiver never answers."""
        self.routes_to, self.takes, self.ends, self.answers = routes_to, takes, ends, answers
        self.alerts: list[dict[str, Any]] = []
        self.sent = self.ended = self.failed = 0
        self.service = effects.Service({"host": "am1"}, "alertmanager")
        self.service.call = self.call
        self.alertmanager = effects.Alertmanager(self.service, "", "unit", lambda _: None)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Answer as Alertmanager 0.25 does."""
        if not self.answers:
            return 0, "refused"
        if method == "POST":
            return self._post(body[0])
        if path.endswith("/metrics"):
            numbers = {"requests_total": self.ended, "requests_failed_total": self.failed}
            lines = [f'alertmanager_notification_{name}{{integration="webhook"}} {value}\n' for name, value in numbers.items()]
            # A pending delivery already counts.
            return 200, "".join([*lines, f'alertmanager_notifications_total{{integration="webhook"}} {self.sent}\n'])
        if "/receivers" in path:
            return 200, json.dumps([{"name": name} for name in ("oncall", "nobody")])
        if "/status" in path:
            return 200, json.dumps({"cluster": {"peers": [{}, {}]}})
        return 200, json.dumps(self.alerts)

    def _post(self, alert: dict[str, Any]) -> tuple[int, str]:
        if self.alerts:
            self.alerts = [] if self.ends else self.alerts
            return 200, ""
        deliver = alert["labels"]["deliver"] == "yes"
        self.alerts = [{"receivers": [{"name": self.routes_to or ("oncall" if deliver else "nobody")}]}]
        self.sent += deliver
        self.ended += deliver and self.takes is not None
        self.failed += deliver and self.takes is False
        return 200, ""

    def verdicts_of(self) -> dict[str, str]:
        """Return the verdict of each check."""
        return {one["check"].removeprefix("alertmanager."): one["verdict"] for one in self.service.verdicts.records}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROUTED_S", "SENT_S", "PEERS_S"):
        monkeypatch.setattr(effects, name, 0.05)


def test_server_that_routes_and_resolves_a_test_alert_passes() -> None:
    """Receivers are in force, the test alert resolves and the peer is connected."""
    peer = Peer()
    peer.alertmanager.check_receivers(["oncall"])
    peer.alertmanager.check_routing(["oncall"], send=False)
    peer.alertmanager.check_peers(1)

    assert set(peer.verdicts_of().values()) == {"pass"}
    assert peer.sent == 0


@pytest.mark.parametrize(("takes", "verdict"), [(True, "pass"), (False, "fail"), (None, "fail")])
def test_delivery_must_be_confirmed(takes: bool | None, verdict: str) -> None:  # noqa: FBT001 (a table's column)
    """If delivery is checked, the receiver's answer decides. A pending message does not pass."""
    peer = Peer(takes=takes)
    peer.alertmanager.check_routing(["oncall"], send=True)

    assert peer.verdicts_of() == {"alert_is_routed": "pass", "message_is_delivered": verdict, "alert_resolves": "pass"}


def test_alert_with_wrong_route_or_no_end_fails() -> None:
    """A test alert that reaches a receiver fails, and so does one that stays active."""
    peer = Peer(routes_to="oncall", ends=False)
    peer.alertmanager.check_routing(["oncall"], send=False)
    peer.alertmanager.check_receivers(["operators"])
    peer.alertmanager.check_peers(2)

    assert peer.verdicts_of() == {"alert_is_routed": "fail", "alert_resolves": "fail", "receivers": "fail", "peers": "fail"}
    assert all(one["fix"] for one in peer.service.verdicts.records)


def test_unreachable_server_passes_no_check() -> None:
    """No answer is unknown; a rejected alert fails."""
    peer = Peer(answers=False)
    peer.alertmanager.check_receivers(["oncall"])
    peer.alertmanager.check_peers(1)
    peer.alertmanager.check_routing(["oncall"], send=False)

    assert peer.verdicts_of() == {"receivers": "unknown", "peers": "unknown", "alert_is_routed": "fail", "alert_resolves": "fail"}


def test_without_receivers_verification_reports_a_skip() -> None:
    """The report names the missing receivers without failing."""
    peer = Peer()
    peer.alertmanager.check_receivers([])

    assert peer.verdicts_of() == {"receivers": "skipped"}


def test_peers_are_addressed_by_their_listen_address() -> None:
    """IPv6 addresses are written in brackets."""
    hostvars = {"a": {"ip": "10.0.0.1"}, "b": {"ansible_host": "fd00::2", "alertmanager_cluster_port": 9194}}

    assert filters.alertmanager_peers(["a", "b"], hostvars) == ["10.0.0.1:9094", "[fd00::2]:9194"]
