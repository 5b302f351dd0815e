"""primus_bootstrap.core.suggestions: a known name for an unknown one."""

from __future__ import annotations

import pytest

from primus_bootstrap.core.suggestions import did_you_mean, nearest

KNOWN = ("gpu_node", "slurm_node", "kube_control_plane", "etcd", "verify-env")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("gpu_nod", "gpu_node"),
        ("GPU-Node", "gpu_node"),
        ("node_gpu", "gpu_node"),
        ("ectd", "etcd"),
        ("verify_env", "verify-env"),
        ("verifyenv", "verify-env"),
        ("--etdc", "etcd"),
        ("--gpus", ""),
        ("completely_different_name", ""),
        ("", ""),
    ],
)
def test_a_misspelt_name_is_found(word: str, expected: str) -> None:
    """Typing errors, case, dashes and the order of the words are accepted; another word finds nothing."""
    assert nearest(word, KNOWN) == expected


def test_the_cutoff_decides_how_similar_a_name_has_to_be() -> None:
    """With a higher cutoff fewer names are similar enough."""
    assert [nearest("gpunodes", KNOWN, cutoff=cutoff) for cutoff in (0.6, 0.95)] == ["gpu_node", ""]


def test_the_choices_are_listed_where_nothing_is_similar() -> None:
    """The message always names something that can be typed."""
    assert did_you_mean("etdc", KNOWN) == "did you mean etcd?"
    assert did_you_mean("xyz", ("b", "a", "b")) == "choose from: a, b"
    assert did_you_mean("--bogus", ("--gpu", "--host")) == "choose from: --gpu, --host"


def test_a_name_is_not_suggested_for_itself() -> None:
    """A known name that is invalid for another reason gets the choices."""
    assert did_you_mean("verify-env", KNOWN) == f"choose from: {', '.join(sorted(KNOWN))}"
