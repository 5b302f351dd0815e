"""Edits of hosts.yaml change only the requested lines."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from primus_bootstrap import content
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.ansible.view import expand_hosts
from primus_bootstrap.inventory.edit.host_edits import NewHost, direct_groups, host_variables, with_host, with_value, without_host
from primus_bootstrap.inventory.edit.host_ranges import without_name
from primus_bootstrap.inventory.source.source_map import map_source

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = sorted(content.topologies_dir().glob("*/hosts.yaml"))
TYPICAL = """\
# the cluster of Tübingen
all:
  vars: {cluster_name: "tü"}   # quoted
  hosts:
    ctl1:   {ansible_host: 10.0.0.1}
    gpu[01:04]: {rack: 'r1'} # bought in May

    # a different model
    gpu09:
      ansible_host: 10.0.0.9
      site_note: |
        text of two
        lines

  children:
    gpu_node:
      hosts:
        gpu[01:04]:
        gpu09:
    slurm_node: {children: {gpu_node: }}
    slurm_controller: {hosts: {ctl1: }}
    spare:
"""


def changes(before: str, after: str) -> list[str]:
    """Return the removed (-) and added (+) lines, in order."""
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), n=0)
    return [line.rstrip("\n") for line in lines if not line.startswith(("---", "+++", "@@"))]


def members(text: str) -> dict[str, list[str]]:
    """Return the hosts that each group lists itself."""
    found: dict[str, list[str]] = {}
    root = yaml.compose(text, Loader=yaml.CSafeLoader)
    assert root
    for entry in map_source(root, "hosts.yaml", expand=expand_hosts).hosts:
        found.setdefault(entry.group, []).extend(entry.hosts)
    return found


def test_add_a_host() -> None:
    """The variables are added to `all` in the style of its last host, and the name at the end of each group."""
    new = NewHost("gpu10", ("gpu_node", "spare"), {"ansible_host": "10.0.0.10", "site_id": 7, "site_text": "7"})

    assert changes(TYPICAL, with_host(TYPICAL, new)) == [
        "+    gpu10:",
        "+      ansible_host: 10.0.0.10",
        "+      site_id: 7",
        "+      site_text: '7'",
        "+        gpu10:",
        "+      hosts:",
        "+        gpu10:",
    ]


def test_add_a_host_to_a_group_and_its_parent() -> None:
    """The host is added only to the child `gpu_node`, not to its parent `slurm_node`."""
    text = with_host(TYPICAL, NewHost("gpu10", ("slurm_node", "gpu_node")))

    assert "gpu10" in members(text)["gpu_node"]
    assert "slurm_node" not in members(text)


def test_add_a_host_to_new_groups() -> None:
    """New groups become the last children of `all`, in the given order."""
    assert changes(TYPICAL, with_host(TYPICAL, NewHost("x1", ("juicefs_client", "container_host"))))[-6:] == [
        "+    juicefs_client:",
        "+      hosts:",
        "+        x1:",
        "+    container_host:",
        "+      hosts:",
        "+        x1:",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("all: {children: {gpu_node: {hosts: {n1: , n2: }}}}\n", "all: {children: {gpu_node: {hosts: {n1: , n2: , x: {site_a: 1}}}}}\n"),
        ("all: {children: {gpu_node: {hosts: {}}}}", "all: {children: {gpu_node: {hosts: {x: {site_a: 1}}}}}"),
        ('{"all": {"children": {"gpu_node": {"hosts": {\n  "n1": {}\n}}}}}',
         '{"all": {"children": {"gpu_node": {"hosts": {\n  "n1": {},\n  "x": {"site_a": 1}\n}}}}}'),
        ("gpu_node:\n  hosts:\n    n1:", "gpu_node:\n  hosts:\n    n1:\n    x: {site_a: 1}"),
        ("gpu_node:\n  hosts:\nother:\n", "gpu_node:\n  hosts:\n    x: {site_a: 1}\nother:\n"),
        ("all:\n  hosts: {n1: }\n", "all:\n  hosts: {n1: , x: {site_a: 1}}\n  children:\n    gpu_node:\n      hosts:\n        x:\n"),
        ("other:\n  hosts: {n1: }\n", "other:\n  hosts: {n1: }\ngpu_node:\n  hosts:\n    x: {site_a: 1}\n"),
    ],
)  # fmt: skip
def test_add_a_host_keeps_the_style_of_the_group(before: str, after: str) -> None:
    """Flow style, an empty mapping, JSON, no final line end, a group without content, and no group."""
    assert with_host(before, NewHost("x", ("gpu_node",), {"site_a": 1})) == after


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_adding_and_removing_a_host_restores_the_example(path: Path) -> None:
    """A host that is added and removed again leaves the file the same, byte for byte."""
    text = path.read_text()
    groups = tuple(name for name in ("gpu_node", "slurm_login", "kube_node") if members(text).get(name))
    more = with_host(text, NewHost("new.example", groups, {"ansible_host": "10.9.9.9"}))

    assert more != text
    assert without_host(more, "new.example") == text


def test_remove_a_host_from_a_range() -> None:
    """Both halves of the range keep the variables; the first one keeps the comment."""
    assert changes(TYPICAL, without_host(TYPICAL, "gpu02")) == [
        "-    gpu[01:04]: {rack: 'r1'} # bought in May",
        "+    gpu01: {rack: 'r1'} # bought in May",
        "+    gpu[03:04]: {rack: 'r1'}",
        "-        gpu[01:04]:",
        "+        gpu01:",
        "+        gpu[03:04]:",
    ]


def test_remove_a_host_with_block_style_variables() -> None:
    """A multi-line string is removed, the blank line below it stays."""
    assert changes(TYPICAL, without_host(TYPICAL, "gpu09")) == [
        "-    gpu09:",
        "-      ansible_host: 10.0.0.9",
        "-      site_note: |",
        "-        text of two",
        "-        lines",
        "-        gpu09:",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: {hosts: {n1: , n2: {x: 1}, n3: }}\n", "a: {hosts: {n1: , n3: }}\n"),
        ("a: {hosts: {n1: , n2: }}\n", "a: {hosts: {n1: }}\n"),
        ("a: {hosts: {n2: }}\n", "a: {hosts: {}}\n"),
        ('a: {hosts: {"n[1:3]": {x: 1}, m: }}\n', 'a: {hosts: {"n1": {x: 1}, "n3": {x: 1}, m: }}\n'),
        ("a:\n  hosts:\n    n1:\n    n2:", "a:\n  hosts:\n    n1:"),
        ("a:\n  hosts:\n    n2: # last\nb:\n", "a:\n  hosts:\nb:\n"),
    ],
)
def test_remove_a_host_in_any_style(before: str, after: str) -> None:
    """First, last and only entries, ranges in quotes, and no final line end."""
    assert without_host(before, "n2") == after


def test_change_a_value() -> None:
    """Only the value changes."""
    assert changes(TYPICAL, with_value(TYPICAL, "gpu09", "ansible_host", "10.0.0.99")) == [
        "-      ansible_host: 10.0.0.9",
        "+      ansible_host: 10.0.0.99",
    ]


@pytest.mark.parametrize(("host", "name"), [("gpu02", "rack"), ("gpu09", "rack"), ("unknown", "rack")])
def test_a_value_of_a_range_is_not_changed_for_one_host(host: str, name: str) -> None:
    """The variable of a range also applies to other hosts, so the edit fails."""
    with pytest.raises(PlanError, match=f"does not set {name} for {host} alone"):
        with_value(TYPICAL, host, name, "r2")


@pytest.mark.parametrize(
    "text",
    ["a:\n  hosts: &h\n    n1:\nb:\n  hosts: *h\n", "a:\n  hosts: &h {n1: }\nb:\n  hosts:\n    <<: *h\n    n3:\n", "a: {hosts: n1}\n"],
    ids=["alias", "merge", "text"],
)
def test_an_edit_that_would_change_other_groups_fails(text: str) -> None:
    """An alias or merge would change two groups; a string in place of a mapping cannot be extended."""
    with pytest.raises(PlanError, match="cannot edit safely") as error:
        with_host(text, NewHost("n9", ("a",)))

    assert "edit hosts.yaml yourself" in error.value.fix


def test_remove_a_host_from_an_aliased_mapping() -> None:
    """The host is removed once and leaves both groups."""
    assert without_host("a:\n  hosts: &h\n    n1:\n    n2:\nb:\n  hosts: *h\n", "n1") == "a:\n  hosts: &h\n    n2:\nb:\n  hosts: *h\n"


def test_a_range_with_an_anchor_cannot_be_split() -> None:
    """Both halves would define the same anchor."""
    with pytest.raises(PlanError, match="cannot edit safely"):
        without_host("a:\n  hosts:\n    n[1:3]: &v\n      x: 1\n", "n2")


def test_read_the_variables_and_groups_of_a_host() -> None:
    """Variables come from ranges and from the host's own entry; the groups do not include `all`."""
    assert {name: node.value for name, node in host_variables(TYPICAL, "gpu03").items()} == {"rack": "r1"}
    assert set(host_variables(TYPICAL, "gpu09")) == {"ansible_host", "site_note"}
    assert direct_groups(TYPICAL, "gpu03") == ("gpu_node",)


