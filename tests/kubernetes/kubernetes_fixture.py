"""Fixtures of the Kubernetes tests: an API server per session, a namespace per test, and a cluster of real nodes."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.lab_values import MachineError
from tests.kubernetes.api_server import ApiServer, down, up
from tests.kubernetes.binaries import CannotError
from tests.kubernetes.kubeadm_cluster import PACKAGES, STORAGE, Cluster, formed
from tests.kubernetes.kubeadm_cluster import down as take_down
from tests.kubernetes.kubeadm_cluster import up as form
from tests.kubernetes.rest import Api
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

# The folder of a server that stays up, for writing tests: it is started where it is not.
_KEPT = "PRIMUS_TEST_KUBERNETES"
# The folder of a cluster of real nodes that stays up, formed where it is not.
_KEPT_NODES = "PRIMUS_TEST_KUBERNETES_NODES"


@pytest.fixture(scope="session")
def api_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server with controllers and scheduler, without kubelets, once per session."""
    kept = os.environ.get(_KEPT)
    folder = Path(kept) if kept else tmp_path_factory.mktemp("kubernetes")
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        # The first time takes minutes, and who waits wants to see for what.
        with capture.global_and_fixture_disabled():
            server = up(folder, outlive_us=bool(kept))
    except CannotError as error:
        pytest.skip(str(error))
    yield server
    if not kept:
        down(folder)


@pytest.fixture
def api(api_server: ApiServer) -> Api:
    """The server's administrator."""
    return Api(api_server.kubeconfig)


@pytest.fixture
def namespace(request: pytest.FixtureRequest, api: Api) -> Iterator[str]:
    """A namespace for one test, deleted afterwards."""
    name = f"{re.sub('[^a-z0-9]+', '-', request.node.name.lower()).strip('-')[:40]}-{uuid.uuid4().hex[:6]}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
    # Before 1.24 no pod is admitted until the account that it runs as has a token.
    until(lambda: any(account.get("secrets") for account in api.items(accounts)), "an account by the controllers")
    yield name
    # Without a kubelet a pod that is asked to end never does.
    api.delete(f"/api/v1/namespaces/{name}/pods", gracePeriodSeconds="0")
    api.delete(f"/api/v1/namespaces/{name}")


def _mounts(folder: Path) -> list[str]:
    """Return the mounts of the nodes: shared storage, and torch if it is installed for their Python."""
    shared = folder.absolute() / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    mounts = [f"{shared}:{STORAGE}"]
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin and sys.version_info[:2] == (3, 11):
        mounts.append(f"{Path(torch.origin).parents[1]}:{PACKAGES}:ro")
    return mounts


@pytest.fixture(scope="session")
def kubeadm_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three real nodes of a kubeadm cluster. Tests with it have the marker `fault`, because it takes a minute."""
    kept = os.environ.get(_KEPT_NODES)
    folder = Path(kept) if kept else tmp_path_factory.mktemp("kubeadm")
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            cluster = formed(folder) or form(folder, mounts=_mounts(folder))
        yield cluster
    except (CannotError, MachineError) as error:
        pytest.skip(str(error))
    finally:
        if not kept:
            take_down(folder)
