# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Find problems in the variables of the role, for the rules of the inventory and the preflight of the role.

Each function yields all findings, and none for a value of a wrong type, because the argument specs check types.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible.module_utils.envoy_values import ANY_CLIENT, DEFAULTS, host_and_port, is_address, serves, with_defaults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# Stands for a value that only a run knows: a template that cannot be resolved yet, or a Vault value without a password.
UNKNOWN = "?"
VARIABLES = (*DEFAULTS, "envoy_api_keys", "envoy_api_key_header")
MIN_KEY_LENGTH = 16
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_NAME_FIX = "use lower-case letters, digits, dashes and underscores"
_HEADER = re.compile(r"[a-z0-9-]{1,64}", re.IGNORECASE)
_HOST = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")
_KEY = re.compile(r"[!-~]+")
_URL = re.compile(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?(/[^\s]*)?")
_SUM = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class Finding:
    """A problem: the variable, the problem, its fix, and the name of the rule."""

    about: str
    what: str
    fix: str
    rule: str


@dataclass(frozen=True)
class Values:
    """The variables of one host with the defaults of their entries. None stands for a value that only a run knows."""

    listeners: Sequence[Mapping[str, Any]] | None
    routes: Sequence[Mapping[str, Any]] | None
    upstreams: Sequence[Mapping[str, Any]] | None
    certificates: Sequence[Mapping[str, Any]] | None
    providers: Sequence[Mapping[str, Any]] | None
    wasm: Sequence[Mapping[str, Any]] | None
    keys: Mapping[str, Any] | None
    header: Any


def read(variables: Mapping[str, Any]) -> Values:
    """Return the values of the variables. A missing variable is empty, an unknown one is None."""

    def entries(name: str) -> list[dict[str, Any]] | None:
        value = variables.get(name) or []
        if not isinstance(value, (list, tuple)):
            return None
        return with_defaults(name, [one for one in value if isinstance(one, dict) and isinstance(one.get("name"), str)])

    keys = variables.get("envoy_api_keys") or {}
    return Values(*(entries(name) for name in DEFAULTS), keys if isinstance(keys, dict) else None, variables.get(VARIABLES[-1]))


def _names(entries: Iterable[Mapping[str, Any]] | None) -> list[str] | None:
    return None if entries is None else [one["name"] for one in entries]


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _missing(names: Any, known: Sequence[str] | None) -> list[str]:
    """Return the names that are not defined, or an empty list if that is unknown."""
    if known is None or not isinstance(names, (list, tuple)):
        return []
    return [str(one) for one in names if one not in known]


def _choose(known: Sequence[str] | None) -> str:
    return f"choose from: {', '.join(known)}" if known else "define one first; there is none"


def all_findings(variables: Mapping[str, Any]) -> list[Finding]:
    """Return all problems."""
    values = read(variables)
    findings = [finding for variable in DEFAULTS for finding in name_findings(variable, variables.get(variable))]
    checks = (listener_findings, certificate_findings, route_findings, duplicate_route_findings, upstream_findings, provider_findings)
    for check in (*checks, wasm_findings, key_findings):
        findings += check(values)
    return findings


def name_findings(variable: str, entries: Any) -> Iterator[Finding]:
    """A name becomes a file name, a statistic and a reference. It must be a plain word and unique."""
    if not isinstance(entries, (list, tuple)):
        return
    names = [str(one["name"]) for one in entries if isinstance(one, dict) and isinstance(one.get("name"), str)]
    for name, times in Counter(names).items():
        if not _NAME.fullmatch(name):
            yield Finding(variable, f"{variable}: `{name}` is not a valid name", _NAME_FIX, "envoy-name")
        elif times > 1:
            yield Finding(variable, f"{variable}: {name} is defined {times} times", "keep one entry", "envoy-name")


def listener_findings(values: Values) -> Iterator[Finding]:
    """A gateway needs a listener, and two listeners cannot use the same port."""
    about = "envoy_listeners"
    if values.listeners is None:
        return
    if not values.listeners:
        yield Finding(about, "envoy has hosts, but envoy_listeners is empty: no client could connect", "add a listener", "envoy-listener")
    ports: dict[int, str] = {}
    for one in values.listeners:
        name, port = one["name"], _number(one.get("port"))
        if port is not None and not 0 < port < 65536:
            yield Finding(about, f"listener {name}: port {port} is invalid", "use 1 to 65535", "envoy-listener")
        elif port is not None and port in ports:
            what = f"listener {name}: port {port} is already used by listener {ports[port]}"
            yield Finding(about, what, "give each listener its own port", "envoy-port")
        if port is not None:
            ports.setdefault(port, name)
        if not is_address(str(one["address"])):
            fix = "use an IP address; 0.0.0.0 means every IPv4 address of the host"
            yield Finding(about, f"listener {name}: {one['address']} is not an IP address", fix, "envoy-listener")
        yield from _listener_tls(one, _names(values.certificates))


def _listener_tls(one: Mapping[str, Any], known: Sequence[str] | None) -> Iterator[Finding]:
    about, name = "envoy_listeners", one["name"]
    if one["https_redirect"] and one["tls"]:
        fix = "set tls: false on the listener that redirects"
        yield Finding(about, f"listener {name} has both https_redirect and tls", fix, "envoy-tls")
    elif one["tls"] and not one["certificates"]:
        fix = "add one of envoy_tls_certificates under `certificates`, or set tls: false if another program terminates TLS"
        yield Finding(about, f"listener {name} has no certificate", fix, "envoy-tls")
    elif one["certificates"] and not one["tls"]:
        yield Finding(about, f"listener {name} has a certificate and tls: false", "remove one of the two", "envoy-tls")
    for missing in _missing(one["certificates"], known):
        yield Finding(about, f"listener {name}: there is no certificate {missing}", _choose(known), "envoy-tls")


def certificate_findings(values: Values) -> Iterator[Finding]:
    """A certificate has both files, or none if the cluster's authority signs it."""
    for one in values.certificates or ():
        if bool(one["cert_file"]) != bool(one["key_file"]):
            what = f"certificate {one['name']} has only a {'cert_file' if one['cert_file'] else 'key_file'}"
            yield Finding("envoy_tls_certificates", what, "set both files, or none to use the cluster's own authority", "envoy-tls")


def route_findings(values: Values) -> Iterator[Finding]:
    """A route must use existing listeners and upstreams, and define who may use it."""
    about = "envoy_routes"
    listeners, upstreams, providers = _names(values.listeners), _names(values.upstreams), _names(values.providers)
    redirecting = [one["name"] for one in values.listeners or () if one["https_redirect"]]
    for one in values.routes or ():
        name = one["name"]
        for missing in _missing(one["listeners"], listeners):
            yield Finding(about, f"route {name}: there is no listener {missing}", _choose(listeners), "envoy-route")
        for listener in redirecting:
            if listener in (one["listeners"] or ()):
                yield Finding(about, f"route {name}: listener {listener} only redirects", "use another listener", "envoy-route")
        for missing in _missing([one.get("upstream")], upstreams):
            yield Finding(about, f"route {name}: there is no upstream {missing}", _choose(upstreams), "envoy-route")
        for host in one["hosts"] if isinstance(one["hosts"], list) else ():
            if not _HOST.fullmatch(str(host)):
                fix = "use lower-case letters without a port; *.example.com matches every name below example.com"
                yield Finding(about, f"route {name}: {host} is not a host name", fix, "envoy-route")
        yield from _route_paths(one)
        yield from _route_users(one, providers, None if values.keys is None else [str(client) for client in values.keys])
        yield from _route_limit(one)


def _route_paths(one: Mapping[str, Any]) -> Iterator[Finding]:
    name = one["name"]
    for key in ("path", "path_prefix", "rewrite_prefix", "probe_path"):
        if one[key] and not _PATH.fullmatch(str(one[key])):
            what = f"route {name}: {key} {one[key]} is not a path"
            yield Finding("envoy_routes", what, "start it with /, without ? or #", "envoy-route")
    if one["path"] and one["path_prefix"] != "/":
        fix = "keep `path` for one path, or `path_prefix` for all paths below it"
        yield Finding("envoy_routes", f"route {name} has a path and a path_prefix", fix, "envoy-route")
    if one["path"] and one["rewrite_prefix"]:
        yield Finding("envoy_routes", f"route {name}: an exact path has no prefix to rewrite", "use path_prefix", "envoy-route")
    if (seconds := _number(one["timeout_s"])) is not None and seconds < 0:
        yield Finding("envoy_routes", f"route {name}: timeout_s is {seconds}", "use 0 for no limit, or a number of seconds", "envoy-route")


def _route_users(one: Mapping[str, Any], providers: Sequence[str] | None, clients: Sequence[str] | None) -> Iterator[Finding]:
    about, name = "envoy_routes", one["name"]
    restricted = bool(one["api_keys"] or one["jwt_provider"])
    if not restricted and not one["public"]:
        fix = "list clients of envoy_api_keys under `api_keys` (['*'] for all), set a `jwt_provider`, or set public: true"
        yield Finding(about, f"route {name} does not define who may use it", fix, "envoy-open-route")
    elif restricted and one["public"]:
        yield Finding(about, f"route {name} is public and requires a key or a token", "remove one of the two", "envoy-open-route")
    known = None if clients is None else [*clients, ANY_CLIENT]
    for missing in _missing(one["api_keys"], known):
        yield Finding(about, f"route {name}: {missing} has no key in envoy_api_keys", _choose(clients), "envoy-route")
    if clients is not None and not clients and ANY_CLIENT in (one["api_keys"] or ()):
        yield Finding(about, f"route {name} requires a key, but envoy_api_keys is empty", "add a client to envoy_api_keys", "envoy-route")
    for missing in _missing([one["jwt_provider"]] if one["jwt_provider"] else [], providers):
        yield Finding(about, f"route {name}: there is no JWT provider {missing}", _choose(providers), "envoy-route")


def _route_limit(one: Mapping[str, Any]) -> Iterator[Finding]:
    limit = one["rate_limit"]
    if not isinstance(limit, dict) or not limit:
        return
    for key in ("requests", "per_s"):
        number = _number(limit.get(key))
        if key in limit and number is not None and number < 1:
            what = f"route {one['name']}: a rate limit with {key}: {number} admits no request"
            yield Finding("envoy_routes", what, "use 1 or more, or remove the limit", "envoy-limit")


def duplicate_route_findings(values: Values) -> Iterator[Finding]:
    """Of two routes for the same requests, only the first would be used."""
    seen: dict[tuple[str, str, str], str] = {}
    reported = set()
    for listener in values.listeners or ():
        for one in values.routes or ():
            if not serves(listener, one):
                continue
            path = one["path"] or f"{str(one['path_prefix']).rstrip('/')}/…"
            for host in one["hosts"] or ["*"]:
                first = seen.setdefault((listener["name"], str(host), path), one["name"])
                if first != one["name"] and (first, one["name"]) not in reported:
                    reported.add((first, one["name"]))
                    what = f"routes {first} and {one['name']} match the same requests ({host}{path} of listener {listener['name']})"
                    yield Finding("envoy_routes", what, "keep one, or give them different hosts, paths or listeners", "envoy-twin-routes")


def upstream_findings(values: Values) -> Iterator[Finding]:
    """An upstream needs valid endpoints and health checks. Otherwise all its requests get 503."""
    about = "envoy_upstreams"
    for one in values.upstreams or ():
        name, ends = one["name"], one.get("endpoints")
        if isinstance(ends, list) and not ends:
            yield Finding(about, f"upstream {name} has no endpoint", "add endpoints as host:port", "envoy-upstream")
        for end in ends if isinstance(ends, list) else ():
            try:
                host_and_port(str(end))
            except ValueError as error:
                yield Finding(about, f"upstream {name}: {error}", "use node1:8000, 10.0.0.1:8000 or [fd00::1]:8000", "envoy-upstream")
        for end, times in Counter(str(end) for end in ends or ()).items():
            if times > 1:
                yield Finding(about, f"upstream {name}: {end} is listed {times} times", "keep one of them", "envoy-upstream")
        for key in ("health_check_interval_s", "health_check_timeout_s", "unhealthy_after", "healthy_after", "connect_timeout_s"):
            if (number := _number(one[key])) is not None and number < 1:
                yield Finding(about, f"upstream {name}: {key} is {number}", "use 1 or more", "envoy-upstream")
        if one["health_check_path"] and not _PATH.fullmatch(str(one["health_check_path"]).partition("?")[0]):
            yield Finding(about, f"upstream {name}: {one['health_check_path']} is not a path", "start it with /", "envoy-upstream")


def provider_findings(values: Values) -> Iterator[Finding]:
    """A provider has exactly one source of keys."""
    about = "envoy_jwt_providers"
    for one in values.providers or ():
        if bool(one["jwks_file"]) == bool(one["jwks_url"]):
            what = f"JWT provider {one['name']} has {'two sources' if one['jwks_file'] else 'no source'} of keys"
            yield Finding(about, what, "set jwks_file or jwks_url", "envoy-jwt")
        elif one["jwks_url"] and not _URL.fullmatch(str(one["jwks_url"])):
            yield Finding(about, f"JWT provider {one['name']}: {one['jwks_url']} is not a URL", "start it with https://", "envoy-jwt")


def wasm_findings(values: Values) -> Iterator[Finding]:
    """A filter runs inside the gateway and is therefore pinned by its checksum."""
    about, listeners = "envoy_wasm_filters", _names(values.listeners)
    for one in values.wasm or ():
        if isinstance(one.get("sha256"), str) and not _SUM.fullmatch(one["sha256"]):
            fix = "use the 64 hexadecimal digits that `sha256sum FILE` prints"
            yield Finding(about, f"Wasm filter {one['name']}: sha256 is not a SHA-256 checksum", fix, "envoy-wasm")
        for missing in _missing(one["listeners"], listeners):
            yield Finding(about, f"Wasm filter {one['name']}: there is no listener {missing}", _choose(listeners), "envoy-wasm")


def key_findings(values: Values) -> Iterator[Finding]:
    """Each client has its own key, which must be hard to guess. The findings never contain a key."""
    about = "envoy_api_keys"
    if isinstance(values.header, str) and values.header != UNKNOWN and not _HEADER.fullmatch(values.header):
        what = f"envoy_api_key_header: {values.header} is not a header name"
        yield Finding("envoy_api_key_header", what, "use letters, digits and dashes", "envoy-key")
    owners: dict[str, str] = {}
    for client, key in (values.keys or {}).items():
        if not _NAME.fullmatch(str(client)):
            yield Finding(about, f"envoy_api_keys: `{client}` is not a valid name", _NAME_FIX, "envoy-name")
        if not isinstance(key, str) or key == UNKNOWN or "{{" in key:
            continue
        if len(key) < MIN_KEY_LENGTH or not _KEY.fullmatch(key):
            what = f"the key of {client} is shorter than {MIN_KEY_LENGTH} characters, or contains a space"
            yield Finding(about, what, "generate one with `openssl rand -hex 32`", "envoy-key")
        elif key in owners:
            yield Finding(about, f"{owners[key]} and {client} have the same key", "give each client its own key", "envoy-key")
        owners.setdefault(key, str(client))
