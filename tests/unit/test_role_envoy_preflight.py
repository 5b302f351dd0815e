"""Role `envoy`, preflight: refuses invalid values and certificates before it changes a host."""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.envoy_rig import KEY, certificate, filters, stated

if TYPE_CHECKING:
    from pathlib import Path

findings: Any = filters.envoy_findings


def changed(variable: str, name: str, /, **changes: Any) -> dict[str, Any]:
    """Return a valid gateway with one entry changed; None removes a key."""
    whole = stated()
    whole[variable] = [
        {key: value for key, value in {**one, **changes}.items() if value is not None} if one["name"] == name else one
        for one in whole[variable]
    ]
    return whole


def test_valid_gateway_is_accepted() -> None:
    """A gateway with most features has no findings."""
    assert filters.envoy_problems(stated()) == []


@pytest.mark.parametrize(
    ("variable", "name", "changes", "message"),
    [
        ("envoy_listeners", "https", {"port": 80}, "listener https: port 80 is already used by listener http. Fix: "),
        ("envoy_listeners", "https", {"port": 70000}, "port 70000 is invalid"),
        ("envoy_listeners", "https", {"address": "gw1"}, "gw1 is not an IP address"),
        ("envoy_listeners", "https", {"certificates": []}, "listener https has no certificate. Fix: add one"),
        ("envoy_listeners", "https", {"certificates": ["egde"]}, "there is no certificate egde. Fix: choose from: edge"),
        ("envoy_tls_certificates", "edge", {"key_file": ""}, "certificate edge has only a cert_file. Fix: set both files, or none"),
        ("envoy_listeners", "https", {"tls": False}, "has a certificate and tls: false"),
        ("envoy_listeners", "http", {"tls": True}, "has both https_redirect and tls"),
        ("envoy_routes", "site", {"upstream": "wed"}, "route site: there is no upstream wed. Fix: choose from: web, model"),
        ("envoy_routes", "site", {"listeners": ["httpz"]}, "there is no listener httpz"),
        ("envoy_routes", "site", {"listeners": ["http"]}, "listener http only redirects"),
        ("envoy_routes", "site", {"public": None}, "route site does not define who may use it. Fix: list clients"),
        ("envoy_routes", "site", {"api_keys": ["ada"]}, "route site is public and requires a key or a token"),
        ("envoy_routes", "chat", {"api_keys": ["eve"]}, "route chat: eve has no key in envoy_api_keys. Fix: choose from: ada, bob"),
        ("envoy_routes", "train", {"jwt_provider": "corq"}, "there is no JWT provider corq"),
        ("envoy_routes", "train", {"rate_limit": {"requests": 0, "per_s": 1}}, "a rate limit with requests: 0 admits no request"),
        ("envoy_routes", "train", {"rate_limit": {"requests": 1, "per_s": -1}}, "a rate limit with per_s: -1"),
        ("envoy_routes", "train", {"path_prefix": "train"}, "path_prefix train is not a path. Fix: start it with /"),
        ("envoy_routes", "health", {"path_prefix": "/v2"}, "has a path and a path_prefix"),
        ("envoy_routes", "health", {"rewrite_prefix": "/x"}, "an exact path has no prefix to rewrite"),
        ("envoy_routes", "chat", {"hosts": ["API.example.com:443"]}, "is not a host name. Fix: use lower-case letters without a port"),
        ("envoy_routes", "chat", {"timeout_s": -1}, "timeout_s is -1"),
        ("envoy_routes", "train", {"path_prefix": "/"}, "routes site and train match the same requests (*/… of listener https)"),
        ("envoy_upstreams", "web", {"endpoints": []}, "upstream web has no endpoint"),
        ("envoy_upstreams", "web", {"endpoints": ["node1"]}, "node1 is not host:port. Fix: use node1:8000"),
        ("envoy_upstreams", "web", {"endpoints": ["n1:80", "n1:80"]}, "n1:80 is listed 2 times"),
        ("envoy_upstreams", "web", {"unhealthy_after": 0}, "unhealthy_after is 0"),
        ("envoy_upstreams", "web", {"health_check_path": "health"}, "health is not a path"),
        ("envoy_jwt_providers", "corp", {"jwks_url": "https://x"}, "JWT provider corp has two sources of keys"),
        ("envoy_jwt_providers", "corp", {"jwks_file": ""}, "JWT provider corp has no source of keys"),
        ("envoy_jwt_providers", "far", {"jwks_url": "far.example.com"}, "far.example.com is not a URL"),
        ("envoy_jwt_providers", "far", {"name": "Far Away"}, "`Far Away` is not a valid name"),
        ("envoy_jwt_providers", "far", {"name": "corp"}, "envoy_jwt_providers: corp is defined 2 times"),
    ],
)
def test_each_invalid_value_is_reported_with_a_fix(variable: str, name: str, changes: dict[str, Any], message: str) -> None:
    """Each error names the value and ends in a fix."""
    lines = filters.envoy_problems(changed(variable, name, **changes))

    assert [line for line in lines if message in line], lines
    assert [line for line in lines if ". Fix: " not in line] == []


