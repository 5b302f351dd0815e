"""Test a whole cluster installed from a bundle, without internet access for the hosts and the controller."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_fixture import create_lab
from tests.lab.lab_rig import RunningLab, run_cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.fault]

NODES = ("node1", "node2")
# Nobody listens at the port `discard` of this machine: whoever asks an index or a proxy fails at once.
_NOBODY = "http://127.0.0.1:9"
_MIRROR = "    airgap_mirror:\n      hosts:\n        node1:\n"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Create two hosts and the bundle, then remove the internet access."""
    for running in create_lab(RunningLab(f"test{os.getpid()}-a", tmp_path_factory.mktemp("airgap")), "--nodes", str(len(NODES))):
        release = running.sh("node1", '. /etc/os-release; echo "$VERSION_CODENAME"')
        running.hosts_file.write_text(running.hosts_file.read_text() + _MIRROR)
        settings = running.folder / "group_vars" / "all.yml"
        settings.parent.mkdir()
        settings.write_text(f"airgap_bundle: bundle\nairgap_release: {release}\n")
        for verb in ("lock", "create", "check"):
            done = run_cli("bundle", verb, "--inventory", str(running.hosts_file), timeout_s=1800)
            assert done.returncode == 0, done.stdout + done.stderr
        for node in NODES:
            subprocess.run([*running._in_network_of(node), "ip", "route", "del", "default"], capture_output=True, timeout=60, check=True)
        yield running


def apply(closed: RunningLab, cache: Path) -> subprocess.CompletedProcess[str]:
    """Apply from a controller without a cache, an index and a proxy."""
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    environment = {**dict.fromkeys(names, _NOBODY), "PIP_INDEX_URL": f"{_NOBODY}/simple", "XDG_CACHE_HOME": str(cache)}
    return run_cli("apply", str(closed.hosts_file), "--yes", timeout_s=3000, env=environment)


@pytest.mark.timeout(5400)
def test_cluster_is_installed_from_a_bundle(closed: RunningLab, tmp_path: Path) -> None:
    """Every service is verified, and a second apply changes nothing."""
    outside = [closed.execute(node, "timeout", "100", "apt-get", "update", "--error-on=any", timeout_s=120).returncode for node in NODES]

    first = apply(closed, tmp_path / "cache")
    report = closed.last_report()
    again = apply(closed, tmp_path / "cache")

    assert 0 not in outside
    assert first.returncode == 0, first.stdout + first.stderr
    assert {host["result"] for host in report["hosts"]} == {"changed"}
    assert again.returncode == 0, again.stdout + again.stderr
    assert {host["changed"] for host in closed.last_report()["hosts"]} == {0}
    for node in NODES:
        assert closed.sh(node, "apt-get indextargets --format '$(REPO_URI)' | sort -u") == "mirror+file:/etc/apt/primus-airgap/mirrors/"
        assert "fuse.juicefs" in closed.sh(node, "grep ' /jfs ' /proc/mounts")


def test_every_installed_package_is_in_the_lock(closed: RunningLab) -> None:
    """Every package that apply installed has the locked version."""
    origin = json.loads(closed.sh("node1", "cat /var/lib/primus/origin/origin.json"))
    listed = closed.sh("node1", "dpkg-query --show --showformat='${Package} ${Version}\\n'").splitlines()
    new = {tuple(line.split(" ")) for line in listed if line.split(" ")[0] not in origin["packages"]}
    lock = (closed.folder / "bundle.lock.yaml").read_text()

    assert len(new) > 20
    assert {name for name, version in new if f"name: {name}\n  version: {version}\n" not in lock.replace("'", "")} == set()


def test_verify_downloads_a_package_on_every_host(closed: RunningLab) -> None:
    """`verify` reports the download of each host and the state of the mirror."""
    rows = [row for row in closed.verify()["services"] if row["service"] == "airgap"]

    assert {row["host"] for row in rows} == set(NODES)
    assert {row["verdict"] for row in rows} == {"pass"}
