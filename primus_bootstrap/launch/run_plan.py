"""The plan of a run: a value that can be printed, stored and compared before the start."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch import masking
from primus_bootstrap.launch.run_topology import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.plugins.plugin_discovery import PluginFile
    from primus_bootstrap.launch.settings.layered_settings import Setting

SCHEMA = "primus.plan/1"
# The origins of variables, weakest first.
PROFILE, RUN, HOOK, PATCH, USER = "profile", "run", "hook", "patch", "user"


@dataclass(frozen=True)
class Variable:
    """One environment variable that is set for the program, with its origin and the reason."""

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
    """One run on one node."""

    runtime: str
    task: str
    words: tuple[str, ...]  # the task and its arguments
    command: tuple[str, ...]  # the command line after `primus-cli`, as typed
    run_dir: str
    cwd: str
    python: str = ""  # the interpreter that has torch; empty if another machine selects it
    prefix: tuple[str, ...] = ()  # the first words of the command to execute: torchrun, an engine, or Slurm, with options
    program: tuple[str, ...] = ()  # the interpreter and the script, after the prefix
    program_arguments: tuple[str, ...] = ()  # the arguments of the program
    environment: tuple[Variable, ...] = ()  # the variables to set in addition to `inherited`
    inherited: Mapping[str, str] = field(default_factory=dict, repr=False)  # the environment of this process
    topology: Topology = field(default_factory=Topology)
    settings: tuple[Setting, ...] = ()
    hooks: tuple[PlannedStep, ...] = ()
    patches: tuple[PlannedStep, ...] = ()
    plugins: tuple[PluginFile, ...] = ()  # the files of the plug-in that defines the task, its own file first
    files: tuple[tuple[str, str], ...] = ()  # path and content of files to write before the start
    notes: tuple[str, ...] = ()  # remarks for the user
    last_rank_logs: bool = False  # the last rank prints the progress, and not the first one

    @property
    def argv(self) -> tuple[str, ...]:
        """The command to execute."""
        return (*self.prefix, *self.program, *self.program_arguments)

    def full_environment(self) -> dict[str, str]:
        """Return the program's environment, unmasked."""
        return {**self.inherited, **{item.name: item.value for item in self.environment}}

    def secrets(self) -> tuple[str, ...]:
        """Return the secret values of the program's environment."""
        return masking.secret_values(self.full_environment())

    def with_variables(self, variables: Mapping[str, str], origin: str, reason: str = "") -> Plan:
        """Return the plan with the variables of a hook or patch; they do not replace variables that the user set."""
        user = {item.name for item in self.environment if item.origin.startswith(USER)}
        new = tuple(Variable(name, value, origin, reason) for name, value in variables.items() if name not in user)
        changed = {item.name for item in new}
        unchanged = tuple(item for item in self.environment if item.name not in changed)
        return replace(self, environment=tuple(sorted(unchanged + new, key=lambda item: item.name)))

    def to_json(self, *, masked: bool = True) -> dict[str, Any]:
        """Return the plan as plain data, without the inherited environment."""
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
        data["plugins"] = [{"path": str(item.path), "name": item.name} for item in self.plugins]
        data["files"] = {name: masking.mask_text(text, secrets) if masked else text for name, text in self.files}
        data["notes"] = list(self.notes)
        return data

    def to_text(self) -> str:
        """Return the plan as text for the terminal, secrets masked."""
        secrets = self.secrets()
        lines = [f"run      {self.task} ({self.runtime})", f"folder   {self.run_dir}"]
        lines += self._topology_lines()
        lines += [f"plug-in  {item.path}" for item in self.plugins]
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
        nodes = f"{shape.nnodes} node{'s' if shape.nnodes > 1 else ''}, {shape.nproc} process{'es' if shape.nproc > 1 else ''} per node"
        if shape.nnodes > 1:
            nodes += f", this is node {shape.node_rank}, rendezvous at {shape.master_addr}:{shape.master_port}"
        reasons = ", ".join(f"{name}: {reason}" for name, reason in shape.reasons)
        return [f"size     {nodes}" + (f"  ({reasons})" if reasons else "")]


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
