# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""From what a site states about its gateway to Envoy's v3 configuration: pure functions, data in, data out.

Messages and fields: https://www.envoyproxy.io/docs/envoy/latest/api-v3/api. Values for a gateway that strangers reach:
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

# Each route with a limit answers on this socket by itself, so that root can try the limit without its clients or upstream.
TRIAL_SOCKET = "/run/envoy/trial.sock"
# The admin interface shows routes, certificates and the addresses of clients. A loopback port would show them to every account of the host.
ADMIN_SOCKET = "/run/envoy/admin.sock"
# Only Envoy and root connect. The folder has mode 0700 as well: Envoy sets the mode of a socket after it has made it.
_SOCKET_MODE = 0o600
# Values of the page on gateways that strangers reach, named above.
_MOST_STREAMS = 100
_STREAM_WINDOW_BYTES = 65536
_CONNECTION_WINDOW_BYTES = 1048576
_MOST_CONNECTIONS = 50000
_TEXT_LOG = (
    "[%START_TIME%] %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %REQ(:METHOD)% %REQ(:AUTHORITY)% %PATH(NQ:ORIG_OR_PATH)% %RESPONSE_CODE% "
    "%RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %ROUTE_NAME% %UPSTREAM_HOST%\n"
)
# Without the query, which may hold secrets.
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
    shape: dict[str, Any] = {"json_format": _JSON_LOG} if kind == "json" else {"text_format_source": {"inline_string": _TEXT_LOG}}
    config = typed("envoy.extensions.access_loggers.file.v3.FileAccessLog", path=path, log_format=shape)
    return [{"name": "envoy.access_loggers.file", "typed_config": config}]


def _keys_filter(header: str, keys: Mapping[str, str]) -> dict[str, Any]:
    config = typed(
        f"{HTTP}.api_key_auth.v3.ApiKeyAuth",
        credentials=[{"key": key, "client": client} for client, key in sorted(keys.items())],
        key_sources=[{"header": header}],
        # The upstream learns who asks, and not the key.
        forwarding={"header": CLIENT_HEADER, "hide_credentials": True},
    )
    return http_filter(KEYS, config, disabled=True)


def _jwt_filter(providers: Iterable[Mapping[str, Any]], jwks: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
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
        made[one["name"]] = {"issuer": one["issuer"], "audiences": list(one["audiences"]), "require_expiration": True, **source}
    config = typed(
        f"{HTTP}.jwt_authn.v3.JwtAuthentication",
        providers=made,
        requirement_map={name: {"provider_name": name} for name in made},
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
    listener: Mapping[str, Any], stated: Mapping[str, Any], paths: Mapping[str, Any], route_source: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a listener: what comes in, in which order it is judged, and where its routes are found."""
    filters = [_limit_filter(), _router()]
    if stated["envoy_jwt_providers"]:
        filters.insert(0, _jwt_filter(stated["envoy_jwt_providers"], paths["jwks"]))
    if stated["envoy_api_keys"]:
        filters.insert(0, _keys_filter(stated["envoy_api_key_header"], stated["envoy_api_keys"]))
    for one in stated["envoy_wasm_filters"]:
        if not one["listeners"] or listener["name"] in one["listeners"]:
            filters.insert(-1, _wasm_filter(one, paths["wasm"][one["name"]]))
    manager = _http_manager(
        stat_prefix=listener["name"],
        access_log=_access_log(stated["envoy_access_log"], paths["access_log"]),
        use_remote_address=True,
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action="UNESCAPE_AND_REDIRECT",
        common_http_protocol_options={"idle_timeout": "3600s"},
        http2_protocol_options={
            "max_concurrent_streams": _MOST_STREAMS,
            "initial_stream_window_size": _STREAM_WINDOW_BYTES,
            "initial_connection_window_size": _CONNECTION_WINDOW_BYTES,
        },
        # The header says whom a key belongs to: what a client writes there itself goes before anything reads it.
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
    """Return the listener of the host's own: for each route with a limit a name whose requests are counted alike and answered here."""
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


def make_resources(stated: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return clusters, listeners and route tables, as Envoy reads them from files.

    Args:
        stated: The role's variables by name, entries complete (`full`).
        paths: Where files lie on the host (`tls`, `wasm`, `access_log`, `routes_dir`, `system_ca_file`); contents by name (`jwks`, `ca`).
    """
    clusters = [
        make_cluster(one, ca_text=paths["ca"].get(one["name"], ""), system_ca_file=paths["system_ca_file"])
        for one in stated["envoy_upstreams"]
    ]
    clusters += [
        jwks_cluster(one["name"], one["jwks_url"], paths["system_ca_file"]) for one in stated["envoy_jwt_providers"] if one["jwks_url"]
    ]
    clients = sorted(stated["envoy_api_keys"])
    tls_port = next((one["port"] for one in stated["envoy_listeners"] if one["tls"]), 443)
    tables = {one["name"]: make_routes(one, stated["envoy_routes"], clients, tls_port=tls_port) for one in stated["envoy_listeners"]}
    listeners = []
    for one in stated["envoy_listeners"]:
        source = {"path_config_source": {"path": f"{paths['routes_dir']}/routes-{one['name']}.json"}, "resource_api_version": "V3"}
        listeners.append(make_listener(one, stated, paths, {"rds": {"route_config_name": one["name"], "config_source": source}}))
    limited = [route for route in stated["envoy_routes"] if route["rate_limit"]]
    if limited:
        listeners.append(make_trial(limited))
    return {"clusters": clusters, "listeners": listeners, "routes": tables}


def make_bootstrap(*, node: str, cluster: str, dynamic_dir: str) -> dict[str, Any]:
    """Return what Envoy starts with: its name, its admin socket, and the files that it watches for everything else.

    The admin interface answers only paths that read.
    """

    def watched(name: str) -> dict[str, Any]:
        return {"path_config_source": {"path": f"{dynamic_dir}/{name}.json"}, "resource_api_version": "V3"}

    paths = ("/ready", "/server_info", "/stats", "/clusters", "/listeners", "/certs", "/config_dump")
    connections = typed(
        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=_MOST_CONNECTIONS,
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
    """Return a short sum of a resource, by which a running Envoy tells what it has taken."""
    return hashlib.sha256(json.dumps(resources, sort_keys=True).encode()).hexdigest()[:16]


def as_document(kind: str, resources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a file that Envoy watches: resources of one kind with their version."""
    names = {
        "clusters": "envoy.config.cluster.v3.Cluster",
        "listeners": "envoy.config.listener.v3.Listener",
        "routes": "envoy.config.route.v3.RouteConfiguration",
    }
    return {"version_info": version_of(list(resources)), "resources": [typed(names[kind], **one) for one in resources]}


def as_static(bootstrap: Mapping[str, Any], resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything as one static configuration: `envoy --mode validate` looks into no file that it would watch."""
    listeners = json.loads(json.dumps(resources["listeners"]))
    for listener in listeners:
        for chain in listener["filter_chains"]:
            config = chain["filters"][0]["typed_config"]
            if rds := config.pop("rds", None):
                config["route_config"] = {**resources["routes"][rds["route_config_name"]], "validate_clusters": True}
    static = {key: value for key, value in bootstrap.items() if key != "dynamic_resources"}
    return {**static, "static_resources": {"clusters": resources["clusters"], "listeners": listeners}}
