"""Test the choice of Kubespray's commands after a change of hosts.yaml, and the changes that are refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.core.structured import read
from primus_bootstrap.inventory.kubespray_release import load_releases
from primus_bootstrap.kubernetes import commands
from primus_bootstrap.kubernetes.reconcile import ClusterState, choose, refuse_recovery, refuse_removal, state_of, without

if TYPE_CHECKING:
    from primus_bootstrap.kubernetes.commands import Command


def listed(control: list[str], workers: list[str], *, version: str = "1.34.2", **variables: Any) -> dict[str, Any]:
    """Return the output of `ansible-inventory --list` for a small cluster; `host__name` sets a variable of one host."""
    hosts: dict[str, dict[str, Any]] = {host: {"kube_version": version} for host in (*control, *workers)}
    for name, value in variables.items():
        host, _, variable = name.partition("__")
        hosts[host][variable] = value
    return {
        "kube_control_plane": {"hosts": control},
        "etcd": {"children": ["kube_control_plane"]},
        "kube_node": {"hosts": workers},
        "_meta": {"hostvars": hosts},
    }


def state(control: list[str], workers: list[str], **more: Any) -> ClusterState:
    """Return the state of that inventory."""
    return state_of(listed(control, workers, **more), "commit")


def removed(before: ClusterState, host: str) -> ClusterState:
    """Return the saved state after `node/kubernetes.yml` removed a host."""
    return read(ClusterState, json.loads(json.dumps(asdict(without(before, host)))))


def playbooks(course: tuple[Command, ...]) -> list[tuple[str, str]]:
    """Return the playbook and limit of each command."""
    return [(command.playbook, command.limit) for command in course]


THREE = ["cp1", "cp2", "cp3"]
RENEWED = ("upgrade-cluster.yml", "etcd,kube_control_plane")
BEFORE = state(THREE, ["w1", "w2"])
ALL = ("cp1", "cp2", "cp3", "w1", "w2", "w3", "cp4")


def test_first_run_is_the_full_play() -> None:
    """Without a saved state the full play runs for all hosts."""
    assert playbooks(choose(None, BEFORE, ALL).commands) == [("cluster.yml", "")]


def test_older_release_is_refused() -> None:
    """A later release runs the full play; back to an earlier one is refused, because it would install older versions of etcd."""
    old, new = (replace(BEFORE, release=release.commit) for release in load_releases().values())

    assert playbooks(choose(old, new, ALL).commands) == [("cluster.yml", "")]
    with pytest.raises(PlanError, match=r"kubespray_release is v2\.31\.0, but the last run used v2\.32\.0-46dbdd399") as caught:
        choose(new, old, ALL)
    assert caught.value.fix == "set `kubespray_release: v2.32.0-46dbdd399` in hosts.yaml"


def test_first_run_without_all_hosts_is_refused() -> None:
    """The first run fails if a host of the cluster failed before."""
    with pytest.raises(PlanError, match="w2 failed in an earlier phase"):
        choose(None, BEFORE, ("cp1", "cp2", "cp3", "w1"))


def test_unchanged_cluster_runs_nothing() -> None:
    """Without changes there are no commands, unless the full play is requested."""
    assert choose(BEFORE, state(THREE, ["w1", "w2"]), ALL).commands == ()
    assert playbooks(choose(BEFORE, BEFORE, ALL, whole=True).commands) == [("cluster.yml", "")]


def test_other_variables_are_ignored() -> None:
    """Other variables, labels, drain settings and connection variables do not cause a run of Kubespray."""
    told = {"redis_password": "x", "node_labels": {"a": "b"}, "ansible_host": "10.0.0.9", "drain_timeout": "900s"}
    now = state(THREE, ["w1", "w2"], **{f"w1__{name}": value for name, value in told.items()})

    assert choose(BEFORE, now, ALL).commands == ()


def test_new_worker_is_added_alone() -> None:
    """Facts of the worker and the first control plane are gathered, and only the worker is changed."""
    chosen = choose(BEFORE, state(THREE, ["w1", "w2", "w3"]), ("w3",), unknown=("w3",))

    assert playbooks(chosen.commands) == [("playbooks/facts.yml", "w3,kube_control_plane[0]"), ("scale.yml", "w3")]
    assert set(chosen.state.hosts) == {"cp1", "cp2", "cp3", "w1", "w2", "w3"}


def test_new_worker_downloads_files_itself() -> None:
    """download_run_once is false for a limited run, except with download_localhost."""
    told: dict[str, Any] = {"cp1__download_localhost": True}
    alone = choose(BEFORE, state(THREE, ["w1", "w2", "w3"]), ALL)
    handed = choose(state(THREE, ["w1", "w2"], **told), state(THREE, ["w1", "w2", "w3"], **told), ALL)

    assert [course.commands[-1].variables for course in (alone, handed)] == [{"download_run_once": False}, {}]


def test_run_for_one_node_ignores_other_changes() -> None:
    """A changed variable of another host is neither applied nor saved."""
    now = state(THREE, ["w1", "w2", "w3"], w1__kubelet_max_pods=50)

    chosen = choose(BEFORE, now, ("w3",))

    assert playbooks(chosen.commands)[1:] == [("scale.yml", "w3")]
    assert playbooks(choose(chosen.state, now, ALL).commands) == [("cluster.yml", "")]


def test_change_is_limited_to_present_hosts() -> None:
    """With lost hosts the full play is limited to the others."""
    now = state(THREE, ["w1", "w2"], w1__kubelet_max_pods=50)

    assert playbooks(choose(BEFORE, now, ("cp1", "cp2", "cp3", "w1")).commands) == [("cluster.yml", "cp1,cp2,cp3,w1")]


def test_new_control_plane_needs_the_full_play() -> None:
    """A new control plane runs the full play; a new etcd member also updates all API servers."""
    alone = {"etcd": {"hosts": ["cp1", "cp2", "cp3"]}}
    before = state_of(listed(THREE, ["w1"]) | alone, "commit")
    now = state_of(listed([*THREE, "cp4"], ["w1"]) | alone, "commit")

    assert choose(before, now, ("cp4",)).commands == commands.add_control_plane()
    assert choose(BEFORE, state([*THREE, "cp4"], ["w1", "w2"]), ("cp4",)).commands == commands.add_etcd_member()
    assert playbooks(commands.add_etcd_member()) == [("cluster.yml", ""), RENEWED]
    assert commands.add_etcd_member()[0].variables == {"etcd_retries": 10}


def test_removed_member_is_announced_once() -> None:
    """After the removed host left hosts.yaml, one apply runs the full play; the next one runs nothing."""
    before, now = removed(BEFORE, "cp3"), state(["cp1", "cp2"], ["w1", "w2"])

    chosen = choose(before, now, ALL)

    assert playbooks(chosen.commands) == [("cluster.yml", ""), RENEWED]
    assert choose(chosen.state, now, ALL).commands == ()


def test_removed_control_plane_without_etcd_does_not_update_api_servers() -> None:
    """The API servers are updated only after the removal of an etcd member."""
    alone = {"etcd": {"hosts": ["e1"]}}
    before, now = (state_of(listed(hosts, ["w1", "e1"]) | alone, "commit") for hosts in (THREE, THREE[:2]))

    assert playbooks(choose(removed(before, "cp3"), now, ("cp1", "cp2", "w1", "e1")).commands) == [("cluster.yml", "")]


def test_removed_host_in_hosts_yaml_is_not_announced() -> None:
    """While the removed host is in hosts.yaml, a worker can be added; if the host is present, it is added again."""
    before = removed(BEFORE, "cp3")
    there = ("cp1", "cp2", "w1", "w2")
    waiting = choose(before, state(THREE, ["w1", "w2"]), there)
    added = choose(waiting.state, state(THREE, ["w1", "w2", "w3"]), ("w3",))

    assert waiting.commands == ()
    assert playbooks(added.commands)[-1] == ("scale.yml", "w3")
    assert playbooks(choose(added.state, state(THREE[:2], ["w1", "w2", "w3"]), ALL).commands) == [("cluster.yml", ""), RENEWED]
    again = choose(before, state(THREE, ["w1", "w2"]), ALL)
    assert again.commands == commands.add_etcd_member()
    assert again.state == BEFORE
    assert choose(before, state(THREE, ["w1", "w2"]), ("cp1", "cp2", "cp3", "w1")).state.left == {}


def test_lost_member_is_replaced_in_one_apply() -> None:
    """The new member is added while a worker is lost; only the next apply configures that worker."""
    before, now = removed(BEFORE, "cp3"), state(["cp1", "cp2", "cp4"], ["w1", "w2"], cp4__etcd_member_name="etcd4")

    chosen = choose(before, now, ("cp1", "cp2", "cp4", "w1"))

    assert playbooks(chosen.commands) == [("cluster.yml", "cp1,cp2,cp4,w1"), RENEWED]
    assert choose(chosen.state, now, ("cp1", "cp2", "cp4", "w1")).commands == ()
    assert playbooks(choose(chosen.state, now, ALL).commands) == [("cluster.yml", "")]


def test_another_first_host_needs_the_full_play() -> None:
    """Moving the first host runs the full play. A change of the members' names is refused."""
    names = {f"cp{number}__etcd_member_name": f"etcd{number}" for number in (1, 2, 3)}
    moved = state(["cp2", "cp3", "cp1"], ["w1", "w2"], **names)
    before = state(THREE, ["w1", "w2"], **names)

    assert playbooks(choose(before, moved, ALL).commands) == [("cluster.yml", "")]
    assert playbooks(choose(before, moved, ("cp2", "cp3", "w1", "w2")).commands) == [("cluster.yml", "cp2,cp3,w1,w2")]
    assert choose(choose(before, moved, ALL).state, moved, ALL).commands == ()
    assert choose(before, state(["cp1", "cp3", "cp2"], ["w1", "w2"], **names), ALL).commands == ()
    with pytest.raises(PlanError, match="the etcd member etcd1 on cp1 would become etcd3") as caught:
        choose(BEFORE, state(["cp2", "cp3", "cp1"], ["w1", "w2"]), ALL)
    assert "etcd_member_name: etcd1 for cp1, etcd_member_name: etcd2 for cp2" in caught.value.fix


