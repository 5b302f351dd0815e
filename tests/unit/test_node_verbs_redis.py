"""`node add`, `node remove` and `node replace` of hosts of the group redis: allowed while sentinels can replace the primary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from primus_bootstrap import content
from primus_bootstrap.engine.plan import TargetHost, make_plan
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.inventory.rules.day2_nodes import FAILOVER_HOSTS
from tests.role_variables import trusted
from tests.unit.test_node_verbs import CLUSTER, refused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def cluster_with(tmp_path: Path, count: int) -> Path:
    """Write a cluster with this number of hosts in the group redis; return its hosts.yaml."""
    names = [f"kv{number}" for number in range(1, count + 1)]
    text = CLUSTER.replace("{kv1: , kv2: }", "{" + ", ".join(f"{name}: " for name in names) + "}")
    more = "".join(f"    {name}: {{ansible_host: 127.0.0.4{name[2:]}}}\n" for name in names[2:])
    path = tmp_path / "hosts.yaml"
    path.write_text(text.replace("    odd9: {", f"{more}    odd9: {{", 1), encoding="utf-8")
    return path


def leaving_groups(members: Sequence[str], host: str) -> list[str]:
    """Return the groups for which playbooks/day2/node/leaving.yml refuses the removal of a host of redis."""
    play = yaml.safe_load((content.playbooks_dir() / "day2/node/leaving.yml").read_text(encoding="utf-8"))[0]
    known = {"node": host, "groups": {"redis": list(members)}, "hostvars": {host: {"group_names": ["redis"]}}}
    found: list[str] = Templar(loader=DataLoader(), variables={**trusted(play["vars"]), **known}).template(
        trust_as_template("{{ _serves }}")
    )
    return found


ASKS = "--confirm small"


@pytest.mark.parametrize(
    ("count", "words", "fix"),
    [
        (4, ["remove", "kv4"], ASKS),
        (4, ["remove", "kv1"], ASKS),
        (3, ["remove", "kv3"], "kv3 NEW; or add a host first: primus-bootstrap node add "),
        (2, ["remove", "kv2"], "delete kv2 from redis"),
        (3, ["replace", "kv3", "kv9", "--host", "127.0.0.99"], ASKS),
        (2, ["replace", "kv2", "kv9", "--host", "127.0.0.99"], "delete kv2 from redis"),
        (3, ["add", "kv9", "--groups", "redis", "--host", "127.0.0.99"], "--yes"),
        (2, ["add", "kv9", "--groups", "redis", "--host", "127.0.0.99"], "then: primus-bootstrap apply"),
        (3, ["add", "kv9", "--groups", "redis,slurm_controller", "--host", "127.0.0.99"], "then: primus-bootstrap apply"),
        (2, ["replace", "kv2", "kv2"], "restore its data"),
    ],
)
def test_hosts_of_redis_change_while_three_stay(tmp_path: Path, count: int, words: Sequence[str], fix: str) -> None:
    """An allowed change asks for its confirmation; another one is refused with what to do."""
    hosts = cluster_with(tmp_path, count)
    before = hosts.read_text(encoding="utf-8")
    error = refused(words[0], hosts, *words[1:])

    assert fix in error.fix
    assert hosts.read_text(encoding="utf-8") == before


def test_what_is_lost_with_two_hosts_is_said(tmp_path: Path) -> None:
    """Two hosts have no automatic failover."""
    error = refused("remove", cluster_with(tmp_path, 3), "kv2", "--confirm", "small")

    assert error.what.endswith("with 2 left, nothing replaces a failed primary of the metadata engine")


def test_a_removal_contacts_the_other_hosts_only_if_the_host_is_one_of_redis(tmp_path: Path) -> None:
    """The leaving host is stopped, then the sentinels of the others forget it."""
    cluster = load_cluster(cluster_with(tmp_path, 4))
    plans = {name: make_plan(cluster, playbook="day2/remove_node.yml", target=TargetHost(name)) for name in ("kv4", "odd9")}
    hosts = {name: [step.hosts for step in plan.steps if step.phase == "redis"] for name, plan in plans.items()}

    assert hosts == {"kv4": [("kv4", "kv1", "kv2", "kv3")], "odd9": []}


@pytest.mark.parametrize("count", [2, 3, 4])
def test_playbook_and_verb_need_the_same_number_of_hosts(count: int) -> None:
    """leaving.yml lets a host of redis go if the rule of the verb does, and the role has sentinels from the same number on."""
    allowed = "redis" not in leaving_groups([f"kv{number}" for number in range(count)], "kv0")
    failover = yaml.safe_load((content.roles_dir() / "redis/vars/main.yml").read_text(encoding="utf-8"))["_redis_failover"]

    assert allowed == (count - 1 >= FAILOVER_HOSTS)
    assert f">= {FAILOVER_HOSTS}" in failover


def test_a_host_that_has_left_can_leave_again() -> None:
    """A run that failed on another host is repeated. The switch of the primary needs a file that the first run removed."""
    tasks = yaml.safe_load((content.roles_dir() / "redis/tasks/leave.yml").read_text(encoding="utf-8"))
    (switch,) = [task["ansible.builtin.command"] for task in tasks if "ansible.builtin.command" in task]
    script = (content.roles_dir() / "redis/templates/switch.sh.j2").read_text(encoding="utf-8")

    assert f". {switch['removes']}\n" in script
    assert switch["removes"] in tasks[-1]["loop"]
