"""Test the syntax of labels and taints, and the reserved keys."""

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
def test_valid_label_is_accepted(key: str, value: object) -> None:
    """The longest label, an empty value and a custom prefix are valid."""
    assert len(LONGEST_PREFIX) == 253
    assert label_fault(key, value) is None


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("x" * 64, "a", "the name of its key has 64 characters, at most 63"),
        ("pool", "y" * 64, "its value has 64 characters, at most 63"),
        (f"{LONGEST_PREFIX}d/pool", "a", "the prefix of its key has 254 characters, at most 253"),
        ("a..b/pool", "a", "the prefix of its key is not a domain"),
        ("a-.b/pool", "a", "the prefix of its key is not a domain"),
        ("A.b/pool", "a", "the prefix of its key is not a domain"),
        ("/pool", "a", "the prefix of its key is not a domain"),
        ("a/b/pool", "a", "the prefix of its key is not a domain"),
        ("pool-", "a", "the name of its key contains an invalid character"),
        ("pool\n", "a", "the name of its key contains an invalid character"),
        ("pool", "a\n", "its value contains an invalid character"),
        ("pool", ".a", "its value contains an invalid character"),
        ("pool", None, "found nothing"),
        ("pool", 1.3, "found a decimal number"),
        ("kubernetes.io/os", "linux", "the prefix is reserved for Kubernetes"),
        ("beta.kubernetes.io/os", "linux", "the prefix is reserved for Kubernetes"),
        ("k8s.io/a", "b", "the prefix is reserved for Kubernetes"),
        ("primus-bootstrap.io/rack", "b", "the prefix primus-bootstrap.io is reserved for this project"),
    ],
)
def test_invalid_or_reserved_label_is_refused(key: str, value: object, what: str) -> None:
    """The message names the wrong part, and the fix what to write."""
    found = label_fault(key, value)

    assert found is not None
    assert what in found[0]
    assert found[1]


@pytest.mark.parametrize(
    "taint", ["gpu=yes:NoSchedule", "gpu:NoExecute", "gpu=:PreferNoSchedule", "node-role.kubernetes.io/gpu:NoSchedule"]
)
def test_valid_taint_is_accepted(taint: str) -> None:
    """A taint with and without a value is valid."""
    assert taint_fault(taint) is None


@pytest.mark.parametrize(
    ("taint", "what"),
    [
        ("gpu=yes", "it has no effect"),
        ("gpu=yes:", "it has no effect"),
        ("gpu=yes:noschedule", "noschedule is not an effect"),
        (f"gpu={'y' * 64}:NoSchedule", "its value has 64 characters"),
        ("a.b./c:NoSchedule", "the prefix of its key is not a domain"),
        ("node.kubernetes.io/memory-pressure:NoSchedule", "the prefix is reserved for Kubernetes"),
        ("primus-bootstrap.io/drain:NoSchedule", "reserved for this project"),
        (5, "found int"),
    ],
)
def test_invalid_or_reserved_taint_is_refused(taint: object, what: str) -> None:
    """Unknown effects, bad syntax, and taints of controllers or this project are refused."""
    found = taint_fault(taint)

    assert found is not None
    assert what in found[0]


def test_taint_is_split() -> None:
    """Missing parts are empty."""
    assert [split_taint(one) for one in ("a=b:NoSchedule", "a:NoSchedule", "a=b")] == [
        ("a", "b", "NoSchedule"),
        ("a", "", "NoSchedule"),
        ("a", "b", ""),
    ]


def test_prefix_equals_that_of_the_marks() -> None:
    """Both modules have the same prefix; node_marks.py cannot import it."""
    assert kubernetes_names.OURS == DOMAIN
