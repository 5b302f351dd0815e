"""The phase `verify` calls tasks/verify.yml of every role."""

from __future__ import annotations

from primus_bootstrap import content
from primus_bootstrap.engine.playbooks import load_phases

# Roles that the phase does not verify, with the reason.
EXCEPTIONS = {"preflight": "checks hosts before changes; the phase preflight has already run it"}


def test_the_phase_verify_calls_every_verify_file() -> None:
    """A play of verify.yml, or of a playbook that it imports, calls every tasks/verify.yml."""
    (verify,) = (phase for phase in load_phases(content.playbooks_dir()) if phase.name == "verify")
    called = {call.role for play in verify.plays for call in play.calls if call.entry == "verify"}
    existing = {path.parent.parent.name for path in content.roles_dir().glob("*/tasks/verify.yml")}

    assert existing - called == set(EXCEPTIONS), (
        "call tasks/verify.yml of these roles in playbooks/verify.yml or playbooks/verify/<phase>.yml"
    )
    assert called <= existing, "write tasks/verify.yml of these roles"
