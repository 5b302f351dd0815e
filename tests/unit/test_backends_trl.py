"""primus_bootstrap.launch.backends.trl: a run of post-training becomes the file that the program reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from primus_bootstrap.core.errors import PrimusError
from primus_bootstrap.launch.backends.key_table import read_keys
from primus_bootstrap.launch.backends.trl import recipes
from primus_bootstrap.launch.builtin_tasks.train_posttrain import TASK
from primus_bootstrap.launch.builtin_tasks.train_pretrain import TASK as PRETRAIN
from primus_bootstrap.launch.tasks import Program, Request

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
MODEL = ("checkpoint.start_from=model", "data.files=train.jsonl")
SFT = ("backend=trl", *MODEL)


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    """A model and data in the working folder."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "mine.py").write_text("def score(completions, **columns):\n    return [1.0 for _ in completions]\n")


def request(cwd: Path, *arguments: str, ranks: int = 1) -> Request:
    """Return a request with these arguments."""
    return Request(arguments, "python3", lambda: WORKLOADS, cwd=cwd, run_dir=cwd / "run", ranks=ranks)


def program(cwd: Path, *arguments: str, ranks: int = 1) -> Program:
    """Return the program of these arguments."""
    assert TASK.program is not None
    return TASK.program(request(cwd, *arguments, ranks=ranks))


def job(cwd: Path, *arguments: str, ranks: int = 1) -> dict[str, Any]:
    """Return the content of trl.json."""
    found: dict[str, Any] = json.loads(dict(program(cwd, *arguments, ranks=ranks).files)[str(cwd / "run" / "trl.json")])
    return found


def refused(cwd: Path, *arguments: str, ranks: int = 1) -> PrimusError:
    """Return the error of these arguments."""
    assert TASK.check is not None
    with pytest.raises(PrimusError) as raised:
        TASK.check(request(cwd, *arguments, ranks=ranks))
    return raised.value


def test_sft_is_rendered(tmp_path: Path) -> None:
    """The program reads the file of the job; nothing may be downloaded."""
    found = program(tmp_path, *SFT, "train.global_batch=16", "train.micro_batch=2", "trl.sft.packing=true", ranks=4)
    values = job(tmp_path, *SFT, "train.global_batch=16", "train.micro_batch=2", "trl.sft.packing=true", ranks=4)

    run = tmp_path / "run"
    assert found.argv[0].endswith("workloads/backends/trl/posttrain.py")
    assert found.arguments == ("--run", str(run / "backend.json"), "--", str(run / "trl.json"))
    assert found.environment["HF_HUB_OFFLINE"] == "1"
    trainer = values["trainer"]
    assert (trainer["per_device_train_batch_size"], trainer["gradient_accumulation_steps"]) == (2, 2)
    assert (trainer["max_length"], trainer["learning_rate"], trainer["packing"]) == (1024, 2e-5, True)
    assert trainer["output_dir"] == str(run / "checkpoints")
    assert (values["lora"], values["rewards"], values["model"]) == (None, [], "model")
    facts = json.loads(dict(found.files)[str(run / "backend.json")])
    assert (facts["backend"], facts["version"], facts["devices"], facts["global_batch"]) == ("trl", "1.16.0", 4, 16)


def test_every_rendered_name_is_one_of_the_table(tmp_path: Path) -> None:
    """The table is that of the pinned version; TRL refuses other names."""
    known = read_keys("trl", "1.16.0")
    for method in ("sft", "lora", "grpo"):
        values = job(tmp_path, *SFT, f"method={method}", "rewards=format", "parallel.strategy=fsdp", "data.validation_files=train.jsonl")
        section = "grpo" if method == "grpo" else "sft"
        assert {name for name in values["trainer"] if f"{section}.{name}" not in known} == set()
        assert {name for name in values["lora"] or {} if f"lora.{name}" not in known} == set()


