"""`secrets init`: generated values under Ansible's own Vault, nothing overwritten, nothing shown."""

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
    """The variables of one role that has secrets."""
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
    """A new password file."""
    path = tmp_path / "state" / "vault-password"
    create_password_file(path)
    return path


def test_password_file_is_private_and_out_of_git(password: Path) -> None:
    """Only the owner may read it, it is long, and the folder that was made for it ignores itself in git."""
    assert stat.S_IMODE(password.stat().st_mode) == 0o600
    assert stat.S_IMODE(password.parent.stat().st_mode) == 0o700
    assert len(password.read_text().strip()) >= 43
    assert (password.parent / ".gitignore").read_text() == "*\n"


def test_password_file_is_never_replaced(password: Path) -> None:
    """A password that seals something must not be lost."""
    before = password.read_text()
    with pytest.raises(PlanError):
        create_password_file(password)

    assert password.read_text() == before


def test_existing_values_and_comments_stay(tmp_path: Path, options: dict[str, Option], password: Path) -> None:
    """A second time only what is missing is added; the user's own lines are kept as they are."""
    path, vault = tmp_path / "vault.yml", password_of(password)
    add_secrets(path, [options["demo_key"]], vault)
    before = read_vault_file(path, vault)
    added = add_secrets(path, [options["demo_key"], options["demo_password"]], vault)
    after = read_vault_file(path, vault)

    assert added == ("demo_password",)
    assert after.startswith(before)
    assert "# The password.\ndemo_password: " in after


def test_nothing_to_add_leaves_the_file_alone(tmp_path: Path, options: dict[str, Option], password: Path) -> None:
    """Vault salts what it seals, so even the same text would differ: the file is not written again."""
    path, vault = tmp_path / "vault.yml", password_of(password)
    add_secrets(path, [options["demo_key"]], vault)
    before = path.read_bytes()

    assert add_secrets(path, [options["demo_key"]], vault) == ()
    assert path.read_bytes() == before


def test_plain_text_file_is_refused(tmp_path: Path, options: dict[str, Option], password: Path) -> None:
    """A file that is not sealed would get secrets in plain text: it is refused, with the command that seals it."""
    path = tmp_path / "vault.yml"
    path.write_text("demo_password: mine\n")
    with pytest.raises(PlanError) as caught:
        add_secrets(path, [options["demo_key"]], password_of(password))

    assert "ansible-vault encrypt" in caught.value.fix
    assert path.read_text() == "demo_password: mine\n"


def test_wrong_password_is_refused(tmp_path: Path, options: dict[str, Option], password: Path) -> None:
    """Another password neither opens nor replaces the file, and the message shows no value."""
    path, other = tmp_path / "vault.yml", tmp_path / "other" / "password"
    create_password_file(other)
    add_secrets(path, [options["demo_key"]], password_of(password))
    before = path.read_bytes()
    with pytest.raises(PlanError) as caught:
        add_secrets(path, [options["demo_password"]], password_of(other))

    assert path.read_bytes() == before
    assert "--vault-password-file" in caught.value.fix


def test_missing_password_file_is_refused(tmp_path: Path) -> None:
    """A password file that is not there gives a message, not a traceback."""
    with pytest.raises(InventoryError):
        password_of(tmp_path / "none")


def test_only_text_can_be_generated(tmp_path: Path, options: dict[str, Option], password: Path) -> None:
    """A secret of another type is the user's to write: nothing is written in its place."""
    with pytest.raises(PlanError) as caught:
        add_secrets(tmp_path / "vault.yml", [options["demo_list"]], password_of(password))

    assert "demo_list" in caught.value.what
    assert not (tmp_path / "vault.yml").exists()
