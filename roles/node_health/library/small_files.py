#!/usr/bin/python
"""Ansible module `small_files`: write several files of root atomically in one task.

A loop over ansible.builtin.copy needs one connection per file, which is slow on many hosts.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule


def differs(path: Path, content: str, mode: int) -> str | None:
    """Return the current text of a file if its text or mode differs; None if both are equal."""
    try:
        before = path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return None if before == content and path.stat().st_mode & 0o7777 == mode else before


def write(path: Path, content: str, mode: int) -> None:
    """Replace a file atomically; create its folder if it is missing."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".primus-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(content)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def main() -> None:
    """Run as an Ansible module."""
    options = {
        "path": {"type": "str", "required": True},
        "content": {"type": "str", "required": True},
        "mode": {"type": "str", "default": "0644"},
    }
    spec = {"files": {"type": "list", "elements": "dict", "required": True, "options": options}}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    os.umask(0o022)
    diff: list[dict[str, Any]] = []
    for file in module.params["files"]:
        path, mode = Path(file["path"]), int(file["mode"], 8)
        before = differs(path, file["content"], mode)
        if before is None:
            continue
        diff.append({"before_header": file["path"], "after_header": file["path"], "before": before, "after": file["content"]})
        if not module.check_mode:
            try:
                write(path, file["content"], mode)
            except OSError as error:
                module.fail_json(msg=f"{file['path']} cannot be written: {error}. Fix: make its file system writable, or free space on it")
    module.exit_json(changed=bool(diff), diff=diff)


if __name__ == "__main__":
    main()
