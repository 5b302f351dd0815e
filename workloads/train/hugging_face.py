"""Read and write weights in the format of Hugging Face: config.json, and safetensors files with an index.

Families: Llama (also Mistral) and Mixtral, whose layers are those of model.py. Every rank reads only its own part of each matrix.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from workloads.common.errors import SettingsError, StorageError
from workloads.common.files import replace_text, sync_folder
from workloads.train.lora import is_added, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from workloads.train.settings import ModelSettings, Settings

_INDEX, _CONFIG, _SINGLE = "model.safetensors.index.json", "config.json", "model.safetensors"
_FAMILIES = ("llama", "mistral", "mixtral")
_SHARD_BYTES = 5 * 10**9
# Marks the folders that an export may replace.
_WRITER = "primus trainer"
# Names inside a block: ours, Hugging Face's.
_BLOCK = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn.gate.weight": "mlp.gate_proj.weight",
    "ffn.up.weight": "mlp.up_proj.weight",
    "ffn.down.weight": "mlp.down_proj.weight",
    "ffn.router.weight": "block_sparse_moe.gate.weight",
}
# Our tensors of all experts, and the name of one expert's matrix, which is the transpose.
_EXPERTS = {"ffn.gate_EDF": "w1", "ffn.up_EDF": "w3", "ffn.down_EFD": "w2"}
_ENDS = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


class Part(NamedTuple):
    """A tensor of Hugging Face and where it is in ours: the whole, or one expert, transposed."""

    name: str
    expert: int | None = None


def is_hugging_face(path: Path) -> bool:
    """Return whether a folder has weights in this format."""
    return (path / _CONFIG).is_file() and ((path / _INDEX).is_file() or (path / _SINGLE).is_file())


def parts(name: str, model: ModelSettings) -> tuple[Part, ...]:
    """Return the tensors of Hugging Face that make up one of ours.

    Raises:
        SettingsError: The tensor has no counterpart.
    """
    if name in _ENDS:
        return (Part(_ENDS[name]),)
    _, layer, inner = name.split(".", 2)
    prefix = f"model.layers.{layer}."
    if inner in _EXPERTS:
        matrix = _EXPERTS[inner]
        return tuple(Part(f"{prefix}block_sparse_moe.experts.{expert}.{matrix}.weight", expert) for expert in range(model.experts))
    if inner in _BLOCK:
        return (Part(prefix + _BLOCK[inner]),)
    raise SettingsError(f"{name} has no counterpart in weights of Hugging Face", fix="use a checkpoint of this trainer instead")


def check_config(folder: Path, model: ModelSettings) -> None:
    """Check that the weights are of the model of the settings.

    Raises:
        SettingsError: They are not; the fix has the settings of the weights.
        StorageError: config.json cannot be read.
    """
    try:
        config = json.loads((folder / _CONFIG).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StorageError(f"{folder / _CONFIG}: cannot be read: {error}", fix="copy the whole folder of the model again") from error
    if config.get("model_type") not in _FAMILIES:
        fix = f"use a model of one of the families {', '.join(_FAMILIES)}"
        raise SettingsError(f"{folder}: models of the type {config.get('model_type')} have other layers", fix=fix)
    expected = settings_of(config)
    wrong = [f"{name}={value}" for name, value in expected.items() if getattr(model, name) != value]
    unlike = [name for name in ("attention_bias", "mlp_bias") if config.get(name)]
    if unlike:
        raise SettingsError(f"{folder}: {', '.join(unlike)} is set, and this model has no biases", fix="use a model without biases")
    if wrong:
        fix = "pass " + " ".join(f"model.{text}" for text in wrong)
        raise SettingsError(f"{folder} has weights of another model than the settings describe", fix=fix)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config.json, by their names in `model`."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise SettingsError(f"rotary positions of the type {kind} are not supported", fix="use a model with the type default or llama3")
    found = {
        "vocabulary": config["vocab_size"],
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "kv_heads": config.get("num_key_value_heads") or config["num_attention_heads"],
        "ffn_width": config["intermediate_size"],
        "rope_theta": float(rope.get("rope_theta") or config.get("rope_theta", 10000.0)),
        "norm_eps": config["rms_norm_eps"],
        "experts": config.get("num_local_experts") or 0,
    }
    if found["experts"]:
        found["experts_per_token"] = config["num_experts_per_tok"]
    scaled = kind == "llama3"
    found["rope_factor"] = float(rope["factor"]) if scaled else 1.0
    if scaled:
        names = {"rope_low_frequency": "low_freq_factor", "rope_high_frequency": "high_freq_factor"}
        found.update({ours: float(rope[theirs]) for ours, theirs in names.items()})
        found["rope_trained_length"] = int(rope["original_max_position_embeddings"])
    return found


def config_of(model: ModelSettings) -> dict[str, Any]:
    """Return the config.json of a model."""
    config: dict[str, Any] = {
        "architectures": ["MixtralForCausalLM" if model.experts else "LlamaForCausalLM"],
        "model_type": "mixtral" if model.experts else "llama",
        "vocab_size": model.vocabulary,
        "num_hidden_layers": model.layers,
        "hidden_size": model.width,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "intermediate_size": model.ffn_width,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    if model.experts:
        config.update({"num_local_experts": model.experts, "num_experts_per_tok": model.experts_per_token})
    if model.rope_factor != 1.0:
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": model.rope_factor,
            "low_freq_factor": model.rope_low_frequency,
            "high_freq_factor": model.rope_high_frequency,
            "original_max_position_embeddings": model.rope_trained_length,
        }
    return config


def load_weights(folder: Path, model: nn.Module, settings: ModelSettings) -> None:
    """Copy the weights of a folder into the model; each rank reads its own part of every tensor.

    Raises:
        SettingsError: The weights are of another model.
        StorageError: A file or a tensor is missing or damaged.
    """
    check_config(folder, settings)
    with _Reader(folder) as reader, torch.no_grad():
        for name, tensor in _state(model).items():
            for part in () if is_added(name) else parts(name, settings):
                _copy(reader, part, tensor)


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by their names without the wrappers of DDP and compile; they share memory with the model."""
    return {name: value for name, value in get_model_state_dict(model).items() if isinstance(value, torch.Tensor)}


