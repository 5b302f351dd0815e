"""Module `envoy_effects`: verdicts on a running gateway."""

from __future__ import annotations

import http.client
import http.server
import ipaddress
from typing import Any

import pytest

from tests.unit.envoy_rig import filters, stated
from tests.unit.role_module import load_role_module

module: Any = load_role_module("envoy", "envoy_effects")
HEALTHY = {"web": (2, 2), "model": (1, 2)}


def route(**changes: Any) -> dict[str, Any]:
    """Return a public route as `envoy_verification` returns it."""
    plain = {
        "name": "site",
        "hosts": [],
        "path": "",
        "path_prefix": "/",
        "upstream": "web",
        "api_keys": [],
        "jwt_provider": "",
        "probe_path": "",
    }
    return {**plain, "rate_limit": {}, **changes}


@pytest.mark.parametrize(
    ("changes", "answer", "healthy", "verdict"),
    [
        ({}, (404, {"x-envoy-upstream-service-time": "3"}), HEALTHY, "pass"),  # The status of the upstream does not matter.
        ({}, (404, {}), HEALTHY, "fail"),  # no such route
        ({}, (503, {}), HEALTHY, "fail"),
        ({}, (503, {}), {"web": (0, 2)}, "unknown"),
        ({}, (503, {}), {}, "unknown"),
        ({"rate_limit": {"requests": 1, "per_s": 1}}, (429, {}), HEALTHY, "unknown"),
        ({}, (429, {}), HEALTHY, "fail"),
        ({"api_keys": ["ada"]}, (401, {}), HEALTHY, "pass"),
        ({"jwt_provider": "corp"}, (401, {}), HEALTHY, "pass"),
        ({"api_keys": ["ada"]}, (200, {"x-envoy-upstream-service-time": "3"}), HEALTHY, "fail"),  # Open to every client.
    ],
)
def test_route_must_reach_its_upstream_or_require_a_key(changes: dict[str, Any], answer: Any, healthy: Any, verdict: str) -> None:
    """A route passes only if the answer proves it."""
    gateway = module.Verdicts("envoy", "gw1")
    listener = {"name": "https", "port": 443, "names": [], "routes": [route(**changes)]}
    module.check_routes(gateway, listener, healthy, lambda *_: answer)

    assert [one["verdict"] for one in gateway.records] == [verdict]
    assert verdict == "pass" or {"reason", "fix"} <= set(gateway.records[0])


