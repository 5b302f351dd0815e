"""Runs a plan: takes the lock, copies the inventory, pins host keys, starts Ansible, and writes journal and report."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import time
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content
from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import PlanError, RunError
from primus_bootstrap.engine.environment import ansible_environment
from primus_bootstrap.engine.events import Event, HostResult, Preparing, RunFinished, RunStarted
from primus_bootstrap.engine.fixes import known_fix
from primus_bootstrap.engine.history import delete_old_runs
from primus_bootstrap.engine.hostkeys import key_conflicts, pin_host_keys, without_hosts
from primus_bootstrap.engine.journal import Journal
from primus_bootstrap.engine.lock import GRACE_S, HeldLock, children_lock, cluster_lock
from primus_bootstrap.engine.playbooks import load_plays
from primus_bootstrap.engine.report import Tally, report_text
from primus_bootstrap.engine.runner import AnsibleProcess, AnsibleRunner, last_error
from primus_bootstrap.engine.ssh import known_hosts_path, ssh_name
from primus_bootstrap.engine.state_folder import RunFolder, jobs_dir, new_run_id, runs_dir, state_errors
from primus_bootstrap.engine.translate import Translator
from primus_bootstrap.inventory.snapshot import file_sums, take_snapshot

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from primus_bootstrap.engine.hostkeys import Conflict
    from primus_bootstrap.engine.plan_values import Plan, Step
    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.engine.runner import RawEvent, Runner
    from primus_bootstrap.inventory.cluster import Cluster

    _NumberedStep = tuple[int, Step]

_STARTING = "starting Ansible, which first reads all playbooks and roles"
_CONTINUING = "starting Ansible again, for the remaining hosts"
# A submission takes some 20 s, so the next one waits for it.
_SUBMISSION_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a plan.

    `limited`: the plan excludes hosts of its groups. `extra_vars`: `@file` or `key=value`, as for Ansible's `-e`. `variables`: further
    variables of this precedence, with their types. `check`: change nothing and report differences. Passwords and variables are passed
    to Ansible in files with mode 0600, which are deleted as soon as Ansible has read them. `forks`: 0 for the value in ansible.cfg.
    `chained`: each phase depends on the previous ones, so the run ends with the first phase that Ansible aborts. `complete`: the plan
    has every phase that its hosts need. `submits`: the run submits a job and does not change the cluster, so it takes the lock of
    submissions instead of the cluster's.
    """

    verb: str = "apply"
    limited: bool = False
    extra_vars: tuple[str, ...] = field(default=(), repr=False)
    variables: Mapping[str, Any] = field(default_factory=dict, repr=False)
    check: bool = False
    become_password: str = field(default="", repr=False)
    vault_password: str = field(default="", repr=False)
    vault_password_file: Path | None = None
    forks: int = 0
    chained: bool = False
    complete: bool = False
    submits: bool = False


def apply_plan(  # noqa: PLR0913 - three values and four hooks for the caller
    cluster: Cluster,
    plan: Plan,
    options: Options,
    *,
    on_event: Callable[[Event], None],
    cancel: threading.Event,
    runner: Runner | None = None,
    lock: HeldLock | None = None,
) -> Report:
    """Run a plan and return its report, whose `exit_code` is that of the command.

    Ansible reads a copy of hosts.yaml and its variable files.

    Args:
        on_event: Called with every event, in the thread of the caller.
        cancel: Set it to stop Ansible; the report is written, with exit code 130.
        runner: Starts Ansible; the default is `AnsibleRunner`.
        lock: The cluster's lock if the caller holds it; otherwise it is taken for the run.

    Raises:
        LockedError: Another run holds the lock.
        PlanError: The state folder is not writable, or a file changed since it was validated; no host was contacted.
        RunError: The state folder is not writable, and Ansible had started.
    """
    started = time.time()
    state_dir = cluster.state_dir.absolute()  # Ansible runs in another folder
    state_dir = jobs_dir(state_dir) if options.submits else state_dir
    grace_s = _SUBMISSION_WAIT_S if options.submits else GRACE_S
    with nullcontext(lock) if lock else cluster_lock(state_dir, verb=options.verb, run=new_run_id(started), grace_s=grace_s) as held:
        if held.state_dir != state_dir:
            raise PlanError(f"cluster_name in hosts.yaml was changed to {cluster.name} in the meantime", fix="run the same command again")
        folder = RunFolder(runs_dir(state_dir) / held.run)
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, folder.inventory, ignore_errors=True)
            with state_errors(PlanError, folder.path):
                delete_old_runs(state_dir)
                folder.path.mkdir(mode=0o700, parents=True)
                write_atomic(folder.plan, json.dumps(plan.to_json(), indent=1) + "\n", mode=0o600)
                inventory = take_snapshot(cluster.path.absolute(), folder.inventory, cluster.sums)
                inputs = {"complete": options.complete, "files": file_sums(inventory)}
                write_atomic(folder.inputs, json.dumps(inputs, indent=1) + "\n", mode=0o600)
                journal = stack.enter_context(closing(Journal(folder.journal)))
            session = _RunSession(cluster, plan, options, folder, inventory, journal, on_event, cancel, runner or AnsibleRunner())
            return session.run(started)


