"""Alert rules: validated and tested with promtool; required labels and documentation."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from primus_bootstrap import content

FILES = content.roles_dir() / "prometheus" / "files"
RULES = sorted((FILES / "rules").glob("*.yml"))
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: prometheus); Molecule runs these tests too"
)


def alerts() -> dict[str, dict[str, Any]]:
    """Return every alert by name."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text("utf-8"))["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


@needs_promtool
@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_promtool_accepts_the_rules_and_their_tests(path: Any) -> None:
    """Each rule fires in its tests and nowhere else."""
    for command in (["check", "rules", str(path)], ["test", "rules", str(FILES / "rules_tests" / path.name)]):
        done = subprocess.run([str(PROMTOOL), *command], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_in_a_test() -> None:
    """An untested rule may never fire."""
    texts = "".join(path.read_text("utf-8") for path in (FILES / "rules_tests").glob("*.yml"))
    tested = set(re.findall(r'alertname="(\w+)"', texts)) | set(re.findall(r"alertname: (\w+)", texts))

    assert set(alerts()) <= tested
    assert [path.name for path in RULES] == sorted(path.name for path in (FILES / "rules_tests").glob("*.yml"))


@pytest.mark.parametrize("name", sorted(alerts()))
def test_alert_has_severity_summary_and_fix(name: str) -> None:
    """Severity is one of four; the summary names the host if there is one."""
    rule = alerts()[name]

    assert rule["labels"]["severity"] in {"critical", "warning", "info", "none"}
    assert len(rule["annotations"]["summary"]) > 10
    assert len(rule["annotations"].get("fix", "")) > 10 or rule["labels"]["severity"] == "none"


def test_manual_lists_every_alert() -> None:
    """docs/monitoring.md lists exactly these alerts by severity."""
    text = (content.content_root() / "docs" / "monitoring.md").read_text("utf-8")
    rows = re.findall(r"(?m)^\| (critical|warning|info, none) \| (.*) \|$", text)
    documented = {name: severity for severity, names in rows for name in re.findall(r"`(\w+)`", names)}

    assert set(documented) == set(alerts())
    assert {name: severity for name, severity in documented.items() if alerts()[name]["labels"]["severity"] not in severity} == {}
