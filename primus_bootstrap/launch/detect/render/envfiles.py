"""The environment as files: systemd's EnvironmentFile syntax for units, a script for login shells."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from primus_bootstrap.launch.detect.profiles import Entry, Layer, Profile

_NUMBERS = {"base": 10, "model": 20, "network": 30, "site": 90}
PROFILE_SCRIPT = "etc/profile.d/primus.sh"
_HEAD = "# Written by primus-bootstrap (role gpu_env); edits are overwritten. Own values: gpu_env_site in hosts.yaml.\n"


def env_path(layer: str) -> str:
    """Return the path of a layer's file below the root; systemd and shells read the numbers in order, so the last layer wins."""
    return f"etc/primus/env.d/{_NUMBERS[layer]}-{layer}.env"


def env_files(profile: Profile) -> dict[str, str | None]:
    """Return the content of every environment file; None for one that must not exist because its layer is empty."""
    files: dict[str, str | None] = {env_path(layer.name): _env_file(layer) if layer.entries else None for layer in profile.layers}
    entries = profile.merged().values()
    files[PROFILE_SCRIPT] = _profile_script(sorted(entries, key=lambda entry: entry.variable)) if entries else None
    return files


def quote_for_systemd(value: str) -> str:
    r"""Quote a value so that systemd and a shell read the same text: double quotes, and \ before `"`, `\`, `$` and a backquote.

    Source: systemd.exec(5), EnvironmentFile=; inside double quotes only these four are escaped, as in POSIX sh.
    """
    return '"' + re.sub(r'(["\\$`])', r"\\\1", value) + '"'


def _env_file(layer: Layer) -> str:
    blocks = []
    for entry in layer.entries:
        origin = _comment(f"{entry.origin}: {entry.source}")
        blocks.append(f"\n# {_comment(entry.reason)}\n# {origin}\n{entry.variable}={quote_for_systemd(entry.value)}\n")
    return _HEAD + "".join(blocks)


def _comment(text: str) -> str:
    """Return one printable line; systemd before 254 joins a comment that ends in a backslash with the next line."""
    return "".join(letter if letter.isprintable() else " " for letter in text).rstrip("\\ ")


def _quote_for_shells(value: str) -> str:
    """Quote a value always, also where POSIX sh needs no quotes: zsh expands a leading `=`."""
    return "'" + value.replace("'", "'\\''") + "'"


def _profile_script(entries: list[Entry]) -> str:
    lines = [f'[ -n "${{{entry.variable}+set}}" ] || export {entry.variable}={_quote_for_shells(entry.value)}\n' for entry in entries]
    return _HEAD + "# A variable that the environment already has keeps its value: the user's own choice wins.\n" + "".join(lines)
