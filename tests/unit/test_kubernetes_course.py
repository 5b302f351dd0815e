"""What Kubespray has to run: nothing where nothing changed, a worker alone, the full play for those who serve; and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.kubernetes import commands
from primus_bootstrap.kubernetes.reconcile import ClusterState, choose, refuse_recovery, refuse_removal, state_from_json, state_of, without

if TYPE_CHECKING:
    from primus_bootstrap.kubernetes.commands import Command


def listed(control: list[str], workers: list[str], *, version: str = "1.34.2", **variables: Any) -> dict[str, Any]:
    """Return what `ansible-inventory --list` prints of a small cluster; `host__name` sets a variable of one host."""
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
    """Return its state."""
    return state_of(listed(control, workers, **more), "commit")


def taken_out(before: ClusterState, host: str) -> ClusterState:
    """Return what `node/kubernetes.yml` notes of a host that it took out, as it is read back."""
    return state_from_json(json.loads(json.dumps(without(before, host).to_json())))


def playbooks(course: tuple[Command, ...]) -> list[tuple[str, str]]:
    """Return playbook and limit of each."""
    return [(command.playbook, command.limit) for command in course]


THREE = ["cp1", "cp2", "cp3"]
RENEWED = ("upgrade-cluster.yml", "etcd,kube_control_plane")
BEFORE = state(THREE, ["w1", "w2"])
ALL = ("cp1", "cp2", "cp3", "w1", "w2", "w3", "cp4")


def test_a_first_run_makes_the_cluster() -> None:
    """Nothing is known of a run before: the full play, for everybody."""
    assert playbooks(choose(None, BEFORE, ALL).commands) == [("cluster.yml", "")]


def test_a_first_run_without_all_hosts_is_refused() -> None:
    """Kubespray needs facts of every host, and a host that is lost has none."""
    with pytest.raises(PlanError, match="w2 did not get here"):
        choose(None, BEFORE, ("cp1", "cp2", "cp3", "w1"))


def test_an_unchanged_cluster_runs_nothing() -> None:
    """Unless the full play is asked for."""
    assert choose(BEFORE, state(THREE, ["w1", "w2"]), ALL).commands == ()
    assert playbooks(choose(BEFORE, BEFORE, ALL, whole=True).commands) == [("cluster.yml", "")]


def test_what_is_not_kubesprays_is_no_change() -> None:
    """Our own variables, labels, how nodes are drained and the way to a host never cost a run of Kubespray."""
    told = {"redis_password": "x", "node_labels": {"a": "b"}, "ansible_host": "10.0.0.9", "drain_timeout": "900s"}
    now = state(THREE, ["w1", "w2"], **{f"w1__{name}": value for name, value in told.items()})

    assert choose(BEFORE, now, ALL).commands == ()


def test_a_new_worker_is_brought_alone() -> None:
    """It and the first control plane are asked, and it is changed."""
    chosen = choose(BEFORE, state(THREE, ["w1", "w2", "w3"]), ("w3",), unknown=("w3",))

    assert playbooks(chosen.commands) == [("playbooks/facts.yml", "w3,kube_control_plane[0]"), ("scale.yml", "w3")]
    assert set(chosen.state.hosts) == {"cp1", "cp2", "cp3", "w1", "w2", "w3"}


def test_a_new_worker_fetches_by_itself_unless_hosts_cannot() -> None:
    """A limited run has no play that fills the controller's cache, so nothing could be handed out of it."""
    told: dict[str, Any] = {"cp1__download_localhost": True}
    alone = choose(BEFORE, state(THREE, ["w1", "w2", "w3"]), ALL)
    handed = choose(state(THREE, ["w1", "w2"], **told), state(THREE, ["w1", "w2", "w3"], **told), ALL)

    assert [course.commands[-1].variables for course in (alone, handed)] == [{"download_run_once": False}, {}]


def test_a_run_for_one_node_leaves_other_changes_to_a_later_one() -> None:
    """A variable of another host changed as well: it is neither touched nor noted as done."""
    now = state(THREE, ["w1", "w2", "w3"], w1__kubelet_max_pods=50)

    chosen = choose(BEFORE, now, ("w3",))

    assert playbooks(chosen.commands)[1:] == [("scale.yml", "w3")]
    assert playbooks(choose(chosen.state, now, ALL).commands) == [("cluster.yml", "")]


