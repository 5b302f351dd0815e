"""The verbs `workload`: submit, list, show, cancel and resume training jobs."""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primus_bootstrap.cli.cluster_loading import open_cluster
from primus_bootstrap.cli.console import emit, emit_json, say
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
from primus_bootstrap.cli.printed_commands import with_inventory
from primus_bootstrap.cli.report_view import next_steps, print_report, running_text
from primus_bootstrap.cli.run_verbs import run_options, run_plan
from primus_bootstrap.cli.torch_check import check_torch
from primus_bootstrap.cli.workload_follow import follow_job
from primus_bootstrap.cli.workload_hosts import hosts_for_job
from primus_bootstrap.cli.workload_view import print_job, print_jobs
from primus_bootstrap.core.errors import PlanError, RunError, UsageError
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.ssh import known_hosts_path, ssh_arguments
from primus_bootstrap.fleet.jobs import NO_SUCH_JOB, JobCommands, JobStatus, read_list, read_show
from primus_bootstrap.fleet.messages import Task
from primus_bootstrap.inventory.job_file import check_job, find_job, inventory_facts, read_job
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.launch.watch.job_request import new_id, target_of
from primus_bootstrap.launch.watch.job_spec import JOB_ID, PLATFORMS
from primus_bootstrap.launch.watch.job_state import DONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.fleet.messages import Answer
    from primus_bootstrap.inventory.cluster import Cluster

PLAYBOOK = "workload.yml"
SCHEMA = "primus.workload/1"
_GROUP = "primus_watch"
_WAIT = "wait until it has ended, then submit the job again"

app = typer.Typer(no_args_is_help=True, help="Training jobs that survive the loss of a host: submit, list, show, cancel and resume them.")

JobWords = Annotated[
    list[str],
    typer.Argument(
        metavar="[HOSTS.YAML] JOB", show_default=False, help="The cluster's hosts.yaml, and the file of a job or the name of a shipped job."
    ),
]
IdWords = Annotated[
    list[str], typer.Argument(metavar="[HOSTS.YAML] ID", show_default=False, help="The cluster's hosts.yaml, and the job's id.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job has ended.")]


