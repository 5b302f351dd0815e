"""`workload`: hand training jobs to their watchers, look at them, stop them, and go on with them."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from primus_bootstrap.cli.console import emit, emit_json, program, say
from primus_bootstrap.cli.day2 import split_words
from primus_bootstrap.cli.fleet_verbs import as_root, ask_hosts, targets_of_limit
from primus_bootstrap.cli.options import (
    DEFAULT_HOSTS,
    AsJson,
    AskBecomePass,
    AskVaultPass,
    ExtraVars,
    HostsFile,
    Timeout,
    VaultPasswordFile,
    ask_password,
)
from primus_bootstrap.cli.report_view import next_steps, print_report
from primus_bootstrap.cli.run_verbs import run_options, run_plan
from primus_bootstrap.cli.workload_offer import offer_of
from primus_bootstrap.cli.workload_view import event_line, print_job, print_jobs
from primus_bootstrap.core.errors import PlanError, RunError, UnknownError
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.ssh import known_hosts_path, ssh_arguments
from primus_bootstrap.fleet import jobs
from primus_bootstrap.fleet.messages import Task
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.job_file import ROLE, check_job, find_job, read_job
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.launch.watch.job_spec import JOB_ID
from primus_bootstrap.launch.watch.job_state import DONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.fleet.messages import Answer
    from primus_bootstrap.inventory.cluster import Cluster

PLAYBOOK = "workload.yml"
SCHEMA = "primus.workload/1"
_GROUP = "primus_watch"
_FOLLOW_S = 3.0
_PATIENCE_S = 300.0  # how long who follows a job waits for an answer: a service host may be starting again

app = typer.Typer(no_args_is_help=True, help="Training jobs that survive the loss of a host: submit, look at, stop, go on with.")

JobWords = Annotated[
    list[str],
    typer.Argument(
        metavar="[HOSTS.YAML] JOB", show_default=False, help="The cluster's hosts.yaml, and a job's file or a shipped one's name."
    ),
]
IdWords = Annotated[
    list[str], typer.Argument(metavar="[HOSTS.YAML] ID", show_default=False, help="The cluster's hosts.yaml, and the job's id.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on showing what happens until the job has come to its end.")]


@app.command()
def submit(
    words: JobWords,
    *,
    extra_vars: ExtraVars = None,
    job_id: Annotated[str, typer.Option("--id", help="Its id, to repeat a submission: the same id is the same job.", metavar="ID")] = "",
    user: Annotated[str, typer.Option("--user", help="The account whose job it is: workload_user.", metavar="NAME")] = "",
    follow: Follow = False,
    timeout_s: Timeout = 30.0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Check a job, write it down on shared storage, and start its watcher, which keeps it going from then on.

    Everything that is wrong with the job is said before a host is contacted (exit 2). Hosts in quarantine are left out and
    spares take their place; where too few are left, nothing is started (exit 3). This command may end or be killed
    afterwards: nothing depends on it.
    """
    path, (name,) = split_words(words, ["JOB"])
    options = run_options("workload submit", None, 0, ask_become_pass, ask_vault_pass, vault_password_file)
    file = find_job(name)
    own = [*([f"workload_id={job_id}"] if job_id else []), *([f"workload_user={user}"] if user else [])]
    said = read_job(file, [*(extra_vars or ()), *own])
    cluster = load_cluster(path, vault_password_file=vault_password_file, ask_vault_pass=options.vault_password or None)
    job = check_job(cluster, said, str(file))
    made = make_plan(cluster, playbook=PLAYBOOK)
    offer = offer_of(cluster, job, timeout_s=timeout_s)
    for line in offer.lines():
        say(line)
    chosen = job["workload_id"] or load_filters(ROLE).new_id(job["workload_name"])
    say(f"the job is {chosen}")
    with tempfile.TemporaryDirectory(prefix="primus-job-") as folder:
        values = Path(folder) / "job.yml"
        found = {"workload_order": [*offer.hosts, *offer.spares], "workload_left_out": [one.to_json() for one in offer.left_out]}
        values.write_text(yaml.safe_dump({**said.values, **found, "workload_id": chosen}, sort_keys=False), encoding="utf-8")
        report = run_plan(cluster, made, replace(options, extra_vars=(f"@{values}",)))
    target = load_filters(ROLE).target(job, cluster.groups)
    if as_json:
        place = {"id": chosen, "target": target, "host": made.hosts[0], "folder": f"{job['workload_folder']}/{chosen}"}
        emit_json({"schema": SCHEMA, **place, "offer": offer.to_json(), "run": report.run, "exit_code": report.exit_code})
    elif report.exit_code:
        print_report(report, cluster.path)
        emit(next_steps(cluster, report))
    else:
        emit(f"{chosen} is in the hands of {made.hosts[0]} ({target}); next: {program()} workload status {chosen} --follow")
    if follow and not report.exit_code:
        raise typer.Exit(_follow(_WatcherClient(cluster, options.become_password, timeout_s), chosen, as_json=as_json))
    raise typer.Exit(report.exit_code)


