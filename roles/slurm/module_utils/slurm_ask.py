# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Questions to Slurm's controllers through its own commands. Imports nothing of its own kind: slurmd's health program uses it too."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Caller = Callable[[Sequence[str], float], "Answer"]

CALL_S = 15.0
# A drain whose reason begins so is this project's own, and may be lifted by it.
OWN = "primus:"
# Words of a node's state with which no job starts there; scontrol(1), "Node state".
DRAINING = frozenset(("DRAIN", "DRAINED", "DRAINING"))


class Answer(NamedTuple):
    """What a command said: its exit status, None where it is not there or hangs, and what it printed."""

    status: int | None
    text: str


class SeenNode(NamedTuple):
    """A node as the controllers see it; `gpus` is what it has, as gpu:mi300x:8, `reason` why it is out of service."""

    name: str
    states: frozenset[str]
    reason: str
    gpus: str

    @property
    def drained(self) -> bool:
        """Whether no further job starts there until somebody says so."""
        return bool(self.states & DRAINING)

    @property
    def state(self) -> str:
        """Return the state's words, the same for the same state."""
        return "+".join(sorted(self.states))


def call(words: Sequence[str], limit_s: float = CALL_S) -> Answer:
    """Run a command of Slurm."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=limit_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer(None, str(error))
    return Answer(done.returncode, (done.stdout + done.stderr).strip())


def fields(line: str) -> dict[str, str]:
    """Return NAME=VALUE words of a line of `scontrol --oneliner`; a value with blanks ends at the next NAME=."""
    parts = re.split(r"(?:^|\s)([A-Z][A-Za-z/:]*)=", line)
    return {name: value.strip() for name, value in zip(parts[1::2], parts[2::2])}  # noqa: B905 (RHEL 9 has Python 3.9)


def parse_nodes(text: str) -> tuple[SeenNode, ...]:
    """Read what `scontrol --oneliner show nodes` prints."""
    nodes = []
    for line in text.splitlines():
        told = fields(line)
        if "NodeName" in told and "State" in told:
            words = re.findall(r"[A-Z_]+|\*", told["State"])
            states = frozenset("NOT_RESPONDING" if word == "*" else word for word in words)
            reason = re.sub(r" \[\S+@\S+\]$", "", told.get("Reason", ""))
            gpus = re.sub(r"\(S:[^)]*\)", "", told.get("Gres", "")).replace("(null)", "")
            nodes.append(SeenNode(told["NodeName"], states, reason, gpus))
    return tuple(nodes)


def look_at_node(name: str, caller: Caller = call) -> SeenNode | None:
    """Return what the controllers say of a node; None where Slurm has no such node.

    Raises:
        ConnectionError: no controller answers.
    """
    answer = caller(["scontrol", "--oneliner", "show", "node", name], CALL_S)
    for node in parse_nodes(answer.text):
        if node.name == name:
            return node
    if answer.status is not None and "not found" in answer.text:
        return None
    raise ConnectionError(answer.text[:200] or "scontrol gave no answer")


def serves_already(name: str, caller: Caller = call) -> bool:
    """Tell whether a node that Slurm refuses to resume serves: the other controller's host does the same at the same time.

    Raises:
        ConnectionError: no controller answers.
    """
    node = look_at_node(name, caller)
    return node is not None and not node.drained and "DOWN" not in node.states
