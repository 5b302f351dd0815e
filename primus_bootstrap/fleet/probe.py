"""Probe hosts with the read-only script `probe_host.py` of the role `preflight`."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap import content
from primus_bootstrap.fleet.facts import SCHEMA, HostFacts, parse_facts
from primus_bootstrap.fleet.messages import FIXES, Answer, Cause, Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from primus_bootstrap.fleet.messages import Target


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of one host. Without `facts` the host is unknown, and `cause` and `detail` give the reason."""

    host: str
    facts: HostFacts | None = None
    cause: Cause | None = None
    detail: str = ""
    seconds: float = 0.0

    @property
    def fix(self) -> str:
        """The fix for the cause, or an empty string."""
        return FIXES[self.cause] if self.cause else ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        facts = asdict(self.facts) if self.facts else None
        state = "answered" if self.facts else "unknown"
        return {"host": self.host, "state": state, "cause": self.cause, "detail": self.detail, "fix": self.fix, "facts": facts}


def probe_task(targets: Sequence[Target], *, known_hosts: Path, timeout_s: float) -> Task:
    """Return the probe as a task for the fan-out."""
    return Task(probe_command(), {target.host: probe_input(target) for target in targets}, timeout_s, str(known_hosts))


def probe_command() -> str:
    """Return the command that finds Python on a host and runs the script from stdin.

    The first line of stdin is the host's interpreter, so that the command is the same for all hosts.
    """
    launcher = (content.roles_dir() / "preflight/files/probe_host.sh").read_text(encoding="utf-8")
    return f"exec sh -c {shlex.quote(launcher)}"


def probe_input(target: Target, options: Mapping[str, Any] | None = None) -> str:
    """Return the launcher's stdin: the interpreter, the length of the script, the script, and its options."""
    script = (content.roles_dir() / "preflight/files/probe_host.py").read_text(encoding="utf-8")
    return f"{target.python}\n{len(script)}\n{script}{json.dumps({'become_password': target.become_password, **(options or {})})}\n"


def read_answer(answer: Answer) -> Probe:
    """Parse the answer of one host."""
    if not answer.answered:
        return Probe(answer.host, cause=answer.cause, detail=answer.detail, seconds=answer.seconds)
    lines = answer.stderr.strip().splitlines()
    last = lines[-1] if lines else f"exit code {answer.exit_code}"
    if answer.exit_code != 0:
        no_python = answer.exit_code == 127 or "older than" in last
        return Probe(answer.host, cause="no_python" if no_python else "bad_answer", detail=last, seconds=answer.seconds)
    try:
        # The answer is the last line: a login script may print text before it.
        data = json.loads(answer.stdout.strip().rpartition("\n")[2])
        if data.get("schema") != SCHEMA:
            return Probe(answer.host, cause="bad_answer", detail=f"schema {data.get('schema')!r}, not {SCHEMA}", seconds=answer.seconds)
        facts = parse_facts(data["facts"], sent=answer.sent, received=answer.received)
    except (ValueError, KeyError, AttributeError) as error:
        return Probe(answer.host, cause="bad_answer", detail=f"the output of the probe is not valid: {error}", seconds=answer.seconds)
    return Probe(answer.host, facts, seconds=answer.seconds)
