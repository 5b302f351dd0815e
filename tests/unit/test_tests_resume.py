"""`--rest` of the tests: which passes remain valid after a change or an interrupted run."""

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
def test_files_that_affect_a_test(changed: str, *, expected: bool) -> None:
    """Code and shared test files do; text, other tests and Molecule scenarios do not."""
    assert matters(changed, LAB) is expected


def test_pass_is_valid_for_equal_code_only() -> None:
    """An unknown commit proves nothing."""
    passes = {f"{LAB}::test_a": "same", f"{LAB}::test_b": "other", f"{LAB}::test_c": "gone"}
    changed: dict[str, list[str] | None] = {"same": ["README.md"], "other": ["roles/x/tasks/main.yml"], "gone": None}

    assert valid_passes(passes, changed) == {f"{LAB}::test_a"}
