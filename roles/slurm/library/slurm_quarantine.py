#!/usr/bin/python
"""Keep quarantined nodes out of Slurm's service, or give one back: the Ansible module `slurm_quarantine`.

It asks the controllers and never the node, which may be dead. Jobs go on unless `force` has them queued again. A drain by an
administrator keeps its own reason, and is never lifted.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_ask import CALL_S, call, look_at_node, parse_nodes, serves_already

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from ansible.module_utils.slurm_ask import Caller, SeenNode

# Any drain of this project's own, by the health check or by a quarantine, begins so.
OURS = ("primus:", "primus quarantine:")
REASON_CHARS = 200
REASON = re.compile(r"primus quarantine: ([^:]+): (.+)")
SCHEMA = "primus.quarantine/1"
ON_NODE = "--states=RUNNING,COMPLETING,CONFIGURING,SUSPENDED,STOPPED,STAGE_OUT"


class RefusedError(Exception):
    """The controllers refused a change; the text says what, and how to mend it."""


def reason_of(owner: str, reason: str = "") -> str:
    """Return the reason that `sinfo -R` shows for a quarantine, or how those of one owner begin."""
    return f"primus quarantine: {owner}: {reason}"[:REASON_CHARS]


def words_to_drain(node: SeenNode, reason: str) -> list[str]:
    """Return what to tell the controllers so that no job starts there; nothing where that is so, or an administrator saw to it."""
    settled = node.drained and (node.reason == reason or not node.reason.startswith(OURS))
    return [] if settled else ["State=DRAIN", f"Reason={reason}"]


def words_to_resume(node: SeenNode, owner: str) -> list[str]:
    """Return what to tell the controllers so that jobs start there again; nothing where the drain is somebody else's."""
    return ["State=RESUME"] if node.drained and node.reason.startswith(reason_of(owner)) else []


class Nodes:
    """The nodes as the controllers keep them."""

    def __init__(self, *, check: bool = False, caller: Caller = call) -> None:
        """Keep how to ask; `said` gathers what there is to say."""
        self.check = check
        self.caller = caller
        self.changed = False
        self.said: list[str] = []

    def quarantine(self, name: str, owner: str, reason: str, *, force: bool) -> None:
        """Let no further job start on a node; with `force`, have those that run there queued again."""
        node = look_at_node(name, self.caller)
        if node is None:
            self.said.append(f"Slurm knows no {name}")
            return
        text = reason_of(owner, reason)
        self._update(name, words_to_drain(node, text))
        if node.drained and not node.reason.startswith(OURS):
            self.said.append(f"{name} was drained already, because of `{node.reason}`: that reason stays")
        if force and self._has_jobs(name):
            # Down, and not `scontrol requeue`: it also ends jobs that cannot be queued again, and needs no word from the node.
            self._update(name, ["State=DOWN", f"Reason={text}"])

    def release(self, name: str, owner: str) -> None:
        """Lift the drain of a quarantine of this owner's."""
        node = look_at_node(name, self.caller)
        words = words_to_resume(node, owner) if node else []
        try:
            self._update(name, words)
        except RefusedError:
            if not serves_already(name, self.caller):
                raise
        if node and node.drained and not words:
            self.said.append(f"{name} stays drained in Slurm, because of `{node.reason}`, which is another's to lift")

    def forget(self, folder: Path, name: str) -> None:
        """Remove the record of a node that serves again."""
        self.changed = True
        if not self.check:
            (folder / f"{name}.json").unlink()

    def adopt(self, folder: Path, known: Container[str]) -> None:
        """Write the records that were lost, from what Slurm tells; where no controller answers there is nothing to tell."""
        answer = self.caller(["scontrol", "--oneliner", "show", "nodes"], CALL_S)
        lost = lost_records(parse_nodes(answer.text if answer.status == 0 else ""), known, time.time())
        self.changed |= bool(lost)
        self.said += [f"the quarantine of {record['host']} was recorded nowhere: its record is written again" for record in lost]
        if not self.check:
            write_records(folder, lost)

    def _has_jobs(self, name: str) -> bool:
        answer = self.caller(["squeue", "--noheader", f"--nodelist={name}", ON_NODE, "--format=%A"], CALL_S)
        if answer.status != 0:
            raise RefusedError(f"which jobs {name} has cannot be told: {answer.text[:200]}. Fix: see `scontrol ping`")
        return bool(answer.text.strip())

    def _update(self, name: str, words: Sequence[str]) -> None:
        if not words:
            return
        self.changed = True
        if self.check:
            return
        answer = self.caller(["scontrol", "update", f"NodeName={name}", *words], CALL_S)
        if answer.status != 0:
            raise RefusedError(f"Slurm refuses {' '.join(words)} for {name}: {answer.text[:200]}. Fix: run it as root on a controller")


