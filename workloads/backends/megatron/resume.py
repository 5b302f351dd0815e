"""Choose the checkpoint with which Megatron-LM starts."""

from __future__ import annotations

import re
from pathlib import Path

from workloads.common.errors import StorageError

_TRACKER = "latest_checkpointed_iteration.txt"  # Megatron-LM writes it last
_NAME = re.compile(r"(?:step-|iter_)0*(\d+)")


def load_arguments(folder: Path, resume: str, start_from: str) -> tuple[str, ...]:
    """Return the arguments that load a checkpoint.

    The newest complete one of this run comes first, unless `resume` is never. Then the one that `resume` names, with the state of the
    optimizer, or the weights of the one that `start_from` names.

    Raises:
        StorageError: A named checkpoint does not exist.
    """
    if resume != "never" and (folder / _TRACKER).is_file():
        return ("--load", str(folder))
    if resume not in {"auto", "never"}:
        return _named(Path(resume))
    return (*_named(Path(start_from)), "--finetune") if start_from else ()


def _named(path: Path) -> tuple[str, ...]:
    """Return the arguments for a checkpoint: its folder, as iter_0000100 or step-00000100, or the folder that contains it."""
    if (path / _TRACKER).is_file():
        return ("--load", str(path))
    found = _NAME.fullmatch(path.name)
    if not found or not (path.parent / f"iter_{int(found[1]):07d}").is_dir():
        fix = "give the path of a folder iter_NNNNNNN, or of the folder that contains it"
        raise StorageError(f"{path}: no checkpoint of Megatron-LM", fix=fix)
    return ("--load", str(path.parent), "--ckpt-step", found[1])
