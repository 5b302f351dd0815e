# ruff: noqa: INP001 (Ansible loads it by path)
"""Alertmanager's settings from what a site states: pure functions, tested with amtool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Takes what nobody is to be told of: the watchdog, what is only worth knowing, and the test alert of the verification.
NOBODY = "nobody"
# Of the role's verification; `deliver` says whether the first receiver is to be told.
TEST_ALERT = "PrimusVerification"
# Of a host that states none; defaults/main.yml.
CLUSTER_PORT = 9094


def alertmanager_settings(
    receivers: Sequence[Mapping[str, Any]], routes: Sequence[Mapping[str, Any]], timing: Mapping[str, Any], smtp: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings.

    Args:
        receivers: Who is told; the first one of what no route takes.
        routes: The site's own, tried in order.
        timing: `group_by`, `group_wait_s`, `repeat_h`.
        smtp: `server`, `from`, `user`, `password`, `tls`; an empty server means no mail.
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
            # How soon an end, or one more of the same kind, is told.
            "group_interval": f"{2 * timing['group_wait_s']}s",
            "repeat_interval": f"{timing['repeat_h']}h",
            "routes": [*test, *map(dict, routes), silent],
        },
        # What is down cannot be healthy, mounted or measured; and of two alerts of one name the graver one is told.
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


def _receiver(stated: Mapping[str, Any]) -> dict[str, Any]:
    resolved = bool(stated.get("send_resolved", True))
    found: dict[str, Any] = {"name": stated["name"]}
    if stated.get("webhook_url"):
        user = stated.get("webhook_user")
        login = {"basic_auth": {"username": user, "password": stated.get("webhook_password") or ""}} if user else {}
        trust = {"tls_config": {"ca_file": stated["webhook_ca_file"]}} if stated.get("webhook_ca_file") else {}
        http = {"http_config": {**login, **trust}} if login or trust else {}
        found["webhook_configs"] = [{"url": stated["webhook_url"], "send_resolved": resolved, **http}]
    if stated.get("email_to"):
        found["email_configs"] = [{"to": address, "send_resolved": resolved} for address in stated["email_to"]]
    return found


def alertmanager_problems(
    receivers: Sequence[Mapping[str, Any]], routes: Sequence[Mapping[str, Any]], smtp_server: str, smtp_from: str
) -> list[str]:
    """Return what cannot become settings, each with its fix; no URL and no password is quoted."""
    names = [str(one.get("name", "")) for one in receivers]
    found = [
        f"receiver {name} is stated twice. Fix: give each a name of its own" for name in sorted({n for n in names if names.count(n) > 1})
    ]
    for one in receivers:
        name = one.get("name", "")
        if name == NOBODY:
            found.append(f"a receiver cannot be called {NOBODY}, which is the role's own. Fix: choose another name")
        if not one.get("webhook_url") and not one.get("email_to"):
            found.append(f"receiver {name} has no way to be told. Fix: state webhook_url or email_to")
        if one.get("webhook_url") and not str(one["webhook_url"]).startswith(("https://", "http://")):
            found.append(f"webhook_url of receiver {name} is no URL. Fix: it begins with https:// (or http://)")
        if one.get("email_to") and not (smtp_server and smtp_from):
            found.append(
                f"receiver {name} is told by mail, and no mail server is stated. "
                "Fix: set alertmanager_smtp_server and alertmanager_smtp_from"
            )
    known = {*names, NOBODY}
    unknown = sorted({str(name) for name in _named(routes)} - known)
    return found + [
        f"a route names the receiver {name}, which is not stated. Fix: choose from {', '.join(sorted(known))}" for name in unknown
    ]


def alertmanager_peers(others: Sequence[str], hostvars: Any) -> list[str]:
    """Return where the other hosts of the group are told of messages: the address of each, and its port."""
    found = []
    for name in others:
        host = hostvars[name]
        address = str(host.get("ip") or host.get("ansible_host") or name)
        shown = f"[{address}]" if ":" in address else address
        found.append(f"{shown}:{host.get('alertmanager_cluster_port') or CLUSTER_PORT}")
    return found


def _named(routes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the receivers that routes name, those of routes inside others as well."""
    own = [route["receiver"] for route in routes if route.get("receiver")]
    return own + [name for route in routes for name in _named(route.get("routes") or ())]


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "alertmanager_settings": alertmanager_settings,
            "alertmanager_problems": alertmanager_problems,
            "alertmanager_peers": alertmanager_peers,
        }
