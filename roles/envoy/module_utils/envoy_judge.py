# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""What is wrong with what a site states about its gateway, for the inventory's rules and the role's preflight alike.

Every function yields all findings at once, and none for a value of a wrong type: the role's specs judge types.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible.module_utils.envoy_values import ANY_CLIENT, DEFAULTS, full, host_and_port, is_address, serves

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# A value that only a run knows: a template that cannot be resolved yet, or under Vault without a password.
UNKNOWN = "?"
VARIABLES = (*DEFAULTS, "envoy_api_keys", "envoy_api_key_header")
SHORTEST_KEY = 16
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_HEADER = re.compile(r"[a-z0-9-]{1,64}", re.IGNORECASE)
_HOST = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")
_KEY = re.compile(r"[!-~]+")
_URL = re.compile(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?(/[^\s]*)?")
_SUM = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: which variable, what, how to mend it, and a short name of the rule."""

    about: str
    what: str
    fix: str
    rule: str


@dataclass(frozen=True)
class Stated:
    """The role's variables as one host has them; entries complete, and None where only a run knows them."""

    listeners: Sequence[Mapping[str, Any]] | None
    routes: Sequence[Mapping[str, Any]] | None
    upstreams: Sequence[Mapping[str, Any]] | None
    certificates: Sequence[Mapping[str, Any]] | None
    providers: Sequence[Mapping[str, Any]] | None
    wasm: Sequence[Mapping[str, Any]] | None
    keys: Mapping[str, Any] | None
    header: Any


def read(stated: Mapping[str, Any]) -> Stated:
    """Return what is stated; a variable that is absent or None is empty, one that cannot be known is None."""

    def entries(name: str) -> list[dict[str, Any]] | None:
        given = stated.get(name) or []
        if not isinstance(given, (list, tuple)):
            return None
        return full(name, [one for one in given if isinstance(one, dict) and isinstance(one.get("name"), str)])

    keys = stated.get("envoy_api_keys") or {}
    return Stated(*(entries(name) for name in DEFAULTS), keys if isinstance(keys, dict) else None, stated.get(VARIABLES[-1]))


def _names(entries: Iterable[Mapping[str, Any]] | None) -> list[str] | None:
    return None if entries is None else [one["name"] for one in entries]


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _missing(wanted: Any, known: Sequence[str] | None) -> list[str]:
    """Return which names of a list nobody states; none where that cannot be known."""
    if known is None or not isinstance(wanted, (list, tuple)):
        return []
    return [str(one) for one in wanted if one not in known]


def _choose(known: Sequence[str] | None) -> str:
    return f"choose from: {', '.join(known)}" if known else "none is stated yet"


def all_findings(stated: Mapping[str, Any]) -> list[Finding]:
    """Return everything that is wrong."""
    now = read(stated)
    found = [one for variable in DEFAULTS for one in name_findings(variable, stated.get(variable))]
    judges = (listener_findings, certificate_findings, route_findings, twin_findings, upstream_findings, provider_findings, wasm_findings)
    for judge in (*judges, key_findings):
        found += judge(now)
    return found


def name_findings(variable: str, stated: Any) -> Iterator[Finding]:
    """A name becomes a file, a statistic and what others refer to: it must be plain, and stand once."""
    if not isinstance(stated, (list, tuple)):
        return
    names = [str(one["name"]) for one in stated if isinstance(one, dict) and isinstance(one.get("name"), str)]
    for name, times in Counter(names).items():
        if not _NAME.fullmatch(name):
            yield Finding(variable, f"{variable}: `{name}` is no name", "use small letters, digits, dash and underscore", "envoy-name")
        elif times > 1:
            yield Finding(variable, f"{variable}: {name} is stated {times} times", "keep one entry for each", "envoy-name")


def listener_findings(now: Stated) -> Iterator[Finding]:
    """A gateway without a listener answers nobody, and two on one port do not start."""
    about = "envoy_listeners"
    if now.listeners is None:
        return
    if not now.listeners:
        yield Finding(about, "envoy has hosts and envoy_listeners is empty: nobody could reach it", "state a listener", "envoy-listener")
    ports: dict[int, str] = {}
    for one in now.listeners:
        name, port = one["name"], _number(one.get("port"))
        if port is not None and not 0 < port < 65536:
            yield Finding(about, f"listener {name}: there is no port {port}", "use 1 to 65535", "envoy-listener")
        elif port is not None and port in ports:
            yield Finding(
                about, f"listener {name}: port {port} is that of {ports[port]} already", "give each a port of its own", "envoy-port"
            )
        if port is not None:
            ports.setdefault(port, name)
        if not is_address(str(one["address"])):
            fix = "write an IP address; 0.0.0.0 is every IPv4 address of the host"
            yield Finding(about, f"listener {name}: {one['address']} is no address", fix, "envoy-listener")
        yield from _listener_tls(one, _names(now.certificates))


def _listener_tls(one: Mapping[str, Any], known: Sequence[str] | None) -> Iterator[Finding]:
    about, name = "envoy_listeners", one["name"]
    if one["https_redirect"] and one["tls"]:
        fix = "set tls: false on the listener that only sends clients to https"
        yield Finding(about, f"listener {name} redirects to https and speaks TLS itself", fix, "envoy-tls")
    elif one["tls"] and not one["certificates"]:
        fix = "name one of envoy_tls_certificates under `certificates`, or say tls: false where something before it speaks TLS"
        yield Finding(about, f"listener {name} has no certificate", fix, "envoy-tls")
    elif one["certificates"] and not one["tls"]:
        yield Finding(about, f"listener {name} has a certificate and tls: false", "take one of the two out", "envoy-tls")
    for missing in _missing(one["certificates"], known):
        yield Finding(about, f"listener {name}: there is no certificate {missing}", _choose(known), "envoy-tls")


def certificate_findings(now: Stated) -> Iterator[Finding]:
    """Half a pair is an oversight, and no wish for one that the cluster's authority signs."""
    for one in now.certificates or ():
        if bool(one["cert_file"]) != bool(one["key_file"]):
            what = f"certificate {one['name']} has a {'cert_file' if one['cert_file'] else 'key_file'} alone"
            yield Finding("envoy_tls_certificates", what, "name both files, or none for one of the cluster's own authority", "envoy-tls")


def route_findings(now: Stated) -> Iterator[Finding]:
    """A route that leads nowhere, or that does not say who may use it, would be found out by its users."""
    about = "envoy_routes"
    listeners, upstreams, providers = _names(now.listeners), _names(now.upstreams), _names(now.providers)
    redirecting = [one["name"] for one in now.listeners or () if one["https_redirect"]]
    for one in now.routes or ():
        name = one["name"]
        for missing in _missing(one["listeners"], listeners):
            yield Finding(about, f"route {name}: there is no listener {missing}", _choose(listeners), "envoy-route")
        for listener in redirecting:
            if listener in (one["listeners"] or ()):
                yield Finding(about, f"route {name}: listener {listener} only redirects", "name another listener", "envoy-route")
        for missing in _missing([one.get("upstream")], upstreams):
            yield Finding(about, f"route {name}: there is no upstream {missing}", _choose(upstreams), "envoy-route")
        for host in one["hosts"] if isinstance(one["hosts"], list) else ():
            if not _HOST.fullmatch(str(host)):
                fix = "write small letters without a port; *.example.com is every name below example.com"
                yield Finding(about, f"route {name}: {host} is no host name", fix, "envoy-route")
        yield from _route_paths(one)
        yield from _route_users(one, providers, None if now.keys is None else [str(client) for client in now.keys])
        yield from _route_limit(one)


def _route_paths(one: Mapping[str, Any]) -> Iterator[Finding]:
    name = one["name"]
    for key in ("path", "path_prefix", "rewrite_prefix", "probe_path"):
        if one[key] and not _PATH.fullmatch(str(one[key])):
            yield Finding("envoy_routes", f"route {name}: {key} {one[key]} is no path", "begin it with /, without ? and #", "envoy-route")
    if one["path"] and one["path_prefix"] != "/":
        fix = "keep `path` for exactly that path, or `path_prefix` for all below"
        yield Finding("envoy_routes", f"route {name} has a path and a path_prefix", fix, "envoy-route")
    if one["path"] and one["rewrite_prefix"]:
        yield Finding("envoy_routes", f"route {name}: an exact path has no prefix to rewrite", "use path_prefix", "envoy-route")
    if (seconds := _number(one["timeout_s"])) is not None and seconds < 0:
        yield Finding("envoy_routes", f"route {name}: timeout_s is {seconds}", "0 is no bound, else a number of seconds", "envoy-route")


def _route_users(one: Mapping[str, Any], providers: Sequence[str] | None, clients: Sequence[str] | None) -> Iterator[Finding]:
    about, name = "envoy_routes", one["name"]
    asks = bool(one["api_keys"] or one["jwt_provider"])
    if not asks and not one["public"]:
        fix = "name clients of envoy_api_keys under `api_keys` (['*'] is all of them), a `jwt_provider`, or say public: true"
        yield Finding(about, f"route {name} does not say who may use it", fix, "envoy-open-route")
    elif asks and one["public"]:
        yield Finding(about, f"route {name} is public and asks for a key or a token", "take one of the two out", "envoy-open-route")
    known = None if clients is None else [*clients, ANY_CLIENT]
    for missing in _missing(one["api_keys"], known):
        yield Finding(about, f"route {name}: {missing} has no key in envoy_api_keys", _choose(clients), "envoy-route")
    if clients is not None and not clients and ANY_CLIENT in (one["api_keys"] or ()):
        yield Finding(about, f"route {name} asks for a key and envoy_api_keys is empty", "give a client a key", "envoy-route")
    for missing in _missing([one["jwt_provider"]] if one["jwt_provider"] else [], providers):
        yield Finding(about, f"route {name}: there is no JWT provider {missing}", _choose(providers), "envoy-route")


def _route_limit(one: Mapping[str, Any]) -> Iterator[Finding]:
    limit = one["rate_limit"]
    if not isinstance(limit, dict) or not limit:
        return
    for key in ("requests", "per_s"):
        number = _number(limit.get(key))
        if key in limit and number is not None and number < 1:
            fix = "use 1 or more, or take the limit out; a route that nobody may use is one that is not stated"
            yield Finding(
                "envoy_routes", f"route {one['name']}: a rate limit with {key}: {number} lets nothing through", fix, "envoy-limit"
            )


def twin_findings(now: Stated) -> Iterator[Finding]:
    """Of two routes for the same requests only the first would ever be used."""
    seen: dict[tuple[str, str, str], str] = {}
    reported = set()
    for listener in now.listeners or ():
        for one in now.routes or ():
            if not serves(listener, one):
                continue
            path = one["path"] or f"{str(one['path_prefix']).rstrip('/')}/…"
            for host in one["hosts"] or ["*"]:
                first = seen.setdefault((listener["name"], str(host), path), one["name"])
                if first != one["name"] and (first, one["name"]) not in reported:
                    reported.add((first, one["name"]))
                    what = f"routes {first} and {one['name']} take the same requests ({host}{path} of listener {listener['name']})"
                    yield Finding("envoy_routes", what, "keep one, or give them different hosts, paths or listeners", "envoy-twin-routes")


def upstream_findings(now: Stated) -> Iterator[Finding]:
    """An upstream without endpoints, or whose health nobody can tell, answers 503 to everybody."""
    about = "envoy_upstreams"
    for one in now.upstreams or ():
        name, ends = one["name"], one.get("endpoints")
        if isinstance(ends, list) and not ends:
            yield Finding(about, f"upstream {name} has no endpoint", "write them as host:port", "envoy-upstream")
        for end in ends if isinstance(ends, list) else ():
            try:
                host_and_port(str(end))
            except ValueError as error:
                yield Finding(about, f"upstream {name}: {error}", "write node1:8000, 10.0.0.1:8000 or [fd00::1]:8000", "envoy-upstream")
        for end, times in Counter(str(end) for end in ends or ()).items():
            if times > 1:
                yield Finding(about, f"upstream {name}: {end} is stated {times} times", "keep one of them", "envoy-upstream")
        for key in ("health_check_interval_s", "health_check_timeout_s", "unhealthy_after", "healthy_after", "connect_timeout_s"):
            if (number := _number(one[key])) is not None and number < 1:
                yield Finding(about, f"upstream {name}: {key} is {number}", "use 1 or more", "envoy-upstream")
        if one["health_check_path"] and not _PATH.fullmatch(str(one["health_check_path"]).partition("?")[0]):
            yield Finding(about, f"upstream {name}: {one['health_check_path']} is no path", "begin it with /", "envoy-upstream")


def provider_findings(now: Stated) -> Iterator[Finding]:
    """A provider needs its keys from one place."""
    about = "envoy_jwt_providers"
    for one in now.providers or ():
        if bool(one["jwks_file"]) == bool(one["jwks_url"]):
            what = f"JWT provider {one['name']} has {'two sources' if one['jwks_file'] else 'no source'} of keys"
            yield Finding(about, what, "give it a jwks_file or a jwks_url", "envoy-jwt")
        elif one["jwks_url"] and not _URL.fullmatch(str(one["jwks_url"])):
            yield Finding(about, f"JWT provider {one['name']}: {one['jwks_url']} is no URL", "begin it with https://", "envoy-jwt")


def wasm_findings(now: Stated) -> Iterator[Finding]:
    """What runs inside the gateway is pinned by its sum."""
    about, listeners = "envoy_wasm_filters", _names(now.listeners)
    for one in now.wasm or ():
        if isinstance(one.get("sha256"), str) and not _SUM.fullmatch(one["sha256"]):
            fix = "write the 64 hexadecimal digits that `sha256sum FILE` prints"
            yield Finding(about, f"Wasm filter {one['name']}: sha256 is no SHA-256", fix, "envoy-wasm")
        for missing in _missing(one["listeners"], listeners):
            yield Finding(about, f"Wasm filter {one['name']}: there is no listener {missing}", _choose(listeners), "envoy-wasm")


def key_findings(now: Stated) -> Iterator[Finding]:
    """A key tells clients apart, so each has its own, and one that can be guessed is none. No key is ever quoted."""
    about = "envoy_api_keys"
    if isinstance(now.header, str) and now.header != UNKNOWN and not _HEADER.fullmatch(now.header):
        what = f"envoy_api_key_header: {now.header} is no header"
        yield Finding("envoy_api_key_header", what, "use letters, digits and dashes", "envoy-key")
    owners: dict[str, str] = {}
    for client, key in (now.keys or {}).items():
        if not _NAME.fullmatch(str(client)):
            yield Finding(about, f"envoy_api_keys: `{client}` is no name", "use small letters, digits, dash and underscore", "envoy-name")
        if not isinstance(key, str) or key == UNKNOWN or "{{" in key:
            continue
        if len(key) < SHORTEST_KEY or not _KEY.fullmatch(key):
            what = f"the key of {client} is shorter than {SHORTEST_KEY} characters, or holds a space"
            yield Finding(about, what, "make one with `openssl rand -hex 32`", "envoy-key")
        elif key in owners:
            yield Finding(about, f"{owners[key]} and {client} have the same key", "give each client its own", "envoy-key")
        owners.setdefault(key, str(client))
