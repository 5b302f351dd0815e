#!/usr/bin/python
"""Make apt read one source of ours and no other, or its own ones again: the Ansible module `airgap_sources`.

The switch, a file of apt's settings, is written last and removed first: a run that is killed in between leaves apt with one or with the
other, and never with a source that is half there.
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
    """Return a file's text; empty where there is none."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def place(path: Path, content: str) -> None:
    """Write a file that everybody may read, as a whole or not at all."""
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


def bring(files: Sequence[Mapping[str, str]], *, check: bool) -> list[dict[str, str]]:
    """Write what differs, in this order; return the differences. An index is long: its lines are not shown."""
    diffs = []
    for file in files:
        path, wanted = Path(file["path"]), file["content"]
        before = read(path)
        if before == wanted:
            continue
        short = len(wanted) < 4096
        diffs.append(
            {
                "before_header": str(path),
                "after_header": str(path),
                "before": before if short else f"{before.count(chr(10))} lines\n",
                "after": wanted if short else f"{wanted.count(chr(10))} lines\n",
            }
        )
        if not check:
            place(path, wanted)
    return diffs


def withdraw(switch: Path, folder: Path, *, check: bool) -> list[dict[str, str]]:
    """Remove what `bring` wrote; return the differences."""
    diffs = []
    for path in (switch, folder):
        if not os.path.lexists(path):
            continue
        diffs.append({"before_header": str(path), "after_header": str(path), "before": "there\n", "after": ""})
        if check:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return diffs


def main() -> None:
    """Read the arguments, bring or withdraw, and report."""
    text = {"type": "str", "required": True}
    spec = {
        "files": {"type": "list", "elements": "dict", "options": {"path": text, "content": text}, "required": True},
        "folder": text,
        "switch": text,
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    wanted = module.params
    try:
        if wanted["files"]:
            diffs = bring(wanted["files"], check=module.check_mode)
        else:
            diffs = withdraw(Path(wanted["switch"]), Path(wanted["folder"]), check=module.check_mode)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}. Fix: free space on that disk, or mount it for writing")
    module.exit_json(changed=bool(diffs), diff=diffs)


if __name__ == "__main__":
    main()
