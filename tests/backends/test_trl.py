"""TRL and PEFT themselves, on CPUs: SFT, LoRA and GRPO of a small model, stop and resume, two ranks, their parsers and their keys."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from primus_bootstrap.launch.backends.trl import recipes
from primus_bootstrap.launch.checkpoints import newest_complete
from tests.backends.backend_rig import LIMIT_S, ROOT, Trained, errors_of_parser, python_of, stop_after, train
from tests.unit.test_backends_trl import job

pytestmark = [pytest.mark.backend, pytest.mark.timeout(2 * LIMIT_S)]
PROGRAMS, HERE = ROOT / "workloads" / "backends" / "trl", Path(__file__).parent
TASK = "posttrain"
ADDITIONS = [(first, second) for first in range(8) for second in range(8)]


@pytest.fixture(autouse=True, scope="module")
def python() -> str:
    """The interpreter of the environment; without it, all tests are skipped."""
    return python_of("trl")


@pytest.fixture(scope="module")
def model(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with random weights."""
    folder = tmp_path_factory.mktemp("models") / "model"
    subprocess.run([python, "-W", "ignore", str(HERE / "tiny_model.py"), str(folder)], check=True, timeout=LIMIT_S, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def words(model: Path) -> tuple[str, ...]:
    """The arguments of every run: the model, and sums as examples."""
    examples = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in ADDITIONS]
    write(model.parent / "train.jsonl", examples)
    write(model.parent / "validation.jsonl", examples[:8])
    write(model.parent / "chat.jsonl", [{"messages": dialogue(a, b)} for a, b in ADDITIONS])
    common = ("backend=trl", f"checkpoint.start_from={model}", f"data.files={model.parent / 'train.jsonl'}")
    sizes = ("train.global_batch=8", "train.micro_batch=4", "optimizer.lr=3e-3", "compute.precision=fp32", "compute.device=cpu")
    return (*common, *sizes)


