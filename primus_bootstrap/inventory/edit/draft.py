"""An edited hosts.yaml: judged as a whole while it is a draft, and put in place of the file in one step."""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import InventoryError, PlanError
from primus_bootstrap.inventory.load import validate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.inventory.cluster import Cluster

_BOM = "\ufeff"
_KEPT_ENDING = ".bak"  # neither Ansible nor `validate` reads such files
OWNER_RULE = frozenset({"variable-file-owner"})  # a host that is to come, or that left, may have variable files


@dataclass(frozen=True, slots=True)
class HostsText:
    """hosts.yaml as read: its text with plain line ends, and what its bytes have besides."""

    path: Path
    text: str
    line_end: str = "\n"
    mark: str = ""

    def encoded(self, text: str) -> bytes:
        """Return the bytes of a text in the form of this file."""
        return (self.mark + text.replace("\n", self.line_end)).encode()


@dataclass(frozen=True, slots=True)
class Draft:
    """A change of hosts.yaml that was judged; `cluster` is what it describes, under the path of the real file."""

    file: HostsText
    after: str
    cluster: Cluster

    @property
    def reverse(self) -> Draft:
        """The change that takes this one back."""
        return Draft(replace(self.file, text=self.after), self.file.text, self.cluster)

    @property
    def diff(self) -> str:
        """The change as unified text; empty where there is none."""
        sides = (self.file.text.splitlines(), self.after.splitlines())
        return "\n".join(difflib.unified_diff(*sides, str(self.file.path), str(self.file.path), n=2, lineterm=""))


def read_hosts_text(path: Path) -> HostsText:
    """Read hosts.yaml, or that of a folder, in order to edit it.

    Raises:
        PlanError: it is under Vault, or its lines end in two ways.
    """
    path = (path / "hosts.yaml" if path.is_dir() else path).absolute()
    with _file_errors(path):
        data = path.read_bytes()
    if data.startswith(b"$ANSIBLE_VAULT"):
        raise PlanError(f"{path} is encrypted as a whole", fix="edit it with `ansible-vault edit`, then: primus-bootstrap apply")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} is not UTF-8 text", fix="save it as UTF-8") from error
    mark, text = (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)
    line_end = "\r\n" if "\r\n" in text else "\n"
    plain = text.replace("\r\n", "\n")
    if plain.replace("\n", line_end) != text:
        raise PlanError(f"{path}: some lines end with CR LF and others with LF", fix="save it with one kind of line end")
    return HostsText(path, plain, line_end, mark)


def judge_draft(
    file: HostsText, after: str, *, vault_password_file: Path | None = None, ask_vault_pass: str | None = None, removes: bool = False
) -> Draft:
    """Judge an edited text as `validate` does, with the variable files beside it; the file itself is not touched.

    Args:
        file: what was read.
        after: its text with the edit.
        vault_password_file: as for `load_cluster`.
        ask_vault_pass: as for `load_cluster`.
        removes: a host is taken out, so its own variable files lose their owner.

    Raises:
        InventoryError: with every problem of the edited text.
        PlanError: the folder cannot be written.
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
            forgive=OWNER_RULE if removes else frozenset(),
            shown=file.path,
        )
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    if result.cluster is None:
        raise InventoryError(result.problems)
    return Draft(file, after, replace(result.cluster, path=file.path))


def write_draft(draft: Draft) -> None:
    """Put the draft in place of hosts.yaml in one step; owner and mode stay, and a link stays a link.

    Raises:
        PlanError: somebody else changed the file meanwhile, or it cannot be written.
    """
    path = draft.file.path
    with _file_errors(path):
        if path.read_bytes() != draft.file.encoded(draft.file.text):
            raise PlanError(f"{path} was changed by somebody else meanwhile", fix="run the same command again: it reads the file anew")
        real = path.resolve()
        new = real.with_name(f".{real.name}.{os.getpid()}.new")
        try:
            new.touch(mode=0o600)
            with new.open("wb") as stream:
                stream.write(draft.file.encoded(draft.after))
                stream.flush()
                os.fsync(stream.fileno())
            shutil.copystat(real, new)
            os.chown(new, real.stat().st_uid, real.stat().st_gid)
            new.replace(real)
        finally:
            new.unlink(missing_ok=True)


def own_files(path: Path, host: str) -> tuple[Path, ...]:
    """Return the files and folders of `host_vars/` beside hosts.yaml that belong to one host."""
    folder = path.parent / "host_vars"
    return tuple(found for ending in ("", ".yml", ".yaml", ".json") if (found := folder / f"{host}{ending}").exists())


def set_own_files_aside(path: Path, host: str) -> tuple[Path, ...]:
    """Rename the variable files of a host that left, so that nothing reads them any more; return their new names."""
    kept = []
    with _file_errors(path):
        for file in own_files(path, host):
            names = (file.with_name(f"{file.name}{number}{_KEPT_ENDING}") for number in ("", *(f".{n}" for n in range(1, 1000))))
            kept.append(file.rename(next(name for name in names if not name.exists())))
    return tuple(kept)


@contextlib.contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fix = "make the file and its folder readable and writable for this user, with space on their disk"
        raise PlanError(f"{error.filename or path}: {error.strerror or error}", fix=fix) from error
