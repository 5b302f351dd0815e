"""The lab's hosts.yaml: what it says, and that a person's file is never overwritten."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.lab.hosts_file import ensure_hosts_file, hosts_of, recorded_subnet
from primus_bootstrap.lab.hosts_text import hosts_text
from primus_bootstrap.lab.lab_values import DEFAULT_COUNT, DEFAULT_NAME, Lab, LabError, make_lab, subnet_candidates
from primus_bootstrap.lab.request import Request

if TYPE_CHECKING:
    from pathlib import Path

ANY = Request()
SUBNET = subnet_candidates(DEFAULT_NAME)[0]


def a_lab(folder: Path, count: int = 3, subnet: IPv4Network = SUBNET, spares: int = 0) -> Lab:
    """Lay out a lab in a folder."""
    return make_lab(DEFAULT_NAME, folder, subnet=subnet, count=count, suites=("bookworm",), spares=spares)


def test_the_committed_inventory_is_what_lab_up_writes() -> None:
    """inventory/lab/hosts.yaml is the default lab to the letter, so that `lab up` in a fresh checkout changes no file."""
    committed = content.topologies_dir() / "lab/hosts.yaml"

    assert committed.read_text() == hosts_text(a_lab(committed.parent, DEFAULT_COUNT))


def test_a_bare_file_has_every_host_as_gpu_node_and_nothing_else(tmp_path: Path) -> None:
    """The file names every host once with its address, in the group of GPU nodes, under the cluster's name."""
    data = yaml.safe_load(hosts_text(a_lab(tmp_path, 12), form="bare"))["all"]

    assert data["vars"]["cluster_name"] == "lab"
    assert data["hosts"]["node12"] == {"ansible_host": "10.187.1.22"}
    assert list(data["children"]) == ["gpu_node"]
    assert list(data["children"]["gpu_node"]["hosts"]) == list(data["hosts"]) == [f"node{number}" for number in range(1, 13)]


@pytest.mark.parametrize(
    ("count", "computing"), [(1, ["node1"]), (2, ["node1", "node2"]), (3, ["node2", "node3"]), (4, ["node2", "node3", "node4"])]
)
def test_the_first_host_serves_and_the_others_compute(tmp_path: Path, count: int, computing: list[str]) -> None:
    """Services and the login are on node1; it computes only where a job over two hosts could not run otherwise; all see the files."""
    groups = yaml.safe_load(hosts_text(a_lab(tmp_path, count)))["all"]["children"]
    members = {name: list(group["hosts"]) for name, group in groups.items()}

    assert members["gpu_node"] == members["slurm_node"] == computing
    serving = ("redis", "juicefs_store", "slurm_controller", "slurm_accounting", "slurm_login")
    assert [members[group] for group in serving] == [["node1"]] * len(serving)
    assert members["juicefs_client"] == [f"node{number}" for number in range(1, count + 1)]


def test_it_is_written_once(tmp_path: Path) -> None:
    """A second call finds it right and writes nothing."""
    lab = a_lab(tmp_path / "new")

    assert ensure_hosts_file(lab, ANY) is True
    before = lab.hosts_file.stat().st_mtime_ns
    assert ensure_hosts_file(lab, ANY) is False
    assert lab.hosts_file.stat().st_mtime_ns == before


def test_an_untouched_file_follows_the_number_of_nodes(tmp_path: Path) -> None:
    """What the lab wrote for three hosts becomes the same for five."""
    ensure_hosts_file(a_lab(tmp_path, 3), ANY)

    assert ensure_hosts_file(a_lab(tmp_path, 5), ANY) is True
    assert len(hosts_of(tmp_path / "hosts.yaml")) == 5


