"""Check the data sets of Megatron-LM before it starts: it reports a missing one without its name on some ranks only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.common.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping


def require_data(settings: Mapping[str, Any]) -> None:
    """Check that every data set of data.files exists. Between them can be their weights.

    Raises:
        DataError: One is missing.
    """
    if settings.get("data.source") != "files":
        return
    for name in settings.get("data.files", ()):
        missing = [suffix for suffix in (".idx", ".bin") if not Path(f"{name}{suffix}").is_file()]
        if missing and not _is_weight(name):
            fix = "write it with Megatron-LM's tools/preprocess_data.py, and give its path without .idx and .bin"
            raise DataError(f"{name}: no data set of Megatron-LM: {name}{missing[0]} does not exist", fix=fix)


def _is_weight(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
