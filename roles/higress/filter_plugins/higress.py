# ruff: noqa: INP001 (Ansible loads it by path)
"""What the role `higress` decides on the controller: what in hosts.yaml contradicts itself, and the objects that say it to Higress.

Keys, phases and priorities of plug-ins, the form of references to secrets and the annotations are those of Higress 2.2.1's sources
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
# A key is put into JSON as it is, so nothing that JSON gives a meaning to.
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
PER = {"second": ("rps", "query_per_second"), "minute": ("rpm", "query_per_minute")}
API = "extensions.higress.io/v1alpha1"
OURS = {"app.kubernetes.io/managed-by": "primus-bootstrap", "primus-bootstrap.io/role": "higress"}
ROUTE = {"namespace": "", "path": "/", "tls_secret": "", "public": False, "clients": [], "rate_limit": {}, "annotations": {}}
PLUGIN = {"sha256": "", "phase": "UNSPECIFIED_PHASE", "priority": 0, "config": {}, "routes": [], "fail_open": False}

Finding = tuple[str, str, str, str]


def findings(stated: Mapping[str, Any], harbor: bool) -> list[Finding]:  # noqa: FBT001 (Jinja calls it so)
    """Return what contradicts itself: the variable it is about, what, its fix, and the rule's name.

    Args:
        stated: The role's variables by name; one that is missing has its default.
        harbor: Whether the cluster has the chart harbor, whose host name is then taken.
    """
    routes = [{**ROUTE, **one} for one in stated.get("higress_routes") or ()]
    clients = [one.get("name", "") for one in stated.get("higress_clients") or ()]
    plugins = [{**PLUGIN, **one} for one in stated.get("higress_wasm_plugins") or ()]
    taken = stated.get("harbor_hostname", "") if harbor and stated.get("harbor_expose", "ingress") == "ingress" else ""
    return [
        *_names(routes, clients, plugins),
        *_hosts(routes, taken),
        *_access(routes, clients),
        *_plugins(routes, plugins),
        *_ways(stated),
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
                yield about, f"{about}: {name!r} is no name for an object", "use small letters, figures and dashes", "higress-name"
            if names.count(name) > 1:
                yield about, f"{about} names {name} {names.count(name)} times", "give each a name of its own", "higress-twice"


def _hosts(routes: Sequence[Mapping[str, Any]], taken: str) -> Iterator[Finding]:
    about, seen = "higress_routes", {}
    for route in routes:
        host, name = route.get("host", ""), route.get("name")
        if not HOSTNAME.fullmatch(host):
            yield about, f"{about}: the host {host!r} of {name} is no DNS name", "give a name such as api.example.com", "higress-host"
        elif host == taken:
            what = f"{about}: {name} serves {host}, which is harbor_hostname: requests of image clients would go there"
            yield about, what, "give one of the two another name", "higress-host-of-harbor"
        if (host, route["path"]) in seen:
            what = f"{about}: {seen[host, route['path']]} and {name} both serve {host}{route['path']}, so one of them gets no request"
            yield about, what, "give each a host or a path of its own", "higress-host-twice"
        seen.setdefault((host, route["path"]), name)
        if not str(route["path"]).startswith("/"):
            yield about, f"{about}: the path {route['path']!r} of {name} begins with no /", "begin it with /", "higress-path"


def _access(routes: Sequence[Mapping[str, Any]], clients: Sequence[str]) -> Iterator[Finding]:
    about = "higress_routes"
    for route in routes:
        unknown = [name for name in route["clients"] if name not in clients]
        if unknown:
            what = f"{about}: {route.get('name')} lets {', '.join(unknown)} in, whom higress_clients does not name"
            yield about, what, "name the client in higress_clients", "higress-client"
        if route["public"] and route["clients"]:
            what = f"{about}: {route.get('name')} is public and names clients, whose keys would not be asked for"
            yield about, what, "take public away, or the clients", "higress-public"
        if not route["public"] and not route["clients"]:
            what = f"{about}: {route.get('name')} is not public and lets nobody in"
            yield about, what, "name clients, or state public: true", "higress-nobody"


def _plugins(routes: Sequence[Mapping[str, Any]], plugins: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    about, names = "higress_wasm_plugins", [one.get("name") for one in routes]
    for plugin in plugins:
        unknown = [name for name in plugin["routes"] if name not in names]
        if unknown:
            what = f"{about}: {plugin.get('name')} is for the route {', '.join(unknown)}, which higress_routes does not name"
            yield about, what, "name the route, or take it away", "higress-plugin-route"
        url = str(plugin.get("url", ""))
        if not url.startswith(("oci://", "https://", "http://", "file://")):
            yield about, f"{about}: {url!r} is nowhere a plug-in can be fetched from", "give oci://… or https://…", "higress-plugin-url"
        elif url.startswith("http://") and not plugin["sha256"]:
            what = f"{about}: {plugin.get('name')} comes over http without a sum, so anybody on the way could change it"
            yield about, what, "set sha256, or use https:// or oci://", "higress-plugin-url"


def _ways(stated: Mapping[str, Any]) -> Iterator[Finding]:
    kind, direct = stated.get("higress_gateway_kind", "DaemonSet"), stated.get("higress_host_network", True)
    if not direct and stated.get("higress_service_type", "ClusterIP") == "ClusterIP":
        what = "higress_host_network is false and higress_service_type is ClusterIP: nobody outside the cluster could reach the gateway"
        fix = "set higress_service_type to LoadBalancer or NodePort, or keep higress_host_network true"
        yield "higress_host_network", what, fix, "higress-way-in"
    if direct and kind == "Deployment" and stated.get("higress_service_type", "ClusterIP") == "LoadBalancer":
        what = "the gateway would take ports of its nodes and a load balancer as well"
        yield "higress_service_type", what, "set higress_host_network to false", "higress-way-in"


def weak_keys(clients: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of clients whose key cannot be used, or is another's as well; the keys stay unsaid."""
    keys = [str(one.get("key") or "") for one in clients]
    return [str(one["name"]) for one, key in zip(clients, keys, strict=True) if not KEY.fullmatch(key) or keys.count(key) > 1]


