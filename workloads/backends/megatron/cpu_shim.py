"""FOR TESTS ONLY: run Megatron-LM, which requires CUDA, on a CPU with gloo.

Tensors that ask for CUDA are created on the CPU, and the functions of torch.cuda do nothing. The speed and the memory of such a run mean
nothing. Tests switch it on with PRIMUS_TEST_CPU_SHIM=1; every start prints a warning.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

VARIABLE = "PRIMUS_TEST_CPU_SHIM"
# The settings without which Megatron-LM does not run on a CPU.
ARGUMENTS = (
    "--transformer-impl", "local", "--attention-backend", "unfused", "--distributed-backend", "gloo", "--no-persist-layer-norm",
    "--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion", "--no-bias-swiglu-fusion", "--no-bias-dropout-fusion",
    "--no-bias-gelu-fusion", "--no-rope-fusion", "--use-cpu-initialization", "--num-workers", "0",
)  # fmt: skip
_NO_SEQUENCE_PARALLEL = "--sequence-parallel"
_WARNING = (
    "WARNING: THE CPU SHIM FOR TESTS IS ON (PRIMUS_TEST_CPU_SHIM): Megatron-LM runs on the CPU. The speed and the memory of this run mean"
    " nothing. Unset the variable for a real run."
)
_CPU = torch.device("cpu")
_CUDA_TYPES = {torch.float32: "torch.cuda.FloatTensor", torch.float16: "torch.cuda.HalfTensor", torch.bfloat16: "torch.cuda.BFloat16Tensor"}


def wanted() -> bool:
    """Return whether the tests ask for the shim."""
    return os.environ.get(VARIABLE, "") == "1"


def arguments(argv: list[str]) -> list[str]:
    """Return Megatron's arguments with those for the CPU. The local layers do not support sequence parallelism."""
    return [word for word in argv if word != _NO_SEQUENCE_PARALLEL] + list(ARGUMENTS)


def install() -> None:
    """Replace CUDA by the CPU in this process."""
    print(_WARNING, file=sys.stderr, flush=True)
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    importlib.import_module("torch._dynamo")  # it reads the functions of torch.cuda when it is imported
    for name, value in _functions().items():
        for module in (torch.cuda, torch.cuda.random):
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, value)
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, _nothing)
    distributed: Any = torch.distributed
    barrier = distributed.barrier
    distributed.barrier = lambda group=None, async_op=False, **_devices: barrier(group, async_op)
    mode: Any = _CpuMode()
    mode.__enter__()


def adjust() -> None:
    """Replace what Megatron-LM does for tensors on a GPU only. Call it after megatron is imported."""
    dispatcher: Any = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")
    dispatcher.maybe_move_tensor_to_cpu = _on_host
    writer: Any = importlib.import_module("megatron.core.dist_checkpointing.strategies.async_utils").PersistentAsyncCaller
    start = writer._get_process  # noqa: SLF001 - the only place that chooses how the process of the checkpoints starts
    # A forked process has the shim; a new one would ask for CUDA. Unlike a new one, it also has the handler of Megatron-LM for SIGTERM.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    writer._get_process = lambda rank, mp_mode="", *args: start(rank, "fork", *args)  # noqa: ARG005, SLF001 - Megatron's signature


def _on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:  # noqa: ARG001, FBT001, FBT002 - Megatron's signature
    """Return the sizes of an exchange between experts as an array, as Megatron-LM does after a copy from the GPU."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


class _CpuMode(TorchFunctionMode):
    """Creates tensors on the CPU that ask for CUDA, and reports the types of CUDA."""

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch with the CPU instead of CUDA."""
        kwargs = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        if function in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            return _CUDA_TYPES.get(args[0].dtype, function(args[0]))
        return function(*(_on_cpu(value) for value in args), **kwargs)


def _on_cpu(value: Any) -> Any:
    is_cuda = (isinstance(value, str) and value.split(":")[0] == "cuda") or (isinstance(value, torch.device) and value.type == "cuda")
    return _CPU if is_cuda else value


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


class _Stream:
    """A stream or an event: the CPU works in order."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.device = _CPU

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing

    def query(self) -> bool:
        return True

    def record_event(self, _event: object = None) -> _Stream:
        return _Stream()

    def elapsed_time(self, _other: object) -> float:
        return 0.0


def _functions() -> dict[str, Any]:
    properties = SimpleNamespace(major=9, minor=0, total_memory=2**40, multi_processor_count=1, name="CPU")
    memory = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "device_memory_used")
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1024,
        "current_device": lambda: _CPU,
        "get_device_name": lambda _device=None: "CPU",
        "get_device_properties": lambda _device=None: properties,
        "get_device_capability": lambda _device=None: (9, 0),
        "memory_stats": lambda _device=None: {},
        "get_rng_state": lambda **_device: torch.get_rng_state(),
        "set_rng_state": lambda new_state, **_device: torch.set_rng_state(new_state),
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": lambda _seed: None,  # torch.manual_seed calls it
        "default_generators": (torch.default_generator,) * 64,
        "Stream": _Stream,
        "Event": _Stream,
        "current_stream": lambda _device=None: _Stream(),
        "default_stream": lambda _device=None: _Stream(),
        "stream": lambda _stream=None: nullcontext(),
        "device": lambda _device=None: nullcontext(),
        "is_current_stream_capturing": lambda: False,
        **dict.fromkeys(("set_device", "set_stream", "synchronize", "empty_cache", "reset_peak_memory_stats", "_lazy_call"), _nothing),
        **dict.fromkeys(memory, lambda _device=None: 0),
    }
