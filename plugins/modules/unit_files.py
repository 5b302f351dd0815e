#!/usr/bin/python
"""Ansible module `unit_files`: restart or reload a unit that runs with other files than those on the host.

A unit of ours records the SHA-256 sums of its files when it starts or reloads. For a unit of the distribution, such as sshd, this module
records the sums of `files` afterwards. Handlers and ansible.builtin.systemd_service do not know what a running unit has read; this module
also completes a run that was interrupted between writing the files and restarting.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.atomic_files import write_atomic
from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Runner = Callable[[Sequence[str]], "tuple[int, str, str]"]

LOG_LINES = "8"


def is_current(run: Runner, unit: str, sums: str, action: str) -> bool:
    """Return whether the files match the recorded sums, and, before a restart, whether the unit runs."""
    if action == "restart" and run(["systemctl", "is-active", "--quiet", unit])[0]:
        return False
    return run(["sha256sum", "--status", "--check", sums])[0] == 0


def sums_of(files: Iterable[str]) -> str:
    """Return what sha256sum prints for the files that exist."""
    return "".join(f"{hashlib.sha256(Path(file).read_bytes()).hexdigest()}  {file}\n" for file in files if Path(file).exists())


def has_sums(sums: str, files: Iterable[str]) -> bool:
    """Return whether the recorded sums are those of the files; a file that was removed counts as changed."""
    record = Path(sums)
    return (record.read_text(encoding="utf-8") if record.exists() else "").strip() == sums_of(files).strip()


def apply(run: Runner, unit: str, action: str, check: Sequence[str] = ()) -> str:
    """Restart or reload the unit; return the error with the last lines of its journal, or an empty string.

    `check` is a program that checks the configuration first: a daemon that reads a wrong one may end.
    """
    if check and (failed := run(check))[0]:
        return f"`{' '.join(check)}` failed: {failed[2].strip()}. Fix: correct what it names, then apply again"
    if action == "restart":
        run(["systemctl", "reset-failed", unit])
    status, _, error = run(["systemctl", action, unit])
    if not status:
        return ""
    _, log, _ = run(["journalctl", "--unit", unit, "--lines", LOG_LINES, "--no-pager", "--output", "cat"])
    lines = "\n".join(filter(None, (error.strip(), log.strip())))
    return f"`systemctl {action} {unit}` failed:\n{lines}\nFix: correct what these lines name, then apply again"


def main() -> None:
    """Restart or reload the unit if necessary; in check mode report whether it would be."""
    module = AnsibleModule(
        {
            "unit": {"type": "str", "required": True},
            "alias": {"type": "str", "default": ""},  # its name on a host that has no `unit`: ssh is sshd on RHEL
            "sums": {"type": "path", "required": True},
            "action": {"type": "str", "choices": ["restart", "reload"], "default": "restart"},
            "files": {"type": "list", "elements": "path", "default": []},
            "check": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    unit, action, sums, files = (module.params[name] for name in ("unit", "action", "sums", "files"))
    if module.params["alias"] and module.run_command(["systemctl", "cat", unit])[0]:
        unit = module.params["alias"]
    changed = not (has_sums(sums, files) if files else is_current(module.run_command, unit, sums, action))
    if changed and not module.check_mode:
        problem = apply(module.run_command, unit, action, module.params["check"])
        if problem:
            module.fail_json(msg=problem)
        if files:
            write_atomic(Path(sums), sums_of(files), mode=0o644)
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