@pytest.mark.parametrize(
    ("limit", "answer", "verdict"),
    [
        ({"requests": 3, "per_s": 60}, (3, {"retry-after": "20"}), "pass"),
        ({"requests": 3, "per_s": 60}, (5, {}), "fail"),
        ({"requests": 3, "per_s": 60}, (3, {"server": "envoy"}), "fail"),
        ({"requests": 5000, "per_s": 60}, None, "skipped"),
        ({"requests": 3, "per_s": 60}, OSError("no such file"), "unknown"),
        ({"requests": 3, "per_s": 60}, http.client.BadStatusLine("x"), "unknown"),
    ],
)
def test_rate_limit_is_tested_with_requests(limit: dict[str, int], answer: Any, verdict: str) -> None:
    """429 with a retry time passes. Unlimited requests fail; no answer is unknown."""

    def trial(*_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    gateway = module.Verdicts("envoy", "gw1")
    module.check_limits(gateway, [{"routes": [route(rate_limit=limit)]}, {"routes": [route(rate_limit=limit)]}], "/run/x", trial)

    assert [one["verdict"] for one in gateway.records] == [verdict]


def test_health_is_parsed_from_envoys_output() -> None:
    """An endpoint that fails its active check, or is not listed, does not count as healthy."""
    good, bad = {"eds_health_status": "HEALTHY"}, {"eds_health_status": "HEALTHY", "failed_active_health_check": True}
    clusters = [{"name": "web", "host_statuses": [{"health_status": one} for one in (good, bad, {})]}, {"name": "model"}]
    gateway = module.Verdicts("envoy", "gw1")
    found = module.endpoint_health({"cluster_statuses": clusters})
    module.check_upstreams(gateway, ["web", "model", "new"], found)

    assert found == {"web": (1, 3), "model": (0, 0)}
    assert [(one["verdict"], one["found"]) for one in gateway.records] == [("pass", "1 of 3"), ("fail", "0 of 0"), ("unknown", "0 of 0")]


@pytest.mark.parametrize(
    ("answer", "verdict"), [((301, {"location": "https://x/"}), "pass"), ((301, {"location": "http://x/"}), "fail"), ((200, {}), "fail")]
)
def test_redirect_must_lead_to_https(answer: Any, verdict: str) -> None:
    """Any other target fails."""
    gateway = module.Verdicts("envoy", "gw1")
    module.check_redirect(gateway, {"name": "http", "port": 80, "names": []}, lambda *_: answer)

    assert [one["verdict"] for one in gateway.records] == [verdict]


def test_parameters_of_the_verification_hold_no_secret() -> None:
    """The verification needs listeners, routes and upstream names, but no keys."""
    found = filters.envoy_verification(stated())

    assert [(one["name"], [entry["name"] for entry in one["routes"]]) for one in found["listeners"]][0:2] == [
        ("http", []),
        ("https", ["site", "chat", "health", "train"]),
    ]
    assert found["listeners"][1]["names"] == ["api.example.com"]
    assert not [key for key in stated()["envoy_api_keys"].values() if key in str(found)]
    assert ipaddress.ip_address(module.local_address(found["listeners"][1])).is_loopback


def counted(name: str, *, fetched: int = 0, failed: int = 0, **words: int) -> dict[str, Any]:
    """Return the recorded counters of Envoy 1.40 for a provider's cluster and the keys of a listener."""
    values = {f"cluster.jwks_{name}.upstream_{word}": value for word, value in words.items()}
    values |= {"http.https.jwt_authn.jwks_fetch_success": fetched, "http.https.jwt_authn.jwks_fetch_failed": failed}
    histogram = {"histograms": {"supported_quantiles": [0.0], "computed_quantiles": []}}
    return {"stats": [*({"name": name, "value": value} for name, value in values.items()), histogram]}


def endpoint(name: str, **stats: int) -> dict[str, Any]:
    """Return the /clusters entry of one provider endpoint; values are strings there."""
    shown = [{"name": key, "value": str(value)} for key, value in stats.items()]
    return {"cluster_statuses": [{"name": f"jwks:{name}", "host_statuses": [{"stats": [{"name": "rq_active"}, *shown]}]}]}


@pytest.mark.parametrize(
    ("clusters", "stats", "verdict", "found"),
    [
        (endpoint("far", rq_success=2), counted("far", fetched=2, rq_2xx=2, rq_completed=2), "pass", "2 answers with keys"),
        (
            endpoint("far", rq_error=16, cx_connect_fail=16),
            counted("far", failed=16, rq_completed=16, rq_5xx=16),
            "fail",
            "requests were not answered",
        ),
        # Old keys are kept, although the provider moved to a host that does not answer.
        (endpoint("far", rq_error=3), counted("far", fetched=2, failed=3, rq_2xx=2, rq_completed=5), "fail", "requests were not answered"),
        # The provider was temporarily unreachable.
        (endpoint("far", rq_success=3, rq_error=2), counted("far", fetched=1, failed=4, rq_2xx=1, rq_completed=5), "pass", "with keys"),
        # The name has new addresses that were not tried yet.
        (endpoint("far"), counted("far", fetched=2, rq_2xx=2, rq_completed=2), "pass", "with keys"),
        ({}, counted("far", failed=16, rq_completed=16, cx_none_healthy=16), "fail", "its name does not resolve"),
        (endpoint("far", rq_success=16), counted("far", failed=16, rq_completed=16, rq_4xx=16), "fail", "each with an error"),
        (endpoint("far", rq_success=16), counted("far", failed=16, rq_completed=16, rq_2xx=16), "fail", "none with keys"),
        (
            endpoint("far", rq_success=16),
            counted("far", fetched=1, failed=15, rq_completed=16, rq_2xx=16),
            "unknown",
            "15 answers, of this or other providers",
        ),
        (endpoint("far"), counted("far"), "unknown", "not requested yet"),
    ],
)
def test_keys_of_a_url_must_be_fetched(clusters: dict[str, Any], stats: dict[str, Any], verdict: str, found: str) -> None:
    """Without keys every token gets 401, as does a request without one. The route check sees no difference."""
    gateway = module.Verdicts("envoy", "gw1")
    module.check_keys(gateway, ["far"], clusters, stats)

    assert (gateway.records[0]["check"], gateway.records[0]["verdict"]) == ("envoy.keys.far", verdict)
    assert found in gateway.records[0]["found"]
    assert ("jwks_url of far" in gateway.records[0].get("fix", "")) is (verdict != "pass")
