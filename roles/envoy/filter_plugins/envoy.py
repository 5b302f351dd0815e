# ruff: noqa: INP001 (Ansible loads it by path)
"""What the role `envoy` decides on the controller: why values or certificates cannot serve, and what Envoy is to be told."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ansible.module_utils

# The judgement is plain Python beside the role's modules; on the controller, Ansible does not look for it by itself.
_OWN = str(Path(__file__).resolve().parent.parent / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)

from ansible.module_utils import envoy_config, envoy_judge, envoy_values  # noqa: E402 - found only now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cryptography import x509


def envoy_refusals(stated: Mapping[str, Any]) -> list[str]:
    """Return a line for everything that the variables have wrong: what, and `Fix:`."""
    return [f"{one.what}. Fix: {one.fix}" for one in envoy_judge.all_findings(stated)]


def names_for(certificate: str, listeners: Sequence[Mapping[str, Any]], routes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names that clients use where a certificate is the only one of its listener: those of the listener, else of its routes."""
    found: dict[str, None] = {}
    for listener in envoy_values.full("envoy_listeners", listeners):
        if list(listener["certificates"]) != [certificate]:
            continue
        mine = [route for route in envoy_values.full("envoy_routes", routes) if envoy_values.serves(listener, route)]
        found.update(dict.fromkeys(listener["names"] or [host for route in mine for host in route["hosts"]]))
    return list(found)


def envoy_own_names(certificate: str, stated: Mapping[str, Any], of_host: Sequence[str]) -> list[str]:
    """Return what a certificate of the cluster's authority must name: what clients call its listeners, and the host."""
    listeners = [{**one, "certificates": [certificate]} for one in stated["envoy_listeners"] if certificate in one.get("certificates", ())]
    return list(dict.fromkeys([*names_for(certificate, listeners, stated["envoy_routes"]), *filter(None, of_host)]))


