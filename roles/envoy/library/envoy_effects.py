#!/usr/bin/python
"""Ask a gateway what its clients would see: the Ansible module `envoy_effects`, which changes nothing.

Requests go to the listeners of this host. What a route's upstream answers is not judged, only that it answers. Limits are tried on the
gateway's own socket, where each answers by itself: the clients of a route lose none of theirs.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.envoy_admin import ASK_S, UnixConnection, read_page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCHEMA = "primus.verdict/1"
SOURCE = "roles/envoy/meta/argument_specs.yml"
# A trial of a higher limit takes longer than it is worth.
MOST_REQUESTS = 2000
CLUSTERS = "`curl --unix-socket /run/envoy/admin.sock http://envoy/clusters` as root"
AGAIN = "apply the phase gateway again, and see `journalctl -u envoy -n 30`"
# OpenSSL's numbers, x509_vfy.h: X509_V_FLAG_PARTIAL_CHAIN takes the certificate itself for its authority; and what a check may end with.
PARTIAL_CHAIN = 0x80000
EXPIRED, NOT_YET, OTHER_NAME, OTHER_ADDRESS = 10, 9, 62, 64


class Gateway:
    """One gateway as its clients see it; verdicts gather in `verdicts`."""

    def __init__(self, host: str) -> None:
        """Keep whose gateway it is."""
        self.host = host
        self.verdicts: list[dict[str, Any]] = []

    def judge(self, check: str, verdict: str, *, expected: str, found: str, reason: str = "", fix: str = "") -> None:  # noqa: PLR0913 (the record's fields)
        """Record one verdict."""
        record = {"check": f"envoy.{check}", "host": self.host, "verdict": verdict, "expected": expected, "found": found}
        bad = {} if verdict == "pass" else {"reason": reason or f"expected {expected}, found {found or 'nothing'}", "fix": fix}
        self.verdicts.append({**record, **bad, "source": SOURCE, "started": time.time(), "seconds": 0.0, "schema": SCHEMA})


def reach(listener: Mapping[str, Any]) -> str:
    """Return the address at which this host itself reaches a listener."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listener["address"], str(listener["address"]))  # noqa: S104 (a listener's own word)


def request(listener: Mapping[str, Any], host: str, path: str) -> tuple[int, dict[str, str]]:
    """Send one GET and return the status and the headers of the answer.

    Raises:
        OSError: nobody answers.
        http.client.HTTPException: the answer is none of HTTP.
    """
    address, port = reach(listener), int(listener["port"])
    plain = socket.create_connection((address, port), timeout=ASK_S)
    try:
        if listener["tls"]:
            # Which certificate it is, another check judges.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            plain = context.wrap_socket(plain, server_hostname=host or None)
        connection = http.client.HTTPConnection(address, port, timeout=ASK_S)
        connection.sock = plain
        connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", host or address)
        connection.putheader("User-Agent", "primus-bootstrap verify")
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        plain.close()


def name_for(route: Mapping[str, Any]) -> str:
    """Return a name by which a client would ask; a wildcard stands for any label.

    A route for every name is asked by none: at a name of another route, that one could answer.
    """
    return str((route["hosts"] or [""])[0]).replace("*", "verify")


def look_at_routes(
    gateway: Gateway, listener: Mapping[str, Any], healthy: Mapping[str, tuple[int, int]], ask: Callable[..., Any] = request
) -> None:
    """See that each route leads to its upstream, or asks for what it should ask for."""
    for route in listener["routes"]:
        path = route["probe_path"] or route["path"] or route["path_prefix"]
        check = f"{listener['name']}.{route['name']}"
        closed = bool(route["api_keys"] or route["jwt_provider"])
        expected = "401 without a key or token" if closed else "an answer of its upstream"
        try:
            status, headers = ask(listener, name_for(route), path)
        except (OSError, http.client.HTTPException) as error:
            gateway.judge(check, "fail", expected=expected, found="", reason=f"port {listener['port']} does not answer: {error}", fix=AGAIN)
            continue
        if closed:
            verdict = "pass" if status == http.client.UNAUTHORIZED else "fail"
            gateway.judge(check, verdict, expected=expected, found=str(status), fix=AGAIN)
        elif "x-envoy-upstream-service-time" in headers:
            gateway.judge(check, "pass", expected=expected, found=f"{status} of {route['upstream']}")
        elif status == http.client.TOO_MANY_REQUESTS and route["rate_limit"]:
            gateway.judge(
                check,
                "unknown",
                expected=expected,
                found=str(status),
                reason="its clients have used up its limit",
                fix="verify again later",
            )
        elif healthy.get(route["upstream"], (0, 0))[0] == 0:
            reason = f"no endpoint of {route['upstream']} is healthy, so where requests go cannot be seen"
            gateway.judge(
                check, "unknown", expected=expected, found=str(status), reason=reason, fix=f"start what {route['upstream']} stands for"
            )
        else:
            gateway.judge(check, "fail", expected=expected, found=f"{status} of the gateway", fix=AGAIN)


