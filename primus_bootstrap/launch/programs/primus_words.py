"""Convert the benchmarks of AMD Primus, such as `gemm -M 4096 --dtype bf16`, to those of this project.

Their options: primus/tools/benchmark/*_args.py and *_bench.py in https://github.com/AMD-AGI/Primus (commit fd1eeabb, 2026-08-22). The help
there writes -M, the parser accepts --M; both are accepted here.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.option_parser import OptionParser

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_KIB = 1024
_UNITS = {"": 1, "K": _KIB, "M": _KIB**2, "G": _KIB**3}
_DTYPES = ("bf16", "fp16", "fp32", "fp8")
_COLLECTIVES = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}
_BACKENDS = {"flash": "flash", "all": "auto"}
_RESULTS = "remove it; results are written to results.jsonl in the run folder (--output DIR before the runtime chooses the folder)"
_SAMPLES = "pass --repeats N: a benchmark takes N samples"
# sequence length, width, width of the feed-forward network, heads, key and value heads, width of a head, vocabulary: MODEL_CONFIGS in
# dense_gemm_bench.py
_MODELS = {
    "llama2_7b": (4096, 4096, 11008, 32, 32, 128, 32000),
    "llama2_70b": (4096, 8192, 28672, 64, 8, 128, 32000),
    "llama3.1_8b": (8192, 4096, 14336, 32, 8, 128, 128256),
    "llama3.1_70b": (8192, 8192, 28672, 64, 8, 128, 128256),
    "llama3.1_405b": (8192, 16384, 53248, 128, 8, 128, 128256),
    "mistral_8x7b": (4096, 4096, 14336, 32, 8, 128, 32000),
    "mistral_8x22b": (4096, 6144, 16384, 48, 8, 128, 32000),
}
# The options that describe such a model, with their defaults: dense_gemm_bench_args.py
_MODEL_OPTIONS = {
    "seqlen": 2048,
    "hidden-size": 4096,
    "intermediate-size": 11008,
    "num-attention-heads": 32,
    "num-key-value-heads": 32,
    "head-dim": 128,
    "vocab-size": 32000,
}


def benchmark_of(suite: str) -> str:
    """Return the benchmark that measures the same as a suite of AMD Primus; other names are unchanged.

    Raises:
        UsageError: None measures the same.
    """
    if suite in _NO_COUNTERPART:
        raise UsageError(f"the suite {suite} of AMD Primus has no counterpart", fix=_NO_COUNTERPART[suite])
    return _SUITES[suite][0] if suite in _SUITES else suite


def absent(benchmark: str) -> Mapping[str, str]:
    """Return the options of AMD Primus that a benchmark does not have, each with what to do instead."""
    return {name: fix for suite, options in _ABSENT.items() if _SUITES[suite][0] == benchmark for name, fix in options.items()}


def own_words(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the name and options of a benchmark in the words of this project; its own words are unchanged.

    Raises:
        UsageError: A word of AMD Primus has no counterpart, or a wrong value.
    """
    suite, *options = arguments
    benchmark = benchmark_of(suite)
    if suite not in _SUITES:
        return (benchmark, *options)
    given, rest = _parser(suite).parse_known_args(options)
    converted = _SUITES[suite][2](given)
    twice = sorted(_names(converted) & _names(rest))
    if twice:
        what = f"benchmark {suite}: {twice[0]} is given together with an option of AMD Primus that sets the same"
        raise UsageError(what, fix=f"remove {twice[0]}, or the other option")
    return (benchmark, *converted, *rest)


def _names(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in words}


def help_text(suite: str) -> str:
    """Return the help of the options that a suite of AMD Primus has in addition; empty for other benchmarks."""
    if suite not in _SUITES:
        return ""
    return f"\noptions of AMD Primus that are accepted as well:\n{_parser(suite).format_options()}"


def _parser(suite: str) -> OptionParser:
    benchmark, options, _ = _SUITES[suite]
    parser = OptionParser(f"primus-cli direct -- benchmark {benchmark}", "", add_help=False)
    for names, settings in options.items():
        parser.add_argument(*names.split(), default=None, **settings)
    return parser


def _gemm(given: argparse.Namespace) -> list[str]:
    sizes = (given.M, given.N, given.K)
    shape = "x".join(str(size or 4096) for size in sizes)  # the default of all three in AMD Primus
    return [*([f"--shapes={shape}"] if any(sizes) else []), *_list("--dtypes", given.dtype)]


def _dense(given: argparse.Namespace) -> list[str]:
    """Return the products of a model: forward, gradient of the weights, gradient of the data."""
    model = _model(given)
    tokens, width, inner, heads, kv_heads, head, vocabulary = model
    tokens *= given.mbs or 1
    layers = ((heads + 2 * kv_heads) * head, width), (width, width), (2 * inner, width), (width, inner), (vocabulary, width)
    shapes = [shape for n, k in layers for shape in ((tokens, n, k), (n, k, tokens), (tokens, k, n))]
    words = dict.fromkeys("x".join(map(str, shape)) for shape in shapes)
    return [f"--shapes={','.join(words)}", f"--dtypes={given.dtype or _DTYPES[0]}"]


