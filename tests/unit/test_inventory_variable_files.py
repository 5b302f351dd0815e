"""group_vars/ and host_vars/: the files that Ansible reads, in the same order."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from primus_bootstrap.inventory import find_problems, load_cluster
from tests.unit.inventory_rig import write_inventory

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = "gpu_node: {hosts: {n1: {ansible_host: 10.0.0.1}}}\n"


@pytest.mark.parametrize("name", ["all", "all.yml", "all.yaml", "all.json", "all/main", "all/main.yml", "all/deeper/main.yaml"])
def test_all_file_names_of_ansible_are_read(tmp_path: Path, name: str) -> None:
    """No extension, .yml, .yaml, .json and folders are read."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{f"group_vars/{name}": '{"site_a": 1, "colour": 2}\n'})

    (problem,) = find_problems(folder)

    assert (problem.file, problem.line) == (str(folder / "group_vars" / name), 1)
    (folder / "group_vars" / name).write_text('{"site_a": 1}', encoding="utf-8")
    assert load_cluster(folder).view.variables("n1")["site_a"] == 1


@pytest.mark.parametrize("name", ["all/.hidden.yml", "all/backup.yml~", "all/notes.md", "all/folder.d/main.yml", "README.md", ".gitkeep"])
def test_other_files_are_ignored(tmp_path: Path, name: str) -> None:
    """Hidden files, backups, other extensions and folders with a dot are ignored."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars/all/main.yml": "site_a: 1\n", f"group_vars/{name}": "site_a: 2\n"})

    assert load_cluster(folder).view.variables("n1")["site_a"] == 1


def test_later_files_of_a_folder_override_earlier_ones(tmp_path: Path) -> None:
    """Files of one folder are read in the order of their names."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars/all/b.yml": "site_a: b\n", "group_vars/all/a.yml": "site_a: a\n"})
    cluster = load_cluster(folder)

    assert cluster.view.variables("n1")["site_a"] == "b"


def test_empty_file_is_valid(tmp_path: Path) -> None:
    """A variable file may be empty or contain only comments."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars/all.yml": "# nothing yet\n", "host_vars/n1.yml": ""})

    assert find_problems(folder) == ()


def test_dangling_link_is_reported(tmp_path: Path) -> None:
    """Ansible would ignore a dangling link."""
    folder = write_inventory(tmp_path / "site", HOSTS)
    (folder / "group_vars").mkdir()
    (folder / "group_vars" / "all.yml").symlink_to(tmp_path / "missing.yml")

    assert [problem.rule for problem in find_problems(folder)] == ["unreadable"]


@pytest.mark.parametrize("text", ["c\n", "[a, b]\n", "3\n"])
def test_file_without_a_mapping_is_reported(tmp_path: Path, text: str) -> None:
    """The rules still run, although Ansible would stop at such a file."""
    shutil.copytree(content.topologies_dir() / "h200-slurm", tmp_path / "site")
    (tmp_path / "site/group_vars/all.yml").write_text(text, encoding="utf-8")

    assert "is not a mapping of variables" in {problem.what for problem in find_problems(tmp_path / "site")}
