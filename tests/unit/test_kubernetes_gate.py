"""What is judged before Kubespray runs: upgrades by one minor, inside the window, and no machines of somebody else's cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.kubernetes import preflight

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("running", "wanted", "what", "fix"),
    [
        (["1.33.4"], "1.35.4", "leaves a minor version out", "go to 1.34.7 first"),
        (["1.34.1", "1.33.2"], "1.35.4", "from 1.33.2", "go to 1.34.7 first"),
        (["1.31.0"], "1.35.4", "leaves a minor version out", "older release of Kubespray"),
        (["1.35.4"], "1.35.3", "cannot go back", "go to 1.35.4 or newer"),
        (["1.35.0"], "1.36.0", "installs 1.33.0 to 1.35.4", "set it to 1.35.4"),
        (["1.35.0"], "1.35", "no version of Kubernetes", "write it as"),
    ],
)
def test_upgrades_that_cannot_be(running: list[str], wanted: str, what: str, fix: str) -> None:
    """Two minors, back, outside the window, no version: each is refused with what to do."""
    with pytest.raises(PlanError, match=what) as caught:
        preflight.judge_upgrade(running, wanted)

    assert fix in caught.value.fix


@pytest.mark.parametrize("running", [["v1.34.2"], ["1.35.4", "1.34.2"], ["1.35.4"], []])
def test_upgrades_that_can_be(running: list[str]) -> None:
    """One minor, one that was cut short, one that is done."""
    preflight.judge_upgrade(running, "1.35.4")


def written(folder: Path, provider: str) -> Path:
    """Return a small hosts.yaml."""
    folder.joinpath("hosts.yaml").write_text(
        f"all:\n  vars: {{kubernetes_provider: {provider}, kubernetes_kubeconfig: admin.conf}}\n"
        "  children:\n    kube_control_plane: {hosts: {cp1: }}\n    etcd: {hosts: {cp1: }}\n    kube_node: {hosts: {w1: }}\n",
        encoding="utf-8",
    )
    return folder


def test_machines_of_another_are_refused(tmp_path: Path) -> None:
    """With `existing` every verb about machines is refused; with Kubespray none is."""
    with pytest.raises(PlanError, match="remove node: kubernetes_provider is existing"):
        preflight.refuse_foreign(load_cluster(written(tmp_path, "existing")), "remove node")

    preflight.refuse_foreign(load_cluster(written(tmp_path, "kubespray")), "remove node")


def test_the_environment_leads_no_other_python_astray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our Python's paths and our Ansible's settings stay here; the pinned host keys go along."""
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("ANSIBLE_CALLBACK_PLUGINS", "/ours")
    monkeypatch.setenv("ANSIBLE_SSH_ARGS", "-o StrictHostKeyChecking=yes")
    got = preflight.base_environment()

    assert "PYTHONPATH" not in got
    assert "ANSIBLE_CALLBACK_PLUGINS" not in got
    assert got["ANSIBLE_SSH_ARGS"] == "-o StrictHostKeyChecking=yes"
