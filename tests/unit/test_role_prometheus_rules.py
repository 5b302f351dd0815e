"""Alert rules: tests, required labels and documentation. tests/integration/test_role_prometheus_rules_real.py runs promtool."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from primus_bootstrap import content

FILES = content.roles_dir() / "prometheus" / "files"
RULES = sorted((FILES / "rules").glob("*.yml"))


def alerts() -> dict[str, dict[str, Any]]:
    """Return every alert by name."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text("utf-8"))["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


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
