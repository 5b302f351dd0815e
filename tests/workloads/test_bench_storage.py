"""workloads.bench.storage: free space, cleanup, and verification of the written data."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.workloads.ranks import Ranks
from tests.workloads.result_contract import read_results
from workloads.bench import _fio
from workloads.bench._own_io import DataFile, Done, Pass
from workloads.bench._scratch import require_space, scratch_folder
from workloads.common.errors import SettingsError, StorageError
from workloads.common.results import host_name

DATA = Path(__file__).resolve().parents[1] / "data" / "fio"
MIB = 2**20


def storage(folder: Path, target: Path, *words: str) -> Ranks:
    """Start the benchmark on a folder."""
    target.mkdir()
    return Ranks(folder, 1, f"--folder={target}", "--keep-free-percent=0", *words, program="workloads.bench.storage:main")


def wait_until_empty(folder: Path) -> None:
    """Wait until a folder is empty."""
    until(lambda: not any(folder.iterdir()), lambda: list(folder.rglob("*")))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_the_folder_is_removed_if_the_benchmark_is_killed(tmp_path: Path, number: int, code: int) -> None:
    """During a write, by SIGTERM and by SIGKILL."""
    ranks = storage(tmp_path / "run", tmp_path / "target", "--tool=own", "--size-mib=8", "--repeats=200", "--seconds=20")
    until(lambda: list((tmp_path / "target").glob(".primus-bench-*/data")), "the data", every_s=0.02)
    ranks.signal(0, number)
    run = ranks.wait()

    assert run.codes == [code], run.outputs
    wait_until_empty(tmp_path / "target")


def test_leftovers_of_this_host_are_removed(tmp_path: Path) -> None:
    """Folders of a running benchmark and of other hosts stay."""
    left, foreign = tmp_path / f".primus-bench-{host_name()}-old", tmp_path / ".primus-bench-elsewhere-1"
    for folder in (left, foreign):
        folder.mkdir()
        (folder / "lock").touch()
    with scratch_folder(tmp_path) as first, scratch_folder(tmp_path) as second:
        inside = set(tmp_path.iterdir())

    assert inside == {first, second, foreign}
    assert set(tmp_path.iterdir()) == {foreign}


def test_too_little_free_space_is_an_error(tmp_path: Path) -> None:
    """Also if too little would stay free; a missing folder is not created."""
    free = os.statvfs(tmp_path)
    available, total = free.f_bavail * free.f_frsize, free.f_blocks * free.f_frsize
    require_space(tmp_path, available // 4, 0)
    with pytest.raises(SettingsError, match="bytes needed"):
        require_space(tmp_path, 2 * available, 0)
    with pytest.raises(SettingsError, match="must stay free"):
        require_space(tmp_path, available // 4, 100 * available / total)
    with pytest.raises(SettingsError, match="is not a folder"):
        require_space(tmp_path / "missing", 1, 0)


def test_a_file_that_is_too_large_is_an_error(tmp_path: Path) -> None:
    """Exit code 2, a line with the error, and an empty folder."""
    run = storage(tmp_path / "run", tmp_path / "target", "--size-mib=1000000000").wait()

    assert run.codes == [2]
    assert [" bytes needed, " in line["error"] for line in read_results(tmp_path / "run")] == [True]
    assert list((tmp_path / "target").iterdir()) == []


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """A file size limit makes the write fail; the folder is removed."""
    (tmp_path / "target").mkdir()
    words = (f"--folder={tmp_path / 'target'}", "--tool=own", "--size-mib=4", "--files=0", "--keep-free-percent=0")
    run = Ranks(tmp_path / "run", 1, *words, program="workloads.bench.storage:main", largest_file=MIB).wait()
    lines = read_results(tmp_path / "run")

    assert run.codes == [1], run.outputs
    assert lines
    assert all(line["error"] for line in lines)
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("direct", [True, False])
def test_each_pass_transfers_the_whole_file_once(tmp_path: Path, direct: bool) -> None:  # noqa: FBT001 - a parameter
    """With and without O_DIRECT; a changed byte is detected."""
    data = DataFile(tmp_path / "data", MIB)
    data.direct = data.direct and direct
    sequential = [data.run(Pass(f"sequential_{way}", 65536, 1, 60)).bytes for way in ("write", "read")]
    scattered = [data.run(Pass(f"random_{way}", 4096, 3, 60)).bytes for way in ("read", "write")]

    assert [*sequential, *scattered] == [MIB] * 4
    assert data.is_correct()
    with (tmp_path / "data").open("r+b") as file:
        file.seek(MIB // 2)
        byte = file.read(1)
        file.seek(MIB // 2)
        file.write(bytes([byte[0] ^ 1]))
    assert not data.is_correct()


def test_a_sample_of_random_reads_ends_at_its_limit(tmp_path: Path) -> None:
    """Blocks after the limit do not count."""
    data = DataFile(tmp_path / "data", 8 * MIB)
    data.fill()
    done = data.run(Pass("random_read", 4096, 2, 0.0))

    assert done.bytes < 8 * MIB


@pytest.mark.parametrize(
    ("operation", "expected"), [("random_read", "read"), ("sequential_write", "write")], ids=["random read", "sequential write"]
)
def test_the_output_of_fio_is_parsed(operation: str, expected: str) -> None:
    """Recorded output of fio 3.33: the bytes of all jobs, and the time in seconds."""
    text = (DATA / f"{operation}.json").read_text()
    job = json.loads(text)["jobs"][0]

    assert _fio.read(f"note: a line before\n{text}", operation) == Done(4 * MIB, job[expected]["runtime"] / 1000)


@pytest.mark.parametrize("change", ["error", "nothing read", "no jobs", "no JSON", "empty"])
def test_output_of_fio_without_a_result_is_an_error(change: str) -> None:
    """Although the exit code is 0."""
    report: dict[str, Any] = json.loads((DATA / "random_read.json").read_text())
    if change == "error":
        report["jobs"][0]["error"] = 5
    if change == "nothing read":
        report["jobs"][0]["read"]["io_bytes"] = 0
    if change == "no jobs":
        report["jobs"] = []
    text = {"no JSON": "{ fio", "empty": ""}.get(change, json.dumps(report))

    with pytest.raises(StorageError):
        _fio.read(text, "random_read")


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_the_real_fio_measures(tmp_path: Path) -> None:
    """The options contain its version, and the sizes contain the tool."""
    words = ("--size-mib=4", "--repeats=2", "--seconds=0.2", "--files=0", "--tool=fio")
    run = storage(tmp_path / "run", tmp_path / "target", *words).wait()
    lines = read_results(tmp_path / "run")

    assert run.codes == [0], run.outputs
    assert [(line["sizes"]["tool"], line["correct"]) for line in lines] == [("fio", None)] * 4
    assert lines[0]["options"]["tool"].startswith("fio-")
    assert list((tmp_path / "target").iterdir()) == []
