#!/usr/bin/python
"""Find training runs that still write to the folder that all accounts shared in earlier releases: the Ansible module `former_metrics`.

Trainers of those releases end with an error if they cannot write their metrics. While such a run is active, the folder must keep its
mode 1777. Nothing reads its files.

It is a module of its own because ansible.builtin.find follows links in folders that users can write to, and has no time limit.

Arguments:
    parent: Parent folder, which only root can change.
    name: Name of the shared folder.
    fresh_s: A file that was written within this number of seconds belongs to an active run. A file with a future time does not.

Returns `files` (name and account of at most 20 such files; none unless the folder has mode 1777) and `msg`. Changes nothing.
"""

from __future__ import annotations

import pwd
import stat
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.safe_files import open_folder, within

TIMEOUT_S = 20.0
CLOCK_S = 60.0  # allowed difference of clocks
MAX_NAMES = 100_000
MAX_FILES = 20


def fresh_files(parent: str, name: str, since: float) -> list[tuple[str, int]]:
    """Return name and owner of the `*.prom` files written between `since` and now; none unless all accounts may write to the folder.

    Raises:
        OSError: The path is not a folder, or it has too many entries.
    """
    try:
        with open_folder(parent) as top, top.folder(name) as shared:
            if shared.mode != 0o1777:
                return []
            files = [(file, shared.stat(file)) for file in shared.names(limit=MAX_NAMES) if file.endswith(".prom")]
    except FileNotFoundError:
        return []
    latest = time.time() + CLOCK_S
    return [(file, status.st_uid) for file, status in files if stat.S_ISREG(status.st_mode) and since < status.st_mtime <= latest]


def account(number: int) -> str:
    """Return the name of an account, or its user ID if this host does not know it."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def report(parent: str, name: str, files: list[tuple[str, int]]) -> dict[str, Any]:
    """Return the result of the module."""
    shown = [{"name": file, "account": account(owner)} for file, owner in files[:MAX_FILES]]
    listed = ", ".join(f"{one['name']!a} of {one['account']}" for one in shown)
    fix = (
        f"ask their owners to set telemetry.prometheus_file to {parent}/{name}/ACCOUNT/NAME.prom, and apply again after the runs have"
        f" ended; or run `chmod 755 {parent}/{name}` as root now, which ends runs of earlier releases that write there"
    )
    return {
        "files": shown,
        "msg": f"{parent}/{name} stays writable for all accounts, because runs write there ({listed}). Fix: {fix}." if shown else "",
    }


def main() -> None:
    """Read the arguments, list the files and report them."""
    spec = {
        "parent": {"type": "path", "required": True},
        "name": {"type": "str", "required": True},
        "fresh_s": {"type": "int", "required": True},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    parent, name = module.params["parent"], module.params["name"]
    since = time.time() - module.params["fresh_s"]
    try:
        files = within(TIMEOUT_S, lambda: fresh_files(parent, name, since))
    except OSError:  # the task that corrects the folder reports the error
        files = []
    module.exit_json(changed=False, **report(parent, name, files))


if __name__ == "__main__":
    main()
