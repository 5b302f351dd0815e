"""MaxText itself, on eight virtual devices of the CPU with the shim for tests: training, stop and resume, its parser and its keys."""

from __future__ import annotations

import json
import math
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from primus_bootstrap.launch.backends.key_table import read_keys, unknown_key
from primus_bootstrap.launch.checkpoints import newest_complete
from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.tasks import Request
from primus_bootstrap.launch.training import training_task as training
from tests.backends.backend_rig import (
    FOLDER,
    LIMIT_S,
    ROOT,
    SHIM,
    Trained,
    ask_parser,
    check_start_from,
    check_stop_and_resume,
    python_of,
    train,
)
from tests.integration.launch_cli_rig import START, User
from tests.waiting import until

pytestmark = [pytest.mark.backend, pytest.mark.timeout(2 * LIMIT_S)]
PROGRAMS = ROOT / "workloads" / "backends" / "maxtext"
DENSE = ("--config", "debug-dense", "backend=maxtext", "train.micro_batch=1")


@pytest.fixture(autouse=True, scope="module")
def python() -> str:
    """The interpreter of the environment; without it, all tests are skipped."""
    return python_of("maxtext")


def test_a_small_model_trains_on_eight_devices_with_falling_loss(tmp_path: Path) -> None:
    """Four shards and two ranks per matrix. The records are those of the native trainer, and only the newest checkpoints are kept."""
    words = ("parallel.tensor=2", "train.global_batch=8", "train.steps=6", "checkpoint.every_steps=2", "checkpoint.keep=2")
    run = train(tmp_path, *DENSE, *words, ranks=8)

    assert run.code == 0, run.output
    assert "THE CPU SHIM FOR TESTS IS ON" in run.output
    assert "Num_devices: 8" in run.output
    records = run.lines("steps.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    names = ("loss", "grad_norm", "tokens_per_s", "step_time_s", "tflops_per_s_per_device")
    assert all(math.isfinite(record[name]) and record[name] > 0 for record in records for name in names)
    assert records[-1]["balance_loss"] is None
    assert run.losses[-1] < run.losses[0] - 0.3
    assert records[-1]["tokens"] == 6 * 8 * 64
    assert math.isclose(records[-1]["tokens_per_s"], 8 * records[-1]["tokens_per_s_per_device"])
    result = run.lines("results.jsonl")[-1]
    assert (result["backend"], result["backend_version"], result["outcome"], result["step"]) == ("maxtext", "0.2.5", "done", 6)
    folders = sorted(path.name for path in (run.folder / "checkpoints").iterdir() if path.is_dir())
    assert folders == ["3", "5", "step-00000004", "step-00000006"]


def test_sigterm_writes_a_checkpoint_and_the_same_command_resumes(tmp_path: Path) -> None:
    """The loss continues, also with more steps than before. Another run can start from the checkpoint."""
    arguments = (*DENSE, "checkpoint.every_steps=0", "optimizer.decay_steps=2000")
    stopped, last, _ = check_stop_and_resume(tmp_path, *arguments)
    check_start_from(tmp_path / "other", stopped, last, *arguments)


def free_port() -> int:
    """Return a port of loopback that no program uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def texts(folder: Path) -> str:
    """Return the output of both nodes."""
    return "".join((folder / f"node{number}.log").read_text() for number in (0, 1))


def test_the_processes_of_two_nodes_train_together(tmp_path: Path) -> None:
    """They meet at JAX's coordinator; the first one records the steps. SIGTERM on one node stops both at the same step."""
    user, folder, port = User(tmp_path), tmp_path / "run", free_port()
    shape = [
        "direct",
        "--nnodes",
        "2",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        str(port),
        "--nproc",
        "4",
        "--backend-folder",
        str(FOLDER),
    ]
    words = ["--", "train", "pretrain", *DENSE, "train.steps=2000", "optimizer.decay_steps=2000", "checkpoint.every_steps=0"]
    seen = Trained(0, "", folder)
    with ExitStack() as stack:
        nodes = []
        for number in (0, 1):
            log = stack.enter_context((tmp_path / f"node{number}.log").open("w"))
            command = [*START, "--output", str(folder), *shape, "--node-rank", str(number), *words]
            nodes.append(subprocess.Popen(command, cwd=user.project, env=user.full_environment(**SHIM), stdout=log, stderr=log))
            stack.callback(nodes[-1].wait)
            stack.callback(nodes[-1].kill)
        until(lambda: len(seen.losses) >= 4 or any(node.poll() is not None for node in nodes), lambda: texts(tmp_path), limit_s=LIMIT_S)
        nodes[1].terminate()
        codes = [node.wait(LIMIT_S) for node in nodes]

    assert codes == [75, 75], texts(tmp_path)
    assert "Num_devices: 8" in texts(tmp_path)
    last = seen.lines("steps.jsonl")[-1]
    assert newest_complete(folder / "checkpoints") == f"step-{last['step']:08d}"
    assert seen.losses[-1] < seen.losses[0]


def asked_of(recipe_name: str, gpus: int, gpu: str) -> dict[str, Any]:
    """Return the question to the parser about a recipe on a number of GPUs."""
    request = Request(("--config", recipe_name), "", lambda: ROOT / "workloads", run_dir=Path("/run"), ranks=gpus, gpu=gpu)
    program = training.program(request, "pretrain.py", backends=True)
    return {"name": f"{recipe_name} {gpus}", "world_size": gpus, "argv": program.arguments[3:]}


def test_the_parser_accepts_every_recipe(python: str) -> None:
    """On its number of GPUs, and on one and two nodes. Batch and shape are those of the recipe."""
    recipes = [item for item in catalogue.recipes() if item.backend == "maxtext"]
    answers = ask_parser(python, "maxtext", [asked_of(item.name, item.layout.gpus, item.gpu) for item in recipes])

    assert len(recipes) > 20
    assert {name: answer["error"] for name, answer in answers.items() if answer["error"]} == {}
    for item in recipes:
        answer, shape = answers[f"{item.name} {item.layout.gpus}"], catalogue.model(item.model)
        found = answer["shape"]
        assert answer["global_batch"] == item.batch.all, item.name
        assert math.prod(answer["mesh"].values()) == item.layout.gpus, item.name
        assert (found["emb_dim"], found["num_decoder_layers"], found["num_query_heads"]) == (shape.width, shape.layers, shape.heads)
    scaled = ask_parser(python, "maxtext", [asked_of("llama-3.1-8b-maxtext-mi300x-bf16-8", gpus, "MI300X") for gpus in (2, 4, 16, 64)])
    assert {name: answer["error"] for name, answer in scaled.items() if answer["error"]} == {}


def test_the_parser_refuses_a_wrong_layout_and_wrong_names(python: str) -> None:
    """Its message is passed on."""
    words = ["run_name=a", "base_output_directory=/tmp", "skip_jax_distributed_system=true", "hardware=gpu", "log_config=false"]
    asked = {
        "mesh": ["ici_fsdp_parallelism=3"],
        "key": ["max_target_lenght=64"],
        "model": ["model_name=llama9-8b"],
        "value": ["steps=many"],
    }
    answers = ask_parser(python, "maxtext", [{"name": name, "world_size": 8, "argv": [*words, *more]} for name, more in asked.items()])

    expected = {"mesh": "does not match", "key": "max_target_lenght", "model": "llama9-8b", "value": "steps"}
    assert {name: text in answers[name]["error"] for name, text in expected.items()} == dict.fromkeys(expected, True), answers


def test_the_key_table_equals_the_parser(python: str) -> None:
    """The table is generated: workloads/backends/maxtext/write_keys.py."""
    written = subprocess.run(
        [python, "-W", "ignore", str(PROGRAMS / "write_keys.py")], capture_output=True, text=True, check=True, timeout=LIMIT_S
    ).stdout
    table = ROOT / "primus_bootstrap" / "launch" / "data" / "backends" / "maxtext-0.2.5.json"

    assert json.loads(written) == json.loads(table.read_text())


def test_every_key_with_one_letter_less_is_refused_by_the_parser_too(python: str) -> None:
    """The launcher's hint names an existing key."""
    known = read_keys("maxtext", "0.2.5")
    wrong = [name[:-1] for name in known if name[:-1] not in known]
    words = ["run_name=a", "base_output_directory=/tmp", "skip_jax_distributed_system=true", "hardware=gpu", "log_config=false"]
    answers = ask_parser(python, "maxtext", [{"name": name, "world_size": 8, "argv": [*words, f"{name}=1"]} for name in wrong[::10]])

    assert {name for name, answer in answers.items() if name not in answer["error"]} == set()
    assert {name for name in wrong if unknown_key(name, known).removeprefix("did you mean ").removesuffix("?") not in known} == set()
