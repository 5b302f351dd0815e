"""primus_bootstrap.launch.programs: the options of the benchmarks, in the words of this project and of AMD Primus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.builtin_tasks.benchmark import TASK
from primus_bootstrap.launch.programs import benchmarks, declarations, primus_words
from primus_bootstrap.launch.self_exec import programs_in
from primus_bootstrap.launch.tasks import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"


def own(text: str) -> tuple[str, ...]:
    """Return the words of a benchmark that these words become."""
    return benchmarks.own_arguments(WORKLOADS, text.split())


def refused(words: Sequence[str]) -> str:
    """Return the error of these words."""
    with pytest.raises(UsageError) as raised:
        benchmarks.own_arguments(WORKLOADS, words)
    return str(raised.value)


@pytest.mark.parametrize("words", ["collectives --smallest-kib 100 --largest-kib 1", "rccl --min-bytes 1M --max-bytes 1K"])
def test_sizes_in_the_wrong_order_are_an_error(words: str) -> None:
    """The benchmark would measure nothing; a size of 0 is automatic."""
    expected = "benchmark collectives: --largest-kib is less than --smallest-kib\n  fix: raise --largest-kib, or set it to 0"
    assert refused(words.split()) == expected
    assert own("collectives --smallest-kib 100 --largest-kib 0")
    assert own("collectives --smallest-kib 100 --largest-kib 100")


@pytest.mark.parametrize("name", programs_in(WORKLOADS, "bench"))
def test_the_options_of_every_benchmark_can_be_read(name: str) -> None:
    """Without torch, from the source; each has a help with its default."""
    text = benchmarks.help_text(WORKLOADS, [name, "--help"])

    assert text.startswith(f"usage: primus-cli direct -- benchmark {name} [-h]")
    assert "--timeout-s TIMEOUT_S" in text
    assert "%%" not in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("gemm -M 4096 --dtype bf16", "gemm --shapes=4096x4096x4096 --dtypes=bf16"),
        ("gemm -M 8192 -N 1024 -K512", "gemm --shapes=8192x1024x512"),
        ("gemm --M 64 --K=32", "gemm --shapes=64x4096x32"),
        ("gemm --dtype=fp8 --repeats 5", "gemm --dtypes=fp8 --repeats 5"),
        ("gemm --shapes 64x64x64,square --dtypes bf16,fp32", "gemm --shapes 64x64x64,square --dtypes bf16,fp32"),
        ("attention --backend flash --dtype fp16 --mbs-list 4", "attention --backends=flash --batch=4 --dtype fp16"),
        ("attention --backend all", "attention --backends=auto"),
        ("rccl", "collectives --collectives=all_reduce"),
        (
            "rccl --op all_reduce alltoall --min-bytes 1M --max-bytes 2G --warmup 3 --iters 50",
            "collectives --collectives=all_reduce,all_to_all --smallest-kib=1024 --largest-kib=2097152 --warm-up=3 --repeats=50",
        ),
        ("storage --folder /mnt", "storage --folder /mnt"),
    ],
)
def test_words_of_amd_primus_are_converted(words: str, expected: str) -> None:
    """Own words are unchanged, and both can be mixed."""
    assert own(words) == tuple(expected.split())


def test_a_model_becomes_its_products() -> None:
    """Forward, gradient of the weights and gradient of the data of each layer, and of the vocabulary; equal products once."""
    sizes = "--seqlen 128 --mbs 2 --hidden-size 8 --intermediate-size 16 --vocab-size 64"
    name, shapes, dtype = own(f"gemm-dense {sizes} --num-attention-heads 2 --num-key-value-heads 1 --head-dim 4 --dtype fp16")
    model = own("gemm-dense --model llama3.1_8b")[1].partition("=")[2].split(",")

    assert (name, dtype) == ("gemm", "--dtypes=fp16")
    assert shapes.partition("=")[2].split(",") == [
        *("256x16x8", "16x8x256", "256x8x16"),  # queries, keys and values
        *("256x8x8", "8x8x256"),  # the output of attention: forward and gradient of the data have the same sizes
        *("256x32x8", "32x8x256", "256x8x32"),  # gate and up
        "8x16x256",  # down: its other two are among those of queries, keys and values
        *("256x64x8", "64x8x256", "256x8x64"),  # the vocabulary
    ]
    assert model[0] == "8192x6144x4096"
    assert len(model) == len(set(model))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "no such benchmark: (none given)\n  fix: choose from: attention, collectives, gemm, "),
        ("gem", "no such benchmark: gem\n  fix: did you mean gemm?"),
        ("gemm --shape x", "benchmark gemm: --shape: unknown option\n  fix: did you mean --shapes?"),
        ("gemm square", "benchmark gemm: unexpected argument: square\n  fix: `primus-cli direct -- benchmark gemm --help` prints"),
        ("gemm --repeats many", "benchmark gemm: --repeats: invalid "),
        ("gemm --repeats 500", "benchmark gemm: --repeats: 500 is not from 1 to 200"),
        ("gemm --dtypes bf16,bf61", "benchmark gemm: --dtypes: no such value: bf61 (choose from auto, bf16, fp16, fp32, fp8)"),
        ("gemm --device gpu", "benchmark gemm: --device: invalid choice: 'gpu'"),
        ("gemm --repeats", "benchmark gemm: --repeats: expected one argument"),
        ("gemm -M 0", "benchmark gemm: -M/--M: expected one number from 1 on, got 0"),
        ("gemm -M 64 --shapes square", "benchmark gemm: --shapes is given together with an option of AMD Primus"),
        ("gemm --duration 10", "benchmark gemm: --duration of AMD Primus has no counterpart\n  fix: pass --repeats N"),
        ("gemm-dense --model gpt2", "--model gpt2: no such model\n  fix: choose from: llama2_70b"),
        ("attention --backend ck", "benchmark attention: --backend: invalid choice: 'ck'"),
        ("attention --mbs-list 1,2", "benchmark attention: --mbs-list: expected one number from 1 on, got 1,2"),
        ("rccl --op broadcast", "benchmark collectives: --op: invalid choice: 'broadcast'"),
        ("rccl --min-bytes 64", "benchmark collectives: --min-bytes: expected a size from 1K on, such as 128M, got 64"),
        ("rccl --dtype bf16", "benchmark collectives: --dtype of AMD Primus has no counterpart"),
        (
            "gemm-deepseek --model Deepseek_V3",
            "the suite gemm-deepseek of AMD Primus has no counterpart\n  fix: primus-cli direct -- benchmark",
        ),
        ("strided-allgather", "the suite strided-allgather of AMD Primus has no counterpart"),
    ],
)
def test_wrong_words_are_refused(words: str, message: str) -> None:
    """Before anything starts; the error names the benchmark, the option and a fix."""
    assert refused(words.split()).startswith(message)


@pytest.mark.parametrize("fix", primus_words._NO_COUNTERPART.values())
def test_the_fix_for_a_suite_without_counterpart_can_be_typed(fix: str) -> None:
    """It is a command of this project."""
    assert own(fix.partition(" -- benchmark ")[2])


def test_the_task_starts_the_converted_benchmark() -> None:
    """The plan shows the words that the program gets."""
    assert TASK.program is not None
    program = TASK.program(Request(("rccl", "--iters", "9"), "python3", lambda: WORKLOADS))

    assert program.argv == (str(WORKLOADS / "bench" / "collectives.py"),)
    assert program.arguments == ("--collectives=all_reduce", "--repeats=9")


def test_the_help_without_a_name_lists_the_benchmarks() -> None:
    """With what each measures."""
    text = benchmarks.help_text(WORKLOADS, ["--help"])

    assert "\ngemm               Measure matrix multiplication" in text
    assert "options of AMD Primus that are accepted as well:\n-M N, --M N" in benchmarks.help_text(WORKLOADS, ["gemm"])
    assert benchmarks.help_text(WORKLOADS, ["rccl", "-h"]).startswith("usage: primus-cli direct -- benchmark collectives ")


def test_a_benchmark_with_other_declarations_is_not_checked(tmp_path: Path) -> None:
    """A user's own programs may read their options in another way."""
    (tmp_path / "bench").mkdir()
    for name, text in (("mine.py", '"""Measure."""\nimport sys\n'), ("broken.py", "def (\n")):
        (tmp_path / "bench" / name).write_text(text)

    assert benchmarks.own_arguments(tmp_path, ["mine", "--anything"]) == ("mine", "--anything")
    assert benchmarks.own_arguments(tmp_path, ["broken", "x"]) == ("broken", "x")
    assert benchmarks.listing(tmp_path) == f"{'broken':18} \n{'mine':18} Measure.\n"


def test_only_constants_are_read() -> None:
    """Nothing of the source is executed."""
    text = "from os import sep\nA, B = 1, ('x', 'y')\nC = {'k': call(1, 2)}\nD = (*B, f\"{A}: {', '.join(C)}\")\nE = open('f')\nF = sep\n"
    module = declarations.Module(lambda _: text, "m.py")

    assert [module.constant(name) for name in "ABCD"] == [1, ("x", "y"), {"k": None}, ("x", "y", "1: k")]
    for name in "EFG":
        with pytest.raises(declarations.UnreadableError):
            module.constant(name)
