"""`train pretrain` on the native trainer: the values of a run, checked against each other and estimated before the start.

The list of settings that do not work together is that of workloads/train/combinations.py; the trainer itself checks sizes as well.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError, joined
from primus_bootstrap.launch.backends.common_settings import typed
from primus_bootstrap.launch.backends.described_run import shape_of
from primus_bootstrap.launch.backends.registry import NATIVE
from primus_bootstrap.launch.estimate.run_check import estimate_run
from primus_bootstrap.launch.programs import settings_file
from primus_bootstrap.launch.recipes.recipe import Batch, Layout, Recipe, Recompute
from primus_bootstrap.launch.self_exec import read_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from primus_bootstrap.launch.programs.settings_file import Given
    from primus_bootstrap.launch.programs.train_settings import Known
    from primus_bootstrap.launch.tasks import Request

_FILE, _LIST = "train/combinations.py", "COMBINATIONS"
# fp32 is for tests and small models; the estimate's rates are those of 16 and 8 bits.
_ESTIMATED = ("bf16", "fp8")


def values(workloads: Path, known: Mapping[str, Known], presets: Sequence[str], given: Sequence[Given]) -> dict[str, Any]:
    """Return every setting of a run, in its type: the defaults, then those of presets, then those of files and arguments."""
    found = {name: item.default for name, item in known.items()}
    for name in presets:
        text = read_program(workloads, f"presets/{name}.yaml") or ""
        found.update({item.name: typed(known[item.name], item.value) for item in settings_file.from_yaml(text, name) if item.name in known})
    found.update({item.name: typed(known[item.name], item.value) for item in given if item.name in known})
    return found


def check_combinations(workloads: Path, settings: Mapping[str, Any]) -> None:
    """Check the values against each other.

    Raises:
        UsageError: Settings do not work together; the message has every problem.
    """
    problems = list(_problems(workloads, settings))
    if problems:
        raise joined(problems)


def _problems(workloads: Path, settings: Mapping[str, Any]) -> Iterator[UsageError]:
    for conditions, fix in combinations(workloads):
        if all(name in settings and meets(settings[name], condition) for name, condition in conditions.items()):
            found = " and ".join(f"{name}={_text(settings[name])}" for name in conditions)
            yield UsageError(f"{found} do not work together", fix=fix)


def combinations(workloads: Path) -> tuple[tuple[dict[str, Any], str], ...]:
    """Return the conditions that the programs below `workloads` do not support together; none if they have no such list."""
    try:
        tree = ast.parse(read_program(workloads, _FILE) or "")
        lists = [node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == _LIST and node.value]
        return tuple(ast.literal_eval(lists[0])) if lists else ()
    except (SyntaxError, ValueError):
        return ()


def meets(value: Any, condition: Any) -> bool:
    """Return whether a value meets a condition, as in workloads/train/combinations.py."""
    if condition == "set":
        return bool(value)
    if isinstance(condition, str) and condition.startswith("above "):
        return float(value) > float(condition[len("above ") :])
    return bool(value == condition)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def estimate(request: Request, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the estimate of the run as a remark; none on a CPU, in fp32, or if the GPUs are not known.

    Raises:
        PlanError: The run does not fit into the memory of its GPUs, and estimate=refuse.
    """
    if not request.gpu or not request.ranks or settings["compute.device"] == "cpu" or settings["compute.precision"] not in _ESTIMATED:
        return ()
    if settings["lora.rank"]:
        return ("estimate: not computed for LoRA, which needs less memory than the estimate of all weights",)
    shape = shape_of(settings)
    return (estimate_run(shape, _recipe(request, settings, shape.name), str(settings["estimate"])),)


def _recipe(request: Request, settings: Mapping[str, Any], model: str) -> Recipe:
    names = ("tensor", "pipeline", "virtual_pipeline", "context", "expert")
    sizes = {name: settings[f"parallel.{name}"] for name in names}
    layout = Layout(gpus=request.ranks, data=settings["parallel.strategy"], **sizes)
    batch = Batch(settings["train.sequence_length"], settings["train.micro_batch"], settings["train.global_batch"])
    precision, recompute = settings["compute.precision"], Recompute(settings["compute.recompute"])
    keys = {"compute.compile": settings["compute.compile"]}
    return Recipe("", model, NATIVE, request.gpu, precision, layout, batch, recompute, keys)
