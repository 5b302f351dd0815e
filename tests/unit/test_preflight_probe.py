"""The preflight check of clocks, with the uncertainty of the round trip."""

from __future__ import annotations

import pytest

from primus_bootstrap import content
from tests.unit.role_module import load_file

preflight_probe = load_file(content.roles_dir() / "preflight/action_plugins/preflight_probe.py")


@pytest.mark.parametrize(
    ("least_s", "most_s", "expected"),
    [
        pytest.param(-0.1, 0.1, "pass", id="quick answer, same time"),
        pytest.param(-1.0, 1.0, "pass", id="on the limit"),
        pytest.param(2.0, 2.2, "fail", id="ahead"),
        pytest.param(-2.2, -2.0, "fail", id="behind"),
        pytest.param(-0.5, 4.0, "unknown", id="slow answer, perhaps ahead"),
        pytest.param(-4.0, 0.5, "unknown", id="slow answer, perhaps behind"),
        pytest.param(0.9, 1.4, "unknown", id="around the limit"),
        pytest.param(-5.0, 5.0, "unknown", id="very slow answer"),
    ],
)
def test_slow_answer_is_unknown(least_s: float, most_s: float, expected: str) -> None:
    """Pass and fail require that all times between question and answer agree."""
    got = preflight_probe.compare_clock(least_s, most_s, 1.0)

    assert got["verdict"] == expected
    assert bool(got["reason"]) == bool(got["fix"]) == (expected != "pass")


@pytest.mark.parametrize(("spent_s", "tried", "expected"), [(0.2, 1, True), (15.0, 1, True), (25.0, 1, False), (31.0, 2, False)])
def test_slow_probe_is_not_repeated_beyond_its_limit(spent_s: float, tried: int, expected: bool) -> None:  # noqa: FBT001
    """A host that answers within the limit is never given up because of a repeated probe."""
    assert preflight_probe.time_for_another(spent_s, tried, 60.0) is expected
