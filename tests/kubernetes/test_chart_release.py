"""Test a chart's role on a real API server: install, upgrade, repair, check mode and errors."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import hashlib
import json
import shutil
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.kubernetes import certificates
from tests.kubernetes.api_server import free_ports
from tests.kubernetes.fake_kubelet import running_pods
from tests.kubernetes.fake_nodes import register_nodes
from tests.kubernetes.release_rig import DEFINITION, Site, everything, new_site
from tests.kubernetes.rest import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kubernetes.api_server import ApiServer
    from tests.kubernetes.rest import Api

LONG = pytest.mark.long("roles/kube_common", "roles/kube_helm")


@pytest.fixture
def site(api: Api, api_server: ApiServer, tmp_path: Path, namespace: str) -> Iterator[Site]:
    """A site whose pods run; the chart's definition is removed after the test."""
    register_nodes(api, {"chart1": {}}, gpus=0)
    with running_pods(api):
        yield new_site(tmp_path, api_server.kubeconfig, namespace)
    for path in (DEFINITION, "/api/v1/nodes/chart1"):
        try:
            api.delete(path)
        except ApiError as error:
            assert error.status == 404  # noqa: PT017 - where a test installs nothing


def settings(api: Api, site: Site) -> dict[str, str]:
    """Return the data of the chart's ConfigMap."""
    found: dict[str, str] = api.get(f"/api/v1/namespaces/{site.namespace}/configmaps/jobset-settings")["data"]
    return found


def states(site: Site) -> list[str]:
    """Return the states of the release's revisions."""
    return [one["status"] for one in json.loads(site.helm("history", "jobset", "-o", "json"))]


def test_release_is_installed_once_and_upgraded(api: Api, site: Site) -> None:
    """A second run changes nothing, check mode shows changes without making them, and changed values upgrade the release."""
    assert site.applied().changed > 0
    assert site.applied().changed == 0
    site.write(jobset_chart_values={"greeting": "good day"})
    before = everything(api, site.namespace)
    looked = site.applied("--check", "--diff")

    assert everything(api, site.namespace) == before
    assert "-  greeting: hello\n    +  greeting: good day" in looked.output or "-  greeting: hello\n+  greeting: good day" in looked.output
    assert "of-the-chart" not in looked.output
    assert site.applied().changed > 0
    assert (settings(api, site)["greeting"], states(site)) == ("good day", ["superseded", "deployed"])


@pytest.mark.fault
def test_manual_changes_are_reverted(api: Api, api_server: ApiServer, site: Site) -> None:
    """Deleted and changed objects are named and restored; changes of controllers stay."""
    site.applied()
    where = ("--namespace", site.namespace)
    api_server.kubectl("delete", "deployment", "jobset-controller", *where)
    api_server.kubectl("patch", "configmap", "jobset-settings", *where, "--patch", '{"data": {"greeting": "mine"}}')
    api_server.kubectl("annotate", "configmap", "jobset-settings", *where, "jobset.x-k8s.io/kept-")
    api_server.kubectl("patch", "secret", "jobset-token", *where, "--patch", '{"stringData": {"token": "by-a-hand"}}')
    # As a controller does: it names itself.
    api.patch(f"/api/v1/namespaces/{site.namespace}/configmaps/jobset-settings", {"data": {"leader": "me"}}, fieldManager="controller")
    looked = site.applied("--check", "--diff")
    assert settings(api, site) == {"greeting": "mine", "leader": "me"}

    healed = site.applied()
    after = api.get(f"/api/v1/namespaces/{site.namespace}/configmaps/jobset-settings")
    for played in (looked, healed):
        assert f"Deployment {site.namespace}/jobset-controller was deleted" in played.output
        assert "annotations.jobset.x-k8s.io/kept" in played.output
        assert "by-a-hand" not in played.output
    assert after["data"] == {"greeting": "hello", "leader": "me"}
    assert after["metadata"]["annotations"]["jobset.x-k8s.io/kept"] == "yes"
    assert api.get(f"/api/v1/namespaces/{site.namespace}/secrets/jobset-token")["data"]["token"] == "b2YtdGhlLWNoYXJ0"
    assert site.applied().changed == 0
    assert states(site) == ["deployed"]
    # Helm still owns the restored fields. Helm 4 refuses to overwrite a field of another program.
    api.patch(f"/api/v1/namespaces/{site.namespace}/configmaps/jobset-settings", {"data": {"leader": "nobody"}}, fieldManager="controller")
    site.write(jobset_chart_values={"greeting": "later"})
    site.applied()
    assert settings(api, site)["greeting"] == "later"


