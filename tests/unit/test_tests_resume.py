"""`--rest` of the tests themselves: which pass still holds after which change, and what a cut-off run leaves to the next."""

from __future__ import annotations

import pytest

from tests.resume import matters, valid_passes

LAB = "tests/lab/test_apply.py"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("roles/slurm/tasks/main.yml", True),
        ("primus_bootstrap/engine/run.py", True),
        ("constraints.txt", True),
        ("tests/conftest.py", True),
        ("tests/lab/lab_rig.py", True),
        (LAB, True),
        ("tests/lab/test_probe.py", False),
        ("tests/unit/slurm_rig.py", True),
        ("tests/kubernetes/fake_nodes.py", True),
        ("docs/slurm.md", False),
        ("roles/slurm/README.md", False),
        ("roles/slurm/molecule/default/verify.yml", False),
        ("Makefile", False),
    ],
)
def test_what_can_matter_to_a_test(changed: str, *, expected: bool) -> None:
    """Code and what tests share does; text, other tests and Molecule's scenarios do not."""
    assert matters(changed, LAB) is expected


def test_a_pass_holds_on_code_that_is_known_to_be_the_same() -> None:
    """A commit that nobody knows any more proves nothing."""
    passes = {f"{LAB}::test_a": "same", f"{LAB}::test_b": "other", f"{LAB}::test_c": "gone"}
    changed: dict[str, list[str] | None] = {"same": ["README.md"], "other": ["roles/x/tasks/main.yml"], "gone": None}

    assert valid_passes(passes, changed) == {f"{LAB}::test_a"}
