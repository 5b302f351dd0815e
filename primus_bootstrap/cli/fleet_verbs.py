"""The verbs `probe`, `doctor`, `ssh` and `exec`, which do not use Ansible."""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.cli.cluster_loading import open_cluster
from primus_bootstrap.cli.console import emit, emit_json, emit_table, say, stderr
from primus_bootstrap.cli.day2 import find_host
from primus_bootstrap.cli.fleet_view import controller_table, probe_json, probe_summary, probe_table, unknown_lines
from primus_bootstrap.cli.options import (
    DEFAULT_HOSTS,
    AsJson,
    AskBecomePass,
    AskVaultPass,
    HostsFile,
    HostsFileOption,
    Limit,
    Timeout,
    VaultPasswordFile,
    ask_password,
    examples,
    is_inventory,
)
from primus_bootstrap.cli.printed_commands import with_inventory
from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.engine.hostkeys import key_conflicts, pin_host_keys
from primus_bootstrap.engine.ssh import known_hosts_path, ssh_arguments
from primus_bootstrap.fleet.controller import check_controller
from primus_bootstrap.fleet.fanout import run_on_all
from primus_bootstrap.fleet.messages import Answer, Task
from primus_bootstrap.fleet.probe import probe_task, read_answer
from primus_bootstrap.fleet.targets import targets_of
from primus_bootstrap.lab.lab_values import heal_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.fleet.messages import Target
    from primus_bootstrap.inventory.cluster import Cluster

# Runs the words after $0, and prints $0 if ssh could not connect: its exit code is then 255 (man ssh, EXIT STATUS).
_SSH = '"$@"; code=$?; [ "$code" != 255 ] || printf "%s\\n" "$0" >&2; exit "$code"'
Command = Annotated[
    list[str], typer.Argument(help="The command after --; a single quoted argument is run as a shell line.", metavar="-- COMMAND")
]


