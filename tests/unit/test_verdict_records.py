"""Shared code `verdict_records`: the records of a verification, and how it ends its module."""

from __future__ import annotations

import json
from typing import Any

import pytest

from primus_bootstrap.core.verdicts import FIELDS, parse_verdict
from tests.unit.role_module import EndedError, FakeModule, load_role_module

Verdicts: Any = load_role_module("munge", "munge_effects").Verdicts


def finish(verdicts: Any, **result: Any) -> tuple[str, dict[str, Any]]:
    """Return how the module ends."""
    with pytest.raises(EndedError) as ended:
        verdicts.finish(FakeModule(), **result)
    return ended.value.args[0], ended.value.args[1]


def test_records_have_the_common_format() -> None:
    """Records have only the common fields. A pass has neither reason nor fix; another verdict has a reason even if none is given."""
    verdicts = Verdicts("munge", "n1")
    verdicts.add("key", "pass", expected="a", found="a", reason="unused", fix="unused")
    verdicts.add("answers", "unknown", expected="a credential", fix="wait", device="d")
    verdicts.skip("other", "not here", host="n2")
    passed, unknown, skipped = verdicts.records

    assert {field for record in verdicts.records for field in record} <= set(FIELDS)
    assert [parse_verdict(record).verdict for record in verdicts.records] == ["pass", "unknown", "skipped"]
    assert not {"reason", "fix", "device"} & set(passed)
    assert (passed["check"], passed["host"], passed["source"]) == ("munge.key", "n1", "roles/munge/meta/argument_specs.yml")
    assert (unknown["reason"], unknown["fix"], unknown["device"]) == ("expected a credential, found nothing", "wait", "d")
    assert (skipped["host"], skipped["reason"]) == ("n2", "not here")


def test_only_a_fail_fails_the_module() -> None:
    """Unknown and skipped checks do not fail the task. The records are printed in both cases, beside the module's own result."""
    verdicts = Verdicts("slurm", "ctl1")
    verdicts.add("node", "unknown", host="n1")
    verdicts.skip("job", "disabled")
    way, result = finish(verdicts, credential="c")

    assert (way, result["changed"], result["credential"]) == ("ok", False, "c")
    assert json.loads(result["stdout"]) == {"verdicts": result["verdicts"]}
    assert result["verdicts"] == verdicts.records

    verdicts.add("node", "fail", reason="it is down", fix="start it", host="n1")
    verdicts.add("target", "fail", reason="not scraped", fix="open the port", device="node")
    way, result = finish(verdicts)

    assert way == "failed"
    assert result["msg"] == "n1 slurm.node: it is down. Fix: start it; slurm.target node: not scraped. Fix: open the port"
