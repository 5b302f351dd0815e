"""The real `ansible-vault` decrypts generated secrets."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.inventory.edit.generated_secrets import add_secrets, password_of
from tests.unit.test_secrets import options as options
from tests.unit.test_secrets import password as password

if TYPE_CHECKING:
    from primus_bootstrap.inventory.schema.specs import Option


def test_ansible_vault_decrypts_generated_secrets(tmp_path: Path, options: dict[str, Option], password: Path) -> None:
    """Each value has at least 43 random characters, and only the owner can read the file."""
    path = tmp_path / "group_vars" / "all" / "vault.yml"
    added = add_secrets(path, [options["demo_key"], options["demo_password"]], password_of(password))
    command = [str(Path(sys.executable).with_name("ansible-vault")), "view", "--vault-password-file", str(password), str(path)]
    shown = yaml.safe_load(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)

    assert added == ("demo_key", "demo_password")
    assert path.read_text().startswith("$ANSIBLE_VAULT;1.1;AES256\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert min(len(value) for value in shown.values()) >= 43
    assert shown["demo_key"] != shown["demo_password"]
