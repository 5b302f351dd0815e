# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Read the state of systemd units."""

from __future__ import annotations

from ansible.module_utils.commands import run_command

CALL_S = 15.0


def unit_properties(unit: str, *names: str) -> dict[str, str]:
    """Return properties of a unit, such as `ActiveState`; empty if systemd does not answer. They are in `man systemd.unit`."""
    try:
        output = run_command(["systemctl", "show", f"--property={','.join(names)}", unit], timeout_s=CALL_S).stdout
    except OSError:
        return {}
    return dict(line.partition("=")[::2] for line in output.splitlines() if "=" in line)
