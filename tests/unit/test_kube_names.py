"""What Kubernetes takes as a label or a taint: the edges of its syntax, and whose keys are whose."""

from __future__ import annotations

import pytest

from primus_bootstrap.inventory.rules import kubernetes_names
from primus_bootstrap.inventory.rules.kubernetes_names import label_fault, split_taint, taint_fault
from primus_bootstrap.kubernetes.node_marks import DOMAIN

LONGEST_PREFIX = ".".join(["a" * 49] * 5) + ".abc"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pool", "a"),
        ("pool", ""),
        ("pool", 8),
        ("x" * 63, "y" * 63),
        (f"{LONGEST_PREFIX}/pool", "a"),
        ("example.com/A_b.c-d", "A_b.c-1"),
        ("node-role.kubernetes.io/gpu", ""),
        ("node-restriction.kubernetes.io/pool", "a"),
        ("topology.kubernetes.io/zone", "z1"),
        ("node.kubernetes.io/exclude-from-external-load-balancers", ""),
        ("kueue.x-k8s.io/pool", "a"),
        ("notkubernetes.io/pool", "a"),
    ],
)
def test_a_label_that_a_server_takes_is_taken(key: str, value: object) -> None:
    """The longest that is allowed, an empty value, and prefixes that an administrator may use are no fault."""
    assert len(LONGEST_PREFIX) == 253
    assert label_fault(key, value) is None


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("x" * 64, "a", "its name has 64 characters, at most 63"),
        ("pool", "y" * 64, "its value has 64 characters, at most 63"),
        (f"{LONGEST_PREFIX}d/pool", "a", "its prefix is 254 characters, at most 253"),
        ("a..b/pool", "a", "its prefix is no domain"),
        ("a-.b/pool", "a", "its prefix is no domain"),
        ("A.b/pool", "a", "its prefix is no domain"),
        ("/pool", "a", "its prefix is no domain"),
        ("a/b/pool", "a", "its prefix is no domain"),
        ("pool-", "a", "its name has other characters"),
        ("pool\n", "a", "its name has other characters"),
        ("pool", "a\n", "its value has other characters"),
        ("pool", ".a", "its value has other characters"),
        ("pool", None, "found nothing"),
        ("pool", 1.3, "found a number with a point"),
        ("kubernetes.io/os", "linux", "belongs to Kubernetes' own components"),
        ("beta.kubernetes.io/os", "linux", "belongs to Kubernetes' own components"),
        ("k8s.io/a", "b", "belongs to Kubernetes' own components"),
        ("primus-bootstrap.io/rack", "b", "primus-bootstrap.io is this project's own"),
    ],
)
def test_a_label_that_it_would_refuse_or_that_is_not_ours_is_named(key: str, value: object, what: str) -> None:
    """Each fault says which part is wrong, and ends in what to write."""
    found = label_fault(key, value)

    assert found is not None
    assert what in found[0]
    assert found[1]


@pytest.mark.parametrize(
    "taint", ["gpu=yes:NoSchedule", "gpu:NoExecute", "gpu=:PreferNoSchedule", "node-role.kubernetes.io/gpu:NoSchedule"]
)
def test_a_taint_with_and_without_value_is_taken(taint: str) -> None:
    """`kubectl taint` writes both."""
    assert taint_fault(taint) is None


@pytest.mark.parametrize(
    ("taint", "what"),
    [
        ("gpu=yes", "it has no effect"),
        ("gpu=yes:", "it has no effect"),
        ("gpu=yes:noschedule", "its effect is noschedule"),
        (f"gpu={'y' * 64}:NoSchedule", "its value has 64 characters"),
        ("a.b./c:NoSchedule", "its prefix is no domain"),
        ("node.kubernetes.io/memory-pressure:NoSchedule", "belongs to Kubernetes' own controllers"),
        ("primus-bootstrap.io/drain:NoSchedule", "this project's own"),
        (5, "found int"),
    ],
)
def test_a_taint_that_cannot_stay_is_named(taint: object, what: str) -> None:
    """An effect that there is not, bad syntax, and taints that a controller or we set and lift."""
    found = taint_fault(taint)

    assert found is not None
    assert what in found[0]


def test_a_taint_falls_into_its_parts() -> None:
    """What is not there is empty."""
    assert [split_taint(one) for one in ("a=b:NoSchedule", "a:NoSchedule", "a=b")] == [
        ("a", "b", "NoSchedule"),
        ("a", "", "NoSchedule"),
        ("a", "b", ""),
    ]


def test_our_own_prefix_is_that_of_the_marks() -> None:
    """Two modules name it, because one of them travels to hosts alone."""
    assert kubernetes_names.OURS == DOMAIN
