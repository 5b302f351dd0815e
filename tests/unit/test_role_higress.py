"""Role `higress`: conflicts between variables, generated Kubernetes objects, and the interpretation of gateway answers."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.inventory.ansible.role_filters import load_filters

if TYPE_CHECKING:
    from collections.abc import Iterator

HIGRESS = load_filters("higress")
ROUTE: dict[str, Any] = {"name": "api", "host": "api.example.com", "service": "api", "port": 80, "clients": ["notebook"]}
CLIENTS: list[dict[str, Any]] = [
    {"name": "notebook", "key": "key-of-notebook-0001", "rate_limit": {"requests": 60}},
    {"name": "x", "key": "key-of-another-00002"},
]
PLUGIN_VALUES: dict[str, Any] = {
    "routes": [ROUTE, {**ROUTE, "name": "own", "host": "b.example.com", "namespace": "higress-system"}],
    "clients": HIGRESS.without_keys(CLIENTS),
    "wasm_plugins": [],
    "namespace": "higress-system",
    "hub": "oci://hub.example.com/plugins",
    "header": "x-api-key",
}


@pytest.mark.parametrize(
    ("values", "harbor", "rules"),
    [
        ({"higress_routes": [ROUTE], "higress_clients": CLIENTS}, False, []),
        ({"higress_routes": [{**ROUTE, "clients": []}]}, False, ["higress-nobody"]),
        ({"higress_routes": [{**ROUTE, "public": True}], "higress_clients": CLIENTS}, False, ["higress-public"]),
        ({"higress_routes": [{**ROUTE, "host": "Api"}], "higress_clients": CLIENTS}, False, ["higress-host"]),
        (
            {"higress_routes": [ROUTE], "higress_clients": CLIENTS, "harbor_hostname": "api.example.com"},
            True,
            ["higress-host-of-harbor"],
        ),
        ({"higress_routes": [ROUTE], "higress_clients": CLIENTS, "harbor_hostname": "api.example.com"}, False, []),
        ({"higress_clients": [CLIENTS[0], CLIENTS[0]]}, False, ["higress-twice"]),
        ({"higress_wasm_plugins": [{"name": "p", "url": "http://h/p.wasm"}]}, False, ["higress-plugin-url"]),
        ({"higress_wasm_plugins": [{"name": "p", "url": "oci://h/p:1", "routes": ["z"]}]}, False, ["higress-plugin-route"]),
        ({"higress_host_network": False, "higress_service_type": "NodePort"}, False, []),
        ({"higress_gateway_kind": "Deployment", "higress_service_type": "LoadBalancer"}, False, []),
        (
            {"higress_host_network": True, "higress_gateway_kind": "Deployment", "higress_service_type": "LoadBalancer"},
            False,
            ["higress-way-in"],
        ),
    ],
)
def test_each_conflict_is_reported(values: dict[str, Any], harbor: bool, rules: list[str]) -> None:  # noqa: FBT001
    """Each conflict has a rule; valid values have no finding."""
    assert [rule for _, _, _, rule in HIGRESS.findings(values, harbor)] == rules


def test_keys_are_written_to_secrets_only() -> None:
    """Plug-ins refer to the Secret with Higress' placeholder."""
    shown = json.dumps([*HIGRESS.plugins(PLUGIN_VALUES), *HIGRESS.ingresses(PLUGIN_VALUES["routes"], "higress", "cluster-ca")])

    assert not [one for one in CLIENTS if str(one["key"]) in shown]
    assert "${secret.higress-system/primus-higress-clients.notebook}" in shown
    assert HIGRESS.key_secret(CLIENTS, "higress-system")[0]["stringData"] == {
        "notebook": "key-of-notebook-0001",
        "x": "key-of-another-00002",
    }
    assert HIGRESS.key_secret([], "higress-system") == []


def test_plugin_that_fails_to_load_denies_all_requests() -> None:
    """Each plug-in fails closed and names routes as Higress does: with a namespace, except for Higress' own."""
    auth, limit = HIGRESS.plugins(PLUGIN_VALUES)

    assert {auth["spec"]["failStrategy"], limit["spec"]["failStrategy"]} == {"FAIL_CLOSE"}
    assert [rule["ingress"] for rule in auth["spec"]["matchRules"]] == [["default/api"], ["own"]]
    assert limit["spec"]["matchRules"][0]["config"]["limit_keys"] == [
        {"key": "${secret.higress-system/primus-higress-clients.notebook}", "query_per_minute": 60}
    ]


