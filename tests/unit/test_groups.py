"""What `data/groups.yml` and `data/kubespray_variables.yml` promise to their readers."""

from __future__ import annotations

import pytest

from primus_bootstrap.inventory.schema.groups import load_groups, load_kubespray_variables

CHART_GROUPS = (
    "kube_gateway_api", "kube_cert_manager", "kube_prometheus_stack", "juicefs_csi", "higress", "harbor",
    "gpu_operator", "jobset", "trainer", "kueue",
)  # fmt: skip


def test_every_group_says_what_it_means() -> None:
    """A group has an owner that the loader knows and a meaning that is one or more sentences."""
    wrong = [g.name for g in load_groups().values() if g.owner not in ("primus", "kubespray") or not g.meaning.endswith(".")]

    assert wrong == []


def test_group_names_are_ansible_names() -> None:
    """A dash would make a group unreachable as a variable: names are snake_case."""
    assert [name for name in load_groups() if not name.replace("_", "a").isalnum() or not name.islower()] == []


@pytest.mark.parametrize("name", CHART_GROUPS)
def test_chart_groups_say_whom_they_hold(name: str) -> None:
    """The group of a chart tells that it holds the control planes, which is how an operator knows what to write."""
    assert "Add kube_control_plane as its child." in load_groups()[name].meaning


def test_kubespray_groups_are_known() -> None:
    """The groups that Kubespray's playbooks name are known, those of the recovery playbook included."""
    ours = {name for name, group in load_groups().items() if group.owner == "kubespray"}

    assert ours >= {
        "k8s_cluster",
        "kube_control_plane",
        "kube_node",
        "etcd",
        "calico_rr",
        "bastion",
        "broken_etcd",
        "broken_kube_control_plane",
    }


def test_kubespray_variables_hold_defaults_and_host_variables() -> None:
    """Names from roles' defaults, from the sample inventory, and host variables that have no default anywhere are all there."""
    known = load_kubespray_variables()

    assert {"kube_version", "kube_pods_subnet", "registry_host", "ip", "node_labels", "etcd_member_name"} <= known
    assert len(known) > 1660


def test_no_group_is_named_like_a_kubespray_variable() -> None:
    """A group and a variable of one name would make messages about either ambiguous."""
    assert load_kubespray_variables() & set(load_groups()) <= {"calico_rr"}