def secret(clients: Sequence[Mapping[str, Any]], namespace: str) -> list[dict[str, Any]]:
    """Return the Secret of the clients' keys; nothing where there is no client."""
    if not clients:
        return []
    keys = {str(one["name"]): str(one["key"]) for one in clients}
    metadata = {"name": SECRET, "namespace": namespace, "labels": OURS}
    return [{"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "stringData": keys}]


def ingresses(routes: Sequence[Mapping[str, Any]], ingress_class: str, issuer: str) -> list[dict[str, Any]]:
    """Return an Ingress a route, in the namespace of its service."""
    return [_ingress({**ROUTE, **one}, ingress_class, issuer) for one in routes]


def _ingress(route: Mapping[str, Any], ingress_class: str, issuer: str) -> dict[str, Any]:
    notes = dict(route["annotations"])
    limit = route["rate_limit"]
    if limit:
        notes[f"higress.io/route-limit-{PER[limit.get('per', 'second')][0]}"] = str(limit["requests"])
        # Without it a burst may be five times the limit.
        notes["higress.io/route-limit-burst-multiplier"] = str(limit.get("burst_factor", 1))
    certificate = route["tls_secret"] or (f"{route['name']}-tls" if issuer else "")
    if certificate:
        notes["higress.io/ssl-redirect"] = "true"
    if issuer and not route["tls_secret"]:
        notes["cert-manager.io/cluster-issuer"] = issuer
    backend = {"service": {"name": route["service"], "port": {"number": route["port"]}}}
    rule = {"host": route["host"], "http": {"paths": [{"path": route["path"], "pathType": "Prefix", "backend": backend}]}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": route["name"], "namespace": route["namespace"] or "default", "labels": OURS, "annotations": notes},
        "spec": {
            "ingressClassName": ingress_class,
            "rules": [rule],
            **({"tls": [{"hosts": [route["host"]], "secretName": certificate}]} if certificate else {}),
        },
    }


def plugins(stated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the WasmPlugins: the check of keys, the clients' limits, and those of the site.

    Args:
        stated: routes, clients, wasm_plugins, namespace, hub, header: the role's variables without their prefix.
    """
    routes = [{**ROUTE, **one} for one in stated["routes"]]
    found = [*_key_auth(routes, stated), *_key_limit(routes, stated)]
    for plugin in ({**PLUGIN, **one} for one in stated["wasm_plugins"]):
        chosen = [one for one in routes if one["name"] in plugin["routes"]]
        rules = [{"ingress": [_route_name(one, stated["namespace"]) for one in chosen], "config": plugin["config"]}] if chosen else []
        spec = {
            "url": plugin["url"],
            "phase": plugin["phase"],
            "priority": plugin["priority"],
            "failStrategy": "FAIL_OPEN" if plugin["fail_open"] else "FAIL_CLOSE",
            **({"sha256": plugin["sha256"]} if plugin["sha256"] else {}),
            **({"defaultConfigDisable": True, "matchRules": rules} if rules else {"defaultConfig": plugin["config"]}),
        }
        found.append(_plugin(plugin["name"], stated["namespace"], spec))
    return found


def _plugin(name: str, namespace: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "WasmPlugin", "metadata": {"name": name, "namespace": namespace, "labels": OURS}, "spec": dict(spec)}


def _route_name(route: Mapping[str, Any], own: str) -> str:
    """Return how Higress calls the route of an Ingress: without its namespace only where that is Higress' own."""
    namespace = route["namespace"] or "default"
    return str(route["name"]) if namespace == own else f"{namespace}/{route['name']}"


def _reference(client: str, namespace: str) -> str:
    """Return what Higress replaces by a client's key, so that no key stands in a plug-in's settings."""
    return f"${{secret.{namespace}/{SECRET}.{client}}}"


def _key_auth(routes: Sequence[Mapping[str, Any]], stated: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    guarded = [one for one in routes if one["clients"]]
    if not guarded or not stated["clients"]:
        return
    own = stated["namespace"]
    spec = {
        "url": f"{stated['hub']}/key-auth:1.0.0",
        "phase": "AUTHN",
        "priority": 310,
        # A plug-in that cannot be loaded must not let everybody in.
        "failStrategy": "FAIL_CLOSE",
        "defaultConfig": {
            "global_auth": False,
            "consumers": [{"name": one["name"], "credential": _reference(one["name"], own)} for one in stated["clients"]],
            "keys": [stated["header"]],
            "in_header": True,
            "in_query": False,
        },
        "matchRules": [{"ingress": [_route_name(one, own)], "config": {"allow": list(one["clients"])}} for one in guarded],
    }
    yield _plugin("primus-key-auth", own, spec)


def _key_limit(routes: Sequence[Mapping[str, Any]], stated: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    limited = [one for one in stated["clients"] if (one.get("rate_limit") or {}).get("requests")]
    guarded = [one for one in routes if one["clients"]]
    if not limited or not guarded:
        return
    own = stated["namespace"]
    # By the key itself: the header that says who a client is could be sent by the client.
    keys = [
        {"key": _reference(one["name"], own), PER[one["rate_limit"].get("per", "minute")][1]: one["rate_limit"]["requests"]}
        for one in limited
    ]
    spec = {
        "url": f"{stated['hub']}/key-rate-limit:1.0.0",
        "phase": "UNSPECIFIED_PHASE",
        "priority": 10,
        "failStrategy": "FAIL_CLOSE",
        "defaultConfigDisable": True,
        "matchRules": [
            {"ingress": [_route_name(one, own) for one in guarded], "config": {"limit_by_header": stated["header"], "limit_keys": keys}}
        ],
    }
    yield _plugin("primus-key-rate-limit", own, spec)


def texts(found: Sequence[Finding]) -> list[str]:
    """Return findings as a preflight says them."""
    return [f"{what}. Fix: {fix}." for _, what, fix, _ in found]


def without_keys(clients: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return clients as they may be shown."""
    return [{name: value for name, value in one.items() if name != "key"} for one in clients]


def wants(objects: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return objects as they are waited for."""
    return [
        {"api_version": one["apiVersion"], "kind": one["kind"], **{key: one["metadata"][key] for key in ("name", "namespace")}}
        for one in objects
    ]


def leftovers(results: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the objects with this role's label that nobody states any more."""
    kept = {(one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]) for one in wanted}
    there = [one for result in results for one in result.get("resources") or ()]
    return [
        {key: one[key] for key in ("apiVersion", "kind")} | {"metadata": {key: one["metadata"][key] for key in ("name", "namespace")}}
        for one in there
        if (one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]) not in kept
    ]


def addresses(results: Sequence[Mapping[str, Any]], direct: bool) -> list[str]:  # noqa: FBT001 (Jinja calls it so)
    """Return where the gateway answers: on the nodes of its ready pods, or where its Service says; nothing where nobody told."""
    listed = [one for result in results for one in result.get("resources") or () if isinstance(one, dict)]
    found = set()
    for one in listed:
        status, labels = one.get("status") or {}, (one.get("metadata") or {}).get("labels") or {}
        if direct and one.get("kind") == "Pod" and labels.get("app") == "higress-gateway":
            if any(item.get("type") == "Ready" and item.get("status") == "True" for item in status.get("conditions") or ()):
                found.add(status.get("hostIP") or "")
        elif not direct and one.get("kind") == "Service" and one["metadata"].get("name") == "higress-gateway":
            found |= {item.get("ip") or item.get("hostname") or "" for item in (status.get("loadBalancer") or {}).get("ingress") or ()}
    return sorted(found - {""})


def tried(routes: Sequence[Mapping[str, Any]], clients: Sequence[Mapping[str, Any]], issuer: str) -> list[dict[str, Any]]:
    """Return what verification asks of each route: with the key of one who may, and of one who may not."""
    keys = {one["name"]: one["key"] for one in clients}
    found = []
    for route in ({**ROUTE, **one} for one in routes):
        others = [name for name in keys if name not in route["clients"]]
        found.append(
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
    return found


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {
            "higress_addresses": addresses,
            "higress_findings": findings,
            "higress_ingresses": ingresses,
            "higress_leftovers": leftovers,
            "higress_plugins": plugins,
            "higress_secret": secret,
            "higress_texts": texts,
            "higress_tried": tried,
            "higress_wants": wants,
            "higress_weak_keys": weak_keys,
            "higress_without_keys": without_keys,
        }