def test_an_edited_file_with_the_same_hosts_is_left_alone(tmp_path: Path) -> None:
    """Variables, groups and comments of a person stay as they are."""
    lab = a_lab(tmp_path)
    text = (
        hosts_text(lab)
        + "    redis:\n      hosts:\n        node1:\n      vars:\n        redis_password: !vault |\n          $ANSIBLE_VAULT\n"
    )
    lab.hosts_file.write_text(text)

    assert ensure_hosts_file(lab, ANY) is False
    assert lab.hosts_file.read_text() == text


def test_an_untouched_file_changes_its_form_when_asked(tmp_path: Path) -> None:
    """`--bare` turns what the lab wrote into the bare form; without it, the form stays as it is, also with more hosts."""
    ensure_hosts_file(a_lab(tmp_path), ANY)

    assert ensure_hosts_file(a_lab(tmp_path), Request(form="bare")) is True
    assert ensure_hosts_file(a_lab(tmp_path), ANY) is False
    assert ensure_hosts_file(a_lab(tmp_path, 5), ANY) is True
    assert (tmp_path / "hosts.yaml").read_text() == hosts_text(a_lab(tmp_path, 5), form="bare")


def test_an_edited_file_is_not_written_anew_for_another_form(tmp_path: Path) -> None:
    """`--bare` on a person's file is refused, with what to do."""
    lab = a_lab(tmp_path)
    lab.hosts_file.write_text(hosts_text(lab) + "# mine\n")

    with pytest.raises(LabError, match="--bare would write it anew"):
        ensure_hosts_file(lab, Request(form="bare"))


def test_an_edited_file_may_name_spares_or_fewer_hosts_under_any_name(tmp_path: Path) -> None:
    """A host that was added from the spares, or taken out, is no reason to stop: the addresses are the lab's."""
    lab = a_lab(tmp_path, 2, spares=1)
    text = hosts_text(lab).replace("\n\n  # A service", "\n    gpu9: {ansible_host: 10.187.1.13}\n\n  # A service")
    fewer = text.replace("    node2: {ansible_host: 10.187.1.12}\n", "")

    for edited in (text, fewer):
        lab.hosts_file.write_text(edited)
        assert ensure_hosts_file(lab, ANY) is False
        assert lab.hosts_file.read_text() == edited


def test_an_edited_file_with_other_hosts_is_refused(tmp_path: Path) -> None:
    """The message says what the file names, what the lab would have, and three ways on."""
    lab = a_lab(tmp_path, 2)
    text = hosts_text(lab) + "# mine\n"
    lab.hosts_file.write_text(text)

    with pytest.raises(LabError) as caught:
        ensure_hosts_file(a_lab(tmp_path, 3), Request(nodes=3))

    assert "node2 10.187.1.12) than the lab is to have (node1" in caught.value.what
    assert "--nodes 2" in caught.value.fix
    assert lab.hosts_file.read_text() == text


@pytest.mark.parametrize("text", ["", "[all]\nnode1\n", "all: [1]\n", "all:\n  hosts: {node1: 3}\n", "a: b: c\n", "all:\n"])
def test_a_file_that_is_no_lab_inventory_is_refused(tmp_path: Path, text: str) -> None:
    """A file that names no hosts is an error that points at `validate`, never a traceback."""
    path = tmp_path / "hosts.yaml"
    path.write_text(text)

    with pytest.raises(LabError) as caught:
        hosts_of(path)

    assert "validate" in caught.value.fix


def test_the_file_remembers_the_subnet(tmp_path: Path) -> None:
    """After `down`, the same addresses are asked for again; a file without addresses, or with mixed ones, remembers none."""
    lab = a_lab(tmp_path, subnet=IPv4Network("10.187.9.0/24"))
    assert recorded_subnet(lab.hosts_file) is None
    ensure_hosts_file(lab, ANY)

    assert recorded_subnet(lab.hosts_file) == IPv4Network("10.187.9.0/24")

    lab.hosts_file.write_text("all:\n  hosts:\n    a: {ansible_host: 10.0.0.1}\n    b: {ansible_host: 10.0.1.1}\n")
    assert recorded_subnet(lab.hosts_file) is None
