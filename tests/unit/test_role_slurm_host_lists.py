"""Host lists and partitions of the role slurm: expansion to node names, and compression to Slurm's syntax."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_bootstrap.launch.watch.targets.slurm import SPARE_PARTITION
from tests.unit.role_module import load_role_module

load_role_module("slurm", "slurm_config")
from ansible.module_utils import slurm_host_lists  # noqa: E402 - found once the role is loaded

host_lists: Any = slurm_host_lists
FLEET = host_lists.Fleet(("n1", "n2", "n3", "n10"), {"gpu_node": ["n1", "n2", "n3", "other"], "spare": ["n3"], "empty": ["other"]}, ("n3",))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b", ["a", "b"]),
        ("gpu[01-03,07]", ["gpu01", "gpu02", "gpu03", "gpu07"]),
        ("gpu[9:11]-ib", ["gpu9-ib", "gpu10-ib", "gpu11-ib"]),
        (" a , b[1] ", ["a", "b1"]),
        ("", []),
    ],
)
def test_range_is_expanded(text: str, names: list[str]) -> None:
    """Accepts Slurm's and Ansible's syntax with leading zeros."""
    assert host_lists.expand(text) == names


@pytest.mark.parametrize("text", ["a[1-", "a[3-1]", "a[x]", "a[]", "a]1[", "a[1][2]", "a[0-99999]"])
def test_malformed_range_is_refused(text: str) -> None:
    """The error quotes text that Slurm would interpret differently."""
    with pytest.raises(ValueError, match=r"a"):
        host_lists.expand(text)


@given(st.lists(st.builds("{}{:0{}d}".format, st.sampled_from(["n", "gpu-", "r1n"]), st.integers(0, 120), st.integers(1, 3)), max_size=30))
def test_compression_keeps_all_names(names: list[str]) -> None:
    """Covers any width and order."""
    assert sorted(host_lists.expand(host_lists.compress(names))) == sorted(set(names))


def test_consecutive_names_share_a_bracket() -> None:
    """n9 and n10 are one range; gpu08 and gpu9 are not."""
    assert host_lists.compress(["n10", "n9", "n11"]) == "n[9-11]"
    assert host_lists.compress(["gpu08", "gpu09", "gpu9"]) == "gpu9,gpu[08-09]"


@pytest.mark.parametrize(
    ("wanted", "nodes"),
    [
        ("all", ("n1", "n2", "n10")),
        ("gpu_node", ("n1", "n2")),
        ("spare", ("n3",)),
        (["n10", "n[1-3]"], ("n1", "n2", "n3", "n10")),
        ("empty", ()),
    ],
)
def test_spare_host_needs_an_explicit_partition(wanted: Any, nodes: tuple[str, ...]) -> None:
    """`all` and groups exclude spare hosts; their name and the group spare include them."""
    assert host_lists.select_nodes(wanted, FLEET) == host_lists.NodeSelection(nodes)


def test_unknown_name_is_returned() -> None:
    """It is neither a group nor a node."""
    assert host_lists.select_nodes("n1,n7,nodes", FLEET) == host_lists.NodeSelection(("n1",), ("n7", "nodes"))


def test_spare_hosts_get_their_own_partition() -> None:
    """It copies the default partition and its hosts, is not the default, and exists only if no other holds a spare host."""
    main = {"name": "main", "nodes": "nodes", "default": True, "max_time": "1-00:00:00"}
    first = {"name": "debug", "nodes": "n1"}
    own = {"name": "night", "nodes": "n3"}
    fleet = host_lists.Fleet(("n1", "n2", "n3"), {"nodes": ["n1", "n2", "n3"]}, ("n3",))

    assert host_lists.add_spare_partition([first, main], fleet)[2:] == [
        {**main, "name": "spare", "default": False, "nodes": ["n1", "n2", "n3"]}
    ]
    assert host_lists.add_spare_partition([main, own], fleet) == [main, own]
    assert host_lists.add_spare_partition([main], host_lists.Fleet(("n1",))) == [main]


def test_watcher_uses_the_same_partition_name() -> None:
    """The watcher cannot import from the role, so both define the name."""
    assert host_lists.SPARE == SPARE_PARTITION
