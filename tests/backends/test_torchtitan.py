"""TorchTitan itself, on CPUs with the shim for tests: FSDP2, stop and resume, its parser and its keys."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest

from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.tasks import Request
from primus_bootstrap.launch.training import training_task as training
from tests.backends.backend_rig import LIMIT_S, ROOT, check_start_from, check_stop_and_resume, errors_of_parser, python_of, train

pytestmark = [pytest.mark.backend, pytest.mark.timeout(2 * LIMIT_S)]
PROGRAMS = ROOT / "workloads" / "backends" / "torchtitan"
DENSE = ("--config", "debug-dense", "backend=torchtitan")


@pytest.fixture(autouse=True, scope="module")
def python() -> str:
    """The interpreter of the environment; without it, all tests are skipped."""
    return python_of("torchtitan")


def test_a_small_model_trains_on_two_ranks_with_falling_loss(tmp_path: Path) -> None:
    """FSDP2 shards it. The records are those of the native trainer, and only the newest checkpoints are kept."""
    run = train(tmp_path, *DENSE, "train.steps=6", "checkpoint.every_steps=2", "checkpoint.keep=2", ranks=2)

    assert run.code == 0, run.output
    assert "THE CPU SHIM FOR TESTS IS ON" in run.output
    assert "Applied FSDP to the model" in run.output
    records = run.lines("steps.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    names = ("loss", "grad_norm", "tokens_per_s", "learning_rate", "step_time_s", "tflops_per_s_per_device")
    assert all(math.isfinite(record[name]) and record[name] > 0 for record in records for name in names)
    assert run.losses[-1] < run.losses[0] - 0.3
    assert records[-1]["tokens"] == 6 * 8 * 64
    result = run.lines("results.jsonl")[-1]
    assert (result["backend"], result["backend_version"], result["outcome"], result["step"]) == ("torchtitan", "0.2.2", "done", 6)
    folders = sorted(path.name for path in (run.folder / "checkpoints").iterdir() if path.is_dir())
    assert folders == ["step-00000004", "step-00000006", "step-4", "step-6"]


def test_sigterm_writes_a_checkpoint_and_the_same_command_resumes(tmp_path: Path) -> None:
    """The loss continues, also with more steps than before. Another run can start from the checkpoint."""
    arguments = (*DENSE, "checkpoint.every_steps=0", "optimizer.decay_steps=2000")
    stopped, last, new = check_stop_and_resume(tmp_path, *arguments)
    assert new["checkpoint_step"] == last["step"]
    other = check_start_from(tmp_path / "other", stopped, last, *arguments)
    assert not (other.folder / "checkpoints").exists()


def test_the_parser_accepts_every_recipe(python: str) -> None:
    """Its checks judge the layout for the number of ranks, and its models have the names."""
    asked = []
    for recipe in (item for item in catalogue.recipes() if item.backend == "torchtitan"):
        request = Request(
            ("--config", recipe.name), "", lambda: ROOT / "workloads", run_dir=Path("/run"), ranks=recipe.layout.gpus, gpu=recipe.gpu
        )
        files = {Path(path).name: text for path, text in training.program(request, "pretrain.py", backends=True).files}
        del files["backend.json"]
        asked.append({"name": recipe.name, "world_size": recipe.layout.gpus, "files": files})

    assert len(asked) > 40
    assert errors_of_parser(python, "torchtitan", asked) == {}


def test_the_parser_refuses_a_wrong_layout_and_wrong_names(python: str) -> None:
    """Its message is passed on."""
    texts = {
        "ranks": "[parallelism]\ntensor_parallel_degree = 2\ndata_parallel_shard_degree = 1\n",
        "key": "[training]\nseqlen = 64\n",
        "flavor": '[model]\nflavor = "9B"\n',
        "batch": "[training]\nlocal_batch_size = 3\nglobal_batch_size = 4\n",
    }
    errors = errors_of_parser(
        python, "torchtitan", [{"name": name, "world_size": 3, "files": {"torchtitan.toml": text}} for name, text in texts.items()]
    )

    expected = {"ranks": "WORLD_SIZE(3)", "key": "seqlen", "flavor": "9B", "batch": "no multiple"}
    assert {name: text in errors.get(name, "") for name, text in expected.items()} == dict.fromkeys(expected, True), errors


def test_the_key_table_equals_the_parser(python: str) -> None:
    """The table is generated: workloads/backends/torchtitan/write_keys.py."""
    written = subprocess.run(
        [python, "-W", "ignore", str(PROGRAMS / "write_keys.py")], capture_output=True, text=True, check=True, timeout=LIMIT_S
    ).stdout
    table = ROOT / "primus_bootstrap" / "launch" / "data" / "backends" / "torchtitan-0.2.2.json"

    assert json.loads(written) == json.loads(table.read_text())
