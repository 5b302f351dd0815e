#!/usr/bin/python
"""Ansible module `airgap_sources`: make apt use the bundle only, or its own sources again.

One module instead of a loop of ansible.builtin.copy, because the order matters: the file in apt.conf.d is written last and removed first,
so an interrupted run never leaves apt with an incomplete source. Large indexes are kept out of the diff.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def read(path: Path) -> str:
    """Return a file's text; empty if it does not exist."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def write_file(path: Path, content: str) -> None:
    """Write a file with mode 0644 atomically."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".primus-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink()
        raise


def write_files(files: Sequence[Mapping[str, str]], *, check: bool) -> list[dict[str, str]]:
    """Write the files that differ, in this order; return the differences. Of long files the diff has only the number of lines."""
    diffs = []
    for file in files:
        path, content = Path(file["path"]), file["content"]
        before = read(path)
        if before == content:
            continue
        short = len(content) < 4096
        diffs.append(
            {
                "before_header": str(path),
                "after_header": str(path),
                "before": before if short else f"{before.count(chr(10))} lines\n",
                "after": content if short else f"{content.count(chr(10))} lines\n",
            }
        )
        if not check:
            write_file(path, content)
    return diffs


def remove_files(apt_conf: Path, folder: Path, *, check: bool) -> list[dict[str, str]]:
    """Remove what `write_files` wrote; return the differences."""
    diffs = []
    for path in (apt_conf, folder):
        if not os.path.lexists(path):
            continue
        diffs.append({"before_header": str(path), "after_header": str(path), "before": "present\n", "after": ""})
        if check:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return diffs


def main() -> None:
    """Write or remove the files, and report."""
    text = {"type": "str", "required": True}
    spec = {
        "files": {"type": "list", "elements": "dict", "options": {"path": text, "content": text}, "required": True},
        "folder": text,
        "apt_conf": text,
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    options = module.params
    try:
        if options["files"]:
            diffs = write_files(options["files"], check=module.check_mode)
        else:
            diffs = remove_files(Path(options["apt_conf"]), Path(options["folder"]), check=module.check_mode)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}. Fix: free space on that disk, or mount it read-write")
    module.exit_json(changed=bool(diffs), diff=diffs)


if __name__ == "__main__":
    main()
