"""Validate an edited hosts.yaml as a draft, then replace the file atomically."""

from __future__ import annotations

import contextlib
import difflib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import InventoryError, PlanError
from primus_bootstrap.inventory.load import validate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.inventory.cluster import Cluster

_BOM = "\ufeff"
_DISABLED_SUFFIX = ".bak"  # Ansible and `validate` ignore these files
OWNER_RULE = frozenset({"variable-file-owner"})  # variable files of a host that is not in hosts.yaml yet, or not any more


@dataclass(frozen=True, slots=True)
class HostsText:
    """The text of hosts.yaml with LF line ends, and the file's own line end and byte order mark."""

    path: Path
    text: str
    line_end: str = "\n"
    bom: str = ""

    def encoded(self, text: str) -> bytes:
        """Return a text as bytes, with the line ends and the byte order mark of this file."""
        return (self.bom + text.replace("\n", self.line_end)).encode()


@dataclass(frozen=True, slots=True)
class Draft:
    """A validated change of hosts.yaml. `after` is the new text, `cluster` the inventory that it describes."""

    file: HostsText
    after: str
    cluster: Cluster

    @property
    def reverse(self) -> Draft:
        """The change that reverts this one."""
        return Draft(replace(self.file, text=self.after), self.file.text, self.cluster)

    @property
    def diff(self) -> str:
        """The change as a unified diff; empty if nothing changes."""
        sides = (self.file.text.splitlines(), self.after.splitlines())
        return "\n".join(difflib.unified_diff(*sides, str(self.file.path), str(self.file.path), n=2, lineterm=""))


def read_hosts_text(path: Path) -> HostsText:
    """Read hosts.yaml, or the one in a folder, to edit it.

    Raises:
        PlanError: The file is encrypted, is not UTF-8, or has mixed line ends.
    """
    path = (path / "hosts.yaml" if path.is_dir() else path).absolute()
    with _file_errors(path):
        data = path.read_bytes()
    if data.startswith(b"$ANSIBLE_VAULT"):
        raise PlanError(
            f"{path} is encrypted and cannot be edited by this command", fix=f"ansible-vault edit {path}, then: primus-bootstrap apply"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} is not UTF-8 text", fix="save it as UTF-8") from error
    bom, text = (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)
    line_end = "\r\n" if "\r\n" in text else "\n"
    plain = text.replace("\r\n", "\n")
    if plain.replace("\n", line_end) != text:
        raise PlanError(f"{path}: some lines end with CR LF and others with LF", fix=f"sed -i 's/\\r$//' {path}")
    return HostsText(path, plain, line_end, bom)


def check_draft(
    file: HostsText, after: str, *, vault_password_file: Path | None = None, ask_vault_pass: str | None = None, removes: bool = False
) -> Draft:
    """Validate an edited text together with the variable files beside hosts.yaml. Does not change hosts.yaml.

    `removes` means that the edit removes a host, whose variable files may stay.

    Raises:
        InventoryError: With all problems of the edited text.
        PlanError: The folder cannot be written.
    """
    draft = file.path.with_name(f".{file.path.stem}.{os.getpid()}.draft.yaml")
    try:
        with _file_errors(file.path):
            draft.touch(mode=0o600)
            draft.write_bytes(file.encoded(after))
        result = validate(
            draft,
            vault_password_file=vault_password_file,
            ask_vault_pass=ask_vault_pass,
            ignore_rules=OWNER_RULE if removes else frozenset(),
            display_path=file.path,
        )
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    if result.cluster is None:
        raise InventoryError(result.problems)
    return Draft(file, after, replace(result.cluster, path=file.path))


def write_draft(draft: Draft) -> None:
    """Replace hosts.yaml atomically. Owner, mode and extended attributes are kept; a symbolic link stays a link.

    Raises:
        PlanError: The file was changed since it was read, or cannot be written.
    """
    path = draft.file.path
    with _file_errors(path):
        if path.read_bytes() != draft.file.encoded(draft.file.text):
            raise PlanError(f"{path} was changed by another program since it was read", fix="run the same command again")
        real = path.resolve()
        write_atomic(real, draft.file.encoded(draft.after), like=real)


def host_files(path: Path, host: str) -> tuple[Path, ...]:
    """Return the files and folders of one host in `host_vars/` beside hosts.yaml."""
    folder = path.parent / "host_vars"
    return tuple(found for ending in ("", ".yml", ".yaml", ".json") if (found := folder / f"{host}{ending}").exists())


def disable_host_files(path: Path, host: str) -> tuple[Path, ...]:
    """Rename the variable files of a removed host so that Ansible ignores them; return their new names."""
    renamed = []
    with _file_errors(path):
        for file in host_files(path, host):
            names = (file.with_name(f"{file.name}{number}{_DISABLED_SUFFIX}") for number in ("", *(f".{n}" for n in range(1, 1000))))
            renamed.append(file.rename(next(name for name in names if not name.exists())))
    return tuple(renamed)


@contextlib.contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fix = f"make {path.parent} readable and writable for this user, and check its free space: df -h {path.parent}"
        raise PlanError(f"{error.filename or path}: {error.strerror or error}", fix=fix) from error
