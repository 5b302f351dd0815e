"""`secrets rotate`: the hosts of each secret and the order of the playbooks."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from primus_bootstrap import content
from primus_bootstrap.cli.rotate_verbs import rotatable
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.inventory.load import load_cluster
from tests.role_variables import trusted

LAB = content.topologies_dir() / "lab/hosts.yaml"
PLAYBOOK = content.playbooks_dir() / "day2/rotate_secret.yml"


@pytest.mark.parametrize(
    ("secret", "hosts"),
    [
        ("munge", {"node1", "node2", "node3"}),
        ("redis", {"node1", "node2", "node3"}),
        ("mariadb", {"node1"}),
        ("registry", {"node1", "node2", "node3"}),
        ("gateway", {"node1"}),
        ("monitoring", {"node1", "node2", "node3"}),
        ("certificates", {"node1", "node2", "node3"}),
    ],
)
def test_a_secret_is_distributed_to_the_hosts_that_use_it(secret: str, hosts: set[str]) -> None:
    """The playbook of each secret has these hosts."""
    assert set(make_plan(load_cluster(LAB), playbook=f"day2/rotate/{secret}.yml").hosts) == hosts


def redis_vars(csi: list[str], url: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the variables of playbooks/vars/redis.yml for a cluster with one client and these hosts in juicefs_csi."""
    stated = trusted(yaml.safe_load((content.playbooks_dir() / "vars/redis.yml").read_text(encoding="utf-8")))
    hosts = {
        name: {"inventory_hostname": name, **({} if url is None else {"juicefs_csi_meta_url": url})} for name in ("r1", "c1", "k1", "k2")
    }
    groups = {"redis": ["r1"], "juicefs_client": ["c1"], **({"juicefs_csi": csi} if csi else {})}
    templar = Templar(loader=DataLoader(), variables={**stated, "groups": groups, "hostvars": hosts, "inventory_hostname": "r1", **more})
    return {name: templar.template(stated[name]) for name in ("redis_clients", "redis_keep_old_password")}


@pytest.mark.parametrize(
    ("csi", "url", "clients", "keep"),
    [
        ([], None, ["c1"], False),
        (["k1", "k2"], None, ["c1", "k1"], True),
        (["k1"], "", ["c1", "k1"], True),
        (["k1"], "redis://10.0.0.1:6379/1", ["c1", "k1"], True),
        (["k1"], "postgres://db/jfs", ["c1"], False),
    ],
)
def test_the_old_password_stays_valid_while_pods_may_use_it(csi: list[str], url: str | None, clients: list[str], *, keep: bool) -> None:
    """Mounts in pods use the password of their start. Removing it would disconnect all volumes at once."""
    found = redis_vars(csi, url)
    interrupting = redis_vars(csi, url, rotate_interrupt="true")

    assert (found["redis_clients"], found["redis_keep_old_password"]) == (clients, keep)
    assert interrupting == {**found, "redis_keep_old_password": False}, "with --interrupt all pods have restarted"


@pytest.mark.parametrize("name", ["storage.yml", "day2/rotate/redis.yml"])
def test_new_mounts_of_pods_get_the_new_password_before_the_old_one_is_removed(name: str) -> None:
    """The Secret is written before the play that removes the old password; that play includes the host that wrote the Secret."""
    plays = yaml.safe_load((content.playbooks_dir() / name).read_text(encoding="utf-8"))
    pods = [
        number
        for number, play in enumerate(plays)
        if str(play.get("ansible.builtin.import_playbook", "")).endswith("kubernetes/volumes.yml")
    ]
    forgets = [number for number, play in enumerate(plays) if "tasks_from': 'remove_old_password'" in str(play)]

    assert len(pods) == len(forgets) == 1
    assert pods < forgets
    assert "juicefs_csi[0]" in plays[forgets[0]]["hosts"]


def test_former_keys_of_the_object_store_are_removed_after_all_clients_were_checked() -> None:
    """The store accepts both keys until a play over all clients, which one failed client ends, has verified the mounts."""
    plays = yaml.safe_load((content.playbooks_dir() / "day2/rotate/object_store.yml").read_text(encoding="utf-8"))
    own = [play for play in plays if "hosts" in play]
    keeps = ["object_store_keep_former_keys" in str(play) for play in own]

    assert [play["hosts"] for play in own] == ["object_store", "juicefs_client", "juicefs_client", "object_store"]
    assert keeps == [True, False, False, False]
    assert own[2]["any_errors_fatal"]
    assert [task["ansible.builtin.import_role"]["tasks_from"] for task in own[2]["tasks"]] == ["all_clients", "verify"]


def test_verb_and_playbook_have_the_same_secrets() -> None:
    """The list in rotate_secret.yml equals the files in its folder `rotate/`."""
    stated = yaml.safe_load(PLAYBOOK.read_text())[0]["vars"]["_rotated"]

    assert sorted(stated) == list(rotatable())
