"""`storage migrate`: the groups that it needs, and the hosts of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.cli.main import main
from primus_bootstrap.cli.storage_verbs import PLAYBOOK
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = {"redis": "kv1", "juicefs_store": "st0", "object_store": "st1", "juicefs_client": "gpu1"}

SECRETS = ("redis_password", "object_store_secret_key", "juicefs_store_password")


def write_hosts(folder: Path, groups: dict[str, str]) -> Path:
    """Write a hosts.yaml with one host in each group."""
    path = folder / "hosts.yaml"
    children = "".join(f"    {group}: {{hosts: {{{host}: }}}}\n" for group, host in groups.items())
    secrets = "".join(f"    {name}: \"{{{{ lookup('ansible.builtin.env', 'SECRET') }}}}\"\n" for name in SECRETS)
    path.write_text(f"all:\n  vars:\n    cluster_name: prod\n{secrets}  children:\n{children}", encoding="utf-8")
    return path


@pytest.mark.parametrize("missing", ["juicefs_store", "object_store", "juicefs_client"])
def test_a_missing_group_ends_the_verb(tmp_path: Path, missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is asked or run."""
    path = write_hosts(tmp_path, {group: host for group, host in GROUPS.items() if group != missing})

    with pytest.raises(SystemExit) as ended:
        main(["storage", "migrate", str(path), "--confirm", "prod"])

    assert ended.value.code == 3
    assert f"the group {missing} has no host" in capsys.readouterr().err


def test_a_wrong_name_ends_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files of another cluster are not moved."""
    with pytest.raises(SystemExit) as ended:
        main(["storage", "migrate", str(write_hosts(tmp_path, GROUPS)), "--confirm", "test"])

    assert ended.value.code == 2
    assert "the cluster's name is prod, not test" in capsys.readouterr().err


def test_the_plan_has_the_stores_the_clients_and_the_metadata_engine(tmp_path: Path) -> None:
    """The former store is read over sftp; nothing runs on its host."""
    plan = make_plan(load_cluster(write_hosts(tmp_path, GROUPS)), playbook=PLAYBOOK)

    assert set(plan.hosts) == {"kv1", "st1", "gpu1"}
