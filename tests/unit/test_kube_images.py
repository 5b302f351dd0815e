"""Module `kube_images`: the images of running pods are those of the lock file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar, trust_as_template

from primus_bootstrap import content
from primus_bootstrap.bundle.artifacts import Lock, Locked
from primus_bootstrap.bundle.lock_file import lock_text
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

effects: Any = load_role_module("kube_common", "kube_effects")
NAME, LOCKED, OTHER = "docker.io/grafana/grafana:13.2.0", "a" * 64, "b" * 64


def pod(image: str, digest: str, *, name: str = "grafana-0") -> dict[str, Any]:
    """Return a pod as containerd reports it."""
    status = [{"name": "main", "imageID": f"{image.partition(':')[0]}@{digest}" if digest else f"sha256:{'c' * 64}"}]
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": image}]}, "status": {"containerStatuses": status}}


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([pod(NAME, f"sha256:{LOCKED}")], (1, [])),
        ([pod("grafana/grafana:13.2.0", f"sha256:{LOCKED}")], (1, [])),
        (
            [pod(f"{NAME}@sha256:{OTHER}", f"sha256:{OTHER}")],
            (1, [f"grafana-0 runs {NAME}@sha256:{OTHER} with sha256:{OTHER}, the lock has sha256:{LOCKED}"]),
        ),
        ([pod(NAME, f"sha256:{OTHER}")], (1, [f"grafana-0 runs {NAME} with sha256:{OTHER}, the lock has sha256:{LOCKED}"])),
        ([pod("quay.io/other:1", f"sha256:{OTHER}")], (0, [])),
        ([pod(NAME, "")], (0, [])),
        ([{"metadata": {"name": "new"}, "spec": {"containers": [{"name": "main", "image": NAME}]}}], (0, [])),
    ],
)
def test_running_images_are_compared_with_the_lock(pods: list[dict[str, Any]], expected: tuple[int, list[str]]) -> None:
    """Names are completed as container engines do. Containers without a digest, and images that are not locked, do not count."""
    assert effects.compare_images(pods, {NAME: LOCKED}) == expected


@pytest.mark.parametrize(
    ("pods", "verdict"),
    [([pod(NAME, f"sha256:{LOCKED}")], "pass"), ([pod(NAME, f"sha256:{OTHER}")], "fail"), ([], "unknown"), (None, "unknown")],
)
def test_verdict_of_a_namespace(monkeypatch: pytest.MonkeyPatch, pods: list[dict[str, Any]] | None, verdict: str) -> None:
    """Nothing to compare, and an API server that does not answer, are unknown."""

    class Cluster:
        class kinds:  # noqa: N801 - the attribute of the real class
            client = None

    def listed(*_: Any) -> list[dict[str, Any]]:
        if pods is None:
            raise effects.HTTPError("no route")
        return pods

    monkeypatch.setattr(effects, "list_objects", listed)

    assert effects.check_images(Cluster, {"namespace": "monitoring", "images": {NAME: LOCKED}})[0] == verdict


def test_checks_follow_from_the_lock_file(tmp_path: Path) -> None:
    """The role reads the file that `bundle lock` writes, beside hosts.yaml or in the bundle; without it there is no check."""

    def value(name: str, **variables: Any) -> Any:
        known = yaml.safe_load((content.roles_dir() / "kube_common" / "vars" / "main.yml").read_text(encoding="utf-8"))
        trusted = {key: _trusted(one) for key, one in known.items()}
        given = {"kube_common_verify": {"namespace": "monitoring", "checks": [{"check": "harbor.runs"}]}, "_kube_bundle": "", **variables}
        return Templar(loader=DataLoader(), variables={**trusted, **given}).template(trust_as_template(f"{{{{ {name} }}}}"))

    init_plugin_loader()  # for the lookup of the file
    image = Locked("image", NAME, "", url=f"{NAME}@sha256:{LOCKED}", sha256=LOCKED, size_bytes=0, path="")
    (tmp_path / "bundle.lock.yaml").write_text(lock_text(Lock((image,))))
    (check,) = value("kube_common_image_checks", inventory_dir=str(tmp_path))

    assert value("kube_common_lock", inventory_dir=str(tmp_path / "none")) == {}
    assert (check["check"], check["namespace"], check["images"]) == ("harbor.images", "monitoring", {NAME: LOCKED})


def _trusted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _trusted(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_trusted(one) for one in value]
    return trust_as_template(value) if isinstance(value, str) else value