@pytest.mark.fault
@pytest.mark.parametrize("state", ["pending-install", "failed"])
def test_interrupted_install_is_repeated(api: Api, site: Site, state: str) -> None:
    """A failed or pending first revision is replaced."""
    site.write(jobset_chart_values={"broken": state == "failed"})
    if state == "failed":
        refused = site.play()
        assert refused.code != 0
        assert "Not_A_Name" in refused.output
        site.write()
    else:
        site.helm("install", "jobset", str(site.folder / "chart"))
        leave_pending(api, site, 1, state)
        api.delete(f"/apis/apps/v1/namespaces/{site.namespace}/deployments/jobset-controller")
    assert states(site)[-1] == state

    assert site.applied().changed > 0
    assert (states(site)[-1], settings(api, site)["greeting"]) == ("deployed", "hello")
    assert api.get(f"/apis/apps/v1/namespaces/{site.namespace}/deployments/jobset-controller")["status"]["readyReplicas"] == 1


@pytest.mark.fault
def test_interrupted_upgrade_is_repeated(api: Api, site: Site) -> None:
    """After a pending revision the last good one is restored, then upgraded."""
    site.helm("install", "jobset", str(site.folder / "chart"))
    site.helm("upgrade", "jobset", str(site.folder / "chart"), "--set", "greeting=second")
    leave_pending(api, site, 2, "pending-upgrade")
    site.write(jobset_chart_values={"greeting": "third"})

    assert site.applied().changed > 0
    assert (states(site)[-1], settings(api, site)["greeting"]) == ("deployed", "third")


def leave_pending(api: Api, site: Site, revision: int, state: str) -> None:
    """Set a revision to pending, like a killed Helm."""
    path = f"/api/v1/namespaces/{site.namespace}/secrets/sh.helm.release.v1.jobset.v{revision}"
    record = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(api.get(path)["data"]["release"]))))
    record["info"]["status"] = state
    data = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(record).encode()))).decode()
    api.patch(path, {"data": {"release": data}, "metadata": {"labels": {"status": state}}})


def test_chart_file_with_another_checksum_is_refused(api: Api, site: Site) -> None:
    """The error has both checksums, and nothing changes."""
    archive = site.folder / "jobset-1.0.0.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(site.folder / "chart", "jobset")
    shutil.rmtree(site.folder / "chart")
    right = hashlib.sha256(archive.read_bytes()).hexdigest()
    before = everything(api, site.namespace)
    site.write(jobset_chart_file=archive.name, jobset_chart_sha256="0" * 64)
    refused = site.play()

    assert refused.code != 0
    assert f"has the SHA-256 {right}, not {'0' * 64}" in " ".join(refused.output.split())
    assert "Fix: correct jobset_chart_file or jobset_chart_sha256" in " ".join(refused.output.split())
    assert everything(api, site.namespace) == before


@LONG
def test_downloaded_chart_with_another_checksum_is_refused(api: Api, site: Site) -> None:
    """The chart is not installed, and the error has a fix."""
    archive = site.folder / "jobset-1.0.0.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(site.folder / "chart", "jobset")
    before = everything(api, site.namespace)
    site.write(jobset_chart_file="", jobset_chart_url=archive.as_uri(), jobset_chart_sha256="0" * 64)
    refused = site.play()

    assert refused.code != 0
    assert "jobset_chart_sha256" in refused.output
    assert "Fix:" in refused.output
    assert everything(api, site.namespace) == before


@LONG
@pytest.mark.parametrize("what", ["expired", "unreachable", "missing"])
def test_unusable_kubeconfig_is_refused(site: Site, tmp_path: Path, what: str) -> None:
    """The role fails within seconds, with the reason and a fix."""
    other = tmp_path / "other"
    other.mkdir()
    if what != "missing":
        ends = dt.timedelta(days=-2 if what == "expired" else 1)
        certificates.write(other, f"https://127.0.0.1:{free_ports(1)[0]}", ends)
    site.write(kubernetes_kubeconfig=str(other / "admin.conf"))
    refused = site.play()
    output = " ".join(refused.output.split())

    assert refused.code != 0
    assert refused.changed == 0
    reason = {"expired": "the client certificate expired", "unreachable": "does not answer", "missing": "no kubeconfig at"}
    assert reason[what] in output
    assert "Fix:" in output


@LONG
def test_unavailable_api_group_is_ignored(api: Api, site: Site) -> None:
    """An aggregated API without a server, such as metrics, does not stop the role."""
    groups = "/apis/apiregistration.k8s.io/v1/apiservices"
    away = {"group": "away.tests.primus", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1, "insecureSkipTLSVerify": True}
    where = {"service": {"name": "nobody", "namespace": site.namespace}}
    api.create(groups, {"metadata": {"name": "v1.away.tests.primus"}, "spec": {**away, **where}})
    try:
        assert site.applied().changed > 0
    finally:
        api.delete(f"{groups}/v1.away.tests.primus")
