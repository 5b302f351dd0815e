#!/usr/bin/python
"""Ansible module `slurm_quarantine`: drain the nodes that have a quarantine record, or resume released ones.

No collection has a module for it. It uses only the controllers: the node may be dead. Jobs continue, except those of `requeue_node`. A
drain by an administrator keeps its reason and is never resumed.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.atomic_files import write_atomic
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_commands import CALL_S, RefusedError, call, get_node, is_in_service, jobs_on, parse_nodes, update_node

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from ansible.module_utils.slurm_commands import Caller, NodeState

# Reasons of drains by this project: the health check, verbs, and quarantines.
OWN_REASONS = ("primus:", "primus quarantine:")
REASON_CHARS = 200
REASON = re.compile(r"primus quarantine: ([^:]+): (.+)")
SCHEMA = "primus.quarantine/1"


def reason_of(owner: str, reason: str = "") -> str:
    """Return the reason of a quarantine's drain, or the beginning of all reasons of an owner."""
    return f"primus quarantine: {owner}: {reason}"[:REASON_CHARS]


def drain_arguments(node: NodeState, reason: str) -> list[str]:
    """Return the arguments of scontrol that drain the node; none if it is drained with this reason or by an administrator."""
    drained = node.drained and (node.reason == reason or not node.reason.startswith(OWN_REASONS))
    return [] if drained else ["State=DRAIN", f"Reason={reason}"]


def resume_arguments(node: NodeState, owner: str) -> list[str]:
    """Return the arguments of scontrol that resume the node; none if the drain is not a quarantine of this owner."""
    return ["State=RESUME"] if node.drained and node.reason.startswith(reason_of(owner)) else []


class Nodes:
    """The nodes at the controllers."""

    def __init__(self, *, check: bool = False, caller: Caller = call) -> None:
        """Store the check mode and how to run commands; `messages` are for the result."""
        self.check = check
        self.caller = caller
        self.changed = False
        self.messages: list[str] = []

    def quarantine(self, name: str, owner: str, reason: str, *, requeue: bool) -> None:
        """Drain a node; with `requeue`, requeue its jobs."""
        node = get_node(name, self.caller)
        if node is None:
            self.messages.append(f"Slurm does not know {name}")
            return
        text = reason_of(owner, reason)
        self._update(name, drain_arguments(node, text))
        if node.drained and not node.reason.startswith(OWN_REASONS):
            self.messages.append(f"{name} was drained before with the reason `{node.reason}`, which stays")
        if requeue and jobs_on(name, self.caller):
            # State=DOWN instead of `scontrol requeue`: it also ends jobs that cannot be requeued, and does not need the node.
            self._update(name, ["State=DOWN", f"Reason={text}"])

    def release(self, name: str, owner: str) -> None:
        """Resume a node that is drained by a quarantine of this owner."""
        node = get_node(name, self.caller)
        words = resume_arguments(node, owner) if node else []
        try:
            self._update(name, words)
        except RefusedError:
            if not is_in_service(name, self.caller):
                raise
        if node and node.drained and not words:
            self.messages.append(f"{name} stays drained in Slurm: its reason `{node.reason}` is not that of this quarantine")

    def remove_record(self, folder: Path, name: str) -> None:
        """Remove the record of a released node."""
        self.changed = True
        if not self.check:
            (folder / f"{name}.json").unlink()

    def restore_records(self, folder: Path, known: Container[str]) -> None:
        """Write missing records from the reasons of drains; does nothing if no controller answers."""
        answer = self.caller(["scontrol", "--oneliner", "show", "nodes"], CALL_S)
        lost = lost_records(parse_nodes(answer.text if answer.status == 0 else ""), known, time.time())
        self.changed |= bool(lost)
        self.messages += [f"the quarantine of {record['host']} had no record; it is written again" for record in lost]
        if not self.check:
            write_records(folder, lost)

    def _update(self, name: str, arguments: Sequence[str]) -> None:
        if arguments:
            self.changed = True
            if not self.check:
                update_node(name, arguments, self.caller)


def lost_records(nodes: Iterable[NodeState], known: Container[str], now: float) -> list[dict[str, Any]]:
    """Return records for nodes that are drained by a quarantine without a record, for example after a reset that kept Slurm's state.

    Their time is now: the time of the drain in Slurm cannot be compared with the time of a health record.
    """
    found = [(node.name, REASON.match(node.reason)) for node in nodes if node.drained and node.name not in known]
    return [
        {"schema": SCHEMA, "host": name, "owner": match[1], "reason": match[2], "time": now, "verdicts": []}
        for name, match in found
        if match
    ]


def write_records(folder: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write records atomically."""
    for record in records:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_atomic(folder / f"{record['host']}.json", json.dumps(record, indent=1, sort_keys=True) + "\n", mode=0o644)


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return all records, sorted by host.

    Raises:
        RefusedError: A file is not a valid record. An unreadable record must not release a host.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            found.append({**record, **{name: str(record[name]) for name in ("host", "owner", "reason")}})
        except (ValueError, KeyError, TypeError) as error:
            fix = "remove it; if the node is still drained in Slurm, the next apply writes it again from the reason of the drain"
            raise RefusedError(f"{path} is not a quarantine record: {error!r}. Fix: {fix}") from error
    return found


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["drained", "resumed"]},
            "folder": {"type": "path", "required": True},  # of the records
            "requeue_node": {"type": "str", "default": ""},  # drained: requeue the jobs of this node
            # resumed: the nodes to resume if their quarantine is of this owner (empty: of any), and whether their records are removed
            "nodes": {"type": "list", "elements": "str", "default": []},
            "owner": {"type": "str", "default": ""},
            "remove_record": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    options = module.params
    nodes = Nodes(check=module.check_mode)
    try:
        folder = Path(options["folder"])
        records = read_records(folder)
        if options["state"] == "drained":
            for one in records:
                nodes.quarantine(one["host"], one["owner"], one["reason"], requeue=one["host"] == options["requeue_node"])
            nodes.restore_records(folder, {one["host"] for one in records})
        for one in records if options["state"] == "resumed" else ():
            if one["host"] in options["nodes"] and options["owner"] in ("", one["owner"]):
                nodes.release(one["host"], one["owner"])
                if options["remove_record"]:
                    nodes.remove_record(folder, one["host"])
    except ConnectionError as error:
        module.fail_json(
            msg=f"no controller answers: {error}. Fix: run `systemctl status slurmctld munge` on the controllers", changed=nodes.changed
        )
    except (RefusedError, OSError, ValueError, KeyError) as error:
        module.fail_json(msg=f"{error!s}", changed=nodes.changed)
    module.exit_json(changed=nodes.changed, msg="; ".join(nodes.messages))


if __name__ == "__main__":
    main()
