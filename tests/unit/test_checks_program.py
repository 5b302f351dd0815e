"""primus_bootstrap.launch.checks: selection by patterns, the data files, and the table in docs/node-checks.md."""

from __future__ import annotations

import os

import pytest

from primus_bootstrap.launch.checks import catalogue, preflight_program
from primus_bootstrap.launch.checks.limits import table
from tests.integration.launch_cli_rig import ROOT
from tests.unit.checks_rig import CHECKS

MANUAL = ROOT / "docs" / "node-checks.md"
BEGIN, END = "<!-- checks: renewed by PRIMUS_UPDATE_GOLDEN=1 pytest tests/unit/test_checks_program.py -->\n", "<!-- end of checks -->\n"


PATTERNS = [
    ("gpu_pcie", {"gpu_pcie_width", "gpu_pcie_speed"}),
    ("preflight_gpu_pcie_width", {"gpu_pcie_width"}),
    ("gpu_pcie,!*_speed", {"gpu_pcie_width"}),
    ("network,!rdma_*", {"link_flaps"}),
    ("kernel_*,!kernel_log", {"kernel_taint", "kernel_version"}),
]


@pytest.mark.parametrize(("patterns", "names"), PATTERNS)
def test_patterns_select_records(patterns: str, names: set[str]) -> None:
    """Patterns include and exclude areas, checks and records, with or without the prefix."""
    _, found = catalogue.select(catalogue.all_checks(), patterns)

    assert found == names


def test_every_limit_and_message_names_its_source() -> None:
    """Each entry also has its value, or its patterns and fix."""
    messages = table("kernel_messages")

    assert [name for name, entry in table("limits").items() if not entry["source"] or "value" not in entry] == []
    assert [name for name, entry in messages.items() if not (entry["source"] and entry["fix"] and entry["patterns"])] == []


def test_no_two_checks_write_the_same_record() -> None:
    """All checks are found, and their record names are unique."""
    names = [name for check in CHECKS.values() for name in check.record_names]

    assert len(CHECKS) >= 30
    assert len(names) == len(set(names))


def rows() -> str:
    """Return the tables of the manual."""
    lines = ["| area | check | passes where | reads | needs |", "|---|---|---|---|---|"]
    for check in catalogue.all_checks():
        records = "" if not check.records else " (" + ", ".join(f"`{name}`" for name in check.records) + ")"
        lines.append(f"| {check.area} | `{check.name}`{records} | {check.meaning} | {check.reads} | {', '.join(check.needs)} |")
    expected = [f"| `{name}` | {entry['type']} | {entry['meaning']} |" for name, entry in table("expected").items()]
    return "\n".join([*lines, "", "Keys of `--expect-json`:", "", "| key | type | meaning |", "|---|---|---|", *expected]) + "\n"


def test_the_manual_lists_every_check_and_expectation() -> None:
    """The tables of docs/node-checks.md are generated from the catalogue."""
    text = MANUAL.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    expected = f"{before}{BEGIN}\n{rows()}\n{END}{after}"
    if os.environ.get("PRIMUS_UPDATE_GOLDEN"):
        MANUAL.write_text(expected)

    assert MANUAL.read_text() == expected, f"{MANUAL} is not current: run `PRIMUS_UPDATE_GOLDEN=1 .venv/bin/pytest {__file__}`"


def test_every_option_of_the_program_is_in_the_help_of_the_task() -> None:
    """Except --sysfs, which is for tests and tools, and the older spellings of AMD Primus."""
    options = {
        next(word for word in action.option_strings if word[:2] == "--")
        for action in preflight_program._parser()._actions
        if action.option_strings
    }
    task = (ROOT / "primus_bootstrap/launch/builtin_tasks/preflight.py").read_text()

    assert sorted(option for option in options - {"--help", "--sysfs"} if option not in task) == []
