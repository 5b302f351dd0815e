# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Compute Envoy's v3 configuration from the variables of the role. Only pure functions.

Messages and fields: https://www.envoyproxy.io/docs/envoy/latest/api-v3/api. Values for a public gateway:
https://www.envoyproxy.io/docs/envoy/latest/configuration/best_practices/edge.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from ansible.module_utils.envoy_routes import JWT, KEYS, LIMIT, make_limit, make_routes
from ansible.module_utils.envoy_upstreams import jwks_cluster, make_cluster
from ansible.module_utils.envoy_values import BUFFER_BYTES, CLIENT_HEADER, HTTP, http_filter, socket, tls_context, typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# On this socket each route with a rate limit has its own counter, so that root can test the limit without clients and upstream.
TRIAL_SOCKET = "/run/envoy/trial.sock"
# The admin interface shows routes, certificates and client addresses. On a loopback port every account of the host could read it.
ADMIN_SOCKET = "/run/envoy/admin.sock"
# Only Envoy and root may connect. The folder has mode 0700 too, because Envoy sets the mode of a socket after creating it.
_SOCKET_MODE = 0o600
# From the page on public gateways named above.
_MAX_STREAMS = 100
_STREAM_WINDOW_BYTES = 65536
_CONNECTION_WINDOW_BYTES = 1048576
_MAX_CONNECTIONS = 50000
_TEXT_LOG = (
    "[%START_TIME%] %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %REQ(:METHOD)% %REQ(:AUTHORITY)% %PATH(NQ:ORIG_OR_PATH)% %RESPONSE_CODE% "
    "%RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %ROUTE_NAME% %UPSTREAM_HOST%\n"
)
# Without the query string, which may contain secrets.
_JSON_LOG = {
    "time": "%START_TIME%",
    "client_address": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "client": "%REQ(X-GATEWAY-CLIENT)%",
    "method": "%REQ(:METHOD)%",
    "host": "%REQ(:AUTHORITY)%",
    "path": "%PATH(NQ:ORIG_OR_PATH)%",
    "protocol": "%PROTOCOL%",
    "status": "%RESPONSE_CODE%",
    "flags": "%RESPONSE_FLAGS%",
    "detail": "%RESPONSE_CODE_DETAILS%",
    "received_bytes": "%BYTES_RECEIVED%",
    "sent_bytes": "%BYTES_SENT%",
    "duration_ms": "%DURATION%",
    "route": "%ROUTE_NAME%",
    "upstream": "%UPSTREAM_CLUSTER%",
    "endpoint": "%UPSTREAM_HOST%",
    "request_id": "%REQ(X-REQUEST-ID)%",
}


def _access_log(kind: str, path: str) -> list[dict[str, Any]]:
    if kind == "off":
        return []
    log_format: dict[str, Any] = {"json_format": _JSON_LOG} if kind == "json" else {"text_format_source": {"inline_string": _TEXT_LOG}}
    config = typed("envoy.extensions.access_loggers.file.v3.FileAccessLog", path=path, log_format=log_format)
    return [{"name": "envoy.access_loggers.file", "typed_config": config}]


def _keys_filter(header: str, keys: Mapping[str, str]) -> dict[str, Any]:
    config = typed(
        f"{HTTP}.api_key_auth.v3.ApiKeyAuth",
        credentials=[{"key": key, "client": client} for client, key in sorted(keys.items())],
        key_sources=[{"header": header}],
        # The upstream gets the name of the client, but not the key.
        forwarding={"header": CLIENT_HEADER, "hide_credentials": True},
    )
    return http_filter(KEYS, config, disabled=True)


