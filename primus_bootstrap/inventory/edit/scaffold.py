"""Create the folder of a new cluster from one of the shipped example topologies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap import content
from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.core.suggestions import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

# The folders of inventory/ that the project ships; tests/contract/test_templates.py compares them.
_TEMPLATES = ("airgap", "h200-slurm", "lab", "mi300x")
_CLUSTER_NAME = re.compile(r"^cluster_name:.*$", re.MULTILINE)
_GITIGNORE = (".primus/", "secrets/", "vault-password")
_GITIGNORE_TEXT = "# Do not commit runs, host keys, secrets and the Vault password.\n" + "".join(f"{line}\n" for line in _GITIGNORE)


@dataclass(frozen=True, slots=True)
class NewFile:
    """One file of the new folder. If `appended`, the text is added to an existing file."""

    path: Path
    text: str
    appended: bool = False


def templates() -> tuple[str, ...]:
    """Return the names of the example topologies. Other folders beside them, such as a user's labs, are no templates."""
    return _TEMPLATES


def make_scaffold(template: str, folder: Path) -> tuple[NewFile, ...]:
    """Return the files that `init` writes to `folder`, without writing them. The cluster gets the name of the folder.

    Raises:
        UsageError: There is no such template.
        PlanError: A file exists.
    """
    if template not in templates():
        raise UsageError(f"no such template: {template}", fix=did_you_mean(template, templates()))
    source = content.topologies_dir() / template
    files = []
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if path.is_file() and not any(part.startswith(".") for part in inside.parts):
            files.append(NewFile(folder / inside, _renamed(path.read_text(encoding="utf-8"), template, folder)))
    existing = [str(file.path) for file in files if file.path.exists()]
    if folder.exists() and not folder.is_dir():
        existing = [str(folder)]
    if existing:
        raise PlanError(f"already exists: {', '.join(existing)}", fix="choose an empty folder, or move these files; nothing was written")
    return (*files, *_gitignore(folder))


def _renamed(text: str, template: str, folder: Path) -> str:
    """Set the name of the cluster to that of its folder, except for the lab."""
    name = re.sub(r"[^a-z0-9-]+", "-", folder.resolve().name.lower()).strip("-")
    return text if template == "lab" or not name else _CLUSTER_NAME.sub(f"cluster_name: {name}", text)


def _gitignore(folder: Path) -> tuple[NewFile, ...]:
    path = folder / ".gitignore"
    if not path.is_file():
        return (NewFile(path, _GITIGNORE_TEXT),)
    existing = path.read_text(encoding="utf-8").splitlines()
    missing = [line for line in _GITIGNORE if line not in existing]
    return (NewFile(path, "".join(f"{line}\n" for line in missing), appended=True),) if missing else ()


def write_scaffold(files: tuple[NewFile, ...]) -> None:
    """Write the files and create their folders.

    Raises:
        PlanError: A file cannot be written.
    """
    for file in files:
        try:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            text = file.text
            if file.appended and not file.path.read_text(encoding="utf-8").endswith("\n"):
                text = f"\n{text}"
            with file.path.open("a" if file.appended else "x", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            raise PlanError(f"{file.path} cannot be written: {error.strerror}", fix="choose a folder that you can write to") from error
