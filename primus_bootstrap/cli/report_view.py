"""Prints a report: a table of hosts, then each failure with its cause and fix, then the next steps."""

from __future__ import annotations

import itertools
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.cli.console import coloured, count, duration_text, emit, emit_table, plain_table, program, short
from primus_bootstrap.cli.printed_commands import with_inventory
from primus_bootstrap.core.verdicts import OUTCOMES
from primus_bootstrap.engine.history import run_folder, running_report
from primus_bootstrap.engine.lock import read_holder
from primus_bootstrap.engine.ssh import known_hosts_path
from primus_bootstrap.lab.lab_values import heal_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.engine.report import Failure, HostReport, Report
    from primus_bootstrap.inventory.cluster import Cluster

# With more hosts than this, the unchanged ones become one line.
_SHOWN_HOSTS = 40
# More checks with the same reason become their number.
_SHOWN_CHECKS = 3
# The results of hosts of a diff, and of a run that has not ended.
_OF_DIFF = {"changed": "would change"}
_UNFINISHED = {"not_reached": "waiting", "interrupted": "running"}


def print_report(report: Report, file: Path, *, everything: bool = False) -> None:
    """Print a report: hosts, failures, verdicts that did not pass, and a summary; also of a run that has not ended.

    `file` is the hosts.yaml, for commands to copy. Skipped checks are only counted unless `everything` is set, because some
    hosts skip many.
    """
    _print_hosts(report.hosts, _UNFINISHED if is_running(report) else _OF_DIFF if report.verb == "diff" else {})
    words = ("fail", "unknown", "skipped") if everything else ("fail", "unknown")
    for text in (*_failure_texts(report.hosts), *_verdict_texts(report.hosts, words)):
        emit(with_inventory(text, file))
    for host in report.with_result("unreachable"):
        if heal := heal_command(file.parent, report.cluster, host.host):
            emit(f"\n{host.host} is a host of the lab; if it was broken on purpose: {heal}")
    skipped = sum(host.verdict_counts[OUTCOMES.index("skipped")] for host in report.hosts)
    if skipped and not everything:
        command = f"{program()} report {short(file)} --all --run {report.run}"
        emit(f"\n{count(skipped, 'skipped check')}; list them with their reasons: {command}")
    if report.problem:
        emit(with_inventory(f"\n{report.problem}", file))
    emit(f"\n{summary_line(report)}")


def summary_line(report: Report) -> str:
    """Return one line with the numbers of hosts by result, the changes and the duration."""
    words = {"ok": "unchanged", "changed": "changed", "failed": "failed", "unreachable": "unreachable"}
    words |= {"not_reached": "not reached", "interrupted": "interrupted"}
    words |= _OF_DIFF if report.verb == "diff" else {}
    words |= _UNFINISHED if is_running(report) else {}
    counts = [f"{len(hosts)} {word}" for result, word in words.items() if (hosts := report.with_result(result))]  # type: ignore[arg-type]
    took = duration_text(report.finished - report.started) if report.finished else "killed" if report.killed else "running"
    return f"{report.verb} {report.cluster}: {', '.join(counts) or 'no host'}; {count(report.changed, 'change')}, {took}, run {report.run}"


def is_running(report: Report) -> bool:
    """Return whether the report is that of a run that has not ended."""
    return not report.finished and not report.killed


def progress_text(report: Report, now: float) -> str:
    """Return the current phase of a run that has not ended, and for how long the run has been under way."""
    left = [number for number, phase in enumerate(report.phases, start=1) if phase.state == "not_reached"]
    phase = f"phase {left[0]} of {len(report.phases)}, {report.phases[left[0] - 1].phase}" if left else "the last phase"
    return f"{phase}, for {duration_text(max(now - report.started, 0.0))}"


def running_text(state_dir: Path, now: float) -> str:
    """Return what runs on the cluster now, with its phase; empty if nothing does."""
    holder = read_holder(state_dir)
    if holder is None:
        return ""
    report = running_report(state_dir)
    return f"{holder.verb} (run {holder.run}) is running{f': {progress_text(report, now)}' if report else ''}"


def shares_line(report: Report) -> str:
    """Return the duration of each phase and of the start, and its share of the run, the longest first; empty if no phase ran."""
    whole = report.finished - report.started
    parts = {phase.phase: phase.seconds for phase in report.phases if phase.seconds}
    if not parts or whole <= 0:
        return ""
    if report.preparing_s:
        parts["starting Ansible"] = report.preparing_s
    shares = [f"{name} {duration_text(seconds)} ({100 * seconds / whole:.0f} %)" for name, seconds in sorted(parts.items(), key=_by_length)]
    return f"time: {', '.join(shares)}"


