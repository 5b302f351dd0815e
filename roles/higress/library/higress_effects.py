#!/usr/bin/python
"""Send requests to each route of the gateway, and report verdicts: the Ansible module `higress_effects`. It changes nothing.

It sends a client's key only to a gateway with a valid certificate, and only if the route refused a request without a key.
Own module: ansible.builtin.uri cannot connect to one address with the name of another.
"""

from __future__ import annotations

import http.client
import secrets
import socket
import ssl
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.verdict_records import Verdicts

TIMEOUT_S = 10.0


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts an authority (empty: those of the system), or does not check certificates (None)."""
    context = ssl.create_default_context(cafile=ca_file or None)
    if ca_file is None:
        # Requests with this context contain no secret.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def send_request(address: str, port: int, route: dict[str, Any], headers: dict[str, str], ca_file: str | None = None) -> int:
    """Return the status of one gateway's answer to one request.

    Raises:
        OSError: It does not answer, or its certificate is not valid for the host.
    """
    connection = http.client.HTTPConnection(route["host"], port, timeout=TIMEOUT_S)
    connection.sock = socket.create_connection((address, port), timeout=TIMEOUT_S)
    try:
        if route["tls"]:
            connection.sock = tls_context(ca_file).wrap_socket(connection.sock, server_hostname=route["host"])
        connection.request("GET", route["path"], headers={"Host": route["host"], **headers})
        return connection.getresponse().status
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP answer: {error!r}") from error
    finally:
        connection.close()


def route_problems(address: str, port: int, route: dict[str, Any], header: str, ca_file: str) -> list[str]:
    """Return the problems of one route at one gateway."""
    found = []
    bare = send_request(address, port, route, {})
    if route["public"]:
        return [f"a public route answers {bare}"] if bare in {401, 403} else []
    if bare != 401:
        found.append(f"without a key it answers {bare}, not 401")
    invalid = send_request(address, port, route, {header: secrets.token_hex(16)})
    if invalid != 401:
        found.append(f"with an invalid key it answers {invalid}, not 401")
    if found or not route["tls"]:
        return found
    if route["other_key"] and (got := send_request(address, port, route, {header: route["other_key"]}, ca_file)) != 403:
        found.append(f"with the key of a client that may not use the route it answers {got}, not 403")
    if route["key"] and (got := send_request(address, port, route, {header: route["key"]}, ca_file)) in {401, 403}:
        found.append(f"with the key of a client that may use the route it answers {got}")
    return found


def verdict_on(params: dict[str, Any], route: dict[str, Any]) -> tuple[str, str]:
    """Return the verdict on a route and its reason. It is unknown if no gateway is known or one does not answer."""
    port = params["https_port"] if route["tls"] else params["http_port"]
    if not params["addresses"]:
        return "unknown", "no gateway is ready, or the API server returned no address"
    for address in params["addresses"]:
        try:
            problems = route_problems(address, port, route, params["header"], params["ca_file"])
        except OSError as error:
            return "unknown", f"{address}:{port} does not answer, or its certificate is not trusted: {error}"
        if problems:
            return "fail", f"{address}:{port}: {'; '.join(problems)}"
    return "pass", ""


def check_route(verdicts: Verdicts, params: dict[str, Any], route: dict[str, Any]) -> None:
    """Add the verdict on a route."""
    verdict, reason = verdict_on(params, route)
    fix = "run `kubectl describe wasmplugin primus-key-auth` in the namespace of Higress, and read the log of the gateway"
    if verdict == "unknown":
        fix = "run verify from a machine that reaches the gateway, and set higress_ca_file to the authority of its certificate"
    expected = "requests without a key are accepted" if route["public"] else "only requests with a key of a listed client are accepted"
    verdicts.add("access", verdict, expected=expected, found=reason or expected, reason=reason, fix=fix, device=route["name"])


def main() -> None:
    """Check every route and report verdicts."""
    route = {
        "name": {"required": True},
        "host": {"required": True},
        "path": {"required": True},
        "tls": {"type": "bool", "required": True},
        "public": {"type": "bool", "required": True},
        "key": {"required": True, "no_log": True},
        "other_key": {"required": True, "no_log": True},
    }
    options: dict[str, Any] = {
        "host": {"required": True},
        "addresses": {"type": "list", "elements": "str", "required": True},
        "http_port": {"type": "int", "required": True},
        "https_port": {"type": "int", "required": True},
        "header": {"required": True},
        "ca_file": {"required": True},
        "routes": {"type": "list", "elements": "dict", "required": True, "options": route},
    }
    module = AnsibleModule(options, supports_check_mode=True)
    verdicts = Verdicts("higress", module.params["host"])
    for one in module.params["routes"]:
        check_route(verdicts, module.params, one)
    verdicts.finish(module)


if __name__ == "__main__":
    main()