def _model(given: argparse.Namespace) -> tuple[int, ...]:
    if given.model is None:
        return tuple(getattr(given, name.replace("-", "_")) or default for name, default in _MODEL_OPTIONS.items())
    if given.model.lower() not in _MODELS:
        raise UsageError(f"--model {given.model}: no such model", fix=f"choose from: {', '.join(sorted(_MODELS))}")
    return _MODELS[given.model.lower()]


def _attention(given: argparse.Namespace) -> list[str]:
    return [*_list("--backends", given.backend and _BACKENDS[given.backend]), *_list("--batch", given.mbs_list)]


def _rccl(given: argparse.Namespace) -> list[str]:
    operations = ",".join(_COLLECTIVES[name] for name in given.op or ("all_reduce",))
    return [
        f"--collectives={operations}",
        *_list("--smallest-kib", given.min_bytes),
        *_list("--largest-kib", given.max_bytes),
        *_list("--warm-up", given.warmup),
        *_list("--repeats", given.iters),
    ]


def _list(name: str, value: object) -> list[str]:
    return [] if value is None else [f"{name}={value}"]


def _kib(text: str) -> int:
    """Return a size such as 128M in KiB."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in "KMG" and text else (text, "")
    size = int(number) * _UNITS[unit] if number.isdecimal() else 0
    if size < _KIB:
        raise argparse.ArgumentTypeError(f"expected a size from 1K on, such as 128M, got {text}")
    return size // _KIB


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected one number from 1 on, got {text}")
    return int(text)


_Options = dict[str, dict[str, Any]]
_SIZE: dict[str, Any] = {"type": _count, "metavar": "N"}
# The suites of AMD Primus: benchmark, options, and the function that converts them.
_SUITES: dict[str, tuple[str, _Options, Callable[[argparse.Namespace], list[str]]]] = {
    "gemm": (
        "gemm",
        {
            "-M --M": {**_SIZE, "help": "rows of the result; with one of M, N and K, the others default to 4096"},
            "-N --N": {**_SIZE, "help": "columns of the result"},
            "-K --K": {**_SIZE, "help": "length of the sums"},
            "--dtype": {"choices": _DTYPES, "help": "like --dtypes, with one type"},
        },
        _gemm,
    ),
    "gemm-dense": (
        "gemm",
        {
            "--model": {"metavar": "MODEL", "help": f"one of {', '.join(_MODELS)}"},
            **{f"--{name}": {**_SIZE, "help": f"without --model (default: {number})"} for name, number in _MODEL_OPTIONS.items()},
            "--mbs": {**_SIZE, "help": "sequences of a product (default: 1)"},
            "--dtype": {"choices": _DTYPES, "help": "like --dtypes, with one type (default: bf16)"},
        },
        _dense,
    ),
    "attention": (
        "attention",
        {
            "--backend": {"choices": tuple(_BACKENDS), "help": "like --backends; all: each one that the device supports"},
            "--mbs-list": {**_SIZE, "help": "like --batch, with one size"},
        },
        _attention,
    ),
    "rccl": (
        "collectives",
        {
            "--op": {"nargs": "+", "choices": tuple(_COLLECTIVES), "help": "like --collectives (default: all_reduce)"},
            "--min-bytes": {"type": _kib, "metavar": "SIZE", "help": "like --smallest-kib, for example 1K or 1M"},
            "--max-bytes": {"type": _kib, "metavar": "SIZE", "help": "like --largest-kib, for example 128M"},
            "--warmup": {**_SIZE, "help": "like --warm-up"},
            "--iters": {**_SIZE, "help": "like --repeats"},
        },
        _rccl,
    ),
}
_NO_COUNTERPART = {
    "gemm-deepseek": "primus-cli direct -- benchmark gemm --shapes deepseek-v3-expert",
    "strided-allgather": "primus-cli direct -- benchmark collectives --collectives all_gather",
}
_ABSENT = {
    "gemm": {
        "--duration": _SAMPLES,
        "--output-file": _RESULTS,
        "--trans_a": "remove it; operands are not transposed",
        "--trans_b": "remove it; operands are not transposed",
    },
    "attention": {
        "--shapes-json-path": "pass --heads, --kv-heads, --length and --head-width",
        "--report-csv-path": _RESULTS,
        "--models": "pass --heads, --kv-heads, --length and --head-width of the model",
        "--skip-models": "remove it",
    },
    "rccl": {
        "--sizes": "pass --min-bytes and --max-bytes; sizes grow by --factor",
        "--num-sizes": "pass --factor, the ratio of consecutive sizes",
        "--scale": "pass --factor, the ratio of consecutive sizes",
        "--repeat": "pass --repeats",
        "--dtype": "remove it; buffers are fp32, and bandwidth is measured in bytes",
        "--check": "remove it; every result is checked",
        **dict.fromkeys(("--output-file", "--append", "--aggregate-repeat", "--per-rank", "--per-rank-file", "--cluster"), _RESULTS),
        **dict.fromkeys(("--per-iter-trace", "--trace-file", "--trace-limit", "--trace-ops", "--trace-sizes"), _RESULTS),
    },
}
