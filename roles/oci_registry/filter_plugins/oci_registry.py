# ruff: noqa: INP001 (Ansible loads it by path)
"""What the role `oci_registry` decides on the controller: what in hosts.yaml contradicts itself. `validate` asks the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# What the judgement reads; a value that only a run knows is left out by the caller.
VARIABLES = (
    "oci_registry_storage",
    "oci_registry_s3_bucket",
    "oci_registry_tls_cert_file",
    "oci_registry_tls_key_file",
    "oci_registry_username",
)


def findings(hosts: Sequence[str], stated: Mapping[str, Any], accounts: Iterable[str]) -> list[tuple[str, str, str, str]]:
    """Return what contradicts itself: the variable or group it is about, what, its fix, and the rule's name."""
    found = []
    if len(hosts) > 1:
        what = f"oci_registry has {len(hosts)} hosts ({', '.join(hosts)}), which would each hold other images"
        found.append(("oci_registry", what, "keep one host in the group", "registry-one-host"))
    if stated.get("oci_registry_storage") == "s3" and stated.get("oci_registry_s3_bucket", "") == "":
        found.append(
            ("oci_registry_storage", "oci_registry_storage is s3 and no bucket is named", "set oci_registry_s3_bucket", "registry-bucket")
        )
    certificate, key = (stated.get(f"oci_registry_tls_{kind}_file", "") for kind in ("cert", "key"))
    if (certificate == "") != (key == ""):
        lacking, named = ("cert", "key") if certificate == "" else ("key", "cert")
        what = f"oci_registry_tls_{named}_file is set without oci_registry_tls_{lacking}_file"
        found.append(
            (f"oci_registry_tls_{named}_file", what, "set both, or neither for an authority of the registry's own", "registry-tls")
        )
    names = [stated.get("oci_registry_username", ""), *accounts]
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        what = f"the registry has several accounts named {', '.join(twice)}"
        found.append(("oci_registry_accounts", what, "give each a name of its own in oci_registry_accounts", "registry-account-twice"))
    return found


def oci_registry_findings(hosts: Sequence[str], stated: Mapping[str, Any], accounts: Iterable[str]) -> list[tuple[str, str]]:
    """Return what contradicts itself, each with its fix."""
    return [(what, fix) for _, what, fix, _ in findings(hosts, stated, accounts)]


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"oci_registry_findings": oci_registry_findings}
