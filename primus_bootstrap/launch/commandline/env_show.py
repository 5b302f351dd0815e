"""The verbs `primus-cli env show` and `env export`: the variables that the profile of this host, or of a GPU model, sets."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.detect import host_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.detect.host_profile import HostProfile


def main(words: Sequence[str]) -> int:
    """Print the profile as a table (show) or as lines for a shell (export); return the exit code."""
    verb, model, as_json = _parse(words)
    profile = host_profile.model_profile(model) if model else host_profile.host_profile(Path("/"))
    if verb == "export":
        sys.stdout.write(export_lines(profile))
    elif as_json:
        sys.stdout.write(json.dumps(asdict(profile), indent=2) + "\n")
    else:
        sys.stdout.write(table(profile))
    return 0


def _parse(words: Sequence[str]) -> tuple[str, str, bool]:
    verb, *rest = words or ("",)
    if verb not in ("show", "export"):
        raise UsageError(f"env: unknown verb: {verb or '(none)'}", fix=did_you_mean(verb, ("show", "export")))
    model, as_json = "", False
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name == "--gpu" and (equals or rest):
            model = value if equals else rest.pop(0)
        elif name == "--json" and verb == "show":
            as_json = True
        else:
            raise UsageError(
                f"env {verb}: {name}: unknown option or missing value",
                fix="primus-cli env show [--gpu MODEL] [--json], or primus-cli env export [--gpu MODEL]",
            )
    return verb, model, as_json


def table(profile: HostProfile) -> str:
    """Return variable, value, reason and source of each entry, then the variables that the profile leaves unset."""
    host = profile.model or "a host without GPU" if profile.vendor else "a host whose GPU is unknown"
    lines = [f"profile of {host} ({profile.origin})", ""]
    for entry in profile.entries:
        lines += [f"{entry.variable}={entry.value}  ({entry.origin})", f"    {entry.reason}", f"    {entry.source}"]
        if entry.variable in os.environ and os.environ[entry.variable] != entry.value:
            lines.append(f"    the environment has {os.environ[entry.variable]!r}, which takes precedence")
    for item in profile.unset:
        lines.append(f"{item.variable} is left unset ({item.origin}): {item.reason}")
    return "\n".join(lines) + "\n"


def export_lines(profile: HostProfile) -> str:
    """Return lines for `source`; a variable that is already set keeps its value."""
    return "".join(
        f'[ -n "${{{entry.variable}+set}}" ] || export {entry.variable}={shlex.quote(entry.value)}  # {entry.origin}\n'
        for entry in profile.entries
    )
