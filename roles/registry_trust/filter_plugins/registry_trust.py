# ruff: noqa: INP001 (Ansible loads it by path)
"""What the role `registry_trust` decides on the controller: the policy of signatures, and what in hosts.yaml contradicts itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ADDRESS = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?")
SCOPE = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9._/-]+)?")
BEGINS = {"gpg": "-----BEGIN PGP PUBLIC KEY BLOCK-----", "sigstore": "-----BEGIN PUBLIC KEY-----"}
# The variables that `findings` reads; a value that only a run knows is left out by the caller.
VARIABLES = (
    "registry_trust_policy",
    "registry_trust_signed_by",
    "registry_trust_unsigned_from",
    "registry_trust_lookaside_url",
    "registry_trust_registries",
)


def findings(stated: Mapping[str, Any], own: bool) -> list[tuple[str, str, str, str]]:  # noqa: FBT001 (Jinja calls it so)
    """Return what contradicts itself: the variable it is about, what, its fix, and the rule's name.

    Args:
        stated: The role's variables by name; one that is missing has its default.
        own: Whether the cluster has a registry of its own.
    """
    signed_by, unsigned = stated.get("registry_trust_signed_by") or [], stated.get("registry_trust_unsigned_from") or []
    about, found = "registry_trust_signed_by", []
    if stated.get("registry_trust_policy") == "signed":
        if not signed_by:
            found.append(
                ("registry_trust_policy", "registry_trust_policy is signed and nobody's signature is named", f"set {about}", "trust-no-key")
            )
        elif any(one.get("type") == "gpg" for one in signed_by) and not stated.get("registry_trust_lookaside_url"):
            what = "signatures by gpg are asked for and registry_trust_lookaside_url does not say where they lie"
            found.append(
                (
                    about,
                    what,
                    "set registry_trust_lookaside_url, or use the type sigstore, whose signatures lie in the registry",
                    "trust-no-lookaside",
                )
            )
        if not own and any(not one.get("scope") for one in signed_by):
            what = "an entry of registry_trust_signed_by has no scope, and the cluster has no registry of its own"
            found.append((about, what, "name the registry in scope, or put a host into the group oci_registry", "trust-no-scope"))
        if any(one.get("type", "sigstore") == "sigstore" and len(one.get("key_files") or []) > 1 for one in signed_by):
            found.append(
                (about, "one scope has several sigstore keys", "give one key, or a scope of its own to each", "trust-several-keys")
            )
    elif signed_by or unsigned:
        policy = stated.get("registry_trust_policy") or "keep"
        what = f"registry_trust_policy is {policy}, so registry_trust_signed_by and registry_trust_unsigned_from do nothing"
        name = about if signed_by else "registry_trust_unsigned_from"
        found.append((name, what, "set registry_trust_policy: signed, or take them out", "trust-unused"))
    scopes = [one.get("scope") or "" for one in signed_by] + list(unsigned)
    if twice := sorted({scope for scope in scopes if scopes.count(scope) > 1}):
        named = ", ".join(one or "the own registry" for one in twice)
        what = f"registry_trust_signed_by and registry_trust_unsigned_from name {named} more than once"
        found.append((about, what, "name each scope once", "trust-scope-twice"))
    odd = [scope for scope in scopes if scope and not SCOPE.fullmatch(scope)]
    odd += [one["address"] for one in stated.get("registry_trust_registries") or [] if not ADDRESS.fullmatch(str(one.get("address", "")))]
    if odd:
        what = f"no registry or part of one: {', '.join(odd)}"
        found.append(
            (
                about if signed_by else "registry_trust_registries",
                what,
                "NAME:PORT, for a scope also NAME:PORT/folder, without https://",
                "trust-address",
            )
        )
    return found


def registry_trust_findings(stated: Mapping[str, Any], own: bool) -> list[tuple[str, str]]:  # noqa: FBT001 (Jinja calls it so)
    """Return what contradicts itself, each with its fix."""
    return [(what, fix) for _, what, fix, _ in findings(stated, own)]


CONTAINERD_VARIABLES = ("registry_trust_policy", "registry_trust_registries", "containerd_registries_mirrors")


def containerd_findings(stated: Mapping[str, Any], own: str, harbor: Iterable[str] = ()) -> list[tuple[str, str, str, str]]:
    """Return what containerd of Kubernetes' nodes could not keep: the variable it is about, what, its fix, and the rule's name.

    Args:
        stated: The variables by name; one that is missing has its default.
        own: NAME:PORT of the cluster's own registry; empty where there is none.
        harbor: The name of the cluster's Harbor, where it has one.
    """
    found = []
    if stated.get("registry_trust_policy") == "signed":
        what = "registry_trust_policy is signed, and containerd of Kubernetes' nodes knows no such policy: it would pull anything"
        fix = "state registry_trust_policy for container_host alone; on Kubernetes let an admission policy judge signatures"
        found.append(("registry_trust_policy", what, fix, "trust-policy-of-containerd"))
    others = [str(one.get("address", "")) for one in stated.get("registry_trust_registries") or []]
    if odd := [one for one in others if not ADDRESS.fullmatch(one)]:
        what = f"no registry: {', '.join(odd)}"
        found.append(("registry_trust_registries", what, "NAME or NAME:PORT, without https://", "trust-address"))
    prefixes = {str(one.get("prefix")) for one in stated.get("containerd_registries_mirrors") or [] if isinstance(one, dict)}
    if twice := sorted(prefixes & {own, *others, *harbor} - {""}):
        what = f"containerd_registries_mirrors names {', '.join(twice)}, whose hosts.toml registry_trust writes: each would undo the other"
        fix = "take it out there; authority and credentials come by themselves, of another registry from registry_trust_registries"
        found.append(("containerd_registries_mirrors", what, fix, "trust-kubespray"))
    return found


def registry_trust_containerd_findings(stated: Mapping[str, Any], own: str, harbor: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return what containerd of Kubernetes' nodes could not keep, each with its fix."""
    return [(what, fix) for _, what, fix, _ in containerd_findings(stated, own, harbor)]


