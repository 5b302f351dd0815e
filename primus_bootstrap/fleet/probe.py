"""Send the read-only script `probe_host.py` of the role `preflight` to hosts, and say what each of them is."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap import content
from primus_bootstrap.fleet.facts import SCHEMA, HostFacts, parse_facts
from primus_bootstrap.fleet.fanout import ask_all
from primus_bootstrap.fleet.messages import FIXES, Answer, Cause, Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from primus_bootstrap.fleet.messages import Target


@dataclass(frozen=True, slots=True)
class Probe:
    """What one host is; without `facts` it is unknown, and `cause` and `detail` say why."""

    host: str
    facts: HostFacts | None = None
    cause: Cause | None = None
    detail: str = ""
    seconds: float = 0.0

    @property
    def fix(self) -> str:
        """How to mend what kept the host from answering."""
        return FIXES[self.cause] if self.cause else ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        facts = self.facts.to_json() if self.facts else None
        state = "answered" if self.facts else "unknown"
        return {"host": self.host, "state": state, "cause": self.cause, "detail": self.detail, "fix": self.fix, "facts": facts}


def probe_all(targets: Sequence[Target], *, known_hosts: Path, timeout_s: float) -> Iterator[Probe]:
    """Probe every target in parallel, and yield what each is as it answers; who does not answer is unknown."""
    for answer in ask_all(targets, probe_task(targets, known_hosts=known_hosts, timeout_s=timeout_s)):
        yield read_answer(answer)


def probe_task(targets: Sequence[Target], *, known_hosts: Path, timeout_s: float) -> Task:
    """Return the probe as a task for the fan-out."""
    return Task(probe_command(), {target.host: probe_input(target) for target in targets}, timeout_s, str(known_hosts))


def probe_command() -> str:
    """Return the command that finds Python on a host and runs what follows on stdin.

    Each host's own interpreter travels on its stdin's first line, so that one command fits all.
    """
    launcher = (content.roles_dir() / "preflight/files/probe_host.sh").read_text(encoding="utf-8")
    return f"exec sh -c {shlex.quote(launcher)}"


def probe_input(target: Target, options: Mapping[str, Any] | None = None) -> str:
    """Return what the launcher reads on stdin: the interpreter's name, the script's length, the script, its options."""
    script = (content.roles_dir() / "preflight/files/probe_host.py").read_text(encoding="utf-8")
    return f"{target.python}\n{len(script)}\n{script}{json.dumps({'become_password': target.become_password, **(options or {})})}\n"


def read_answer(answer: Answer) -> Probe:
    """Turn one host's answer into what it is."""
    if not answer.answered:
        return Probe(answer.host, cause=answer.cause, detail=answer.detail, seconds=answer.seconds)
    words = answer.stderr.strip().splitlines()
    last = words[-1] if words else f"exit code {answer.exit_code}"
    if answer.exit_code != 0:
        known = answer.exit_code == 127 or "older than" in last
        return Probe(answer.host, cause="no_python" if known else "bad_answer", detail=last, seconds=answer.seconds)
    try:
        # Whatever a log-in script prints comes before the answer, which is the last line.
        data = json.loads(answer.stdout.strip().rpartition("\n")[2])
        if data.get("schema") != SCHEMA:
            return Probe(answer.host, cause="bad_answer", detail=f"schema {data.get('schema')!r}, not {SCHEMA}", seconds=answer.seconds)
        facts = parse_facts(data["facts"], sent=answer.sent, received=answer.received)
    except (ValueError, KeyError, AttributeError) as error:
        return Probe(answer.host, cause="bad_answer", detail=f"not what the probe prints: {error}", seconds=answer.seconds)
    return Probe(answer.host, facts, seconds=answer.seconds)
