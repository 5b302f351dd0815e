"""The history file: what is appended is read again, whatever killed its writer, and a change of what a device runs with is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from primus_bootstrap.bench.results.history import append_history, read_history
from tests.unit.test_bench_history import RECORD

ROOT = Path(__file__).resolve().parents[2]


def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    """Six processes append at once; every record is there and every line is whole."""
    path = tmp_path / "history.jsonl"
    program = (
        "import sys\nfrom pathlib import Path\nfrom dataclasses import replace\n"
        "from tests.unit.test_bench_history import RECORD\n"
        "from primus_bootstrap.bench.results.history import append_history\n"
        "for number in range(40):\n"
        "    append_history(Path(sys.argv[1]), [replace(RECORD, serial=sys.argv[2], time=float(number))] * 3)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path), str(one)], cwd=ROOT, env=environment) for one in range(6)]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * 6

    history = read_history(path)

    assert history.problems == ()
    assert {key: len(records) for key, records in history.records.items()} == {str(one): 120 for one in range(6)}


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """A write that stops half-way is taken back, and the error says what to do."""
    path = tmp_path / "history.jsonl"
    append_history(path, [RECORD])
    before = path.read_bytes()
    program = (
        "import resource, signal, sys\nfrom pathlib import Path\n"
        "from tests.unit.test_bench_history import RECORD\n"
        "from primus_bootstrap.bench.results.history import append_history\nfrom primus_bootstrap.core.errors import RunError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "size = Path(sys.argv[1]).stat().st_size\nresource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))\n"
        "try:\n    append_history(Path(sys.argv[1]), [RECORD])\nexcept RunError as error:\n    print(error.what)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout == f"{path}: cannot be written: File too large\n"
    assert path.read_bytes() == before