@dataclass(slots=True)
class _RunSession:
    """One run of a plan."""

    cluster: Cluster
    plan: Plan
    options: Options
    folder: RunFolder
    inventory: Path
    journal: Journal
    on_event: Callable[[Event], None]
    cancel: threading.Event
    runner: Runner
    tally: Tally = field(default_factory=Tally)
    conflicts: dict[str, Conflict] = field(default_factory=dict)
    ansible_started: bool = False

    def run(self, started: float) -> Report:
        steps = tuple((step.phase, step.hosts) for step in self.plan.steps)
        self._emit(RunStarted(self.folder.run, self.options.verb, self.cluster.name, started, steps))
        self._emit(Preparing("checking the pinned host keys", time.time()))
        for pin in pin_host_keys(self.cluster, self.plan.hosts):
            self._emit(pin)
        self.conflicts = {conflict.host: conflict for conflict in key_conflicts(self.cluster, self.plan.hosts)}
        problem = self._run_steps()
        interrupted = self.cancel.is_set()
        exit_code = self.tally.exit_code(interrupted=interrupted, problem=problem)
        self._emit(RunFinished(time.time(), exit_code, "" if interrupted else problem))
        report = self.tally.report()
        with state_errors(RunError, self.folder.report):
            write_atomic(self.folder.report, report_text(report), mode=0o600)
        return report

    def _run_steps(self) -> str:
        """Run the steps; return why Ansible itself failed, or an empty string.

        If every host of a play fails, Ansible skips all later plays, even those for other hosts. The remaining hosts then
        continue in another process, from the same phase on, unless the play or the verb stops all hosts.
        """
        pending = list(enumerate(self.plan.steps, start=1))
        process = 0
        while pending and not self.cancel.is_set():
            process += 1
            lost_before = self.tally.lost_hosts
            problem, stopped = self._run_process(process, pending)
            if problem or self.cancel.is_set():
                return problem
            if stopped is None:
                return ""
            number, fatal = stopped
            same_hosts = self.tally.lost_hosts == lost_before  # another process would stop at the same step
            if fatal or same_hosts or self.options.chained:
                return ""
            pending = self._without_lost(pending[[n for n, _ in pending].index(number) :])
        return ""

    def _without_lost(self, steps: Sequence[_NumberedStep]) -> list[_NumberedStep]:
        """Remove the lost hosts from the steps, then the steps without hosts."""
        lost = self.tally.lost_hosts
        remaining = [(number, replace(step, hosts=tuple(host for host in step.hosts if host not in lost))) for number, step in steps]
        return [(number, step) for number, step in remaining if step.hosts]

    def _run_process(self, process: int, steps: Sequence[_NumberedStep]) -> tuple[str, tuple[int, bool] | None]:
        """Run one Ansible process; return why it failed, and the step that Ansible aborted, if any."""
        plays = [load_plays(content.playbooks_dir() / step.playbook) for _, step in steps]
        translator = Translator(steps, plays, len(self.plan.steps))
        with self._state_errors():
            private = _private_dir(self.folder)
        unread: list[Path] = []

        def read(raw: RawEvent) -> None:
            while unread:  # Ansible has read its secrets before its first event
                unread.pop().unlink(missing_ok=True)
            for event in translator.read(raw):
                self._emit(self._with_fix(event))

        try:
            with self._state_errors():
                ansible = self._ansible_process(process, [step for _, step in steps], private, unread)
            self.ansible_started = True
            self._emit(Preparing(_STARTING if process == 1 else _CONTINUING, time.time()))
            status = self.runner.run(ansible, read, self.cancel)
        finally:
            shutil.rmtree(private, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.folder.private_note.unlink()
        for event in translator.abandon():
            self._emit(event)
        problem = "" if translator.ended or self.cancel.is_set() else self._with_user_paths(_exit_reason(status, ansible.artifacts_dir))
        return problem, translator.stopped_at

    def _ansible_process(self, process: int, steps: Sequence[Step], private: Path, unread: list[Path]) -> AnsibleProcess:
        site = self.folder.path / f"site-{process}.yml"
        imports = [{"name": step.phase, "import_playbook": str(content.playbooks_dir() / step.playbook)} for step in steps]
        site.write_text(yaml.safe_dump(imports, sort_keys=False, explicit_start=True), encoding="utf-8")
        artifacts = self.folder.artifacts(process)
        artifacts.mkdir(mode=0o700, parents=True)
        known_hosts = known_hosts_path(self.cluster)
        if self.conflicts:
            known_hosts = without_hosts(self.cluster, self.conflicts, private / "known_hosts")
        return AnsibleProcess(
            executable=Path(sys.executable).with_name("ansible-playbook"),
            environment=ansible_environment(known_hosts, private) | {"PRIMUS_LINES": str(artifacts / "lines.jsonl")},
            working_dir=self.folder.path,
            playbook=site,
            inventory=self.inventory,
            limit=self._limit(process, steps),
            arguments=tuple(_arguments(self.options, private, unread)),
            private_dir=private,
            artifacts_dir=artifacts,
            lock=children_lock(self.folder.state_dir),
            lines=artifacts / "lines.jsonl",
        )

    def _limit(self, process: int, steps: Sequence[Step]) -> str:
        """Return `@file` with the hosts of this process, or an empty string if no host is excluded."""
        if not self.options.limited and not self.tally.lost_hosts:
            return ""
        hosts = dict.fromkeys(host for step in steps for host in step.hosts)
        path = self.folder.path / f"limit-{process}"
        path.write_text("".join(f"{host}\n" for host in hosts), encoding="utf-8")
        return f"@{path}"

    def _with_fix(self, event: Event) -> Event:
        """Add a fix to a failure, unless the role's message contained one."""
        if not isinstance(event, HostResult) or event.status not in ("failed", "unreachable"):
            return event
        event = replace(event, message=self._with_user_paths(event.message))
        if (conflict := self.conflicts.get(event.host)) and event.status == "unreachable":
            return replace(event, message=conflict.what, fix=conflict.fix)
        if event.fix:
            return event
        link = self.cluster.connection(event.host)
        known_hosts = str(known_hosts_path(self.cluster))
        return replace(
            event,
            fix=known_fix(event.message, host=event.host, address=ssh_name(link.address, link.port), known_hosts=known_hosts),
        )

    def _with_user_paths(self, text: str) -> str:
        """Replace the paths of the inventory's copy in an error message by those of the user's files."""
        return text.replace(str(self.inventory.parent), str(self.cluster.path.absolute().parent))

    def _emit(self, event: Event) -> None:
        with self._state_errors():
            self.journal.write(event)
        self.tally.add(event)
        self.on_event(event)

    def _state_errors(self) -> AbstractContextManager[None]:
        return state_errors(RunError if self.ansible_started else PlanError, self.folder.path)


def _exit_reason(status: int, artifacts: Path) -> str:
    """Return why Ansible ended without a recap."""
    if 128 < status < 128 + signal.NSIG:
        return f"Ansible was killed (signal {status - 128})"
    return last_error(artifacts) or "Ansible ended without an error message"


def _private_dir(folder: RunFolder) -> Path:
    """Create a folder that only this user can read, with a short path: it contains ssh's sockets.

    Its path is recorded in the run's folder first, so that the next run deletes it if this process is killed.
    """
    memory = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere")  # a tmpfs of this user, if there is a login session
    base = memory if os.access(memory, os.W_OK) else Path("/tmp")  # noqa: S108 - the name is random and the mode 0700
    path = base / f"primus-{secrets.token_hex(6)}"
    folder.private_note.write_text(str(path), encoding="utf-8")
    path.mkdir(mode=0o700)
    return path


def _arguments(options: Options, private: Path, unread: list[Path]) -> list[str]:
    arguments: list[str] = []
    for number, extra in enumerate(options.extra_vars):
        if extra.startswith("@"):
            arguments += ["-e", f"@{Path(extra[1:]).expanduser().resolve()}"]
        else:
            file = _secret_file(private / f"extra-vars-{number}.json", json.dumps(_key_value(extra)), unread)
            arguments += ["-e", f"@{file}"]
    if options.variables:
        # A date of a YAML file is passed as its text.
        text = json.dumps(dict(options.variables), default=str)
        arguments += ["-e", f"@{_secret_file(private / 'variables.json', text, unread)}"]
    if options.check:
        arguments += ["--check", "--diff"]
    if options.become_password:
        arguments += ["--become-password-file", str(_secret_file(private / "become", options.become_password, unread))]
    if options.vault_password:
        arguments += ["--vault-password-file", str(_secret_file(private / "vault", options.vault_password, unread))]
    if options.vault_password_file:
        arguments += ["--vault-password-file", str(options.vault_password_file.expanduser().resolve())]
    if options.forks:
        arguments += ["--forks", str(options.forks)]
    return arguments


def _key_value(text: str) -> Mapping[str, str]:
    name, _, value = text.partition("=")
    return {name.strip(): value}


def _secret_file(path: Path, text: str, unread: list[Path]) -> Path:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    unread.append(path)
    return path
