# ruff: noqa: INP001 (Ansible loads it by path)
"""Filters of the role `registry_trust`: the signature policy, and conflicts between variables, which `validate` reports too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ADDRESS = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?")
SCOPE = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9._/-]+)?")
FIRST_LINES = {"gpg": "-----BEGIN PGP PUBLIC KEY BLOCK-----", "sigstore": "-----BEGIN PUBLIC KEY-----"}
# The variables that `findings` reads. The caller omits those that only a run can resolve.
VARIABLES = (
    "registry_trust_policy",
    "registry_trust_signed_by",
    "registry_trust_unsigned_from",
    "registry_trust_lookaside_url",
    "registry_trust_registries",
)


def findings(values: Mapping[str, Any], has_registry: bool) -> list[tuple[str, str, str, str]]:  # noqa: FBT001 (Jinja calls it so)
    """Return each conflict as variable, message, fix and rule name.

    Args:
        values: The role's variables by name; a missing one has its default.
        has_registry: Whether the cluster has its own registry.
    """
    signed_by, unsigned = values.get("registry_trust_signed_by") or [], values.get("registry_trust_unsigned_from") or []
    about, found = "registry_trust_signed_by", []
    if values.get("registry_trust_policy") == "signed":
        if not signed_by:
            what = f"registry_trust_policy is signed and {about} has no key"
            found.append(("registry_trust_policy", what, f"set {about}", "trust-no-key"))
        elif any(one.get("type") == "gpg" for one in signed_by) and not values.get("registry_trust_lookaside_url"):
            what = "gpg signatures are required and registry_trust_lookaside_url, their location, is empty"
            fix = "set registry_trust_lookaside_url, or use the type sigstore, whose signatures are in the registry"
            found.append((about, what, fix, "trust-no-lookaside"))
        if not has_registry and any(not one.get("scope") for one in signed_by):
            what = "an entry of registry_trust_signed_by has no scope, and the cluster has no registry of its own"
            found.append((about, what, "set scope to a registry, or add a host to the group oci_registry", "trust-no-scope"))
        if any(one.get("type", "sigstore") == "sigstore" and len(one.get("key_files") or []) > 1 for one in signed_by):
            found.append((about, "one scope has several sigstore keys", "use one key, or one scope for each key", "trust-several-keys"))
    elif signed_by or unsigned:
        policy = values.get("registry_trust_policy") or "keep"
        what = f"registry_trust_policy is {policy}, so registry_trust_signed_by and registry_trust_unsigned_from have no effect"
        name = about if signed_by else "registry_trust_unsigned_from"
        found.append((name, what, "set registry_trust_policy: signed, or remove them", "trust-unused"))
    scopes = [one.get("scope") or "" for one in signed_by] + list(unsigned)
    if twice := sorted({scope for scope in scopes if scopes.count(scope) > 1}):
        named = ", ".join(one or "the cluster's registry" for one in twice)
        what = f"registry_trust_signed_by and registry_trust_unsigned_from contain {named} more than once"
        found.append((about, what, "use each scope once", "trust-scope-twice"))
    invalid = [scope for scope in scopes if scope and not SCOPE.fullmatch(scope)]
    invalid += [
        one["address"] for one in values.get("registry_trust_registries") or [] if not ADDRESS.fullmatch(str(one.get("address", "")))
    ]
    if invalid:
        what = f"not a registry or a part of one: {', '.join(invalid)}"
        fix = "write NAME:PORT, for a scope also NAME:PORT/folder, without https://"
        found.append((about if signed_by else "registry_trust_registries", what, fix, "trust-address"))
    return found


def registry_trust_findings(values: Mapping[str, Any], has_registry: bool) -> list[tuple[str, str]]:  # noqa: FBT001 (Jinja calls it so)
    """Return each conflict with its fix."""
    return [(what, fix) for _, what, fix, _ in findings(values, has_registry)]


CONTAINERD_VARIABLES = ("registry_trust_policy", "registry_trust_registries", "containerd_registries_mirrors")


def containerd_findings(values: Mapping[str, Any], address: str, harbor: Iterable[str] = ()) -> list[tuple[str, str, str, str]]:
    """Return each conflict on nodes of Kubernetes as variable, message, fix and rule name.

    Args:
        values: The variables by name; a missing one has its default.
        address: NAME:PORT of the cluster's registry; empty = there is none.
        harbor: The name of the cluster's Harbor, if it has one.
    """
    found = []
    if values.get("registry_trust_policy") == "signed":
        what = "registry_trust_policy is signed, and containerd of Kubernetes nodes does not support it: it would pull any image"
        fix = "set registry_trust_policy only for container_host; on Kubernetes use an admission policy for signatures"
        found.append(("registry_trust_policy", what, fix, "trust-policy-of-containerd"))
    others = [str(one.get("address", "")) for one in values.get("registry_trust_registries") or []]
    if invalid := [one for one in others if not ADDRESS.fullmatch(one)]:
        what = f"not a registry: {', '.join(invalid)}"
        found.append(("registry_trust_registries", what, "write NAME or NAME:PORT, without https://", "trust-address"))
    prefixes = {str(one.get("prefix")) for one in values.get("containerd_registries_mirrors") or [] if isinstance(one, dict)}
    if twice := sorted(prefixes & {address, *others, *harbor} - {""}):
        what = (
            f"containerd_registries_mirrors contains {', '.join(twice)}, whose hosts.toml registry_trust writes: one overwrites the other"
        )
        fix = (
            "remove it there; registry_trust configures CA certificate and credentials, for other registries from registry_trust_registries"
        )
        found.append(("containerd_registries_mirrors", what, fix, "trust-kubespray"))
    return found


def registry_trust_containerd_findings(values: Mapping[str, Any], address: str, harbor: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return each conflict on nodes of Kubernetes with its fix."""
    return [(what, fix) for _, what, fix, _ in containerd_findings(values, address, harbor)]


