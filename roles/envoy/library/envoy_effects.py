#!/usr/bin/python
"""Check routes, redirects, certificates, upstreams, token keys and rate limits of a gateway: the Ansible module `envoy_effects`.

It changes nothing and sends requests to the listeners of this host. It checks that a route's upstream answers, not what it answers.
Rate limits are tested on a separate socket with separate counters, so that clients lose no requests.
It is a module of its own because it reports many verdicts, and ansible.builtin.uri cannot choose SNI, sockets and certificates.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.envoy_admin import TIMEOUT_S, UnixConnection, read_page
from ansible.module_utils.verdict_records import Verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# A test of a higher limit would take too long.
MAX_REQUESTS = 2000
CLUSTERS = "`curl --unix-socket /run/envoy/admin.sock http://envoy/clusters` as root"
APPLY = "apply the phase gateway again, and read `journalctl -u envoy -n 30`"
# OpenSSL's x509_vfy.h: X509_V_FLAG_PARTIAL_CHAIN trusts the certificate itself as authority; and error codes.
PARTIAL_CHAIN = 0x80000
EXPIRED, NOT_YET, OTHER_NAME, OTHER_ADDRESS = 10, 9, 62, 64


def local_address(listener: Mapping[str, Any]) -> str:
    """Return the address at which this host reaches a listener."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listener["address"], str(listener["address"]))  # noqa: S104 (the listener's address)


def request(listener: Mapping[str, Any], host: str, path: str) -> tuple[int, dict[str, str]]:
    """Send one GET and return the status and the headers of the answer.

    Raises:
        OSError: There is no answer.
        http.client.HTTPException: The answer is not HTTP.
    """
    address, port = local_address(listener), int(listener["port"])
    plain = socket.create_connection((address, port), timeout=TIMEOUT_S)
    try:
        if listener["tls"]:
            # check_certificate checks the certificate.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            plain = context.wrap_socket(plain, server_hostname=host or None)
        connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT_S)
        connection.sock = plain
        connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", host or address)
        connection.putheader("User-Agent", "primus-bootstrap verify")
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        plain.close()


def request_host(route: Mapping[str, Any]) -> str:
    """Return a host name for requests to a route, with `verify` in place of a wildcard.

    It is empty for a route for every name, because with a host name another route could answer.
    """
    return str((route["hosts"] or [""])[0]).replace("*", "verify")


def check_routes(
    verdicts: Verdicts, listener: Mapping[str, Any], healthy: Mapping[str, tuple[int, int]], ask: Callable[..., Any] = request
) -> None:
    """Check that each route reaches its upstream, or requires a key or token."""
    for route in listener["routes"]:
        path = route["probe_path"] or route["path"] or route["path_prefix"]
        check = f"{listener['name']}.{route['name']}"
        restricted = bool(route["api_keys"] or route["jwt_provider"])
        expected = "401 without a key or token" if restricted else "an answer of its upstream"
        try:
            status, headers = ask(listener, request_host(route), path)
        except (OSError, http.client.HTTPException) as error:
            verdicts.add(check, "fail", expected=expected, found="", reason=f"port {listener['port']} does not answer: {error}", fix=APPLY)
            continue
        if restricted:
            verdict = "pass" if status == http.client.UNAUTHORIZED else "fail"
            verdicts.add(check, verdict, expected=expected, found=str(status), fix=APPLY)
        elif "x-envoy-upstream-service-time" in headers:
            verdicts.add(check, "pass", expected=expected, found=f"{status} of {route['upstream']}")
        elif status == http.client.TOO_MANY_REQUESTS and route["rate_limit"]:
            verdicts.add(
                check,
                "unknown",
                expected=expected,
                found=str(status),
                reason="its clients have reached the rate limit",
                fix="verify again later",
            )
        elif healthy.get(route["upstream"], (0, 0))[0] == 0:
            reason = f"no endpoint of {route['upstream']} is healthy, so the route cannot be checked"
            verdicts.add(
                check, "unknown", expected=expected, found=str(status), reason=reason, fix=f"start the service {route['upstream']}"
            )
        else:
            verdicts.add(check, "fail", expected=expected, found=f"{status} of the gateway", fix=APPLY)