def dialogue(first: int, second: int) -> list[dict[str, str]]:
    """Return a question and its answer as messages."""
    return [{"role": "user", "content": f"{first}+{second}="}, {"role": "assistant", "content": str(first + second)}]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a file of JSON lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def tool(python: str, name: str, *arguments: str) -> dict[str, Any]:
    """Return what a script beside this file prints as JSON."""
    command = [python, "-W", "ignore", str(HERE / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_sft_falls_and_the_export_is_what_was_trained(words: tuple[str, ...], model: Path, python: str, tmp_path: Path) -> None:
    """The records are those of the native trainer, with a validation loss; only the newest checkpoints are kept."""
    validation = (f"data.validation_files={model.parent / 'validation.jsonl'}", "validation.every_steps=4")
    saves = ("checkpoint.every_steps=2", "checkpoint.keep=2", f"checkpoint.export={tmp_path / 'export'}")
    run = train(tmp_path, *words, "train.steps=8", *validation, *saves, task=TASK)

    assert run.code == 0, run.output
    records = run.lines("steps.jsonl")
    assert [record["step"] for record in records] == list(range(1, 9))
    assert run.losses[-1] < run.losses[0] - 0.5
    losses = {record["step"]: record["validation_loss"] for record in records if record["validation_loss"] is not None}
    assert list(losses) == [4, 8]
    assert losses[8] < losses[4]
    names = ("loss", "grad_norm", "tokens_per_s", "step_time_s", "tflops_per_s_per_device", "tokens")
    assert all(record[name] > 0 for record in records for name in names)
    characters = sum(len(f"{a}+{b}={a + b}") + 1 for a, b in ADDITIONS)  # each with the end of the text
    assert records[-1]["tokens"] == characters  # 8 steps of 8 examples are one pass
    result = run.lines("results.jsonl")[-1]
    assert (result["backend"], result["backend_version"], result["outcome"], result["step"]) == ("trl", "1.16.0", "done", 8)
    assert result["parameters"] == tool(python, "use_model.py", "parameters", str(model))["parameters"]
    folders = sorted(path.name for path in (run.folder / "checkpoints").iterdir() if path.is_dir())
    assert folders == ["checkpoint-6", "checkpoint-8", "step-00000006", "step-00000008"]
    same = tool(python, "use_model.py", "compare", str(tmp_path / "export"), str(run.folder / "checkpoints" / "checkpoint-8"))
    assert same["difference"] < 1e-6
    assert tool(python, "use_model.py", "compare", str(tmp_path / "export"), str(model))["difference"] > 0.1


def test_lora_trains_adapters_only_and_the_merged_export_gives_the_same_logits(
    words: tuple[str, ...], model: Path, python: str, tmp_path: Path
) -> None:
    """Without lora.merge, the export is the adapter alone."""
    lora = ("method=lora", "lora.rank=4", "optimizer.lr=1e-2", "train.steps=6")
    run = train(tmp_path, *words, *lora, f"checkpoint.export={tmp_path / 'merged'}", "lora.merge=true", task=TASK)

    assert run.code == 0, run.output
    assert run.losses[-1] < run.losses[0] - 0.2
    checkpoint = run.folder / "checkpoints" / "checkpoint-6"
    assert tool(python, "use_model.py", "names", str(checkpoint))["only_lora"]
    merged = tool(python, "use_model.py", "merged", str(tmp_path / "merged"), str(model), str(checkpoint))
    assert merged["difference"] < 1e-4
    assert merged["changed"] > 0.1
    again = train(tmp_path, *words, *lora, f"checkpoint.export={tmp_path / 'adapter'}", task=TASK)
    assert again.code == 0, again.output
    assert len(again.losses) == 6  # all steps were done; the adapter comes from the checkpoint
    assert tool(python, "use_model.py", "merged", str(tmp_path / "merged"), str(model), str(tmp_path / "adapter"))["difference"] < 1e-4


def test_grpo_raises_the_reward_of_a_function_of_the_user(words: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    """The reward is the share of digits in a completion."""
    write(model.parent / "prompts.jsonl", [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in ADDITIONS])
    own = tmp_path / "mine.py"
    own.write_text(
        "def digits(completions, answer, **columns):\n"
        "    assert len(answer) == len(completions)\n"
        "    return [sum(sign.isdigit() for sign in text) / max(1, len(text)) for text in completions]\n"
    )
    grpo = ("method=grpo", f"rewards={own}:digits,length:8", "trl.grpo.reward_weights=[1, 0]", "train.sequence_length=8")
    sizes = ("train.global_batch=32", "train.micro_batch=32", "optimizer.lr=5e-3", "train.steps=20", "checkpoint.every_steps=0")
    run = train(tmp_path, *words, f"data.files={model.parent / 'prompts.jsonl'}", *grpo, *sizes, task=TASK)

    assert run.code == 0, run.output
    rewards = [record["reward"] for record in run.lines("steps.jsonl")]
    assert len(rewards) == 20
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
    assert "rewards/length/mean" in run.output


def test_sigterm_writes_a_checkpoint_and_the_same_command_resumes(words: tuple[str, ...], tmp_path: Path) -> None:
    """The loss and the number of tokens continue. Examples may also be messages."""
    arguments = (*words, f"data.files={words_folder(words) / 'chat.jsonl'}", "checkpoint.every_steps=0")
    stopped = stop_after(5, tmp_path, *arguments, "train.steps=2000", task=TASK)

    assert stopped.code == 75, stopped.output
    last = stopped.lines("steps.jsonl")[-1]
    assert newest_complete(stopped.folder / "checkpoints") == f"step-{last['step']:08d}"
    assert stopped.lines("results.jsonl")[-1]["outcome"] == "stopped early"
    resumed = train(tmp_path, *arguments, f"train.steps={last['step'] + 2}", task=TASK)
    assert resumed.code == 0, resumed.output
    new = [record for record in resumed.lines("steps.jsonl") if record["step"] > last["step"]]
    assert [record["step"] for record in new] == [last["step"] + 1, last["step"] + 2]
    assert abs(new[0]["loss"] - last["loss"]) < 0.5
    assert new[0]["tokens"] > last["tokens"]
    assert new[0]["checkpoint_step"] == last["step"]


def words_folder(words: tuple[str, ...]) -> Path:
    """Return the folder of the data."""
    return Path(next(word for word in words if word.startswith("data.files=")).partition("=")[2]).parent


def test_two_ranks_and_shards_give_the_losses_of_one_rank(words: tuple[str, ...], python: str, tmp_path: Path) -> None:
    """DDP and FSDP2; a run that was resumed in between; the export of shards is whole."""
    runs = {}
    for name, ranks, more in (("one", 1, ()), ("ddp", 2, ()), ("fsdp", 2, ("parallel.strategy=fsdp",))):
        (tmp_path / name).mkdir()
        arguments = (*words, *more, "optimizer.min_lr_ratio=1.0", f"checkpoint.export={tmp_path / name / 'export'}")
        assert finished(train(tmp_path / name, *arguments, "train.steps=2", ranks=ranks, task=TASK))
        runs[name] = train(tmp_path / name, *arguments, "train.steps=4", ranks=ranks, task=TASK)
        assert finished(runs[name])
    for name in ("ddp", "fsdp"):
        assert runs[name].losses == pytest.approx(runs["one"].losses, abs=1e-4)
        assert [record["tokens"] for record in runs[name].lines("steps.jsonl")] == [
            record["tokens"] for record in runs["one"].lines("steps.jsonl")
        ]
        same = tool(python, "use_model.py", "compare", str(tmp_path / name / "export"), str(tmp_path / "one" / "export"))
        assert same["difference"] < 1e-3
    assert "THE CPU SHIM FOR TESTS IS ON" in runs["fsdp"].output


def finished(run: Trained) -> bool:
    """Check the exit code; the message is the output."""
    assert run.code == 0, run.output
    return True


def test_a_wrong_line_of_the_data_is_an_error_with_its_number(words: tuple[str, ...], tmp_path: Path) -> None:
    """Exit code 66 is that of the native trainer."""
    write(tmp_path / "wrong.jsonl", [{"prompt": "1+1=", "completion": "2"}, {"prompt": "1+1="}])
    run = train(tmp_path, *words, f"data.files={tmp_path / 'wrong.jsonl'}", task=TASK)

    assert run.code == 66, run.output
    assert "wrong.jsonl:2: unknown form" in run.output


def test_the_parsers_accept_every_recipe_and_refuse_wrong_names(python: str, tmp_path: Path) -> None:
    """What the launcher renders is right, and the parsers are the authority."""
    files = ("checkpoint.start_from=model", "data.files=train.jsonl")
    jobs = {name: job(tmp_path, "--config", name, *files, ranks=8) for name in recipes.NAMES}
    jobs["sharded"] = job(tmp_path, "backend=trl", *files, "parallel.strategy=fsdp", "compute.recompute=full")
    assert errors_of_parser(python, "trl", [{"name": name, "job": found} for name, found in jobs.items()]) == {}
    wrong = json.loads(json.dumps(jobs["lora-mistral-7b"]))
    wrong["lora"]["rank"] = 4
    other = json.loads(json.dumps(jobs["sharded"]))
    other["trainer"]["lr_scheduler_type"] = "cosin"
    errors = errors_of_parser(python, "trl", [{"name": "name", "job": wrong}, {"name": "value", "job": other}])
    assert "rank" in errors["name"]
    assert "cosin" in errors["value"]


def test_the_key_table_equals_the_parsers(python: str) -> None:
    """The table is generated: workloads/backends/trl/write_keys.py."""
    command = [python, "-W", "ignore", str(PROGRAMS / "write_keys.py")]
    written = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout
    table = ROOT / "primus_bootstrap" / "launch" / "data" / "backends" / "trl-1.16.0.json"

    assert json.loads(written) == json.loads(table.read_text())