def _copy(reader: _Reader, part: Part, tensor: Tensor) -> None:
    """Copy one tensor of Hugging Face into this rank's part of ours."""
    local, window = _local(tensor)
    if part.expert is None:
        local.copy_(reader.read(part.name, tuple(tensor.shape), window))
        return
    first, stop = window[0]
    if first <= part.expert < stop:
        matrix = reader.read(part.name, (tensor.shape[2], tensor.shape[1]), (window[2], window[1]))
        local[part.expert - first].copy_(matrix.T)


def _local(tensor: Tensor) -> tuple[Tensor, tuple[tuple[int, int], ...]]:
    """Return this rank's part of a tensor and its range in each dimension."""
    if not isinstance(tensor, DTensor):
        return tensor, tuple((0, size) for size in tensor.shape)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), tuple((start, start + size) for start, size in zip(offset, shape, strict=True))


class _Reader:
    """Reads parts of the tensors of a folder. The output's weights are the embedding's if the files have none."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open  # noqa: PLC0415 - only runs that read or write these files need the package

        self._open: Callable[..., Any] = safe_open
        self._folder, self._files = folder, _files_of(folder)
        self._opened: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for file in self._opened.values():
            file.__exit__(None, None, None)

    def read(self, name: str, shape: tuple[int, ...], window: tuple[tuple[int, int], ...]) -> Tensor:
        """Return a window of a tensor, which must have `shape`."""
        tied = _ENDS["embedding.weight"] if name == _ENDS["output.weight"] else name
        name = name if name in self._files or tied not in self._files else tied
        try:
            found = self._file(self._files[name]).get_slice(name)
        except (KeyError, OSError) as error:
            raise StorageError(f"{self._folder}: the tensor {name} cannot be read: {error}", fix="copy the folder again") from error
        if tuple(found.get_shape()) != shape:
            what = f"{self._folder}: {name} has the shape {tuple(found.get_shape())}, expected {shape}"
            raise StorageError(what, fix="compare config.json with the model that was saved, and copy the folder again")
        part: Tensor = found[tuple(slice(start, stop) for start, stop in window)]
        return part

    def _file(self, name: str) -> Any:
        if name not in self._opened:
            try:
                self._opened[name] = self._open(self._folder / name, framework="pt").__enter__()
            except Exception as error:  # safetensors raises errors of its own, which are no OSError
                raise StorageError(f"{self._folder / name}: cannot be read: {error}", fix="copy the file again") from error
        return self._opened[name]


def _files_of(folder: Path) -> dict[str, str]:
    """Return the file of each tensor."""
    if (folder / _INDEX).is_file():
        try:
            return dict(json.loads((folder / _INDEX).read_text("utf-8"))["weight_map"])
        except (OSError, ValueError, KeyError) as error:
            raise StorageError(f"{folder / _INDEX}: cannot be read: {error}", fix="copy the folder again") from error
    from safetensors import safe_open  # noqa: PLC0415 - see _Reader

    try:
        with safe_open(folder / _SINGLE, framework="pt") as file:
            return dict.fromkeys(file.keys(), _SINGLE)
    except Exception as error:
        raise StorageError(f"{folder / _SINGLE}: cannot be read: {error}", fix="copy the file again") from error


def require_replaceable(folder: Path) -> None:
    """Check that an export would overwrite nothing but an earlier export.

    Raises:
        SettingsError: The folder has other content.
    """
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return
        written_by = json.loads((folder / _INDEX).read_text("utf-8"))["metadata"].get("written_by")
    except (OSError, ValueError, KeyError, AttributeError):
        written_by = None
    if written_by != _WRITER:
        raise SettingsError(f"checkpoint.export: {folder} exists, and this trainer did not write it", fix="give a new folder")


def save_weights(folder: Path, model: nn.Module, settings: Settings, *, is_first: bool) -> None:
    """Write the weights in bf16, additions of LoRA included. All ranks call it; the first one writes.

    The folder gets its name when it is complete.

    Raises:
        StorageError: The folder cannot be written.
    """
    state = _state(model)
    writer: _Writer | None = None
    problem: OSError | None = None
    try:
        writer = _Writer(folder) if is_first else None
    except OSError as error:
        problem = error
    scale = settings.lora.alpha / settings.lora.rank if settings.lora.rank else 0.0
    for name in filter(lambda name: not is_added(name), state):
        whole = merged(name, state, scale)
        if writer is None or problem:
            continue  # all ranks gather every tensor
        try:
            for part in parts(name, settings.model):
                value = whole if part.expert is None else whole[part.expert].T
                writer.add(part.name, value.detach().to("cpu", torch.bfloat16).contiguous())
        except OSError as error:
            problem = error
    try:
        if writer and not problem:
            writer.close(config_of(settings.model))
    except OSError as error:
        problem = error
    if problem:
        raise StorageError(f"{folder}: the weights cannot be written: {problem}", fix="free space or repair the storage, then resume")


class _Writer:
    """Writes tensors into files of at most 5 GB, in a folder that gets its name at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._partial = folder, folder.with_name(folder.name + ".partial")
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(parents=True)
        self._waiting: dict[str, Tensor] = {}
        self._shards: list[tuple[str, ...]] = []
        self._bytes = self._total = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """Add a tensor."""
        size = tensor.numel() * tensor.element_size()
        if self._waiting and self._bytes + size > _SHARD_BYTES:
            self._flush()
        self._waiting[name] = tensor
        self._bytes, self._total = self._bytes + size, self._total + size

    def _flush(self) -> None:
        from safetensors import SafetensorError  # noqa: PLC0415 - see _Reader
        from safetensors.torch import save_file  # noqa: PLC0415 - see _Reader

        path = self._partial / f"shard-{len(self._shards)}"
        try:
            save_file(self._waiting, path, metadata={"format": "pt"})
        except SafetensorError as error:  # such as a full disk
            raise OSError(str(error)) from error
        with path.open("rb") as file:
            os.fsync(file.fileno())
        self._shards.append(tuple(self._waiting))
        self._waiting, self._bytes = {}, 0

    def close(self, config: Mapping[str, Any]) -> None:
        """Write the last file, the index and config.json, and replace the folder."""
        self._flush()
        names = dict(self._names())
        for number, name in names.items():
            (self._partial / f"shard-{number}").rename(self._partial / name)
        weights = {tensor: names[number] for number, shard in enumerate(self._shards) for tensor in shard}
        index = {"metadata": {"total_size": self._total, "written_by": _WRITER}, "weight_map": weights}
        replace_text(self._partial / _INDEX, json.dumps(index, indent=1) + "\n")
        replace_text(self._partial / _CONFIG, json.dumps(config, indent=1) + "\n")
        if self._folder.exists():  # an earlier export, or an empty folder: see require_replaceable
            shutil.rmtree(self._folder)
        self._partial.rename(self._folder)
        sync_folder(self._folder.parent)

    def _names(self) -> Iterator[tuple[int, str]]:
        count = len(self._shards)
        for number in range(count):
            yield number, f"model-{number + 1:05d}-of-{count:05d}.safetensors"
