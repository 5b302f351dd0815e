"""The phase `verify` calls every role's own proof."""

from __future__ import annotations

from primus_bootstrap import content
from primus_bootstrap.engine.playbooks import load_phases

# Roles whose proof is called elsewhere, with the reason.
ELSEWHERE = {"preflight": "what it judges is what a host is before anything is brought; the phase preflight has just said it of every host"}


def test_the_phase_verify_calls_every_roles_verify() -> None:
    """A tasks/verify.yml that no play of verify.yml calls, nor of what it imports, would prove its effect to nobody."""
    (verify,) = (phase for phase in load_phases(content.playbooks_dir()) if phase.name == "verify")
    called = {call.role for play in verify.plays for call in play.calls if call.entry == "verify"}
    there = {path.parent.parent.name for path in content.roles_dir().glob("*/tasks/verify.yml")}

    assert there - called == set(ELSEWHERE)
    assert called <= there