def registry_trust_read(registries: Iterable[Mapping[str, Any]], folder: str) -> list[dict[str, Any]]:
    """Return registries with the text of their CA certificates; `registry_trust_file_errors` reports missing files."""
    return [{**one, "pem": _text(one.get("ca_file") or "", folder)} for one in registries]


def registry_trust_keys(signed_by: Iterable[Mapping[str, Any]], address: str, keys: str, folder: str) -> list[dict[str, str]]:
    """Return, for each scope, its type, the text of its keys, and their path on a host."""
    return [
        {
            "scope": one.get("scope") or address,
            "type": one.get("type") or "sigstore",
            "text": "\n".join(_text(name, folder).strip() for name in one["key_files"]) + "\n",
            "path": f"{keys}/{number}.pub",
        }
        for number, one in enumerate(signed_by, 1)
    ]


def registry_trust_file_errors(registries: Iterable[Mapping[str, Any]], signed_by: Iterable[Mapping[str, Any]], folder: str) -> list[str]:
    """Return an error for each file that is missing, a private key, or of another type."""
    errors = [
        f"{one['ca_file']} is not a certificate in PEM"
        for one in registries
        if one.get("ca_file") and "BEGIN CERTIFICATE" not in _text(one["ca_file"], folder)
    ]
    for one in signed_by:
        for name in one["key_files"]:
            text = _text(name, folder)
            if "PRIVATE KEY" in text:
                errors.append(f"{name} contains a private key")
            elif FIRST_LINES[one.get("type") or "sigstore"] not in text:
                errors.append(f"{name} is not a public key of the type {one.get('type') or 'sigstore'}")
    return errors


def registry_trust_policy(keys: Iterable[Mapping[str, str]], unsigned: Sequence[str]) -> dict[str, Any]:
    """Return containers-policy.json(5), which accepts only the listed scopes, and images in the host's own store."""
    scopes: dict[str, Any] = {scope: [{"type": "insecureAcceptAnything"}] for scope in unsigned}
    for one in keys:
        if one["type"] == "gpg":
            scopes[one["scope"]] = [{"type": "signedBy", "keyType": "GPGKeys", "keyPath": one["path"]}]
        else:
            # cosign signs a repository and a digest, not a tag; podman's signatures match too.
            identity = {"type": "matchRepository"}
            scopes[one["scope"]] = [{"type": "sigstoreSigned", "keyPath": one["path"], "signedIdentity": identity}]
    # An image in the store was checked when it was pulled, or built on this host. Without this entry, nothing could be pushed.
    store = {"": [{"type": "insecureAcceptAnything"}]}
    return {"default": [{"type": "reject"}], "transports": {"docker": scopes, "containers-storage": store}}


def registry_trust_signatures(keys: Iterable[Mapping[str, str]], lookaside: str) -> dict[str, Any]:
    """Return containers-registries.d(5), the location of the signatures of each scope. `sigstore` is podman 3's name for a lookaside."""
    kinds = {"gpg": {"lookaside": lookaside, "sigstore": lookaside}, "sigstore": {"use-sigstore-attachments": True}}
    return {"docker": {one["scope"]: kinds[one["type"]] for one in keys}}


def _text(name: str, folder: str) -> str:
    """Return the text of a file on the controller; empty if there is none."""
    if not name:
        return ""
    try:
        return Path(folder, name).read_text("utf-8", "replace")
    except OSError:
        return ""


class FilterModule:
    """The filters, as Ansible loads them."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {name: value for name, value in globals().items() if name.startswith("registry_trust_")}
