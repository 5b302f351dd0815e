"""Translate an experiment of AMD Primus into settings of the same backend: common settings, and the backend's own below its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.backends import key_table
from primus_bootstrap.launch.backends.registry import backends
from primus_bootstrap.launch.primus_config import conversion
from primus_bootstrap.launch.primus_config.conversion import Conversion, Dropped, Kept, Reader
from primus_bootstrap.launch.recipes import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from primus_bootstrap.launch.backends.contract import Key
    from primus_bootstrap.launch.primus_config.experiment import Experiment, Layer

_GPUS_OF_A_NODE = 8  # what -1 of an axis within a node stands for in its examples
_SHAPE = ("model.layers", "model.width", "model.heads")
_NAMES_OF_MODELS = ("torchtitan.model.name", "torchtitan.model.flavor", "maxtext.model_name")


def convert_to_backend(experiment: Experiment) -> Conversion:
    """Translate an experiment into settings of its framework as a backend.

    Raises:
        PlanError: The framework is no backend here, or nothing describes the model.
    """
    data = conversion.data_file("primus_backends.yml")
    if experiment.framework not in data["frameworks"]:
        raise PlanError(f"the framework {experiment.framework} is no backend here", fix=_other_way(experiment, data["frameworks"]))
    _check_type(experiment)
    rules = data["frameworks"][experiment.framework]
    reasons = tuple((entry["match"], entry["why"]) for entry in rules["reasons"])
    own = _Own(experiment.framework, reasons, _known(experiment.framework), rules.get("left_out_of_presets", ""))
    reader = Reader(rules["settings"], own)
    for layer in experiment.presets:
        reader.read(layer.origin, own.of_preset(layer, rules["settings"]))
    reader.read(experiment.overrides.origin, experiment.overrides.values)
    reader.add("framework", "backend", experiment.framework, "file")
    _leave_out(reader, rules.get("only_with", {}))
    notes = [*_FINISH[experiment.framework](reader), *conversion.add_lr_ratio(reader), *conversion.add_batch(reader)]
    assumed = {name: value for name, value in rules["assumed"].items() if name in backends()[experiment.framework].supported}
    notes += [*_add_model(experiment, reader, data["models"]), *conversion.add_assumed(assumed, reader)]
    notes += [*own.notes(), *conversion.notes_about(experiment, reader)]
    kept = tuple(sorted(reader.kept.values(), key=lambda item: ("." in item.setting, item.setting)))
    return Conversion(experiment.task, kept, tuple(reader.unchanged), tuple(reader.dropped.values()), tuple(notes))


def _check_type(experiment: Experiment) -> None:
    """Check that the model is a decoder-only transformer.

    Raises:
        PlanError: It is another kind, such as a diffusion model.
    """
    layers = (*experiment.presets, experiment.overrides)
    kind = next((layer.values["model_type"] for layer in reversed(layers) if layer.values.get("model_type")), "gpt")
    if experiment.framework == "megatron" and kind != "gpt":
        what = f"the model {experiment.model} is of the type {kind}; megatron trains decoder-only transformers (gpt) here"
        raise PlanError(what, fix="run it with AMD Primus")


def _leave_out(reader: Reader, only_with: Mapping[str, str]) -> None:
    """Leave out settings that have no effect without another one."""
    for needed, pattern in only_with.items():
        if not reader.values.get(needed):
            for setting in [name for name in reader.kept if re.fullmatch(pattern, name)]:
                del reader.kept[setting]


def _other_way(experiment: Experiment, frameworks: Mapping[str, Any]) -> str:
    if experiment.framework in conversion.data_file("primus_settings.yml"):
        return "convert it for the native trainer: primus-cli config convert FILE --to native"
    return f"convert a file with one of the frameworks {', '.join(frameworks)}, or run it with AMD Primus"


def _known(backend: str) -> Mapping[str, Key] | None:
    """Return the settings of the backend's pinned version; None if there is no table of them."""
    found = backends().get(backend)
    return found.known_keys() if found else None


