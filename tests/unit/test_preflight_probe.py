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
