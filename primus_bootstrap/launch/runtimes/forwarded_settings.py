"""What an outer runtime (an engine, Slurm) hands to the primus-cli inside it: settings as flags, variables by name, the program itself.

No value of a variable is ever a word of a command line: everybody on a host can read those.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch import masking, zipapp_file
from primus_bootstrap.launch.commandline.layered_settings import BUILT_IN, PREFIX, schema
from primus_bootstrap.launch.runtimes.self_exec import archive, workloads_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from primus_bootstrap.launch.commandline.layered_settings import Key
    from primus_bootstrap.launch.runtimes.direct_plan import LaunchRequest

ONLY_FLAGS = "--only-flags"
_PORTABLE = "primus-cli.pyz"


def flags(asked: LaunchRequest, section: str, **instead: str) -> tuple[str, ...]:
    """Return the flags that give the inner call every setting of a section that is not as built in; `instead` replaces values."""
    words: list[str] = []
    for key in schema().values():
        item = asked.settings.items[key.path]
        if key.section != section:
            continue
        if key.name in instead:
            words.append(f"--{key.name.replace('_', '-')}={instead[key.name]}")
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


def variables(asked: LaunchRequest) -> dict[str, str]:
    """Return the variables that the inner call needs in its environment: the user's, and what was typed."""
    stated = {name: str(value) for name, value in asked.settings["direct.env"].items()}
    secrets = masking.secret_values({**asked.environment, **stated})
    typed = asked.environment.get("PRIMUS_COMMAND") or json.dumps(masking.mask_words(asked.command, secrets))
    return {**stated, "PRIMUS_COMMAND": typed}


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without PRIMUS_CLI_*: they are resolved already, and lists would grow twice."""
    return {name: value for name, value in environment.items() if not name.startswith(PREFIX)}


def portable_program(run_dir: str) -> Path:
    """Return the path of the one file that runs inside and on other nodes: this zipapp, or one in the run folder."""
    return archive() or Path(run_dir) / _PORTABLE


def write_portable_program(asked: LaunchRequest, run_dir: str) -> None:
    """Make the zipapp in the run folder, where this program runs from files."""
    if archive() is None:
        workloads = workloads_folder(asked.settings["direct.workloads"], asked.environment)
        zipapp_file.write_bundle(portable_program(run_dir), workloads=workloads)