def register(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command("probe", epilog=examples("probe", "probe --limit gpu_node --json"))(probe)
    app.command("doctor")(doctor)
    app.command("ssh", epilog=examples("ssh gpu1", "ssh gpu1 -- uptime"))(ssh)
    app.command("exec", epilog=examples("exec gpu_node -- uptime", "exec gpu1,gpu2 --sudo -- 'dmesg | tail'"))(exec_)


def probe(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    limit: Limit = None,
    timeout_s: Timeout = 15.0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Collect facts from every host: SSH, sudo, system, cores, memory, disk, clock, GPUs, NICs. Changes nothing.

    Exit code 4 if a host does not answer (it is `unknown`) or does not allow sudo.
    """
    become = ask_password("sudo password of the hosts", ask=ask_become_pass) or ""
    cluster = open_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass)
    targets = targets_of_limit(cluster, limit or "all", become)
    task = probe_task(targets, known_hosts=known_hosts_path(cluster), timeout_s=timeout_s)
    probes = [read_answer(answer) for answer in ask_hosts(cluster, targets, task)]
    if as_json:
        emit_json({"cluster": cluster.name, **probe_json(probes)})
    else:
        emit_table(probe_table(probes))
        emit(probe_summary(probes))
        for line in unknown_lines(probes):
            emit(with_inventory(line, cluster.path))
    if not all(probe.facts and probe.facts.can_become_root for probe in probes):
        raise typer.Exit(4)


def doctor(*, as_json: AsJson = False) -> None:
    """Check whether this machine can be a controller. Contacts no host. Exit code 1 if a check fails."""
    verdicts = list(check_controller(Path.cwd()))
    failed = [verdict for verdict in verdicts if verdict.verdict == "fail"]
    if as_json:
        emit_json({"verdicts": [verdict.to_json() for verdict in verdicts]})
    else:
        emit_table(controller_table(verdicts))
        for verdict in verdicts:
            if verdict.verdict in ("fail", "unknown"):
                emit(f"{verdict.check}: {verdict.reason}\n  fix: {verdict.fix}")
        emit(_readiness(verdicts))
    if failed:
        raise typer.Exit(1)


def _readiness(verdicts: Sequence[Verdict]) -> str:
    """Return the last line of `doctor`."""
    if any(verdict.verdict == "fail" for verdict in verdicts):
        return "not ready: apply the fixes above"
    unknown = [verdict.check for verdict in verdicts if verdict.verdict == "unknown"]
    return f"ready, except that this is unknown: {', '.join(unknown)}" if unknown else "ready"


def ssh(
    host: Annotated[str, typer.Argument(help="The cluster's hosts.yaml, and a host of it.", metavar="[HOSTS.YAML] HOST")],
    command: Annotated[
        list[str] | None, typer.Argument(help="A command to run instead of a shell, after --.", metavar="-- COMMAND")
    ] = None,
    *,
    hosts: HostsFileOption = DEFAULT_HOSTS,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
) -> None:
    """Open an SSH session on a host, with the user, key, port and bastion from hosts.yaml and a checked host key."""
    hosts, host, command = _split_inventory(hosts, host, command or [], "HOST")
    cluster = open_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass)
    _pin(cluster, [find_host(cluster, host)])
    for conflict in key_conflicts(cluster, [host]):
        raise PlanError(f"{host}: {conflict.what}", fix=conflict.fix)
    words = [*ssh_arguments(cluster, host), *([_shell_line(command)] if command else [])]
    fix = heal_command(cluster.path.parent, cluster.name, host) or f"primus-bootstrap status hosts.yaml --limit {host}"
    message = with_inventory(f"{host}: ssh ended with 255: no connection, or the command did\n  fix: {fix}", hosts)
    os.execvp("sh", ["sh", "-c", _SSH, message, *words])  # noqa: S606 (an argument list; the script is a constant)


def exec_(
    pattern: Annotated[
        str,
        typer.Argument(
            help="The cluster's hosts.yaml, and an Ansible host pattern, for example `gpu_node` or `all:!etcd`.",
            metavar="[HOSTS.YAML] PATTERN",
        ),
    ],
    command: Command,
    *,
    hosts: HostsFileOption = DEFAULT_HOSTS,
    sudo: Annotated[bool, typer.Option("--sudo", help="Run it as root.")] = False,
    timeout_s: Timeout = 60.0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Run a command on all matching hosts in parallel. The command may change the hosts.

    Identical outputs are shown once, with their hosts. Exit code 4 if the command fails on a host or a host does not answer. After
    --timeout the verb stops waiting for a host, but the command may continue there.
    """
    hosts, pattern, command = _split_inventory(hosts, pattern, command, "PATTERN -- COMMAND")
    become = ask_password("sudo password of the hosts", ask=ask_become_pass) or ""
    cluster = open_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass)
    targets = targets_of_limit(cluster, pattern, become)
    line = _shell_line(command)
    stdin = {target.host: f"{target.become_password}\n" for target in targets if sudo and target.become_password}
    task = Task(as_root(line) if sudo else line, stdin, timeout_s, str(known_hosts_path(cluster)))
    answers = list(ask_hosts(cluster, targets, task))
    if as_json:
        emit_json({"cluster": cluster.name, "command": line, "hosts": [_answer_json(answer) for answer in answers]})
    else:
        _show_answers(answers, cluster.path)
    if any(answer.exit_code != 0 for answer in answers):
        raise typer.Exit(4)


def _split_inventory(hosts: Path, word: str, others: Sequence[str], missing: str) -> tuple[Path, str, list[str]]:
    """Return the inventory, the host or pattern, and the command; the inventory may be the first word.

    Raises:
        UsageError: A word is missing.
    """
    if not is_inventory(word):
        return hosts, word, list(others)
    if len(others) < len(missing.split(" -- ")):
        raise UsageError(f"{word} is the inventory, and {missing} is missing", fix=f"pass [hosts.yaml] {missing}")
    return Path(word), others[0], list(others[1:])


def targets_of_limit(cluster: Cluster, pattern: str, become_password: str = "") -> tuple[Target, ...]:
    """Return the hosts that match a pattern, with their connections.

    Raises:
        UsageError: No host matches.
    """
    names = cluster.select(pattern)
    if not names:
        groups = ", ".join(name for name, members in cluster.groups.items() if members)
        raise UsageError(f"no host matches {pattern!r}", fix=f"use a host or one of these groups: {groups}")
    targets = targets_of(cluster, names)
    return tuple(replace(target, become_password=become_password) for target in targets) if become_password else targets


def ask_hosts(cluster: Cluster, targets: Sequence[Target], task: Task) -> list[Answer]:
    """Run a task on all hosts and return the answers in the order of `targets`; pin unknown host keys and try again."""
    conflicts = {conflict.host: conflict for conflict in key_conflicts(cluster, [target.host for target in targets])}
    answers = {host: Answer(host, cause="host_key_changed", detail=conflict.what) for host, conflict in conflicts.items()}
    answers |= {answer.host: answer for answer in _ask_with_progress([target for target in targets if target.host not in conflicts], task)}
    without_key = [target for target in targets if answers[target.host].cause == "host_key_unknown"]
    pinned = _pin(cluster, [target.host for target in without_key])
    answers |= {answer.host: answer for answer in _ask_with_progress([target for target in without_key if target.host in pinned], task)}
    return [answers[target.host] for target in targets]


def _ask_with_progress(targets: Sequence[Target], task: Task) -> Iterator[Answer]:
    """Yield the answers, and show their number on a terminal."""
    console = stderr()
    with console.status(f"0 of {len(targets)} hosts") as status:
        for number, answer in enumerate(run_on_all(targets, task), start=1):
            status.update(f"{number} of {len(targets)} hosts")
            yield answer


def _pin(cluster: Cluster, hosts: Sequence[str]) -> set[str]:
    pins = pin_host_keys(cluster, hosts) if hosts else ()
    for pin in pins:
        say(f"pinned the host key of {pin.host} ({pin.address}) from {pin.source}: {pin.key_type} {pin.fingerprint}")
    return {pin.host for pin in pins}


def _shell_line(words: Sequence[str]) -> str:
    """Return the line for the host's shell: a single word as it is, several words quoted."""
    return words[0] if len(words) == 1 else shlex.join(words)


def as_root(line: str) -> str:
    """Return a shell line that runs `line` as root. sudo reads the password from stdin; the command does not get it."""
    inner = shlex.quote(f"exec </dev/null; {line}")
    ask = "sudo -n true 2>/dev/null && flags=-n || flags=-S"
    return f'[ "$(id -u)" = 0 ] && exec sh -c {inner}; {ask}; exec sudo $flags -p "" sh -c {inner}'


def _answer_json(answer: Answer) -> dict[str, object]:
    names = ("host", "exit_code", "stdout", "stderr", "cause", "detail", "seconds", "truncated")
    return {**{name: getattr(answer, name) for name in names}, "state": "answered" if answer.answered else "unknown", "fix": answer.fix}


def _show_answers(answers: Sequence[Answer], file: Path) -> None:
    """Print each outcome once, with its hosts; hosts that did not answer come last."""
    by_outcome: dict[Answer, list[str]] = defaultdict(list)
    for answer in answers:
        by_outcome[replace(answer, host="", sent=0.0, received=0.0, seconds=0.0)].append(answer.host)
    for outcome, names in sorted(by_outcome.items(), key=lambda item: not item[0].answered):
        number = f" ({len(names)} hosts)" if len(names) > 1 else ""
        emit(f"{', '.join(names)}{number}: {f'exit code {outcome.exit_code}' if outcome.answered else f'unknown: {outcome.detail}'}")
        for row in (*outcome.stdout.splitlines(), *outcome.stderr.splitlines()):
            emit(f"    {row}")
        if outcome.truncated:
            emit("    (truncated: only the first MiB of each stream is shown)")
        if not outcome.answered:
            emit(with_inventory(f"  fix: {replace(outcome, host=names[0]).fix}", file))
