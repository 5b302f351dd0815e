"""Translate an experiment of AMD Primus into settings of the trainers: what is kept, and what has no counterpart and why."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from primus_bootstrap.launch.primus_config.experiment import Experiment

# AMD Primus multiplies the batch of a GPU by the number of GPUs; its examples are for one node of eight.
_EXAMPLE_RANKS = 8
_EXPECTED = ("train.steps", "train.sequence_length", "train.global_batch", "train.micro_batch", "optimizer.lr")


@dataclass(frozen=True)
class Kept:
    """A setting with a counterpart. `name` is the one of AMD Primus."""

    name: str
    setting: str
    value: Any
    origin: str


@dataclass(frozen=True)
class Dropped:
    """A setting without counterpart."""

    name: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Conversion:
    """The result. `unchanged` are settings with which the trainers here do the same already."""

    task: str
    kept: tuple[Kept, ...]
    unchanged: tuple[str, ...]
    dropped: tuple[Dropped, ...]
    notes: tuple[str, ...]

    def settings(self) -> dict[str, Any]:
        """Return the settings, nested by section."""
        found: dict[str, Any] = {}
        for item in self.kept:
            section, dot, name = item.setting.partition(".")
            if dot:
                found.setdefault(section, {})[name] = item.value
            else:
                found[section] = item.value
        return found


@cache
def data_file(name: str) -> Any:
    """Return the content of a file of launch/data."""
    return yaml.safe_load(pkgutil.get_data("primus_bootstrap.launch", f"data/{name}") or b"")


def convert(experiment: Experiment) -> Conversion:
    """Translate an experiment into settings of the native trainers.

    Raises:
        PlanError: Its framework trains other models than the trainers here, or its model has no shape here.
    """
    frameworks = data_file("primus_settings.yml")
    if experiment.framework not in frameworks:
        fix = f"convert a file with one of the frameworks {', '.join(frameworks)}, or run it with AMD Primus"
        raise PlanError(f"the framework {experiment.framework} has no counterpart: the trainers here train Llama-style models", fix=fix)
    rules = frameworks[experiment.framework]
    reader = Reader(rules["settings"])
    for layer in experiment.presets:
        reader.read(layer.origin, {name: value for name, value in layer.values.items() if name in rules["settings"]})
    reader.read(experiment.overrides.origin, experiment.overrides.values)
    notes = [
        *_add_model(experiment, reader),
        *_add_computed(reader),
        *add_assumed(rules["assumed"], reader),
        *notes_about(experiment, reader),
    ]
    kept = tuple(sorted(reader.kept.values(), key=lambda item: item.setting))
    return Conversion(experiment.task, kept, tuple(reader.unchanged), tuple(reader.dropped.values()), tuple(notes))


def no_such_setting(_origin: str, name: str, value: Any) -> Dropped:
    """Return that the native trainers have no counterpart."""
    return Dropped(name, value, "the trainers here have no such setting")


class Reader:
    """Applies the rules of a framework to settings; a later layer overrides an earlier one.

    `own` decides about a setting without a rule; None means that it is not needed.
    """

    def __init__(self, rules: Mapping[str, Any], own: Callable[[str, str, Any], Kept | Dropped | None] = no_such_setting) -> None:
        """Start without settings; `rules` are those of a framework in primus_settings.yml or primus_backends.yml."""
        self._rules, self._own = rules, own
        self.kept: dict[str, Kept] = {}  # by setting
        self.dropped: dict[str, Dropped] = {}
        self.unchanged: dict[str, None] = {}
        self.values: dict[str, Any] = {}

    def read(self, origin: str, values: Mapping[str, Any]) -> None:
        """Translate one layer."""
        for name, value in values.items():
            self.values[name] = value
            self.dropped.pop(name, None)
            self.unchanged.pop(name, None)
            for setting in [key for key, item in self.kept.items() if item.name == name]:
                del self.kept[setting]
            self._translate(origin, name, value)

    def _translate(self, origin: str, name: str, value: Any) -> None:
        rule = self._rules.get(name)
        if value is None or name == "min_lr":  # min_lr becomes a ratio, see add_lr_ratio
            self.unchanged[name] = None
        elif isinstance(rule, str):
            self.kept[rule] = Kept(name, rule, value, origin)
        elif rule is None or (rule.get("own") and value not in rule.get("only", ())):
            self._add_own(self._own(origin, name, value), name)
        elif "to" in rule and not isinstance(value, list) and value in rule["values"]:
            new = rule["values"][value]
            self.unchanged[name] = None
            if new is not None:
                del self.unchanged[name]
                self.kept[rule["to"]] = Kept(name, rule["to"], new, origin)
        elif "to" in rule:
            self.dropped[name] = Dropped(name, value, f"{rule['to']} has no such value")
        elif value in rule.get("only", ()):
            self.unchanged[name] = None
        else:
            self.dropped[name] = Dropped(name, value, rule["why"])

    def _add_own(self, found: Kept | Dropped | None, name: str) -> None:
        if isinstance(found, Kept):
            self.kept[found.setting] = found
        elif isinstance(found, Dropped):
            self.dropped[name] = found
        else:
            self.unchanged[name] = None

    def add(self, name: str, setting: str, value: Any, origin: str) -> None:
        """Add a setting that follows from others, unless there is one."""
        self.kept.setdefault(setting, Kept(name, setting, value, origin))

    def value(self, setting: str) -> Any:
        """Return the value of a setting; None if there is none."""
        return self.kept[setting].value if setting in self.kept else None


def _add_model(experiment: Experiment, reader: Reader) -> Iterator[str]:
    """Add the shape of a model that the presets do not give.

    Raises:
        PlanError: The shape is not known.
    """
    plain = experiment.model.lower().removesuffix("-fp8")
    shape = next((entry["model"] for entry in data_file("primus_models.yml") if plain in entry["names"]), None)
    if shape is None and reader.value("model.layers") is None:
        known = sorted(name for entry in data_file("primus_models.yml") for name in entry["names"])
        what = f"the shape of the model {experiment.model or '(none given)'} is not known; known are {', '.join(known)}"
        raise PlanError(what, fix="put the file into a checkout of AMD Primus, which has the model's preset, and convert it there")
    for setting, value in (shape or {}).items():
        reader.add(f"model {experiment.model}", f"model.{setting}", value, "model")
    if reader.value("model.vocabulary") is None:
        yield "the presets do not have the size of the vocabulary: set model.vocabulary to that of the tokenizer"
    if reader.value("model.kv_heads") is None and reader.value("model.heads") is not None:
        reader.add("num_attention_heads", "model.kv_heads", reader.value("model.heads"), "model")


def _add_computed(reader: Reader) -> Iterator[str]:
    """Add settings that are computed from several others."""
    yield from add_lr_ratio(reader)
    add_fsdp(reader)
    yield from add_batch(reader)
    if reader.value("parallel.tensor") not in (None, 1):
        reader.kept.pop("parallel.strategy", None)
        reader.add("the tensor parallelism", "parallel.strategy", "fsdp", "computed")


def add_lr_ratio(reader: Reader) -> Iterator[str]:
    """Add the ratio of the smallest learning rate to the largest."""
    low, peak = reader.values.get("min_lr"), reader.value("optimizer.lr")
    if isinstance(low, (int, float)) and isinstance(peak, (int, float)) and peak:
        reader.unchanged.pop("min_lr", None)
        reader.add("min_lr", "optimizer.min_lr_ratio", round(low / peak, 6), "computed")
        yield f"optimizer.min_lr_ratio is min_lr / lr = {low:g} / {peak:g}"


def add_fsdp(reader: Reader) -> None:
    """Set the strategy to fsdp if the file does: AMD Primus then switches the distributed optimizer off, which alone would mean ddp."""
    if reader.values.get("use_torch_fsdp2"):
        reader.kept["parallel.strategy"] = Kept("use_torch_fsdp2", "parallel.strategy", "fsdp", "computed")


def add_batch(reader: Reader) -> Iterator[str]:
    """Add the global batch that AMD Primus computes from the batch of a GPU."""
    micro, total = reader.value("train.micro_batch"), reader.value("train.global_batch")
    if isinstance(micro, int) and total in (None, -1):
        reader.kept.pop("train.global_batch", None)
        reader.add("the batch of a GPU", "train.global_batch", micro * _EXAMPLE_RANKS, "computed")
        yield f"train.global_batch is for {_EXAMPLE_RANKS} GPUs: AMD Primus multiplies the batch of a GPU by their number"


def add_assumed(assumed: Mapping[str, Any], reader: Reader) -> Iterator[str]:
    """Add what the presets of AMD Primus set, if the file says nothing else; return notes about it."""
    for setting, entry in assumed.items():
        if setting not in reader.kept:
            reader.add("a preset of AMD Primus", setting, entry["value"], "assumed")
            yield f"{setting}: {entry['value']}, as in AMD Primus: {entry['why']}"


def notes_about(experiment: Experiment, reader: Reader) -> Iterator[str]:
    """Return what the user has to know about the file."""
    if experiment.missing_presets:
        unset = [setting for setting in _EXPECTED if setting not in reader.kept]
        yield (
            f"the presets {', '.join(experiment.missing_presets)} are not beside the file (it is in no checkout of AMD Primus)"
            + (f"; these keep the defaults of the trainers here: {', '.join(unset)}" if unset else "")
        )
    if reader.value("data.source") == "files":
        yield "data.source: files needs data.files, data sets that workloads/train/prepare_data.py has written"
    if experiment.variables:
        yield f"variables were replaced: {', '.join(f'{name}={value}' for name, value in experiment.variables.items())}"
    if experiment.environment:
        yield f"pass the variables of env: with --env: {', '.join(experiment.environment)}"
    if experiment.other:
        yield f"further modules are not converted: {', '.join(experiment.other)}"
