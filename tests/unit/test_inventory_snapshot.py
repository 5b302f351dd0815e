"""The snapshot of hosts.yaml and its variable files: its content, its modes, and its paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import InventoryError, PlanError
from primus_bootstrap.inventory.load import find_problems, find_state_dir, load_cluster
from primus_bootstrap.inventory.snapshot import file_sums, source_of, take_snapshot

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = """\
all:
  vars:
    site_secrets: "{{ inventory_dir }}/secrets"
  children:
    gpu_node: {hosts: {n1: , n2: }}
"""
ENCRYPTED = "$ANSIBLE_VAULT;1.1;AES256\n6161\n"


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """Write hosts.yaml with variable files, one of them encrypted, and files that Ansible does not read."""
    site = tmp_path / "site"
    for name, text in {
        "hosts.yaml": HOSTS,
        "group_vars/all/main.yml": "site_a: 1\n",
        "group_vars/all/vault.yml": ENCRYPTED,
        "group_vars/gpu_node.yml.bak": "site_a: 9\n",
        "host_vars/n1.yml": "site_b: old\n",
        "secrets/redis_password": "secret",
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text, encoding="utf-8")
    return site / "hosts.yaml"


def test_a_snapshot_contains_the_files_that_ansible_reads(hosts: Path, tmp_path: Path) -> None:
    """The copies have the same bytes, encrypted files included, and only their owner can read them."""
    copy = take_snapshot(hosts, tmp_path / "copy", file_sums(hosts))
    files = {str(path.relative_to(copy.parent)): path for path in copy.parent.rglob("*") if path.is_file()}

    assert set(files) == {"hosts.yaml", ".primus-source", "group_vars/all/main.yml", "group_vars/all/vault.yml", "host_vars/n1.yml"}
    assert files["hosts.yaml"].read_text() == HOSTS
    assert files["group_vars/all/vault.yml"].read_text() == ENCRYPTED
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (copy.parent, *copy.parent.rglob("*")) if path.is_dir()} == {0o700}


def test_variable_files_behind_links_are_copied(hosts: Path, tmp_path: Path) -> None:
    """A link in group_vars is copied as a file, because its target may change during the run."""
    shared = tmp_path / "shared.yml"
    shared.write_text("site_c: 1\n", encoding="utf-8")
    (hosts.parent / "group_vars" / "gpu_node.yml").symlink_to(shared)

    copy = take_snapshot(hosts, tmp_path / "copy", file_sums(hosts))
    shared.write_text("site_c: 2\n", encoding="utf-8")

    assert (copy.parent / "group_vars" / "gpu_node.yml").read_text() == "site_c: 1\n"


def test_a_snapshot_has_the_paths_of_the_original(hosts: Path, tmp_path: Path) -> None:
    """Name, state folder and `inventory_dir` come from the original, values from the copy."""
    (hosts.parent / "group_vars" / "all" / "vault.yml").unlink()
    before = load_cluster(hosts)
    copy = take_snapshot(hosts, tmp_path / "copy", before.sums)
    (hosts.parent / "host_vars" / "n1.yml").write_text("site_b: new\n", encoding="utf-8")
    hosts.write_text(HOSTS.replace("n2: ", "n2: , n3: "), encoding="utf-8")

    cluster = load_cluster(copy)

    assert (cluster.path, cluster.name, cluster.state_dir) == (hosts, "site", before.state_dir)
    assert cluster.snapshot == copy
    assert cluster.groups["gpu_node"] == ("n1", "n2")
    variables = cluster.view.variables("n1")
    assert variables["site_b"] == "old"
    assert variables["site_secrets"] == f"{hosts.parent}/secrets"
    assert variables["inventory_file"] == str(hosts)


def test_a_problem_of_a_snapshot_names_the_original(hosts: Path, tmp_path: Path) -> None:
    """Problems name the file that the user can edit."""
    (hosts.parent / "group_vars" / "all" / "vault.yml").unlink()
    hosts.write_text(HOSTS.replace("gpu_node", "gpu_nod"), encoding="utf-8")
    copy = take_snapshot(hosts, tmp_path / "copy", {})

    assert find_problems(copy) == find_problems(hosts)


@pytest.mark.parametrize("change", ["edited", "added", "removed"])
def test_changed_files_are_not_copied(hosts: Path, tmp_path: Path, change: str) -> None:
    """An edited, added or removed file since the validation is an error with its path."""
    sums = file_sums(hosts)
    file = hosts.parent / "host_vars" / ("n2.yml" if change == "added" else "n1.yml")
    if change == "removed":
        file.unlink()
    else:
        file.write_text("site_b: new\n", encoding="utf-8")

    with pytest.raises(PlanError, match=f"{file} was changed after it was checked") as caught:
        take_snapshot(hosts, tmp_path / "copy", sums)

    assert "same command again" in caught.value.fix


def test_an_ordinary_inventory_is_not_a_snapshot(hosts: Path) -> None:
    """Without .primus-source there is no original."""
    assert source_of(hosts) is None
    assert source_of(hosts.parent) is None


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({}, "site"),
        ({"hosts.yaml": "all: {vars: {cluster_name: blue}}\n"}, "blue"),
        ({"group_vars/all.yml": "cluster_name: green\n"}, "green"),
        ({"hosts.yaml": "all: {vars: {cluster_name: blue}}\n", "group_vars/all.yml": "cluster_name: green\n"}, "green"),
        ({"group_vars/gpu_node.yml": "cluster_name: green\n"}, "site"),
    ],
)
def test_the_state_folder_is_found_without_validation(tmp_path: Path, files: dict[str, str], name: str) -> None:
    """The name is read from hosts.yaml or group_vars of `all`; other mistakes are ignored."""
    site = tmp_path / "site"
    for path, text in {"hosts.yaml": "all: {hosts: {n1: {nonsense: 1}}}\n", **files}.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")

    assert find_state_dir(site / "hosts.yaml") == site / ".primus" / name
    assert find_state_dir(site) == site / ".primus" / name


@pytest.mark.parametrize("text", ["all: [", "all: {vars: {cluster_name: ../../etc}}\n", "all: {vars: {cluster_name: [a]}}\n", ""])
def test_a_file_without_a_usable_name_has_no_state_folder(tmp_path: Path, text: str) -> None:
    """Invalid YAML or an invalid name gives the same problems as `validate`."""
    (tmp_path / "hosts.yaml").write_text(text, encoding="utf-8")

    with pytest.raises(InventoryError) as caught:
        find_state_dir(tmp_path / "hosts.yaml")

    assert caught.value.problems == find_problems(tmp_path / "hosts.yaml")
    assert not (tmp_path / ".primus").exists()
