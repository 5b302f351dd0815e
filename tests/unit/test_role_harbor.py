"""Role `harbor`: conflicts between variables, defaults of entries and weak secrets."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.inventory.ansible.role_filters import load_filters

HARBOR = load_filters("harbor")
RIGHT: dict[str, Any] = {
    "harbor_hostname": "harbor.example.com",
    "harbor_storage_class": "juicefs",
    "harbor_database_storage_class": "local-path",
}

# Nothing that needs a volume, apart from the scanner.
OUTSIDE: dict[str, Any] = {
    "harbor_storage_class": "",
    "harbor_database_storage_class": "",
    "harbor_s3_bucket": "images",
    "harbor_database_host": "pg.example.com",
    "harbor_redis_addresses": ["redis.example.com:6379"],
}


@pytest.mark.parametrize(
    ("stated", "rules"),
    [
        ({}, []),
        ({"harbor_storage_class": ""}, ["harbor-storage-class"]),
        ({"harbor_storage_class": "", "harbor_s3_bucket": "images"}, []),
        ({"harbor_storage_class": "", "harbor_database_storage_class": "", "harbor_s3_bucket": "images"}, ["harbor-storage-class"]),
        ({**OUTSIDE, "harbor_trivy": False}, []),
        (OUTSIDE, ["harbor-storage-class"]),
        ({"harbor_redis_addresses": ["redis1"]}, ["harbor-redis"]),
        ({"harbor_redis_addresses": ["redis1:6379", "redis2:6379"]}, ["harbor-redis"]),
        ({"harbor_redis_addresses": ["s1:26379", "[fd00::2]:26379"], "harbor_redis_sentinel": "primary"}, []),
        ({"harbor_redis_sentinel": "primary"}, ["harbor-redis"]),
        ({"harbor_database_storage_class": ""}, ["harbor-database-on-juicefs"]),
        ({"harbor_expose": "route"}, ["harbor-gateway"]),
        ({"harbor_tls_cert_file": "a"}, ["harbor-certificate"]),
        ({"harbor_tls_cert_file": "a", "harbor_tls_key_file": "b", "harbor_tls_issuer": "c"}, ["harbor-certificate"]),
        ({"harbor_projects": [{"name": "a"}, {"name": "a"}]}, ["harbor-twice"]),
        ({"harbor_projects": [{"name": "A"}]}, ["harbor-name"]),
        ({"harbor_trivy": False, "harbor_projects": [{"name": "a", "block_severity": "low"}]}, ["harbor-scan"]),
        ({"harbor_trivy_offline": True, "harbor_projects": [{"name": "a", "block_severity": "low"}]}, ["harbor-trivy-database"]),
        ({"harbor_trivy_offline": True, "harbor_projects": [{"name": "a"}]}, []),
        (
            {"harbor_trivy_offline": True, "harbor_trivy_databases": "r/x", "harbor_projects": [{"name": "a", "block_severity": "low"}]},
            [],
        ),
        ({"harbor_gc_cron": "30 0 3 * * 6"}, ["harbor-cron"]),
        ({"harbor_nodes_robot": "nodes"}, ["harbor-nodes-robot"]),
        ({"harbor_nodes_robot": "nodes", "harbor_robots": [{"name": "nodes"}]}, []),
    ],
)
def test_each_conflict_is_reported(stated: dict[str, Any], rules: list[str]) -> None:
    """Each conflict has a rule; valid values have no finding."""
    found = HARBOR.findings({**RIGHT, **stated}, "juicefs", issuer=True)

    assert [rule for _, _, _, rule in found] == rules


def test_certificate_is_required_without_an_issuer() -> None:
    """Harbor is never served without TLS."""
    assert [rule for _, _, _, rule in HARBOR.findings(RIGHT, "", issuer=False)] == ["harbor-certificate"]


def test_weak_secrets_are_reported_and_not_shown() -> None:
    """Harbor would reject them at the end of the run."""
    assert HARBOR.weak_secrets([{"name": "a", "secret": "nocapital1"}, {"name": "b", "secret": "Good-secret-1"}, {"name": "c"}]) == [
        "a",
        "c",
    ]


def test_secret_of_the_nodes_robot_is_passed_on() -> None:
    """Without this robot, nodes get the certificate authority only."""
    robots = [{"name": "a", "secret": "A"}, {"name": "nodes", "secret": "N"}]

    assert [HARBOR.secret_of(robots, name) for name in ("nodes", "")] == ["N", ""]


@pytest.mark.parametrize(("variable", "defaults"), [("harbor_projects", "PROJECT"), ("harbor_robots", "ROBOT")])
def test_defaults_of_entries_equal_the_spec(variable: str, defaults: str) -> None:
    """The code and the reference manual list the same defaults."""
    path = content.roles_dir() / "harbor" / "meta" / "argument_specs.yml"
    options = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]["main"]["options"][variable]["options"]

    assert {name: one["default"] for name, one in options.items() if "default" in one} == getattr(HARBOR, defaults)
