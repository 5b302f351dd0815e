"""Test the images of charts with a real helm."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.bundle.artifacts import Lock, Need, Needs, Requirement
from primus_bootstrap.bundle.charts import fetch, with_images
from tests.unit.registry_rig import serve_registry
from tests.unit.test_bundle_charts import HELM, chart, chart_paths, make_chart, render

if TYPE_CHECKING:
    from pathlib import Path


def images(needs: Needs) -> list[str]:
    """Return the names of the required images."""
    return [need.name for need in needs.of("image")]


def test_images_follow_from_the_users_values(tmp_path: Path) -> None:
    """Images in arguments are found; those of `helm test` are not."""
    make_chart(tmp_path / "charts" / "queue")
    needs, rendered = render(tmp_path, [chart("mirror.example.com:5000/queue:7")])

    assert images(needs) == ["mirror.example.com:5000/queue:7", "quay.io/team/sidecar:2.0"]
    assert needs.unknown == ()
    assert [one.images for one in rendered] == [("mirror.example.com:5000/queue:7", "quay.io/team/sidecar:2.0")]


def test_image_of_role_and_chart_is_one_need(tmp_path: Path) -> None:
    """An image that both the role and its chart need is one requirement."""
    make_chart(tmp_path / "charts" / "queue")
    stated = Requirement(Need("image", "quay.io/team/sidecar:2.0"), ("other",), ("all",), ("n1",))
    needs, _ = with_images(Needs((stated,), (), charts=(chart(),)), Lock(), chart_paths(tmp_path))
    [found] = [one for one in needs.requirements if one.need.name == "quay.io/team/sidecar:2.0"]

    assert (found.roles, found.hosts) == (("other", "queue"), ("n1", "cp1"))


@pytest.mark.parametrize(
    ("case", "output"),
    [
        ("absent", "queue 1.0.0 is not on this machine"),
        ("no helm", "helm, which renders"),
        ("refused", "name the image"),
        ("own", "does not exist"),
    ],
)
def test_chart_that_cannot_be_rendered_is_unknown(tmp_path: Path, case: str, output: str) -> None:
    """The unknown entry has the role, the reason and the fix."""
    if case != "absent":
        make_chart(tmp_path / "charts" / "queue")
    one = chart(None) if case == "refused" else chart(file="mine.tgz") if case == "own" else chart()
    needs, rendered = render(tmp_path, [one], helm="" if case == "no helm" else HELM)

    [unknown] = needs.unknown
    assert (unknown.role, unknown.hosts) == ("queue", ("cp1",))
    assert output in unknown.reason
    assert unknown.fix
    assert rendered == ()


def test_archive_with_another_checksum_is_not_used(tmp_path: Path) -> None:
    """A file with the right name and another checksum is ignored."""
    path = tmp_path / "bundle" / "files" / "example.com" / "queue-1.0.0.tgz"
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(make_chart(tmp_path / "work"), "queue")
    right = hashlib.sha256(path.read_bytes()).hexdigest()

    assert len(images(render(tmp_path, [chart(sha256=right)])[0])) == 2
    assert render(tmp_path, [chart(sha256="0" * 64)])[0].unknown


def test_locked_images_are_used_without_helm(tmp_path: Path) -> None:
    """The chart is rendered again only after a change of its values, version or name."""
    folder = make_chart(tmp_path / "charts" / "queue")
    _, rendered = render(tmp_path, [chart()])
    shutil.rmtree(folder)
    lock = Lock(charts=rendered)

    assert images(render(tmp_path, [chart()], lock=lock, helm="")[0]) == list(rendered[0].images)
    for other in (chart("x.example.com/y:1"), chart(version="1.0.1"), chart(namespace="other")):
        assert render(tmp_path, [other], lock=lock, helm="")[0].unknown


def test_changed_user_chart_is_rendered_again(tmp_path: Path) -> None:
    """Any change of the content of the user's own chart counts."""
    make_chart(tmp_path / "mine")
    _, rendered = render(tmp_path, [chart(file="mine")])
    template = tmp_path / "mine" / "templates" / "all.yaml"
    template.write_text(template.read_text().replace("sidecar:2.0", "sidecar:3.0"))

    assert "quay.io/team/sidecar:3.0" in images(render(tmp_path, [chart(file="mine")], lock=Lock(charts=rendered))[0])


def test_charts_are_downloaded_to_render_them(tmp_path: Path) -> None:
    """Missing charts are downloaded from a registry; existing ones are not."""
    archive = tmp_path / "a.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(make_chart(tmp_path / "work"), "queue")
    with serve_registry() as registry:
        registry.put_chart("charts/queue", "1.0.0", archive.read_bytes())
        one = chart(url=f"oci://{registry.server}/charts/queue")
        fetch([one], chart_paths(tmp_path), tmp_path / "bundle", lambda _: None)
        asked = len(registry.asked)
        fetch([one], chart_paths(tmp_path), tmp_path / "bundle", lambda _: None)

        assert len(registry.asked) == asked
    assert (tmp_path / "bundle" / "files" / "127.0.0.1" / "charts" / "queue-1.0.0.tgz").is_file()
    assert len(images(render(tmp_path, [one])[0])) == 2
