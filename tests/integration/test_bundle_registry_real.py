"""Test digests and charts with a registry on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.bundle.artifacts import BundleError
from primus_bootstrap.bundle.registry import chart_layer, digest_of, fetch_chart
from tests.unit.test_bundle_registry import registry as registry

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.registry_rig import Registry


def test_tag_is_resolved_to_its_current_digest(registry: Registry) -> None:
    """A token is requested if the registry requires one; a moved tag gives another digest."""
    first = registry.put_image("team/tool", "1.0")
    reference = f"{registry.server}/team/tool:1.0"

    assert digest_of(reference) == first
    assert any(path.startswith("/token?") for path in registry.asked)
    second = registry.put_image("team/tool", "1.0", text="another")
    assert digest_of(reference) == second != first
    assert digest_of(f"{registry.server}/team/tool@sha256:{first}") == first


def test_wrong_digest_is_refused(registry: Registry) -> None:
    """The content is compared with the digest of the reference."""
    registry.contents[f"team/tool/manifests/sha256:{'0' * 64}"] = b"{}"
    with pytest.raises(BundleError, match="has the digest sha256:44136fa3"):
        digest_of(f"{registry.server}/team/tool@sha256:{'0' * 64}")


def test_missing_image_is_an_error(registry: Registry) -> None:
    """The error has the status and a fix."""
    with pytest.raises(BundleError, match="404") as caught:
        digest_of(f"{registry.server}/team/none:1")

    assert caught.value.fix


def test_chart_is_downloaded_by_its_digest(registry: Registry, tmp_path: Path) -> None:
    """A plus sign of the version is an underscore in the tag; an image is not a chart."""
    sha256 = registry.put_chart("charts/queue", "1.0_a", b"an archive")
    registry.put_image("charts/other", "1.0")
    url = f"oci://{registry.server}/charts/queue"

    assert chart_layer(url, "1.0+a") == (sha256, len(b"an archive"))
    assert fetch_chart(url, "1.0+a", sha256, tmp_path / "part") == ""
    assert (tmp_path / "part").read_bytes() == b"an archive"
    assert "404" in fetch_chart(url, "1.0+a", "0" * 64, tmp_path / "part")
    with pytest.raises(BundleError, match="is not a chart"):
        chart_layer(f"oci://{registry.server}/charts/other", "1.0")
