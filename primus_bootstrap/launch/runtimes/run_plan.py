"""What a run is going to be: a value that can be printed, stored and compared before anything is started."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch import masking
from primus_bootstrap.launch.runtimes.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.commandline.layered_settings import Setting

SCHEMA = "primus.plan/1"
# The order in which variables win over each other, weakest first.
PROFILE, RUN, HOOK, PATCH, USER = "profile", "run", "hook", "patch", "user"


@dataclass(frozen=True)
class Variable:
    """One environment variable that is set for the program, with where it comes from and why."""

    name: str
    value: str
    origin: str
    reason: str = ""


@dataclass(frozen=True)
class PlannedStep:
    """A hook or a patch that will run: `phase` is before, after, on_failure or patch."""

    phase: str
    path: str
    origin: str


@dataclass(frozen=True)
class Plan:
    """One run on one node.

    `command` is what was typed after `primus-cli`; `words` are the task's own. What is executed is `prefix` (torchrun, an engine, or Slurm,
    with their options), `program` (interpreter and script) and `program_arguments`. `environment` is what is set beyond the one that is
    there. `python` is the interpreter that has torch, empty where another machine decides it. `files` are written before the start;
    `notes` are for people.
    """

    runtime: str
    task: str
    words: tuple[str, ...]
    command: tuple[str, ...]
    run_dir: str
    cwd: str
    python: str = ""
    prefix: tuple[str, ...] = ()
    program: tuple[str, ...] = ()
    program_arguments: tuple[str, ...] = ()
    environment: tuple[Variable, ...] = ()
    inherited: Mapping[str, str] = field(default_factory=dict, repr=False)
    topology: Topology = field(default_factory=Topology)
    settings: tuple[Setting, ...] = ()
    hooks: tuple[PlannedStep, ...] = ()
    patches: tuple[PlannedStep, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        """What will be executed."""
        return (*self.prefix, *self.program, *self.program_arguments)

    def full_environment(self) -> dict[str, str]:
        """Return what the program gets, unmasked: what was there, and what is set."""
        return {**self.inherited, **{item.name: item.value for item in self.environment}}

    def secrets(self) -> tuple[str, ...]:
        """Return the values that must be shown nowhere."""
        return masking.secret_values(self.full_environment())

    def with_variables(self, variables: Mapping[str, str], origin: str, reason: str = "") -> Plan:
        """Return the plan with variables of a hook or a patch; what the user stated wins over them."""
        stated = {item.name for item in self.environment if item.origin.startswith(USER)}
        new = tuple(Variable(name, value, origin, reason) for name, value in variables.items() if name not in stated)
        changed = {item.name for item in new}
        kept = tuple(item for item in self.environment if item.name not in changed)
        return replace(self, environment=tuple(sorted(kept + new, key=lambda item: item.name)))

    def to_json(self, *, masked: bool = True) -> dict[str, Any]:
        """Return the plan as plain data; the inherited environment is not part of it."""
        secrets = self.secrets() if masked else ()
        data: dict[str, Any] = {"schema": SCHEMA}
        for name in ("runtime", "task", "run_dir", "cwd", "python"):
            data[name] = getattr(self, name)
        for name in ("words", "command", "argv", "program", "program_arguments"):
            words = getattr(self, name)
            data[name] = list(masking.mask_words(words, secrets) if masked else words)
        data["environment"] = [_variable(item, secrets, masked=masked) for item in self.environment]
        data["topology"] = {**asdict(self.topology), "reasons": dict(self.topology.reasons)}
        data["settings"] = {item.path: {"value": _setting(item, secrets, masked=masked), "origin": item.origin} for item in self.settings}
        data["hooks"] = [asdict(item) for item in self.hooks]
        data["patches"] = [asdict(item) for item in self.patches]
        data["files"] = {name: masking.mask_text(text, secrets) if masked else text for name, text in self.files}
        data["notes"] = list(self.notes)
        return data

    def to_text(self) -> str:
        """Return the plan for people, secrets masked."""
        secrets = self.secrets()
        lines = [f"run      {self.task} ({self.runtime})", f"folder   {self.run_dir}"]
        lines += self._topology_lines()
        lines += [f"hook     {step.phase}: {step.path} ({step.origin})" for step in self.hooks]
        lines += [f"patch    {step.path} ({step.origin})" for step in self.patches]
        for item in self.environment:
            value = _variable(item, secrets, masked=True)["value"]
            lines.append(f"set      {item.name}={value}  ({item.origin}{': ' + item.reason if item.reason else ''})")
        for name, text in self.files:
            lines += [f"file     {name}", *(f"         | {line}" for line in masking.mask_text(text, secrets).splitlines())]
        lines += [f"note     {note}" for note in self.notes]
        lines.append(f"execute  {shlex.join(masking.mask_words(self.argv, secrets))}")
        return "\n".join(lines) + "\n"

    def _topology_lines(self) -> list[str]:
        shape = self.topology
        if self.runtime != "direct":
            return []
        reasons = ", ".join(f"{name}: {reason}" for name, reason in shape.reasons)
        where = f", node {shape.node_rank}, meeting at {shape.master_addr}:{shape.master_port}" if shape.nnodes > 1 else ""
        return [
            f"shape    {shape.nnodes} x {shape.nproc} processes{where}  ({reasons})"
            if reasons
            else f"shape    {shape.nproc} process{where}"
        ]


def _variable(item: Variable, secrets: tuple[str, ...], *, masked: bool) -> dict[str, str]:
    value = item.value
    if masked:
        value = masking.MASK if value and masking.is_secret_name(item.name) else masking.mask_text(value, secrets)
    return {"name": item.name, "value": value, "origin": item.origin, "reason": item.reason}


def _setting(item: Setting, secrets: tuple[str, ...], *, masked: bool) -> Any:
    if not masked:
        return item.value
    if isinstance(item.value, dict):
        return {name: masking.mask_text(masking.mask_value(name, str(value)), secrets) for name, value in item.value.items()}
    if isinstance(item.value, list):
        return list(masking.mask_words([str(value) for value in item.value], secrets))
    return masking.mask_text(item.value, secrets) if isinstance(item.value, str) else item.value
