"""Do the services that this host is there for run? Asks systemd; starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finding import FAIL, PASS, UNKNOWN, ask, finding, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from finding import Finding, Settings


def judge(settings: Settings) -> Iterator[Finding]:
    """Judge every unit of `units`; one that is just starting is unknown."""
    properties = "--property=LoadState,ActiveState,SubState"
    status, output = ask(["systemctl", "show", properties, "--", *settings["units"]])
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in output.split("\n\n")]
    if status != 0 or len(blocks) != len(settings["units"]):
        fix = "see `systemctl status`; systemd itself does not answer"
        yield finding("unit", UNKNOWN, source="node_health_units", reason=f"systemctl ended with {status}: {output[-200:]}", fix=fix)
        return
    for unit, state in zip(settings["units"], blocks):  # noqa: B905 (Python 3.9 has no strict)
        yield judge_state(unit, state)


def judge_state(unit: str, state: dict[str, str]) -> Finding:
    """Judge what systemd says of one unit."""
    fields = {
        "device": unit,
        "expected": "active",
        "source": "node_health_units",
        "fix": f"see `journalctl -u {unit}`, mend it, and start it",
    }
    word, detail = state.get("ActiveState", ""), state.get("SubState", "")
    if state.get("LoadState") != "loaded":
        said = state.get("LoadState", "unknown").replace("-", " ")
        fields["fix"] = "install it (apply its phase), or correct node_health_units"
        return finding("unit", FAIL, **fields, found=said, reason=f"{unit} is {said}")
    if word in ("active", "reloading"):
        return finding("unit", PASS, **fields, found=word)
    # A service that systemd starts again and again is between two crashes, not on its way up.
    verdict = UNKNOWN if word == "activating" and detail != "auto-restart" else FAIL
    return finding("unit", verdict, **fields, found=f"{word} ({detail})", reason=f"{unit} is {word} ({detail})")


if __name__ == "__main__":
    serve(judge)