def test_lora_is_rendered(tmp_path: Path) -> None:
    """All linear layers get matrices of rank 16, with a higher learning rate; GRPO can train matrices as well."""
    values = job(tmp_path, *SFT, "method=lora", "trl.lora.lora_dropout=0.1", "lora.merge=true", "checkpoint.export=out")
    assert values["lora"] == {
        "r": 16,
        "lora_alpha": 16.0,
        "target_modules": "all-linear",
        "task_type": "CAUSAL_LM",
        "lora_dropout": 0.1,
    }
    assert (values["trainer"]["learning_rate"], values["merge"], values["export"]) == (2e-4, True, "out")
    own = job(tmp_path, *SFT, "method=grpo", "rewards=format", "trl.lora.r=4", "lora.targets=q_proj,v_proj")
    assert (own["lora"]["r"], own["lora"]["target_modules"]) == (4, ["q_proj", "v_proj"])


def test_grpo_is_rendered(tmp_path: Path) -> None:
    """The length is that of completions; JSON is read in an argument."""
    words = ("method=grpo", "rewards=exact_match,length:20,mine.py:score", "trl.grpo.reward_weights=[1, 0.5, 2]", "train.global_batch=16")
    values = job(tmp_path, *SFT, *words)
    assert values["rewards"] == ["exact_match", "length:20", "mine.py:score"]
    assert (values["trainer"]["max_completion_length"], values["trainer"]["reward_weights"]) == (256, [1, 0.5, 2])
    assert "max_length" not in values["trainer"]
    validation = ("data.validation_files=train.jsonl", "validation.every_steps=5", "trl.grpo.num_generations=4")
    trainer = job(tmp_path, *SFT, *words, *validation)["trainer"]
    assert (trainer["eval_strategy"], trainer["eval_steps"], trainer["per_device_eval_batch_size"]) == ("steps", 5, 4)


def test_fsdp_and_recomputation_are_rendered(tmp_path: Path) -> None:
    """FSDP recomputes by its own setting."""
    sharded = job(tmp_path, *SFT, "parallel.strategy=fsdp", "compute.recompute=full")["trainer"]
    assert (sharded["fsdp"], sharded["gradient_checkpointing"], sharded["fsdp_config"]["activation_checkpointing"]) == (True, False, True)
    plain = job(tmp_path, *SFT, "compute.recompute=full")["trainer"]
    assert (plain["gradient_checkpointing"], "fsdp" in plain) == (True, False)


@pytest.mark.parametrize(
    ("argument", "what", "fix"),
    [
        ("trl.sft.packin=true", "no such setting of trl 1.16.0", "did you mean trl.sft.packing?"),
        ("trl.lora.lora_dropot=0.1", "no such setting of trl 1.16.0", "did you mean trl.lora.lora_dropout?"),
        ("trl.sft.packing=yes", "found 'yes'", "give true or false"),
        ("method=dpo", "found 'dpo'", "choose from: sft, lora, grpo"),
        ("validation.every_step=3", "no such setting", "did you mean validation.every_steps?"),
        ("megatron.use_flash_attn=true", "a setting of megatron, and backend is trl", "remove it, or set backend=megatron"),
        ("parallel.tensor=2", "trl has no such setting", "remove it, or set one of trl's own: trl.NAME"),
        ("trl.sft.max_steps=many", "found 'many'", "give a whole number"),
    ],
)
def test_a_wrong_setting_is_an_error_with_the_nearest_name(argument: str, what: str, fix: str, tmp_path: Path) -> None:
    """Nothing of TRL is installed here."""
    error = refused(tmp_path, *SFT, argument)

    assert (error.what, error.fix) == (f"argument {argument}: {argument.partition('=')[0]}: {what}", fix)


