"""primus_bootstrap.launch.checks: selection by patterns, the data files, and the table in docs/node-checks.md."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.bench.quarantine.policy import load_policy
from primus_bootstrap.bench.results.step_commands import BenchRequest, step_command
from primus_bootstrap.launch.checks import catalogue, preflight_program
from primus_bootstrap.launch.checks.expected import faults, read_expected
from primus_bootstrap.launch.checks.limits import table
from primus_bootstrap.launch.checks.model import Check
from primus_bootstrap.launch.detect import sysfs
from tests.integration.launch_cli_rig import ROOT
from tests.unit.checks_rig import CHECKS

if TYPE_CHECKING:
    from pathlib import Path

MANUAL = ROOT / "docs" / "node-checks.md"
BEGIN, END = (
    "<!-- checks: renewed by PRIMUS_UPDATE_GOLDEN=1 .venv/bin/pytest tests/unit/test_checks_program.py -->\n",
    "<!-- end of checks -->\n",
)


def _check(area: str, name: str, *records: str) -> Check:
    return Check(name, "", "", lambda _: (), records=records, area=area)


SOME_CHECKS = (
    _check("gpu", "gpu_pcie", "gpu_pcie_width", "gpu_pcie_speed"),
    _check("network", "rdma_ports"),
    _check("network", "link_flaps"),
    _check("host", "kernel_log", "kernel_gpu", "kernel_disk"),
    _check("host", "kernel_taint"),
    _check("host", "versions", "kernel_version", "bios_version"),
)
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
    _, found = catalogue.select(SOME_CHECKS, patterns)

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


WRONG_EXPECTATIONS = [
    ({"gpus": 8, "kernel": "6.8.0-60-generic", "swap": True, "bios": None, "rdma_firmware": {"a": "1"}}, []),
    ({"gpu_modell": "MI300X"}, [("unknown key gpu_modell", "did you mean gpu_model?")]),
    ({"gpus": "eight"}, [("gpus is 'eight', not a number", "give a number: the number of GPUs on the PCI bus")]),
    ({"gpus": True}, [("gpus is True, not a number", "give a number: the number of GPUs on the PCI bus")]),
    ({"swap": 1}, [("swap is 1, not a switch", "give a switch: whether swap may be on")]),
]


@pytest.mark.parametrize(("values", "found"), WRONG_EXPECTATIONS)
def test_unknown_names_and_wrong_types_of_expected_values_are_faults(values: dict[str, object], found: list[tuple[str, str]]) -> None:
    """`validate` and --expect-json report them."""
    assert list(faults(values)) == found


def test_a_bench_names_the_inventory_as_the_source_of_its_expected_values(tmp_path: Path) -> None:
    """Nobody typed its --expect-json. The program accepts the step's command line."""
    step = load_policy().tiers["checks"].steps[0]
    file = tmp_path / "expected.json"
    file.write_text(json.dumps({"gpus": 8}))
    words = step_command(step, BenchRequest("checks", "", "primus-cli", "", "", force=False), "auto")["argv"][2:]

    options = preflight_program._parser().parse([str(file) if word == "{expected}" else word for word in words])
    expected = read_expected(sysfs.Host(tmp_path), options.expect_json, source=options.expect_source)

    assert (expected.get("gpus"), expected.source("gpus")) == (8, "bench_expected or gpu_env_count in hosts.yaml")