def _jwt_filter(providers: Iterable[Mapping[str, Any]], jwks: Mapping[str, str]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for one in providers:
        source: dict[str, Any] = (
            {"local_jwks": {"inline_string": jwks[one["name"]]}}
            if one["jwks_file"]
            else {
                "remote_jwks": {
                    "http_uri": {"uri": one["jwks_url"], "cluster": f"jwks:{one['name']}", "timeout": "5s"},
                    "cache_duration": "600s",
                    "async_fetch": {"fast_listener": True},
                }
            }
        )
        entries[one["name"]] = {"issuer": one["issuer"], "audiences": list(one["audiences"]), "require_expiration": True, **source}
    config = typed(
        f"{HTTP}.jwt_authn.v3.JwtAuthentication",
        providers=entries,
        requirement_map={name: {"provider_name": name} for name in entries},
    )
    return http_filter(JWT, config, disabled=True)


def _wasm_filter(one: Mapping[str, Any], path: str) -> dict[str, Any]:
    plugin: dict[str, Any] = {
        "name": one["name"],
        "root_id": one["name"],
        "failure_policy": "FAIL_OPEN" if one["fail_open"] else "FAIL_CLOSED",
        "vm_config": {"vm_id": one["name"], "runtime": "envoy.wasm.runtime.v8", "code": {"local": {"filename": path}}},
    }
    if one["configuration"]:
        plugin["configuration"] = typed("google.protobuf.StringValue", value=json.dumps(one["configuration"], sort_keys=True))
    return http_filter(f"wasm:{one['name']}", typed(f"{HTTP}.wasm.v3.Wasm", config=plugin))


def _limit_filter() -> dict[str, Any]:
    return http_filter(LIMIT, typed(f"{HTTP}.local_ratelimit.v3.LocalRateLimit", stat_prefix="listener"), disabled=True)


def _router() -> dict[str, Any]:
    return http_filter("envoy.filters.http.router", typed(f"{HTTP}.router.v3.Router"))


def _http_manager(**fields: Any) -> dict[str, Any]:
    config = typed("envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", **fields)
    return {"name": "envoy.filters.network.http_connection_manager", "typed_config": config}


def _chain(listener: Mapping[str, Any], manager: Mapping[str, Any], certificates: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    chain: dict[str, Any] = {"filters": [manager], "transport_socket_connect_timeout": "10s"}
    if listener["tls"]:
        pairs = [certificates[name] for name in listener["certificates"]]
        context = typed(
            "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            common_tls_context=tls_context(
                alpn_protocols=["h2", "http/1.1"],
                tls_certificates=[
                    {"certificate_chain": {"filename": pair["cert"]}, "private_key": {"filename": pair["key"]}} for pair in pairs
                ],
            ),
        )
        chain["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": context}
    return chain


def make_listener(
    listener: Mapping[str, Any], values: Mapping[str, Any], paths: Mapping[str, Any], route_source: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a listener with its filters in order and the source of its routes."""
    filters = [_limit_filter(), _router()]
    if values["envoy_jwt_providers"]:
        filters.insert(0, _jwt_filter(values["envoy_jwt_providers"], paths["jwks"]))
    if values["envoy_api_keys"]:
        filters.insert(0, _keys_filter(values["envoy_api_key_header"], values["envoy_api_keys"]))
    for one in values["envoy_wasm_filters"]:
        if not one["listeners"] or listener["name"] in one["listeners"]:
            filters.insert(-1, _wasm_filter(one, paths["wasm"][one["name"]]))
    manager = _http_manager(
        stat_prefix=listener["name"],
        access_log=_access_log(values["envoy_access_log"], paths["access_log"]),
        use_remote_address=True,
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action="UNESCAPE_AND_REDIRECT",
        common_http_protocol_options={"idle_timeout": "3600s"},
        http2_protocol_options={
            "max_concurrent_streams": _MAX_STREAMS,
            "initial_stream_window_size": _STREAM_WINDOW_BYTES,
            "initial_connection_window_size": _CONNECTION_WINDOW_BYTES,
        },
        # This header contains the name of the key's client. Remove it from requests before any filter reads it.
        early_header_mutation_extensions=[
            {
                "name": "envoy.http.early_header_mutation.header_mutation",
                "typed_config": typed(
                    "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                    mutations=[{"remove": CLIENT_HEADER}],
                ),
            }
        ],
        stream_idle_timeout="300s",
        request_headers_timeout="10s",
        http_filters=filters,
        **route_source,
    )
    inspector = {"listener_filters": [_inspector()]} if listener["tls"] else {}
    return {
        "name": listener["name"],
        "address": socket(listener["address"], listener["port"]),
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        **inspector,
        "filter_chains": [_chain(listener, manager, paths["tls"])],
    }


def _inspector() -> dict[str, Any]:
    config = typed("envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector")
    return {"name": "envoy.filters.listener.tls_inspector", "typed_config": config}


def make_trial(routes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the listener for tests of rate limits: one host name per limited route, with its limit and a direct answer."""
    hosts = [
        {
            "name": route["name"],
            "domains": [route["name"]],
            "routes": [
                {
                    "match": {"prefix": "/"},
                    "direct_response": {"status": 200},
                    "typed_per_filter_config": {LIMIT: make_limit(route)},
                }
            ],
        }
        for route in routes
    ]
    manager = _http_manager(
        stat_prefix="trial",
        route_config={"name": "trial", "virtual_hosts": hosts},
        http_filters=[_limit_filter(), _router()],
    )
    return {
        "name": "primus-trial",
        "address": {"pipe": {"path": TRIAL_SOCKET, "mode": _SOCKET_MODE}},
        "filter_chains": [{"filters": [manager]}],
    }


def make_resources(values: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return clusters, listeners and route tables for Envoy's files.

    Args:
        values: The role's variables by name, with the defaults of their entries (`with_defaults`).
        paths: Paths on the host (`tls`, `wasm`, `access_log`, `routes_dir`, `system_ca_file`), and file contents by name (`jwks`, `ca`).
    """
    clusters = [
        make_cluster(one, ca_text=paths["ca"].get(one["name"], ""), system_ca_file=paths["system_ca_file"])
        for one in values["envoy_upstreams"]
    ]
    clusters += [
        jwks_cluster(one["name"], one["jwks_url"], paths["system_ca_file"]) for one in values["envoy_jwt_providers"] if one["jwks_url"]
    ]
    clients = sorted(values["envoy_api_keys"])
    tls_port = next((one["port"] for one in values["envoy_listeners"] if one["tls"]), 443)
    tables = {one["name"]: make_routes(one, values["envoy_routes"], clients, tls_port=tls_port) for one in values["envoy_listeners"]}
    listeners = []
    for one in values["envoy_listeners"]:
        source = {"path_config_source": {"path": f"{paths['routes_dir']}/routes-{one['name']}.json"}, "resource_api_version": "V3"}
        listeners.append(make_listener(one, values, paths, {"rds": {"route_config_name": one["name"], "config_source": source}}))
    limited = [route for route in values["envoy_routes"] if route["rate_limit"]]
    if limited:
        listeners.append(make_trial(limited))
    return {"clusters": clusters, "listeners": listeners, "routes": tables}


def make_bootstrap(*, node: str, cluster: str, dynamic_dir: str) -> dict[str, Any]:
    """Return Envoy's start configuration: its name, its admin socket, and the files that it watches.

    The admin interface answers only requests that read.
    """

    def watched(name: str) -> dict[str, Any]:
        return {"path_config_source": {"path": f"{dynamic_dir}/{name}.json"}, "resource_api_version": "V3"}

    paths = ("/ready", "/server_info", "/stats", "/clusters", "/listeners", "/certs", "/config_dump")
    connections = typed(
        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=_MAX_CONNECTIONS,
    )
    return {
        "node": {"id": node, "cluster": cluster},
        "admin": {"address": {"pipe": {"path": ADMIN_SOCKET, "mode": _SOCKET_MODE}}, "allow_paths": [{"prefix": path} for path in paths]},
        "dynamic_resources": {"cds_config": watched("clusters"), "lds_config": watched("listeners")},
        "overload_manager": {
            "resource_monitors": [{"name": "envoy.resource_monitors.global_downstream_max_connections", "typed_config": connections}]
        },
    }


def version_of(resources: Any) -> str:
    """Return a short checksum of resources. A running Envoy reports it as their version."""
    return hashlib.sha256(json.dumps(resources, sort_keys=True).encode()).hexdigest()[:16]


def as_document(kind: str, resources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of a file that Envoy watches: resources of one kind with their version."""
    names = {
        "clusters": "envoy.config.cluster.v3.Cluster",
        "listeners": "envoy.config.listener.v3.Listener",
        "routes": "envoy.config.route.v3.RouteConfiguration",
    }
    return {"version_info": version_of(list(resources)), "resources": [typed(names[kind], **one) for one in resources]}


def as_static(bootstrap: Mapping[str, Any], resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything as one static configuration, because `envoy --mode validate` does not read the watched files."""
    listeners = json.loads(json.dumps(resources["listeners"]))
    for listener in listeners:
        for chain in listener["filter_chains"]:
            config = chain["filters"][0]["typed_config"]
            if rds := config.pop("rds", None):
                config["route_config"] = {**resources["routes"][rds["route_config_name"]], "validate_clusters": True}
    static = {key: value for key, value in bootstrap.items() if key != "dynamic_resources"}
    return {**static, "static_resources": {"clusters": resources["clusters"], "listeners": listeners}}
