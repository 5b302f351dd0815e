# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Compute Envoy's clusters from the variable envoy_upstreams and the providers' key URLs. Only pure functions.

Fields: https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/cluster/v3/cluster.proto.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ansible.module_utils.envoy_values import BUFFER_BYTES, host_and_port, is_address, socket, tls_context, typed

if TYPE_CHECKING:
    from collections.abc import Mapping

# Envoy's default uses only IPv6 if a name has both. Most services listen on IPv4, and many gateways have no IPv6 route.
_FAMILY = "V4_PREFERRED"


def _health_check(one: Mapping[str, Any]) -> dict[str, Any]:
    interval = f"{one['health_check_interval_s']}s"
    codec = {"codec_client_type": "HTTP2"} if one["http2"] else {}
    kind: dict[str, Any] = (
        {"http_health_check": {"path": one["health_check_path"], "host": "health-check", **codec}}
        if one["health_check_path"]
        else {"tcp_health_check": {}}
    )
    return {
        "timeout": f"{one['health_check_timeout_s']}s",
        "interval": interval,
        # Envoy's default checks an upstream without requests only once a minute.
        "no_traffic_interval": interval,
        "no_traffic_healthy_interval": interval,
        "unhealthy_threshold": one["unhealthy_after"],
        "healthy_threshold": one["healthy_after"],
        **kind,
    }


def _transport(server_name: str, ca: Mapping[str, Any], alpn: str) -> dict[str, Any]:
    context = typed(
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        sni=server_name,
        auto_sni_san_validation=False,
        common_tls_context=tls_context(
            alpn_protocols=[alpn],
            validation_context={
                "trusted_ca": dict(ca),
                "match_typed_subject_alt_names": [
                    {"san_type": "IP_ADDRESS" if is_address(server_name) else "DNS", "matcher": {"exact": server_name}}
                ],
            },
        ),
    )
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def make_cluster(one: Mapping[str, Any], *, ca_text: str, system_ca_file: str) -> dict[str, Any]:
    """Return the cluster of an upstream. It resolves names and sends no request to an unhealthy endpoint, even if all are unhealthy."""
    ends = [host_and_port(endpoint) for endpoint in one["endpoints"]]
    by_name = not all(is_address(host) for host, _ in ends)
    codec: dict[str, Any] = {"http2_protocol_options": {}} if one["http2"] else {"http_protocol_options": {}}
    options = typed("envoy.extensions.upstreams.http.v3.HttpProtocolOptions", explicit_http_config=codec)
    cluster: dict[str, Any] = {
        "name": one["name"],
        "type": "STRICT_DNS" if by_name else "STATIC",
        **({"dns_lookup_family": _FAMILY} if by_name else {}),
        "connect_timeout": f"{one['connect_timeout_s']}s",
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "lb_policy": one["load_balancing"].upper(),
        # 0: never send requests to an ejected endpoint, even if few are left.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [_health_check(one)],
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
        "load_assignment": {
            "cluster_name": one["name"],
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(host, port)}} for host, port in ends]}],
        },
    }
    if one["tls"]:
        ca = {"inline_string": ca_text} if ca_text else {"filename": system_ca_file}
        cluster["transport_socket"] = _transport(one["tls_name"] or ends[0][0], ca, "h2" if one["http2"] else "http/1.1")
    return cluster


def jwks_cluster(name: str, url: str, system_ca_file: str) -> dict[str, Any]:
    """Return the cluster from which Envoy fetches a provider's keys."""
    match = re.fullmatch(r"(https?)://([^/:]+)(?::(\d+))?(/.*)?", url)
    scheme, host, port = match.group(1, 2, 3) if match else ("https", "", None)
    number = int(port or (443 if scheme == "https" else 80))
    cluster: dict[str, Any] = {
        "name": f"jwks:{name}",
        "type": "STRICT_DNS",
        "dns_lookup_family": _FAMILY,
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": f"jwks:{name}",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(host, number)}}]}],
        },
    }
    if scheme == "https":
        cluster["transport_socket"] = _transport(host, {"filename": system_ca_file}, "http/1.1")
    return cluster
