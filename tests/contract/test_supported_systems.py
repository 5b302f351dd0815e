"""The documentation promises the systems that preflight accepts without a warning, and no others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap import content

if TYPE_CHECKING:
    from pathlib import Path

DEFAULTS = yaml.safe_load((content.roles_dir() / "preflight" / "defaults" / "main.yml").read_text(encoding="utf-8"))
UNTESTED = re.compile(r"Ubuntu|RHEL|Rocky|AlmaLinux")
# `| tested on | … |`, and `| systems | tested on …; intended for … |`
TESTED = re.compile(r"^\| (?:tested on \||systems \| tested on)(?P<systems>[^;|]*)", re.MULTILINE)


def readmes() -> list[Path]:
    """Return the README of every role that says on which systems it was tested."""
    return sorted(path for path in content.roles_dir().glob("*/README.md") if TESTED.search(path.read_text(encoding="utf-8")))


def test_only_debian_is_accepted_without_a_warning() -> None:
    """The other tests of this file depend on it. Add a system after every role was tested on it."""
    assert DEFAULTS["preflight_supported_os"] == ["debian 12", "debian 13"]
    assert len(readmes()) >= 20


@pytest.mark.parametrize("path", readmes(), ids=lambda path: path.parent.name)
def test_a_role_says_that_it_was_tested_on_supported_systems_only(path: Path) -> None:
    """Systems for which it is only written are in another row or behind a semicolon, with `not tested`."""
    text = path.read_text(encoding="utf-8")
    tested = [match["systems"] for match in TESTED.finditer(text)]
    rows = [line for line in text.splitlines() if re.match(r"\| (tested on|supported|systems) ", line)]

    assert not [part for part in tested if UNTESTED.search(part)]
    assert all("Debian" in part for part in tested)
    assert not [row for row in rows if UNTESTED.search(row) and not re.search(r"not tested|is refused", row)]


def test_the_readme_promises_no_untested_system() -> None:
    """A sentence that names one says that it is not tested."""
    text = (content.content_root() / "README.md").read_text(encoding="utf-8")

    assert not [line for line in text.splitlines() if UNTESTED.search(line) and "not tested" not in line]
