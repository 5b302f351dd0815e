"""Check that the systemd units of this host are active. Starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finding import FAIL, PASS, SKIPPED, UNKNOWN, finding, run, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from finding import Finding, Settings

    State = dict[str, str]

PROPERTIES = "LoadState,ActiveState,SubState,UnitFileState,Job,InactiveExitTimestampMonotonic,NRestarts"
SITE, MANAGED = "node_health_units", "node_health_managed_units"


def check(settings: Settings) -> Iterator[Finding]:
    """Check every unit of `units`, and those of `managed` that this host has."""
    site, managed = settings["units"], settings.get("managed", [])
    states, problem = read_states([*site, *managed])
    if len(states) != len(site) + len(managed):
        fix = "run `systemctl status` on the host; systemd does not answer"
        yield finding("unit", UNKNOWN, source=SITE if site else MANAGED, reason=problem, fix=fix)
        return
    for unit, state in zip(site, states):  # noqa: B905 (Python 3.9 has no strict)
        yield check_state(unit, state)
    for unit, state in zip(managed, states[len(site) :]):  # noqa: B905
        yield check_managed(unit, state)


def read_states(units: Sequence[str]) -> tuple[list[State], str]:
    """Return the properties of each unit, and the problem if systemd does not return them."""
    status, output = run(["systemctl", "show", f"--property={PROPERTIES}", "--", *units])
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in output.split("\n\n")]
    complete = status == 0 and len(blocks) == len(units)
    return (blocks, "") if complete else ([], f"systemctl exited with {status}: {output[-200:]}")


def check_managed(unit: str, state: State) -> Finding:
    """Check a unit that another role installs, perhaps in a later phase.

    A unit that is not installed is skipped. One that is disabled, or was not started since the boot, is unknown: a host is in this state
    during an apply and after `node remove`, and must be neither drained nor resumed then. A unit that ran and does not run fails.
    """
    loaded, active = state.get("LoadState", ""), state.get("ActiveState", "")
    fields = {"device": unit, "expected": "active", "source": MANAGED, "fix": f"apply the phase that installs {unit}, or start it"}
    if loaded == "not-found":
        return finding("unit", SKIPPED, **fields, found="not found", reason=f"{unit} is not installed yet")
    enabled = state.get("UnitFileState", "")
    if active in ("inactive", "failed") and loaded in ("loaded", "masked") and not enabled.startswith("enabled"):
        found = f"{active}, {enabled or loaded}"
        return finding("unit", UNKNOWN, **fields, found=found, reason=f"{unit} is neither running nor enabled")
    if active == "inactive" and state.get("InactiveExitTimestampMonotonic") == "0" and not has_job(state):
        reason = f"{unit} is enabled and was not started since the boot"
        return finding("unit", UNKNOWN, **fields, found="never started", reason=reason)
    return check_state(unit, state, source=MANAGED)


def check_state(unit: str, state: State, source: str = SITE) -> Finding:
    """Check a unit that must be active; unknown while it starts or is about to."""
    fields = {
        "device": unit,
        "expected": "active",
        "source": source,
        "fix": f"see `journalctl -u {unit}`, correct the error, and run `systemctl start {unit}`",
    }
    active, detail = state.get("ActiveState", ""), state.get("SubState", "")
    if state.get("LoadState") != "loaded":
        loaded = state.get("LoadState", "unknown").replace("-", " ")
        fields["fix"] = f"install it (apply its phase), or correct {source}"
        return finding("unit", FAIL, **fields, found=loaded, reason=f"{unit} is {loaded}")
    if active in ("active", "reloading"):
        return finding("unit", PASS, **fields, found=active)
    # A unit that systemd restarts repeatedly crashes; it is not starting. A manual restart has a job until the unit is active again, and
    # resets NRestarts.
    crashes = int(state.get("NRestarts") or 0) if active == "activating" else 0
    starts = active == "activating" or has_job(state)
    verdict = UNKNOWN if starts and not crashes and not detail.startswith("auto-restart") else FAIL
    restarts = f", and systemd has restarted it {crashes} times" if crashes else ""
    return finding("unit", verdict, **fields, found=f"{active} ({detail})", reason=f"{unit} is {active} ({detail}){restarts}")


def has_job(state: State) -> bool:
    """Return whether systemd is about to start, stop or restart the unit."""
    return state.get("Job", "") not in ("", "0")


if __name__ == "__main__":
    serve(check)
