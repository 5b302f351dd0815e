"""Records what ansible-runner hands over for a few small playbooks: run it again after a change of ansible-core.

    python tests/data/events/record.py

Paths of the machine that recorded are replaced, so that the files say nothing about it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from pathlib import Path

from primus_bootstrap import content
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.run import Options, apply_plan
from primus_bootstrap.engine.runner import AnsibleRunner
from tests.unit.engine_rig import LOCAL, free_port, make_cluster, write_playbooks

HERE = Path(__file__).parent

RESULTS = """---
- name: Every kind of result
  hosts: gpu_node
  gather_facts: false
  tasks:
    - name: Succeed
      ansible.builtin.debug:
        msg: fine
    - name: Change
      ansible.builtin.command: echo done
      changed_when: true
    - name: Skip
      ansible.builtin.debug:
        msg: never
      when: false
    - name: Fail and go on
      ansible.builtin.command: /bin/false
      changed_when: false
      ignore_errors: true
    - name: Mend
      block:
        - name: Break
          ansible.builtin.fail:
            msg: broken for a moment
      rescue:
        - name: Mend it
          ansible.builtin.debug:
            msg: mended
    - name: Handle a secret
      ansible.builtin.command: echo sesame-open
      changed_when: true
      no_log: true
    - name: Handle secrets in a loop
      ansible.builtin.command: echo {{ item }}
      changed_when: item == 'sesame-two'
      loop: [sesame-one, sesame-two]
      no_log: true
    - name: Handle secrets and change nothing
      ansible.builtin.command: echo {{ item }}
      changed_when: false
      loop: [sesame-one, sesame-two]
      no_log: true
    - name: Hand over verdicts
      ansible.builtin.command: >-
        echo 'two lines' && echo '{"verdicts": [{"check": "clock", "verdict": "pass"}, {"check": "mtu", "verdict": "fail",
        "found": "1500", "expected": "9000", "reason": "small", "fix": "set it"}]}'
      args:
        executable: /bin/sh
      changed_when: false
    - name: Loop and fail once
      ansible.builtin.command: "test {{ item }} = good"
      changed_when: false
      loop: [good, bad, worse]
      when: inventory_hostname == 'b'
    - name: Refuse
      ansible.builtin.assert:
        that: inventory_hostname != 'c'
        quiet: true
        fail_msg: >-
          kernel 5.4 is older than 5.15.
          Fix: install a newer kernel and reboot.
"""
FACTS = """---
- name: Facts that cannot be gathered
  hosts: gpu_node
  gather_facts: true
  tasks: []
"""
PING = """---
- name: Ask
  hosts: gpu_node
  gather_facts: false
  tasks:
    - name: Answer
      ansible.builtin.ping:
"""
PING_IGNORED = PING.replace("ansible.builtin.ping:", "ansible.builtin.ping:\n      ignore_unreachable: true")
SERIAL = """---
- name: One after the other
  hosts: gpu_node
  gather_facts: false
  serial: 1
  tasks:
    - name: Answer
      ansible.builtin.debug:
        msg: here
- name: Then all at once
  hosts: gpu_node
  gather_facts: false
  tasks:
    - name: Answer again
      ansible.builtin.debug:
        msg: here
"""
FATAL = """---
- name: Quorum
  hosts: etcd
  gather_facts: false
  any_errors_fatal: true
  tasks:
    - name: Fail on e1
      ansible.builtin.fail:
        msg: no quorum
      when: inventory_hostname == 'e1'
    - name: Never get here
      ansible.builtin.debug:
        msg: here
"""
DIFF = """---
- name: Write
  hosts: gpu_node
  gather_facts: false
  tasks:
    - name: Write two files
      ansible.builtin.copy:
        dest: "FOLDER/{{ item }}.conf"
        content: "name = {{ item }}\\n"
        mode: "0600"
      loop: [one, two]
"""


class Recorder(AnsibleRunner):
    """Keeps every raw event, as it was before the engine read it."""

    def __init__(self):
        self.events = []

    def run(self, process, on_event, cancel):
        def keep(event):
            self.events.append(json.loads(json.dumps(event, default=str)))
            on_event(event)

        return super().run(process, keep, cancel)


def record(name, phases, groups, variables, **options):
    folder = Path(tempfile.mkdtemp())
    playbooks = write_playbooks(folder, {phase: text.replace("FOLDER", str(folder)) for phase, text in phases.items()})
    content.playbooks_dir = lambda: playbooks
    cluster = make_cluster(folder, groups, variables(folder))
    recorder = Recorder()
    apply_plan(cluster, make_plan(cluster), Options(**options), on_event=lambda _: None, cancel=threading.Event(), runner=recorder)
    text = json.dumps(recorder.events, indent=1)
    for old, new in ((str(folder), "/srv/site"), (sys.executable, "/usr/bin/python3"), (str(Path.home()), "/home/me"), (sys.prefix, "/opt/venv")):
        text = text.replace(old, new)
    (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def broken_python(folder):
    python = folder / "python"
    python.write_text("#!/bin/sh\necho 'libz.so.1: cannot open shared object file' >&2\nexit 127\n")
    python.chmod(0o755)
    return {"a": {**LOCAL, "ansible_python_interpreter": str(python)}}


def nobody_listens(_folder):
    return {"a": {"ansible_host": "127.0.0.1", "ansible_port": free_port()}}


def local(*hosts):
    return lambda _folder: {host: LOCAL for host in hosts}


if __name__ == "__main__":
    record("results", {"baseline": RESULTS}, {"gpu_node": ["a", "b", "c"]}, local("a", "b", "c"))
    record("facts", {"baseline": FACTS}, {"gpu_node": ["a"]}, broken_python)
    record("unreachable", {"baseline": PING}, {"gpu_node": ["a"]}, nobody_listens)
    record("unreachable_ignored", {"baseline": PING_IGNORED}, {"gpu_node": ["a"]}, nobody_listens)
    record("serial", {"baseline": SERIAL, "gpu": SERIAL}, {"gpu_node": ["a", "b"]}, local("a", "b"))
    record("fatal", {"kubernetes": FATAL, "storage": SERIAL}, {"etcd": ["e1", "e2"], "gpu_node": ["a"]}, local("e1", "e2", "a"))
    record("fatal_last", {"kubernetes": FATAL}, {"etcd": ["e1", "e2"]}, local("e1", "e2"))
    record("diff", {"baseline": DIFF}, {"gpu_node": ["a"]}, local("a"), verb="diff", check=True)
