"""primus_bootstrap.launch.ranks.torch_variables: the profile's variables under the names of newer versions of torch."""

from __future__ import annotations

import pytest

from primus_bootstrap.launch.ranks.torch_variables import renamed as renamed_plan
from primus_bootstrap.launch.run_plan import Plan, Variable

OLD, NEW = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"
PROFILE = {OLD: "2000", "NCCL_DEBUG": "WARN"}


def renamed(version: str, *variables: Variable, **inherited: str) -> dict[str, str]:
    """Return the environment of a run with a version of torch."""
    plan = Plan("direct", "t", (), (), "/r", "/", environment=variables, inherited=inherited)
    return renamed_plan(plan, version, PROFILE).full_environment()


@pytest.mark.parametrize(
    ("version", "name"), [("2.8.1", OLD), ("2.9.0", NEW), ("2.13.0+cpu", NEW), ("3.0.0a0+git1", NEW), ("", OLD), ("unknown", OLD)]
)
def test_the_name_depends_on_the_version(version: str, name: str) -> None:
    """An older torch does not read the new name, and a newer one warns about the old; an unknown version changes nothing."""
    assert renamed(version, Variable(OLD, "2000", "profile base")) == {name: "2000"}
    assert renamed(version, **{OLD: "2000"}) == {name: "2000"}  # set by a login shell


def test_variables_of_the_user_are_unchanged() -> None:
    """The user's variable keeps its name, and the new name is not overwritten."""
    assert renamed("2.13", Variable(OLD, "2000", "user flag --env")) == {OLD: "2000"}
    assert renamed("2.13", **{OLD: "64"}) == {OLD: "64"}
    assert renamed("2.13", Variable(OLD, "2000", "profile base"), **{NEW: "64"}) == {NEW: "64"}
