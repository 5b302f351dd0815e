"""The history file with several writers and with a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from primus_bootstrap.bench.results.history import append_history, read_history
from tests.unit.test_bench_history import RECORD

ROOT = Path(__file__).resolve().parents[2]


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    """Six processes append at the same time; every record is complete."""
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


def test_a_full_disk_leaves_the_file_unchanged(tmp_path: Path) -> None:
    """An incomplete write is removed, and the error has a fix."""
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

    assert done.stdout == f"cannot write {path}: File too large\n"
    assert path.read_bytes() == before
