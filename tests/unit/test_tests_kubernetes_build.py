"""Test the cache of Kubernetes' programs for the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kubernetes import binaries

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_folders_of_interrupted_builds_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build folder that an interrupted build left is removed before the next build."""
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(binaries, "cache_dir", lambda: tmp_path)
    abandoned = tmp_path / "kubernetes-build-abc"
    (abandoned / "programs").mkdir(parents=True)

    def build(folder: Path) -> None:
        assert not abandoned.exists()
        folder.mkdir()
        (folder / "kubectl").touch()
        (folder / "etcd").touch()

    monkeypatch.setattr(binaries, "_build", build)

    folder = binaries.kubernetes_programs(("kubectl",))

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((folder.name, "kubernetes.lock"))
