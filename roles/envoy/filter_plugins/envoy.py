# ruff: noqa: INP001 (Ansible loads it by path)
"""Check the variables, certificates and files of the role `envoy`, and compute Envoy's configuration. Runs on the controller."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ansible.module_utils

# On the controller, Ansible does not add the role's module_utils to its path.
_MODULE_UTILS = str(Path(__file__).resolve().parent.parent / "module_utils")
if _MODULE_UTILS not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_MODULE_UTILS)

from ansible.module_utils import envoy_config, envoy_findings, envoy_values  # noqa: E402 - needs the path above

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cryptography import x509


def envoy_problems(variables: Mapping[str, Any]) -> list[str]:
    """Return a line for each problem of the variables, with its fix."""
    return [f"{one.what}. Fix: {one.fix}" for one in envoy_findings.all_findings(variables)]


def names_for(certificate: str, listeners: Sequence[Mapping[str, Any]], routes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names that a certificate must contain: those of listeners that have no other certificate, or of their routes."""
    names: dict[str, None] = {}
    for listener in envoy_values.with_defaults("envoy_listeners", listeners):
        if list(listener["certificates"]) != [certificate]:
            continue
        served = [route for route in envoy_values.with_defaults("envoy_routes", routes) if envoy_values.serves(listener, route)]
        names.update(dict.fromkeys(listener["names"] or [host for route in served for host in route["hosts"]]))
    return list(names)


def envoy_certificate_names(certificate: str, variables: Mapping[str, Any], host_names: Sequence[str]) -> list[str]:
    """Return the names for a certificate of the cluster's authority: those of its listeners, and those of the host."""
    users = [one for one in variables["envoy_listeners"] if certificate in one.get("certificates", ())]
    listeners = [{**one, "certificates": [certificate]} for one in users]
    return list(dict.fromkeys([*names_for(certificate, listeners, variables["envoy_routes"]), *filter(None, host_names)]))


def envoy_signed_certificates(results: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the certificates that the cluster's authority has signed, in the format of envoy_tls_certificates."""
    return [{"name": one["item"], "cert_file": one["cert_file"], "key_file": one["key_file"]} for one in results]


def envoy_certificate_problems(
    entries: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], certificates: Sequence[str], keys: Sequence[str]
) -> list[str]:
    """Return the problems of certificates; `certificates` and `keys` are the contents of the entries' files, in their order."""
    problems = []
    for one, certificate, key in zip(entries, certificates, keys, strict=True):
        names = names_for(one["name"], variables["envoy_listeners"], variables["envoy_routes"])
        problems += certificate_problems(certificate, key, one["name"], names)
    return problems


def envoy_tls_files(
    entries: Sequence[Mapping[str, Any]], certificates: Sequence[str], keys: Sequence[str], folder: str
) -> list[dict[str, str]]:
    """Return path and content of each certificate and key on the host. A new pair gets new file names."""
    files = []
    for one, *texts in zip(entries, certificates, keys, strict=True):
        pair = [f"{text.rstrip()}\n" for text in texts]
        stem = f"{folder}/{one['name']}-{envoy_config.version_of(pair)}"
        files += [
            {"name": one["name"], "kind": kind, "path": f"{stem}.{end}", "text": text}
            for kind, end, text in zip(("cert", "key"), ("crt", "key"), pair, strict=True)
        ]
    return files


