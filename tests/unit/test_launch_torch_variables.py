"""primus_bootstrap.launch.ranks.torch_variables: what newer versions of torch call the profile's variables."""

from __future__ import annotations

import pytest

from primus_bootstrap.launch.ranks.torch_variables import renamed as renamed_plan
from primus_bootstrap.launch.runtimes.run_plan import Plan, Variable

OLD, NEW = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"
PROFILE = {OLD: "2000", "NCCL_DEBUG": "WARN"}


def renamed(version: str, *variables: Variable, **inherited: str) -> dict[str, str]:
    """Return the environment of a run with a version of torch."""
    plan = Plan("direct", "t", (), (), "/r", "/", environment=variables, inherited=inherited)
    return renamed_plan(plan, version, PROFILE).full_environment()


@pytest.mark.parametrize(
    ("version", "name"), [("2.8.1", OLD), ("2.9.0", NEW), ("2.13.0+cpu", NEW), ("3.0.0a0+git1", NEW), ("", OLD), ("unknown", OLD)]
)
def test_the_name_follows_the_version(version: str, name: str) -> None:
    """An older torch does not know the new name, a newer one warns of the old; of an unknown one nothing is changed."""
    assert renamed(version, Variable(OLD, "2000", "profile base")) == {name: "2000"}
    assert renamed(version, **{OLD: "2000"}) == {name: "2000"}  # by way of a login shell


def test_what_the_user_chose_stays() -> None:
    """A value of the user's keeps its name, and one under the new name is never replaced."""
    assert renamed("2.13", Variable(OLD, "2000", "user flag --env")) == {OLD: "2000"}
    assert renamed("2.13", **{OLD: "64"}) == {OLD: "64"}
    assert renamed("2.13", Variable(OLD, "2000", "profile base"), **{NEW: "64"}) == {NEW: "64"}
