"""Make megatron-core 0.19.2, which is written for Python 3.12, importable with Python 3.11."""

from __future__ import annotations

import typing


def complete_typing() -> None:
    """Add `typing.override`, the only name that Python 3.11 lacks. typing_extensions, which torch requires, has it."""
    if not hasattr(typing, "override"):
        import typing_extensions  # noqa: PLC0415 - needed by Python 3.11 only

        typing.override = typing_extensions.override  # type: ignore[attr-defined]
