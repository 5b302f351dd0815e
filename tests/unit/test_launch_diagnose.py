"""primus_bootstrap.launch.diagnose: the rank that failed first and the cause. Samples: tests/data/failures/."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import characters, from_regex

from primus_bootstrap.launch.diagnose import causes, diagnosis, kernel_log
from primus_bootstrap.launch.ranks import rank_log

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "failures"
NAMES = sorted(path.name for path in SAMPLES.iterdir())
START = 1000.0
TERM, KILL = 15, 9


def cause_of(name: str) -> str | None:
    """Return the cause of a sample's folder, named `cause` or `cause-variant`."""
    cause = name.partition("-")[0]
    return None if cause == "unknown" else cause


def record(run_dir: Path, rank: int, **fields: Any) -> None:
    """Write the exit record of a rank; `ended` and `stopped_at` count from the start of the run."""
    for name in ("ended", "stopped_at"):
        if fields.get(name) is not None:
            fields[name] += START
    data = {"node": "gpu001", "rank": rank, "world_size": 2, "local_rank": rank % 8, "attempt": 0, "pid": 4000 + rank, "started": START}
    path = rank_log.record_path(run_dir, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**data, "schema": rank_log.SCHEMA, **fields}))


def kernel(run_dir: Path, node_rank: int, lines: list[tuple[float, str]], problem: str = "") -> None:
    """Write the kernel log of a node."""
    path = rank_log.kernel_path(run_dir, node_rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"node": f"gpu{node_rank + 1:03d}", "problem": problem, "lines": lines}))


def events(run_dir: Path, rank: int, *lines: tuple[float, str]) -> None:
    """Write a rank's lines with their times after the start of the run."""
    path = rank_log.events_path(run_dir, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"time": START + at, "text": text}) + "\n" for at, text in lines))


def sample(name: str, run_dir: Path) -> dict[str, Any]:
    """Create a run folder from a sample; return the expected diagnosis."""
    (run_dir / "logs").mkdir(parents=True)
    expected: dict[str, Any] = yaml.safe_load((SAMPLES / name / "ends.yml").read_text())
    for path in (SAMPLES / name).glob("*.log"):
        shutil.copy(path, run_dir / "logs" / path.name)
    for path in (SAMPLES / name).glob("kernel-*.log"):
        lines = [line.split(" ", 1) for line in path.read_text().splitlines()]
        kernel(run_dir, int(path.stem.rpartition("-")[2]), [(float(at), text) for at, text in lines])
    size = expected.get("world_size", len(expected["ranks"]))
    for rank, fields in expected["ranks"].items():
        record(run_dir, rank, **{"world_size": size, **fields})
    return expected


@pytest.mark.parametrize("name", NAMES)
def test_each_sample_gives_its_cause_and_its_first_rank(name: str, tmp_path: Path) -> None:
    """The folder's name is the expected cause."""
    expected = sample(name, tmp_path)
    found = diagnosis.diagnose(tmp_path)

    assert (found.cause.name if found.cause else None) == cause_of(name)
    assert (found.first.rank if found.first else None) == expected.get("first")
    assert [item.rank for item in found.suspects] == expected.get("suspects", [])
    assert found.failed


def test_every_cause_has_a_sample_and_every_sample_a_cause() -> None:
    """So every pattern is tested."""
    with_sample = {cause_of(name) for name in NAMES} - {None}

    assert with_sample == {cause.name for cause in causes.catalogue()}


@pytest.mark.parametrize("cause", causes.catalogue(), ids=lambda cause: cause.name)
def test_every_cause_has_texts_fixes_and_a_source(cause: causes.Cause) -> None:
    """All texts are strings: YAML parses an unquoted text with a colon as a mapping."""
    assert all(isinstance(text, str) and text for text in (cause.title, cause.means, cause.source, *cause.fix))
    assert cause.fix
    assert cause.kind in {"hardware", "cause", "hang", "consequence", "outside"}
    assert re.search(r"https://|Linux |errno|docs/", cause.source)
    assert cause.log or cause.kernel or cause.signals


