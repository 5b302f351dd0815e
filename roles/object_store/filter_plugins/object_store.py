# ruff: noqa: INP001 (Ansible loads it by path)
"""Filters of the role `object_store`: the number of copies, the accounts, and conflicts of the variables. `validate` uses `findings`."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Two hosts have no majority if one of them fails.
_LEAST_GROUP = 3
_LEAST_RACKS = 3
_GRPC_OFFSET = 10_000
_MOST_PORT = 65_535
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html, without dots.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
# Variables of `findings`, and of each port its default. The caller omits those that only a run can resolve.
PORTS = {"object_store_port": 8333, "object_store_filer_port": 8335, "object_store_volume_port": 8334, "object_store_master_port": 9333}
VARIABLES = (*PORTS, "object_store_replication", "object_store_access_key", "object_store_buckets")
_SERVICES = {
    "object_store_port": "the S3 gateways",
    "object_store_filer_port": "the names of objects",
    "object_store_volume_port": "the data",
    "object_store_master_port": "the masters",
}


def object_store_replication(racks: Sequence[str]) -> str:
    """Return the replication code for hosts in these racks: copies in other data centers, racks and hosts.

    Copies in two racks need two hosts in each, or three racks: otherwise the loss of one host leaves no place for a new copy.
    """
    if len(racks) < _LEAST_GROUP:
        return "000"
    hosts = Counter(racks)
    has_second_rack = "" not in hosts and len(hosts) > 1
    return "010" if has_second_rack and (len(hosts) >= _LEAST_RACKS or min(hosts.values()) > 1) else "001"


def object_store_grpc_port(port: int) -> int:
    """Return the port of gRPC beside a port (SeaweedFS, weed/pb/server_address.go)."""
    return port + _GRPC_OFFSET


def object_store_identities(accounts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the accounts in the form of the S3 gateway. None may create or delete buckets."""
    return [
        {
            "name": account["name"],
            "credentials": [{"accessKey": account["name"], "secretKey": account["secret_key"]}],
            "actions": [f"{action}:{bucket}" for bucket in account["buckets"] for action in ("List", "Read", "Write", "Tagging")],
        }
        for account in accounts
    ]


def object_store_former(known: Mapping[str, Any], accounts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the identities in the file of the S3 gateway that are not among the accounts."""
    names = {account["name"] for account in accounts}
    return [identity for identity in known.get("identities") or () if identity.get("name") not in names]


def object_store_changed_secrets(known: Mapping[str, Any], accounts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the accounts whose secret key differs from that in the file of the S3 gateway, which knows one secret key for each name."""
    secrets = {key["accessKey"]: key["secretKey"] for identity in known.get("identities") or () for key in identity["credentials"]}
    return [account["name"] for account in accounts if secrets.get(account["name"], account["secret_key"]) != account["secret_key"]]


def findings(hosts: Sequence[str], values: Mapping[str, Any], accounts: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Return each conflict as variable or group, message, fix and rule name."""
    found = []
    if 1 < len(hosts) < _LEAST_GROUP:
        what = f"object_store has {len(hosts)} hosts ({', '.join(hosts)}), which have no majority if one of them fails"
        found.append(("object_store", what, "give the group 1 host, or at least 3", "object-store-hosts"))
    copies = values.get("object_store_replication") or ""
    if copies and sum(map(int, copies)) >= len(hosts):
        what = f"object_store_replication {copies} needs {sum(map(int, copies)) + 1} hosts, and object_store has {len(hosts)}"
        found.append(("object_store_replication", what, "add hosts, or remove object_store_replication", "object-store-replication"))
    return found + _port_findings(values) + _account_findings(values, accounts)


def _port_findings(values: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    ports = {name: values.get(name, default) for name, default in PORTS.items()}
    found = []
    for name, service in _SERVICES.items():
        if not 0 < ports[name] <= _MOST_PORT - _GRPC_OFFSET:
            what = f"{name} is {ports[name]}, and {service} also need the port {_GRPC_OFFSET} above it"
            found.append((name, what, f"set {name} to a port of 1 to {_MOST_PORT - _GRPC_OFFSET}", "object-store-port"))
    for one, other in combinations(ports, 2):
        if common := _used_ports(ports[one]) & _used_ports(ports[other]):
            what = f"{one} and {other} both use port {min(common)}"
            found.append((other, what, f"set {other} to another port", "object-store-port"))
    return found


def _used_ports(port: int) -> set[int]:
    return {port, object_store_grpc_port(port)}


def _account_findings(values: Mapping[str, Any], accounts: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    found = []
    own = {"name": values.get("object_store_access_key", "cluster"), "buckets": values.get("object_store_buckets", ["juicefs"])}
    everyone = [(own, "object_store_buckets"), *((account, "object_store_accounts") for account in accounts)]
    names = Counter(account.get("name") for account, _ in everyone)
    for name in sorted(str(name) for name, count in names.items() if count > 1):
        what = f"the object store has several accounts named {name}"
        found.append(("object_store_accounts", what, "give each its own name in object_store_accounts", "object-store-account-twice"))
    for account, variable in everyone:
        for bucket in account.get("buckets") or ():
            if not _BUCKET.fullmatch(str(bucket)):
                what = f"{bucket} is not a valid name of a bucket"
                fix = f"use 3 to 63 lower-case letters, digits and dashes in {variable}"
                found.append((variable, what, fix, "object-store-bucket"))
    if not own["buckets"]:
        what = "object_store_buckets is empty, so the shared file system has no bucket"
        found.append(("object_store_buckets", what, "name at least one bucket", "object-store-bucket"))
    return found


def object_store_findings(hosts: Sequence[str], values: Mapping[str, Any], accounts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return each conflict with its fix, in one line."""
    return [f"{what}. Fix: {fix}." for _, what, fix, _ in findings(hosts, values, accounts)]


class FilterModule:
    """The filters, as Ansible loads them."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "object_store_changed_secrets": object_store_changed_secrets,
            "object_store_findings": object_store_findings,
            "object_store_former": object_store_former,
            "object_store_grpc_port": object_store_grpc_port,
            "object_store_identities": object_store_identities,
            "object_store_replication": object_store_replication,
        }
