# ruff: noqa: INP001 (Ansible loads it by path)
"""Filter `oci_registry_findings`: conflicts between variables of the role `oci_registry`. `validate` uses `findings`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# The variables that `findings` reads. The caller omits those that only a run can resolve.
VARIABLES = (
    "oci_registry_storage",
    "oci_registry_s3_bucket",
    "oci_registry_tls_cert_file",
    "oci_registry_tls_key_file",
    "oci_registry_username",
)


def findings(hosts: Sequence[str], values: Mapping[str, Any], accounts: Iterable[str]) -> list[tuple[str, str, str, str]]:
    """Return each conflict as variable or group, message, fix and rule name."""
    found = []
    if len(hosts) > 1:
        what = f"oci_registry has {len(hosts)} hosts ({', '.join(hosts)}), which would store different images"
        found.append(("oci_registry", what, "keep one host in the group", "registry-one-host"))
    if values.get("oci_registry_storage") == "s3" and values.get("oci_registry_s3_bucket", "") == "":
        what = "oci_registry_storage is s3 and there is no bucket"
        found.append(("oci_registry_storage", what, "set oci_registry_s3_bucket", "registry-bucket"))
    certificate, key = (values.get(f"oci_registry_tls_{kind}_file", "") for kind in ("cert", "key"))
    if (certificate == "") != (key == ""):
        missing, present = ("cert", "key") if certificate == "" else ("key", "cert")
        what = f"oci_registry_tls_{present}_file is set without oci_registry_tls_{missing}_file"
        fix = "set both, or neither to use the registry's own certificate authority"
        found.append((f"oci_registry_tls_{present}_file", what, fix, "registry-tls"))
    names = [values.get("oci_registry_username", ""), *accounts]
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        what = f"the registry has several accounts named {', '.join(twice)}"
        found.append(("oci_registry_accounts", what, "give each its own name in oci_registry_accounts", "registry-account-twice"))
    return found


def oci_registry_findings(hosts: Sequence[str], values: Mapping[str, Any], accounts: Iterable[str]) -> list[tuple[str, str]]:
    """Return each conflict with its fix."""
    return [(what, fix) for _, what, fix, _ in findings(hosts, values, accounts)]


class FilterModule:
    """The filters, as Ansible loads them."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"oci_registry_findings": oci_registry_findings}
