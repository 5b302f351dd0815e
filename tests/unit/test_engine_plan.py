"""Plans from the phases of `site.yml` and the hosts, and the errors of impossible plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from primus_bootstrap.core.errors import PrimusError
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.playbooks import groups_in, load_phases
from tests.unit.engine_rig import make_cluster, write_playbooks

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.inventory.cluster import Cluster

PLAY = "---\n- name: Play\n  hosts: {hosts}\n  roles: [{roles}]\n"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a cluster with five hosts and four phases, one of them without hosts."""
    phases = {
        "preflight": PLAY.format(hosts="all", roles="preflight"),
        "gpu": PLAY.format(hosts="gpu_node", roles="gpu_driver, gpu_env"),
        "storage": PLAY.format(hosts="redis", roles="redis") + PLAY.format(hosts="juicefs_client", roles="juicefs")[4:],
        "verify": PLAY.format(hosts="all:!redis", roles="verify_all"),
    }
    playbooks = write_playbooks(tmp_path, phases)
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    groups = {"gpu_node": ["g1", "g2", "g3", "g4"], "etcd": ["c1"], "k8s_cluster": ["c1", "g1"], "rack1": ["g1"]}
    return make_cluster(tmp_path, groups)


def test_steps_are_in_the_order_of_site_yml_and_without_empty_phases(cluster: Cluster) -> None:
    """Each step has playbook, hosts, roles and reason; a phase without hosts is omitted."""
    plan = make_plan(cluster)

    assert [(step.phase, step.playbook, step.hosts, step.roles) for step in plan.steps] == [
        ("preflight", "preflight.yml", ("g1", "g2", "g3", "g4", "c1"), ("preflight",)),
        ("gpu", "gpu.yml", ("g1", "g2", "g3", "g4"), ("gpu_driver", "gpu_env")),
        ("verify", "verify.yml", ("g1", "g2", "g3", "g4", "c1"), ("verify_all",)),
    ]
    assert plan.steps[1].why == "gpu_node: g1, g2, g3, … (4 hosts)"


def test_groups_that_no_phase_uses_are_listed(cluster: Cluster) -> None:
    """`etcd` has a host and no phase. Groups without a service and the user's own groups are not listed."""
    assert make_plan(cluster).uncovered == ("etcd",)


def test_limit_keeps_inventory_order_and_drops_empty_steps(cluster: Cluster) -> None:
    """Only hosts of the limit stay, in the order of hosts.yaml; a step without hosts is omitted."""
    plan = make_plan(cluster, limit="g3,c1,g1")

    assert plan.hosts == ("g1", "g3", "c1")
    assert [step.phase for step in make_plan(cluster, limit="c1").steps] == ["preflight", "verify"]


def test_phases_stay_in_the_order_of_site_yml(cluster: Cluster) -> None:
    """The order of the arguments does not matter."""
    assert [step.phase for step in make_plan(cluster, phases=("verify", "gpu")).steps] == ["gpu", "verify"]


def test_start_skips_earlier_phases(cluster: Cluster) -> None:
    """`--from gpu` selects gpu and all later phases."""
    assert [step.phase for step in make_plan(cluster, start="gpu").steps] == ["gpu", "verify"]


@pytest.mark.parametrize(
    ("arguments", "what", "fix"),
    [
        ({"phases": ("gpuu",)}, "no such phase: gpuu", "did you mean gpu? choose from: preflight, gpu, storage, verify"),
        ({"start": "zzz"}, "no such phase: zzz", "choose from: preflight, gpu, storage, verify"),
        ({"limit": "gpu_nodes"}, "the limit matches no host: gpu_nodes", "did you mean gpu_node?"),
        (
            {"phases": ("storage",)},
            "nothing to do: these phases have no host",
            "add a host to one of these groups in hosts.yaml: redis, juicefs_client",
        ),
        ({"phases": ("preflight",), "start": "gpu"}, "nothing to do: preflight comes before gpu", "remove --phase or --from"),
    ],
)
def test_an_impossible_plan_is_an_error_with_a_fix(cluster: Cluster, arguments: dict[str, object], what: str, fix: str) -> None:
    """The problem and the alternatives; the exit code is 3 for a plan without hosts, and 2 for a wrong command line."""
    with pytest.raises(PrimusError) as caught:
        make_plan(cluster, **arguments)  # type: ignore[arg-type]

    assert caught.value.exit_code == (3 if "no host" in what and "limit" not in what else 2)
    assert caught.value.what.startswith(what)
    assert caught.value.fix == fix


def test_roles_are_read_from_every_section_of_a_play(tmp_path: Path) -> None:
    """pre_tasks, roles, tasks with blocks, and imported playbooks, in the order in which Ansible runs them."""
    play = "---\n- name: P\n  hosts: [a, b]\n  any_errors_fatal: true\n  tasks:\n"
    play += "    - block:\n        - ansible.builtin.import_role: {name: two}\n"
    play += "  roles:\n    - {role: one, tags: [x]}\n  pre_tasks:\n    - import_role: {name: zero}\n- import_playbook: more.yml\n"
    playbooks = write_playbooks(tmp_path, {"first": play})
    (playbooks / "more.yml").write_text(PLAY.format(hosts="c", roles="three"), encoding="utf-8")

    (phase,) = load_phases(playbooks)

    assert phase.roles == ("zero", "one", "two", "three")
    assert phase.patterns == ("a,b", "c")
    assert [play.stops_all for play in phase.plays] == [True, False]


def test_groups_in_a_pattern() -> None:
    """Operators, slices and excluded groups are removed."""
    assert groups_in("gpu_node[0:3]:&rack1,!etcd") == ("gpu_node", "rack1")
