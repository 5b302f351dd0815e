"""Forward the settings, variables and program of this primus-cli to the one that runs in a container or on another node.

Settings are passed as flags. Variables are passed by name, because every user of a host can read command lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch import masking, zipapp_file
from primus_bootstrap.launch.runtimes.forwarded_plugins import write_plugins
from primus_bootstrap.launch.self_exec import archive, workloads_folder
from primus_bootstrap.launch.settings.layered_settings import BUILT_IN, PREFIX, schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from primus_bootstrap.launch.runtimes.direct_plan import LaunchRequest
    from primus_bootstrap.launch.settings.layered_settings import Key

ONLY_FLAGS = "--only-flags"
_PORTABLE = "primus-cli.pyz"
_WITH = {"direct": ("backend",)}  # the sections whose settings a runtime's flags contain as well


def flags(request: LaunchRequest, section: str, **replacements: str) -> tuple[str, ...]:
    """Return the flags for every setting of a section that differs from its default; `replacements` override values."""
    words: list[str] = []
    for key in schema().values():
        item = request.settings.items[key.path]
        if key.section not in (section, *_WITH.get(section, ())):
            continue
        if key.name in replacements:
            words.append(f"--{key.name.replace('_', '-')}={replacements[key.name]}")
        elif item.origin != BUILT_IN and item.value != key.default:
            words.extend(_flag(key, item.value))
    return tuple(words)


def _flag(key: Key, value: Any) -> Iterator[str]:
    if key.type == "map":
        yield from (f"--env={name}" for name in value)
    elif key.type == "list":
        name = key.flags[0]
        added = value[len(key.default) :] if value[: len(key.default)] == key.default else None
        yield from [f"{name}={item}" for item in added] if added is not None else [f"{name}=[]", *(f"{name}={item}" for item in value)]
    elif key.on_flag or key.off_flag:
        yield key.off_flag if value in (False, "off") else key.on_flag or key.flags[0]
    elif key.type == "bool":
        yield f"{key.flags[0]}={str(value).lower()}"
    else:
        yield f"{key.flags[0]}={value}"


def variables(request: LaunchRequest) -> dict[str, str]:
    """Return the variables for the environment of the inner primus-cli: those of --env, and the command line as typed, masked."""
    user_variables = {name: str(value) for name, value in request.settings["direct.env"].items()}
    secrets = masking.secret_values({**request.environment, **user_variables})
    command = request.environment.get("PRIMUS_COMMAND") or json.dumps(masking.mask_words(request.command, secrets))
    return {**user_variables, "PRIMUS_COMMAND": command}


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without PRIMUS_CLI_*: they are already merged, and lists would be appended twice."""
    return {name: value for name, value in environment.items() if not name.startswith(PREFIX)}


def portable_program(run_dir: str) -> Path:
    """Return the zipapp that runs in the container or on other nodes: this one, or one in the run folder."""
    return archive() or Path(run_dir) / _PORTABLE


def write_portable_program(request: LaunchRequest, run_dir: str) -> None:
    """Write the plug-in of the task to the run folder, and a zipapp if this program does not run from one."""
    write_plugins(request, run_dir)
    if archive() is None:
        workloads = workloads_folder(request.settings["direct.workloads"], request.environment)
        zipapp_file.write_zipapp(portable_program(run_dir), workloads=workloads)