@pytest.mark.parametrize(
    ("control", "workers", "says"),
    [
        (["cp1", "cp2"], ["w1", "w2"], "cp3 is no longer in kube_control_plane, but Kubespray has not removed it"),
        (["cp1", "cp2"], ["w1", "w2", "cp3"], "cp3 is no longer in kube_control_plane"),
        ([*THREE, "w1"], ["w1", "w2"], "w1 was added to kube_control_plane, but is already in the cluster"),
    ],
)
def test_existing_host_cannot_change_its_control_groups(control: list[str], workers: list[str], says: str) -> None:
    """Adding an existing host to a control group, or removing it, is refused."""
    with pytest.raises(PlanError, match=says) as caught:
        choose(BEFORE, state(control, workers), ALL)

    assert "playbooks/day2/node/kubernetes.yml -e node=" in caught.value.fix


def test_full_play_accepts_a_removal_by_another_tool() -> None:
    """With `kubespray_full_run` a missing host counts as removed."""
    chosen = choose(BEFORE, state(["cp1", "cp2"], ["w1", "w2"]), ALL, whole=True)

    assert playbooks(chosen.commands) == [("cluster.yml", ""), RENEWED]


def test_changed_arguments_reach_the_api_servers() -> None:
    """A changed variable of control planes updates the API servers, except on lost hosts."""
    now = state(THREE, ["w1", "w2"], **{f"{host}__kube_apiserver_request_timeout": "2m" for host in THREE})
    command = commands.renew_api_servers(lost=("cp3",))[0]

    assert playbooks(choose(BEFORE, now, ALL).commands) == [("cluster.yml", ""), RENEWED]
    assert playbooks(choose(BEFORE, now, ("cp1", "cp2", "w1", "w2")).commands)[1] == ("upgrade-cluster.yml", "etcd,kube_control_plane,!cp3")
    assert command.variables == {"drain_nodes": False, "system_upgrade": False}


