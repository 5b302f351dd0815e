"""Names of tasks, blocks, plays and handlers say what the task does, and every notified handler exists."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# First words that do not say what a task does. `Refuse` is `Fail if` or `Check that`; `Have` is `Install`, `Write` or `Create`.
VAGUE = {
    "Ask", "Be", "Both", "Bring",
    "Give", "Hand", "Have", "Hold", "It", "Its", "Judge", "Keep", "Know", "Learn", "Leave",
    "Let", "Look", "Lose", "Mend", "No", "Nobody", "Note", "Nothing",
    "Of", "Offer", "Part", "Put", "Reach", "Refuse", "Say", "See", "Settle", "State",
    "Take", "Tell", "The", "Their", "Try", "What", "Who", "Without",
}  # fmt: skip
_NESTED = ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks", "handlers")


def items_in(tasks: Any) -> Iterator[dict[str, Any]]:
    """Yield every play, block, task and handler of a list."""
    for item in tasks or ():
        yield item
        for key in _NESTED:
            yield from items_in(item.get(key))


def items_of(path: Path) -> list[dict[str, Any]]:
    """Return every play, block, task and handler of a file."""
    with path.open("rb") as file:  # a file, not its text: so an error names it
        data = yaml.load(file, Loader=yaml.CSafeLoader)
    return list(items_in(data)) if isinstance(data, list) and all(isinstance(item, dict) for item in data) else []


def files() -> list[Path]:
    """Return the files of tasks, handlers, scenarios and plays."""
    roles, playbooks = content.roles_dir(), content.playbooks_dir()
    patterns = ("*/tasks/**/*.yml", "*/handlers/*.yml", "*/molecule/**/*.yml")
    return sorted(
        [*playbooks.rglob("*.yml"), *(path for pattern in patterns for path in roles.glob(pattern) if "group_vars" not in path.parts)]
    )


def test_names_say_what_the_task_does() -> None:
    """No name begins with a word that could stand for anything."""
    named = [(path, item["name"]) for path in files() for item in items_of(path) if isinstance(item.get("name"), str)]
    vague = [f"{path.relative_to(content.content_root())}: {name}" for path, name in named if re.split(r"\W", name, maxsplit=1)[0] in VAGUE]

    assert len(named) > 1000
    assert vague == []


def test_notified_handlers_exist() -> None:
    """Each `notify` of a role names one of its handlers. Ansible reports a missing handler only when a task changes something."""
    missing = []
    for role in sorted(path for path in content.roles_dir().iterdir() if path.is_dir()):
        handlers = [item for path in role.glob("handlers/*.yml") for item in items_of(path)]
        known = {name for item in handlers for name in (item.get("name"), *_listed(item.get("listen")))}
        tasks = [item for path in role.glob("tasks/**/*.yml") for item in items_of(path)]
        missing += [(role.name, name) for item in tasks for name in _listed(item.get("notify")) if name not in known]

    assert missing == []


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())
