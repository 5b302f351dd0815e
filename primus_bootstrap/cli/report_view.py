"""Draws a report for people: a table of hosts, then what went wrong with its cause and fix, then what to do now."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.cli.console import coloured, emit, emit_table, plain_table, program, short
from primus_bootstrap.cli.live import duration_text
from primus_bootstrap.core.verdicts import OUTCOMES
from primus_bootstrap.engine.history import runs_dir
from primus_bootstrap.engine.hostkeys import known_hosts_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from primus_bootstrap.engine.report import Failure, HostReport, Report
    from primus_bootstrap.inventory.cluster import Cluster

# Above this many hosts, those with nothing to say become one line.
_SHOWN_HOSTS = 40


def clock_text(seconds: float) -> str:
    """Return a moment in local time; a dash for a moment that never came."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def print_report(report: Report, file: Path, *, everything: bool = False) -> None:
    """Print a report: hosts, failures, verdicts that are no pass, one line that sums it up.

    `file` is the hosts.yaml, for the commands that are shown. What was skipped is only counted, unless `everything` asks
    for it: on a host that cannot do a lot it would bury the rest.
    """
    _print_hosts(report.hosts)
    words = ("fail", "unknown", "skipped") if everything else ("fail", "unknown")
    for text in (*_failure_texts(report.hosts), *_verdict_texts(report.hosts, words)):
        emit(text)
    skipped = sum(host.verdict_counts[OUTCOMES.index("skipped")] for host in report.hosts)
    if skipped and not everything:
        emit(f"\n{skipped} checks were skipped, each with its reason: {program()} report {short(file)} --all")
    if report.problem:
        emit(f"\n{report.problem}")
    emit(f"\n{summary_line(report)}")


def summary_line(report: Report) -> str:
    """Say in one line how the run ended."""
    words = {"ok": "unchanged", "changed": "changed", "failed": "failed", "unreachable": "unreachable"}
    words |= {"not_reached": "not reached", "interrupted": "interrupted"}
    counts = [f"{len(hosts)} {word}" for result, word in words.items() if (hosts := report.with_result(result))]  # type: ignore[arg-type]
    took = duration_text(report.finished - report.started) if report.finished else "killed"
    return f"{report.verb} {report.cluster}: {', '.join(counts) or 'no host'}; {report.changed} changes, {took}, run {report.run}"


def shares_line(report: Report) -> str:
    """Say how long each phase took and its share of the whole run, the longest first; empty where none was reached."""
    whole = report.finished - report.started
    ran = sorted((phase for phase in report.phases if phase.seconds), key=lambda phase: -phase.seconds)
    shares = [f"{phase.phase} {duration_text(phase.seconds)} ({100 * phase.seconds / whole:.0f} %)" for phase in ran if whole > 0]
    return f"time: {', '.join(shares)}" if shares else ""


def _print_hosts(hosts: tuple[HostReport, ...]) -> None:
    quiet = [host for host in hosts if not host.failures and host.result == "ok"] if len(hosts) > _SHOWN_HOSTS else []
    table = plain_table("host", "result")
    for name in ("changed", "pass", "fail", "unknown", "skipped"):
        table.add_column(name, justify="right")
    for host in hosts:
        if host not in quiet:
            table.add_row(host.host, coloured(host.result.replace("_", " ")), str(host.changed), *map(str, host.verdict_counts))
    emit_table(table)
    if quiet:
        emit(f"and {len(quiet)} hosts with nothing to say: ok, unchanged")


def _failure_texts(hosts: Iterable[HostReport]) -> Iterator[str]:
    """Yield each cause once, with every host that has it."""
    found: dict[Failure, list[str]] = {}
    ignored: dict[Failure, list[str]] = {}
    for host in hosts:
        for failure in host.failures:
            found.setdefault(failure, []).append(host.host)
        for failure in host.ignored:
            ignored.setdefault(failure, []).append(host.host)
    for failure, names in (*found.items(), *ignored.items()):
        where = " / ".join(part for part in (failure.phase, failure.role, failure.task) if part)
        cause = failure.cause.replace("\n", "\n  ") or "no cause was given"
        fix = f"\n  fix: {failure.fix}" if failure.fix else ""
        went_on = "" if failure in found else " (the run went on)"
        yield f"\n{', '.join(names)}: {where}{went_on}\n  {cause}{fix}"


def _verdict_texts(hosts: Iterable[HostReport], words: Sequence[str]) -> Iterator[str]:
    """Yield each verdict of these words once, with every host that has it; the words' order is the order."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for host in hosts:
        for verdict in host.verdicts:
            if verdict.verdict in words:
                found.setdefault((verdict.verdict, verdict.check, verdict.reason, verdict.fix), []).append(host.host)
    if found:
        yield ""
    for (word, check, reason, fix), names in sorted(found.items(), key=lambda item: words.index(item[0][0])):
        mend = f"\n  fix: {fix}" if fix and word != "skipped" else ""
        yield f"{word} {check} on {', '.join(dict.fromkeys(names))}: {reason}{mend}"


def what_now(cluster: Cluster, report: Report) -> str:
    """Say what a person can do after a run: where things are, and the next commands."""
    call, file = program(), short(cluster.path)
    hosts = [host.host for host in report.hosts]
    lines = {"report": short(runs_dir(cluster.state_dir) / report.run / "report.json")}
    if report.exit_code == 0 and hosts:
        shown = [f"{name} ({cluster.connection(name).address})" for name in hosts[:3]]
        lines |= {
            "hosts": ", ".join(shown) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""),
            "credentials": _credentials(cluster, hosts[0]),
            "log in": f"{call} ssh {hosts[0]} -i {file}",
            "look": f"{call} status {file}",
        }
    else:
        named = "mend what is named above, then " if report.problem or report.with_result("failed", "unreachable") else ""
        lines |= {
            "details": f"{call} report {file} --run {report.run}",
            "go on": f"{named}the same again: {shlex.join([call, *sys.argv[1:]])}",
        }
    return "\n".join(["", "what now", *(f"  {name:<13}{text}" for name, text in lines.items())])


def _credentials(cluster: Cluster, host: str) -> str:
    """Say where the way into the hosts is kept: never the secret itself."""
    link = cluster.connection(host)
    key = f"key {short(Path(link.private_key_file))}" if link.private_key_file else "your own ssh keys or agent"
    user = f", user {link.user}" if link.user else ""
    return f"{key}{user}; host keys in {short(known_hosts_path(cluster))}"
