#!/usr/bin/python
"""Find training runs that still write to the folder that all accounts shared in earlier releases: the Ansible module `former_metrics`.

Trainers of these releases end with an error when they cannot write their metrics. While such a run is at work, the folder must keep its
mode 1777. Nothing reads what lies in it.

Arguments:
    parent: folder above, which only root can change.
    name: of the shared folder in it.
    fresh_s: a file that was written within so many seconds is of a run at work; one from the future is not.

Returns `files` (name and account of at most 20 such files; none unless the folder has mode 1777) and `msg`. Changes nothing.
"""

from __future__ import annotations

import pwd
import stat
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.safe_files import open_folder, within

LOOK_S = 20.0
CLOCK_S = 60.0  # that a clock may be ahead
MOST_NAMES = 100_000
MOST_SHOWN = 20


def fresh_files(parent: str, name: str, since: float) -> list[tuple[str, int]]:
    """Return name and owner of files `*.prom` that were written after `since` and by now; none unless all accounts may write to the folder.

    Raises:
        OSError: Something else than a folder lies there, or it has too many entries.
    """
    try:
        with open_folder(parent) as above, above.folder(name) as shared:
            if shared.mode != 0o1777:
                return []
            seen = [(file, shared.stat(file)) for file in shared.names(limit=MOST_NAMES) if file.endswith(".prom")]
    except FileNotFoundError:
        return []
    latest = time.time() + CLOCK_S
    return [(file, found.st_uid) for file, found in seen if stat.S_ISREG(found.st_mode) and since < found.st_mtime <= latest]


def account(number: int) -> str:
    """Return the name of an account, or its number if this host has no name for it."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def report(parent: str, name: str, files: list[tuple[str, int]]) -> dict[str, Any]:
    """Return what the module returns."""
    shown = [{"name": file, "account": account(owner)} for file, owner in files[:MOST_SHOWN]]
    words = ", ".join(f"{one['name']!a} of {one['account']}" for one in shown)
    fix = (
        f"tell their owners to set telemetry.prometheus_file to {parent}/{name}/ACCOUNT/NAME.prom, and apply again once the runs have"
        f" ended; or close it now with `chmod 755 {parent}/{name}` as root, which ends runs of earlier releases that write there"
    )
    return {
        "files": shown,
        "msg": f"{parent}/{name} stays writable for all accounts: runs write there ({words}). Fix: {fix}." if shown else "",
    }


def main() -> None:
    """Read the arguments, look, and report."""
    spec = {
        "parent": {"type": "path", "required": True},
        "name": {"type": "str", "required": True},
        "fresh_s": {"type": "int", "required": True},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    parent, name = module.params["parent"], module.params["name"]
    since = time.time() - module.params["fresh_s"]
    try:
        files = within(LOOK_S, lambda: fresh_files(parent, name, since))
    except OSError:  # what is wrong there is reported by the task that corrects the folder
        files = []
    module.exit_json(changed=False, **report(parent, name, files))


if __name__ == "__main__":
    main()
