"""TLS settings of JuiceFS clients for the group `redis`, for old and new versions of the program."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.test_role_templates import render

CA = "/etc/juicefs/redis-ca.crt"
REDIS = {"juicefs_redis_address": "10.0.0.1", "juicefs_redis_tls": True, "juicefs_redis_ca_file": "ca.crt", "inventory_dir": "/site"}


def files(version: str, **variables: Any) -> tuple[str, str]:
    """Return the unit and the environment file of a client."""
    known = {**REDIS, "juicefs_version": version, "juicefs_sha256": "0" * 64, **variables}
    known["ansible_facts"] = {"os_family": "Debian", "architecture": "x86_64"}
    return render("juicefs", "juicefs.service.j2", **known), render("juicefs", "secrets.env.j2", **known)


@pytest.mark.parametrize("version", ["1.1.0", "1.3.1", "1.4.2"])
def test_url_names_the_authority(version: str) -> None:
    """From 1.1 on the URL contains it; the object store uses the system's authorities. A change restarts the mount."""
    unit, environment = files(version)

    assert f"rediss://10.0.0.1:6379/1?tls-ca-cert-file={CA} /jfs" in unit
    assert f"juicefs.service {CA} > /run/juicefs-applied" in unit
    assert "SSL_CERT_FILE" not in environment


@pytest.mark.parametrize(("own", "trusted"), [("", CA), ("/etc/ssl/site.pem", "/etc/ssl/site.pem")])
def test_old_version_gets_the_authority_from_the_environment(own: str, trusted: str) -> None:
    """Versions before 1.1 reject a URL with options. The site's own list of authorities has priority."""
    unit, environment = files("0.14.2", juicefs_ca_file=own)

    assert "rediss://10.0.0.1:6379/1 /jfs" in unit
    assert f"SSL_CERT_FILE={trusted}\n" in environment


@pytest.mark.parametrize(("version", "by_file"), [("1.3.1", False), ("1.4.2", True)])
def test_new_password_needs_no_restart_from_1_4_on(version: str, *, by_file: bool) -> None:
    """The environment names a file that a reload reads. Older versions read the password at start only."""
    unit, environment = files(version, juicefs_redis_password="hidden-password-0001")

    assert ("META_PASSWORD_FILE=/etc/juicefs/meta-password\n" in environment) == by_file
    assert ("META_PASSWORD=hidden-password-0001\n" in environment) != by_file
    assert ("/run/juicefs-password" in unit) == by_file


@pytest.mark.parametrize("other", [{"juicefs_redis_tls": False}, {"juicefs_meta_url": "postgres://jfs@db:5432/jfs"}])
def test_other_engines_get_no_authority(other: dict[str, Any]) -> None:
    """Without TLS in the group, or with another engine, URL and unit do not name the file."""
    unit, environment = files("1.3.1", **other)

    assert CA not in unit + environment


@pytest.mark.parametrize(("version", "can"), [("0.14.2", False), ("1.1.0", False), ("1.2.0", True), ("1.4.2", True)])
def test_reload_hands_over_the_mount_from_1_2_on(version: str, *, can: bool) -> None:
    """A second process starts beside the running one. Older units cannot be reloaded."""
    unit, _ = files(version)
    start = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    reloads = [line for line in unit.splitlines() if line.startswith("ExecReload=")]

    assert bool(reloads) == can
    # files/juicefs_reload.sh starts the new process with the same program.
    assert not can or reloads[0].endswith(start.partition("juicefs_mount.sh")[2])