def test_a_changed_host_is_limited_where_others_are_lost() -> None:
    """The full play goes to those that are there."""
    now = state(THREE, ["w1", "w2"], w1__kubelet_max_pods=50)

    assert playbooks(choose(BEFORE, now, ("cp1", "cp2", "cp3", "w1")).commands) == [("cluster.yml", "cp1,cp2,cp3,w1")]


def test_a_new_control_plane_needs_the_full_play() -> None:
    """Every worker is told where the API servers are; one that is a member of etcd as well is named to all API servers."""
    alone = {"etcd": {"hosts": ["cp1", "cp2", "cp3"]}}
    before = state_of(listed(THREE, ["w1"]) | alone, "commit")
    now = state_of(listed([*THREE, "cp4"], ["w1"]) | alone, "commit")

    assert choose(before, now, ("cp4",)).commands == commands.add_control_plane()
    assert choose(BEFORE, state([*THREE, "cp4"], ["w1", "w2"]), ("cp4",)).commands == commands.add_etcd_member()
    assert playbooks(commands.add_etcd_member()) == [("cluster.yml", ""), RENEWED]
    assert commands.add_etcd_member()[0].variables == {"etcd_retries": 10}


def test_those_who_stay_are_told_that_a_member_has_left() -> None:
    """The removal notes it, and the first apply that no longer finds the host in hosts.yaml runs the full play; the next one nothing."""
    before, now = taken_out(BEFORE, "cp3"), state(["cp1", "cp2"], ["w1", "w2"])

    chosen = choose(before, now, ALL)

    assert playbooks(chosen.commands) == [("cluster.yml", ""), RENEWED]
    assert choose(chosen.state, now, ALL).commands == ()


def test_a_control_plane_that_was_no_member_of_etcd_costs_no_second_pass() -> None:
    """API servers do not name each other."""
    alone = {"etcd": {"hosts": ["e1"]}}
    before, now = (state_of(listed(hosts, ["w1", "e1"]) | alone, "commit") for hosts in (THREE, THREE[:2]))

    assert playbooks(choose(taken_out(before, "cp3"), now, ("cp1", "cp2", "w1", "e1")).commands) == [("cluster.yml", "")]


def test_while_a_host_that_was_taken_out_stands_in_hosts_yaml_nobody_is_told() -> None:
    """The full play would name it again. Dead, it costs nothing; a worker may be added; alive, it joins again."""
    before = taken_out(BEFORE, "cp3")
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


def test_a_lost_member_is_replaced_in_one_apply() -> None:
    """The new one joins while a worker is lost: that one is told by the next apply that finds it, and by no other."""
    before, now = taken_out(BEFORE, "cp3"), state(["cp1", "cp2", "cp4"], ["w1", "w2"], cp4__etcd_member_name="etcd4")

    chosen = choose(before, now, ("cp1", "cp2", "cp4", "w1"))

    assert playbooks(chosen.commands) == [("cluster.yml", "cp1,cp2,cp4,w1"), RENEWED]
    assert choose(chosen.state, now, ("cp1", "cp2", "cp4", "w1")).commands == ()
    assert playbooks(choose(chosen.state, now, ALL).commands) == [("cluster.yml", "")]


def test_another_order_that_changes_the_first_needs_the_full_play() -> None:
    """So the first host, alive or lost, can be taken out afterwards; members keep their names, which their order would change."""
    names = {f"cp{number}__etcd_member_name": f"etcd{number}" for number in (1, 2, 3)}
    moved = state(["cp2", "cp3", "cp1"], ["w1", "w2"], **names)
    before = state(THREE, ["w1", "w2"], **names)

    assert playbooks(choose(before, moved, ALL).commands) == [("cluster.yml", "")]
    assert playbooks(choose(before, moved, ("cp2", "cp3", "w1", "w2")).commands) == [("cluster.yml", "cp2,cp3,w1,w2")]
    assert choose(choose(before, moved, ALL).state, moved, ALL).commands == ()
    assert choose(before, state(["cp1", "cp3", "cp2"], ["w1", "w2"], **names), ALL).commands == ()
    with pytest.raises(PlanError, match="cp1 is etcd1 in etcd, and would be etcd3") as caught:
        choose(BEFORE, state(["cp2", "cp3", "cp1"], ["w1", "w2"]), ALL)
    assert "etcd_member_name: etcd1 for cp1, etcd_member_name: etcd2 for cp2" in caught.value.fix


