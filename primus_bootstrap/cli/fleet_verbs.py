"""`probe`, `doctor`, `ssh`, `exec`: the verbs that look at hosts, and at this machine, without Ansible."""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.cli.console import emit, emit_json, emit_table, say, stderr
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
)
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.engine.hostkeys import key_conflicts, known_hosts_path, pin_host_keys, ssh_arguments
from primus_bootstrap.fleet.controller import check_controller
from primus_bootstrap.fleet.fanout import ask_all
from primus_bootstrap.fleet.messages import Answer, Task
from primus_bootstrap.fleet.probe import probe_task, read_answer
from primus_bootstrap.fleet.targets import targets_of
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.fleet.messages import Target
    from primus_bootstrap.inventory.cluster import Cluster

Command = Annotated[
    list[str], typer.Argument(help="The command, after --; one word with spaces is taken as a shell line.", metavar="-- COMMAND")
]


def register(app: typer.Typer) -> None:
    """Mount the verbs."""
    app.command("probe")(probe)
    app.command("doctor")(doctor)
    app.command("ssh")(ssh)
    app.command("exec")(exec_)


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
    """Ask every host what it is: reachable, sudo, system, cores, memory, disk, clock, GPUs, NICs. Changes nothing there.

    Exit code 4 where a host did not answer (it is unknown: neither good nor bad) or would not let us become root.
    """
    become = ask_password("sudo password of the hosts", wanted=ask_become_pass) or ""
    vault = ask_password("Vault password", wanted=ask_vault_pass)
    cluster = load_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=vault)
    targets = targets_of_limit(cluster, limit or "all", become)
    task = probe_task(targets, known_hosts=known_hosts_path(cluster), timeout_s=timeout_s)
    found = [read_answer(answer) for answer in ask_hosts(cluster, targets, task)]
    if as_json:
        emit_json({"cluster": cluster.name, **probe_json(found)})
    else:
        emit_table(probe_table(found))
        emit(probe_summary(found))
        for line in unknown_lines(found):
            emit(line)
    if not all(one.facts and one.facts.can_become_root for one in found):
        raise typer.Exit(4)


def doctor(*, as_json: AsJson = False) -> None:
    """Check whether this machine is ready to be a controller. Contacts no host; exit code 1 where something is missing."""
    verdicts = list(check_controller(Path.cwd()))
    failed = [verdict for verdict in verdicts if verdict.verdict == "fail"]
    if as_json:
        emit_json({"verdicts": [verdict.to_json() for verdict in verdicts]})
    else:
        emit_table(controller_table(verdicts))
        for verdict in verdicts:
            if verdict.verdict in ("fail", "unknown"):
                emit(f"{verdict.check}: {verdict.reason}\n  fix: {verdict.fix}")
        emit("not ready: mend the checks that fail" if failed else "ready")
    if failed:
        raise typer.Exit(1)


def ssh(
    host: Annotated[str, typer.Argument(help="A host of hosts.yaml.", metavar="HOST")],
    command: Annotated[
        list[str] | None, typer.Argument(help="A command to run instead of a shell, after --.", metavar="[-- COMMAND]")
    ] = None,
    *,
    hosts: HostsFileOption = DEFAULT_HOSTS,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
) -> None:
    """Log in to a host with OpenSSH, as Ansible would: its user, key, port and bastion, its host key checked."""
    vault = ask_password("Vault password", wanted=ask_vault_pass)
    cluster = load_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=vault)
    names = [known.name for known in cluster.hosts]
    if host not in names:
        near = nearest(host, names)
        raise PlanError(f"no such host: {host}", fix=f"did you mean {near}?" if near else f"choose from: {', '.join(names[:10])}")
    _pin(cluster, [host])
    for conflict in key_conflicts(cluster, [host]):
        raise PlanError(f"{host}: {conflict.what}", fix=conflict.fix)
    words = [*ssh_arguments(cluster, host), *([_shell_line(command)] if command else [])]
    os.execvp(words[0], words)  # noqa: S606 (an argument list, no shell)


