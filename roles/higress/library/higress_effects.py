#!/usr/bin/python
"""Ask a gateway what its clients would see: the Ansible module `higress_effects`, which changes nothing and prints verdicts.

A client's key is sent only to a gateway whose certificate this machine has checked, and only where a request without a key was refused.
"""

from __future__ import annotations

import http.client
import json
import secrets
import socket
import ssl
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

TIMEOUT_S = 10.0


def context_of(ca_file: str | None) -> ssl.SSLContext:
    """Return how the gateway's certificate is looked at: by an authority (empty = those of this system), or not at all (None)."""
    context = ssl.create_default_context(cafile=ca_file or None)
    if ca_file is None:
        # Nothing that is worth hiding is sent so.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def ask(address: str, port: int, route: dict[str, Any], headers: dict[str, str], ca_file: str | None = None) -> int:
    """Return the status with which one gateway answers one request.

    Raises:
        OSError: it does not answer, or is not whom the certificate must name.
    """
    connection = http.client.HTTPConnection(route["host"], port, timeout=TIMEOUT_S)
    connection.sock = socket.create_connection((address, port), timeout=TIMEOUT_S)
    try:
        if route["tls"]:
            connection.sock = context_of(ca_file).wrap_socket(connection.sock, server_hostname=route["host"])
        connection.request("GET", route["path"], headers={"Host": route["host"], **headers})
        return connection.getresponse().status
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP: {error!r}") from error
    finally:
        connection.close()


def faults(address: str, port: int, route: dict[str, Any], header: str, ca_file: str) -> list[str]:
    """Return what is wrong with one route at one gateway."""
    found = []
    bare = ask(address, port, route, {})
    if route["public"]:
        return [f"a public route answers {bare}"] if bare in {401, 403} else []
    if bare != 401:
        found.append(f"without a key it answers {bare}, not 401")
    made_up = ask(address, port, route, {header: secrets.token_hex(16)})
    if made_up != 401:
        found.append(f"with a key that nobody has it answers {made_up}, not 401")
    if found or not route["tls"]:
        return found
    if route["other_key"] and (got := ask(address, port, route, {header: route["other_key"]}, ca_file)) != 403:
        found.append(f"with the key of a client that is not named it answers {got}, not 403")
    if route["key"] and (got := ask(address, port, route, {header: route["key"]}, ca_file)) in {401, 403}:
        found.append(f"with the key of a client that is named it answers {got}")
    return found


def judge(params: dict[str, Any], route: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict about a route: unknown where no gateway is known, or one does not answer."""
    began, verdict, reason = time.time(), "pass", ""
    port = params["https_port"] if route["tls"] else params["http_port"]
    if not params["addresses"]:
        verdict, reason = "unknown", "no gateway is ready, or the API server did not tell where"
    for address in params["addresses"]:
        try:
            wrong = faults(address, port, route, params["header"], params["ca_file"])
        except OSError as error:
            verdict, reason = "unknown", f"{address}:{port} does not answer, or its certificate is none that this machine trusts: {error}"
            break
        if wrong:
            verdict, reason = "fail", f"{address}:{port}: {'; '.join(wrong)}"
            break
    fix = {
        "pass": "",
        "unknown": "ask from a machine that reaches the gateway; higress_ca_file names the authority of its certificate",
    }.get(verdict, "see the plug-in primus-key-auth and the gateway's log: kubectl describe wasmplugin")
    expected = "anybody is let in" if route["public"] else "only the clients that are named are let in"
    return {
        "check": "higress.access", "host": params["host"], "device": route["name"], "serial": "", "verdict": verdict, "expected": expected,
        "found": reason or expected, "unit": "", "source": "docs/kubernetes-services.md", "reason": reason, "fix": fix, "started": began,
        "seconds": time.time() - began, "schema": "primus.verdict/1",
    }  # fmt: skip


def main() -> None:
    """Judge every route."""
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
    found = [judge(module.params, one) for one in module.params["routes"]]
    bad = [f"{one['device']}: {one['reason']}" for one in found if one["verdict"] == "fail"]
    answer = {"changed": False, "stdout": json.dumps({"verdicts": found})}
    if bad:
        module.fail_json(msg="; ".join(bad), **answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