def _by_length(part: tuple[str, float]) -> float:
    return -part[1]


def _print_hosts(hosts: tuple[HostReport, ...], words: Mapping[str, str]) -> None:
    quiet = [host for host in hosts if not host.failures and host.result == "ok"] if len(hosts) > _SHOWN_HOSTS else []
    table = plain_table("host", "result")
    for name in ("changed", "pass", "fail", "unknown", "skipped"):
        table.add_column(name, justify="right")
    for host in hosts:
        if host not in quiet:
            result = words.get(host.result, host.result).replace("_", " ")
            table.add_row(host.host, coloured(result), str(host.changed), *map(str, host.verdict_counts))
    emit_table(table)
    if quiet:
        emit(f"and {len(quiet)} unchanged hosts")


def _failure_texts(hosts: Iterable[HostReport]) -> Iterator[str]:
    """Yield each failure once, with all its hosts."""
    failed: dict[Failure, list[str]] = {}
    ignored: dict[Failure, list[str]] = {}
    for host in hosts:
        for failure in host.failures:
            failed.setdefault(failure, []).append(host.host)
        for failure in host.ignored:
            ignored.setdefault(failure, []).append(host.host)
    for failure, names in (*failed.items(), *ignored.items()):
        where = " / ".join(part for part in (failure.phase, failure.role, failure.task) if part)
        cause = failure.cause.replace("\n", "\n  ") or "no error message"
        fix = f"\n  fix: {failure.fix}" if failure.fix else ""
        ignored_text = "" if failure in failed else " (ignored; the run continued)"
        yield f"\n{', '.join(names)}: {where}{ignored_text}\n  {cause}{fix}"


def _verdict_texts(hosts: Iterable[HostReport], words: Sequence[str]) -> Iterator[str]:
    """Yield each verdict in `words` once, with all its hosts, in the order of `words`; skipped checks with one reason are one line."""
    found: dict[tuple[str, str, str, str], list[Verdict]] = {}
    for host in hosts:
        for verdict in host.verdicts:
            check, fix = ("", "") if verdict.verdict == "skipped" else (verdict.check, verdict.fix)
            if verdict.verdict in words:
                found.setdefault((verdict.verdict, check, verdict.reason, fix), []).append(verdict)
    if found:
        yield ""
    for (word, _, reason, fix), same in sorted(found.items(), key=lambda item: words.index(item[0][0])):
        checks, names = (list(dict.fromkeys(values)) for values in zip(*((verdict.check, verdict.host) for verdict in same), strict=True))
        fix_line = f"\n  fix: {fix}" if fix else ""
        yield f"{word} {_checks_text(checks)} on {', '.join(names)}: {reason}{fix_line}"


def _checks_text(checks: Sequence[str]) -> str:
    """Return the names of a few checks, or the number of many with the first part of their names."""
    if len(checks) <= _SHOWN_CHECKS:
        return ", ".join(checks)
    parts = list(itertools.takewhile(lambda same: len(set(same)) == 1, zip(*(check.split(".") for check in checks), strict=False)))
    common = ".".join(part[0] for part in parts)
    return f"{len(checks)} checks ({f'{common}.*' if common else f'{checks[0]}, …'})"


def next_steps(cluster: Cluster, report: Report) -> str:
    """Return the paths and commands that an operator needs after a run."""
    call, file = program(), short(cluster.path)
    hosts = [host.host for host in report.hosts]
    lines = {"report": short(run_folder(cluster.state_dir, report.run).report)}
    if report.exit_code == 0 and hosts:
        shown = [f"{name} ({cluster.connection(name).address})" for name in hosts[:3]]
        lines |= {
            "hosts": ", ".join(shown) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""),
            "credentials": _credentials(cluster, hosts[0]),
            "log in": f"{call} ssh {hosts[0]} -i {file}",
            "status": f"{call} status {file}",
        }
    else:
        repair = "repair the hosts above, then run " if report.problem or report.with_result("failed", "unreachable") else ""
        lines |= {
            "details": f"{call} report {file} --run {report.run}",
            "continue": f"{repair}{shlex.join([call, *sys.argv[1:]])}",
        }
    return "\n".join(["", "next steps", *(f"  {name:<13}{text}" for name, text in lines.items())])


def _credentials(cluster: Cluster, host: str) -> str:
    """Return where key, user and host keys are stored, without any secret."""
    link = cluster.connection(host)
    key = f"key {short(Path(link.private_key_file))}" if link.private_key_file else "your own ssh keys or agent"
    user = f", user {link.user}" if link.user else ""
    return f"{key}{user}; host keys in {short(known_hosts_path(cluster))}"
