# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Detect that a host is a container."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Files of engines that do not start systemd in the container, so that it writes no /run/systemd/container.
MARKS = {"run/.containerenv": "podman", ".dockerenv": "docker"}


def container_kind(root: Path) -> str:
    """Return the kind of container that the host with this root folder is; empty if it is none."""
    named = root / "run/systemd/container"
    if named.is_file():
        return named.read_text(encoding="utf-8").strip()
    return next((kind for path, kind in MARKS.items() if (root / path).exists()), "")
