"""Do the services that this host is there for run? Asks systemd; starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finding import FAIL, PASS, SKIPPED, UNKNOWN, ask, finding, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from finding import Finding, Settings

    State = dict[str, str]

PROPERTIES = "LoadState,ActiveState,SubState,UnitFileState,Job,InactiveExitTimestampMonotonic,NRestarts"
STATED, BROUGHT = "node_health_units", "node_health_managed_units"


def judge(settings: Settings) -> Iterator[Finding]:
    """Judge every unit of `units`, and those of `brought` that this host has."""
    stated, brought = settings["units"], settings.get("brought", [])
    states, words = ask_states([*stated, *brought])
    if len(states) != len(stated) + len(brought):
        fix = "see `systemctl status`; systemd itself does not answer"
        yield finding("unit", UNKNOWN, source=STATED if stated else BROUGHT, reason=words, fix=fix)
        return
    for unit, state in zip(stated, states):  # noqa: B905 (Python 3.9 has no strict)
        yield judge_state(unit, state)
    for unit, state in zip(brought, states[len(stated) :]):  # noqa: B905
        yield judge_brought(unit, state)


def ask_states(units: Sequence[str]) -> tuple[list[State], str]:
    """Return what systemd says of each unit, and its words where it says something else."""
    status, output = ask(["systemctl", "show", f"--property={PROPERTIES}", "--", *units])
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in output.split("\n\n")]
    right = status == 0 and len(blocks) == len(units)
    return (blocks, "") if right else ([], f"systemctl ended with {status}: {output[-200:]}")


def judge_brought(unit: str, state: State) -> Finding:
    """Judge a unit that another role brings, which may be one of the phases after this one.

    Not on this host yet is skipped. Not enabled, or not started since boot, is what a host looks like in the middle of an apply and
    after `node remove`: unknown, which takes no node out and lets none back in. What was let run and does not run is a fail.
    """
    loaded, word = state.get("LoadState", ""), state.get("ActiveState", "")
    fields = {"device": unit, "expected": "active", "source": BROUGHT, "fix": "apply the phase that brings it, or start it"}
    if loaded == "not-found":
        return finding("unit", SKIPPED, **fields, found="not found", reason=f"{unit} is not on this host yet")
    enabled = state.get("UnitFileState", "")
    if word in ("inactive", "failed") and loaded in ("loaded", "masked") and not enabled.startswith("enabled"):
        found = f"{word}, {enabled or loaded}"
        return finding("unit", UNKNOWN, **fields, found=found, reason=f"{unit} does not run, and is not to start at boot either")
    if word == "inactive" and state.get("InactiveExitTimestampMonotonic") == "0" and not has_job(state):
        reason = f"{unit} is enabled, and nobody has started it since this host booted"
        return finding("unit", UNKNOWN, **fields, found="never started", reason=reason)
    return judge_state(unit, state, source=BROUGHT)


def judge_state(unit: str, state: State, source: str = STATED) -> Finding:
    """Judge what systemd says of one unit that has to run; one that is starting, or about to be, is unknown."""
    fields = {
        "device": unit,
        "expected": "active",
        "source": source,
        "fix": f"see `journalctl -u {unit}`, mend it, and start it",
    }
    word, detail = state.get("ActiveState", ""), state.get("SubState", "")
    if state.get("LoadState") != "loaded":
        said = state.get("LoadState", "unknown").replace("-", " ")
        fields["fix"] = f"install it (apply its phase), or correct {source}"
        return finding("unit", FAIL, **fields, found=said, reason=f"{unit} is {said}")
    if word in ("active", "reloading"):
        return finding("unit", PASS, **fields, found=word)
    # A service that systemd starts again and again is between two crashes, not on its way up, also while it tries once more. A restart
    # that was asked for leaves a job with systemd until the service is up again, also while it still stops, and begins the count anew.
    crashes = int(state.get("NRestarts") or 0) if word == "activating" else 0
    starts = word == "activating" or has_job(state)
    verdict = UNKNOWN if starts and not crashes and not detail.startswith("auto-restart") else FAIL
    again = f", and systemd has started it again {crashes} times" if crashes else ""
    return finding("unit", verdict, **fields, found=f"{word} ({detail})", reason=f"{unit} is {word} ({detail}){again}")


def has_job(state: State) -> bool:
    """Tell whether systemd is about to start, stop or restart a unit: its state is not the last word."""
    return state.get("Job", "") not in ("", "0")


if __name__ == "__main__":
    serve(judge)