def envoy_tls_paths(files: Sequence[Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return the paths of each certificate (`cert`) and its key (`key`) on the host, by name."""
    paths: dict[str, dict[str, str]] = {}
    for one in files:
        paths.setdefault(one["name"], {})[one["kind"]] = one["path"]
    return paths


def envoy_wasm_paths(entries: Sequence[Mapping[str, Any]], folder: str) -> list[str]:
    """Return the path of each Wasm filter on the host. The name contains the checksum, because Envoy reads a file only once."""
    return [f"{folder}/{one['name']}-{str(one['sha256'])[:16].lower()}.wasm" for one in entries]


def certificate_problems(certificate: str, key: str, name: str, client_names: Sequence[str], now: str = "") -> list[str]:
    """Return the problems of a certificate: invalid PEM, a key that does not match, its dates, or missing names. Never contains the key.

    Args:
        certificate: PEM text, the server's certificate first.
        key: PEM text of the private key.
        name: Name of the entry in envoy_tls_certificates.
        client_names: Names that clients use.
        now: Time in ISO 8601. Empty means the current time.
    """
    from cryptography import x509  # noqa: PLC0415 - a dependency of Ansible; loaded only if there is a certificate
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - the same

    try:
        leaf = x509.load_pem_x509_certificates(certificate.encode())[0]
    except ValueError as error:
        return [f"certificate {name}: its cert_file contains no certificate ({error}). Fix: give a PEM file with it, the server's first"]
    try:
        private = serialization.load_pem_private_key(key.encode(), None)
    except (ValueError, TypeError):
        return [f"certificate {name}: its key_file contains no private key without a passphrase. Fix: give the unencrypted PEM file"]
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    problems = []
    if private.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        problems.append(f"certificate {name}: its key_file is the key of another certificate. Fix: use the key of this certificate")
    time = datetime.fromisoformat(now) if now else datetime.now(UTC)
    if leaf.not_valid_after_utc <= time:
        expired = f"{leaf.not_valid_after_utc:%Y-%m-%d %H:%M}"
        problems.append(f"certificate {name} expired on {expired} UTC. Fix: renew it and replace its cert_file")
    if leaf.not_valid_before_utc > time:
        problems.append(
            f"certificate {name} is valid from {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on. Fix: check the clock of the controller"
        )
    patterns = _names_of(leaf)
    for missing in [one for one in client_names if not any(_matches(pattern, str(one)) for pattern in patterns)]:
        listed = ", ".join(patterns) or "no name"
        problems.append(f"certificate {name} is for {listed} and not for {missing}. Fix: get one for {missing}, or correct the names")
    return problems


def _names_of(leaf: x509.Certificate) -> list[str]:
    from cryptography import x509  # noqa: PLC0415 - as above

    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []  # browsers and Go ignore the common name
    return [*names.get_values_for_type(x509.DNSName), *(str(one) for one in names.get_values_for_type(x509.IPAddress))]


def _matches(pattern: str, name: str) -> bool:
    """Return whether a name in a certificate matches a name; `*` stands for one label (RFC 6125, section 6.4.3)."""
    try:
        return ipaddress.ip_address(pattern) == ipaddress.ip_address(name)
    except ValueError:
        pass
    if pattern.lower() == name.lower():
        return True
    return pattern.startswith("*.") and not name.startswith("*.") and pattern[2:].lower() == name.lower().partition(".")[2]


def envoy_file_problems(entries: Sequence[Mapping[str, Any]], folder: str) -> list[str]:
    """Return the Wasm filters that are missing on the controller or have another checksum."""
    problems = []
    for one in entries:
        path = Path(folder, str(one["file"]))
        if not path.is_file():
            problems.append(f"Wasm filter {one['name']}: {path} is not on the controller. Fix: correct `file`")
            continue
        checksum = hashlib.sha256(path.read_bytes()).hexdigest()
        if checksum != str(one["sha256"]).lower():
            fix = "replace the file, or correct sha256"
            problems.append(f"Wasm filter {one['name']}: the SHA-256 of {path} is {checksum} and not {one['sha256']}. Fix: {fix}")
    return problems


def envoy_render_config(variables: Mapping[str, Any], paths: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    """Return Envoy's configuration as JSON texts: its start file, the files that it watches, and all of it as one file to validate.

    Args:
        variables: The role's variables by name.
        paths: As for `make_resources`.
        node: `node`, `cluster` and `dynamic_dir` of the host.
    """
    defaults = envoy_values.DEFAULTS
    values = {name: envoy_values.with_defaults(name, value) if name in defaults else value for name, value in variables.items()}
    resources = envoy_config.make_resources(values, paths)
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


def envoy_verification(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the listeners, routes and upstreams for the verification, without secrets."""
    routes = envoy_values.with_defaults("envoy_routes", variables["envoy_routes"])
    listeners = envoy_values.with_defaults("envoy_listeners", variables["envoy_listeners"])
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
        "upstreams": [one["name"] for one in variables["envoy_upstreams"]],
    }


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        names = (
            "problems",
            "certificate_problems",
            "file_problems",
            "tls_files",
            "tls_paths",
            "wasm_paths",
            "render_config",
            "verification",
            "certificate_names",
            "signed_certificates",
        )
        return {f"envoy_{name}": globals()[f"envoy_{name}"] for name in names}