def look_at_redirect(gateway: Gateway, listener: Mapping[str, Any], ask: Callable[..., Any] = request) -> None:
    """See that a plain listener sends clients to https."""
    try:
        status, headers = ask(listener, str((listener["names"] or [""])[0]), "/")
    except (OSError, http.client.HTTPException) as error:
        gateway.judge(f"{listener['name']}.redirect", "fail", expected="301 to https", found="", reason=str(error), fix=AGAIN)
        return
    found = f"{status} {headers.get('location', '')}".strip()
    gateway.judge(
        f"{listener['name']}.redirect",
        "pass" if found.startswith("301 https://") else "fail",
        expected="301 to https",
        found=found,
        fix=AGAIN,
    )


def served_certificate(listener: Mapping[str, Any], name: str) -> bytes:
    """Return the certificate that a client is shown who asks for a name, DER.

    Raises:
        OSError: there is no TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection((reach(listener), int(listener["port"])), timeout=ASK_S)
    with plain, context.wrap_socket(plain, server_hostname=name or None) as secured:
        return secured.getpeercert(binary_form=True) or b""


def verify_certificate(listener: Mapping[str, Any], name: str, shown: bytes) -> dict[str, Any]:
    """Verify as a client does that trusts this very certificate: its dates, and the name where one is asked for; return what is in it.

    Raises:
        ssl.SSLCertVerificationError: it cannot serve.
        OSError: there is no TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(name)
    context.verify_flags |= PARTIAL_CHAIN
    context.load_verify_locations(cadata=ssl.DER_cert_to_PEM_cert(shown))
    plain = socket.create_connection((reach(listener), int(listener["port"])), timeout=ASK_S)
    with plain, context.wrap_socket(plain, server_hostname=name or None) as secured:
        return dict(secured.getpeercert() or {})


