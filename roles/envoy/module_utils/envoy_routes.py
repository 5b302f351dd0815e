# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Compute Envoy's route tables from the variable envoy_routes, with access rules and rate limits. Only pure functions.

Fields: https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/route/v3/route_components.proto.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from ansible.module_utils.envoy_values import ANY_CLIENT, HTTP, serves, typed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Filters that a route enables for itself; envoy_config.py adds them to the listeners.
LIMIT = "envoy.filters.http.local_ratelimit"
KEYS = "envoy.filters.http.api_key_auth"
JWT = "envoy.filters.http.jwt_authn"


def make_limit(route: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rate limit of a route: a bucket of `requests` tokens, refilled evenly in `per_s` seconds. Other requests get 429."""
    whole = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    limit = route["rate_limit"]
    wait_s = max(1, math.ceil(limit["per_s"] / limit["requests"]))
    return typed(
        f"{HTTP}.local_ratelimit.v3.LocalRateLimit",
        stat_prefix=f"route_{route['name']}",
        token_bucket={"max_tokens": limit["requests"], "tokens_per_fill": limit["requests"], "fill_interval": f"{limit['per_s']}s"},
        filter_enabled=whole,
        filter_enforced=whole,
        enable_x_ratelimit_headers="DRAFT_VERSION_03",
        response_headers_to_add=[{"header": {"key": "retry-after", "value": str(wait_s)}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
    )


def _per_route(route: Mapping[str, Any], clients: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if route["api_keys"]:
        allowed = list(clients) if ANY_CLIENT in route["api_keys"] else list(route["api_keys"])
        found[KEYS] = typed(f"{HTTP}.api_key_auth.v3.ApiKeyAuthPerRoute", allowed_clients=allowed)
    if route["jwt_provider"]:
        found[JWT] = typed(f"{HTTP}.jwt_authn.v3.PerRouteConfig", requirement_name=route["jwt_provider"])
    if route["rate_limit"]:
        found[LIMIT] = make_limit(route)
    return found


def _match(route: Mapping[str, Any]) -> dict[str, Any]:
    if route["path"]:
        return {"path": route["path"]}
    prefix = route["path_prefix"].rstrip("/")
    return {"path_separated_prefix": prefix} if prefix else {"prefix": "/"}


def _action(route: Mapping[str, Any]) -> dict[str, Any]:
    action: dict[str, Any] = {
        "cluster": route["upstream"],
        "timeout": f"{route['timeout_s']}s",
        # Retry only requests that cannot have reached the upstream, on another endpoint.
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream,reset-before-request",
            "num_retries": 2,
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": typed("envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"),
                }
            ],
            "host_selection_retry_max_attempts": 3,
        },
    }
    if route["rewrite_prefix"]:
        # Rewriting `/v1` to `/` must not turn `/v1/x` into `//x`.
        pattern = f"^{re.escape(route['path_prefix'].rstrip('/'))}/?"
        action["regex_rewrite"] = {
            "pattern": {"regex": pattern},
            "substitution": route["rewrite_prefix"].rstrip("/") + "/",
        }
    if route["websocket"]:
        action["upgrade_configs"] = [{"upgrade_type": "websocket"}]
    return action


def by_precision(route: Mapping[str, Any]) -> tuple[int, int]:
    """Return the sort key for routes of one host: exact paths first, then the longest prefix."""
    return (0, -len(route["path"])) if route["path"] else (1, -len(route["path_prefix"].rstrip("/")))


def make_routes(
    listener: Mapping[str, Any], routes: Sequence[Mapping[str, Any]], clients: Sequence[str], *, tls_port: int = 443
) -> dict[str, Any]:
    """Return the route table of a listener: one virtual host per name, each also with the routes for every name."""
    base = {"name": listener["name"], "ignore_port_in_host_matching": True}
    if listener["https_redirect"]:
        port = {} if (listener["port"], tls_port) == (80, 443) else {"port_redirect": tls_port}
        redirect = {"match": {"prefix": "/"}, "redirect": {"https_redirect": True, **port}}
        return {**base, "virtual_hosts": [{"name": "*", "domains": ["*"], "routes": [redirect]}]}
    served = sorted((route for route in routes if serves(listener, route)), key=by_precision)
    names = sorted({host for route in served for host in route["hosts"]})
    hosts = []
    for name in [*names, "*"]:
        entries = [_entry(route, clients) for route in served if not route["hosts"] or name in route["hosts"]]
        if entries:
            hosts.append({"name": name, "domains": [name], "routes": entries})
    return {**base, "virtual_hosts": hosts}


def _entry(route: Mapping[str, Any], clients: Sequence[str]) -> dict[str, Any]:
    per_route = _per_route(route, clients)
    extra = {"typed_per_filter_config": per_route} if per_route else {}
    return {"name": route["name"], "match": _match(route), "route": _action(route), **extra}
