"""Test the lab's hosts.yaml: its contents, and that an edited file is not overwritten."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.lab import hosts_file
from primus_bootstrap.lab.hosts_file import ensure_hosts_file, read_hosts, recorded_subnet
from primus_bootstrap.lab.hosts_text import hosts_text
from primus_bootstrap.lab.lab_values import DEFAULT_COUNT, DEFAULT_NAME, Lab, LabError, make_lab, subnet_candidates
from primus_bootstrap.lab.request import Request

if TYPE_CHECKING:
    from pathlib import Path

ANY = Request()
SUBNET = subnet_candidates(DEFAULT_NAME)[0]


def a_lab(folder: Path, count: int = 3, subnet: IPv4Network = SUBNET, spares: int = 0) -> Lab:
    """Return a lab in a folder."""
    return make_lab(DEFAULT_NAME, folder, subnet=subnet, count=count, suites=("bookworm",), spares=spares)


def test_the_committed_inventory_equals_that_of_lab_up() -> None:
    """For the default lab, so `lab up` in a checkout changes no file."""
    committed = content.topologies_dir() / "lab/hosts.yaml"

    assert committed.read_text() == hosts_text(a_lab(committed.parent, DEFAULT_COUNT))


def test_bare_file_has_only_the_group_gpu_node(tmp_path: Path) -> None:
    """A bare file contains the cluster's name, every host with its address, and the group gpu_node."""
    data = yaml.safe_load(hosts_text(a_lab(tmp_path, 12), form="bare"))["all"]

    assert data["vars"]["cluster_name"] == "lab"
    assert data["hosts"]["node12"] == {"ansible_host": "10.187.1.22"}
    assert list(data["children"]) == ["gpu_node"]
    assert list(data["children"]["gpu_node"]["hosts"]) == list(data["hosts"]) == [f"node{number}" for number in range(1, 13)]


@pytest.mark.parametrize(
    ("count", "computing"), [(1, ["node1"]), (2, ["node1", "node2"]), (3, ["node2", "node3"]), (4, ["node2", "node3", "node4"])]
)
def test_the_first_host_runs_services_and_the_others_compute(tmp_path: Path, count: int, computing: list[str]) -> None:
    """Services are on node1, which computes only in labs with fewer than three hosts. All hosts mount the file system."""
    groups = yaml.safe_load(hosts_text(a_lab(tmp_path, count)))["all"]["children"]
    members = {name: list(group["hosts"]) for name, group in groups.items()}

    assert members["gpu_node"] == members["slurm_node"] == computing
    serving = ("redis", "juicefs_store", "slurm_controller", "slurm_accounting", "slurm_login")
    assert [members[group] for group in serving] == [["node1"]] * len(serving)
    assert members["juicefs_client"] == [f"node{number}" for number in range(1, count + 1)]


def test_file_is_written_once(tmp_path: Path) -> None:
    """A second call does not write the file."""
    lab = a_lab(tmp_path / "new")

    assert ensure_hosts_file(lab, ANY) is True
    before = lab.hosts_file.stat().st_mtime_ns
    assert ensure_hosts_file(lab, ANY) is False
    assert lab.hosts_file.stat().st_mtime_ns == before


def test_unedited_file_is_updated_for_more_hosts(tmp_path: Path) -> None:
    """A file for three hosts is rewritten for five."""
    ensure_hosts_file(a_lab(tmp_path, 3), ANY)

    assert ensure_hosts_file(a_lab(tmp_path, 5), ANY) is True
    assert len(read_hosts(tmp_path / "hosts.yaml")) == 5


