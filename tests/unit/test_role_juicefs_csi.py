"""What the role `juicefs_csi` decides: where metadata are, what contradicts itself, and what is said of nodes."""

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
def test_the_password_comes_where_the_engine_looks_for_it(url: str, password: str, wanted: str) -> None:
    """Each engine's URL gets it between account and host, escaped; a URL without one stays as it is."""
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
def test_what_could_not_work_is_found(stated: dict[str, Any], redis: bool, mounted: str, rules: list[str]) -> None:  # noqa: FBT001
    """Each contradiction has a rule of its own, and what works has none."""
    assert [rule for _, _, _, rule in CSI.findings(stated, redis, mounted)] == rules


def nodes(ready: dict[str, bool], drivers: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Return what two tasks of k8s_info register."""
    listed = [
        {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": str(is_ready)}]}}
        for name, is_ready in ready.items()
    ]
    of_csi = [
        {"metadata": {"name": name}, "spec": {"drivers": [{"name": one} for one in names] or None}} for name, names in drivers.items()
    ]
    return [{"resources": listed}, {"resources": of_csi}]


def test_a_ready_node_without_the_driver_fails() -> None:
    """The node is named; a node that is not ready says nothing."""
    results = nodes({"n1": True, "n2": True, "n3": False}, {"n1": ["csi.juicefs.com"], "n2": []})
    verdict = parse_verdict(CSI.verdicts(results, "cp1")[0])

    assert (verdict.verdict, verdict.reason, verdict.found) == ("fail", "without the driver: n2", "on 1 of 2 ready nodes")
    assert CSI.served(results)


@pytest.mark.parametrize("results", [nodes({}, {}), nodes({"n1": False}, {}), [{"msg": "no answer"}, {"msg": "no answer"}], []])
def test_where_no_node_runs_pods_the_driver_is_unknown(results: list[dict[str, Any]]) -> None:
    """No ready node, and no answer, are neither good nor bad, and no claim is waited for."""
    assert [one["verdict"] for one in CSI.verdicts(results, "cp1")] == ["unknown"]
    assert not CSI.served(results)


def test_every_node_with_the_driver_passes() -> None:
    """Each ready node lists it."""
    assert CSI.verdicts(nodes({"n1": True}, {"n1": ["csi.juicefs.com"]}), "cp1")[0]["verdict"] == "pass"
