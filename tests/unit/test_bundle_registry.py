"""What a registry says that a reference means, and charts that lie there: nothing is believed that does not have its digest."""

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
def test_a_reference_means_what_engines_take_it_for(text: str, expected: Reference) -> None:
    """Docker's registry and its own images need not be named; a port is no tag."""
    assert parse_reference(text) == expected


def test_only_registries_of_this_machine_are_asked_without_tls() -> None:
    """What a tag means decides what runs."""
    assert parse_reference("docker.io/busybox").base == "https://registry-1.docker.io/v2/library/busybox"
    assert parse_reference("127.0.0.1:5000/a").base == "http://127.0.0.1:5000/v2/a"
