# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Defaults of the entries of the role's variables, and building blocks of Envoy's configuration. Only pure functions."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Defaults of entries. meta/argument_specs.yml has the same; a test compares them.
DEFAULTS: dict[str, dict[str, Any]] = {
    "envoy_listeners": {"address": "0.0.0.0", "tls": True, "certificates": [], "names": [], "https_redirect": False},  # noqa: S104 (clients outside the cluster use the gateway)
    "envoy_routes": {
        "listeners": [],
        "hosts": [],
        "path": "",
        "path_prefix": "/",
        "rewrite_prefix": "",
        "public": False,
        "api_keys": [],
        "jwt_provider": "",
        "rate_limit": {},
        "timeout_s": 15,
        "websocket": False,
        "probe_path": "",
    },
    "envoy_upstreams": {
        "health_check_path": "",
        "health_check_interval_s": 5,
        "health_check_timeout_s": 2,
        "unhealthy_after": 3,
        "healthy_after": 2,
        "connect_timeout_s": 5,
        "load_balancing": "round_robin",
        "http2": False,
        "tls": False,
        "tls_ca_file": "",
        "tls_name": "",
    },
    "envoy_tls_certificates": {"cert_file": "", "key_file": ""},
    "envoy_jwt_providers": {"audiences": [], "jwks_file": "", "jwks_url": ""},
    "envoy_wasm_filters": {"listeners": [], "configuration": {}, "fail_open": False},
}
ANY_CLIENT = "*"
CLIENT_HEADER = "x-gateway-client"
# From https://www.envoyproxy.io/docs/envoy/latest/configuration/best_practices/edge, for both directions.
BUFFER_BYTES = 32768
HTTP = "envoy.extensions.filters.http"


def with_defaults(variable: str, entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of a variable with their defaults."""
    return [{**DEFAULTS[variable], **{key: value for key, value in entry.items() if value is not None}} for entry in entries]


def serves(listener: Mapping[str, Any], route: Mapping[str, Any]) -> bool:
    """Return whether a listener serves a route. A listener that redirects serves none."""
    return not listener["https_redirect"] and (not route["listeners"] or listener["name"] in route["listeners"])


def host_and_port(endpoint: str) -> tuple[str, int]:
    """Return an endpoint's host and port; `[::1]:80` has an IPv6 address.

    Raises:
        ValueError: It does not have the form host:port.
    """
    host, colon, port = str(endpoint).rpartition(":")
    plain = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    named = re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?", plain)
    if not colon or not (port.isdigit() and 0 < int(port) < 65536) or not (named or is_address(plain)):
        raise ValueError(f"{endpoint} is not host:port")
    return plain, int(port)


def is_address(host: str) -> bool:
    """Return whether a host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def typed(name: str, /, **fields: Any) -> dict[str, Any]:
    """Return a protobuf message with its type, in JSON form."""
    return {"@type": f"type.googleapis.com/{name}", **fields}


def http_filter(name: str, config: Mapping[str, Any], *, disabled: bool = False) -> dict[str, Any]:
    """Return an HTTP filter. A disabled one is active only on routes with their own configuration of it."""
    return {"name": name, **({"disabled": True} if disabled else {}), "typed_config": config}


def socket(host: str, port: int) -> dict[str, Any]:
    """Return a TCP address."""
    return {"socket_address": {"address": host, "port_value": port}}


def tls_context(**fields: Any) -> dict[str, Any]:
    """Return the common part of upstream and downstream TLS: version 1.2 or newer."""
    return {"tls_params": {"tls_minimum_protocol_version": "TLSv1_2"}, **fields}
