# ruff: noqa: INP001 (Ansible loads it by path)
"""Find conflicts between the variables of the role `higress`, and compute its Kubernetes objects. Only pure functions.

The keys, phases and priorities of plug-ins, the references to Secrets and the annotations are from the sources of Higress 2.2.1
(plugins/wasm-go/extensions/key-auth, plugins/wasm-cpp/extensions/key_rate_limit, pkg/ingress/config/ingress_template.go,
pkg/ingress/kube/annotations/local_rate_limit.go).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
HOSTNAME = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)+")
# Higress inserts a key into JSON without quoting it, so characters with a meaning in JSON are not allowed.
KEY = re.compile(r"[A-Za-z0-9._~-]{16,256}")
VARIABLES = (
    "higress_routes",
    "higress_clients",
    "higress_wasm_plugins",
    "higress_gateway_kind",
    "higress_host_network",
    "higress_service_type",
    "harbor_hostname",
    "harbor_expose",
)
SECRET = "primus-higress-clients"  # noqa: S105 (the name of an object)
GATEWAY = "higress-gateway"  # the chart's name of the workload, its container and its account
PER = {"second": ("rps", "query_per_second"), "minute": ("rpm", "query_per_minute")}
API = "extensions.higress.io/v1alpha1"
LABELS = {"app.kubernetes.io/managed-by": "primus-bootstrap", "primus-bootstrap.io/role": "higress"}
ROUTE = {"namespace": "", "path": "/", "tls_secret": "", "public": False, "clients": [], "rate_limit": {}, "annotations": {}}
PLUGIN = {"sha256": "", "phase": "UNSPECIFIED_PHASE", "priority": 0, "config": {}, "routes": [], "fail_open": False}

Finding = tuple[str, str, str, str]


def findings(values: Mapping[str, Any], harbor: bool) -> list[Finding]:  # noqa: FBT001 (Jinja passes it by position)
    """Return the conflicts, each as variable, problem, fix and name of the rule.

    Args:
        values: The role's variables by name. A missing one has its default.
        harbor: Whether the cluster has the chart harbor, whose host name no route may use.
    """
    routes = [{**ROUTE, **one} for one in values.get("higress_routes") or ()]
    clients = [one.get("name", "") for one in values.get("higress_clients") or ()]
    plugins = [{**PLUGIN, **one} for one in values.get("higress_wasm_plugins") or ()]
    taken = values.get("harbor_hostname", "") if harbor and values.get("harbor_expose", "ingress") == "ingress" else ""
    return [
        *_names(routes, clients, plugins),
        *_hosts(routes, taken),
        *_access(routes, clients),
        *_plugins(routes, plugins),
        *_reachability(values),
    ]


def _names(routes: Sequence[Mapping[str, Any]], clients: Sequence[str], plugins: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    listed = (
        ("higress_routes", [one.get("name", "") for one in routes]),
        ("higress_clients", list(clients)),
        ("higress_wasm_plugins", [one.get("name", "") for one in plugins]),
    )
    for about, names in listed:
        for name in sorted(set(names)):
            if not NAME.fullmatch(str(name)):
                yield about, f"{about}: {name!r} is not a valid name", "use lower-case letters, digits and dashes", "higress-name"
            if names.count(name) > 1:
                yield about, f"{about} contains the name {name} {names.count(name)} times", "give each entry its own name", "higress-twice"


def _hosts(routes: Sequence[Mapping[str, Any]], taken: str) -> Iterator[Finding]:
    about, seen = "higress_routes", {}
    for route in routes:
        host, name = route.get("host", ""), route.get("name")
        if not HOSTNAME.fullmatch(host):
            yield about, f"{about}: the host {host!r} of {name} is not a DNS name", "use a name such as api.example.com", "higress-host"
        elif host == taken:
            what = f"{about}: {name} serves {host}, which is harbor_hostname: it would get the requests of image clients"
            yield about, what, "use another name for one of them", "higress-host-of-harbor"
        if (host, route["path"]) in seen:
            what = f"{about}: {seen[host, route['path']]} and {name} both serve {host}{route['path']}, so one of them gets no request"
            yield about, what, "give each its own host or path", "higress-host-twice"
        seen.setdefault((host, route["path"]), name)
        if not str(route["path"]).startswith("/"):
            yield about, f"{about}: the path {route['path']!r} of {name} does not start with /", "start it with /", "higress-path"


def _access(routes: Sequence[Mapping[str, Any]], clients: Sequence[str]) -> Iterator[Finding]:
    about = "higress_routes"
    for route in routes:
        unknown = [name for name in route["clients"] if name not in clients]
        if unknown:
            what = f"{about}: {route.get('name')} admits {', '.join(unknown)}, but higress_clients has no such client"
            yield about, what, "add the client to higress_clients", "higress-client"
        if route["public"] and route["clients"]:
            what = f"{about}: {route.get('name')} is public and lists clients, whose keys would not be checked"
            yield about, what, "remove public or the clients", "higress-public"
        if not route["public"] and not route["clients"]:
            what = f"{about}: {route.get('name')} is not public and admits no client"
            yield about, what, "list clients, or set public: true", "higress-nobody"


def _plugins(routes: Sequence[Mapping[str, Any]], plugins: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    about, names = "higress_wasm_plugins", [one.get("name") for one in routes]
    for plugin in plugins:
        unknown = [name for name in plugin["routes"] if name not in names]
        if unknown:
            what = f"{about}: {plugin.get('name')} is for the route {', '.join(unknown)}, which higress_routes does not define"
            yield about, what, "add the route, or remove it from the plug-in", "higress-plugin-route"
        url = str(plugin.get("url", ""))
        if not url.startswith(("oci://", "https://", "http://", "file://")):
            yield about, f"{about}: {url!r} is not a URL of a plug-in", "use oci://… or https://…", "higress-plugin-url"
        elif url.startswith("http://") and not plugin["sha256"]:
            what = f"{about}: {plugin.get('name')} is downloaded over http without a checksum, so it could be replaced on the way"
            yield about, what, "set sha256, or use https:// or oci://", "higress-plugin-url"


def _reachability(values: Mapping[str, Any]) -> Iterator[Finding]:
    kind, on_nodes = values.get("higress_gateway_kind", "DaemonSet"), values.get("higress_host_network", False)
    if on_nodes and kind == "Deployment" and values.get("higress_service_type", "ClusterIP") == "LoadBalancer":
        what = "higress_host_network is true and higress_service_type is LoadBalancer: the gateway would use node ports and a load balancer"
        yield "higress_service_type", what, "set higress_host_network to false", "higress-way-in"


def host_ports(kind: str, namespace: str, ports: Sequence[int]) -> list[dict[str, Any]]:
    """Return the part of the gateway's workload that forwards ports of its nodes (http, https); without ports, what removes them.

    The server merges it with the chart's object, and removes fields that an earlier apply with the same field manager has set.
    """
    named = zip(("http", "https"), (80, 443), ports, strict=False)
    listed = [{"name": name, "containerPort": inner, "hostPort": int(port), "protocol": "TCP"} for name, inner, port in named]
    container = {"name": GATEWAY, **({"ports": listed} if listed else {})}
    metadata = {"name": GATEWAY, "namespace": namespace}
    return [{"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": {"template": {"spec": {"containers": [container]}}}}]


def invalid_keys(clients: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of clients whose key is invalid or shared with another client, without the keys."""
    keys = [str(one.get("key") or "") for one in clients]
    return [str(one["name"]) for one, key in zip(clients, keys, strict=True) if not KEY.fullmatch(key) or keys.count(key) > 1]


