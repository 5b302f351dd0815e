"""Role `kube_common`: takes a chart archive from the bundle only and checks it against the lock file."""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap.bundle.web import file_path
from tests.playbooks import run_playbook

if TYPE_CHECKING:
    from pathlib import Path

OCI = "oci://registry.example.com/charts/queue"
WEB = "https://charts.example.com:443/a/queue-1.0.0.tgz"
LONG = pytest.mark.long("roles/kube_common")


def run(folder: Path, url: str, helm: str = "/nonexistent/helm", bundle: str = "bundle") -> str:
    """Run the tasks locally for a chart without its own checksum; return the result or the error.

    Without Helm, an attempt to pull from a registry fails at once.
    """
    variables = {
        "_kube_state": str(folder / "state"),
        "_kube_helm": helm,
        "_kube_bundle": str(folder / bundle) if bundle else "",
        "kube_common_chart": {"role": "queue", "chart": {"name": "queue", "file": "", "url": url, "version": "1.0.0", "sha256": ""}},
    }
    task = {"ansible.builtin.include_role": {"name": "kube_common", "tasks_from": "chart_file"}, "vars": variables}
    play = [{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": [task]}]
    (folder / "play.yml").write_text(yaml.safe_dump(play))
    done = run_playbook("localhost,", folder / "play.yml", "-e", f"ansible_python_interpreter={sys.executable}")
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("url", [OCI, WEB])
@LONG
def test_chart_is_taken_from_the_bundle_only(tmp_path: Path, url: str) -> None:
    """`bundle create` stores it there. A missing chart and a wrong checksum are refused."""
    path = tmp_path / "bundle" / file_path(url, "1.0.0")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"a chart")
    entry = {"name": url, "version": "1.0.0", "sha256": hashlib.sha256(b"a chart").hexdigest()}
    (tmp_path / "bundle" / "bundle.lock.yaml").write_text(yaml.safe_dump({"files": [entry]}))
    kept = tmp_path / "state" / "charts" / "queue-1.0.0.tgz"

    assert run(tmp_path, url) == ""
    assert kept.read_bytes() == b"a chart"
    kept.unlink()
    path.write_bytes(b"another")
    assert entry["sha256"] in run(tmp_path, url)
    assert not kept.exists()
    path.unlink()
    assert f"{path} does not exist. Fix: " in run(tmp_path, url)


@LONG
def test_chart_is_pulled_from_its_registry_once(tmp_path: Path) -> None:
    """Helm's error is reported with the variable to correct. An archive in the cache is not pulled again."""
    helm, broken = tmp_path / "helm", tmp_path / "broken"
    version = """case "$1" in version) echo 'version.BuildInfo{Version:"v3.19.0", GitCommit:""}'; exit;; esac\n"""
    helm.write_text(f'#!/bin/sh\n{version}echo "$@" >> {tmp_path}/pulls; echo > {tmp_path}/state/charts/queue-1.0.0.tgz\n')
    broken.write_text(f"#!/bin/sh\n{version}echo no such chart >&2; exit 1\n")
    for program in (helm, broken):
        program.chmod(0o755)

    refused = " ".join(run(tmp_path, OCI, str(broken), bundle="").split())
    assert f"{OCI}: no such chart. Fix: correct queue_chart_url" in refused
    assert [run(tmp_path, OCI, str(helm), bundle="") for _ in range(2)] == ["", ""]
    assert (tmp_path / "pulls").read_text() == f"pull {OCI} --version 1.0.0 --destination {tmp_path}/state/charts\n"