def test_gateway_without_a_listener_is_refused() -> None:
    """A host in the group needs at least one listener."""
    assert "envoy_listeners is empty" in filters.envoy_problems({})[0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"ada": "s3cr-t", "bob": KEY}, "the key of ada is shorter than 16 characters"),
        ({"ada": f"{KEY} x", "bob": "y" * 20}, "the key of ada is shorter than 16 characters, or contains a space"),
        ({"ada": KEY, "bob": KEY}, "ada and bob have the same key"),
        ({}, "ada has no key in envoy_api_keys"),
    ],
)
def test_invalid_keys_are_refused_and_never_quoted(keys: dict[str, str], message: str) -> None:
    """Short, shared and missing keys are refused; messages name the client only."""
    lines = filters.envoy_problems(stated(envoy_api_keys=keys))

    assert [line for line in lines if message in line], lines
    assert not [line for line in lines for key in keys.values() if key in line]


def test_filter_is_pinned_by_its_checksum(tmp_path: Path) -> None:
    """The inventory rejects a malformed checksum; the preflight rejects a different or missing file."""
    path = tmp_path / "stamp.wasm"
    path.write_bytes(b"module")
    right = {"name": "stamp", "file": "stamp.wasm", "sha256": hashlib.sha256(b"module").hexdigest().upper()}
    entries = [right, {**right, "sha256": "0" * 64}, {**right, "file": "none.wasm"}]
    found = filters.envoy_file_problems(entries, str(tmp_path))

    assert "sha256 is not a SHA-256 checksum" in filters.envoy_problems(stated(envoy_wasm_filters=[{**right, "sha256": "abc"}]))[0]
    assert filters.envoy_problems(stated(envoy_wasm_filters=[right])) == []
    assert len(found) == 2
    assert right["sha256"].lower() in found[0]
    assert "is not on the controller" in found[1]


def test_unresolved_values_are_not_validated() -> None:
    """Variables encrypted with Vault and templates of facts are skipped."""
    assert [filters.envoy_problems(stated(**{name: findings.UNKNOWN})) for name in findings.VARIABLES] == [[] for _ in findings.VARIABLES]


