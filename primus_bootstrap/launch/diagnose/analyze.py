"""Summarize runs from their run folders: command, exit codes of the ranks, speed, and the cause of a failure.

    primus-cli direct -- analyze RUN_FOLDER... [--json]

Exit codes: 0 success, 2 a folder is not a run folder.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.checkpoints import newest_complete
from primus_bootstrap.launch.diagnose import diagnosis
from primus_bootstrap.launch.option_parser import OptionParser
from primus_bootstrap.launch.ranks import rank_log
from primus_bootstrap.launch.snapshot import run_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.launch.ranks.rank_log import RankRecord

_WARMUP_STEPS = 3  # steps after a start that compile, fill caches and allocate memory pools
_SLOW = 2.0  # a step is slow if it takes longer than this multiple of the median


def main(words: Sequence[str]) -> int:
    """Print the analysis of run folders.

    Raises:
        UsageError: No folder is given, one is not a run folder, or an option is unknown.
    """
    options = _parser().parse(words)
    found = [analyze(folder) for folder in options.folders]
    if options.json:
        sys.stdout.write(json.dumps(found if len(found) > 1 else found[0], indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(text(item) for item in found))
    return 0


def check_arguments(words: Sequence[str]) -> None:
    """Check the arguments without reading a run folder.

    Raises:
        UsageError: No folder is given, or an option is unknown.
    """
    _parser().parse(words)


def help_text() -> str:
    """Return the text of --help."""
    return _parser().format_help()


def _parser() -> OptionParser:
    parser = OptionParser("primus-cli analyze", "Summarize runs: command, exit codes of the ranks, speed, and the cause of a failure.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_FOLDER", help="the folder that a run prints in its last line")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def analyze(run_dir: Path) -> dict[str, Any]:
    """Return the analysis of a run folder as plain data.

    Raises:
        UsageError: It is not a run folder.
    """
    fix = "give the folder that the run printed in its last line"
    try:
        if not any((run_dir / name).exists() for name in ("logs", "plan.json", "steps.jsonl", run_snapshot.FOLDER)):
            raise UsageError(f"{run_dir} is not a run folder", fix=fix)
    except OSError as error:
        raise UsageError(f"{run_dir} cannot be read: {error.strerror}", fix=fix) from error
    records = rank_log.read_records(run_dir)
    found = diagnosis.diagnose(run_dir)
    return {
        "run_dir": str(run_dir),
        "start": _start(run_dir),
        "ranks": _ranks(records),
        "training": _training(_json_lines(run_dir / "steps.jsonl")),
        "checkpoint": newest_complete(run_dir / "checkpoints"),
        "failure": found.to_json() if found.failed else None,
        "failure_text": found.text() if found.failed else "",
    }


def text(found: Mapping[str, Any]) -> str:
    """Return an analysis as text."""
    lines = [f"run         {found['run_dir']}"]
    start, ranks, training = found["start"], found["ranks"], found["training"]
    if start:
        lines += [f"command     primus-cli {shlex.join(start['command'])}", f"started     {start['taken']}"]
    ends = ", ".join(f"{count} {end}" for end, count in ranks["ends"].items())
    nodes = "1 node" if ranks["nodes"] == 1 else f"{ranks['nodes']} nodes"
    lines.append(f"ranks       {ranks['count']} of {ranks['world_size']} on {nodes}: {ends}" if ranks["count"] else "ranks       none")
    if ranks["seconds"] is not None:
        lines.append(f"duration    {ranks['seconds']:.1f} s")
    if training:
        lines += _training_lines(training)
    lines.append(f"checkpoint  {found['checkpoint'] or 'no complete one'}")
    return "\n".join(lines) + "\n" + (f"\n{found['failure_text']}" if found["failure_text"] else "")


def _training_lines(training: Mapping[str, Any]) -> list[str]:
    lines = [
        f"steps       {training['first_step']} to {training['last_step']}, resumed {training['resumed']} times",
        f"loss        {training['first_loss']:.4f} to {training['last_loss']:.4f}",
    ]
    if training["step_time_s"] is not None:
        median, p95 = training["step_time_s"], training["step_time_p95_s"]
        lines.append(f"step time   median {median:.3f} s, p95 {p95:.3f} s, {training['slow_steps']} slow (over {_SLOW:g} x median)")
        lines.append(f"waiting     {training['data_share']:.1%} for data, {training['checkpoint_share']:.1%} for checkpoints")
        mfu = "unknown" if training["mfu"] is None else f"{training['mfu']:.1%}"
        lines.append(f"speed       {training['tokens_per_s']:,.0f} tokens/s, MFU {mfu}, peak memory {training['memory_peak_gib']:.2f} GiB")
    return lines


def _start(run_dir: Path) -> dict[str, Any]:
    """Return the command and start time of the run from its snapshot, or nothing."""
    try:
        data = run_snapshot.read(run_snapshot.find(run_dir), run_snapshot.MAIN)
    except UsageError:
        return {}
    return {name: data[name] for name in ("task", "command", "taken", "primus_cli")}


def _ranks(records: Sequence[RankRecord]) -> dict[str, Any]:
    ended = [record.ended for record in records if record.ended is not None]
    return {
        "count": len(records),
        "world_size": records[0].world_size if records else 0,
        "nodes": len({record.node for record in records}),
        "ends": dict(Counter(_end(record) for record in records)),
        "seconds": max(ended) - min(record.started for record in records) if ended else None,
    }


def _end(record: RankRecord) -> str:
    if record.exit_code is None:
        return "without an end"
    if record.exit_code == 0:
        return "done"
    if record.ended_by_others:
        return "stopped"
    return "unfinished with a checkpoint" if record.exit_code == rank_log.UNFINISHED else "failed"


def _training(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return speed and loss. Of a step that was repeated after a resume, the last line counts."""
    by_step: dict[int, Mapping[str, Any]] = {}
    resumed, since_start, last = 0, 0, 0
    warm: list[Mapping[str, Any]] = []
    for line in lines:
        if line["step"] <= last:
            resumed, since_start = resumed + 1, 0
        since_start, last = since_start + 1, line["step"]
        by_step[line["step"]] = line
        if since_start > _WARMUP_STEPS:
            warm.append(line)
    if not by_step:
        return {}
    first, final = by_step[min(by_step)], by_step[max(by_step)]
    return {
        "first_step": first["step"],
        "last_step": final["step"],
        "first_loss": first["loss"],
        "last_loss": final["loss"],
        "resumed": resumed,
        "mfu": final.get("mfu"),
        "memory_peak_gib": max(line["memory_peak_gib"] for line in by_step.values()),
        **_speed(warm),
    }


def _speed(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if not steps:
        return {"step_time_s": None}
    times = sorted(step["step_time_s"] for step in steps)
    median, total = statistics.median(times), sum(times)
    return {
        "step_time_s": median,
        "step_time_p95_s": times[min(len(times) - 1, int(0.95 * len(times)))],
        "slow_steps": sum(seconds > _SLOW * median for seconds in times),
        "tokens_per_s": statistics.median(step["tokens_per_s"] for step in steps),
        "data_share": sum(step["data_wait_s"] for step in steps) / total,
        "checkpoint_share": sum(step["checkpoint_wait_s"] for step in steps) / total,
    }


def _json_lines(path: Path) -> list[Mapping[str, Any]]:
    """Return the complete lines of a file. The last line may be truncated."""
    try:
        content = path.read_text("utf-8", "replace")
    except OSError:
        return []
    found: list[Mapping[str, Any]] = []
    for line in content.splitlines():
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict) and "step" in data and "loss" in data:
            found.append(data)
    return found
