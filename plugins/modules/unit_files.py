#!/usr/bin/python
"""Ansible module `unit_files`: restart or reload a unit that runs with other files than those on the host.

The unit records the SHA-256 sums of its files when it starts or reloads. Handlers and ansible.builtin.systemd_service do not know what a
running unit has read; this module also completes a run that was interrupted between writing the files and restarting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Runner = Callable[[Sequence[str]], "tuple[int, str, str]"]

LOG_LINES = "8"


def is_current(run: Runner, unit: str, sums: str, action: str) -> bool:
    """Return whether the files match the recorded sums, and, before a restart, whether the unit runs."""
    if action == "restart" and run(["systemctl", "is-active", "--quiet", unit])[0]:
        return False
    return run(["sha256sum", "--status", "--check", sums])[0] == 0


def apply(run: Runner, unit: str, action: str) -> str:
    """Restart or reload the unit; return the error with the last lines of its journal, or an empty string."""
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
            "sums": {"type": "path", "required": True},
            "action": {"type": "str", "choices": ["restart", "reload"], "default": "restart"},
        },
        supports_check_mode=True,
    )
    unit, action = module.params["unit"], module.params["action"]
    changed = not is_current(module.run_command, unit, module.params["sums"], action)
    problem = apply(module.run_command, unit, action) if changed and not module.check_mode else ""
    if problem:
        module.fail_json(msg=problem)
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
