"""Test the names, addresses and folders of a lab."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.inventory.cluster import Cluster
from primus_bootstrap.lab.lab_values import (
    DEFAULT_NAME,
    LabError,
    MachineError,
    check_count,
    check_name,
    cluster_state_dir,
    default_folder,
    make_lab,
    subnet_candidates,
)

SUBNET = IPv4Network("10.187.7.0/24")


def test_nodes_take_suites_in_turn_and_fixed_addresses() -> None:
    """node1, node2, node3 have the first, second and first release and the addresses .11, .12, .13."""
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
    """Spares are the last nodes, and `listed` does not contain them."""
    lab = make_lab("x", Path("/f"), subnet=SUBNET, count=2, suites=("bookworm",), spares=1)

    assert [node.name for node in lab.nodes] == ["node1", "node2", "node3"]
    assert [node.name for node in lab.listed] == ["node1", "node2"]


def test_unknown_release_is_shown_by_its_code_name() -> None:
    """A release without a known name is shown by its code name."""
    lab = make_lab("x", Path("/f"), subnet=SUBNET, count=1, suites=("zesty",))

    assert lab.nodes[0].distribution == "zesty"


@pytest.mark.parametrize("count", [0, -1, 201])
def test_invalid_number_of_hosts_is_refused(count: int) -> None:
    """The fix gives the valid range."""
    with pytest.raises(UsageError) as caught:
        check_count(count)

    assert "1 to 200" in caught.value.fix


@pytest.mark.parametrize("name", ["", "Lab", "1st", "a b", "../x", "x" * 32, "a/b"])
def test_invalid_name_is_refused(name: str) -> None:
    """A name that is invalid for folders, networks or containers raises UsageError."""
    with pytest.raises(UsageError):
        check_name(name)


def test_the_default_lab_has_one_fixed_subnet() -> None:
    """The default lab has exactly one candidate, because inventory/lab/hosts.yaml contains its addresses."""
    assert subnet_candidates(DEFAULT_NAME) == (IPv4Network("10.187.1.0/24"),)


def test_other_labs_have_a_stable_preferred_subnet() -> None:
    """The name determines the preferred subnet. All others follow, except the default lab's."""
    first, second = subnet_candidates("molecule"), subnet_candidates("test")

    assert first == subnet_candidates("molecule")
    assert first[0] != second[0]
    assert set(first) == set(second)
    assert len(first) == len(set(first)) == 253
    assert IPv4Network("10.187.1.0/24") not in first


@pytest.mark.parametrize("base", ["", "/elsewhere"])
def test_state_folder_is_that_of_the_cluster(monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    """The lab and `Cluster.state_dir` use the same folder, with and without PRIMUS_STATE_DIR."""
    monkeypatch.setenv("PRIMUS_STATE_DIR", base)
    cluster = Cluster(name="lab", path=Path("/i/hosts.yaml"), hosts=(), groups={}, view=None)  # type: ignore[arg-type]
    lab = make_lab("lab", Path("/i"), subnet=SUBNET, count=1, suites=("trixie",))

    assert cluster_state_dir(Path("/i"), "lab") == cluster.state_dir
    assert lab.known_hosts == cluster.state_dir / "known_hosts"


def test_default_folder_contains_the_example() -> None:
    """Without --dir, the default lab uses inventory/lab/hosts.yaml."""
    assert default_folder(DEFAULT_NAME) == Path("inventory/lab")


def test_exit_codes_of_the_errors() -> None:
    """As everywhere: 1 if this machine is not ready, and 3 if a request cannot be carried out."""
    assert (MachineError("x", fix="y").exit_code, LabError("x", fix="y").exit_code) == (1, 3)