def test_ingress_has_limit_and_certificate() -> None:
    """The limit annotation disables Higress' fivefold burst; the issuer provides the certificate."""
    ingress = HIGRESS.ingresses([{**ROUTE, "rate_limit": {"requests": 5, "per": "minute"}}], "higress", "cluster-ca")[0]

    assert ingress["metadata"]["annotations"] == {
        "higress.io/route-limit-rpm": "5",
        "higress.io/route-limit-burst-multiplier": "1",
        "higress.io/ssl-redirect": "true",
        "cert-manager.io/cluster-issuer": "cluster-ca",
    }
    assert ingress["spec"]["tls"] == [{"hosts": ["api.example.com"], "secretName": "api-tls"}]


def test_invalid_keys_are_reported_and_not_shown() -> None:
    """A key fails if it is short, contains JSON characters or is shared."""
    clients = [{"name": "short", "key": "k"}, {"name": "quote", "key": 'a"' * 10}, {"name": "same", "key": CLIENTS[0]["key"]}, *CLIENTS]

    assert HIGRESS.invalid_keys(clients) == ["short", "quote", "same", "notebook"]


def test_only_obsolete_labelled_objects_are_removed() -> None:
    """A route that is missing from hosts.yaml is removed; the others stay."""
    ingresses = HIGRESS.ingresses([ROUTE], "higress", "")
    old = HIGRESS.ingresses([{**ROUTE, "name": "old"}], "higress", "")

    got = HIGRESS.obsolete_objects([{"resources": [*ingresses, *old]}, {}], ingresses)

    assert [one["metadata"]["name"] for one in got] == ["old"]


def test_gateways_are_ready_pods_or_the_service() -> None:
    """Pods that are not ready, and a Service without an address, are ignored."""
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    pods = [
        {"kind": "Pod", "metadata": {"labels": {"app": "higress-gateway"}}, "status": {**ready, "hostIP": "10.0.0.1"}},
        {"kind": "Pod", "metadata": {"labels": {"app": "higress-gateway"}}, "status": {"hostIP": "10.0.0.2"}},
    ]
    service = {"kind": "Service", "metadata": {"name": "higress-gateway"}, "status": {"loadBalancer": {"ingress": [{"ip": "10.1.0.1"}]}}}
    results = [{"resources": pods}, {"resources": [service]}, {"msg": "no answer"}]

    assert HIGRESS.addresses(results, on_nodes=True) == ["10.0.0.1"]
    assert HIGRESS.addresses(results, on_nodes=False) == ["10.1.0.1"]


def test_nodes_forward_their_ports_to_the_gateway() -> None:
    """The chart has no value for it. Without ports, the object removes those of an earlier apply, and nothing else."""
    (given,) = HIGRESS.host_ports("DaemonSet", "higress-system", [80, 8443])
    (removed,) = HIGRESS.host_ports("DaemonSet", "higress-system", [])

    assert (given["kind"], given["metadata"]) == ("DaemonSet", {"name": "higress-gateway", "namespace": "higress-system"})
    assert given["spec"]["template"]["spec"]["containers"] == [
        {
            "name": "higress-gateway",
            "ports": [
                {"name": "http", "containerPort": 80, "hostPort": 80, "protocol": "TCP"},
                {"name": "https", "containerPort": 443, "hostPort": 8443, "protocol": "TCP"},
            ],
        }
    ]
    assert removed["spec"]["template"]["spec"]["containers"] == [{"name": "higress-gateway"}]


@contextmanager
def gateway(keys: dict[str, int], bare: int) -> Iterator[int]:
    """Serve on loopback a status for each key, and `bare` without a key; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        """Answer by key."""

        def do_GET(self) -> None:
            """Send the status."""
            self.send_response(keys.get(self.headers.get("x-api-key") or "", bare))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Suppress the log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