def check_redirect(verdicts: Verdicts, listener: Mapping[str, Any], ask: Callable[..., Any] = request) -> None:
    """Check that a redirecting listener sends clients to https."""
    try:
        status, headers = ask(listener, str((listener["names"] or [""])[0]), "/")
    except (OSError, http.client.HTTPException) as error:
        verdicts.add(f"{listener['name']}.redirect", "fail", expected="301 to https", found="", reason=str(error), fix=APPLY)
        return
    found = f"{status} {headers.get('location', '')}".strip()
    verdicts.add(
        f"{listener['name']}.redirect",
        "pass" if found.startswith("301 https://") else "fail",
        expected="301 to https",
        found=found,
        fix=APPLY,
    )


def served_certificate(listener: Mapping[str, Any], name: str) -> bytes:
    """Return the certificate for a server name, DER.

    Raises:
        OSError: The listener does not speak TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection((local_address(listener), int(listener["port"])), timeout=TIMEOUT_S)
    with plain, context.wrap_socket(plain, server_hostname=name or None) as secured:
        return secured.getpeercert(binary_form=True) or b""


def verify_certificate(listener: Mapping[str, Any], name: str, trusted: bytes) -> dict[str, Any]:
    """Check dates and name like a client that trusts this certificate, and return its fields.

    Raises:
        ssl.SSLCertVerificationError: A client would reject it.
        OSError: The listener does not speak TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(name)
    context.verify_flags |= PARTIAL_CHAIN
    context.load_verify_locations(cadata=ssl.DER_cert_to_PEM_cert(trusted))
    plain = socket.create_connection((local_address(listener), int(listener["port"])), timeout=TIMEOUT_S)
    with plain, context.wrap_socket(plain, server_hostname=name or None) as secured:
        return dict(secured.getpeercert() or {})