def envoy_signed(results: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the certificates that the cluster's authority has signed, as envoy_tls_certificates states given ones."""
    return [{"name": one["item"], "cert_file": one["cert_file"], "key_file": one["key_file"]} for one in results]


def envoy_certificate_refusals(
    entries: Sequence[Mapping[str, Any]], stated: Mapping[str, Any], certificates: Sequence[str], keys: Sequence[str]
) -> list[str]:
    """Return why certificates cannot serve; `certificates` and `keys` are the texts of the entries' files, in their order."""
    found = []
    for one, certificate, key in zip(entries, certificates, keys, strict=True):
        wanted = names_for(one["name"], stated["envoy_listeners"], stated["envoy_routes"])
        found += certificate_refusals(certificate, key, one["name"], wanted)
    return found


def envoy_tls_files(
    entries: Sequence[Mapping[str, Any]], certificates: Sequence[str], keys: Sequence[str], folder: str
) -> list[dict[str, str]]:
    """Return where each certificate and its key lie on the host, and what is in them: a new pair gets new names."""
    found = []
    for one, *texts in zip(entries, certificates, keys, strict=True):
        pair = [f"{text.rstrip()}\n" for text in texts]
        stem = f"{folder}/{one['name']}-{envoy_config.version_of(pair)}"
        found += [
            {"name": one["name"], "kind": kind, "path": f"{stem}.{end}", "text": text}
            for kind, end, text in zip(("cert", "key"), ("crt", "key"), pair, strict=True)
        ]
    return found


def envoy_tls_paths(files: Sequence[Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return by name where a certificate (`cert`) and its key (`key`) lie on the host."""
    found: dict[str, dict[str, str]] = {}
    for one in files:
        found.setdefault(one["name"], {})[one["kind"]] = one["path"]
    return found


def envoy_wasm_paths(entries: Sequence[Mapping[str, Any]], folder: str) -> list[str]:
    """Return where each filter lies on the host, named after its sum: Envoy reads another one only under another name."""
    return [f"{folder}/{one['name']}-{str(one['sha256'])[:16].lower()}.wasm" for one in entries]


def certificate_refusals(certificate: str, key: str, name: str, wanted: Sequence[str], now: str = "") -> list[str]:
    """Return why a certificate cannot serve: not one, not the key's, out of date, or of another name. The key is never quoted.

    Args:
        certificate: PEM, the leaf first.
        key: Its private key, PEM.
        name: What envoy_tls_certificates calls it.
        wanted: Names that clients use.
        now: The time, ISO 8601; empty = the clock's.
    """
    from cryptography import x509  # noqa: PLC0415 - Ansible's own dependency; loaded only where a certificate is
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - the same

    try:
        leaf = x509.load_pem_x509_certificates(certificate.encode())[0]
    except ValueError as error:
        return [f"certificate {name}: its cert_file holds none ({error}). Fix: give a PEM file, the server's certificate first"]
    try:
        private = serialization.load_pem_private_key(key.encode(), None)
    except (ValueError, TypeError):
        return [f"certificate {name}: its key_file holds no private key without a passphrase. Fix: give the PEM file of its key"]
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    found = []
    if private.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        found.append(f"certificate {name}: its key_file is the key of another certificate. Fix: give the key that it was made with")
    moment = datetime.fromisoformat(now) if now else datetime.now(UTC)
    if leaf.not_valid_after_utc <= moment:
        found.append(
            f"certificate {name} expired on {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC. Fix: renew it and put it into its cert_file"
        )
    if leaf.not_valid_before_utc > moment:
        found.append(
            f"certificate {name} is valid from {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on. Fix: look at the controller's clock"
        )
    has = _names_of(leaf)
    for missing in [one for one in wanted if not any(_covers(pattern, str(one)) for pattern in has)]:
        shown = ", ".join(has) or "no name"
        found.append(f"certificate {name} is for {shown} and not for {missing}. Fix: have one issued for {missing}, or mend the names")
    return found


def _names_of(leaf: x509.Certificate) -> list[str]:
    from cryptography import x509  # noqa: PLC0415 - as above

    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []  # browsers and Go read no common name any more
    return [*names.get_values_for_type(x509.DNSName), *(str(one) for one in names.get_values_for_type(x509.IPAddress))]


def _covers(pattern: str, name: str) -> bool:
    """Tell whether a certificate's name is that name: `*` stands for one label (RFC 6125, section 6.4.3)."""
    try:
        return ipaddress.ip_address(pattern) == ipaddress.ip_address(name)
    except ValueError:
        pass
    if pattern.lower() == name.lower():
        return True
    return pattern.startswith("*.") and not name.startswith("*.") and pattern[2:].lower() == name.lower().partition(".")[2]


def envoy_file_refusals(entries: Sequence[Mapping[str, Any]], folder: str) -> list[str]:
    """Return which Wasm filters are not on the controller, or are not what their sum says."""
    found = []
    for one in entries:
        path = Path(folder, str(one["file"]))
        if not path.is_file():
            found.append(f"Wasm filter {one['name']}: {path} is not on the controller. Fix: mend `file`")
            continue
        real = hashlib.sha256(path.read_bytes()).hexdigest()
        if real != str(one["sha256"]).lower():
            fix = "look where the file comes from, or mend sha256"
            found.append(f"Wasm filter {one['name']}: the SHA-256 of {path} is {real} and not {one['sha256']}. Fix: {fix}")
    return found


def envoy_wishes(stated: Mapping[str, Any], paths: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that Envoy is told, as JSON texts: what it starts with, the files that it watches, and what it is to check.

    Args:
        stated: The role's variables by name.
        paths: As `make_resources` takes them.
        node: `node`, `cluster` and `dynamic_dir` of the host.
    """
    complete = {name: envoy_values.full(name, value) if name in envoy_values.DEFAULTS else value for name, value in stated.items()}
    resources = envoy_config.make_resources(complete, paths)
    bootstrap = envoy_config.make_bootstrap(**node)
    documents = {kind: envoy_config.as_document(kind, resources[kind]) for kind in ("clusters", "listeners")}
    documents |= {f"routes-{name}": envoy_config.as_document("routes", [table]) for name, table in resources["routes"].items()}
    return {
        "bootstrap": _text(bootstrap),
        "documents": {name: _text(document) for name, document in documents.items()},
        "static": _text(envoy_config.as_static(bootstrap, resources)),
    }


def _text(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def envoy_checks(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the verification asks of a running gateway: no secret is in it."""
    routes = envoy_values.full("envoy_routes", stated["envoy_routes"])
    listeners = envoy_values.full("envoy_listeners", stated["envoy_listeners"])
    keys = ("name", "hosts", "path", "path_prefix", "upstream", "api_keys", "jwt_provider", "rate_limit", "probe_path")
    return {
        "listeners": [
            {
                **{key: one[key] for key in ("name", "address", "port", "tls", "https_redirect")},
                "names": list(one["names"])
                or list(dict.fromkeys(host for route in routes if envoy_values.serves(one, route) for host in route["hosts"])),
                "routes": [{key: route[key] for key in keys} for route in routes if envoy_values.serves(one, route)],
            }
            for one in listeners
        ],
        "upstreams": [one["name"] for one in stated["envoy_upstreams"]],
    }


class FilterModule:
    """What Ansible looks for in a file of filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        names = (
            "refusals",
            "certificate_refusals",
            "file_refusals",
            "tls_files",
            "tls_paths",
            "wasm_paths",
            "wishes",
            "checks",
            "own_names",
            "signed",
        )
        return {f"envoy_{name}": globals()[f"envoy_{name}"] for name in names}
