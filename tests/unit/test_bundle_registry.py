"""Test how image references are parsed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.bundle.registry import Reference, parse_reference
from tests.unit.registry_rig import Registry, serve_registry

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def registry() -> Iterator[Registry]:
    """An empty registry."""
    with serve_registry() as served:
        yield served


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("busybox", Reference("docker.io", "library/busybox", "latest", "")),
        ("docker.io/goharbor/harbor-core:v2.15.1", Reference("docker.io", "goharbor/harbor-core", "v2.15.1", "")),
        ("registry.k8s.io/pause@sha256:ab", Reference("registry.k8s.io", "pause", "latest", "sha256:ab")),
        ("localhost:5000/a/b:1@sha256:ab", Reference("localhost:5000", "a/b", "1", "sha256:ab")),
    ],
)
def test_reference_is_parsed_like_by_engines(text: str, expected: Reference) -> None:
    """docker.io and `library/` are defaults; a port is not a tag."""
    assert parse_reference(text) == expected


def test_only_local_registries_are_used_without_tls() -> None:
    """All other registries use https."""
    assert parse_reference("docker.io/busybox").base == "https://registry-1.docker.io/v2/library/busybox"
    assert parse_reference("127.0.0.1:5000/a").base == "http://127.0.0.1:5000/v2/a"
