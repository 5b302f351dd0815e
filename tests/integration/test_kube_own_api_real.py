"""Test the role `kubespray`: the API server that a control plane uses, and the server address for new hosts."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.playbooks import run_playbook

if TYPE_CHECKING:
    from pathlib import Path

ADMIN = """apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: QQ==
    server: https://10.0.0.1:6443
  name: kubernetes
users:
- name: kubernetes-admin
  user: {client-key-data: Ug==}
"""
# The last word is the path of what is read.
KUBECTL = """#!/bin/sh
for word; do :; done
case "$*" in
  *patch*) printf '%s\\n' "$*" >> {folder}/patched; echo patched ;;
  *) cat {folder}/${{word##*/}} ;;
esac
"""


def config_maps(address: str) -> dict[str, dict[str, Any]]:
    """Return the ConfigMaps of kubeadm with this address of the first control plane."""
    endpoint = yaml.safe_dump({"kind": "ClusterConfiguration", "controlPlaneEndpoint": f"{address}:6443", "kubernetesVersion": "v1.35.4"})
    joining = yaml.safe_dump({"clusters": [{"name": "", "cluster": {"server": f"https://{address}:6443"}}]})
    return {
        "kubeadm-config": {"metadata": {"namespace": "kube-system", "name": "kubeadm-config"}, "data": {"ClusterConfiguration": endpoint}},
        "cluster-info": {"metadata": {"namespace": "kube-public", "name": "cluster-info"}, "data": {"kubeconfig": joining}},
    }


class Site:
    """Two control planes as folders of this machine; cp1 was the first one, and cp2 is the first one in hosts.yaml."""

    def __init__(self, folder: Path, **told: Any) -> None:
        """Write hosts.yaml, the files of each host, and its kubectl."""
        self.folder = folder
        local = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
        hosts = {}
        for name, address in (("cp2", "10.0.0.2"), ("cp1", "10.0.0.1")):
            home = folder / name
            (home / "manifests").mkdir(parents=True)
            (home / "admin.conf").write_text(ADMIN, encoding="utf-8")
            (home / "admin.conf").chmod(0o600)
            (home / "root.conf").write_text(ADMIN, encoding="utf-8")
            (home / "manifests/kube-apiserver.yaml").write_text(f"    - --advertise-address={address}\n", encoding="utf-8")
            (home / "kubectl").write_text(KUBECTL.format(folder=folder), encoding="utf-8")
            (home / "kubectl").chmod(0o755)
            hosts[name] = {"kube_config_dir": str(home), "bin_dir": str(home)}
        children = {"kube_control_plane": {"hosts": dict.fromkeys(hosts)}}
        tree = {"all": {"vars": {**local, "cluster_name": "demo", **told}, "hosts": hosts, "children": children}}
        (folder / "hosts.yaml").write_text(json.dumps(tree), encoding="utf-8")

    def play(self, tasks: str) -> str:
        """Run a tasks file of the role on both hosts; return the line of cp2 in the recap."""
        role = {"name": "Do it", "ansible.builtin.import_role": {"name": "kubespray", "tasks_from": tasks}}
        provider = {"kubespray_provider": "{{ kubernetes_provider | default('kubespray') }}"}
        play = {"name": "Look", "hosts": "kube_control_plane", "gather_facts": False, "vars": provider, "tasks": [role]}
        (self.folder / "play.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
        copies = json.dumps({"_kubespray_admin_copy": "{{ kube_config_dir }}/root.conf"})
        done = run_playbook(self.folder / "hosts.yaml", self.folder / "play.yml", "-e", copies)
        assert done.returncode == 0, done.stdout + done.stderr
        return next(line for line in done.stdout.splitlines() if line.startswith("cp2 ") and "ok=" in line)

    def servers(self) -> list[str]:
        """Return the servers in admin.conf and in root's copy on cp2."""
        texts = [(self.folder / "cp2" / name).read_text(encoding="utf-8") for name in ("admin.conf", "root.conf")]
        return [yaml.safe_load(text)["clusters"][0]["cluster"]["server"] for text in texts]

    def keep(self, found: dict[str, dict[str, Any]]) -> None:
        """Set the ConfigMaps of the API."""
        for name, one in found.items():
            (self.folder / name).write_text(json.dumps(one), encoding="utf-8")

    def patched(self) -> str:
        """Return the patches."""
        path = self.folder / "patched"
        return path.read_text(encoding="utf-8") if path.is_file() else ""


def test_each_control_plane_uses_its_own_api_server(tmp_path: Path) -> None:
    """admin.conf and root's copy get the local address, the mode stays, and a second run changes nothing."""
    site = Site(tmp_path, kube_apiserver_port=7443)
    first, second = site.play("own_api"), site.play("own_api")

    assert site.servers() == ["https://127.0.0.1:7443"] * 2
    assert ["changed=2" in first, "changed=0" in second] == [True, True], first + second
    assert (tmp_path / "cp2/admin.conf").stat().st_mode & 0o777 == 0o600
    assert "client-key-data: Ug==" in (tmp_path / "cp2/admin.conf").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "told",
    [
        {"loadbalancer_apiserver": {"address": "10.0.0.9", "port": 6443}},
        {"kubernetes_provider": "existing", "ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1},
    ],
    ids=["a load balancer", "machines of somebody else, which are not contacted"],
)
def test_other_addresses_stay(tmp_path: Path, told: dict[str, Any]) -> None:
    """The address of a load balancer is not changed."""
    site = Site(tmp_path, **told)
    site.keep(config_maps("10.0.0.1"))

    assert "changed=0" in site.play("before_join")
    assert site.servers() == ["https://10.0.0.1:6443"] * 2
    assert site.patched() == ""


def test_new_hosts_join_at_the_current_first_control_plane(tmp_path: Path) -> None:
    """The address in both ConfigMaps of kubeadm is updated before Kubespray adds a host."""
    site = Site(tmp_path)
    site.keep(config_maps("10.0.0.1"))
    site.play("before_join")
    patched = site.patched()
    site.keep(config_maps("10.0.0.2"))

    assert [word in patched for word in ("https://10.0.0.2:6443", "controlPlaneEndpoint: 10.0.0.2:6443", "kubernetesVersion")] == [True] * 3
    assert len(patched.splitlines()) == 2
    assert "changed=0" in site.play("before_join")
    assert site.patched() == patched


def test_missing_cluster_is_not_an_error(tmp_path: Path) -> None:
    """Without a cluster, or without an answer, nothing is changed."""
    site = Site(tmp_path)
    for name in ("admin.conf", "root.conf", "manifests/kube-apiserver.yaml"):
        (tmp_path / "cp2" / name).unlink()

    assert "changed=0" in site.play("before_join")
