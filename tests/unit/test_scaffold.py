"""`init` copies a shipped topology and overwrites no file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.inventory.edit.scaffold import make_scaffold, write_scaffold

if TYPE_CHECKING:
    from pathlib import Path

NAMED = ("airgap", "h200-slurm", "mi300x")


def tree(folder: Path) -> dict[str, str]:
    """Return every file below a folder with its text."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_of_the_user_is_no_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second lab in `inventory/` is not offered, and cannot be copied."""
    (tmp_path / "lab2").mkdir()
    (tmp_path / "lab2" / "hosts.yaml").write_text("all:\n")
    monkeypatch.setattr(content, "topologies_dir", lambda: tmp_path)

    with pytest.raises(UsageError) as unknown:
        make_scaffold("nosuch", tmp_path / "new")
    with pytest.raises(UsageError) as own:
        make_scaffold("lab2", tmp_path / "new")

    assert unknown.value.fix == "choose from: airgap, h200-slurm, lab, mi300x"
    assert own.value.fix == "did you mean lab?"


@pytest.mark.parametrize("template", NAMED)
def test_new_folder_is_a_copy_with_its_own_cluster_name(tmp_path: Path, template: str) -> None:
    """The cluster has the name of the folder, and .gitignore excludes state, secrets and password."""
    folder = tmp_path / "Prod EU"
    write_scaffold(make_scaffold(template, folder))

    written = tree(folder)
    example = content.topologies_dir() / template
    shipped = {name for name in tree(example) if not name.startswith(".")}

    assert set(written) == shipped | {".gitignore"}
    assert written["hosts.yaml"] == (example / "hosts.yaml").read_text()
    assert "\ncluster_name: prod-eu\n" in "".join(text for name, text in written.items() if name.startswith("group_vars/all"))
    assert {".primus/", "secrets/", "vault-password"} <= set(written[".gitignore"].splitlines())


def test_state_of_an_example_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and host keys of an example that was applied are not copied."""
    example = tmp_path / "shipped" / "inventory" / "lab"
    (example / ".primus" / "lab").mkdir(parents=True)
    (example / ".primus" / "lab" / "known_hosts").write_text("key")
    (example / "hosts.yaml").write_text("all: {hosts: {n1: }}\n")
    monkeypatch.setattr(content, "topologies_dir", lambda: example.parent)
    write_scaffold(make_scaffold("lab", tmp_path / "new"))

    assert set(tree(tmp_path / "new")) == {"hosts.yaml", ".gitignore"}


def test_existing_files_are_an_error(tmp_path: Path) -> None:
    """Nothing is written, and the message names every existing file."""
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "hosts.yaml").write_text("mine")
    (tmp_path / "group_vars" / "all.yml").write_text("mine")
    with pytest.raises(PlanError) as caught:
        make_scaffold("mi300x", tmp_path)

    assert str(tmp_path / "hosts.yaml") in caught.value.what
    assert str(tmp_path / "group_vars" / "all.yml") in caught.value.what
    assert "k8s_cluster.yml" not in caught.value.what
    assert tree(tmp_path) == {"hosts.yaml": "mine", "group_vars/all.yml": "mine"}


def test_missing_lines_are_added_to_an_existing_gitignore(tmp_path: Path) -> None:
    """Its lines are kept, also if the last one has no line end."""
    (tmp_path / ".gitignore").write_text("*.log\n.primus/")
    write_scaffold(make_scaffold("h200-slurm", tmp_path))

    assert (tmp_path / ".gitignore").read_text() == "*.log\n.primus/\nsecrets/\nvault-password\n"


def test_unknown_template_names_the_choices(tmp_path: Path) -> None:
    """The fix lists the templates."""
    with pytest.raises(UsageError) as caught:
        make_scaffold("mi300", tmp_path)

    assert caught.value.what == "no such template: mi300"
    assert "mi300x" in caught.value.fix


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    """The message names the file."""
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(PlanError) as caught:
        make_scaffold("mi300x", path)

    assert str(path) in caught.value.what