@dataclass(frozen=True)
class _Own:
    """Decides about settings without a rule: the backend has them, or they have no counterpart."""

    backend: str
    reasons: tuple[tuple[str, str], ...]
    known: Mapping[str, Key] | None
    left_out: str = ""  # of presets

    def __call__(self, origin: str, name: str, value: Any) -> Kept | Dropped:
        reason = next((why for pattern, why in self.reasons if re.fullmatch(pattern, name)), "")
        if reason:
            return Dropped(name, value, reason)
        if self.known is not None:
            if name not in self.known:
                return Dropped(name, value, f"the pinned version of {self.backend} has no such setting")
            value = [value] if self.known[name].kind == "list" and not isinstance(value, list) else value
            what, fix = key_table.problem(self.known[name], value)
            if what:
                return Dropped(name, value, f"{self.backend} does not accept it: {fix}")
        return Kept(name, f"{self.backend}.{name}", value, origin)

    def of_preset(self, layer: Layer, rules: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a preset that have a rule, or that change the backend's default."""
        return {name: value for name, value in layer.values.items() if name in rules or self._changes(name, value)}

    def _changes(self, name: str, value: Any) -> bool:
        if self.known is None or name not in self.known or value is None or re.fullmatch(self.left_out, name):
            return False
        return value != self.known[name].default and isinstance(self("", name, value), Kept)

    def notes(self) -> Iterator[str]:
        """Return what is not certain about the backend's settings."""
        if self.known is None:
            yield f"the names of {self.backend}'s own settings were not checked: its table of settings is not part of this release"


def _finish_megatron(reader: Reader) -> Iterator[str]:
    """Add what follows from several settings of Megatron-LM."""
    conversion.add_fsdp(reader)
    values = reader.values
    if values.get("fp8"):
        is_block = values.get("fp8_recipe") == "mxfp8"
        reader.kept["compute.precision"] = Kept("fp8", "compute.precision", "mxfp8" if is_block else "fp8", "computed")
        if values["fp8"] != "hybrid" and not is_block:
            reader.add("fp8", "megatron.fp8", values["fp8"], "computed")
        if is_block:
            reader.kept.pop("megatron.fp8_recipe", None)
    if reader.value("compute.recompute") == "full" and values.get("recompute_num_layers") == 0:
        del reader.kept["compute.recompute"]  # the first 0 layers: none
    if reader.value("compute.recompute") is None:
        reader.kept.pop("compute.recompute_layers", None)
    layout, stages = values.get("pipeline_model_parallel_layout"), reader.value("parallel.pipeline")
    if isinstance(layout, str) and isinstance(stages, int):
        reader.kept.pop("parallel.virtual_pipeline", None)
        reader.add("pipeline_model_parallel_layout", "parallel.virtual_pipeline", (layout.count("|") + 1) // stages, "computed")
    if reader.value("model.kv_heads") is None and reader.value("model.heads") is not None:
        reader.add("num_attention_heads", "model.kv_heads", reader.value("model.heads"), "model")
    yield from ()


def _without_checkpoints(reader: Reader, name: str) -> None:
    """Write no checkpoint if the file switches them off."""
    if reader.values.get(name) is False:
        reader.kept["checkpoint.every_steps"] = Kept(name, "checkpoint.every_steps", 0, "computed")


def _finish_torchtitan(reader: Reader) -> Iterator[str]:
    """Add the precision, which TorchTitan sets by a converter of the model."""
    _without_checkpoints(reader, "checkpoint.enable")
    if "quantize.linear.float8" in (reader.values.get("model.converters") or ()):
        reader.kept["compute.precision"] = Kept("model.converters", "compute.precision", "fp8", "computed")
    yield from ()


def _finish_maxtext(reader: Reader) -> Iterator[str]:
    """Add precision and layout, which MaxText sets as quantization and as axes; -1 is the rest of a node."""
    values = reader.values
    _without_checkpoints(reader, "enable_checkpointing")
    if "fp8" in str(values.get("quantization") or ""):
        reader.kept["compute.precision"] = Kept("quantization", "compute.precision", "fp8", "computed")
    if not values.get("quantization"):
        reader.kept.pop("maxtext.quantization", None)
    experts = values.get("ici_expert_parallelism")
    reader.kept.pop("maxtext.ici_expert_parallelism", None)
    if experts == -1:
        reader.add("ici_expert_parallelism", "parallel.expert", _GPUS_OF_A_NODE, "computed")
        yield f"parallel.expert is {_GPUS_OF_A_NODE}: ici_expert_parallelism is -1, all GPUs of a node"
    elif isinstance(experts, int):
        reader.add("ici_expert_parallelism", "parallel.expert", experts, "computed")
    if values.get("ici_fsdp_parallelism") == 1 and values.get("dcn_fsdp_parallelism", 1) == 1:
        reader.add("ici_fsdp_parallelism", "parallel.strategy", "ddp", "computed")
    policy = values.get("remat_policy")
    if isinstance(policy, str):
        reader.add("remat_policy", "compute.recompute", "full" if policy == "full" else "selective", "computed")


_FINISH = {"megatron": _finish_megatron, "torchtitan": _finish_torchtitan, "maxtext": _finish_maxtext}


def _add_model(experiment: Experiment, reader: Reader, names: Mapping[str, str]) -> Iterator[str]:
    """Name the model, unless the file and its presets describe the whole shape.

    Raises:
        PlanError: Megatron-LM needs a shape, and there is none.
    """
    name = names.get(experiment.model.lower().removesuffix("-fp8"), "")
    if all(reader.value(setting) is not None for setting in _SHAPE):
        if reader.value("model.vocabulary") is None and name:
            reader.add(f"model {experiment.model}", "model.vocabulary", catalogue.model(name).vocabulary, "model")
        if reader.value("model.vocabulary") is None:
            yield "the presets do not have the size of the vocabulary: set model.vocabulary to that of the tokenizer"
        return
    if not name and experiment.framework == "megatron":
        what = f"the shape of the model {experiment.model or '(none given)'} is not known"
        raise PlanError(what, fix="put the file into a checkout of AMD Primus, which has the model's preset, and convert it there")
    if not name:
        yield f"the model {experiment.model} has no recipe here; the backend takes it by its own name"
        return
    _name_model(experiment, reader, name)


def _name_model(experiment: Experiment, reader: Reader, name: str) -> None:
    """Set `model`, and leave a changed part of the shape to the backend, which reads it after the model."""
    changed = {setting: item for setting, item in reader.kept.items() if setting.startswith("model.")}
    for setting, item in changed.items():
        del reader.kept[setting]
        own = f"{experiment.framework}.{item.name}"
        if item.origin == experiment.overrides.origin:
            reader.add(item.name, own, item.value, item.origin)
    for setting in _NAMES_OF_MODELS:
        reader.kept.pop(setting, None)
    reader.add(f"model {experiment.model}", "model", name, "model")
