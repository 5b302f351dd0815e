"""Role `juicefs_csi`: metadata URLs, conflicts between variables, and verdicts on nodes."""

from __future__ import annotations

from typing import Any

import pytest

from primus_bootstrap.core.verdicts import parse_verdict
from primus_bootstrap.inventory.ansible.role_filters import load_filters

CSI = load_filters("juicefs_csi")
RIGHT = {"juicefs_csi_bucket": "https://s3.example.com/train"}


@pytest.mark.parametrize(
    ("url", "password", "wanted"),
    [
        ("redis://10.0.0.1:6379/1", "p/w@1", "redis://:p%2Fw%401@10.0.0.1:6379/1"),
        ("rediss://h:6379/1?tls-ca-cert-file=/x/ca.crt", "pw", "rediss://:pw@h:6379/1?tls-ca-cert-file=/x/ca.crt"),
        ("postgres://site@h:5432/jfs", "pw", "postgres://site:pw@h:5432/jfs"),
        ("mysql://site:@(h:3306)/jfs", "pw", "mysql://site:pw@(h:3306)/jfs"),
        ("redis://:x@master,h1,h2:26379/1", "pw", "redis://:x@master,h1,h2:26379/1"),
        ("tikv://h1:2379,h2:2379/jfs", "", "tikv://h1:2379,h2:2379/jfs"),
    ],
)
def test_password_is_inserted_into_the_metadata_url(url: str, password: str, wanted: str) -> None:
    """Each engine's URL gets the escaped password between account and host. Without a password it stays."""
    assert CSI.meta_url(url, password) == wanted


@pytest.mark.parametrize(
    ("stated", "redis", "mounted", "rules"),
    [
        ({}, True, "", ["juicefs-csi-bucket"]),
        (RIGHT, False, "", ["juicefs-csi-engine"]),
        ({**RIGHT, "juicefs_csi_meta_url": "sqlite3:///x.db"}, True, "", ["juicefs-csi-engine"]),
        ({**RIGHT, "juicefs_csi_storage": "file"}, True, "", ["juicefs-csi-bucket"]),
        ({**RIGHT, "juicefs_csi_name": "J"}, True, "", ["juicefs-csi-name"]),
        ({**RIGHT, "juicefs_csi_mount_options": ["--buffer-size=1"]}, True, "", ["juicefs-csi-option"]),
        ({**RIGHT, "juicefs_csi_name": "pods"}, True, "jfs", ["juicefs-csi-name"]),
        ({**RIGHT, "juicefs_csi_name": "pods", "juicefs_csi_database": 2}, True, "jfs", []),
        (RIGHT, True, "jfs", []),
        ({**RIGHT, "juicefs_csi_meta_url": "postgres://site@h/jfs"}, False, "", []),
    ],
)
def test_each_conflict_is_reported(stated: dict[str, Any], redis: bool, mounted: str, rules: list[str]) -> None:  # noqa: FBT001
    """Each conflict has a rule; valid values have no finding."""
    assert [rule for _, _, _, rule in CSI.findings(stated, redis, mounted)] == rules


def nodes(ready: dict[str, bool], drivers: dict[str, list[str]]) -> dict[str, Any]:
    """Return the result of kube_list."""
    listed = [
        {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": str(is_ready)}]}}
        for name, is_ready in ready.items()
    ]
    of_csi = [
        {"metadata": {"name": name}, "spec": {"drivers": [{"name": one} for one in names] or None}} for name, names in drivers.items()
    ]
    return {"Node": listed, "CSINode": of_csi}


def test_ready_node_without_the_driver_fails() -> None:
    """The verdict names the node. Nodes that are not ready are ignored."""
    found = nodes({"n1": True, "n2": True, "n3": False}, {"n1": ["csi.juicefs.com"], "n2": []})
    verdict = parse_verdict(CSI.verdicts(found, "cp1")[0])

    assert (verdict.verdict, verdict.reason, verdict.found) == ("fail", "without the driver: n2", "on 1 of 2 ready nodes")
    assert CSI.ready_nodes(found) == ["n1", "n2"]


@pytest.mark.parametrize("found", [nodes({}, {}), nodes({"n1": False}, {}), {"Node": None, "CSINode": None}, {"Node": [], "CSINode": None}])
def test_driver_is_unknown_without_a_ready_node(found: dict[str, Any]) -> None:
    """Applies to no ready node and no answer; the run does not wait for a claim."""
    assert [one["verdict"] for one in CSI.verdicts(found, "cp1")] == ["unknown"]
    assert CSI.ready_nodes(found) == []


def test_all_nodes_with_the_driver_pass() -> None:
    """Each ready node lists it."""
    assert CSI.verdicts(nodes({"n1": True}, {"n1": ["csi.juicefs.com"]}), "cp1")[0]["verdict"] == "pass"
