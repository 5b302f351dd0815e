"""The checks of `--extra-vars`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.cli.extra_vars import check_extra_vars
from primus_bootstrap.core.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "value",
    [
        "baseline_memlock_kib=1",
        "site_mine=x",
        "ansible_user=root",
        "baseline_swap_off=false",
        "baseline_memlock_kib=1 baseline_swap_off=true",
        "redis_maxmemory_mib='{{ site_size }}'",
        "site_mine=it's",
    ],
)
def test_known_variables_are_accepted(value: str) -> None:
    """These are variables of roles, of Ansible and of the site. Ansible splits words like a shell; a template is left to the run."""
    check_extra_vars(value)


@pytest.mark.parametrize(
    ("value", "what", "fix"),
    [
        (
            "baseline_memlok_kib=1",
            "baseline_memlok_kib: neither a role nor Kubespray nor Ansible has this variable",
            "did you mean baseline_memlock_kib?",
        ),
        ("baseline_memlock_kib=512MB", "baseline_memlock_kib must be a whole number, found `512MB`", "write a whole number, in KiB"),
        ("container_runtime_engine=dokcer", "container_runtime_engine must be one of: ", "did you mean docker?"),
        ("baseline_swap_off=true baseline_memlock_kib=x", "baseline_memlock_kib must be a whole number", "write a whole number"),
        ("nonsense", "neither @FILE nor key=value", "-e @values.yml"),
        ("@/nonexistent.yml", "no such file", "YAML or JSON file"),
    ],
)
def test_a_mistake_is_an_error_with_a_fix(value: str, what: str, fix: str) -> None:
    """A misspelt name, a missing value, a missing file."""
    with pytest.raises(UsageError) as caught:
        check_extra_vars(value)

    assert what in caught.value.what
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("- a\n", "not a mapping"),
        ("a: [1\n", "not valid YAML"),
        ("baseline_memlok_kib: 1\n", "neither a role nor"),
        ("site_a: 1\nbaseline_memlock_kib: x\n", "values.yml:2: "),
    ],
)
def test_a_file_is_checked(tmp_path: Path, text: str, what: str) -> None:
    """A list, invalid YAML and a misspelt name are errors; a file that Vault encrypts is not read."""
    file = tmp_path / "values.yml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        check_extra_vars(f"@{file}")
    file.write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    check_extra_vars(f"@{file}")

    assert what in caught.value.what


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """With the line of each. The value of a secret is not shown."""
    file = tmp_path / "values.yml"
    file.write_text("baseline_memlok_kib: 1\nbaseline_swap_off: maybe\nredis_password: [hunter2]\n")
    with pytest.raises(UsageError) as caught:
        check_extra_vars(f"@{file}")

    assert str(caught.value).count("  fix: ") == 3
    assert "values.yml:2: baseline_swap_off must be true or false, found `maybe`" in caught.value.what
    assert "hunter2" not in str(caught.value)