def check_certificate(verdicts: Verdicts, listener: Mapping[str, Any], min_days: int) -> None:
    """Check that the certificate is valid for `min_days` more days, and for every name that clients use."""
    renew = "renew it, replace its cert_file and key_file, and apply the phase gateway; no connection is closed"
    for name in [str(one).replace("*", "verify") for one in listener["names"]] or [""]:
        check = f"{listener['name']}.certificate" + (f".{name}" if name else "")
        expected = f"valid for {min_days} days or more" + (f", for {name}" if name else "")
        try:
            facts = verify_certificate(listener, name, served_certificate(listener, name))
        except ssl.SSLCertVerificationError as error:
            reasons = {
                EXPIRED: "it has expired",
                NOT_YET: "it is not valid yet",
                OTHER_NAME: f"it is not for {name}",
                OTHER_ADDRESS: f"it is not for {name}",
            }
            fix = f"get one for {name}, and apply the phase gateway" if error.verify_code in (OTHER_NAME, OTHER_ADDRESS) else renew
            verdicts.add(
                check,
                "fail",
                expected=expected,
                found=error.verify_message,
                reason=reasons.get(error.verify_code, error.verify_message),
                fix=fix,
            )
            continue
        except OSError as error:
            verdicts.add(
                check, "fail", expected=expected, found="", reason=f"port {listener['port']} does not speak TLS: {error}", fix=APPLY
            )
            continue
        left_days = int((ssl.cert_time_to_seconds(facts["notAfter"]) - time.time()) // 86400)
        verdict = "pass" if left_days >= min_days else "fail"
        found = f"until {facts['notAfter']}"
        verdicts.add(check, verdict, expected=expected, found=found, reason=f"it expires in {left_days} days", fix=renew)


def endpoint_health(answer: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the numbers of healthy and of all endpoints of each upstream, from /clusters?format=json."""
    health = {}
    for one in answer.get("cluster_statuses", ()):
        states = [end.get("health_status", {}) for end in one.get("host_statuses", ())]
        healthy = [
            state for state in states if state.get("eds_health_status") == "HEALTHY" and not any(key.startswith("failed_") for key in state)
        ]
        health[one["name"]] = (len(healthy), len(states))
    return health


def check_upstreams(verdicts: Verdicts, upstreams: list[str], healthy: Mapping[str, tuple[int, int]]) -> None:
    """Check that each upstream has a healthy endpoint."""
    for name in upstreams:
        good, all_endpoints = healthy.get(name, (0, 0))
        fix = f"start the service {name}; Envoy uses an endpoint again as soon as it answers ({CLUSTERS} shows it)"
        verdict = "unknown" if name not in healthy else "pass" if good else "fail"
        reason = "Envoy does not have it yet" if name not in healthy else "every endpoint is ejected, so its requests get 503"
        verdicts.add(f"upstream.{name}", verdict, expected="a healthy endpoint", found=f"{good} of {all_endpoints}", reason=reason, fix=fix)


def counters_of(answer: Mapping[str, Any]) -> dict[str, int]:
    """Return Envoy's counters by name from /stats?format=json, without histograms."""
    return {str(one["name"]): int(one["value"]) for one in answer.get("stats", ()) if isinstance(one.get("value"), int)}


def request_counts(answer: Mapping[str, Any], cluster: str) -> tuple[int, int]:
    """Return the numbers of answered and failed requests of a cluster's current endpoints, from /clusters?format=json."""
    hosts = [host for one in answer.get("cluster_statuses", ()) if one["name"] == cluster for host in one.get("host_statuses", ())]
    values = [(stat["name"], int(stat.get("value", 0))) for host in hosts for stat in host.get("stats", ())]
    return sum(value for name, value in values if name == "rq_success"), sum(value for name, value in values if name == "rq_error")


def keys_verdict(name: str, counters: Mapping[str, int], requests: tuple[int, int], invalid: int) -> tuple[str, str]:
    """Return the verdict on a provider's keys, and what was found; `invalid` answers of all providers together contained no keys."""
    own = {word: counters.get(f"cluster.jwks_{name}.upstream_{word}", 0) for word in ("rq_2xx", "rq_completed", "cx_none_healthy")}
    answered, failed = requests
    if failed and not answered:
        return "fail", f"{failed} requests were not answered"
    if not own["rq_2xx"]:
        found = "its name does not resolve" if own["cx_none_healthy"] else f"{own['rq_completed']} answers, each with an error"
        return ("fail", found) if own["rq_completed"] else ("unknown", "not requested yet")
    if not counter_sum(counters, "jwks_fetch_success"):
        return "fail", f"{own['rq_2xx']} answers, none with keys"
    if invalid > 0:
        return "unknown", f"{invalid} answers, of this or other providers, contained no keys"
    return "pass", f"{own['rq_2xx']} answers with keys"


def counter_sum(counters: Mapping[str, int], word: str) -> int:
    """Return the sum of a counter over all listeners, which fetch keys separately, or over the clusters of all providers."""
    return sum(value for name, value in counters.items() if name.endswith(f".{word}") and ".internal." not in name)


def check_keys(verdicts: Verdicts, providers: list[str], clusters: Mapping[str, Any], stats: Mapping[str, Any]) -> None:
    """Check that the keys of each provider with a URL were fetched. Without them every token is refused, as is a missing one.

    A listener counts failed fetches from all providers together, and a provider's cluster counts answers by status. So a failed fetch
    without an error status is an answer that is not a key set.
    """
    counters = counters_of(stats)
    errors = counter_sum(counters, "upstream_rq_completed") - counter_sum(counters, "upstream_rq_2xx")
    invalid = counter_sum(counters, "jwks_fetch_failed") - errors
    for name in providers:
        # Counter names have "_" instead of ":".
        verdict, found = keys_verdict(name, counters, request_counts(clusters, f"jwks:{name}"), invalid)
        fix = f"correct jwks_url of {name}, or the network path to it (DNS, proxy, firewall, certificate); read `journalctl -u envoy -n 30`"
        verdicts.add(f"keys.{name}", verdict, expected="fetched keys", found=found, fix=fix)


def send_until_limited(path: str, route: str, max_requests: int) -> tuple[int, dict[str, str]]:
    """Send requests until one gets 429; return the number of accepted requests and the headers of that answer.

    Raises:
        OSError: There is no answer.
        http.client.HTTPException: The answer is not HTTP.
    """
    connection = UnixConnection(path)
    for passed in range(max_requests):
        connection.request("GET", "/", headers={"Host": route})
        answer = connection.getresponse()
        answer.read()
        if answer.status == http.client.TOO_MANY_REQUESTS:
            return passed, {name.lower(): value for name, value in answer.getheaders()}
        if answer.status != http.client.OK:
            raise OSError(f"the test of {route} answers {answer.status}")
    return max_requests, {}


def check_limits(verdicts: Verdicts, listeners: list[Mapping[str, Any]], path: str, send: Callable[..., Any] = send_until_limited) -> None:
    """Check that a request above the limit gets 429 with a retry-after header."""
    limited = {route["name"]: route["rate_limit"] for one in listeners for route in one["routes"] if route["rate_limit"]}
    for name, limit in limited.items():
        expected = f"429 beyond {limit['requests']} requests in {limit['per_s']} s"
        # Tokens that are refilled during the test admit further requests.
        max_requests = limit["requests"] + max(2, int(TIMEOUT_S * limit["requests"] / limit["per_s"]))
        if max_requests > MAX_REQUESTS:
            reason = f"the test needs more than {MAX_REQUESTS} requests"
            verdicts.add(f"limit.{name}", "skipped", expected=expected, found="", reason=reason, fix="")
            continue
        try:
            passed, headers = send(path, name, max_requests)
        except (OSError, http.client.HTTPException) as error:
            verdicts.add(f"limit.{name}", "unknown", expected=expected, found="", reason=f"{path}: {error}", fix=APPLY)
            continue
        verdict = "pass" if headers.get("retry-after") else "fail"
        found = f"429 after {passed}" if headers else f"{passed} were accepted"
        verdicts.add(f"limit.{name}", verdict, expected=expected, found=found, fix=APPLY)


def main() -> None:
    """Read the arguments, run the checks and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "admin_socket": {"type": "path", "required": True},
            "trial_socket": {"type": "path", "required": True},
            "min_days": {"type": "int", "required": True},
            "listeners": {"type": "list", "elements": "dict", "required": True},
            "upstreams": {"type": "list", "elements": "str", "required": True},
            "key_sets": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    verdicts = Verdicts("envoy", params["host"])
    healthy: dict[str, tuple[int, int]] = {}
    try:
        clusters = read_page(params["admin_socket"], "/clusters?format=json")
        stats = read_page(params["admin_socket"], "/stats?filter=jwks&format=json") if params["key_sets"] else {}
        healthy = endpoint_health(clusters)
    except (OSError, ValueError) as error:
        reason = f"{params['admin_socket']}: {error}"
        verdicts.add("admin", "fail", expected="an answer on the admin socket", found="", reason=reason, fix=APPLY)
    else:
        check_upstreams(verdicts, params["upstreams"], healthy)
        check_keys(verdicts, params["key_sets"], clusters, stats)
    for listener in params["listeners"]:
        if listener["https_redirect"]:
            check_redirect(verdicts, listener)
            continue
        if listener["tls"]:
            check_certificate(verdicts, listener, params["min_days"])
        check_routes(verdicts, listener, healthy)
    check_limits(verdicts, params["listeners"], params["trial_socket"])
    verdicts.finish(module)


if __name__ == "__main__":
    main()
