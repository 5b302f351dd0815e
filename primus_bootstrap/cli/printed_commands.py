"""Completes the commands in messages, so that they can be typed: the program as the user started it, and the user's hosts.yaml.

Messages come from all packages, the roles and the programs on nodes, which do not know the path that the user gave. They write
`primus-bootstrap bench --limit gpu1` or `primus-bootstrap bench hosts.yaml --limit gpu1`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from primus_bootstrap.cli.console import program, short
from primus_bootstrap.cli.options import DEFAULT_HOSTS, is_inventory
from primus_bootstrap.core.errors import InventoryError, PrimusError

if TYPE_CHECKING:
    from collections.abc import Mapping

_Error = TypeVar("_Error", bound=PrimusError)

# The verbs that read hosts.yaml, with the option that names it; without an option it is the first argument.
# tests/contract/test_printed_commands.py compares them with the command line.
INVENTORY_VERBS: dict[str, str] = {
    **dict.fromkeys(("validate", "plan", "diff", "apply", "verify", "bench", "status", "report", "runs", "probe", "reset"), ""),
    **dict.fromkeys(("secrets init", "secrets rotate", "backup etcd", "restore etcd", "renew certificates", "upgrade kubernetes"), ""),
    "storage migrate": "",
    **{f"node {verb}": "" for verb in ("add", "remove", "replace", "list", "quarantine", "release")},
    **{f"workload {verb}": "" for verb in ("submit", "list", "status", "logs", "cancel", "resume")},
    **dict.fromkeys(("ssh", "exec", "bundle list", "bundle lock", "bundle create", "bundle check"), "-i"),
}
# Verbs that read no hosts.yaml.
OTHER_VERBS = ("doctor", "import", "init", "lab down", "lab fault", "lab status", "lab up", "schema")

_VERBS = "|".join(sorted((*INVENTORY_VERBS, *OTHER_VERBS), reverse=True))
_COMMAND = re.compile(
    rf"(?<![\w/.-])primus-bootstrap (?P<verb>{_VERBS})(?![\w-])"
    r"(?:(?P<file> (?:(?:-i|--inventory) )?hosts\.yaml(?![\w.]))|(?P<other> (?:-i |--inventory |['\"]|\S*(?:/|\.ya?ml))))?"
)

# The word hosts.yaml in a sentence, not in `[hosts.yaml] NAME` or in a path.
_FILE = re.compile(r"(?<![\w/.\[-])hosts\.yaml(?![\w.\]])")


def with_inventory(text: str, file: Path | None) -> str:
    """Return a message with complete commands.

    Args:
        text: The message. A command that names another file than `hosts.yaml` keeps it.
        file: The inventory as the user gave it; None if the verb reads none.
    """

    def complete(match: re.Match[str]) -> str:
        verb, option = match["verb"], INVENTORY_VERBS.get(match["verb"])
        if file is None or option is None or match["other"]:
            return f"{program()} {verb}{match['file'] or ''}{match['other'] or ''}"
        name = short(file)
        if name == str(DEFAULT_HOSTS):
            return f"{program()} {verb}{match['file'] or ''}"
        return " ".join(part for part in (program(), verb, option, name) if part)

    return _COMMAND.sub(complete, text)


def _named(text: str, file: Path | None) -> str:
    """Return a message with complete commands that names an inventory with another name than hosts.yaml."""
    text = with_inventory(text, file)
    return text if file is None or file.name == DEFAULT_HOSTS.name or not file.is_file() else _FILE.sub(short(file), text)


def completed_error(error: _Error, file: Path | None) -> PrimusError:
    """Return the same error with complete commands and the name of the file."""
    if isinstance(error, InventoryError):
        return InventoryError([replace(problem, fix=with_inventory(problem.fix, file)) for problem in error.problems])
    return type(error)(_named(error.what, file), fix=_named(error.fix, file))


def inventory_of(arguments: Mapping[str, object]) -> Path | None:
    """Return the inventory in the parsed arguments of a verb, or None if the verb has none."""
    for name in ("host", "pattern"):  # `ssh` and `exec`, whose first word may be the inventory
        word = arguments.get(name)
        if isinstance(word, str) and word and is_inventory(word):
            return Path(word)
    for name in ("hosts", "inventory"):
        if isinstance(path := arguments.get(name), Path):
            return path
    words = arguments.get("words")
    if not isinstance(words, list | tuple):
        return None
    first = Path(str(words[0])) if words else DEFAULT_HOSTS
    exists = first.is_file() or (first / DEFAULT_HOSTS).is_file()
    return first if len(words) > 1 and exists else DEFAULT_HOSTS
