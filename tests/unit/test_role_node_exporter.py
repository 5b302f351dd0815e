"""Role `node_exporter`: password hash, unit and verdicts of the verification."""

from __future__ import annotations

from typing import Any

import bcrypt
import pytest

from primus_bootstrap import content
from tests.unit.role_module import load_file, load_role_module
from tests.unit.test_role_templates import render

password: Any = load_file(content.plugins_dir() / "filter" / "web_password.py")
effects: Any = load_role_module("node_exporter", "node_exporter_effects")
NAMES = ("node_uname_info{}", "node_memory_MemTotal_bytes", "node_cpu_seconds_total{}", "node_filesystem_avail_bytes{}")
NUMBERS = "".join(f"{name} 1\n" for name in NAMES) + "node_textfile_scrape_error 0\n"


def test_hash_is_stable_bcrypt() -> None:
    """It matches the right password only. Equal passwords on two hosts have different hashes."""
    password_hash = password.web_password_hash("right-password-0001", "n1 node_exporter")

    assert bcrypt.checkpw(b"right-password-0001", password_hash.encode())
    assert not bcrypt.checkpw(b"right-password-0002", password_hash.encode())
    assert password_hash == password.web_password_hash("right-password-0001", "n1 node_exporter")
    assert password_hash != password.web_password_hash("right-password-0001", "n2 node_exporter")
    assert password_hash.startswith("$2b$10$")


def test_salt_does_not_depend_on_the_password() -> None:
    """It depends on the host only: a salt from the password would permit guessing through a fast hash."""
    first, second = (password.web_password_hash(text, "n1") for text in ("right-password-0001", "other-password-0002"))

    assert first[:29] == second[:29]
    assert first != second


@pytest.mark.parametrize(
    ("text", "numbers", "files"), [(NUMBERS.replace("error 0", "error 1"), "pass", "fail"), ("node_load1 1\n", "fail", "unknown")]
)
def test_missing_metrics_and_unreadable_files_fail(text: str, numbers: str, files: str) -> None:
    """The verdict names a broken text file of another program."""
    service = effects.Service({"host": "n1"}, "node_exporter")
    effects.check_metrics(service, text, "unit")

    assert [one["verdict"] for one in service.verdicts.records] == [numbers, files]


def test_unit_has_the_settings_of_the_host_and_no_password() -> None:
    """A dollar in a pattern is passed unchanged. Ubuntu 22.04 uses the old option name."""
    words: dict[str, Any] = {
        "node_exporter_password": "secret-of-the-test-0123",
        "node_exporter_extra_arguments": ["--collector.netdev.device-exclude=^veth.*$"],
    }
    text = render("node_exporter", "unit.conf.j2", **words)

    assert "--collector.netdev.device-exclude=^veth.*$$" in text
    assert "--web.config.file=/etc/prometheus/node_exporter_web.yml" in text
    assert "secret-of-the-test" not in text
