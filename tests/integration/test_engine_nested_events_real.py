"""The events of a nested Ansible with the real Ansible."""

from __future__ import annotations

import json
import shlex
import threading
import time
from typing import TYPE_CHECKING

from primus_bootstrap import content
from primus_bootstrap.engine.events import Event, HostResult, TaskStarted
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.run import Options, apply_plan
from tests.unit.engine_rig import LOCAL, make_cluster, write_playbooks

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


FOREIGN = {
    "event": "runner_on_failed",
    "event_data": {"host": "w1", "task": "Unpack the images", "role": "kubespray", "res": {"msg": "no space left on w1"}},
}
ENDED = {"event": "playbook_on_stats", "event_data": {"failures": {"w1": 1}, "dark": {}}}
STARTS_ANOTHER = """---
- name: Start another Ansible
  hosts: all
  gather_facts: false
  any_errors_fatal: true
  tasks:
    - name: Run it
      ansible.builtin.shell: {command}
      run_once: true
      changed_when: false
"""


def test_a_nested_failure_belongs_to_its_host_even_if_events_are_read_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader sleeps while both Ansibles end. The nested events still come before the outer recap."""
    lines = "".join(json.dumps(event) + "\n" for event in (FOREIGN, ENDED))
    command = f'printf "%s" {shlex.quote(lines)} >> "$PRIMUS_LINES"; exit 1'
    playbooks = write_playbooks(tmp_path, {"check": STARTS_ANOTHER.format(command=json.dumps(command))})
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    cluster = make_cluster(tmp_path, {"nodes": ["cp1", "w1", "w2"]}, dict.fromkeys(["cp1", "w1", "w2"], LOCAL))
    events: list[Event] = []

    def slowly(event: Event) -> None:
        if isinstance(event, TaskStarted) and event.task == "Run it":
            time.sleep(6)  # longer than the rest of the run takes
        events.append(event)

    report = apply_plan(cluster, make_plan(cluster), Options(), on_event=slowly, cancel=threading.Event())

    assert [event.host for event in events if isinstance(event, HostResult)] == ["w1", "cp1"]
    causes = {host.host: [failure.cause for failure in host.failures] for host in report.hosts}
    assert (causes["w1"], causes["w2"]) == (["no space left on w1"], [])
    assert report.exit_code == 4
