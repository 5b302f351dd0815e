"""The role `alertmanager`: settings from what a site states, judged by amtool, and what the verification makes of answers."""

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
    """Return settings of a site with two receivers."""
    words = {"receivers": RECEIVERS, "routes": ROUTES, "timing": TIMING, "smtp": SMTP, **changes}
    made: dict[str, Any] = filters.alertmanager_settings(words["receivers"], words["routes"], words["timing"], words["smtp"])
    return made


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
def test_amtool_takes_the_settings_and_routes_an_alert(tmp_path: Path, labels: str, receivers: str) -> None:
    """To the site's own receiver, else to the first one; to nobody what nobody is to be told of."""
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


def test_receivers_become_what_alertmanager_calls_them() -> None:
    """Every address of a mail, a login only where one is stated, and whether the end is told."""
    made = {one["name"]: one for one in settings()["receivers"]}

    assert [one["to"] for one in made["operators"]["email_configs"]] == ["a@example.com", "b@example.com"]
    assert made["operators"]["email_configs"][0]["send_resolved"] is False
    assert made["oncall"]["webhook_configs"] == [
        {
            "url": "https://hooks.example.com/token",
            "send_resolved": True,
            "http_config": {"basic_auth": {"username": "am", "password": "secret"}},
        }
    ]
    assert settings()["global"]["smtp_auth_password"] == "secret"


def test_without_receivers_everything_goes_to_nobody() -> None:
    """Alertmanager runs, shows alerts, and tells nobody; without a mail server nothing of mail is stated."""
    made = settings(receivers=[], routes=[], smtp=NO_MAIL)

    assert made["route"]["receiver"] == "nobody"
    assert made["receivers"] == [{"name": "nobody"}]
    assert "global" not in made


@pytest.mark.parametrize(
    ("receivers", "routes", "words"),
    [
        (RECEIVERS, ROUTES, []),
        ([], [], []),
        ([{"name": "a"}], [], ["receiver a has no way to be told"]),
        ([{"name": "nobody", "webhook_url": "https://x"}], [], ["cannot be called nobody"]),
        ([{"name": "a", "webhook_url": "hooks.example.com/token"}], [], ["webhook_url of receiver a is no URL"]),
        ([{"name": "a", "webhook_url": "https://x"}] * 2, [], ["receiver a is stated twice"]),
        (RECEIVERS, [{"receiver": "oncall", "routes": [{"receiver": "typo"}]}], ["a route names the receiver typo"]),
    ],
)
def test_what_cannot_be_told_is_named(receivers: list[Any], routes: list[Any], words: list[str]) -> None:
    """Each with a fix, routes inside routes as well, and no URL is quoted."""
    found = filters.alertmanager_problems(receivers, routes, "mail:587", "am@example.com")

    assert len(found) == len(words)
    assert all(word in text and "Fix: " in text and "token" not in text for word, text in zip(words, found, strict=True))


def test_a_mail_needs_a_server() -> None:
    """Without one the mail would never leave."""
    found = filters.alertmanager_problems(RECEIVERS, ROUTES, "", "")

    assert [text.partition(",")[0] for text in found] == ["receiver operators is told by mail"]


class Peer:
    """An Alertmanager that remembers its alerts and sends to receivers as told."""

    def __init__(self, *, routes_to: str = "", takes: bool | None = True, ends: bool = True, answers: bool = True) -> None:
        """Keep how it behaves; `routes_to` is a receiver that every alert goes to, one that `takes` None never answers."""
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
            return self._told(body[0])
        if path.endswith("/metrics"):
            numbers = {"requests_total": self.ended, "requests_failed_total": self.failed}
            lines = [f'alertmanager_notification_{name}{{integration="webhook"}} {value}\n' for name, value in numbers.items()]
            # One that is under way counts already.
            return 200, "".join([*lines, f'alertmanager_notifications_total{{integration="webhook"}} {self.sent}\n'])
        if "/receivers" in path:
            return 200, json.dumps([{"name": name} for name in ("oncall", "nobody")])
        if "/status" in path:
            return 200, json.dumps({"cluster": {"peers": [{}, {}]}})
        return 200, json.dumps(self.alerts)

    def _told(self, alert: dict[str, Any]) -> tuple[int, str]:
        if self.alerts:
            self.alerts = [] if self.ends else self.alerts
            return 200, ""
        deliver = alert["labels"]["deliver"] == "yes"
        self.alerts = [{"receivers": [{"name": self.routes_to or ("oncall" if deliver else "nobody")}]}]
        self.sent += deliver
        self.ended += deliver and self.takes is not None
        self.failed += deliver and self.takes is False
        return 200, ""

    def judged(self) -> dict[str, str]:
        """Return the verdicts by check."""
        return {one["check"].removeprefix("alertmanager."): one["verdict"] for one in self.service.verdicts}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROUTED_S", "SENT_S", "PEERS_S"):
        monkeypatch.setattr(effects, name, 0.05)


def test_a_server_that_routes_and_ends_an_alert_passes_and_nobody_is_told() -> None:
    """Receivers in force, the alert routed to nobody, ended, and the other host known."""
    peer = Peer()
    peer.alertmanager.look_at_receivers(["oncall"])
    peer.alertmanager.look_at_way(["oncall"], send=False)
    peer.alertmanager.look_at_peers(1)

    assert set(peer.judged().values()) == {"pass"}
    assert peer.sent == 0


@pytest.mark.parametrize(("takes", "verdict"), [(True, "pass"), (False, "fail"), (None, "fail")])
def test_a_message_must_be_taken(takes: bool | None, verdict: str) -> None:  # noqa: FBT001 (a table's column)
    """Where it is asked for, the receiver's answer decides; a message that is still under way is not taken."""
    peer = Peer(takes=takes)
    peer.alertmanager.look_at_way(["oncall"], send=True)

    assert peer.judged() == {"alert_is_routed": "pass", "message_is_taken": verdict, "alert_ends": "pass"}


def test_an_alert_that_goes_elsewhere_or_never_ends_fails() -> None:
    """A test alert that people are told of, and one that stays."""
    peer = Peer(routes_to="oncall", ends=False)
    peer.alertmanager.look_at_way(["oncall"], send=False)
    peer.alertmanager.look_at_receivers(["operators"])
    peer.alertmanager.look_at_peers(2)

    assert peer.judged() == {"alert_is_routed": "fail", "alert_ends": "fail", "receivers": "fail", "peers": "fail"}
    assert all(one["fix"] for one in peer.service.verdicts)


def test_a_silent_server_passes_nothing() -> None:
    """No answer is unknown, and an alert that was not taken is a fail."""
    peer = Peer(answers=False)
    peer.alertmanager.look_at_receivers(["oncall"])
    peer.alertmanager.look_at_peers(1)
    peer.alertmanager.look_at_way(["oncall"], send=False)

    assert peer.judged() == {"receivers": "unknown", "peers": "unknown", "alert_is_routed": "fail", "alert_ends": "fail"}


def test_without_receivers_the_verification_says_that_nobody_is_told() -> None:
    """It is said and stops nothing."""
    peer = Peer()
    peer.alertmanager.look_at_receivers([])

    assert peer.judged() == {"receivers": "skipped"}


def test_others_of_the_group_are_told_where_they_listen() -> None:
    """Address and port of each, of IPv6 in brackets."""
    hostvars = {"a": {"ip": "10.0.0.1"}, "b": {"ansible_host": "fd00::2", "alertmanager_cluster_port": 9194}}

    assert filters.alertmanager_peers(["a", "b"], hostvars) == ["10.0.0.1:9094", "[fd00::2]:9194"]