@app.command()
def submit(
    words: JobWords,
    *,
    extra_vars: ExtraVars = None,
    job_id: Annotated[
        str, typer.Option("--id", help="The job's id, to repeat a submission. The same id is the same job.", metavar="ID")
    ] = "",
    user: Annotated[str, typer.Option("--user", help="The account that the job runs as: workload_user.", metavar="NAME")] = "",
    follow: Follow = False,
    timeout_s: Timeout = 30.0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Check a job, write it to the shared storage, and start its watcher.

    All mistakes in the job are reported before a host is contacted (exit code 2). Hosts in quarantine are left out, and
    spares replace them. If too few hosts are in service, nothing is started (exit code 3). The job does not depend on this
    command after it has returned or was killed.
    """
    path, (name,) = split_words(words, ["JOB"])
    options = run_options("workload submit", None, 0, ask_become_pass, ask_vault_pass, vault_password_file)
    file = find_job(name)
    job_file = read_job(file, extra_vars or (), {"--id": job_id, "--user": user})
    cluster = load_cluster(path, vault_password_file=vault_password_file, ask_vault_pass=options.vault_password or None)
    request = check_job(cluster, job_file, str(file))
    plan = make_plan(cluster, playbook=PLAYBOOK)
    target = target_of(request, inventory_facts(cluster))
    with _blames_running(cluster.state_dir):
        selection = hosts_for_job(cluster, request, timeout_s=timeout_s)
        for line in selection.lines():
            say(line)
        check_torch(cluster, request, target, selection.hosts, become_password=options.become_password, timeout_s=timeout_s)
    id_ = request.id or new_id(request.name)
    say(f"submitting {id_}")
    found = {
        "workload_id": id_,
        "workload_host_order": [*selection.hosts, *selection.spares],
        "workload_excluded_hosts": [host.to_json() for host in selection.left_out],
    }
    report = run_plan(cluster, plan, replace(options, variables={**job_file.values, **found}, submits=True))
    watcher = plan.hosts[0]
    if as_json:
        answer = {"id": id_, "target": target, "host": watcher, "folder": f"{request.folder}/{id_}"}
        emit_json({"schema": SCHEMA, **answer, "offer": asdict(selection), "run": report.run, "exit_code": report.exit_code})
    elif report.exit_code and (running := running_text(cluster.state_dir, time.time())):
        emit(f"the job was not submitted: {_cause(report)}; {running}\n  fix: {_WAIT}")
    elif report.exit_code:
        print_report(report, cluster.path)
        emit(next_steps(cluster, report))
    else:
        following = f"{_command('status', cluster.path, id_)} --follow"
        emit(f"submitted {id_} ({PLATFORMS.get(target, target)}), watched by {watcher}; next: {following}")
    if follow and not report.exit_code:
        raise typer.Exit(follow_job(_WatcherClient(cluster, options.become_password, timeout_s), id_, as_json=as_json))
    raise typer.Exit(report.exit_code)


@contextmanager
def _blames_running(state_dir: Path) -> Iterator[None]:
    """Say in an error that another run changes the cluster now: what is missing may be what it installs.

    Raises:
        PlanError: The error of the block.
    """
    try:
        yield
    except PlanError as error:
        running = running_text(state_dir, time.time())
        raise PlanError(f"{error.what}; {running}", fix=_WAIT) if running else error from error


def _cause(report: Report) -> str:
    """Return why a submission failed, without the fix, which is for a cluster that no run changes."""
    causes = [failure.cause for host in report.hosts for failure in host.failures]
    return causes[0].partition(" Fix: ")[0].partition("\n")[0].rstrip(".") if causes else report.problem or "its host was not reached"


@app.command("list")
def list_(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that have ended.")] = False,
    timeout_s: Timeout = 30.0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """List the jobs of the cluster with user, target, state, step and hosts."""
    client = _connect(hosts, timeout_s, ask_become_pass=ask_become_pass, ask_vault_pass=ask_vault_pass, vault=vault_password_file)
    jobs = [job for job in read_list(client.run(client.commands.list_all())) if all_ or not job.ended]
    if as_json:
        emit_json({"schema": SCHEMA, "cluster": client.cluster.name, "jobs": [asdict(job) for job in jobs]})
    else:
        print_jobs(jobs)


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
    """Show one job: its state, hosts, attempts and newest events.

    With --follow the exit code is 4 if the job failed or was cancelled, and 6 if no service host answers for five minutes.
    """
    path, job = _job_id(words)
    client = _connect(path, timeout_s, ask_become_pass=ask_become_pass, ask_vault_pass=ask_vault_pass, vault=vault_password_file)
    if follow:
        raise typer.Exit(follow_job(client, job, as_json=as_json))
    status_ = client.show(job)
    if as_json:
        emit_json({"schema": SCHEMA, **asdict(status_)})
    else:
        print_job(status_, path)


@app.command()
def logs(
    words: IdWords,
    *,
    rank: Annotated[int, typer.Option("--rank", "-r", min=0, help="Rank of the process.")] = 0,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of lines.")] = 50,
    follow: Follow = False,
    timeout_s: Timeout = 30.0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
) -> None:
    """Print the end of a rank's log. With --follow continue, also through restarts, until the job has ended."""
    path, job = _job_id(words)
    client = _connect(path, timeout_s, ask_become_pass=ask_become_pass, ask_vault_pass=ask_vault_pass, vault=vault_password_file)
    if follow:
        client.show(job)  # fails if there is no such job, and finds the host that answers
        raise typer.Exit(client.stream(client.commands.log(job, rank, lines=lines, follow=True)))
    emit(client.run(client.commands.log(job, rank, lines=lines, follow=False), job).rstrip("\n"))


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
    """Stop a job, with a checkpoint if there is time for one. `workload resume` continues it."""
    path, job = _job_id(words)
    client = _connect(path, timeout_s, ask_become_pass=ask_become_pass, ask_vault_pass=ask_vault_pass, vault=vault_password_file)
    before = client.show(job)
    if not before.ended:
        client.run(client.commands.cancel(job, start_watcher=before.stale), job)
    new = f" by a new watcher on {client.answering}, because its own does not run" if before.stale else ""
    requested = f"requested cancellation of {job}{new}; see: {_command('status', path, job)}"
    message = f"nothing to do: {job} is already {before.phase}" if before.ended else requested
    _print_result(message, {"id": job, "phase": before.phase, "requested": not before.ended}, as_json=as_json)


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
    """Continue a job that failed or was cancelled, from its last good checkpoint and with a new retry budget.

    If the service host of its watcher is lost, the next host of primus_watch starts a watcher.
    """
    path, job = _job_id(words)
    client = _connect(path, timeout_s, ask_become_pass=ask_become_pass, ask_vault_pass=ask_vault_pass, vault=vault_password_file)
    before = client.show(job)
    if before.phase != DONE:
        client.run(client.commands.resume(job), job)
    resumed = f"resumed {job}, watched by {client.answering}; see: {_command('status', path, job)}"
    message = f"nothing to do: {job} is done" if before.phase == DONE else resumed
    _print_result(message, {"id": job, "phase": before.phase, "requested": before.phase != DONE}, as_json=as_json)


class _WatcherClient:
    """Runs commands for jobs on the first service host that answers: all of them share the storage with the jobs."""

    def __init__(self, cluster: Cluster, become_password: str, timeout_s: float) -> None:
        self.cluster = cluster
        self.hosts = cluster.groups.get(_GROUP) or ()
        if not self.hosts:
            raise PlanError("no host is in the group primus_watch, so no watcher can run", fix="add a host to primus_watch, and apply")
        self.commands = _commands(cluster.view.variables(self.hosts[0]))
        self.answering = self.hosts[0]
        self._become_password = become_password
        self._timeout_s = timeout_s

    def run(self, command: str, job: str = "") -> str:
        """Run a command as root on the first service host that answers, and return its output.

        Raises:
            PlanError: There is no such job.
            RunError: No service host answers, or the command failed.
        """
        silent: list[Answer] = []
        for host in dict.fromkeys((self.answering, *self.hosts)):
            targets = targets_of_limit(self.cluster, host, self._become_password)
            stdin = {host: f"{self._become_password}\n"} if self._become_password else {}
            task = Task(as_root(command), stdin, self._timeout_s, str(known_hosts_path(self.cluster)))
            (answer,) = ask_hosts(self.cluster, targets, task)
            if answer.answered:
                self.answering = host
                return _output(answer, job)
            silent.append(answer)
        reasons = "; ".join(f"{answer.host}: {answer.detail}" for answer in silent)
        raise RunError(f"no host of primus_watch answers: {reasons}", fix=silent[0].fix or "start one of them")

    def show(self, job: str, *, events_from: int | None = None) -> JobStatus:
        """Return the status of a job, with its newest events, or with those from a byte offset on."""
        return read_show(self.run(self.commands.show(job, events_from=events_from), job))

    def stream(self, command: str) -> int:
        """Run a command as root on the host that answered last, print its output until it ends, and return its exit code."""
        words = [*ssh_arguments(self.cluster, self.answering), as_root(command)]
        with subprocess.Popen(words, stdin=subprocess.PIPE) as child:
            try:
                if child.stdin and self._become_password:
                    child.stdin.write(f"{self._become_password}\n".encode())
                    child.stdin.flush()
                return child.wait()
            except KeyboardInterrupt:
                child.terminate()
                return 130


def _connect(path: Path, timeout_s: float, *, ask_become_pass: bool, ask_vault_pass: bool, vault: Path | None) -> _WatcherClient:
    become = ask_password("sudo password of the hosts", ask=ask_become_pass) or ""
    return _WatcherClient(open_cluster(path, vault_password_file=vault, ask_vault_pass=ask_vault_pass), become, timeout_s)


def _commands(variables: Mapping[str, Any]) -> JobCommands:
    """Return the commands for the folder and program that playbooks/vars/primus_watch.yml uses too."""
    folder, path = (variables.get(name, load_options()[name].default) for name in ("workload_folder", "primus_cli_program"))
    return JobCommands(str(folder), str(path))


def _output(answer: Answer, job: str) -> str:
    if answer.exit_code == NO_SUCH_JOB:
        raise PlanError(f"there is no job {job}", fix="list all jobs: primus-bootstrap workload list hosts.yaml --all")
    if answer.exit_code:
        what, _, fix = answer.stderr.strip().partition("fix: ")
        reason = what.strip() or f"exit code {answer.exit_code} without a message"
        raise RunError(f"{answer.host}: {reason}", fix=fix.strip() or "apply the phases gpu and scheduling to this host")
    if answer.truncated:
        what = f"{answer.host}: the answer is longer than 1 MiB" + (f": the files of {job} are too large" if job else "")
        raise RunError(what, fix="look at the job's folder on that host" if job else "remove the folders of old jobs that have ended")
    return answer.stdout


def _command(verb: str, path: Path, job: str) -> str:
    """Return a command for a job, for messages."""
    return with_inventory(f"primus-bootstrap workload {verb} hosts.yaml {job}", path)


def _job_id(words: list[str]) -> tuple[Path, str]:
    path, (job,) = split_words(words, ["ID"])
    if not JOB_ID.fullmatch(job):
        fix = "give the name, a dash and six hexadecimal digits; list the ids: primus-bootstrap workload list hosts.yaml --all"
        raise UsageError(f"{job} is not the id of a job", fix=fix)
    return path, job


def _print_result(message: str, data: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json({"schema": SCHEMA, **data})
    else:
        emit(message)
