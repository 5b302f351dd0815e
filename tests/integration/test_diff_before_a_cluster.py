"""`diff` of a cluster that Kubespray has not created yet, with charts, queues and Nodes."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.engine.playbooks import load_phases
from tests.integration.kubespray_rig import Site, make_site

if TYPE_CHECKING:
    from pathlib import Path

PHASES = ("kubernetes", "monitoring", "storage", "gateway", "registry", "scheduling")
# The charts. The first host of the group with its name installs each.
CHARTS = {
    role for phase in load_phases(content.playbooks_dir()) for play in phase.plays for role in play.roles if play.pattern == f"{role}[0]"
}
SETTINGS = {
    "gpu_env_model": "MI300X",
    "harbor_hostname": "harbor.example.com",
    "harbor_storage_class": "standard",
    "harbor_database_storage_class": "standard",
    "harbor_admin_password": "{{ lookup('ansible.builtin.env', 'SITE_SECRET') }}",
    "juicefs_csi_meta_url": "redis://192.0.2.1:6379/1",
    "juicefs_csi_bucket": "https://s3.example.com/train",
    "juicefs_csi_access_key": "key",
    "juicefs_csi_secret_key": "{{ lookup('ansible.builtin.env', 'SITE_SECRET') }}",
}

LONG = pytest.mark.long("roles/kubespray", "roles/kube_common", "primus_bootstrap/kubernetes", "playbooks")
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Write an inventory with new hosts and all charts."""
    site = make_site(tmp_path)
    site.write(["cp1"], ["w1"], **SETTINGS)
    path = tmp_path / "hosts.yaml"
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    tree["all"]["children"] |= {chart: {"hosts": {"cp1": None}} for chart in CHARTS} | {"gpu_node": {"hosts": {"w1": None}}}
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return site


def diff(site: Site) -> tuple[int, dict[str, Any], str]:
    """Run `diff`; return the exit code, the report and the output on stderr."""
    phases = [word for phase in PHASES for word in ("--phase", phase)]
    argv = [sys.executable, "-m", "primus_bootstrap", "diff", str(site.folder / "hosts.yaml"), *phases, "--json"]
    environment = site.environment() | {"SITE_SECRET": secrets.token_hex(12)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=800, check=False)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@LONG
def test_diff_shows_what_kubespray_would_do_without_a_cluster(site: Site) -> None:
    """All phases succeed. A missing kubeconfig from hosts.yaml is still an error."""
    assert {"harbor", "juicefs_csi", "kueue"} <= CHARTS
    code, report, stderr = diff(site)

    assert code == 0, stderr + json.dumps(report, indent=1)
    assert {phase["phase"]: phase["state"] for phase in report["phases"]} == dict.fromkeys(PHASES, "done")
    assert "kubespray" in {change["role"] for change in report["changes"]}
    assert not {change["role"] for change in report["changes"]} & (CHARTS | {"kube_helm", "kube_quarantine", "kube_node_labels"})
    assert site.calls() == []
    assert not (site.folder / ".primus/demo/bin").exists()

    site.write(["cp1"], ["w1"], **SETTINGS, kubernetes_kubeconfig="gone.conf")
    code, report, _ = diff(site)
    assert code == 4
    causes = [failure["cause"] for host in report["hosts"] for failure in host["failures"]]
    assert any("gone.conf" in cause for cause in causes), causes
