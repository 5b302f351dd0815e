"""Test kubernetes.core.helm with the tests' own `helm` command and a real API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kubernetes.release_rig import HELM, helm

if TYPE_CHECKING:
    from tests.kubernetes.api_server import ApiServer
    from tests.kubernetes.rest import Api

HERE = Path(__file__).parent
TINY = HERE / "charts/tiny"
NOWHERE = {"KUBECONFIG": "/nonexistent"}


class Modules:
    """The modules of kubernetes.core for one release, run by Ansible on this machine."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        """Name the release after the test's namespace."""
        self._where = {"name": "tiny", "namespace": namespace, "kubeconfig": str(server.kubeconfig), "binary_path": str(HELM)}

    def run(self, module: str, **arguments: Any) -> dict[str, Any]:
        """Run a module and return its result."""
        given = json.dumps({**self._where, **arguments})
        argv: list[str | Path] = [Path(sys.executable).with_name("ansible"), "localhost", "-m", f"kubernetes.core.{module}", "-a", given]
        env = {
            **os.environ,
            "PRIMUS_TEST_PYTHON": sys.executable,
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1",
            "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
        }
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
        result: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])["plays"][0]["tasks"][0]["hosts"]["localhost"]
        assert not result.get("failed"), result
        return result


def test_release_is_installed_changed_and_removed(api_server: ApiServer, api: Api, namespace: str) -> None:
    """The modules report the state of the API server."""
    modules = Modules(api_server, namespace)
    settings = f"/api/v1/namespaces/{namespace}/configmaps/tiny-settings"
    first = modules.run("helm", chart_ref=str(TINY), values={"greeting": "one"})
    assert (first["changed"], first["status"]["status"], first["status"]["chart"]) == (True, "deployed", "tiny-1.0.0")
    assert api.get(settings)["data"]["greeting"] == "one"
    assert modules.run("helm", chart_ref=str(TINY), values={"greeting": "one"})["changed"] is False

    second = modules.run("helm", chart_ref=str(TINY), values={"greeting": "two", "nested": {"changed": True}})
    assert (second["changed"], second["status"]["revision"]) == (True, "2")
    assert json.loads(api.get(settings)["data"]["nested"]) == {"kept": True, "changed": True}
    status = modules.run("helm_info")["status"]
    assert (status["values"], status["app_version"]) == ({"greeting": "two", "nested": {"changed": True}}, "7")
    assert sorted(one["kind"] for one in status["manifest"] if one) == ["ConfigMap", "Deployment"]
    assert "two from tiny" in status["notes"]

    assert modules.run("helm", state="absent")["changed"] is True
    assert api.items(f"/api/v1/namespaces/{namespace}/configmaps", fieldSelector="metadata.name=tiny-settings") == []
    assert "status" not in modules.run("helm_info")
    assert modules.run("helm", state="absent")["changed"] is False


def test_namespace_and_definitions_are_created(api_server: ApiServer, api: Api, namespace: str) -> None:
    """`create_namespace`, a chart's definitions and values files work."""
    modules = Modules(api_server, f"{namespace}-own")
    modules.run("helm", chart_ref=str(TINY), create_namespace=True, values={"replicas": 0}, wait=True, timeout="30s")
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/greetings.tests.primus"
    assert api.get(path)["spec"]["group"] == "tests.primus"
    assert api.get(f"/apis/apps/v1/namespaces/{namespace}-own/deployments/tiny-server")["spec"]["replicas"] == 0
    modules.run("helm", state="absent")
    api.delete(f"/api/v1/namespaces/{namespace}-own")


def test_history_and_rollback(api_server: ApiServer, namespace: str) -> None:
    """Every upgrade is a revision, and one can be restored."""
    env = {"KUBECONFIG": str(api_server.kubeconfig), "HELM_NAMESPACE": namespace}
    for greeting in ("one", "two"):
        helm("upgrade", "-i", "tiny", TINY, "--set", f"greeting={greeting}", env=env)
    helm("rollback", "tiny", "1", env=env)
    states = [(one["revision"], one["status"]) for one in json.loads(helm("history", "tiny", "-o", "json", env=env))]
    assert states == [(1, "superseded"), (2, "superseded"), (3, "deployed")]
    assert helm("get", "values", "tiny", env=env) == "greeting: one\n"
    assert helm("get", "values", "tiny", "--revision", "2", env=env) == "greeting: two\n"


def test_renders_without_a_server() -> None:
    """`template` needs no cluster; values files are merged in order, then the given values."""
    text = helm("template", "name", TINY, "--set", "greeting=set", "--show-only", "templates/settings.yaml", env=NOWHERE)
    assert 'greeting: "set"' in text
    assert "kind: Deployment" not in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("upgrade", "-i", "tiny", TINY, "--force"), "unknown flag: --force"),
        (("version", "--wait"), "unknown flag: --wait"),
        (("search", "repo"), 'unknown command "search" for "helm"'),
        (("show", "chart", "/nonexistent/chart"), "nonexistent/chart"),
        (("uninstall", "tiny", "--timeout", "soon"), "invalid duration"),
    ],
)
def test_unknown_flag_is_an_error(arguments: tuple[str, ...], complaint: str) -> None:
    """An unsupported flag fails, so that a role with it is not tested wrongly."""
    assert complaint in helm(*arguments, env=NOWHERE, code=1)
