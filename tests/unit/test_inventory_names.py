"""Known names of variables and groups, and suggestions for misspelt ones."""

from __future__ import annotations

import pytest

from primus_bootstrap.inventory.schema import names
from primus_bootstrap.inventory.schema.groups import load_groups


@pytest.mark.parametrize(
    "name",
    [
        "ansible_host",
        "ansible_user",
        "ansible_port",
        "ansible_ssh_common_args",
        "ansible_ssh_private_key_file",
        "ansible_become_method",
        "ansible_become_password",
        "ansible_python_interpreter",
        "ansible_perl_interpreter",
        "ansible_connection",
        "ansible_shell_executable",
        "ansible_group_priority",
        "kube_pods_subnet",
        "ip",
        "cluster_name",
        "host_key",
        "baseline_timezone",
        "site_anything",
        "peers",
        "local_as",
        "cluster_id",
        "calico_rr_id",
        "calico_group_id",
        "coredns_external_zones",
        "etcd_digest_checksum",
    ],
)
def test_known_variable(name: str) -> None:
    """Variables of roles, Kubespray and Ansible, and those with the user's own prefix, are known."""
    assert names.is_known_variable(name)


@pytest.mark.parametrize("name", ["ansible_distribution", "ansible_winrm_path", "inventory_hostname", "colour", "Site_x", "hosts"])
def test_unknown_variable(name: str) -> None:
    """Facts and magic variables are not variables of hosts.yaml."""
    assert not names.is_known_variable(name)


def test_variable_of_an_earlier_release_names_the_new_one_or_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renamed variable is not suggested by similarity, and a removed one says why."""
    earlier = {"renamed": {"redis_prot": "redis_bind_port"}, "removed": {"redis_sysfs_root": "the path is fixed"}}
    monkeypatch.setattr(names, "load_earlier_variables", lambda: earlier)

    assert names.explain_unknown_variable("redis_prot") == ("redis_prot has a new name", "rename it to redis_bind_port")
    assert names.explain_unknown_variable("redis_sysfs_root") == ("redis_sysfs_root was removed: the path is fixed", "delete it")


def test_old_name_of_a_variable_of_ansible_names_the_new_one() -> None:
    """It is not suggested by similarity."""
    assert names.explain_unknown_variable("ansible_sudo") == ("ansible_sudo has a new name", "rename it to ansible_become")


def test_suggested_name_of_an_own_variable_is_a_name() -> None:
    """Other characters than letters, digits and `_` are replaced."""
    assert "rename it to site_x_lab_values if" in names.explain_unknown_variable("x-lab-values")[1]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("gpu_nodes", "gpu_node"),
        ("gpu-node", "gpu_node"),
        ("Kube_Node", "kube_node"),
        ("kube_control_plan", "kube_control_plane"),
        ("kube-master", "kube_control_plane"),
        ("slurm_master", "slurm_controller"),
        ("ectd", "etcd"),
        ("kube_contrl_plne", "kube_control_plane"),
        ("slrm_nde", "slurm_node"),
        ("node_gpu", "gpu_node"),
        ("spare1", "spare"),
        ("gpunode", "gpu_node"),
        ("hpc_node", ""),
        ("control_plane", ""),
        ("kube-masters", "kube_control_plane"),
        ("kube_masters", "kube_control_plane"),
        ("slurm-masters", "slurm_controller"),
        ("gpu-node-berlin", ""),
        ("registry", ""),
        ("al", "all"),
        ("hall", ""),
        ("slurmd", ""),
        ("containerd", ""),
        ("train", ""),
        ("workers", ""),
        ("cpu_node", ""),
        ("cpu_nodes", ""),
        ("queue", ""),
        ("etc", ""),
        ("rack01", ""),
        ("gpu_node_berlin", ""),
        ("site_gpu_nodes", ""),
    ],
)
def test_nearest_group(wrong: str, right: str) -> None:
    """A misspelt or old name gives its group; a name of the user's own gives none."""
    assert names.nearest_group(wrong) == right


def test_known_groups_are_their_own_nearest_group() -> None:
    """No known group is suggested for another one."""
    assert {name: names.nearest_group(name) for name in load_groups()} == {name: name for name in load_groups()}
