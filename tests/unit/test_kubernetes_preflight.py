"""Test the checks before Kubespray runs: versions of an upgrade, hosts of an existing cluster, and the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.kubernetes import preflight

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("running", "wanted", "what", "fix"),
    [
        (["1.33.4"], "1.35.4", "skips a minor version", "upgrade to 1.34.7 first"),
        (["1.34.1", "1.33.2"], "1.35.4", "from 1.33.2", "upgrade to 1.34.7 first"),
        (["1.31.0"], "1.35.4", "skips a minor version", "older release of Kubespray"),
        (["1.35.4"], "1.35.3", "does not support downgrades", "upgrade to 1.35.4 or newer"),
        (["1.35.0"], "1.37.0", "installs 1.33.0 to 1.35.4", "choose a version from 1.33.0 to 1.35.4"),
        (
            ["1.35.0"],
            "1.36.2",
            "v2.31.0 installs 1.33.0",
            "kubespray_release: v2.32.0-46dbdd399` in hosts.yaml, which installs 1.34.0 to 1.36.4",
        ),
        (["1.35.0"], "1.35", "not a version of Kubernetes", "write it like"),
    ],
)
def test_unsupported_upgrade_is_refused(running: list[str], wanted: str, what: str, fix: str) -> None:
    """Two minor versions, a downgrade, an unsupported version or an invalid version is refused."""
    with pytest.raises(PlanError, match=what) as caught:
        preflight.check_upgrade(running, wanted, load_release())

    assert fix in caught.value.fix


@pytest.mark.parametrize("running", [["v1.34.2"], ["1.35.4", "1.34.2"], ["1.35.4"], []])
def test_supported_upgrade_is_accepted(running: list[str]) -> None:
    """One minor version, an interrupted upgrade and a finished upgrade are accepted."""
    preflight.check_upgrade(running, "1.35.4", load_release())


@pytest.mark.parametrize(
    ("running", "wanted", "fix"),
    [
        (["1.35.4"], "1.36.4", ""),
        (["1.34.3"], "1.36.4", "upgrade to 1.35.8 first"),
        (["1.32.9"], "1.34.11", "upgrade to 1.33.11 first, with `kubespray_release: v2.31.0` in hosts.yaml"),
        (["1.33.4"], "1.33.11", "set `kubespray_release: v2.31.0` in hosts.yaml"),
    ],
)
def test_next_release_has_its_own_versions(running: list[str], wanted: str, fix: str) -> None:
    """The versions are those of the release that hosts.yaml names. A step that only another release can do names that."""
    found = ""
    try:
        preflight.check_upgrade(running, wanted, load_release("v2.32.0-46dbdd399"))
    except PlanError as error:
        found = error.fix

    assert found.startswith(fix)
    assert bool(found) == bool(fix)


def test_release_is_read_from_the_inventory(tmp_path: Path) -> None:
    """`kubespray_release` selects the release; an unknown name is refused with the names that exist."""
    hosts = write_hosts(tmp_path, "kubespray") / "hosts.yaml"
    assert preflight.release_of(load_cluster(hosts)) == load_release()
    text = hosts.read_text(encoding="utf-8")
    hosts.write_text(text.replace("vars: {", "vars: {kubespray_release: v2.32.0-46dbdd399, "), encoding="utf-8")
    assert preflight.release_of(load_cluster(hosts)).newest == "1.36.4"

    with pytest.raises(PlanError, match=r"kubespray_release v2\.30\.0: no such release") as caught:
        load_release("v2.30.0")
    assert "v2.31.0, v2.32.0-46dbdd399" in caught.value.fix


def write_hosts(folder: Path, provider: str) -> Path:
    """Write a small hosts.yaml and return its path."""
    folder.joinpath("hosts.yaml").write_text(
        f"all:\n  vars: {{kubernetes_provider: {provider}, kubernetes_kubeconfig: admin.conf}}\n"
        "  children:\n    kube_control_plane: {hosts: {cp1: }}\n    etcd: {hosts: {cp1: }}\n    kube_node: {hosts: {w1: }}\n",
        encoding="utf-8",
    )
    return folder


def test_hosts_of_an_existing_cluster_are_refused(tmp_path: Path) -> None:
    """With `existing` a verb for hosts fails; with Kubespray it does not."""
    with pytest.raises(PlanError, match="remove node: kubernetes_provider is existing"):
        preflight.refuse_foreign(load_cluster(write_hosts(tmp_path, "existing")), "remove node")

    preflight.refuse_foreign(load_cluster(write_hosts(tmp_path, "kubespray")), "remove node")


def test_environment_excludes_python_and_ansible_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of this Python and settings of this Ansible are removed; pinned host keys stay."""
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("ANSIBLE_CALLBACK_PLUGINS", "/ours")
    monkeypatch.setenv("ANSIBLE_SSH_ARGS", "-o StrictHostKeyChecking=yes")
    got = preflight.base_environment()

    assert "PYTHONPATH" not in got
    assert "ANSIBLE_CALLBACK_PLUGINS" not in got
    assert got["ANSIBLE_SSH_ARGS"] == "-o StrictHostKeyChecking=yes"