def look_at_certificate(gateway: Gateway, listener: Mapping[str, Any], least_days: int) -> None:
    """See that the certificate is in date, will be for a while, and is that of every name that clients use."""
    renew = "renew it, put it into its cert_file and key_file, and apply the phase gateway: nobody is cut off"
    for name in [str(one).replace("*", "verify") for one in listener["names"]] or [""]:
        check = f"{listener['name']}.certificate" + (f".{name}" if name else "")
        expected = f"valid for {least_days} days or more" + (f", for {name}" if name else "")
        try:
            facts = verify_certificate(listener, name, served_certificate(listener, name))
        except ssl.SSLCertVerificationError as error:
            words = {
                EXPIRED: "it has expired",
                NOT_YET: "it is not valid yet",
                OTHER_NAME: f"it is not for {name}",
                OTHER_ADDRESS: f"it is not for {name}",
            }
            fix = f"have one issued for {name}, and apply the phase gateway" if error.verify_code in (OTHER_NAME, OTHER_ADDRESS) else renew
            gateway.judge(
                check,
                "fail",
                expected=expected,
                found=error.verify_message,
                reason=words.get(error.verify_code, error.verify_message),
                fix=fix,
            )
            continue
        except OSError as error:
            gateway.judge(check, "fail", expected=expected, found="", reason=f"port {listener['port']} speaks no TLS: {error}", fix=AGAIN)
            continue
        left_days = int((ssl.cert_time_to_seconds(facts["notAfter"]) - time.time()) // 86400)
        verdict = "pass" if left_days >= least_days else "fail"
        found = f"until {facts['notAfter']}"
        gateway.judge(check, verdict, expected=expected, found=found, reason=f"it expires in {left_days} days", fix=renew)


def health_of(answer: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return for each upstream how many of its endpoints are healthy, and how many there are, out of /clusters?format=json."""
    found = {}
    for one in answer.get("cluster_statuses", ()):
        states = [end.get("health_status", {}) for end in one.get("host_statuses", ())]
        good = [
            state for state in states if state.get("eds_health_status") == "HEALTHY" and not any(key.startswith("failed_") for key in state)
        ]
        found[one["name"]] = (len(good), len(states))
    return found


def look_at_upstreams(gateway: Gateway, upstreams: list[str], healthy: Mapping[str, tuple[int, int]]) -> None:
    """See that each upstream has an endpoint that answers; those that were ejected are named by their number."""
    for name in upstreams:
        good, everybody = healthy.get(name, (0, 0))
        fix = f"start the service {name}; an endpoint that answers again is used again (see {CLUSTERS})"
        verdict = "unknown" if name not in healthy else "pass" if good else "fail"
        reason = "the gateway does not know it yet" if name not in healthy else "every endpoint is ejected: its requests end in 503"
        gateway.judge(
            f"upstream.{name}", verdict, expected="an endpoint that is healthy", found=f"{good} of {everybody}", reason=reason, fix=fix
        )


def counters_of(answer: Mapping[str, Any]) -> dict[str, int]:
    """Return Envoy's counters by name out of /stats?format=json, which has histograms beside them."""
    return {str(one["name"]): int(one["value"]) for one in answer.get("stats", ()) if isinstance(one.get("value"), int)}


def tries_of(answer: Mapping[str, Any], cluster: str) -> tuple[int, int]:
    """Return how many requests the present endpoints of a cluster have answered, and how many failed, out of /clusters?format=json."""
    hosts = [host for one in answer.get("cluster_statuses", ()) if one["name"] == cluster for host in one.get("host_statuses", ())]
    seen = [(stat["name"], int(stat.get("value", 0))) for host in hosts for stat in host.get("stats", ())]
    return sum(value for name, value in seen if name == "rq_success"), sum(value for name, value in seen if name == "rq_error")


def judge_keys(name: str, counted: Mapping[str, int], tries: tuple[int, int], unread: int) -> tuple[str, str]:
    """Return the verdict about a provider's keys, and what was found; `unread` answers were no keys, of whichever provider."""
    of = {word: counted.get(f"cluster.jwks_{name}.upstream_{word}", 0) for word in ("rq_2xx", "rq_completed", "cx_none_healthy")}
    answered, failed = tries
    if failed and not answered:
        return "fail", f"{failed} requests found nobody who answers"
    if not of["rq_2xx"]:
        found = "its name is not found" if of["cx_none_healthy"] else f"{of['rq_completed']} answers, each with an error"
        return ("fail", found) if of["rq_completed"] else ("unknown", "nobody has asked for them yet")
    if not total(counted, "jwks_fetch_success"):
        return "fail", f"{of['rq_2xx']} answers, none with keys"
    return (
        ("unknown", f"{unread} answers, of it or of others, were no keys") if unread > 0 else ("pass", f"{of['rq_2xx']} answers with keys")
    )


def total(counted: Mapping[str, int], word: str) -> int:
    """Return the sum of a counter over all listeners, each of which fetches for itself, or over the clusters of all providers."""
    return sum(value for name, value in counted.items() if name.endswith(f".{word}") and ".internal." not in name)


def look_at_keys(gateway: Gateway, providers: list[str], clusters: Mapping[str, Any], stats: Mapping[str, Any]) -> None:
    """See that the keys of each provider that names a URL were fetched: without them every token is refused, as without a token.

    A listener counts what it fetched from all providers together, and a provider's cluster what it was answered: what failed without an
    error in the answer was an answer that is no set of keys.
    """
    counted = counters_of(stats)
    errors = total(counted, "upstream_rq_completed") - total(counted, "upstream_rq_2xx")
    unread = total(counted, "jwks_fetch_failed") - errors
    for name in providers:
        # ":" is no character of a counter's name.
        verdict, found = judge_keys(name, counted, tries_of(clusters, f"jwks:{name}"), unread)
        fix = f"mend jwks_url of {name}, or the way there (name, proxy, firewall, certificate); see `journalctl -u envoy -n 30`"
        gateway.judge(f"keys.{name}", verdict, expected="keys that were fetched", found=found, fix=fix)


def try_limit(path: str, route: str, most: int) -> tuple[int, dict[str, str]]:
    """Send requests until one is refused, and return how many were let through and the headers of the refusal.

    Raises:
        OSError: nobody answers.
        http.client.HTTPException: the answer is none of HTTP.
    """
    connection = UnixConnection(path)
    for passed in range(most):
        connection.request("GET", "/", headers={"Host": route})
        answer = connection.getresponse()
        answer.read()
        if answer.status == http.client.TOO_MANY_REQUESTS:
            return passed, {name.lower(): value for name, value in answer.getheaders()}
        if answer.status != http.client.OK:
            raise OSError(f"the trial of {route} answers {answer.status}")
    return most, {}


def look_at_limits(gateway: Gateway, listeners: list[Mapping[str, Any]], path: str, trial: Callable[..., Any] = try_limit) -> None:
    """See that a request beyond the limit is answered with 429 and told when to come back."""
    limited = {route["name"]: route["rate_limit"] for one in listeners for route in one["routes"] if route["rate_limit"]}
    for name, limit in limited.items():
        expected = f"429 beyond {limit['requests']} requests in {limit['per_s']} s"
        # What comes back while the trial lasts is let through too.
        most = limit["requests"] + max(2, int(ASK_S * limit["requests"] / limit["per_s"]))
        if most > MOST_REQUESTS:
            reason = f"reaching it takes more than {MOST_REQUESTS} requests"
            gateway.judge(f"limit.{name}", "skipped", expected=expected, found="", reason=reason, fix="")
            continue
        try:
            passed, headers = trial(path, name, most)
        except (OSError, http.client.HTTPException) as error:
            gateway.judge(f"limit.{name}", "unknown", expected=expected, found="", reason=f"{path}: {error}", fix=AGAIN)
            continue
        verdict = "pass" if headers.get("retry-after") else "fail"
        found = f"429 after {passed}" if headers else f"{passed} were let through"
        gateway.judge(f"limit.{name}", verdict, expected=expected, found=found, fix=AGAIN)


def main() -> None:
    """Read the arguments, look, and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "admin_socket": {"type": "path", "required": True},
            "trial_socket": {"type": "path", "required": True},
            "least_days": {"type": "int", "required": True},
            "listeners": {"type": "list", "elements": "dict", "required": True},
            "upstreams": {"type": "list", "elements": "str", "required": True},
            "key_sets": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    gateway = Gateway(wanted["host"])
    healthy: dict[str, tuple[int, int]] = {}
    try:
        clusters = read_page(wanted["admin_socket"], "/clusters?format=json")
        stats = read_page(wanted["admin_socket"], "/stats?filter=jwks&format=json") if wanted["key_sets"] else {}
        healthy = health_of(clusters)
    except (OSError, ValueError) as error:
        reason = f"{wanted['admin_socket']}: {error}"
        gateway.judge("admin", "fail", expected="an answer on the admin socket", found="", reason=reason, fix=AGAIN)
    else:
        look_at_upstreams(gateway, wanted["upstreams"], healthy)
        look_at_keys(gateway, wanted["key_sets"], clusters, stats)
    for listener in wanted["listeners"]:
        if listener["https_redirect"]:
            look_at_redirect(gateway, listener)
            continue
        if listener["tls"]:
            look_at_certificate(gateway, listener, wanted["least_days"])
        look_at_routes(gateway, listener, healthy)
    look_at_limits(gateway, wanted["listeners"], wanted["trial_socket"])
    result = {"changed": False, "verdicts": gateway.verdicts, "stdout": json.dumps({"verdicts": gateway.verdicts})}
    failed = [f"{record['check']}: {record['reason']}. Fix: {record['fix']}" for record in gateway.verdicts if record["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
