"""Role `kube_certificates`: the restart of a static pod with plain Ansible, and a fake kubelet on this machine."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.playbooks import one_line, run_playbook, write_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The role finds the program in the list of all processes, and this machine may run a real kube-scheduler.
POD = f"kube-scheduler-of-test-{os.getpid()}"
MANIFEST = """apiVersion: v1
kind: Pod
metadata:
  name: kube-scheduler
spec:
  containers:
  - command:
    - kube-apiserver
    - --secure-port=7443
"""


class Kubelet:
    """Runs a program with the pod's name, and restarts it whenever its manifest changes."""

    def __init__(self, manifest: Path) -> None:
        """Start the program."""
        self.manifest, self.ended = manifest, threading.Event()
        self.program = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([POD, "300"], executable="/bin/sleep")

    def watch(self) -> None:
        """Restart the program after each change, until `ended` is set."""
        before = self.manifest.read_text(encoding="utf-8")
        while not self.ended.wait(0.2):
            if (now := self.manifest.read_text(encoding="utf-8")) != before:
                self.stop()
                before, self.program = now, self._start()

    def stop(self) -> None:
        """Stop the program."""
        self.program.kill()
        self.program.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the manifests, and a kubectl that answers for the API server of this host only."""
    for name in (POD, "kube-apiserver"):
        (tmp_path / f"{name}.yaml").write_text(MANIFEST, encoding="utf-8")
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\ncase "$*" in *--server=https://127.0.0.1:7443*) printf ok;; esac\n', encoding="utf-8")
    kubectl.chmod(0o755)
    return tmp_path


@pytest.fixture
def kubelet(folder: Path) -> Iterator[Kubelet]:
    """A kubelet that has started the pod's program and does not watch yet."""
    started = Kubelet(folder / f"{POD}.yaml")
    yield started
    started.stop()


def restart(folder: Path, wait_s: int) -> subprocess.CompletedProcess[str]:
    """Restart the pod with the tasks of the role."""
    values = {
        "kube_certificates_manifest_dir": str(folder), "kube_certificates_program_dir": str(folder), "kube_certificates_wait_s": wait_s,
        "kube_certificates_files": [], "_kube_certificates_programs": [POD], "_kube_certificates_stale": [POD],
    }  # fmt: skip
    tasks = [
        {"ansible.builtin.include_role": {"name": "kube_certificates", "tasks_from": name}, "vars": values} for name in ("read", "restart")
    ]
    write_yaml(folder / "play.yml", [{"hosts": "localhost", "gather_facts": False, "tasks": tasks}])
    return run_playbook("localhost,", folder / "play.yml", "-c", "local", "--diff")


def test_pod_is_restarted_by_its_manifest(folder: Path, kubelet: Kubelet) -> None:
    """Only an annotation is added, and the play continues when the new program runs and the API server is ready."""
    first = kubelet.program.pid
    watch = threading.Thread(target=kubelet.watch)
    watch.start()
    done = restart(folder, 60)
    kubelet.ended.set()
    watch.join()

    written = yaml.safe_load((folder / f"{POD}.yaml").read_text(encoding="utf-8"))
    annotations = written["metadata"].pop("annotations")
    assert done.returncode == 0, done.stdout
    assert kubelet.program.pid != first
    assert list(annotations) == ["primus-bootstrap/restarted"]
    assert written == yaml.safe_load(MANIFEST)
    assert "+    primus-bootstrap/restarted" in done.stdout


@pytest.mark.usefixtures("kubelet")
def test_kubelet_that_does_not_restart_the_pod_is_an_error(folder: Path) -> None:
    """The message names the pod and kubelet's log."""
    done = restart(folder, 4)

    assert done.returncode != 0
    assert f"{POD} was not restarted within 4 s. Fix: check `journalctl -u kubelet`" in one_line(done)
