"""Test the role kubespray with a real Ansible and the release of kubespray_rig."""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.run import Options, apply_plan
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.kubernetes.cordons import read_cordon_record
from primus_bootstrap.kubernetes.node_marks import is_cordoned
from tests.integration.kubespray_rig import PROGRAMS, Site, api, make_site, playbook
from tests.unit.engine_rig import write_playbooks
from tests.unit.kube_nodes_rig import node

if TYPE_CHECKING:
    from pathlib import Path

LONG = pytest.mark.long("roles/kubespray", "primus_bootstrap/kubernetes", "tests/integration/kubespray_rig.py")
# Ansible starts five times for one run of Kubespray: alone some ten seconds, minutes where many tests share two cores.
pytestmark = pytest.mark.timeout(900)
RENEWED = 'upgrade-cluster.yml -b --limit etcd,kube_control_plane -e {"drain_nodes": false, "system_upgrade": false}'


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a cluster with one control plane and one worker, without a run."""
    made = make_site(tmp_path)
    made.write(["cp1"], ["w1"])
    return made


@LONG
def test_cluster_is_created_once_and_a_worker_is_added(site: Site) -> None:
    """The full play runs once; then nothing; then the facts and the join of the new worker."""
    first = site.play()

    assert first.returncode == 0, first.stdout + first.stderr
    assert "changed=1" in first.stdout
    assert site.calls() == ["cluster.yml -b"]
    assert set(site.done()["hosts"]) == {"cp1", "w1"}
    second = site.play()
    assert "changed=0" in second.stdout
    assert site.calls() == []
    site.write(["cp1"], ["w1", "w2"])
    third = site.play("-e", "node=w2")
    assert third.returncode == 0, third.stdout + third.stderr
    assert site.calls() == [
        "playbooks/facts.yml -b --limit w2,kube_control_plane[0]",
        'scale.yml -b --limit w2 -e {"download_run_once": false}',
    ]
    assert set(site.done()["hosts"]) == {"cp1", "w1", "w2"}


@LONG
def test_removed_etcd_member_is_announced_by_the_next_apply(site: Site) -> None:
    """The removal runs remove-node.yml only; the full play runs after the host left hosts.yaml."""
    site.write(["cp1", "cp2", "cp3"], ["w1"])
    assert site.play().returncode == 0
    site.calls()

    removed = site.play("-e", "node=cp3", tasks="remove")

    assert removed.returncode == 0, removed.stdout + removed.stderr
    variables = '{"node": "cp3", "skip_confirmation": true}'
    assert site.calls() == [f"remove-node.yml -b --limit cp3,kube_control_plane[0],etcd[0] -e {variables}"]
    assert site.done()["left"] == {"cp3": ["kube_control_plane", "etcd"]}
    site.write(["cp1", "cp2", "cp4"], ["w1"])  # the number stays odd
    with api("https://10.0.0.1:6443", site.state / "artifacts/admin.conf", {"cp1": node("cp1")}):
        replaced = site.play()
    assert replaced.returncode == 0, replaced.stdout + replaced.stderr
    assert site.calls() == ['cluster.yml -b -e {"etcd_retries": 10}', RENEWED]
    assert site.done()["left"] == {}


@LONG
def test_interrupted_upgrade_is_finished(site: Site) -> None:
    """Its cordoned Nodes are uncordoned before the next run; other cordons stay, and a lost host is excluded."""
    site.write(["cp1"], ["w1", "w2", "w3"], site_full=["w1"])
    nodes = {name: node(name) for name in ("cp1", "w1", "w3")} | {"w2": node("w2", unschedulable=True)}
    with api("https://10.0.0.1:6443", site.state / "artifacts/admin.conf", nodes):
        failed = site.play(tasks="upgrade")
        left = read_cordon_record(site.state / "cordons.json")
        nodes["w1"]["spec"]["unschedulable"] = True
        site.write(["cp1"], ["w1", "w2", "w3"])
        done = site.play(tasks="upgrade")

    assert failed.returncode != 0
    assert left == {"taking": ["w1"], "unfinished": ["w1", "w2"]}, failed.stdout
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name, one in nodes.items() if is_cordoned(one)] == ["w2"]
    assert not (site.state / "cordons.json").exists()
    assert site.calls()[0] == "playbooks/facts.yml -b --limit all,!w3"


@LONG
def test_new_hosts_use_the_first_control_plane(site: Site) -> None:
    """The role corrects the address of kubeadm after Kubespray; a second run changes nothing."""
    with api("https://10.0.0.77:6443", site.state / "artifacts/admin.conf") as data:
        first = site.play(tasks="main")
        assert first.returncode == 0, first.stdout + first.stderr
        assert "changed=2" in first.stdout
        assert yaml.safe_load(data["kubeconfig"])["clusters"] == [{"name": "it", "cluster": {"server": "https://10.0.0.1:6443"}}]
        second = site.play(tasks="main")

    assert second.returncode == 0, second.stdout + second.stderr
    assert "changed=0" in second.stdout


def test_failed_host_is_reported(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The report and the journal have the cause; no state is saved, so that the next run repeats the play."""
    site.write(["cp1"], ["w1", "w2"], site_full=["w1"])
    (tmp_path / "phases").mkdir()
    playbooks = write_playbooks(tmp_path / "phases", {"kubernetes": playbook("install")})
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    for name, value in site.environment().items():
        monkeypatch.setenv(name, value)
    cluster = load_cluster(tmp_path / "hosts.yaml")

    report = apply_plan(cluster, make_plan(cluster), Options(), on_event=lambda _: None, cancel=threading.Event())

    causes = {host.host: [failure.cause for failure in host.failures] for host in report.hosts}
    assert report.exit_code == 4
    assert "no space left on w1" in causes["w1"]
    assert not any("no space left" in cause for cause in causes["w2"])
    journal = next((tmp_path / ".primus/demo/runs").glob("*/journal.jsonl")).read_text(encoding="utf-8")
    assert "Unpack the images" in journal
    assert "no space left on w1" in journal
    assert site.calls() == ["cluster.yml -b"]
    assert not (site.state / "done.json").exists()