def test_removed_worker_needs_no_run() -> None:
    """A worker that a verb removed needs no run and is removed from the state."""
    chosen = choose(BEFORE, state(THREE, ["w1"]), ALL)

    assert chosen.commands == ()
    assert "w2" not in chosen.state.hosts


def test_another_version_is_refused() -> None:
    """A changed kube_version is refused: the full play would restart kubelets under running jobs."""
    with pytest.raises(PlanError, match=r"from 1\.34\.2 to 1\.35\.4") as caught:
        choose(BEFORE, state(THREE, ["w1", "w2"], version="1.35.4"), ALL)

    assert "upgrade kubernetes" in caught.value.fix


def test_new_first_control_plane_is_refused() -> None:
    """New control planes must be appended."""
    with pytest.raises(PlanError, match="the first host of kube_control_plane, cp4, is new"):
        choose(BEFORE, state(["cp4", *THREE], ["w1", "w2"]), ALL)


@pytest.mark.parametrize(("host", "words"), [("cp1", "first host of kube_control_plane"), ("x", "not a host of this Kubernetes")])
def test_unsupported_removal_is_refused(host: str, words: str) -> None:
    """The first control plane and unknown hosts cannot be removed."""
    with pytest.raises(PlanError, match=words):
        refuse_removal(BEFORE, host)


def test_recovery_with_etcd_3_6_is_refused() -> None:
    """Kubernetes 1.35 uses etcd 3.6, whose data v2.31's recovery cannot restore."""
    refuse_recovery(BEFORE)
    with pytest.raises(PlanError, match=r"Kubernetes 1\.35\.4 uses etcd 3\.6") as caught:
        refuse_recovery(state(THREE, ["w1"], version="1.35.4"))

    assert "primus-bootstrap restore etcd" in caught.value.fix


def test_the_last_two_members_stay() -> None:
    """One of two etcd members cannot be removed."""
    with pytest.raises(PlanError, match="loses its majority"):
        refuse_removal(state(["cp1", "cp2"], ["w1"]), "cp2")

    refuse_removal(BEFORE, "cp3")


def test_saved_state_has_digests_only() -> None:
    """The saved state equals the loaded one and contains no values of variables."""
    secret = state(THREE, ["w1"], w1__kube_encrypt_token="hunter2")

    assert read(ClusterState, asdict(secret)) == secret
    assert "hunter2" not in str(asdict(secret))
    assert "w1" not in without(secret, "w1").hosts
    assert without(secret, "w1").groups["kube_node"] == ()