def lost_records(nodes: Iterable[SeenNode], known: Container[str], now: float) -> list[dict[str, Any]]:
    """Return records of nodes whose drain is a quarantine's that nobody has a record of, as after a reset that kept Slurm's state.

    Their time is now: what Slurm tells of it is no time to compare with a host's health.
    """
    found = [(node.name, REASON.match(node.reason)) for node in nodes if node.drained and node.name not in known]
    return [
        {"schema": SCHEMA, "host": name, "owner": match[1], "reason": match[2], "time": now, "verdicts": []}
        for name, match in found
        if match
    ]


def write_records(folder: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write records, each as a whole or not at all."""
    for record in records:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = folder / f".{record['host']}.new"
        fresh.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        fresh.replace(folder / f"{record['host']}.json")


def records_in(folder: Path) -> list[dict[str, Any]]:
    """Return the records of the quarantines that stand, in the order of the hosts' names.

    Raises:
        RefusedError: a file that is no record. Nobody is let back on the strength of a record that cannot be read.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            found.append({**record, **{name: str(record[name]) for name in ("host", "owner", "reason")}})
        except (ValueError, KeyError, TypeError) as error:
            how = "remove it; where the node is still drained in Slurm the next apply writes it again from the drain's reason"
            raise RefusedError(f"{path} is no record of a quarantine: {error!r}. Fix: {how}") from error
    return found


def main() -> None:
    """Read the arguments, ask, change and report."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["kept", "released"]},
            "folder": {"type": "path", "required": True},  # where the records lie
            "force": {"type": "str", "default": ""},  # kept: the node whose jobs are queued again
            # released: of these nodes, those that this owner has out of service (any owner's, where it is empty); `forget` removes
            # the record with the drain.
            "nodes": {"type": "list", "elements": "str", "default": []},
            "owner": {"type": "str", "default": ""},
            "forget": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    nodes = Nodes(check=module.check_mode)
    try:
        folder = Path(wanted["folder"])
        records = records_in(folder)
        if wanted["state"] == "kept":
            for one in records:
                nodes.quarantine(one["host"], one["owner"], one["reason"], force=one["host"] == wanted["force"])
            nodes.adopt(folder, {one["host"] for one in records})
        for one in records if wanted["state"] == "released" else ():
            if one["host"] in wanted["nodes"] and wanted["owner"] in ("", one["owner"]):
                nodes.release(one["host"], one["owner"])
                if wanted["forget"]:
                    nodes.forget(folder, one["host"])
    except ConnectionError as error:
        module.fail_json(
            msg=f"no controller answers: {error}. Fix: `systemctl status slurmctld munge` on the controllers", changed=nodes.changed
        )
    except (RefusedError, OSError, ValueError, KeyError) as error:
        module.fail_json(msg=f"{error!s}", changed=nodes.changed)
    module.exit_json(changed=nodes.changed, msg="; ".join(nodes.said))


if __name__ == "__main__":
    main()
