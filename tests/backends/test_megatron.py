"""Megatron-LM itself, on CPUs with the shim for tests: layouts, stop and resume, its parser and its keys."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest

from primus_bootstrap.launch.backends.key_table import read_keys, unknown_key
from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.tasks import Request
from primus_bootstrap.launch.training import training_task as training
from tests.backends.backend_rig import LIMIT_S, ROOT, check_stop_and_resume, python_of, train

pytestmark = [pytest.mark.backend, pytest.mark.timeout(2 * LIMIT_S)]
PROGRAMS = ROOT / "workloads" / "backends" / "megatron"
TINY = ("backend=megatron", "train.steps=6", "checkpoint.every_steps=0")


@pytest.fixture(autouse=True, scope="module")
def python() -> str:
    """The interpreter of the environment; without it, all tests are skipped."""
    return python_of("megatron")


@pytest.mark.parametrize(
    ("preset", "ranks", "settings"),
    [
        ("debug-dense", 2, ("parallel.tensor=2",)),
        ("debug-dense", 2, ("parallel.pipeline=2",)),
        ("debug-dense", 2, ("parallel.strategy=distributed_optimizer",)),
        ("debug-moe", 1, ("compute.precision=bf16",)),
        ("debug-moe", 2, ("parallel.expert=2",)),
    ],
    ids=["tensor", "pipeline", "distributed-optimizer", "experts", "experts-on-two-ranks"],
)
def test_a_small_model_trains_with_falling_loss(preset: str, ranks: int, settings: tuple[str, ...], tmp_path: Path) -> None:
    """The records are those of the native trainer."""
    run = train(tmp_path, "--config", preset, *TINY, *settings, ranks=ranks)

    assert run.code == 0, run.output
    assert "THE CPU SHIM FOR TESTS IS ON" in run.output
    assert "step 6  loss" in run.output
    records = run.lines("steps.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert all(math.isfinite(record[name]) and record[name] > 0 for record in records for name in ("loss", "grad_norm", "tokens_per_s"))
    assert run.losses[-1] < run.losses[0] - 0.3
    assert records[-1]["tokens"] == 6 * 8 * 64
    result = run.lines("results.jsonl")[-1]
    assert (result["backend"], result["backend_version"], result["outcome"], result["step"]) == ("megatron", "0.19.2", "done", 6)
    assert "primus_train_running" in (run.folder / "metrics.prom").read_text()


def test_sigterm_writes_a_checkpoint_and_the_same_command_resumes(tmp_path: Path) -> None:
    """The loss continues, also with more steps than before."""
    arguments = ("--config", "debug-dense", "backend=megatron", "checkpoint.every_steps=0", "optimizer.decay_steps=2000")
    _, last, new = check_stop_and_resume(tmp_path, *arguments)
    assert new["checkpoint_step"] == last["step"]


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    """The mark and the content of the others are removed."""
    run = train(tmp_path, "--config", "debug-dense", "backend=megatron", "train.steps=6", "checkpoint.every_steps=2", "checkpoint.keep=2")

    assert run.code == 0, run.output
    names = sorted(path.name for path in (run.folder / "checkpoints").iterdir() if path.is_dir())
    assert names == ["iter_0000004", "iter_0000006", "step-00000004", "step-00000006"]


def test_the_parser_accepts_every_recipe(python: str) -> None:
    """Its checks judge the layout for the number of ranks."""
    asked = []
    for recipe in (item for item in catalogue.recipes() if item.backend == "megatron"):
        request = Request(
            ("--config", recipe.name), "", lambda: ROOT / "workloads", run_dir=Path("/run"), ranks=recipe.layout.gpus, gpu=recipe.gpu
        )
        program = training.program(request, "pretrain.py", backends=True)
        line = {
            "name": recipe.name,
            "world_size": recipe.layout.gpus,
            "argv": program.arguments[3:],
            "environment": dict(program.environment),
        }
        asked.append(json.dumps(line))
    done = subprocess.run(
        [python, "-W", "ignore", str(PROGRAMS / "parse.py")],
        input="\n".join(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]

    assert len(answers) == len(asked), done.stderr
    assert {answer["name"]: answer["error"] for answer in answers if answer["error"]} == {}


def test_the_parser_refuses_a_wrong_layout_and_a_wrong_name(python: str) -> None:
    """Its message is passed on."""
    words = [
        "--num-layers",
        "2",
        "--hidden-size",
        "64",
        "--num-attention-heads",
        "4",
        "--seq-length",
        "64",
        "--max-position-embeddings",
        "64",
    ]
    words += ["--micro-batch-size", "1", "--train-iters", "1", "--lr", "1e-3", "--transformer-impl", "local"]
    asked = [
        {"name": "ranks", "world_size": 3, "argv": [*words, "--tensor-model-parallel-size", "2"]},
        {"name": "name", "world_size": 1, "argv": [*words, "--recompute-num-layer", "2"]},
    ]
    done = subprocess.run(
        [python, "-W", "ignore", str(PROGRAMS / "parse.py")],
        input="\n".join(map(json.dumps, asked)),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    errors = {answer["name"]: answer["error"] for answer in map(json.loads, done.stdout.splitlines())}

    assert done.returncode == 1
    assert "divisible" in errors["ranks"]
    assert "unrecognized arguments: --recompute-num-layer" in errors["name"]


def test_the_key_table_equals_the_parser(python: str) -> None:
    """The table is generated: workloads/backends/megatron/write_keys.py."""
    written = subprocess.run(
        [python, "-W", "ignore", str(PROGRAMS / "write_keys.py")], capture_output=True, text=True, check=True, timeout=LIMIT_S
    ).stdout
    table = ROOT / "primus_bootstrap" / "launch" / "data" / "backends" / "megatron-0.19.2.json"

    assert json.loads(written) == json.loads(table.read_text())


def test_every_key_with_one_letter_less_is_refused_with_a_hint() -> None:
    """The hint names an existing key."""
    known = read_keys("megatron", "0.19.2")
    assert len(known) > 600
    for name in known:
        if name[:-1] not in known:
            assert unknown_key(name[:-1], known).removeprefix("did you mean ").removesuffix("?") in known, name
