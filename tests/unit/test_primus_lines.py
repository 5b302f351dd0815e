"""The callback that reports events of Kubespray's Ansible, tested without that Ansible."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from primus_bootstrap import kubernetes
from tests.unit.role_module import load_file


@pytest.fixture
def callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the callback with its own file; `lines()` returns its content."""
    monkeypatch.setenv("PRIMUS_LINES", str(tmp_path / "lines"))
    (folder,) = kubernetes.__path__
    made = load_file(Path(folder, "callbacks/primus_lines.py")).CallbackModule()
    made.lines = lambda: [json.loads(line)["event_data"] for line in (tmp_path / "lines").read_text().splitlines()]
    yield made
    made._file.close()


def result(found: dict[str, Any], *, ignore_unreachable: bool = False) -> Any:
    """Return a result as Ansible passes it to a callback."""
    task = SimpleNamespace(_uuid="1", get_name=lambda: "Pull", get_path=lambda: "roles/x.yml:3", ignore_unreachable=ignore_unreachable)
    return SimpleNamespace(_host=SimpleNamespace(get_name=lambda: "n1"), _task=task, _result=found)


def test_ignored_error_is_marked(callback: Any) -> None:
    """By `ignore_errors`, or `ignore_unreachable` for an unreachable host."""
    callback.v2_runner_on_failed(result({"msg": "no space"}), ignore_errors=True)
    callback.v2_runner_on_unreachable(result({"msg": "no route"}, ignore_unreachable=True))
    callback.v2_runner_on_failed(result({"msg": "no space"}))

    assert [line.get("ignore_errors", False) for line in callback.lines()] == [True, True, False]
    assert [line["res"] for line in callback.lines()] == [{"msg": "no space"}, {"msg": "no route"}, {"msg": "no space"}]


def test_result_has_its_reason_and_no_secret(callback: Any) -> None:
    """The message of the first failed item; a task with no_log is only marked as censored."""
    items = [{"failed": False}, {"failed": True, "stderr": "disk full"}]
    callback.v2_runner_on_failed(result({"msg": "items", "results": items}))
    callback.v2_runner_on_failed(result({"_ansible_no_log": True, "msg": "password=x", "rc": 1}))
    callback.v2_runner_on_ok(result({"changed": True, "stdout": "long"}))

    assert [line["res"] for line in callback.lines()] == [
        {"msg": "items", "stderr": "disk full"},
        {"censored": True},
        {"changed": True},
    ]
