"""Run Slurm's commands and parse their output. The health check program of slurmd uses this file too."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from .commands import run_command  # relative: on nodes this package is `shared`

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Caller = Callable[[Sequence[str], float], "Answer"]

CALL_S = 15.0
# Drains by this project have a reason that begins with this. Only they are resumed automatically.
REASON_PREFIX = "primus:"
# States in which no job starts on a node; scontrol(1), "Node state".
DRAINING = frozenset(("DRAIN", "DRAINED", "DRAINING"))


# States of jobs that are on a node: squeue(1), "JOB STATE CODES".
ON_NODE = "--states=RUNNING,COMPLETING,CONFIGURING,SUSPENDED,STOPPED,STAGE_OUT"


class RefusedError(Exception):
    """Slurm rejected a change or a query; the text has the fix."""


class Answer(NamedTuple):
    """The result of a command: its exit code (None if it is missing or timed out) and its output."""

    status: int | None
    text: str


class NodeState(NamedTuple):
    """The state of a node in Slurm. `gpus` is such as gpu:mi300x:8, `reason` the reason of a drain, `booted` the time of its boot."""

    name: str
    states: frozenset[str]
    reason: str
    gpus: str
    booted: str = ""

    @property
    def drained(self) -> bool:
        """Whether the node is drained or draining."""
        return bool(self.states & DRAINING)

    @property
    def state(self) -> str:
        """The state flags in a fixed order."""
        return "+".join(sorted(self.states))


def call(words: Sequence[str], limit_s: float = CALL_S) -> Answer:
    """Run a command; a missing command and a timeout are part of the result."""
    try:
        done = run_command(words, timeout_s=limit_s)
    except OSError as error:
        return Answer(None, str(error))
    return Answer(done.code, (done.stdout + done.stderr).strip())


# A reason is free text, and the time and user that Slurm appends end it. Without them, the fields that can follow do.
_STAMPED_REASON = re.compile(r"\sReason=(.*?) \[\S+@\d\S*\](?=\s|$)")
_REASON = re.compile(r"\sReason=(.*?)(?=\s(?:Comment|Extra|InstanceId|InstanceType|ReservationName)=|$)")


def fields(line: str) -> dict[str, str]:
    """Return the NAME=VALUE fields of a line of `scontrol --oneliner`. Values may contain spaces; the first field of a name counts."""
    parts = re.split(r"(?:^|\s)([A-Z][A-Za-z/:]*)=", line)
    return {name: value.strip() for name, value in reversed(list(zip(parts[1::2], parts[2::2])))}  # noqa: B905 (RHEL 9 has Python 3.9)


def _reason(line: str) -> str:
    """Return the reason of a node, which may contain NAME=VALUE itself."""
    found = _STAMPED_REASON.search(line) or _REASON.search(line)
    return found.group(1).strip() if found else ""


def parse_nodes(text: str) -> tuple[NodeState, ...]:
    """Parse the output of `scontrol --oneliner show nodes`."""
    nodes = []
    for line in text.splitlines():
        found = fields(line)
        if "NodeName" in found and "State" in found:
            words = re.findall(r"[A-Z_]+|\*", found["State"])
            states = frozenset("NOT_RESPONDING" if word == "*" else word for word in words)
            gpus = re.sub(r"\(S:[^)]*\)", "", found.get("Gres", "")).replace("(null)", "")
            nodes.append(NodeState(found["NodeName"], states, _reason(line), gpus, found.get("BootTime", "")))
    return tuple(nodes)


def get_node(name: str, caller: Caller = call) -> NodeState | None:
    """Return the state of a node; None if Slurm does not know it.

    Raises:
        ConnectionError: No controller answers.
    """
    answer = caller(["scontrol", "--oneliner", "show", "node", name], CALL_S)
    for node in parse_nodes(answer.text):
        if node.name == name:
            return node
    if answer.status is not None and "not found" in answer.text:
        return None
    raise ConnectionError(answer.text[:200] or "scontrol printed nothing")


def update_node(name: str, arguments: Sequence[str], caller: Caller = call) -> None:
    """Change a node with `scontrol update`.

    Raises:
        RefusedError: Slurm rejected it.
    """
    answer = caller(["scontrol", "update", f"NodeName={name}", *arguments], CALL_S)
    if answer.status != 0:
        command = f"scontrol update NodeName={name} {' '.join(arguments)}"
        raise RefusedError(f"`{command}` failed: {answer.text[:200]}. Fix: run it as root on a controller")


def jobs_on(name: str, caller: Caller = call) -> list[str]:
    """Return the jobs on a node, as `id (user)`.

    Raises:
        RefusedError: They cannot be listed.
    """
    answer = caller(["squeue", "--noheader", f"--nodelist={name}", ON_NODE, "--format=%A (%u)"], CALL_S)
    if answer.status != 0:
        raise RefusedError(f"the jobs of {name} cannot be listed: {answer.text[:200]}. Fix: run `scontrol ping` on a controller")
    return answer.text.splitlines()


def is_in_service(name: str, caller: Caller = call) -> bool:
    """Return whether a node is in service. If Slurm rejects a resume, the other controller may have resumed the node already.

    Raises:
        ConnectionError: No controller answers.
    """
    node = get_node(name, caller)
    return node is not None and not node.drained and "DOWN" not in node.states
