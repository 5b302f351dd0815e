"""The callback that tells a watcher what Kubespray's Ansible does, without that Ansible."""

from __future__ import annotations

import importlib.util
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import kubernetes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the callback with a file of its own; `lines()` returns what it wrote."""
    monkeypatch.setenv("PRIMUS_LINES", str(tmp_path / "lines"))
    (folder,) = kubernetes.__path__
    spec = importlib.util.spec_from_file_location("primus_lines", f"{folder}/callbacks/primus_lines.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.CallbackModule()
    made.lines = lambda: [json.loads(line)["event_data"] for line in (tmp_path / "lines").read_text().splitlines()]
    yield made
    made._file.close()


def result(found: dict[str, Any], *, ignore_unreachable: bool = False) -> Any:
    """Return what Ansible hands a callback."""
    task = SimpleNamespace(_uuid="1", get_name=lambda: "Pull", get_path=lambda: "roles/x.yml:3", ignore_unreachable=ignore_unreachable)
    return SimpleNamespace(_host=SimpleNamespace(get_name=lambda: "n1"), _task=task, _result=found)


def test_an_error_that_the_playbook_ignores_is_marked(callback: Any) -> None:
    """By `ignore_errors`, or by `ignore_unreachable` of a host that is away; another one is not marked."""
    callback.v2_runner_on_failed(result({"msg": "no space"}), ignore_errors=True)
    callback.v2_runner_on_unreachable(result({"msg": "no route"}, ignore_unreachable=True))
    callback.v2_runner_on_failed(result({"msg": "no space"}))

    assert [line.get("ignore_errors", False) for line in callback.lines()] == [True, True, False]
    assert [line["res"] for line in callback.lines()] == [{"msg": "no space"}, {"msg": "no route"}, {"msg": "no space"}]


def test_a_result_keeps_why_it_failed_and_no_secret(callback: Any) -> None:
    """The message of the first item that failed; of a task with no_log only that it was censored."""
    items = [{"failed": False}, {"failed": True, "stderr": "disk full"}]
    callback.v2_runner_on_failed(result({"msg": "items", "results": items}))
    callback.v2_runner_on_failed(result({"_ansible_no_log": True, "msg": "password=x", "rc": 1}))
    callback.v2_runner_on_ok(result({"changed": True, "stdout": "long"}))

    assert [line["res"] for line in callback.lines()] == [
        {"msg": "items", "stderr": "disk full"},
        {"censored": True},
        {"changed": True},
    ]
