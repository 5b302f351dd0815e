#!/usr/bin/python
"""Ansible module `quarantine_record`: read, write or remove the quarantine record of a host.

A module, because a record must be synced to disk, and because record, health and time of the host are read in one call: `state: seen`,
which changes nothing.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.atomic_files import write_atomic
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command

GATE = "/usr/local/lib/primus/health_gate.py"
GATE_S = 30


def read_record(path: Path) -> tuple[dict[str, Any], str]:
    """Return the record (empty if there is none), and the problem if the file is not a record."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError) as error:
        return {}, f"the quarantine record {path} cannot be read: {error}"
    if isinstance(found, dict) and {"owner", "reason", "time"} <= found.keys():
        return found, ""
    return {}, f"the quarantine record {path} has no owner, reason or time"


def read_health(gate: str = GATE) -> dict[str, Any]:
    """Return the health of the host; unknown if primus-health does not answer."""
    unknown = {"verdict": "unknown", "written": 0.0, "checks": []}
    if not Path(gate).exists():
        return {**unknown, "reason": "this host has no health checks (role node_health)"}
    try:
        argv = ["python3", "-I", gate, "read", "--json"]
        return dict(json.loads(run_command(argv, timeout_s=GATE_S).stdout))
    except (OSError, ValueError) as error:
        return {**unknown, "reason": f"primus-health does not answer: {error}"}


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Replace the file atomically. All accounts may read it."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_atomic(path, json.dumps(record, indent=1, sort_keys=True) + "\n", mode=0o644)  # durable: a quarantined host may lose power next


def main() -> None:
    """Run as an Ansible module."""
    spec = {
        "path": {"type": "path", "required": True},
        "state": {"type": "str", "required": True, "choices": ["seen", "present", "absent"]},
        "record": {"type": "dict", "default": {}},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    path, state, record = Path(module.params["path"]), module.params["state"], module.params["record"]
    found, problem = read_record(path)
    if state == "seen":
        module.exit_json(changed=False, record=found, problem=problem, health=read_health(), now=time.time())
    changed = bool(found or problem) if state == "absent" else found != record
    try:
        if changed and not module.check_mode:
            if state == "present":
                write_record(path, record)
            else:
                path.unlink()
    except OSError as error:
        module.fail_json(
            msg=f"the quarantine record {path} cannot be written: {error}. Fix: repair that file system and run the command again"
        )
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
