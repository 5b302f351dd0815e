"""Create a cluster with one chart: a small chart replaces JobSet in the role jobset, with a hosts.yaml."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.playbooks import run_playbook

if TYPE_CHECKING:
    from tests.kubernetes.rest import Api

HERE = Path(__file__).parent
HELM = HERE / "helm"
# The server is older than what the chart's role asks for, which is not what is tested.
_OLD = "_jobset_least_version=1.20"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/jobsets.jobset.x-k8s.io"


def helm(*arguments: str | Path, env: dict[str, str], code: int = 0) -> str:
    """Run Helm in the release's namespace."""
    environment = {**os.environ, "PRIMUS_TEST_PYTHON": sys.executable, **env}
    done = subprocess.run([HELM, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


@dataclass(frozen=True, slots=True)
class Site:
    """A folder with hosts.yaml and a chart, whose release has its own namespace."""

    folder: Path
    kubeconfig: Path
    namespace: str

    def write(self, **changed: Any) -> None:
        """Write hosts.yaml with the common variables and the given changes."""
        variables = {
            "cluster_name": "releases",
            "kubernetes_provider": "existing",
            "kubernetes_kubeconfig": str(self.kubeconfig),
            "jobset_chart_file": "chart",
            "jobset_namespace": self.namespace,
            "jobset_replicas": 1,
            "jobset_timeout_s": 60,
            **changed,
        }
        children: dict[str, Any] = {
            "kube_control_plane": {"hosts": {"cp1": {}}},
            "etcd": {"hosts": {"cp1": {}}},
            "jobset": {"children": {"kube_control_plane": {}}},
        }
        (self.folder / "hosts.yaml").write_text(yaml.safe_dump({"all": {"vars": variables, "children": children}}))

    def play(self, *flags: str, playbook: str = "scheduling/jobs.yml") -> Played:
        """Run a playbook of the role."""
        environment = {"PRIMUS_HELM": str(HELM), "PRIMUS_TEST_PYTHON": sys.executable}
        done = run_playbook(self.folder / "hosts.yaml", playbook, "--tags", "jobset", "-e", _OLD, *flags, environment=environment)
        return Played(done.returncode, done.stdout + done.stderr)

    def applied(self, *flags: str) -> Played:
        """Run the playbook, which must succeed."""
        done = self.play(*flags)
        assert done.code == 0, done.output[-3000:]
        return done

    def helm(self, *arguments: str) -> str:
        """Run Helm for the release's namespace."""
        return helm(*arguments, env={"KUBECONFIG": str(self.kubeconfig), "HELM_NAMESPACE": self.namespace})


@dataclass(frozen=True, slots=True)
class Played:
    """The exit code and output of a playbook."""

    code: int
    output: str

    @property
    def changed(self) -> int:
        """The number of changed tasks."""
        return sum(int(number) for number in re.findall(r"changed=(\d+)", self.output))


def new_site(folder: Path, kubeconfig: Path, namespace: str, **changed: Any) -> Site:
    """Write the chart and hosts.yaml into a folder."""
    shutil.copytree(HERE / "charts/jobset", folder / "chart")
    site = Site(folder, kubeconfig, namespace)
    site.write(**changed)
    return site


def everything(api: Api, namespace: str) -> dict[str, str]:
    """Return the version of each object of the chart's kinds, to detect changes."""
    paths = [DEFINITION.rpartition("/")[0]] + [
        f"{group}/namespaces/{namespace}/{kind}"
        for group, kind in (("/api/v1", "configmaps"), ("/api/v1", "secrets"), ("/apis/apps/v1", "deployments"))
    ]
    found = [one for path in paths for one in api.items(path)]
    return {one["metadata"]["uid"]: yaml.safe_dump([one.get("spec"), one.get("data"), one["metadata"].get("labels")]) for one in found}