@pytest.mark.parametrize(
    ("arguments", "what", "fix"),
    [
        (("trl.grpo.beta=0.1",), "trl.grpo.beta is not used with method=sft", "remove it, or use one of: trl.sft"),
        (("trl.sft.num_train_epochs=3",), "trl.sft.num_train_epochs is computed from the common settings", "set train.steps"),
        (("method=grpo",), "method=grpo needs a reward", "set rewards to exact_match"),
        (("method=grpo", "rewards=exact_mach"), "rewards: exact_mach: no such reward", "did you mean exact_match?"),
        (("method=grpo", "rewards=length"), "rewards: length: no number of characters", "write length:N"),
        (("method=grpo", "rewards=mine.py:scor"), "rewards: mine.py has no function scor", "did you mean score?"),
        (("method=grpo", "rewards=none.py:score"), "rewards: none.py: cannot be read as Python", "correct the path"),
        (
            ("method=grpo", "rewards=format", "train.global_batch=12"),
            "multiple of the 8 completions per prompt",
            "trl.grpo.num_generations",
        ),
        (("train.global_batch=3",), "train.global_batch=3 is no multiple of train.micro_batch=2 x 1 ranks", "change train.global_batch"),
        (("compute.precision=fp8",), "trl does not train in fp8", "set compute.precision"),
        (("compute.recompute=selective",), "trl recomputes whole layers or nothing", "set compute.recompute"),
        (
            ("parallel.strategy=distributed_optimizer",),
            "trl has no parallel.strategy=distributed_optimizer",
            "set parallel.strategy to ddp",
        ),
        (("data.files=none.jsonl",), "data.files: none.jsonl does not exist", "correct the path"),
        (("checkpoint.start_from=other",), "other/config.json does not exist", "set checkpoint.start_from"),
        (("--print-settings",), "--print-settings is of the native trainer, and backend is trl", "primus-cli --dry-run"),
    ],
)
def test_settings_that_do_not_suit_are_refused(arguments: tuple[str, ...], what: str, fix: str, tmp_path: Path) -> None:
    """The message says what to type."""
    error = refused(tmp_path, *SFT, *arguments)

    assert what in error.what
    assert fix in error.fix


def test_a_batch_that_the_ranks_cannot_share_is_refused(tmp_path: Path) -> None:
    """The number of ranks counts."""
    assert "x 8 ranks" in refused(tmp_path, *SFT, ranks=8).what


def test_each_task_has_its_own_backends(tmp_path: Path) -> None:
    """Without a backend, the native trainer runs."""
    assert refused(tmp_path, "backend=megatron").what == "megatron is no backend of train posttrain"
    assert PRETRAIN.check is not None
    with pytest.raises(PrimusError, match="trl is no backend of train pretrain"):
        PRETRAIN.check(request(tmp_path, "backend=trl"))
    assert program(tmp_path, "--config", "debug-dense").argv[0].endswith("workloads/train/posttrain.py")
    assert program(tmp_path, "backend=native", *MODEL).argv[0].endswith("workloads/train/posttrain.py")
    assert TASK.help is not None
    assert "trl 1.16.0" in TASK.help(request(tmp_path))


@pytest.mark.parametrize("name", recipes.NAMES)
def test_a_recipe_is_accepted_and_names_its_source(name: str, tmp_path: Path) -> None:
    """It chooses the backend; settings of the user replace its values."""
    found = recipes.recipe(name)
    assert "commit " in found.source
    assert found.evidence in ("published", "derived")
    values = job(tmp_path, "--config", name, *MODEL, "optimizer.lr=0.5", ranks=8)
    assert values["method"] == name.partition("-")[0]
    assert values["trainer"]["learning_rate"] == 0.5
    assert values["trainer"]["max_steps"] == found.settings["train"]["steps"]
    assert TASK.check is not None
    assert f"recipe {name}" in TASK.check(request(tmp_path, "--config", name, *MODEL, ranks=8))[0]


def test_every_recipe_file_is_listed(tmp_path: Path) -> None:
    """A misspelt recipe gets the nearest name."""
    folder = WORKLOADS.parent / "primus_bootstrap" / "launch" / "data" / "backends" / "trl-recipes"
    assert sorted(path.stem for path in folder.iterdir()) == list(recipes.NAMES)
    assert refused(tmp_path, *SFT, "--config", "sft-mistral-7").fix == "did you mean sft-mistral-7b?"
