"""What a registry says that a reference means, and charts that lie there: nothing is believed that does not have its digest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.bundle.artifacts import BundleError
from primus_bootstrap.bundle.registry import chart_layer, digest_of, fetch_chart
from tests.unit.test_bundle_registry import registry as registry

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.registry_rig import Registry


def test_a_tag_has_the_digest_that_it_has_now(registry: Registry) -> None:
    """A token is had where the registry wants one; when the tag moves, so does the answer."""
    first = registry.put_image("team/tool", "1.0")
    reference = f"{registry.server}/team/tool:1.0"

    assert digest_of(reference) == first
    assert any(path.startswith("/token?") for path in registry.asked)
    second = registry.put_image("team/tool", "1.0", text="another")
    assert digest_of(reference) == second != first
    assert digest_of(f"{registry.server}/team/tool@sha256:{first}") == first


def test_a_registry_that_lies_about_a_digest_is_not_believed(registry: Registry) -> None:
    """The content is compared with the digest that was asked for."""
    registry.contents[f"team/tool/manifests/sha256:{'0' * 64}"] = b"{}"
    with pytest.raises(BundleError, match="has the digest sha256:44136fa3"):
        digest_of(f"{registry.server}/team/tool@sha256:{'0' * 64}")


def test_what_is_not_there_is_an_error_with_a_fix(registry: Registry) -> None:
    """Not a digest of nothing."""
    with pytest.raises(BundleError, match="404") as caught:
        digest_of(f"{registry.server}/team/none:1")

    assert caught.value.fix


def test_a_chart_is_fetched_by_the_digest_of_its_archive(registry: Registry, tmp_path: Path) -> None:
    """A plus of a version stands as a line below in the tag; an image is no chart."""
    sha256 = registry.put_chart("charts/queue", "1.0_a", b"an archive")
    registry.put_image("charts/other", "1.0")
    url = f"oci://{registry.server}/charts/queue"

    assert chart_layer(url, "1.0+a") == (sha256, len(b"an archive"))
    assert fetch_chart(url, "1.0+a", sha256, tmp_path / "part") == ""
    assert (tmp_path / "part").read_bytes() == b"an archive"
    assert "404" in fetch_chart(url, "1.0+a", "0" * 64, tmp_path / "part")
    with pytest.raises(BundleError, match="is no chart"):
        chart_layer(f"oci://{registry.server}/charts/other", "1.0")
