"""Role `training_backend` and the bundle: names, paths and wheels of the environments of training backends."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from primus_bootstrap.bundle import wheels
from primus_bootstrap.bundle.artifacts import Locked, Need
from primus_bootstrap.bundle.backend_wheels import backend_wheels, python_options
from primus_bootstrap.core.commands import Completed
from primus_bootstrap.launch.backends import environments
from tests.unit.test_bundle_needs import needs_of

if TYPE_CHECKING:
    from pathlib import Path

LIST = "# python 3.12\n# needs torch==2.0\n# needs amd plug-in==1.0\n# needs nvidia cuda[all]==1.0\nSome_Tool==1.2 --hash=sha256:00\n"


def filters() -> dict[str, Any]:
    """Return the filters of the role."""
    path = content.roles_dir() / "training_backend" / "filter_plugins" / "training_backend.py"
    spec = importlib.util.spec_from_file_location("training_backend_filters", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.FilterModule().filters())


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short list of packages for every backend."""
    monkeypatch.setattr(environments, "packages", lambda _backend: LIST)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (("maxtext", "megatron"), ""),
        (("maxtex",), "no such backend: maxtex. Fix: did you mean maxtext?"),
        (("maxtext", "maxtext"), "maxtext is there twice. Fix: remove one entry"),
    ],
)
def test_a_wrong_name_is_found_before_anything_is_built(names: tuple[str, ...], problem: str) -> None:
    """The message has the nearest name."""
    assert filters()["training_backend_problem"]([{"name": name} for name in names]) == problem


def test_the_path_of_an_environment_has_its_version() -> None:
    """It is the one of primus-cli."""
    assert filters()["training_backend_paths"]([{"name": "maxtext"}], "/jfs/b") == ["/jfs/b/maxtext-0.2.5"]


@pytest.mark.usefixtures("packages")
def test_a_bundle_has_the_packages_of_the_list_for_its_release_of_python() -> None:
    """With those for the vendor of the GPUs; torch and packages with extras are outside of it."""
    assert backend_wheels("maxtext", "") == ("Some_Tool==1.2 (Python 3.12)",)
    assert backend_wheels("maxtext", "amd") == ("Some_Tool==1.2 (Python 3.12)", "plug-in==1.0 (Python 3.12)")
    assert backend_wheels("maxtext", "nvidia") == ("Some_Tool==1.2 (Python 3.12)",)


@pytest.mark.usefixtures("packages")
def test_the_needs_of_an_inventory_contain_the_wheels(tmp_path: Path) -> None:
    """What a bundle does not have is named."""
    variables = "airgap_release: bookworm\ntraining_backend_gpus: amd\ntraining_backend_environments: [{name: maxtext}]"
    needs = needs_of(tmp_path, variables, "training_backend: {hosts: {b1: }}")
    names = {item.need.name: item.hosts for item in needs.requirements if item.need.kind == "wheel"}

    assert names == {"Some_Tool==1.2 (Python 3.12)": ("b1",), "plug-in==1.0 (Python 3.12)": ("b1",)}
    assert [item.hosts for item in needs.external if item.role == "training_backend"] == [("b1",)]


@pytest.mark.usefixtures("packages")
def test_the_host_gets_the_wheels_of_its_environments(tmp_path: Path) -> None:
    """Those of torch too, if someone has put them into the folder. Missing ones are named."""
    names = ("some_tool-1.2-py3-none-any.whl", "torch-2.0-cp312-cp312-linux_x86_64.whl", "other-1-py3-none-any.whl", "index.html")
    for name in names:
        (tmp_path / name).touch()
    found = filters()["training_backend_wheels"]([{"name": "maxtext"}], str(tmp_path), "amd")

    assert found == {"files": [str(tmp_path / name) for name in names[:2]], "missing": ["plug-in==1.0"]}


def test_a_wheel_is_resolved_and_downloaded_for_the_python_of_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name keeps the release of Python, so that the same package can be in a bundle for two of them."""
    ran: list[list[str]] = []
    entry = '{"url": "https://index/tool-1.2.whl", "archive_info": {"hashes": {"sha256": "00"}}}'
    report = f'{{"install": [{{"download_info": {entry}, "metadata": {{"name": "tool", "version": "1.2"}}}}]}}'

    def run(argv: list[str], **_options: Any) -> Completed:
        ran.append(argv)
        return Completed(0, report, "")

    monkeypatch.setattr(wheels, "run", run)
    found = wheels.resolve(Need("wheel", "tool==1.2 (Python 3.12)"))

    assert isinstance(found, Locked)
    assert found.name == "tool==1.2 (Python 3.12)"
    assert ran[-1][-1] == "tool==1.2"
    assert {"--python-version=3.12", "--target=unused"} <= set(ran[-1])
    wheels.fetch(found, tmp_path / "part")
    assert "--python-version=3.12" in ran[-1]
    wheels.resolve(Need("wheel", "tool==1.2"))
    assert not any(word.startswith(("--python-version", "--target")) for word in ran[-1])
    assert python_options("tool==1.2") == ("tool==1.2", ())
