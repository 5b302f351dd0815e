"""What Kubespray has to run: nothing where nothing changed, a worker alone, the full play for those who serve; and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.errors import PlanError
from primus_bootstrap.kubernetes.course import State, choose, refuse_removal, state_from_json, state_of, without

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


def state(control: list[str], workers: list[str], **more: Any) -> State:
    """Return its state."""
    return state_of(listed(control, workers, **more), "commit")


def playbooks(commands: tuple[Command, ...]) -> list[tuple[str, str]]:
    """Return playbook and limit of each."""
    return [(command.playbook, command.limit) for command in commands]


THREE = ["cp1", "cp2", "cp3"]
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
    """Every worker is told where the API servers are; the same when one has left."""
    assert playbooks(choose(BEFORE, state([*THREE, "cp4"], ["w1", "w2"]), ("cp4",)).commands) == [("cluster.yml", "")]
    assert playbooks(choose(BEFORE, state(["cp1", "cp2"], ["w1", "w2"]), ALL).commands) == [("cluster.yml", "")]


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
