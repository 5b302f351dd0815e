"""primus_bootstrap.launch.watch.kube_config: supported and refused kubeconfigs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.watch.kube_api import Api, ApiUnavailableError
from primus_bootstrap.launch.watch.kube_config import read_access

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    """Write a kubeconfig with one context."""
    config = {
        "current-context": "watch",
        "contexts": [{"name": "watch", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9/prefix/", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_token_is_in_the_kubeconfig_or_in_a_file(tmp_path: Path) -> None:
    """The file is read at every request. Its path is relative to the kubeconfig."""
    stated = read_access(written(tmp_path, {}, {"token": "abc"}))
    (tmp_path / "token").write_text("first\n")
    renewed = read_access(written(tmp_path, {}, {"tokenFile": "token"}))
    before = renewed.headers()
    (tmp_path / "token").write_text("second\n")

    assert (stated.host, stated.port, stated.prefix) == ("127.0.0.1", 9, "/prefix")
    assert stated.headers() == {"Authorization": "Bearer abc"}
    assert [before, renewed.headers()] == [{"Authorization": f"Bearer {word}"} for word in ("first", "second")]


@pytest.mark.parametrize(
    ("cluster", "user", "what"),
    [
        ({"server": "http://127.0.0.1:8080"}, {}, "only https:// is supported"),
        ({"insecure-skip-tls-verify": True}, {}, "insecure-skip-tls-verify is not supported"),
        ({}, {"exec": {"command": "aws"}}, "the user has exec"),
        ({}, {"username": "admin"}, "the user has username"),
        ({"certificate-authority-data": "???"}, {}, "certificates cannot be used"),
        ({"certificate-authority": "gone.pem"}, {}, "certificates cannot be used"),
    ],
)
def test_an_unsupported_kubeconfig_is_refused(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], what: str) -> None:
    """Unverified servers, and credentials from programs."""
    with pytest.raises(PlanError) as refused:
        read_access(written(tmp_path, cluster, user))

    assert what in refused.value.what
    assert refused.value.fix


@pytest.mark.parametrize("text", ["", "[]", "a: [", "current-context: x\ncontexts: []\n"])
def test_an_invalid_kubeconfig_is_an_error(tmp_path: Path, text: str) -> None:
    """A request with it counts as unanswered."""
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(PlanError, match="cannot be used as a kubeconfig"):
        read_access(path)
    with pytest.raises(ApiUnavailableError, match="cannot be used as a kubeconfig"):
        Api(path).get("/apis")
