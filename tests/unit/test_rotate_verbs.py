"""`secrets rotate`: which hosts a secret concerns, the order, and what is refused. Contacts no host."""

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
from tests.unit.test_role_templates import trusted

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
def test_a_secret_concerns_those_who_use_it(secret: str, hosts: set[str]) -> None:
    """Every secret that the verb knows has a playbook with these hosts."""
    assert set(make_plan(load_cluster(LAB), playbook=f"day2/rotate/{secret}.yml").hosts) == hosts


def redis_vars(csi: list[str], url: str | None = None, **more: Any) -> dict[str, Any]:
    """Return what playbooks/vars/redis.yml passes for a cluster with one client, whose pods' volumes have these hosts."""
    stated = trusted(yaml.safe_load((content.playbooks_dir() / "vars/redis.yml").read_text(encoding="utf-8")))
    hosts = {
        name: {"inventory_hostname": name, **({} if url is None else {"juicefs_csi_meta_url": url})} for name in ("r1", "c1", "k1", "k2")
    }
    groups = {"redis": ["r1"], "juicefs_client": ["c1"], **({"juicefs_csi": csi} if csi else {})}
    templar = Templar(loader=DataLoader(), variables={**stated, "groups": groups, "hostvars": hosts, "inventory_hostname": "r1", **more})
    return {name: templar.template(stated[name]) for name in ("redis_clients", "redis_keep_former")}


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
def test_a_former_password_stays_while_pods_may_hold_it(csi: list[str], url: str | None, clients: list[str], *, keep: bool) -> None:
    """Mounts in pods keep the password that they began with; forgetting it would cut off every volume at once."""
    found = redis_vars(csi, url)
    said = redis_vars(csi, url, rotate_interrupt="true")

    assert (found["redis_clients"], found["redis_keep_former"]) == (clients, keep)
    assert said == {**found, "redis_keep_former": False}, "who says so has let every pod begin anew"


@pytest.mark.parametrize("name", ["storage.yml", "day2/rotate/redis.yml"])
def test_new_mounts_of_pods_have_the_new_password_before_the_former_one_goes(name: str) -> None:
    """The Secret is written before a play that may forget; and that play has the host which wrote it, to see whether it failed."""
    plays = yaml.safe_load((content.playbooks_dir() / name).read_text(encoding="utf-8"))
    pods = [
        number
        for number, play in enumerate(plays)
        if str(play.get("ansible.builtin.import_playbook", "")).endswith("kubernetes/volumes.yml")
    ]
    forgets = [number for number, play in enumerate(plays) if "tasks_from': 'forget'" in str(play)]

    assert len(pods) == len(forgets) == 1
    assert pods < forgets
    assert "juicefs_csi[0]" in plays[forgets[0]]["hosts"]


def test_verb_and_playbook_know_the_same_secrets() -> None:
    """The list in rotate_secret.yml is that of the files beside it."""
    stated = yaml.safe_load(PLAYBOOK.read_text())[0]["vars"]["_rotated"]

    assert sorted(stated) == list(rotatable())