def test_unedited_file_of_an_earlier_release_is_updated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in another form. After an edit, it stays."""
    lab = a_lab(tmp_path)
    with monkeypatch.context() as earlier:
        earlier.setattr(hosts_file, "hosts_text", lambda lab, form: hosts_text(lab, form).replace("# The lab:", "# A lab of yesterday:"))
        ensure_hosts_file(lab, ANY)
    old = lab.hosts_file.read_text()

    assert ensure_hosts_file(lab, ANY) is True
    assert lab.hosts_file.read_text() == hosts_text(lab) != old
    lab.hosts_file.write_text(old + "# mine\n")
    assert ensure_hosts_file(lab, ANY) is False
    with pytest.raises(LabError, match="--bare would overwrite it"):
        ensure_hosts_file(lab, Request(form="bare"))


def test_edited_file_with_the_same_hosts_is_unchanged(tmp_path: Path) -> None:
    """Variables, groups and comments that a person added stay."""
    lab = a_lab(tmp_path)
    text = (
        hosts_text(lab)
        + "    redis:\n      hosts:\n        node1:\n      vars:\n        redis_password: !vault |\n          $ANSIBLE_VAULT\n"
    )
    lab.hosts_file.write_text(text)

    assert ensure_hosts_file(lab, ANY) is False
    assert lab.hosts_file.read_text() == text


def test_unedited_file_changes_its_form_on_request(tmp_path: Path) -> None:
    """`--bare` rewrites an unedited file. Without the option the form stays, also with more hosts."""
    ensure_hosts_file(a_lab(tmp_path), ANY)

    assert ensure_hosts_file(a_lab(tmp_path), Request(form="bare")) is True
    assert ensure_hosts_file(a_lab(tmp_path), ANY) is False
    assert ensure_hosts_file(a_lab(tmp_path, 5), ANY) is True
    assert (tmp_path / "hosts.yaml").read_text() == hosts_text(a_lab(tmp_path, 5), form="bare")


def test_edited_file_is_not_overwritten_for_another_form(tmp_path: Path) -> None:
    """`--bare` fails for an edited file."""
    lab = a_lab(tmp_path)
    lab.hosts_file.write_text(hosts_text(lab) + "# mine\n")

    with pytest.raises(LabError, match="--bare would overwrite it"):
        ensure_hosts_file(lab, Request(form="bare"))


def test_edited_file_may_have_spares_or_fewer_hosts_with_any_name(tmp_path: Path) -> None:
    """An edited file is accepted if its addresses are those of the lab's hosts and spares."""
    lab = a_lab(tmp_path, 2, spares=1)
    text = hosts_text(lab).replace("\n\n  # A service", "\n    gpu9: {ansible_host: 10.187.1.13}\n\n  # A service")
    fewer = text.replace("    node2: {ansible_host: 10.187.1.12}\n", "")

    for edited in (text, fewer):
        lab.hosts_file.write_text(edited)
        assert ensure_hosts_file(lab, ANY) is False
        assert lab.hosts_file.read_text() == edited


def test_edited_file_with_other_hosts_is_refused(tmp_path: Path) -> None:
    """The error names the hosts of the file and of the lab, and the fix gives the command."""
    lab = a_lab(tmp_path, 2)
    text = hosts_text(lab) + "# mine\n"
    lab.hosts_file.write_text(text)

    with pytest.raises(LabError) as caught:
        ensure_hosts_file(a_lab(tmp_path, 3), Request(nodes=3))

    assert "node2 10.187.1.12; the lab has node1" in caught.value.what
    assert "--nodes 2" in caught.value.fix
    assert lab.hosts_file.read_text() == text


@pytest.mark.parametrize("text", ["", "[all]\nnode1\n", "all: [1]\n", "all:\n  hosts: {node1: 3}\n", "a: b: c\n", "all:\n"])
def test_file_without_hosts_is_refused(tmp_path: Path, text: str) -> None:
    """A file without hosts raises LabError with `validate` in the fix."""
    path = tmp_path / "hosts.yaml"
    path.write_text(text)

    with pytest.raises(LabError) as caught:
        read_hosts(path)

    assert "validate" in caught.value.fix


def test_subnet_is_read_from_the_file(tmp_path: Path) -> None:
    """The subnet is that of the hosts' addresses; None without addresses or with several subnets."""
    lab = a_lab(tmp_path, subnet=IPv4Network("10.187.9.0/24"))
    assert recorded_subnet(lab.hosts_file) is None
    ensure_hosts_file(lab, ANY)

    assert recorded_subnet(lab.hosts_file) == IPv4Network("10.187.9.0/24")

    lab.hosts_file.write_text("all:\n  hosts:\n    a: {ansible_host: 10.0.0.1}\n    b: {ansible_host: 10.0.1.1}\n")
    assert recorded_subnet(lab.hosts_file) is None
