"""The data files `groups.yml` and `kubespray_variables.yml`."""

from __future__ import annotations

import pytest

from primus_bootstrap.inventory.schema.groups import load_groups, load_kubespray_variables

CHART_GROUPS = (
    "kube_gateway_api", "kube_cert_manager", "kube_prometheus_stack", "juicefs_csi", "higress", "harbor",
    "gpu_operator", "jobset", "trainer", "kueue",
)  # fmt: skip


def test_every_group_has_an_owner_and_a_meaning() -> None:
    """The owner is `primus` or `kubespray`, and the meaning is a sentence."""
    wrong = [g.name for g in load_groups().values() if g.owner not in ("primus", "kubespray") or not g.meaning.endswith(".")]

    assert wrong == []


def test_group_names_are_ansible_names() -> None:
    """Names are snake_case; Ansible does not allow dashes."""
    assert [name for name in load_groups() if not name.replace("_", "a").isalnum() or not name.islower()] == []


@pytest.mark.parametrize("name", CHART_GROUPS)
def test_chart_groups_name_their_child(name: str) -> None:
    """The meaning of a chart's group says which child to add."""
    assert "Add kube_control_plane as its child." in load_groups()[name].meaning


def test_kubespray_groups_are_known() -> None:
    """The groups of Kubespray's playbooks are known, including its recovery playbook."""
    known = {name for name, group in load_groups().items() if group.owner == "kubespray"}

    assert known >= {
        "k8s_cluster",
        "kube_control_plane",
        "kube_node",
        "etcd",
        "calico_rr",
        "bastion",
        "broken_etcd",
        "broken_kube_control_plane",
    }


def test_kubespray_variables_are_complete() -> None:
    """The list has variables of roles' defaults, of the sample inventory, and host variables without a default."""
    known = load_kubespray_variables()

    assert {"kube_version", "kube_pods_subnet", "registry_host", "ip", "node_labels", "etcd_member_name"} <= known
    assert len(known) > 1660


def test_kubespray_variables_without_a_default_are_known() -> None:
    """Names that the release only reads are in the list; names of its CI are not."""
    known = load_kubespray_variables()

    assert {"kube_proxy_remove", "kube_proxy_nodeport_addresses_cidr", "cilium_ipsec_enabled"} <= known
    assert {f"local_volume_provisioner_{part}" for part in ("base_dir", "mount_dir", "storage_class")} <= known
    assert known.isdisjoint({"docker_user", "docker_host", "kubevirt_images_push"})


def test_no_group_is_named_like_a_kubespray_variable() -> None:
    """The same name for a group and a variable would make messages ambiguous."""
    assert load_kubespray_variables() & set(load_groups()) <= {"calico_rr"}