def exec_(
    pattern: Annotated[str, typer.Argument(help="An Ansible host pattern, for example `gpu_node` or `all:!etcd`.", metavar="PATTERN")],
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
    """Run a command on every matching host in parallel. It is NOT limited to reading: it does whatever it does.

    Equal outputs are shown once, with the hosts that gave them. Exit code 4 where a host failed or did not answer. A host
    that takes longer than --timeout is given up; the command may go on there.
    """
    become = ask_password("sudo password of the hosts", wanted=ask_become_pass) or ""
    vault = ask_password("Vault password", wanted=ask_vault_pass)
    cluster = load_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=vault)
    targets = targets_of_limit(cluster, pattern, become)
    line = _shell_line(command)
    stdin = {target.host: f"{target.become_password}\n" for target in targets if sudo and target.become_password}
    task = Task(as_root(line) if sudo else line, stdin, timeout_s, str(known_hosts_path(cluster)))
    answers = list(ask_hosts(cluster, targets, task))
    if as_json:
        emit_json({"cluster": cluster.name, "command": line, "hosts": [_answer_json(answer) for answer in answers]})
    else:
        _show_answers(answers)
    if any(answer.exit_code != 0 for answer in answers):
        raise typer.Exit(4)


def targets_of_limit(cluster: Cluster, pattern: str, become_password: str = "") -> tuple[Target, ...]:
    """Return the hosts of a pattern, and how to reach each.

    Raises:
        PlanError: no host matches.
    """
    names = cluster.select(pattern)
    if not names:
        groups = ", ".join(name for name, members in cluster.groups.items() if members)
        raise PlanError(f"no host matches {pattern!r}", fix=f"name a host, or a group: {groups}")
    found = targets_of(cluster, names)
    return tuple(replace(target, become_password=become_password) for target in found) if become_password else found


def ask_hosts(cluster: Cluster, targets: Sequence[Target], task: Task) -> list[Answer]:
    """Ask all hosts; those that nobody has a key of are pinned and asked again. Returns answers in the order of targets."""
    conflicts = {conflict.host: conflict for conflict in key_conflicts(cluster, [target.host for target in targets])}
    found = {host: Answer(host, cause="host_key_changed", detail=conflict.what) for host, conflict in conflicts.items()}
    found |= {answer.host: answer for answer in _counted([one for one in targets if one.host not in conflicts], task)}
    strangers = [target for target in targets if found[target.host].cause == "host_key_unknown"]
    pinned = _pin(cluster, [target.host for target in strangers])
    found |= {answer.host: answer for answer in _counted([one for one in strangers if one.host in pinned], task)}
    return [found[target.host] for target in targets]


def _counted(targets: Sequence[Target], task: Task) -> Iterator[Answer]:
    """Show on a terminal how many hosts have answered."""
    console = stderr()
    with console.status(f"0 of {len(targets)} hosts") as status:
        for count, answer in enumerate(ask_all(targets, task), start=1):
            status.update(f"{count} of {len(targets)} hosts")
            yield answer


def _pin(cluster: Cluster, hosts: Sequence[str]) -> set[str]:
    pins = pin_host_keys(cluster, hosts) if hosts else ()
    for pin in pins:
        say(f"{pin.host}: host key {pin.key_type} {pin.fingerprint} pinned ({pin.source})")
    return {pin.host for pin in pins}


def _shell_line(words: Sequence[str]) -> str:
    """Return the line for the host's shell: one word is a line already, several are kept apart as they were given."""
    return words[0] if len(words) == 1 else shlex.join(words)


def as_root(line: str) -> str:
    """Return a line that runs as root; a password comes on stdin, which the command itself never sees."""
    inner = shlex.quote(f"exec </dev/null; {line}")
    ask = "sudo -n true 2>/dev/null && flags=-n || flags=-S"
    return f'[ "$(id -u)" = 0 ] && exec sh -c {inner}; {ask}; exec sudo $flags -p "" sh -c {inner}'


def _answer_json(answer: Answer) -> dict[str, object]:
    names = ("host", "exit_code", "stdout", "stderr", "cause", "detail", "seconds", "truncated")
    return {**{name: getattr(answer, name) for name in names}, "state": "answered" if answer.answered else "unknown", "fix": answer.fix}


def _show_answers(answers: Sequence[Answer]) -> None:
    """Print each different outcome once, with the hosts that share it; what did not answer comes last."""
    alike: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for answer in answers:
        outcome = (
            answer.answered,
            answer.exit_code,
            answer.stdout,
            answer.stderr,
            answer.cause,
            answer.detail,
            answer.truncated,
            answer.fix,
        )
        alike[outcome].append(answer.host)
    for (answered, code, stdout, stderr_text, _, detail, truncated, fix), names in sorted(alike.items(), key=lambda item: not item[0][0]):
        count = f" ({len(names)} hosts)" if len(names) > 1 else ""
        emit(f"{', '.join(names)}{count}: {f'exit code {code}' if answered else f'unknown: {detail}'}")
        for text in (stdout, stderr_text):
            for row in str(text).splitlines():
                emit(f"    {row}")
        if truncated:
            emit("    (more came; the first MiB of each stream is kept)")
        if not answered:
            emit(f"  fix: {fix}")