@pytest.mark.parametrize(
    ("pattern", "name", "left"),
    [
        ("gpu[01:16]", "gpu07", ("gpu[01:06]", "gpu[08:16]")),
        ("gpu[01:16]", "gpu01", ("gpu[02:16]",)),
        ("gpu[8:12]", "gpu10", ("gpu[8:9]", "gpu[11:12]")),
        ("gpu[01:16:3]", "gpu07", ("gpu[01:04:3]", "gpu[10:16:3]")),
        ("r[1:2]n[1:3]", "r1n2", ("r1n1", "r1n3", "r2n[1:3]")),
        ("n[a:d].x", "nb.x", ("na.x", "n[c:d].x")),
        ("n1", "n1", ()),
        ("n1", "n2", ("n1",)),
    ],
)
def test_remove_a_name_from_a_range(pattern: str, name: str, left: tuple[str, ...]) -> None:
    """Width, step, letters and several ranges are kept; a single name is not written as a range."""
    assert without_name(pattern, name, expand_hosts) == left


@given(
    low=st.integers(0, 30),
    size=st.integers(1, 40),
    width=st.integers(1, 3),
    step=st.integers(1, 4),
    inner=st.integers(0, 3),
    pick=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_range_without_a_name_expands_to_the_other_names(
    *, low: int, size: int, width: int, step: int, inner: int, pick: st.DataObject
) -> None:
    """The remaining patterns expand to the same names in the same order, without the removed one."""
    tail = f"x[0:{inner}]" if inner else ""
    high = f"{low + size:0{width}}"
    pattern = f"h[{low:0{len(high)}}:{high}:{step}]{tail}"
    names = expand_hosts(pattern)
    name = pick.draw(st.sampled_from(names))

    left = without_name(pattern, name, expand_hosts)
    assert [one for part in left for one in expand_hosts(part)] == [one for one in names if one != name]
