"""Test that `failed_when` and `until` apply to the action plugins when the API server does not answer."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.integration.kubespray_rig import api, joining
from tests.playbooks import run_playbook

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

NOBODY = "http://127.0.0.1:9"
pytestmark = pytest.mark.timeout(300)


def play(folder: Path, tasks: Sequence[Mapping[str, object]], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run tasks on this machine with plain Ansible."""
    path = folder / "play.yml"
    path.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": list(tasks)}]), encoding="utf-8")
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), **environment}
    return run_playbook("localhost,", path, "-c", "local", environment=environment)


def role(name: str, tasks: str, **values: object) -> dict[str, object]:
    """Return a task that includes tasks of a role."""
    return {"name": name, "ansible.builtin.import_role": {"name": name, "tasks_from": tasks}, "vars": values}


def test_no_answer_is_unknown(tmp_path: Path) -> None:
    """Reading the record and the labels of a Node continues with the verdict `unknown`."""
    kubeconfig = tmp_path / "admin.conf"
    kubeconfig.write_text(joining(NOBODY, user="admin"), encoding="utf-8")
    done = play(
        tmp_path,
        [
            role("kube_quarantine", "read_record", kube_quarantine_kubeconfig=str(kubeconfig), kube_quarantine_hosts=["localhost"]),
            {"ansible.builtin.assert": {"that": ["'now' not in __kube_quarantine_seen", "'127.0.0.1:9' in __kube_quarantine_seen.msg"]}},
            role("kube_node_labels", "verify", kube_node_labels_kubeconfig=str(kubeconfig), kube_node_labels_hosts=["localhost"]),
        ],
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert '\\"verdict\\": \\"unknown\\"' in done.stdout or "'verdict': 'unknown'" in done.stdout


def test_node_is_uncordoned_when_the_api_server_is_up(tmp_path: Path) -> None:
    """The task retries until the server answers, as after a reboot of the only control plane."""
    kubeconfig = tmp_path / "admin.conf"
    kubeconfig.write_text(joining(NOBODY, user="admin"), encoding="utf-8")
    ended, log = threading.Event(), tmp_path / "log"

    def come() -> None:
        while not (log.is_file() and "RETRYING" in log.read_text(encoding="utf-8")) and not ended.wait(0.2):
            pass
        with api("https://10.0.0.1:6443", kubeconfig):
            ended.wait(200)

    coming = threading.Thread(target=come)
    coming.start()
    values = {"kube_drain_kubeconfig": str(kubeconfig), "kube_drain_node": "localhost", "kube_drain_reason": "reboot"}
    done = play(tmp_path, [role("kube_drain", "uncordon", **values, kube_drain_enabled=True)], ANSIBLE_LOG_PATH=str(log))
    ended.set()
    coming.join()

    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED - RETRYING" in done.stdout
