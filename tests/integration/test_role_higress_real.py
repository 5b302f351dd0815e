"""Role `higress`: verdicts on the answers of a gateway."""

from __future__ import annotations

from typing import Any

from tests.unit.role_module import load_role_module
from tests.unit.test_role_higress import CLIENTS, HIGRESS, ROUTE, gateway

EFFECTS = load_role_module("higress", "higress_effects")


def verdict(port: int, addresses: list[str], **route: Any) -> tuple[str, str]:
    """Return the verdict on one route."""
    tests = HIGRESS.access_tests([{**ROUTE, **route}], CLIENTS, "")[0]
    params = {"host": "cp1", "addresses": addresses, "http_port": port, "https_port": port, "header": "x-api-key", "ca_file": ""}
    found: tuple[str, str] = EFFECTS.verdict_on(params, tests)
    return found


def test_route_without_authentication_fails() -> None:
    """Requests without a key, or with a wrong one, must get 401. A public route must need none."""
    with gateway({}, 200) as port:
        open_to_all = verdict(port, ["127.0.0.1"])
        public = verdict(port, ["127.0.0.1"], public=True, clients=[])
    with gateway({}, 401) as port:
        closed = verdict(port, ["127.0.0.1"])
        asking = verdict(port, ["127.0.0.1"], public=True, clients=[])

    assert open_to_all[0] == "fail"
    assert "without a key it answers 200, not 401; with an invalid key it answers 200" in open_to_all[1]
    assert (public[0], closed[0], asking[0]) == ("pass", "pass", "fail")


def test_unreachable_gateway_is_unknown() -> None:
    """Covers a missing address and a closed port."""
    assert verdict(1, [])[0] == "unknown"
    assert verdict(1, ["127.0.0.1"])[0] == "unknown"


def test_key_is_sent_over_verified_tls_only() -> None:
    """No client key is sent over plain http."""
    with gateway({str(one["key"]): 500 for one in CLIENTS}, 401) as port:
        assert verdict(port, ["127.0.0.1"])[0] == "pass"
