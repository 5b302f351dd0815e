"""A commented starting folder for a new cluster, copied from the shipped example topologies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap import content
from primus_bootstrap.core.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path

_CLUSTER_NAME = re.compile(r"^cluster_name:.*$", re.MULTILINE)
_GITIGNORE = (".primus/", "secrets/", "vault-password")
_GITIGNORE_TEXT = "# Runs, host keys, secrets and the Vault password: never in git.\n" + "".join(f"{line}\n" for line in _GITIGNORE)


@dataclass(frozen=True, slots=True)
class NewFile:
    """One file of the new folder. `appended` means that lines are added to a file of the user's."""

    path: Path
    text: str
    appended: bool = False


def templates() -> tuple[str, ...]:
    """Return the names of the example topologies."""
    return tuple(sorted(path.parent.name for path in content.topologies_dir().glob("*/hosts.yaml")))


def make_scaffold(template: str, folder: Path) -> tuple[NewFile, ...]:
    """Return what `init` would write into `folder`; the cluster takes the folder's name. Writes nothing.

    Raises:
        PlanError: there is no such template, or a file is in the way.
    """
    if template not in templates():
        raise PlanError(f"no such template: {template}", fix=f"choose from: {', '.join(templates())}")
    source = content.topologies_dir() / template
    files = []
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if path.is_file() and not any(part.startswith(".") for part in inside.parts):
            files.append(NewFile(folder / inside, _renamed(path.read_text(encoding="utf-8"), template, folder)))
    taken = [str(file.path) for file in files if file.path.exists()]
    if folder.exists() and not folder.is_dir():
        taken = [str(folder)]
    if taken:
        raise PlanError(f"already there: {', '.join(taken)}", fix="name an empty folder, or move these files away; nothing was written")
    return (*files, *_gitignore(folder))


def _renamed(text: str, template: str, folder: Path) -> str:
    """Give the cluster the name of its folder; the lab keeps its own."""
    name = re.sub(r"[^a-z0-9-]+", "-", folder.resolve().name.lower()).strip("-")
    return text if template == "lab" or not name else _CLUSTER_NAME.sub(f"cluster_name: {name}", text)


def _gitignore(folder: Path) -> tuple[NewFile, ...]:
    path = folder / ".gitignore"
    if not path.is_file():
        return (NewFile(path, _GITIGNORE_TEXT),)
    there = path.read_text(encoding="utf-8").splitlines()
    missing = [line for line in _GITIGNORE if line not in there]
    return (NewFile(path, "".join(f"{line}\n" for line in missing), appended=True),) if missing else ()


def write_scaffold(files: tuple[NewFile, ...]) -> None:
    """Write the files, folders included.

    Raises:
        PlanError: a file cannot be written.
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
            raise PlanError(f"{file.path} cannot be written: {error.strerror}", fix="name a folder that you may write to") from error