@pytest.mark.parametrize("pattern", [pattern.pattern for cause in causes.catalogue() for pattern in cause.log])
def test_every_line_that_matches_a_pattern_passes_the_word_filter(pattern: str) -> None:
    """causes._WORDS contains a word of each matching line."""

    @settings(max_examples=15, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(from_regex(re.compile(pattern), fullmatch=True, alphabet=characters(min_codepoint=32, max_codepoint=126)))
    def check(line: str) -> None:
        assert causes.match_log(line) is not None, line

    check()


def test_the_rank_with_nan_is_the_suspect(tmp_path: Path) -> None:
    """Every rank logs the same message and stops, so the first rank to end may be another one."""
    for rank in (0, 1):
        events(tmp_path, rank, (5.0 + rank, f"pretrain: rank {rank}: loss is not finite (nan) at step 12, first on rank 1; ..."))
        record(tmp_path, rank, ended=6.0 + rank, exit_code=76)

    assert [item.rank for item in diagnosis.diagnose(tmp_path).suspects] == [1]


def test_torchrun_lines_of_an_earlier_run_in_the_folder_are_ignored(tmp_path: Path) -> None:
    """A resumed run appends to the same file. Lines of ranks and of a diagnosis in that file are ignored too."""
    record(tmp_path, 0, world_size=1, ended=5.0, exit_code=143, signal=TERM, stopped_at=4.0)
    path = rank_log.launcher_path(tmp_path, 0)
    path.write_text(
        "DistNetworkError: EADDRINUSE\nrun folder: /runs/1\n[gpu001/0] OSError: [Errno 28] No space left on device\n"
        "rank 0 on gpu001 failed first\ncause: a disk is full\n  No space left on device\nrun folder: /runs/1\n"
    )

    assert diagnosis.diagnose(tmp_path).cause is None


def test_the_text_contains_rank_cause_line_and_fix(tmp_path: Path) -> None:
    """primus-cli prints it at the end of a failed run."""
    sample("gpu_out_of_memory", tmp_path)
    text = diagnosis.diagnose(tmp_path).text()

    assert text.startswith("rank 3 on gpu001 failed first, 44.0 s after its start: it ended with exit code 1\n")
    assert "cause: the GPU's memory is full (gpu_out_of_memory)\n  logs/rank-00003.log:6: [rank3]: torch.OutOfMemoryError: HIP" in text
    assert "\n  fix: use a smaller micro batch" in text
    assert "\n  source: https://docs.pytorch.org/" in text
    assert "\nended because of it: rank 0\n" in text


def test_an_unknown_cause_is_reported_with_the_last_lines(tmp_path: Path) -> None:
    """No pattern matches a KeyError."""
    sample("unknown", tmp_path)
    found = diagnosis.diagnose(tmp_path)

    assert "cause: unknown; no line of the logs proves a known cause\nthe last lines of rank 1:\n  | [rank1]: Traceback" in found.text()
    assert found.last_lines[-1] == "[rank1]: KeyError: 'missing'"
    assert found.to_json()["cause"] is None


def test_sigkill_without_a_kernel_line_is_reported_as_killed_only(tmp_path: Path) -> None:
    """The sender is not known. A note reports that the kernel log could not be read."""
    sample("killed", tmp_path)
    kernel(tmp_path, 0, [], problem="journalctl: no permission")
    text = diagnosis.diagnose(tmp_path).text()

    assert "cause: a rank was killed from outside (SIGKILL) (killed)\n  logs/rank-00000.json: the program ended by signal 9" in text
    assert "note: the kernel log of gpu001 could not be read: journalctl: no permission" in text
    assert "memory is full, and the kernel killed" not in text


def test_sigkill_with_a_kernel_line_is_out_of_memory(tmp_path: Path) -> None:
    """`killed` is then not reported as another cause."""
    sample("killed", tmp_path)
    kernel(tmp_path, 0, [(START + 31, "Out of memory: Killed process 4000 (python3) total-vm:1kB")])
    found = diagnosis.diagnose(tmp_path)

    assert (found.cause.name if found.cause else None, found.also) == ("host_out_of_memory", ())


def test_ranks_that_waited_for_a_killed_rank_are_not_the_cause(tmp_path: Path) -> None:
    """They report a time-out; the killed rank is the cause."""
    events(tmp_path, 0, (600.0, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)"))
    record(tmp_path, 0, ended=601.0, exit_code=134, signal=6)
    record(tmp_path, 1, ended=2.0, exit_code=128 + KILL, signal=KILL)
    found = diagnosis.diagnose(tmp_path)

    assert (found.cause.name if found.cause else None, found.first.rank if found.first else None) == ("killed", 1)


def test_a_rank_that_was_killed_after_a_stop_signal_has_no_cause(tmp_path: Path) -> None:
    """It was told to stop first; the logs do not show the sender."""
    record(tmp_path, 0, world_size=1, ended=9.0, exit_code=128 + KILL, signal=KILL, stopped_at=4.0)

    assert diagnosis.diagnose(tmp_path).cause is None


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("pretrain: rank 0: /r/checkpoints/step-00000010 is of another model: model.layers 2 -> 3", "checkpoint_mismatch"),
        ("pretrain: rank 3: /r/checkpoints/step-00000010: format 7; this program reads format 2", "checkpoint_mismatch"),
        ("pretrain: rank 0: /d/x.json: made by gpt2 with 50257 tokens, and model.vocabulary is 256", "settings_wrong"),
        ("posttrain: rank 0: /d/x.json: 9 of 9 prompts fill train.sequence_length (64) and leave no response", "settings_wrong"),
        ("pretrain: rank 4: local rank 4 has no GPU: torch sees 4", "gpu_missing"),
    ],
)
def test_messages_of_the_trainer_match_their_causes(line: str, cause: str) -> None:
    """Messages of workloads/train and workloads/common."""
    found = causes.match_log(line)

    assert (found.name if found else None) == cause


