# ruff: noqa: INP001 (Ansible loads it by path)
"""Compute Alertmanager's configuration from the role's variables, and check receivers and routes. Only pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The receiver without a destination: for the watchdog, alerts of severity none and info, and the test alert of the verification.
NOBODY = "nobody"
# The test alert of the verification. With the label deliver="yes", the first receiver gets it.
TEST_ALERT = "PrimusVerification"
# The default of alertmanager_cluster_port (defaults/main.yml).
CLUSTER_PORT = 9094


def alertmanager_settings(
    receivers: Sequence[Mapping[str, Any]], routes: Sequence[Mapping[str, Any]], timing: Mapping[str, Any], smtp: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of alertmanager.yml.

    Args:
        receivers: Destinations. The first one gets the alerts that no route matches.
        routes: Routes of the site, tried in order.
        timing: `group_by`, `group_wait_s`, `repeat_h`.
        smtp: `server`, `from`, `user`, `password`, `tls`. An empty server disables mail.
    """
    first = receivers[0]["name"] if receivers else NOBODY
    silent = {"matchers": ['severity=~"none|info"'], "receiver": NOBODY}
    test = [
        {"matchers": [f'alertname="{TEST_ALERT}"', 'deliver!="yes"'], "receiver": NOBODY},
        {"matchers": [f'alertname="{TEST_ALERT}"'], "receiver": first, "group_wait": "1s", "group_interval": "1s"},
    ]
    mail = {
        "smtp_smarthost": smtp["server"],
        "smtp_from": smtp["from"],
        "smtp_require_tls": bool(smtp["tls"]),
        **({"smtp_auth_username": smtp["user"], "smtp_auth_password": smtp["password"]} if smtp["user"] else {}),
    }
    return {
        **({"global": mail} if smtp["server"] else {}),
        "route": {
            "receiver": first,
            "group_by": list(timing["group_by"]),
            "group_wait": f"{timing['group_wait_s']}s",
            # The delay of a message about a resolved alert, or about a further alert of the same group.
            "group_interval": f"{2 * timing['group_wait_s']}s",
            "repeat_interval": f"{timing['repeat_h']}h",
            "routes": [*test, *map(dict, routes), silent],
        },
        # A host that is down suppresses its other alerts, and a critical alert suppresses the warning with the same name.
        "inhibit_rules": [
            {"source_matchers": ['alertname="NodeDown"'], "target_matchers": ['alertname!="NodeDown"'], "equal": ["cluster", "instance"]},
            {
                "source_matchers": ['severity="critical"'],
                "target_matchers": ['severity="warning"'],
                "equal": ["cluster", "instance", "alertname"],
            },
        ],
        "receivers": [*map(_receiver, receivers), {"name": NOBODY}],
    }


def _receiver(receiver: Mapping[str, Any]) -> dict[str, Any]:
    resolved = bool(receiver.get("send_resolved", True))
    entry: dict[str, Any] = {"name": receiver["name"]}
    if receiver.get("webhook_url"):
        user = receiver.get("webhook_user")
        login = {"basic_auth": {"username": user, "password": receiver.get("webhook_password") or ""}} if user else {}
        trust = {"tls_config": {"ca_file": receiver["webhook_ca_file"]}} if receiver.get("webhook_ca_file") else {}
        http = {"http_config": {**login, **trust}} if login or trust else {}
        entry["webhook_configs"] = [{"url": receiver["webhook_url"], "send_resolved": resolved, **http}]
    if receiver.get("email_to"):
        entry["email_configs"] = [{"to": address, "send_resolved": resolved} for address in receiver["email_to"]]
    return entry


def alertmanager_problems(
    receivers: Sequence[Mapping[str, Any]], routes: Sequence[Mapping[str, Any]], smtp_server: str, smtp_from: str
) -> list[str]:
    """Return the problems of receivers and routes, each with its fix. The texts contain no URL and no password."""
    names = [str(one.get("name", "")) for one in receivers]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    problems = [f"receiver {name} is defined twice. Fix: give each receiver its own name" for name in duplicates]
    for receiver in receivers:
        name = receiver.get("name", "")
        if name == NOBODY:
            problems.append(f"a receiver has the name {NOBODY}, which the role uses itself. Fix: choose another name")
        if not receiver.get("webhook_url") and not receiver.get("email_to"):
            problems.append(f"receiver {name} has no destination. Fix: set webhook_url or email_to")
        if receiver.get("webhook_url") and not str(receiver["webhook_url"]).startswith(("https://", "http://")):
            problems.append(f"webhook_url of receiver {name} is not a URL. Fix: start it with https:// or http://")
        if receiver.get("email_to") and not (smtp_server and smtp_from):
            problems.append(
                f"receiver {name} uses mail, but no mail server is set. Fix: set alertmanager_smtp_server and alertmanager_smtp_from"
            )
    known = {*names, NOBODY}
    unknown = sorted({str(name) for name in _receivers_of(routes)} - known)
    choices = ", ".join(sorted(known))
    return problems + [f"a route uses the receiver {name}, which is not defined. Fix: choose from {choices}" for name in unknown]


def alertmanager_peers(others: Sequence[str], hostvars: Any) -> list[str]:
    """Return the address and cluster port of each other host of the group."""
    peers = []
    for name in others:
        host = hostvars[name]
        address = str(host.get("ip") or host.get("ansible_host") or name)
        bracketed = f"[{address}]" if ":" in address else address
        peers.append(f"{bracketed}:{host.get('alertmanager_cluster_port') or CLUSTER_PORT}")
    return peers


def _receivers_of(routes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the receivers that routes use, including nested routes."""
    direct = [route["receiver"] for route in routes if route.get("receiver")]
    return direct + [name for route in routes for name in _receivers_of(route.get("routes") or ())]


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "alertmanager_settings": alertmanager_settings,
            "alertmanager_problems": alertmanager_problems,
            "alertmanager_peers": alertmanager_peers,
        }
