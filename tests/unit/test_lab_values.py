"""Names, addresses and folders of a lab."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from primus_bootstrap.inventory.cluster import Cluster
from primus_bootstrap.lab.lab_values import (
    DEFAULT_NAME,
    LabError,
    MachineError,
    check_count,
    check_name,
    default_folder,
    make_lab,
    state_dir,
    subnet_candidates,
)

SUBNET = IPv4Network("10.187.7.0/24")


def test_nodes_take_suites_in_turn_and_fixed_addresses() -> None:
    """node1, node2, node3 are of the first, second, first release and stand at .11, .12, .13."""
    lab = make_lab("x", Path("/f"), subnet=SUBNET, count=3, suites=("bookworm", "trixie"))

    assert [(node.name, node.container, node.suite, node.address) for node in lab.nodes] == [
        ("node1", "primus-x-node1", "bookworm", "10.187.7.11"),
        ("node2", "primus-x-node2", "trixie", "10.187.7.12"),
        ("node3", "primus-x-node3", "bookworm", "10.187.7.13"),
    ]
    assert [node.distribution for node in lab.nodes] == ["Debian 12", "Debian 13", "Debian 12"]
    assert lab.network == "primus-x"
    assert lab.nodes[1].mac == "02:00:0a:bb:07:0c"


def test_spare_nodes_follow_the_listed_ones() -> None:
    """Spares are the last hosts; hosts.yaml does not name them, and all else about them is the same."""
    lab = make_lab("x", Path("/f"), subnet=SUBNET, count=2, suites=("bookworm",), spares=1)

    assert [node.name for node in lab.nodes] == ["node1", "node2", "node3"]
    assert [node.name for node in lab.listed] == ["node1", "node2"]


def test_a_release_without_a_known_number_is_shown_by_its_code_name() -> None:
    """A machine of a release that is newer than this program still has a lab with a readable status."""
    lab = make_lab("x", Path("/f"), subnet=SUBNET, count=1, suites=("zesty",))

    assert lab.nodes[0].distribution == "zesty"


@pytest.mark.parametrize("count", [0, -1, 201])
def test_a_count_that_has_no_addresses_is_refused(count: int) -> None:
    """Fewer than one node or more than a /24 holds is an error that says the range."""
    with pytest.raises(LabError) as caught:
        check_count(count)

    assert "1 to 200" in caught.value.fix


@pytest.mark.parametrize("name", ["", "Lab", "1st", "a b", "../x", "x" * 32, "a/b"])
def test_a_name_that_containers_cannot_bear_is_refused(name: str) -> None:
    """A lab's name becomes a folder, a network and containers: anything else than plain words is an error."""
    with pytest.raises(LabError):
        check_name(name)


def test_the_default_lab_has_one_fixed_subnet() -> None:
    """inventory/lab/hosts.yaml is part of the project, so its addresses never depend on the machine."""
    assert subnet_candidates(DEFAULT_NAME) == (IPv4Network("10.187.1.0/24"),)


def test_other_labs_prefer_the_same_subnet_every_time_and_never_the_default_one() -> None:
    """The preferred subnet follows from the name, every other one is tried after it, the default lab's is left out."""
    first, second = subnet_candidates("molecule"), subnet_candidates("test")

    assert first == subnet_candidates("molecule")
    assert first[0] != second[0]
    assert set(first) == set(second)
    assert len(first) == len(set(first)) == 253
    assert IPv4Network("10.187.1.0/24") not in first


@pytest.mark.parametrize("base", ["", "/elsewhere"])
def test_state_lies_where_the_cluster_looks_for_it(monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    """The lab's pins and `Cluster.state_dir` mean the same folder, with PRIMUS_STATE_DIR and without."""
    monkeypatch.setenv("PRIMUS_STATE_DIR", base)
    cluster = Cluster(name="lab", path=Path("/i/hosts.yaml"), hosts=(), groups={}, view=None)  # type: ignore[arg-type]
    lab = make_lab("lab", Path("/i"), subnet=SUBNET, count=1, suites=("trixie",))

    assert state_dir(Path("/i"), "lab") == cluster.state_dir
    assert lab.known_hosts == cluster.state_dir / "known_hosts"


def test_the_default_folder_is_the_projects_example() -> None:
    """Without --dir, the default lab is the one that inventory/lab/hosts.yaml describes."""
    assert default_folder(DEFAULT_NAME) == Path("inventory/lab")


def test_what_a_machine_lacks_has_an_exit_code_of_its_own() -> None:
    """Scripts tell "cannot be done here" (3) from "went wrong" (1)."""
    assert (MachineError("x", fix="y").exit_code, LabError("x", fix="y").exit_code) == (3, 1)
