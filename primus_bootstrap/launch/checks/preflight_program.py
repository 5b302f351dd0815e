"""Check this node and print verdict records: the task `preflight` and the command `primus-cli preflight`.

    primus-cli preflight [--gpu] [--network] [--host] [--job] [--checks GLOB,!GLOB] [--list] [--json] [--expect-json FILE]
                         [--expect-source TEXT] [--expect-gpus N] [--min-free-gib N]
    primus-cli RUNTIME … -- preflight …      the same on every node of a run; the records are also written to the run folder

Exit codes:
    0   every check passed or was skipped
    2   wrong arguments
    3   the records were printed, but could not be written to the run folder
    4   a check failed or is unknown
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import PlanError, PrimusError
from primus_bootstrap.core.verdicts import FAIL, PASS, SKIPPED, UNKNOWN
from primus_bootstrap.launch.checks.catalogue import AREAS, all_checks, select
from primus_bootstrap.launch.checks.expected import read_expected
from primus_bootstrap.launch.checks.model import PREFIX, Node
from primus_bootstrap.launch.checks.runner import run_checks
from primus_bootstrap.launch.detect import sysfs
from primus_bootstrap.launch.option_parser import OptionParser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from types import FrameType

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Check

_FAILED = 4
# Options of AMD Primus without counterpart: primus/tools/preflight/preflight_args.py in https://github.com/AMD-AGI/Primus
_MEASURE = "preflight runs without load; measure with primus-cli direct -- benchmark gemm, or benchmark collectives"
_REPORT = "remove it; --json prints the records, and a run on several nodes writes them to its run folder (--output)"
_ABSENT = {
    **dict.fromkeys(("--perf-test", "--tests", "--quick", "--comm-sizes-mb", "--intra-comm-sizes-mb", "--inter-comm-sizes-mb"), _MEASURE),
    **dict.fromkeys(("--intra-group-sizes", "--inter-group-sizes", "--ring-p2p-sizes-mb", "--no-split-nodes-subgroup"), _MEASURE),
    **dict.fromkeys(("--dist-timeout-sec", "--comm-cleanup-delay-sec", "--plot"), _MEASURE),
    **dict.fromkeys(("--dump-path", "--report-file-name", "--disable-pdf"), _REPORT),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    try:
        return _run(_parser().parse(sys.argv[1:] if arguments is None else arguments))
    except PrimusError as error:
        sys.stderr.write(f"primus-cli: {error}\n")
        return error.exit_code


def check_arguments(arguments: Sequence[str]) -> None:
    """Check arguments without running a check.

    Raises:
        UsageError: An argument is wrong.
    """
    select(all_checks(), _patterns(_parser().parse(arguments)))


def help_text() -> str:
    """Return the text of --help."""
    return _parser().format_help()


def _patterns(options: argparse.Namespace) -> str:
    """Return the areas of --gpu and the like, and the patterns of --checks, as one list."""
    return ",".join([*(area for area in AREAS if getattr(options, area)), *([options.checks] if options.checks else [])])


def _run(options: argparse.Namespace) -> int:
    checks, names = select(all_checks(), _patterns(options))
    if options.list:
        sys.stdout.write(_listing(checks, names, as_json=options.json))
        return 0
    run_dir = os.environ.get("RUN_DIR", "")
    host = os.environ.get("PRIMUS_NODE") or socket.gethostname()
    root = sysfs.Host(options.sysfs)
    expected = read_expected(root, options.expect_json, {"gpus": options.expect_gpus}, source=options.expect_source)
    node = Node(root, expected, dict(os.environ), Path(run_dir or "."), options.min_free_gib)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    records = [record for record in run_checks(checks, node, host) if record.check[len(PREFIX) :] in names]
    document = json.dumps({"verdicts": [record.to_json() for record in records]}) + "\n"
    sys.stdout.write(document if options.json else "".join(_format(record) for record in records) + _summary(records))
    if run_dir:
        _save(Path(run_dir, f"preflight-{host}.jsonl"), records)
    return _FAILED if any(record.verdict in (FAIL, UNKNOWN) for record in records) else 0


def _save(path: Path, records: Sequence[Verdict]) -> None:
    """Write the records to a file in the run folder.

    Raises:
        PlanError: The file could not be written.
    """
    try:
        write_atomic(path, "".join(json.dumps(record.to_json()) + "\n" for record in records), mode=0o644)
    except OSError as error:
        fix = f"create {path.parent}, check its permissions and free space (df -h, df -i), or unset RUN_DIR"
        raise PlanError(f"the records could not be written to {path}: {error.strerror or error}", fix=fix) from error


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    """Raise SystemExit, so that run_checks kills the running checks."""
    sys.exit(128 + number)


def _parser() -> OptionParser:
    parser = OptionParser("primus-cli preflight", "Check this node without changing it.", absent=_ABSENT)
    # AMD Primus: `preflight check --gpu`, and its older spellings --check-gpu, --check-network, --check-host
    parser.add_argument("verb", nargs="?", choices=("check",), metavar="check", help="can be left out")
    for area in AREAS:
        parser.add_argument(f"--{area}", f"--check-{area}", dest=area, action="store_true", help=f"run the checks of the area {area}")
    parser.add_argument("--list", action="store_true", help="list the checks without running them")
    parser.add_argument("--json", action="store_true", help='print {"verdicts": [record, …]}')
    parser.add_argument("--checks", default="", metavar="GLOB,!GLOB", help="areas, checks or records to run; ! excludes (default: all)")
    parser.add_argument("--expect-json", default="", metavar="FILE", help="expected values of this node; - reads standard input")
    parser.add_argument(
        "--expect-source",
        default="--expect-json",
        metavar="TEXT",
        help="where the values of --expect-json come from; the results name it as their source (default: --expect-json)",
    )
    parser.add_argument(
        "--expect-gpus", type=int, metavar="N", help="expected number of GPUs (default: the number in /etc/primus/gpu.json)"
    )
    parser.add_argument(
        "--min-free-gib", type=float, default=10.0, metavar="N", help="free space required in the run folder (GiB, default: 10)"
    )
    parser.add_argument("--sysfs", type=Path, default=Path("/"), metavar="ROOT", help="folder that contains sys/ and proc/ (default: /)")
    return parser


def _listing(checks: Sequence[Check], names: frozenset[str], *, as_json: bool) -> str:
    if as_json:
        rows = [
            {
                "area": check.area,
                "check": check.name,
                "records": [PREFIX + name for name in check.record_names if name in names],
                "meaning": check.meaning,
                "reads": check.reads,
                "needs": list(check.needs),
                "timeout_s": check.timeout_s,
            }
            for check in checks
        ]
        return json.dumps({"checks": rows}, indent=1) + "\n"
    return "".join(f"{check.area:8}{check.name:23}{check.meaning}\n" for check in checks)


def _format(record: Verdict) -> str:
    name = record.check + (f" {record.device}" if record.device else "")
    line = f"{record.verdict:8}{name}: {record.found} {record.unit} {record.reason}"
    text = " ".join(line[8:].split())
    fix = f"          fix: {record.fix}\n" if record.fix and record.verdict in (FAIL, UNKNOWN) else ""
    return f"{line[:8]}{text}\n{fix}"


def _summary(records: Sequence[Verdict]) -> str:
    counts = {word: sum(record.verdict == word for record in records) for word in (PASS, FAIL, UNKNOWN, SKIPPED)}
    return ", ".join(f"{count} {word}" for word, count in counts.items()) + "\n"


if __name__ == "__main__":
    sys.exit(main())
