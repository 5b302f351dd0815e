"""Generated secrets in a Vault file."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from primus_bootstrap.core.errors import InventoryError, PlanError
from primus_bootstrap.inventory.edit.generated_secrets import add_secrets, create_password_file, password_of, read_vault_file
from primus_bootstrap.inventory.schema import names, specs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.inventory.schema.specs import Option

SPEC = """
argument_specs:
  main:
    options:
      demo_key: {type: str, required: true, no_log: true, description: The key. It is long.}
      demo_password: {type: str, required: true, no_log: true, description: The password.}
      demo_list: {type: list, required: true, no_log: true, description: Several.}
"""


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Option]]:
    """Return the variables of a role with secrets."""
    role = tmp_path / "roles" / "demo" / "meta"
    role.mkdir(parents=True)
    (role / "argument_specs.yml").write_text(SPEC)
    monkeypatch.setattr(content, "roles_dir", lambda: tmp_path / "roles")
    specs.load_options.cache_clear()
    names.known_variables.cache_clear()
    yield dict(specs.load_options())
    specs.load_options.cache_clear()
    names.known_variables.cache_clear()


@pytest.fixture
def password(tmp_path: Path) -> Path:
    """Return a new password file."""
    path = tmp_path / "state" / "vault-password"
    create_password_file(path)
    return path


def test_password_file_is_private_and_ignored_by_git(password: Path) -> None:
    """Only its owner can read the file, and its new folder has a .gitignore for all files."""
    assert stat.S_IMODE(password.stat().st_mode) == 0o600
    assert stat.S_IMODE(password.parent.stat().st_mode) == 0o700
    assert len(password.read_text().strip()) >= 43
    assert (password.parent / ".gitignore").read_text() == "*\n"


def test_password_file_is_never_replaced(password: Path) -> None:
    """An existing password may be in use."""
    before = password.read_text()
    with pytest.raises(PlanError):
        create_password_file(password)

    assert password.read_text() == before


def test_existing_values_and_comments_are_kept(tmp_path: Path, options: dict[str, Option], password: Path) -> None:
    """Only missing values are added; other lines stay the same."""
    path, vault = tmp_path / "vault.yml", password_of(password)
    add_secrets(path, [options["demo_key"]], vault)
    before = read_vault_file(path, vault)
    added = add_secrets(path, [options["demo_key"], options["demo_password"]], vault)
    after = read_vault_file(path, vault)

    assert added == ("demo_password",)
    assert after.startswith(before)
    assert "# The password.\ndemo_password: " in after


def test_file_is_not_rewritten_without_a_new_value(tmp_path: Path, options: dict[str, Option], password: Path) -> None:
    """Vault encrypts the same text to different bytes, so a rewrite would change the file."""
    path, vault = tmp_path / "vault.yml", password_of(password)
    add_secrets(path, [options["demo_key"]], vault)
    before = path.read_bytes()

    assert add_secrets(path, [options["demo_key"]], vault) == ()
    assert path.read_bytes() == before


def test_plain_text_file_is_an_error(tmp_path: Path, options: dict[str, Option], password: Path) -> None:
    """Secrets are not added to a file in plain text. The fix has the command that encrypts it."""
    path = tmp_path / "vault.yml"
    path.write_text("demo_password: mine\n")
    with pytest.raises(PlanError) as caught:
        add_secrets(path, [options["demo_key"]], password_of(password))

    assert "ansible-vault encrypt" in caught.value.fix
    assert path.read_text() == "demo_password: mine\n"


def test_wrong_password_is_an_error(tmp_path: Path, options: dict[str, Option], password: Path) -> None:
    """With a wrong password the file stays the same."""
    path, other = tmp_path / "vault.yml", tmp_path / "other" / "password"
    create_password_file(other)
    add_secrets(path, [options["demo_key"]], password_of(password))
    before = path.read_bytes()
    with pytest.raises(PlanError) as caught:
        add_secrets(path, [options["demo_password"]], password_of(other))

    assert path.read_bytes() == before
    assert "--vault-password-file" in caught.value.fix


def test_missing_password_file_is_an_error(tmp_path: Path) -> None:
    """A missing password file raises an InventoryError."""
    with pytest.raises(InventoryError):
        password_of(tmp_path / "none")


def test_only_strings_are_generated(tmp_path: Path, options: dict[str, Option], password: Path) -> None:
    """A secret of another type is an error, and nothing is written."""
    with pytest.raises(PlanError) as caught:
        add_secrets(tmp_path / "vault.yml", [options["demo_list"]], password_of(password))

    assert "demo_list" in caught.value.what
    assert not (tmp_path / "vault.yml").exists()