def registry_trust_read(registries: Iterable[Mapping[str, Any]], folder: str) -> list[dict[str, Any]]:
    """Return registries with the text of their authorities; a file that is missing is reported by `registry_trust_missing`."""
    return [{**one, "pem": _text(one.get("ca_file") or "", folder)} for one in registries]


def registry_trust_keys(signed_by: Iterable[Mapping[str, Any]], own: str, keys: str, folder: str) -> list[dict[str, str]]:
    """Return, for each scope, its type, the text of its keys, and where that goes on a host."""
    return [
        {
            "scope": one.get("scope") or own,
            "type": one.get("type") or "sigstore",
            "text": "\n".join(_text(name, folder).strip() for name in one["key_files"]) + "\n",
            "path": f"{keys}/{number}.pub",
        }
        for number, one in enumerate(signed_by, 1)
    ]


def registry_trust_missing(registries: Iterable[Mapping[str, Any]], signed_by: Iterable[Mapping[str, Any]], folder: str) -> list[str]:
    """Return what is wrong with the files that are named: missing, a private key, or not of the type."""
    wrong = [
        f"{one['ca_file']} is no certificate in PEM"
        for one in registries
        if one.get("ca_file") and "BEGIN CERTIFICATE" not in _text(one["ca_file"], folder)
    ]
    for one in signed_by:
        for name in one["key_files"]:
            text = _text(name, folder)
            if "PRIVATE KEY" in text:
                wrong.append(f"{name} holds a private key")
            elif BEGINS[one.get("type") or "sigstore"] not in text:
                wrong.append(f"{name} is no public key of the type {one.get('type') or 'sigstore'}")
    return wrong


def registry_trust_policy(keys: Iterable[Mapping[str, str]], unsigned: Sequence[str]) -> dict[str, Any]:
    """Return containers-policy.json(5): nothing is accepted but what is named, and what is in the host's own store already."""
    scopes: dict[str, Any] = {scope: [{"type": "insecureAcceptAnything"}] for scope in unsigned}
    for one in keys:
        if one["type"] == "gpg":
            scopes[one["scope"]] = [{"type": "signedBy", "keyType": "GPGKeys", "keyPath": one["path"]}]
        else:
            # cosign signs a repository and a digest, no tag; podman's own signatures fit this as well.
            identity = {"type": "matchRepository"}
            scopes[one["scope"]] = [{"type": "sigstoreSigned", "keyPath": one["path"], "signedIdentity": identity}]
    # An image of the store was judged when it was pulled, or built here; without this, nothing could be pushed.
    store = {"": [{"type": "insecureAcceptAnything"}]}
    return {"default": [{"type": "reject"}], "transports": {"docker": scopes, "containers-storage": store}}


def registry_trust_signatures(keys: Iterable[Mapping[str, str]], lookaside: str) -> dict[str, Any]:
    """Return containers-registries.d(5): where the signatures of each scope lie. `sigstore` is what podman 3 called a lookaside."""
    kinds = {"gpg": {"lookaside": lookaside, "sigstore": lookaside}, "sigstore": {"use-sigstore-attachments": True}}
    return {"docker": {one["scope"]: kinds[one["type"]] for one in keys}}


def _text(name: str, folder: str) -> str:
    """Return the text of a file on the controller; nothing where there is none."""
    if not name:
        return ""
    try:
        return Path(folder, name).read_text("utf-8", "replace")
    except OSError:
        return ""


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {name: value for name, value in globals().items() if name.startswith("registry_trust_")}