@pytest.mark.parametrize(
    ("control", "workers", "says"),
    [
        (["cp1", "cp2"], ["w1", "w2"], "cp3 no longer stands in kube_control_plane, and Kubespray has not taken it out"),
        (["cp1", "cp2"], ["w1", "w2", "cp3"], "cp3 no longer stands in kube_control_plane"),
        ([*THREE, "w1"], ["w1", "w2"], "w1 is in kube_control_plane now, and in the cluster already"),
    ],
)
def test_hosts_yaml_alone_neither_takes_a_server_out_nor_makes_one(control: list[str], workers: list[str], says: str) -> None:
    """A member would stay in etcd for ever, and a node would not become a control plane: Kubespray takes it out first."""
    with pytest.raises(PlanError, match=says) as caught:
        choose(BEFORE, state(control, workers), ALL)

    assert "playbooks/day2/node/kubernetes.yml -e node=" in caught.value.fix


def test_a_server_that_another_tool_took_out_is_settled_by_the_full_play() -> None:
    """`kubespray_whole` says that it is out."""
    chosen = choose(BEFORE, state(["cp1", "cp2"], ["w1", "w2"]), ALL, whole=True)

    assert playbooks(chosen.commands) == [("cluster.yml", ""), RENEWED]


def test_changed_arguments_reach_the_api_servers() -> None:
    """`cluster.yml` writes their static pods when they join and never again; of a host that is lost nothing is asked."""
    now = state(THREE, ["w1", "w2"], **{f"{host}__kube_apiserver_request_timeout": "2m" for host in THREE})
    command = commands.renew_api_servers(lost=("cp3",))[0]

    assert playbooks(choose(BEFORE, now, ALL).commands) == [("cluster.yml", ""), RENEWED]
    assert playbooks(choose(BEFORE, now, ("cp1", "cp2", "w1", "w2")).commands)[1] == ("upgrade-cluster.yml", "etcd,kube_control_plane,!cp3")
    assert command.variables == {"drain_nodes": False, "system_upgrade": False}


def test_a_worker_that_left_needs_nothing() -> None:
    """It was taken out by a verb of its own, and is no longer noted."""
    chosen = choose(BEFORE, state(THREE, ["w1"]), ALL)

    assert chosen.commands == ()
    assert "w2" not in chosen.state.hosts


def test_another_version_is_refused() -> None:
    """The full play would replace kubelets under running jobs."""
    with pytest.raises(PlanError, match=r"from 1\.34\.2 to 1\.35\.4") as caught:
        choose(BEFORE, state(THREE, ["w1", "w2"], version="1.35.4"), ALL)

    assert "upgrade kubernetes" in caught.value.fix


def test_a_new_first_control_plane_is_refused() -> None:
    """New ones are appended; a new first one would make a cluster of its own."""
    with pytest.raises(PlanError, match="kube_control_plane begins with cp4"):
        choose(BEFORE, state(["cp4", *THREE], ["w1", "w2"]), ALL)


@pytest.mark.parametrize(("host", "words"), [("cp1", "first host of kube_control_plane"), ("x", "no host of this Kubernetes")])
def test_what_kubespray_cannot_take_out_is_refused(host: str, words: str) -> None:
    """The first control plane, and hosts that are none of the cluster's."""
    with pytest.raises(PlanError, match=words):
        refuse_removal(BEFORE, host)


def test_a_recovery_that_would_lose_etcds_data_is_refused() -> None:
    """Kubernetes 1.35 has etcd 3.6, which v2.31's recovery cannot restore."""
    refuse_recovery(BEFORE)
    with pytest.raises(PlanError, match=r"Kubernetes 1\.35\.4 has etcd 3\.6") as caught:
        refuse_recovery(state(THREE, ["w1"], version="1.35.4"))

    assert "primus-bootstrap restore etcd" in caught.value.fix


def test_the_last_two_members_stay() -> None:
    """One of two etcd members alone has no majority."""
    with pytest.raises(PlanError, match="no majority"):
        refuse_removal(state(["cp1", "cp2"], ["w1"]), "cp2")

    refuse_removal(BEFORE, "cp3")


def test_a_state_survives_its_file_and_holds_no_value() -> None:
    """What is kept are sums: no secret of an inventory comes into the folder by it."""
    secret = state(THREE, ["w1"], w1__kube_encrypt_token="hunter2")

    assert state_from_json(secret.to_json()) == secret
    assert "hunter2" not in str(secret.to_json())
    assert "w1" not in without(secret, "w1").hosts
    assert without(secret, "w1").groups["kube_node"] == ()
