"""Images of charts: found by rendering with the user's values; what cannot be rendered is unknown and never an empty list."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.bundle.artifacts import Lock, Need, Needs, Wanted
from primus_bootstrap.bundle.charts import fetch, with_images
from tests.unit.registry_rig import serve_registry
from tests.unit.test_bundle_charts import HELM, chart, look, make_chart, places

if TYPE_CHECKING:
    from pathlib import Path


def images(needs: Needs) -> list[str]:
    """Return the names of the images that are wanted."""
    return [need.name for need in needs.of("image")]


def test_images_follow_from_the_users_values(tmp_path: Path) -> None:
    """What stands in an argument counts as well, and what only `helm test` would start does not."""
    make_chart(tmp_path / "charts" / "queue")
    needs, rendered = look(tmp_path, [chart("mirror.example.com:5000/queue:7")])

    assert images(needs) == ["mirror.example.com:5000/queue:7", "quay.io/team/sidecar:2.0"]
    assert needs.unknown == ()
    assert [one.images for one in rendered] == [("mirror.example.com:5000/queue:7", "quay.io/team/sidecar:2.0")]


def test_who_wants_an_image_is_told_once(tmp_path: Path) -> None:
    """An image that the role states and the chart names is one need of both."""
    make_chart(tmp_path / "charts" / "queue")
    stated = Wanted(Need("image", "quay.io/team/sidecar:2.0"), ("other",), ("all",), ("n1",))
    needs, _ = with_images(Needs((stated,), (), charts=(chart(),)), Lock(), places(tmp_path))
    [found] = [one for one in needs.wanted if one.need.name == "quay.io/team/sidecar:2.0"]

    assert (found.roles, found.hosts) == (("other", "queue"), ("n1", "cp1"))


@pytest.mark.parametrize(
    ("case", "said"),
    [("absent", "queue 1.0.0 is not on this machine"), ("no helm", "no helm"), ("refused", "name the image"), ("own", "is not there")],
)
def test_what_cannot_be_rendered_is_unknown(tmp_path: Path, case: str, said: str) -> None:
    """It names the role, the reason and what to do; its images are not taken for none."""
    if case != "absent":
        make_chart(tmp_path / "charts" / "queue")
    one = chart(None) if case == "refused" else chart(file="mine.tgz") if case == "own" else chart()
    needs, rendered = look(tmp_path, [one], helm="" if case == "no helm" else HELM)

    [unknown] = needs.unknown
    assert (unknown.role, unknown.hosts) == ("queue", ("cp1",))
    assert said in unknown.reason
    assert unknown.fix
    assert rendered == ()


def test_an_archive_of_the_bundle_must_have_the_stated_sum(tmp_path: Path) -> None:
    """Another file under the right name is as good as none."""
    path = tmp_path / "bundle" / "files" / "example.com" / "queue-1.0.0.tgz"
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(make_chart(tmp_path / "work"), "queue")
    right = hashlib.sha256(path.read_bytes()).hexdigest()

    assert len(images(look(tmp_path, [chart(sha256=right)])[0])) == 2
    assert look(tmp_path, [chart(sha256="0" * 64)])[0].unknown


def test_the_lock_stands_for_rendering_until_something_changes(tmp_path: Path) -> None:
    """In a closed network there may be no helm yet; another value, version or name is not what was locked."""
    folder = make_chart(tmp_path / "charts" / "queue")
    _, rendered = look(tmp_path, [chart()])
    shutil.rmtree(folder)
    lock = Lock(charts=rendered)

    assert images(look(tmp_path, [chart()], lock=lock, helm="")[0]) == list(rendered[0].images)
    for other in (chart("x.example.com/y:1"), chart(version="1.0.1"), chart(namespace="other")):
        assert look(tmp_path, [other], lock=lock, helm="")[0].unknown


def test_a_changed_chart_of_ones_own_is_rendered_again(tmp_path: Path) -> None:
    """It has no version that could be trusted: any byte of it counts."""
    make_chart(tmp_path / "mine")
    _, rendered = look(tmp_path, [chart(file="mine")])
    template = tmp_path / "mine" / "templates" / "all.yaml"
    template.write_text(template.read_text().replace("sidecar:2.0", "sidecar:3.0"))

    assert "quay.io/team/sidecar:3.0" in images(look(tmp_path, [chart(file="mine")], lock=Lock(charts=rendered))[0])


def test_a_connected_machine_fetches_charts_to_render_them(tmp_path: Path) -> None:
    """From a registry here; what is there is not fetched again."""
    archive = tmp_path / "a.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(make_chart(tmp_path / "work"), "queue")
    with serve_registry() as registry:
        registry.put_chart("charts/queue", "1.0.0", archive.read_bytes())
        one = chart(url=f"oci://{registry.server}/charts/queue")
        fetch([one], places(tmp_path), tmp_path / "bundle", lambda _: None)
        asked = len(registry.asked)
        fetch([one], places(tmp_path), tmp_path / "bundle", lambda _: None)

        assert len(registry.asked) == asked
    assert (tmp_path / "bundle" / "files" / "127.0.0.1" / "charts" / "queue-1.0.0.tgz").is_file()
    assert len(images(look(tmp_path, [one])[0])) == 2
