"""Messages name the inventory as the user did, also if it is not called hosts.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.cli.printed_commands import completed_error
from primus_bootstrap.core.errors import UsageError

if TYPE_CHECKING:
    import pytest

ERROR = UsageError("hosts.yaml has no host n9", fix="pass [hosts.yaml] NAME, or primus-bootstrap status hosts.yaml; see a/hosts.yaml")


def test_a_file_with_another_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notation of arguments and other paths stay."""
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("all:\n")
    found = completed_error(ERROR, Path("my.yaml"))
    default = completed_error(ERROR, Path("hosts.yaml"))

    assert found.what == "my.yaml has no host n9"
    assert found.fix == "pass [hosts.yaml] NAME, or primus-bootstrap status my.yaml; see a/hosts.yaml"
    assert (default.what, default.fix) == (ERROR.what, ERROR.fix)