@pytest.mark.parametrize(
    ("certificate_options", "names", "message"),
    [
        ({"names": ("api.example.com",)}, ["api.example.com"], ""),
        ({"names": ("*.example.com",)}, ["api.example.com"], ""),
        ({"names": ("*.example.com",)}, ["*.example.com"], ""),
        ({"names": ("API.example.com",)}, ["api.example.com"], ""),
        ({"names": ("*.example.com",)}, ["a.b.example.com"], "certificate edge is for *.example.com and not for a.b.example.com. Fix: "),
        ({"names": ("api.example.com",)}, ["*.example.com"], "not for *.example.com"),
        ({"names": ("other.example.com",)}, ["api.example.com"], "is for other.example.com and not for api.example.com"),
        ({"names": ("api.example.com",), "by_common_name": True}, ["api.example.com"], "is for no name and not for api.example.com"),
        ({"names": ("api.example.com",), "days": -1}, [], "certificate edge expired on "),
        ({"names": ("api.example.com",), "since": -2, "days": 9}, [], "certificate edge is valid from "),
    ],
)
def test_certificate_that_clients_reject_is_refused(certificate_options: dict[str, Any], names: list[str], message: str) -> None:
    """The dates and every name must match per RFC 6125; the common name is ignored."""
    found = filters.certificate_problems(*certificate(*certificate_options.pop("names"), **certificate_options), "edge", names)

    assert [message in line for line in found] == ([True] if message else []), found


def test_certificate_expires_on_its_date() -> None:
    """It is valid one day before and invalid one day after."""
    pair = certificate("a", days=30)
    now = dt.datetime.now(dt.UTC)
    found = [filters.certificate_problems(*pair, "edge", [], (now + dt.timedelta(days=days)).isoformat()) for days in (29, 31)]

    assert [len(lines) for lines in found] == [0, 1]


def test_mismatched_key_is_refused_and_not_shown() -> None:
    """Swapped files and invalid PEM are reported by file name."""
    (cert, key), (_, other) = certificate("a"), certificate("a")
    lines = [filters.certificate_problems(*pair, "edge", [])[0] for pair in ((cert, other), ("text", key), (cert, "text"))]

    assert [
        "key of another certificate" in lines[0],
        "cert_file contains no certificate" in lines[1],
        "key_file contains no private key" in lines[2],
    ] == [True] * 3
    assert not [line for line in lines if "PRIVATE" in line]


def test_only_certificate_of_a_listener_must_match_its_names() -> None:
    """Without names, the hosts of its routes must match. With several certificates no name is checked."""
    whole = stated()
    both = [{"name": "https", "port": 443, "certificates": ["edge", "other"]}]
    own = [{"name": "https", "port": 443, "certificates": ["edge"], "names": ["gw.example.com"]}]

    assert filters.names_for("edge", whole["envoy_listeners"], whole["envoy_routes"]) == ["api.example.com"]
    assert filters.names_for("edge", both, whole["envoy_routes"]) == []
    assert filters.names_for("edge", own, whole["envoy_routes"]) == ["gw.example.com"]


def test_cluster_certificate_contains_all_listener_names() -> None:
    """The names of every listener that uses it, then those of the host. Missing addresses are omitted."""
    edge = {**stated(), "envoy_tls_certificates": [{"name": "edge"}]}
    both = {**edge, "envoy_listeners": [{"name": "https", "port": 443, "certificates": ["other", "edge"], "names": ["gw.example.com"]}]}

    assert filters.envoy_certificate_names("edge", edge, ["gw1", "", "10.0.0.9"]) == ["api.example.com", "gw1", "10.0.0.9"]
    assert filters.envoy_certificate_names("edge", both, ["gw1"]) == ["gw.example.com", "gw1"]
    assert filters.envoy_problems(edge) == []


def test_new_certificate_gets_a_new_file_name() -> None:
    """Certificate and key share one checksum in their names, so Envoy never loads a mixed pair."""
    entries = [{"name": "edge"}]
    first = filters.envoy_tls_files(entries, ["cert"], ["key"], "/etc/envoy/tls")
    second = filters.envoy_tls_files(entries, ["cert"], ["key2"], "/etc/envoy/tls")

    assert [one["path"].rpartition(".")[2] for one in first] == ["crt", "key"]
    assert {one["path"] for one in first} & {one["path"] for one in second} == set()
    assert filters.envoy_tls_paths(first)["edge"] == {"cert": first[0]["path"], "key": first[1]["path"]}