def key_secret(clients: Sequence[Mapping[str, Any]], namespace: str) -> list[dict[str, Any]]:
    """Return the Secret with the clients' keys, or an empty list if there is no client."""
    if not clients:
        return []
    keys = {str(one["name"]): str(one["key"]) for one in clients}
    metadata = {"name": SECRET, "namespace": namespace, "labels": LABELS}
    return [{"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "stringData": keys}]


def ingresses(routes: Sequence[Mapping[str, Any]], ingress_class: str, issuer: str) -> list[dict[str, Any]]:
    """Return one Ingress per route, in the namespace of its service."""
    return [_ingress({**ROUTE, **one}, ingress_class, issuer) for one in routes]


def _ingress(route: Mapping[str, Any], ingress_class: str, issuer: str) -> dict[str, Any]:
    annotations = dict(route["annotations"])
    limit = route["rate_limit"]
    if limit:
        annotations[f"higress.io/route-limit-{PER[limit.get('per', 'second')][0]}"] = str(limit["requests"])
        # Higress' default allows a burst of five times the limit.
        annotations["higress.io/route-limit-burst-multiplier"] = str(limit.get("burst_factor", 1))
    certificate = route["tls_secret"] or (f"{route['name']}-tls" if issuer else "")
    if certificate:
        annotations["higress.io/ssl-redirect"] = "true"
    if issuer and not route["tls_secret"]:
        annotations["cert-manager.io/cluster-issuer"] = issuer
    backend = {"service": {"name": route["service"], "port": {"number": route["port"]}}}
    rule = {"host": route["host"], "http": {"paths": [{"path": route["path"], "pathType": "Prefix", "backend": backend}]}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": route["name"], "namespace": route["namespace"] or "default", "labels": LABELS, "annotations": annotations},
        "spec": {
            "ingressClassName": ingress_class,
            "rules": [rule],
            **({"tls": [{"hosts": [route["host"]], "secretName": certificate}]} if certificate else {}),
        },
    }


def plugins(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the WasmPlugins for the check of keys, the limits of clients, and higress_wasm_plugins.

    Args:
        values: `routes`, `clients`, `wasm_plugins`, `namespace`, `hub`, `header`: variables of the role without their prefix.
    """
    routes = [{**ROUTE, **one} for one in values["routes"]]
    objects = [*_key_auth(routes, values), *_key_limit(routes, values)]
    for plugin in ({**PLUGIN, **one} for one in values["wasm_plugins"]):
        chosen = [one for one in routes if one["name"] in plugin["routes"]]
        rules = [{"ingress": [_route_name(one, values["namespace"]) for one in chosen], "config": plugin["config"]}] if chosen else []
        spec = {
            "url": plugin["url"],
            "phase": plugin["phase"],
            "priority": plugin["priority"],
            "failStrategy": "FAIL_OPEN" if plugin["fail_open"] else "FAIL_CLOSE",
            **({"sha256": plugin["sha256"]} if plugin["sha256"] else {}),
            **({"defaultConfigDisable": True, "matchRules": rules} if rules else {"defaultConfig": plugin["config"]}),
        }
        objects.append(_plugin(plugin["name"], values["namespace"], spec))
    return objects


def _plugin(name: str, namespace: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": LABELS}
    return {"apiVersion": API, "kind": "WasmPlugin", "metadata": metadata, "spec": dict(spec)}


def _route_name(route: Mapping[str, Any], higress_namespace: str) -> str:
    """Return Higress' name for the route of an Ingress, which has the namespace as prefix unless it is that of Higress."""
    namespace = route["namespace"] or "default"
    return str(route["name"]) if namespace == higress_namespace else f"{namespace}/{route['name']}"


def _reference(client: str, namespace: str) -> str:
    """Return the reference that Higress replaces by a client's key, so that plug-ins contain no key."""
    return f"${{secret.{namespace}/{SECRET}.{client}}}"


def _key_auth(routes: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    guarded = [one for one in routes if one["clients"]]
    if not guarded or not values["clients"]:
        return
    namespace = values["namespace"]
    spec = {
        "url": f"{values['hub']}/key-auth:1.0.0",
        "phase": "AUTHN",
        "priority": 310,
        # If the plug-in cannot be loaded, requests are refused.
        "failStrategy": "FAIL_CLOSE",
        "defaultConfig": {
            "global_auth": False,
            "consumers": [{"name": one["name"], "credential": _reference(one["name"], namespace)} for one in values["clients"]],
            "keys": [values["header"]],
            "in_header": True,
            "in_query": False,
        },
        "matchRules": [{"ingress": [_route_name(one, namespace)], "config": {"allow": list(one["clients"])}} for one in guarded],
    }
    yield _plugin("primus-key-auth", namespace, spec)


def _key_limit(routes: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    limited = [one for one in values["clients"] if (one.get("rate_limit") or {}).get("requests")]
    guarded = [one for one in routes if one["clients"]]
    if not limited or not guarded:
        return
    namespace = values["namespace"]
    # Count by the key, because a client could send the header with the client's name itself.
    keys = [
        {"key": _reference(one["name"], namespace), PER[one["rate_limit"].get("per", "minute")][1]: one["rate_limit"]["requests"]}
        for one in limited
    ]
    spec = {
        "url": f"{values['hub']}/key-rate-limit:1.0.0",
        "phase": "UNSPECIFIED_PHASE",
        "priority": 10,
        "failStrategy": "FAIL_CLOSE",
        "defaultConfigDisable": True,
        "matchRules": [
            {
                "ingress": [_route_name(one, namespace) for one in guarded],
                "config": {"limit_by_header": values["header"], "limit_keys": keys},
            }
        ],
    }
    yield _plugin("primus-key-rate-limit", namespace, spec)


def messages(found: Sequence[Finding]) -> list[str]:
    """Return findings as messages with their fix."""
    return [f"{what}. Fix: {fix}." for _, what, fix, _ in found]


def without_keys(clients: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the clients without their keys."""
    return [{name: value for name, value in one.items() if name != "key"} for one in clients]


def existence_checks(objects: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return references to objects for the check that they exist."""
    return [
        {"api_version": one["apiVersion"], "kind": one["kind"], **{key: one["metadata"][key] for key in ("name", "namespace")}}
        for one in objects
    ]


def obsolete_objects(results: Sequence[Mapping[str, Any]], configured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the existing objects with this role's label that are not configured."""
    kept = {(one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]) for one in configured}
    existing = [one for result in results for one in result.get("resources") or ()]
    return [
        {key: one[key] for key in ("apiVersion", "kind")} | {"metadata": {key: one["metadata"][key] for key in ("name", "namespace")}}
        for one in existing
        if (one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]) not in kept
    ]


def addresses(results: Sequence[Mapping[str, Any]], on_nodes: bool) -> list[str]:  # noqa: FBT001 (Jinja passes it by position)
    """Return the addresses of the gateway: the nodes of its ready pods, or those of its Service."""
    listed = [one for result in results for one in result.get("resources") or () if isinstance(one, dict)]
    gateways = set()
    for one in listed:
        status, labels = one.get("status") or {}, (one.get("metadata") or {}).get("labels") or {}
        if on_nodes and one.get("kind") == "Pod" and labels.get("app") == GATEWAY:
            if any(item.get("type") == "Ready" and item.get("status") == "True" for item in status.get("conditions") or ()):
                gateways.add(status.get("hostIP") or "")
        elif not on_nodes and one.get("kind") == "Service" and one["metadata"].get("name") == GATEWAY:
            gateways |= {item.get("ip") or item.get("hostname") or "" for item in (status.get("loadBalancer") or {}).get("ingress") or ()}
    return sorted(gateways - {""})


def access_tests(routes: Sequence[Mapping[str, Any]], clients: Sequence[Mapping[str, Any]], issuer: str) -> list[dict[str, Any]]:
    """Return for each route the key of a client that may use it, and of one that may not."""
    keys = {one["name"]: one["key"] for one in clients}
    tests = []
    for route in ({**ROUTE, **one} for one in routes):
        others = [name for name in keys if name not in route["clients"]]
        tests.append(
            {
                "name": route["name"],
                "host": route["host"].replace("*", "verify"),
                "path": route["path"],
                "tls": bool(issuer or route["tls_secret"]),
                "public": route["public"],
                "key": keys[route["clients"][0]] if route["clients"] else "",
                "other_key": keys[others[0]] if others and not route["public"] else "",
            }
        )
    return tests


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "higress_addresses": addresses,
            "higress_findings": findings,
            "higress_host_ports": host_ports,
            "higress_ingresses": ingresses,
            "higress_obsolete": obsolete_objects,
            "higress_plugins": plugins,
            "higress_secret": key_secret,
            "higress_messages": messages,
            "higress_access_tests": access_tests,
            "higress_existence_checks": existence_checks,
            "higress_invalid_keys": invalid_keys,
            "higress_without_keys": without_keys,
        }
