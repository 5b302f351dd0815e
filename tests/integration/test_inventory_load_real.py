"""Loading inventories with files and values that the real `ansible-vault` encrypted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from primus_bootstrap.core.errors import InventoryError
from primus_bootstrap.inventory import find_problems, load_cluster, validate
from tests.unit.inventory_rig import write_inventory
from tests.unit.test_inventory_load import HOSTS

PASSWORD = "correct horse"


def _encrypt(text: str, folder: Path, name: str = "") -> str:
    """Return the output of `ansible-vault` for a text; inline, if `name` is given."""
    password = folder / "password"
    password.write_text(PASSWORD, encoding="utf-8")
    vault = Path(sys.executable).with_name("ansible-vault")
    arguments = ["encrypt_string", "--stdin-name", name] if name else ["encrypt", "--output", "-", "-"]
    command = [str(vault), *arguments, "--vault-password-file", str(password)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=60)
    return str(done.stdout)


def test_encrypted_file_is_deferred_without_password(tmp_path: Path) -> None:
    """An encrypted file is deferred, and the rest of the inventory is checked."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars__all__vault.yml": _encrypt("site_secret: 42\n", tmp_path)})

    result = validate(folder)

    assert result.problems == ()
    assert [(item.variable, item.origin.file) for item in result.deferred if not item.variable] == [
        ("", str(folder / "group_vars/all/vault.yml"))
    ]


def test_encrypted_file_is_read_with_password(tmp_path: Path) -> None:
    """With the password an invalid value is reported on its line and not shown."""
    folder = write_inventory(
        tmp_path / "site", HOSTS, **{"group_vars__all__vault.yml": _encrypt("site_secret: 42\nbaseline_timezone: [hunter2]\n", tmp_path)}
    )

    problems = find_problems(folder, vault_password_file=tmp_path / "password")

    assert [(problem.line, problem.rule) for problem in problems] == [(2, "type")]
    assert "hunter2" not in str(problems[0])


def test_inline_vault_value_is_decrypted_with_password(tmp_path: Path) -> None:
    """The value can be read directly and in the template of another variable."""
    folder = write_inventory(
        tmp_path / "site",
        HOSTS,
        **{"group_vars__all.yml": _encrypt("hunter2", tmp_path, "site_secret") + 'site_copy: "{{ site_secret }}!"\n'},
    )

    variables = load_cluster(folder, ask_vault_pass=PASSWORD).view.variables("gpu01")

    assert variables["site_secret"] == "hunter2"
    assert variables["site_copy"] == "hunter2!"


def test_inline_vault_value_fails_only_when_it_is_read(tmp_path: Path) -> None:
    """Without the password only the value itself raises an error, with its line."""
    folder = write_inventory(
        tmp_path / "site", HOSTS, **{"group_vars__all.yml": "site_a: 1\n" + _encrypt("hunter2", tmp_path, "site_secret")}
    )
    cluster = load_cluster(folder)

    assert cluster.connection("gpu01").user == "ops"
    with pytest.raises(InventoryError) as caught:
        cluster.view.variables("gpu01")["site_secret"]
    (problem,) = caught.value.problems
    assert (problem.line, problem.rule) == (2, "vault-password")


@pytest.mark.parametrize("whole", [True, False], ids=["file", "inline"])
def test_wrong_vault_password_is_reported(tmp_path: Path, whole: bool) -> None:  # noqa: FBT001 - a parameter
    """A wrong password is a problem of the validation, so no run begins."""
    text = _encrypt("site_a: 1\n", tmp_path) if whole else _encrypt("hunter2", tmp_path, "site_secret")
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars__all.yml": text})

    assert [problem.rule for problem in find_problems(folder, ask_vault_pass="wrong")] == ["vault-password"]


def test_vault_password_script_is_run(tmp_path: Path) -> None:
    """An executable password file is run, as by Ansible."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars__all.yml": _encrypt("site_a: 1\n", tmp_path)})
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\necho '{PASSWORD}'\n", encoding="utf-8")
    script.chmod(0o700)

    assert load_cluster(folder, vault_password_file=script).view.variables("gpu01")["site_a"] == 1


def test_address_in_an_encrypted_file_is_not_checked(tmp_path: Path) -> None:
    """Without the password a template that uses an encrypted variable is not a problem."""
    files = {
        "group_vars__all__vault.yml": _encrypt("site_net: 10.0.0\n", tmp_path),
        "host_vars__store1.yml": 'ansible_host: "{{ site_net }}.9"\n',
    }
    folder = write_inventory(tmp_path / "site", HOSTS, **files)

    assert find_problems(folder) == ()
    assert load_cluster(folder, ask_vault_pass=PASSWORD).connection("store1").address == "10.0.0.9"
    with pytest.raises(InventoryError) as caught:
        load_cluster(folder).connection("store1")
    assert caught.value.problems[0].rule == "vault-password"


@pytest.mark.parametrize("password", ["", " "])
def test_empty_vault_password_is_reported(tmp_path: Path, password: str) -> None:
    """An empty password is a wrong password."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars__all.yml": _encrypt("site_a: 1\n", tmp_path)})

    assert [problem.rule for problem in find_problems(folder, ask_vault_pass=password)] == ["vault-password"]