@app.command("list")
def list_(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also those that have come to their end.")] = False,
    timeout_s: Timeout = 30.0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the jobs of the cluster: whose, where, how far, and what they wait for."""
    keepers = _keepers(hosts, timeout_s, ask_become_pass=ask_become_pass, ask_vault_pass=ask_vault_pass, vault=vault_password_file)
    found = [job for job in jobs.read_list(keepers.ask(jobs.list_line(keepers.place))) if all_ or not job.ended]
    if as_json:
        emit_json({"schema": SCHEMA, "cluster": keepers.cluster.name, "jobs": [job.to_json() for job in found]})
    else:
        print_jobs(found)


@app.command()
def status(
    words: IdWords,
    *,
    follow: Follow = False,
    timeout_s: Timeout = 30.0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show one job: how far it is, where it runs, what happened, and why.

    With --follow exit code 4 where it was given up or cancelled, 6 where no service host has answered for five minutes.
    """
    path, job = _named(words)
    keepers = _keepers(path, timeout_s, ask_become_pass=ask_become_pass, ask_vault_pass=ask_vault_pass, vault=vault_password_file)
    if follow:
        raise typer.Exit(_follow(keepers, job, as_json=as_json))
    found = keepers.show(job)
    if as_json:
        emit_json({"schema": SCHEMA, **found.to_json()})
    else:
        print_job(found)


@app.command()
def logs(
    words: IdWords,
    *,
    rank: Annotated[int, typer.Option("--rank", "-r", min=0, help="Which process of the job.")] = 0,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many lines from its end.")] = 50,
    follow: Follow = False,
    timeout_s: Timeout = 30.0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
) -> None:
    """Print what a process of the job has written. With --follow it goes on through restarts, until the job has come to its end."""
    path, job = _named(words)
    keepers = _keepers(path, timeout_s, ask_become_pass=ask_become_pass, ask_vault_pass=ask_vault_pass, vault=vault_password_file)
    if follow:
        keepers.show(job)  # says what is wrong where there is no such job, and which host answers
        raise typer.Exit(keepers.stream(jobs.log_line(keepers.place, job, rank, lines=lines, follow=True)))
    emit(keepers.ask(jobs.log_line(keepers.place, job, rank, lines=lines, follow=False), job).rstrip("\n"))


@app.command()
def cancel(
    words: IdWords,
    *,
    timeout_s: Timeout = 30.0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Have a job stopped, with a checkpoint where there is time for one. `workload resume` goes on with it."""
    path, job = _named(words)
    keepers = _keepers(path, timeout_s, ask_become_pass=ask_become_pass, ask_vault_pass=ask_vault_pass, vault=vault_password_file)
    before = keepers.show(job)
    if not before.ended:
        keepers.ask(jobs.cancel_line(keepers.place, job, unwatched=before.stale), job)
    new = f" by a new watcher on {keepers.answering}, since its own is silent" if before.stale else ""
    said = (
        f"nothing to do: {job} is {before.phase} already"
        if before.ended
        else f"{job} is told to stop{new}; see: {program()} workload status {job}"
    )
    _tell(said, {"id": job, "phase": before.phase, "asked": not before.ended}, as_json=as_json)


@app.command()
def resume(
    words: IdWords,
    *,
    timeout_s: Timeout = 30.0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a job that was given up or cancelled, from its last good checkpoint and with a fresh count of restarts.

    Where the service host that kept it is lost, the next host of primus_watch takes it over.
    """
    path, job = _named(words)
    keepers = _keepers(path, timeout_s, ask_become_pass=ask_become_pass, ask_vault_pass=ask_vault_pass, vault=vault_password_file)
    before = keepers.show(job)
    if before.phase != DONE:
        keepers.ask(jobs.resume_line(keepers.place, job), job)
    going_on = f"{job} goes on, kept by {keepers.answering}; see: {program()} workload status {job}"
    said = f"nothing to do: {job} is done" if before.phase == DONE else going_on
    _tell(said, {"id": job, "phase": before.phase, "asked": before.phase != DONE}, as_json=as_json)


class _WatcherClient:
    """The service hosts: the first that answers is asked, since what they know lies on storage that they share."""

    def __init__(self, cluster: Cluster, become_password: str, timeout_s: float) -> None:
        self.cluster = cluster
        self.hosts = cluster.groups.get(_GROUP) or ()
        if not self.hosts:
            raise PlanError("no host is in the group primus_watch, so nobody keeps jobs", fix="give the group a host, and apply")
        self.place = _place(cluster.view.variables(self.hosts[0]))
        self.answering = self.hosts[0]
        self._become_password = become_password
        self._timeout_s = timeout_s

    def ask(self, line: str, job: str = "") -> str:
        """Run a line as root on the first service host that answers, and return what it printed.

        Raises:
            PlanError: there is no such job.
            RunError: none answers, or the line failed.
        """
        silent: list[Answer] = []
        for host in dict.fromkeys((self.answering, *self.hosts)):
            targets = targets_of_limit(self.cluster, host, self._become_password)
            stdin = {host: f"{self._become_password}\n"} if self._become_password else {}
            task = Task(as_root(line), stdin, self._timeout_s, str(known_hosts_path(self.cluster)))
            (answer,) = ask_hosts(self.cluster, targets, task)
            if answer.answered:
                self.answering = host
                return _output(answer, job)
            silent.append(answer)
        said = "; ".join(f"{answer.host}: {answer.detail}" for answer in silent)
        raise RunError(f"no host of primus_watch answers: {said}", fix=silent[0].fix or "bring one of them up")

    def show(self, job: str, *, events_from: int | None = None) -> jobs.Job:
        """Return one job as it is now, with its newest events, or with those from a place on."""
        return jobs.read_job(json.loads(self.ask(jobs.show_line(self.place, job, events_from=events_from), job)))

    def stream(self, line: str) -> int:
        """Run a line as root on the host that answered last, its output on ours, until it ends; return its exit code."""
        words = [*ssh_arguments(self.cluster, self.answering), as_root(line)]
        with subprocess.Popen(words, stdin=subprocess.PIPE) as child:
            try:
                if child.stdin and self._become_password:
                    child.stdin.write(f"{self._become_password}\n".encode())
                    child.stdin.flush()
                return child.wait()
            except KeyboardInterrupt:
                child.terminate()
                return 130


def _keepers(path: Path, timeout_s: float, *, ask_become_pass: bool, ask_vault_pass: bool, vault: Path | None) -> _WatcherClient:
    become = ask_password("sudo password of the hosts", ask=ask_become_pass) or ""
    password = ask_password("Vault password", ask=ask_vault_pass)
    return _WatcherClient(load_cluster(path, vault_password_file=vault, ask_vault_pass=password), become, timeout_s)


def _place(known: Mapping[str, Any]) -> jobs.JobStore:
    """Return where jobs lie and with what they are read, as playbooks/vars/primus_watch.yml has it."""
    folder, own = (known.get(name, load_options()[name].default) for name in ("workload_folder", "primus_cli_program"))
    return jobs.JobStore(str(folder), str(own))


def _output(answer: Answer, job: str) -> str:
    if answer.exit_code == jobs.NO_SUCH_JOB:
        raise PlanError(f"there is no job {job}", fix=f"`{program()} workload list --all` shows those that there are")
    if answer.exit_code:
        what, _, fix = answer.stderr.strip().partition("fix: ")
        said = what.strip() or f"exit code {answer.exit_code}, and nothing was said"
        raise RunError(f"{answer.host}: {said}", fix=fix.strip() or "apply the phases gpu and scheduling to this host")
    return answer.stdout


def _named(words: list[str]) -> tuple[Path, str]:
    path, (job,) = split_words(words, ["ID"])
    if not JOB_ID.fullmatch(job):
        raise PlanError(f"{job} is no id of a job", fix=f"a name, a dash and six digits: `{program()} workload list --all` shows them")
    return path, job


def _follow(keepers: _WatcherClient, job: str, *, as_json: bool) -> int:
    """Print a job's events as they come, until its end; return 0 where it is done.

    Raises:
        UnknownError: nobody has answered for long, which says nothing of the job.
    """
    at = 0
    while True:
        found = _hear(keepers, job, events_from=at)
        for event in found.events:
            emit(json.dumps(event) if as_json else event_line(event))
        if found.events_end != at:  # there may be more than one answer takes, and what ended the job is among them
            at = found.events_end
            continue
        if found.ended:
            if as_json:
                emit(json.dumps(found.to_json()))
            else:
                print_job(found)
            return 0 if found.phase == DONE else RunError.exit_code
        time.sleep(_FOLLOW_S)


def _hear(keepers: _WatcherClient, job: str, *, events_from: int) -> jobs.Job:
    """Return a job as it is now, from the first service host that answers within _PATIENCE_S; say once that none does."""
    began, silent = time.monotonic(), False
    while True:
        try:
            found = keepers.show(job, events_from=events_from)
        except RunError as error:
            if time.monotonic() - began > _PATIENCE_S:
                what = f"how {job} stands is unknown: no answer for {_PATIENCE_S / 60:.0f} minutes: {error.what}"
                raise UnknownError(what, fix=f"{error.fix}; then: {program()} workload status {job} --follow") from error
            if not silent:
                say(f"{error.what}; asking again for {_PATIENCE_S / 60:.0f} minutes, the job goes on meanwhile")
            silent = True
            time.sleep(_FOLLOW_S)
        else:
            if silent:
                say(f"{keepers.answering} answers again")
            return found


def _tell(said: str, data: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json({"schema": SCHEMA, **data})
    else:
        emit(said)