@pytest.mark.long("roles/kubespray", "primus_bootstrap/inventory/snapshot.py", "primus_bootstrap/inventory/plugins")
def test_kubespray_reads_the_snapshot(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker that is added to hosts.yaml during `apply` is neither configured nor saved."""
    before = (tmp_path / "hosts.yaml").read_text(encoding="utf-8")
    site.write(["cp1"], ["w1", "w2"])
    (tmp_path / "hosts.yaml").rename(tmp_path / "later.yaml")
    (tmp_path / "hosts.yaml").write_text(before, encoding="utf-8")
    copy = {"src": str(tmp_path / "later.yaml"), "dest": "{{ inventory_file }}", "mode": "0600"}
    task = {"name": "Edit hosts.yaml, as another command does", "ansible.builtin.copy": copy, "run_once": True}
    edit = [{"name": "Edit", "hosts": "kube_control_plane", "gather_facts": False, "tasks": [task]}]
    (tmp_path / "phases").mkdir()
    playbooks = write_playbooks(tmp_path / "phases", {"edit": yaml.safe_dump(edit), "kubernetes": playbook("install")})
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    for name, value in site.environment().items():
        monkeypatch.setenv(name, value)
    cluster = load_cluster(tmp_path / "hosts.yaml")

    report = apply_plan(cluster, make_plan(cluster), Options(), on_event=lambda _: None, cancel=threading.Event())

    assert report.exit_code == 0, report
    assert "w2" in load_cluster(tmp_path / "hosts.yaml").groups["kube_node"]
    assert set(site.done()["hosts"]) == {"cp1", "w1"}
    assert f"-i {cluster.state_dir}/runs/{report.run}/inventory/hosts.yaml cluster.yml -b" in (tmp_path / "calls").read_text()


@LONG
def test_check_mode_lists_the_commands(site: Site) -> None:
    """Check mode lists the commands, and reports failed checks of the release."""
    checked = site.play("--check", "--diff")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "changed=1" in checked.stdout
    assert "+cluster.yml -b: configure the hosts of the cluster as hosts.yaml says" in checked.stdout
    site.write(["cp1"], ["w1"], site_bad=True)
    refused = site.play()
    assert "rejects this inventory: cp1: Check the network" in " ".join(refused.stdout.split())
    assert refused.returncode != 0
    assert site.calls() == []
    assert not (site.state / "done.json").exists()


@LONG
def test_secrets_are_not_stored(site: Site, tmp_path: Path) -> None:
    """A secret under Vault reaches Kubespray; it and Vault's password are in no file, log or argument."""
    (tmp_path / "password").write_text("of-the-vault\n")
    argv = [str(PROGRAMS / "ansible-vault"), "encrypt_string", "--vault-password-file", str(tmp_path / "password"), "--name", "site_secret"]
    sealed = subprocess.run([*argv, "hush-hush"], env=site.environment(), capture_output=True, text=True, timeout=300, check=True)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text(f"{sealed.stdout}\nsite_expected: \"{{{{ 'hush' ~ '-hush' }}}}\"\n")
    more = ["-e", "ansible_become_password=of-sudo", "-e", "site_token=by-hand"]

    done = site.play("--vault-password-file", str(tmp_path / "password"), *more)

    assert done.returncode == 0, done.stdout + done.stderr
    log = next((site.state / "logs").glob("*-cluster.log"))
    assert "Log in to the registry" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0
    assert "--vault-id" in (tmp_path / "calls").read_text()
    (tmp_path / "password").unlink()
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for secret in (b"hush-hush", b"of-the-vault", b"of-sudo", b"by-hand"):
        assert [str(path) for path, text in kept.items() if secret in text] == []
        assert secret.decode() not in done.stdout + done.stderr
