"""How a client of JuiceFS comes to trust the authority of the group `redis`, new and old versions of the program."""

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
def test_the_url_names_the_authority(version: str) -> None:
    """From 1.1 on the URL carries it, so the authorities of the object store stay those of the system; a new one restarts the mount."""
    unit, environment = files(version)

    assert f"rediss://10.0.0.1:6379/1?tls-ca-cert-file={CA} /jfs" in unit
    assert f"juicefs.service {CA} > /run/juicefs-applied" in unit
    assert "SSL_CERT_FILE" not in environment


@pytest.mark.parametrize(("own", "trusted"), [("", CA), ("/etc/ssl/site.pem", "/etc/ssl/site.pem")])
def test_an_old_program_gets_it_by_its_environment(own: str, trusted: str) -> None:
    """Before 1.1 a URL with an option is refused by the program; the site's own list of authorities goes first."""
    unit, environment = files("0.14.2", juicefs_ca_file=own)

    assert "rediss://10.0.0.1:6379/1 /jfs" in unit
    assert f"SSL_CERT_FILE={trusted}\n" in environment


@pytest.mark.parametrize(("version", "by_file"), [("1.3.1", False), ("1.4.2", True)])
def test_a_new_password_ends_no_mount_where_the_program_can_read_it_again(version: str, *, by_file: bool) -> None:
    """From 1.4 on the environment names a file, which a reload reads; before, the password itself is what a start has read."""
    unit, environment = files(version, juicefs_redis_password="hidden-password-0001")

    assert ("META_PASSWORD_FILE=/etc/juicefs/meta-password\n" in environment) == by_file
    assert ("META_PASSWORD=hidden-password-0001\n" in environment) != by_file
    assert ("/run/juicefs-password" in unit) == by_file


@pytest.mark.parametrize("other", [{"juicefs_redis_tls": False}, {"juicefs_meta_url": "postgres://jfs@db:5432/jfs"}])
def test_another_engine_gets_no_authority(other: dict[str, Any]) -> None:
    """Where the group's Redis speaks no TLS, or another engine is stated, neither URL nor unit names the file."""
    unit, environment = files("1.3.1", **other)

    assert CA not in unit + environment


@pytest.mark.parametrize(("version", "can"), [("0.14.2", False), ("1.1.0", False), ("1.2.0", True), ("1.4.2", True)])
def test_a_mount_is_taken_over_where_the_program_can(version: str, *, can: bool) -> None:
    """From 1.2 on a reload starts the stated command line beside the one that runs; before, the unit cannot be reloaded."""
    unit, _ = files(version)
    start = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    reloads = [line for line in unit.splitlines() if line.startswith("ExecReload=")]

    assert bool(reloads) == can
    # The program that starts the mount starts the one that takes it over too: files/juicefs_reload.sh.
    assert not can or reloads[0].endswith(start.partition("juicefs_mount.sh")[2])
