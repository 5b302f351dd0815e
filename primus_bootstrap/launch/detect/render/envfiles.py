"""Render the environment as files: EnvironmentFile syntax for systemd units, and a script for login shells."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from primus_bootstrap.launch.detect.profiles import Entry, Layer, Profile

_NUMBERS = {"base": 10, "model": 20, "network": 30, "site": 90}
PROFILE_SCRIPT = "etc/profile.d/primus.sh"
_HEAD = "# Written by primus-bootstrap (role gpu_env); edits are overwritten. To set variables, use gpu_env_site in hosts.yaml.\n"


def env_path(layer: str) -> str:
    """Return the path of a layer's file below the root. The numbers give the order in which systemd and shells read the files."""
    return f"etc/primus/env.d/{_NUMBERS[layer]}-{layer}.env"


def env_files(profile: Profile) -> dict[str, str | None]:
    """Return the content of every environment file; None for the file of an empty layer, which must not exist."""
    files: dict[str, str | None] = {env_path(layer.name): _env_file(layer) if layer.entries else None for layer in profile.layers}
    entries = profile.effective().values()
    files[PROFILE_SCRIPT] = _profile_script(sorted(entries, key=lambda entry: entry.variable)) if entries else None
    return files


def quote_for_systemd(value: str) -> str:
    r"""Quote a value for both systemd and shells: double quotes, and \ before `"`, `\`, `$` and a backquote (systemd.exec(5))."""
    return '"' + re.sub(r'(["\\$`])', r"\\\1", value) + '"'


def _env_file(layer: Layer) -> str:
    blocks = []
    for entry in layer.entries:
        origin = _comment(f"{entry.origin}: {entry.source}")
        blocks.append(f"\n# {_comment(entry.reason)}\n# {origin}\n{entry.variable}={quote_for_systemd(entry.value)}\n")
    return _HEAD + "".join(blocks)


def _comment(text: str) -> str:
    """Return one printable line without a trailing backslash: systemd before 254 would join the next line."""
    return "".join(letter if letter.isprintable() else " " for letter in text).rstrip("\\ ")


def _quote_for_shells(value: str) -> str:
    """Quote every value: zsh expands a leading `=`."""
    return "'" + value.replace("'", "'\\''") + "'"


def _profile_script(entries: list[Entry]) -> str:
    lines = [f'[ -n "${{{entry.variable}+set}}" ] || export {entry.variable}={_quote_for_shells(entry.value)}\n' for entry in entries]
    return _HEAD + "# Variables that are already set keep their values, so that users can override them.\n" + "".join(lines)