def test_the_first_rank_is_the_first_by_time(tmp_path: Path) -> None:
    """Rank 0 failed later."""
    for rank, at in ((0, 9.0), (1, 8.0)):
        events(tmp_path, rank, (at, "ValueError: bad"))
        record(tmp_path, rank, ended=at + 1, exit_code=1)

    assert diagnosis.diagnose(tmp_path).to_json()["first"]["rank"] == 1


def test_the_time_of_a_failure_is_the_time_of_its_error(tmp_path: Path) -> None:
    """A large program can end later than the ranks that lost the connection to it."""
    events(tmp_path, 0, (9.0, "KeyError: 'x'"))
    record(tmp_path, 0, ended=9.1, exit_code=1)
    events(tmp_path, 1, (5.0, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"))
    record(tmp_path, 1, ended=30.0, exit_code=1)
    found = diagnosis.diagnose(tmp_path)

    assert (found.first.rank if found.first else None, found.at) == (1, START + 5.0)


def test_a_rank_that_lost_a_connection_never_precedes_a_rank_that_failed_by_itself(tmp_path: Path) -> None:
    """Because the clocks of two nodes differ, its time may be earlier."""
    events(tmp_path, 0, (5.0, "RuntimeError: Connection closed by peer [10.0.0.2]:1"))
    record(tmp_path, 0, ended=5.5, exit_code=1)
    events(tmp_path, 1, (6.0, "Traceback (most recent call last):"), (6.0, "KeyError: 'x'"))
    record(tmp_path, 1, ended=7.0, exit_code=1)
    found = diagnosis.diagnose(tmp_path)

    assert (found.first.rank if found.first else None, found.cause) == (1, None)


def test_a_rank_with_an_error_before_its_stop_signal_is_the_first(tmp_path: Path) -> None:
    """Another rank lost the connection and ended, and torchrun stopped the rank that had failed."""
    events(tmp_path, 0, (6.0, "RuntimeError: Connection reset by peer"))
    record(tmp_path, 0, ended=6.1, exit_code=1)
    events(tmp_path, 1, (5.0, "Traceback (most recent call last):"), (5.0, "KeyError: 'x'"))
    record(tmp_path, 1, ended=7.0, exit_code=128 + TERM, signal=TERM, stopped_at=6.2)
    found = diagnosis.diagnose(tmp_path)

    assert (found.first.rank if found.first else None) == 1
    assert found.last_lines[-1] == "KeyError: 'x'"


def test_a_warning_long_before_the_end_is_not_the_cause(tmp_path: Path) -> None:
    """The program ran for hours after it."""
    events(
        tmp_path,
        0,
        (10.0, "retrying: [Errno 116] Stale file handle"),
        (20000.0, "Traceback (most recent call last):"),
        (20000.0, "KeyError: 1"),
    )
    record(tmp_path, 0, world_size=1, ended=20000.1, exit_code=1)

    assert diagnosis.diagnose(tmp_path).cause is None


@pytest.mark.parametrize(
    "step", ["step 4  loss 5.7  grad 0.7", " iteration      12/     500 | lm loss: 2.4E+00", "Epoch 0:   6%| 320/500 [it/s, loss=2.6]"]
)
def test_an_error_before_further_steps_is_not_the_cause(tmp_path: Path, step: str) -> None:
    """A checkpoint could not be written; later the GPU's memory was full."""
    lines = (
        "checkpoint: could not be written: No space left on device",
        step,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB",
    )
    events(tmp_path, 0, *((5.0 + index, line) for index, line in enumerate(lines)))
    record(tmp_path, 0, world_size=1, ended=9.0, exit_code=1)
    found = diagnosis.diagnose(tmp_path)

    assert (found.cause.name if found.cause else None, found.at) == ("gpu_out_of_memory", START + 7.0)


BEHIND, WAITS = "at 7 all_reduce, scheduled", "at 7 all_reduce, started"


@pytest.mark.parametrize(
    ("positions", "suspects"),
    [
        (({"0": WAITS}, {"0": BEHIND}, {"0": WAITS}), [1]),
        (({"0": WAITS}, {"0": WAITS}, {"0": WAITS}), []),  # the network, or a GPU within the collective
        (({"0": BEHIND}, {"0": BEHIND}, {"0": BEHIND}), []),  # torch did not record the starts
        (({"0": WAITS}, {"0": "done to 6"}, {"0": WAITS}), [1]),  # its host did not enqueue the seventh
        (({"0": BEHIND}, {"0": "done to 6"}, {"0": BEHIND}), []),  # no rank waits for it yet
        (({"0": "at 8 all_gather, scheduled"}, {"0": BEHIND}, {"0": "at 8 all_gather, scheduled"}), [1]),
        (({"0": WAITS}, {"0": BEHIND, "3": WAITS}, {"3": BEHIND}), [2]),  # 0 waits for 1, which waits for 2 in another group
        (({"0": WAITS, "3": BEHIND}, {"0": BEHIND, "3": WAITS}, {}), []),  # both wait for each other
        (({"0": WAITS}, {"3": BEHIND}, {}), []),  # groups are not compared
        (({}, {}, {}), []),
    ],
)
def test_if_all_ranks_wait_the_suspect_is_the_rank_whose_gpu_is_behind(
    tmp_path: Path, positions: tuple[dict[str, str], ...], suspects: list[int]
) -> None:
    """All hosts are in the same phase. The suspect's GPU has not started the collective of the other GPUs."""
    for rank, groups in enumerate(positions):
        recorder = "; ".join(f"group {name} {position}" for name, position in groups.items()) or "unknown: TypeError"
        record(tmp_path, rank, world_size=3, ended=60.0, exit_code=77, node=f"gpu00{rank}")
        events(
            tmp_path,
            rank,
            (50.0, f"pretrain: rank {rank}: no progress for 600.1 s: step 7, phase exchange"),
            (51.0, f"pretrain: rank {rank}: flight recorder: {recorder}"),
        )
    found = diagnosis.diagnose(tmp_path)

    assert [item.rank for item in found.suspects] == suspects
    assert found.cause is not None
    assert (found.cause.name, found.also) == ("no_progress", ())


def test_the_cause_of_a_hang_is_the_cause_of_the_suspect(tmp_path: Path) -> None:
    """The waiting ranks time out first; the suspect logs its error later."""
    events(tmp_path, 0, (600.0, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)"))
    record(tmp_path, 0, ended=601.0, exit_code=134, signal=6)
    events(tmp_path, 1, (602.0, "OSError: [Errno 116] Stale file handle: '/mnt/data'"))
    record(tmp_path, 1, ended=603.0, exit_code=1)
    found = diagnosis.diagnose(tmp_path)

    assert found.cause is not None
    assert (found.cause.name, [item.rank for item in found.suspects]) == ("storage_lost", [1])
    assert "also seen: a collective operation timed out" in found.text()


def test_a_kernel_line_of_another_node_makes_its_ranks_suspects(tmp_path: Path) -> None:
    """The node lost its GPU and hung; a rank of another node failed first."""
    events(tmp_path, 0, (600.0, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)"))
    record(tmp_path, 0, ended=601.0, exit_code=134, signal=6)
    record(tmp_path, 1, node="gpu002", ended=602.0, exit_code=128 + TERM, signal=TERM, stopped_at=601.5)
    kernel(tmp_path, 1, [(START + 10, "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.")])
    found = diagnosis.diagnose(tmp_path)

    assert found.cause is not None
    assert (found.cause.name, [(item.rank, item.node) for item in found.suspects]) == ("gpu_lost", [(1, "gpu002")])


def test_a_kernel_line_after_the_failure_is_not_its_cause(tmp_path: Path) -> None:
    """It was logged an hour later."""
    sample("unknown", tmp_path)
    kernel(tmp_path, 0, [(START + 3600, "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.")])

    assert diagnosis.diagnose(tmp_path).cause is None


def test_a_kernel_line_about_a_process_outside_the_run_is_not_the_cause(tmp_path: Path) -> None:
    """The kernel killed another user's process."""
    sample("unknown", tmp_path)
    kernel(tmp_path, 0, [(START + 7, "Out of memory: Killed process 99 (java) total-vm:1kB")])

    assert diagnosis.diagnose(tmp_path).cause is None


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:0b:00.0: 0 uncorrectable hardware errors detected in umc block",
        "NVRM: Xid (PCI:0000:9b:00): 31, MMU Fault",
        "EDAC MC0: 1 CE memory read error",
    ],
)
def test_harmless_kernel_lines_match_no_cause(line: str) -> None:
    """A count of zero, a program fault, and a corrected error."""
    assert causes.match_kernel(line) is None


@pytest.mark.parametrize(
    "line",
    [
        "step 12 loss 2.41 nansen",
        "loss scale 65536",
        "found 3 files",
        "epoch 1: accuracy of the address book",
        "NCCL INFO Connected all rings",
        "wrote checkpoint, 12 GiB are free",
    ],
)
def test_ordinary_lines_match_no_cause(line: str) -> None:
    """Although they contain words of the patterns."""
    assert causes.match_log(line) is None


def test_a_log_that_could_not_be_written_gives_disk_full(tmp_path: Path) -> None:
    """The record contains the error and the last lines."""
    record(tmp_path, 0, world_size=1, ended=5.0, exit_code=74, problem="[Errno 28] No space left on device", dropped=9, last_lines=["bye"])
    found = diagnosis.diagnose(tmp_path)

    assert found.cause is not None
    assert found.cause.name == "disk_full"
    assert found.evidence[0].text == "the log could not be written: [Errno 28] No space left on device"
    assert found.last_lines == ("bye",)


@pytest.mark.parametrize(("code", "ended"), [(0, 5.0), (75, 5.0)])
def test_a_successful_or_unfinished_run_has_no_failure(tmp_path: Path, code: int, ended: float) -> None:
    """75 means unfinished with a complete checkpoint."""
    record(tmp_path, 0, world_size=1, ended=ended, exit_code=code)
    found = diagnosis.diagnose(tmp_path)

    assert not found.failed
    assert found.text() == "no rank failed\n"


def test_an_empty_folder_gives_a_note_only(tmp_path: Path) -> None:
    """Neither a failure nor a success."""
    assert diagnosis.diagnose(tmp_path).text() == "no rank has a record: no rank was started, or this is not a run folder\n"


def test_hundreds_of_ranks_are_read_in_seconds(tmp_path: Path) -> None:
    """The diagnosis of a large run is fast."""
    (tmp_path / "logs").mkdir()
    text = "".join(f"step {number} loss 2.4 tokens/s 91544 memory 120.1 GiB of 191.9\n" for number in range(400))
    for rank in range(300):
        rank_log.log_path(tmp_path, rank).write_text(text + "RuntimeError: Connection closed by peer\n")
        record(tmp_path, rank, world_size=300, ended=10.0 + rank, exit_code=1)
    started = time.monotonic()
    found = diagnosis.diagnose(tmp_path)

    assert (found.cause.name if found.cause else None, len(found.followed)) == ("peer_lost", 299)
    assert time.monotonic() - started < 30


def test_an_error_of_a_rank_that_lived_on_while_others_made_steps_is_not_the_cause(tmp_path: Path) -> None:
    """Only rank 0 logs steps."""
    events(tmp_path, 0, (10.0, "step 1 loss 2.4"), (900.0, "step 90 loss 2.1"), (950.0, "RuntimeError: Connection closed by peer"))
    record(tmp_path, 0, ended=951.0, exit_code=1)
    events(tmp_path, 1, (20.0, "OSError: [Errno 116] Stale file handle: '/data/1'"), (940.0, "Traceback"), (940.0, "KeyError: 1"))
    record(tmp_path, 1, ended=941.0, exit_code=1)
    found = diagnosis.diagnose(tmp_path)

    assert (found.first.rank if found.first else None, found.cause) == (1, None)
    assert [item.cause.name for item in found.also] == ["peer_lost", "storage_lost"]


def test_a_fatal_error_counts_although_other_ranks_made_further_steps(tmp_path: Path) -> None:
    """Ranks that do not communicate, or one long step."""
    events(tmp_path, 0, (900.0, "step 90 loss 2.1"))
    record(tmp_path, 0, ended=901.0, exit_code=143, signal=TERM, stopped_at=900.5)
    events(tmp_path, 1, (20.0, "OSError: [Errno 116] Stale file handle: '/data/1'"))
    record(tmp_path, 1, ended=20.5, exit_code=1)
    found = diagnosis.diagnose(tmp_path)

    assert (found.first.rank if found.first else None, found.cause.name if found.cause else None) == (1, "storage_lost")


@pytest.mark.parametrize(
    ("signal", "line", "cause"),
    [
        (KILL, "OSError: [Errno 28] No space left on device", "killed"),  # the exception did not end the program
        (KILL, "NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12 opcode=0", "rdma_failed"),
        (11, "ModuleNotFoundError: No module named 'apex'", "crash"),  # programs try to import it
        (11, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB", "gpu_out_of_memory"),  # crashed while it ended
        (6, "ImportError: cannot import name 'flash_attn_func'", None),
    ],
)
def test_an_exception_that_the_program_handled_does_not_explain_a_signal(tmp_path: Path, signal: int, line: str, cause: str | None) -> None:
    """Python ends a program with an exit code after an exception, not with a signal."""
    events(tmp_path, 0, (5.0, line))
    record(tmp_path, 0, world_size=1, ended=60.0, exit_code=128 + signal, signal=signal)
    found = diagnosis.diagnose(tmp_path)

    assert (found.cause.name if found.cause else None) == cause


@pytest.mark.parametrize(
    ("at", "line", "cause"),
    [
        (5000.0, "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.", "gpu_lost"),  # while the ranks waited
        (100.0, "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.", "collective_timeout"),  # steps followed
        (5000.0, "nfs: server nas not responding, still trying", "storage_lost"),
    ],
)
def test_a_kernel_line_counts_if_it_is_from_the_time_for_which_the_ranks_waited(tmp_path: Path, at: float, line: str, cause: str) -> None:
    """They waited for two hours."""
    waited = "Watchdog caught collective operation timeout: WorkNCCL(Timeout(ms)=7200000) ran for 7200010 milliseconds before timing out."
    events(tmp_path, 0, (4000.0, "step 12 loss 2.4"), (11500.0, waited))
    record(tmp_path, 0, world_size=1, ended=11501.0, exit_code=134, signal=6)
    kernel(tmp_path, 0, [(START + at, line)])
    found = diagnosis.diagnose(tmp_path)

    assert (found.cause.name if found.cause else None) == cause


def test_a_kernel_line_that_a_later_line_revokes_is_ignored(tmp_path: Path) -> None:
    """The NFS server responded again."""
    sample("collective_timeout", tmp_path)
    kernel(tmp_path, 0, [(START + 3, "nfs: server nas not responding, still trying"), (START + 4, "nfs: server nas OK")])
    found = diagnosis.diagnose(tmp_path)

    assert found.cause is not None
    assert (found.cause.name, [item.cause.name for item in found.also if item.file.startswith("kernel")]) == ("collective_timeout", [])


def test_a_lost_gpu_explains_an_exception_that_names_a_gpu_but_no_other(tmp_path: Path) -> None:
    """Neither exception matches a cause."""
    for number, (line, cause) in enumerate(
        {"RuntimeError: CUDA error: unknown error": "gpu_lost", "RuntimeError: bad batch": None}.items()
    ):
        run_dir = tmp_path / str(number)
        events(run_dir, 0, (50.0, line))
        record(run_dir, 0, world_size=1, ended=51.0, exit_code=1)
        kernel(run_dir, 0, [(START + 49, "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.")])
        found = diagnosis.diagnose(run_dir)

        assert (found.cause.name if found.cause else None) == cause


def test_bytes_that_are_not_utf_8_and_colours_do_not_hide_a_cause(tmp_path: Path) -> None:
    """Lines as torchtitan, mpirun and kubectl print them."""
    for number, before in enumerate(
        (b"\xff\xfe ", b"\x1b[31m", b"[1,3]<stderr>:", b"2024-11-28T07:42:11.527Z ", b"(Worker pid=7, ip=10.0.0.1) ")
    ):
        run_dir = tmp_path / str(number)
        record(run_dir, 0, world_size=1, ended=9.0, exit_code=1)
        rank_log.log_path(run_dir, 0).write_bytes(b"hello\n" + before + b"torch.OutOfMemoryError: CUDA out of memory.\n")
        found = diagnosis.diagnose(run_dir)

        assert (found.cause.name if found.cause else None) == "gpu_out_of_memory"


def test_a_kernel_log_of_a_million_lines_is_saved_and_read_bounded() -> None:
    """A driver in a loop. The first matching lines and the last lines of all are kept."""
    lines = ((float(number), f"NVRM: Xid (PCI:0000:c1:00): 79, pid={number}{'x' * 5000}") for number in range(20_000))
    kept = kernel_log._relevant(lines)

    assert len(kept) == 1200
    assert (kept[0][0], kept[999][0], kept[1000][0], kept[-1][0]) == (0.0, 999.0, 19_800.0, 19_999.0)
    assert max(len(text) for _, text in kept) == 2000


def test_a_kernel_log_that_is_too_large_is_reported(tmp_path: Path) -> None:
    """It is not read into memory."""
    sample("unknown", tmp_path)
    kernel(tmp_path, 0, [(START, "x" * (9 << 20))])

    assert "note: the kernel log of kernel-00000 could not be read: logs/kernel-00000.json is larger than 8 MiB" in (
        diagnosis.diagnose(tmp_path).text()
    )


@pytest.mark.parametrize(("reporting", "suspects"), [((0,), []), ((0, 1, 2, 3, 4, 5, 6), [7])])
def test_ranks_that_torchrun_stopped_before_they_could_report_a_time_out_are_no_suspects(
    tmp_path: Path, reporting: tuple[int, ...], suspects: list[int]
) -> None:
    """The first rank of a node that reports the time-out ends, and torchrun stops the others of that node. No node is to blame."""
    for rank in range(16):
        node = "gpu001" if rank < 8 else "gpu002"
        if rank in reporting or rank >= 8:
            events(tmp_path, rank, (600.0, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)"))
            record(tmp_path, rank, world_size=16, node=node, ended=601.0, exit_code=134, signal=6)
        else:
            record(tmp_path, rank, world_size=16, node=node, ended=601.5, exit_code=143, signal=TERM, stopped_at=601.1)
    found = diagnosis.diagnose(tmp_path)

    assert (found.cause.name if found.cause else None, [item.rank for item in found.suspects]) == ("collective_timeout", suspects)


NO_ANSWER = "node:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12 opcode=0 len=0 vendor err 129 (Send)"
PORT_DOWN = "node:1:2 [0] NCCL WARN NET/IB : mlx5_1:1 Got async event : port error"


@pytest.mark.parametrize(
    ("lines", "blamed"),
    [
        ((NO_ANSWER, NO_ANSWER), None),  # a cable, a switch, or one of the nodes
        ((NO_ANSWER, PORT_DOWN), "gpu001"),
        ((NO_ANSWER, None), "gpu001"),  # the node is lost
    ],
)
def test_a_node_that_got_no_answer_over_rdma_is_not_blamed(tmp_path: Path, lines: tuple[str, str | None], blamed: str | None) -> None:
    """The other end of the connection may be at fault."""
    for rank, line in enumerate(lines):
        events(tmp_path, rank, (50.0 + rank, line or "step 9 loss 2.0"))
        record(tmp_path, rank, node=f"gpu00{rank}", ended=60.0 if line else None, exit_code=134 if line else None, signal=6 if line else 0)
    found = diagnosis.diagnose(tmp_path)
    unclear = blamed is None

    assert (found.cause.name if found.cause else None, found.node_unclear) == ("rdma_failed", unclear)
    assert (None if unclear else [item.node for item in found.suspects] or [found.evidence[0].node]) == (blamed and [blamed])
    assert ("both ends of the connection" in found.text()) == unclear


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        ("Epoch 0:   6%|6 | 320/500 [it/s, loss=2.6]", "Epoch 0:   6%|6 | 320/500 [it/s, loss=2.6]", "storage_lost"),
        ("Epoch 0:   6%|6 | 320/500 [it/s, loss=2.6]", "Epoch 0:   6%|6 | 321/500 [it/s, loss=2.6]", None),
        ("  1%|1 | 310/28845 [04:10<6:18:45,  1.26it/s]", "  1%|1 | 310/28845 [04:10<6:18:45,  1.26it/s]", "storage_lost"),
        ("  1%|1 | 310/28845 [04:10<6:18:45,  1.26it/s]", "  1%|1 | 312/28845 [04:10<6:18:45,  1.26it/s]", None),
        ("loading", "  1%|1 | 310/28845 [04:10<6:18:45,  1.26it/s]", "storage_lost"),  # it may be from before the error
        ("loading", "{'loss': 0.9042, 'learning_rate': 0.0002, 'epoch': 0.24}", None),
        ("loading", "Training epoch 0, iteration 3/999 | lr: 1e-05 | reduced_train_loss: 11.0", None),
    ],
)
def test_a_progress_bar_proves_that_the_program_went_on_only_if_it_advances(
    tmp_path: Path, before: str, after: str, cause: str | None
) -> None:
    """It is printed again when the program ends."""
    events(tmp_path, 0, (5.0, before), (6.0, "OSError: [Errno 116] Stale file handle: '/data/1'"), (7.0, after))
    record(tmp_path, 0, world_size=1, ended=9.0, exit_code=1)
    found = diagnosis.diagnose(tmp_path)

    assert (found.cause.name if found.cause else None) == cause


def test_an_error_that_a_stopped_rank_handled_at_its_start_does_not_make_it_the_first(tmp_path: Path) -> None:
    """Every rank logs the failed import of an optional package; rank 1 runs out of memory, and torchrun stops rank 0."""
    handled = ((5.0, "Traceback (most recent call last):"), (5.0, "AttributeError: module 'apex' has no attribute 'amp'"))
    events(tmp_path, 0, *handled)
    record(tmp_path, 0, ended=92.0, exit_code=143, signal=TERM, stopped_at=91.0)
    events(tmp_path, 1, *handled, (90.0, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"))
    record(tmp_path, 1, ended=90.5, exit_code=1)
    found = diagnosis.diagnose(tmp_path)

    assert (found.first.rank if found.first else None, found.cause.name if found.cause else None) == (1, "gpu_out_of_memory")


def test_the_time_of_a_failure_is_not_that_of_an_error_after_which_the_program_went_on(tmp_path: Path) -> None:
    """Rank 0 logged a handled error at its start, and failed last."""
    events(tmp_path, 0, (5.0, "AttributeError: no 'amp'"), (20.0, "loaded the data"), (95.0, "RuntimeError: no batch"))
    record(tmp_path, 0, ended=96.0, exit_code=1)
    events(tmp_path, 1, (90.0, "RuntimeError: bad batch"))
    record(tmp_path, 1, ended=91.0, exit_code=1)
    found = diagnosis.diagnose(tmp_path)

    assert (found.first.rank if found.first else None, found.at) == (1, START + 90.0)
