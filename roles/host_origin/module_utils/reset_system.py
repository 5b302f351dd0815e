# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Restore units and kernel values."""

from __future__ import annotations

import glob
import os
import re
from typing import TYPE_CHECKING

from ansible.module_utils import origin_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ansible.module_utils.origin_record import Origin
    from ansible.module_utils.reset_host import Host

STARTABLE = ("enabled", "enabled-runtime", "disabled")
RUNNING = ("active", "activating", "reloading", "deactivating")


def stop_units(host: Host, names: Sequence[str]) -> None:
    """Stop and disable units."""
    now = origin_record.unit_states(host) if names else {}
    for name in names:
        file_state, active = now.get(name, ("", "inactive"))
        fix = f"read `systemctl status {name}` and end what keeps it from stopping"
        if active in RUNNING and not host.run_change(name, active, "stopped", ["systemctl", "stop", name], fix=fix):
            continue
        if file_state == "enabled":
            host.run_change(name, "enabled", "disabled", ["systemctl", "disable", name], fix=fix)
        if active != "inactive" and not host.check:
            # If the program fails while it is stopped, its unit stays in the state failed, even without its file.
            host.run(["systemctl", "reset-failed", name])


def stop_unrecorded_units(host: Host, names: Sequence[str]) -> None:
    """Stop services that may have run before: without the role's configuration they could accept connections from everywhere."""
    before = len(host.diffs)
    stop_units(host, names)
    for name in dict.fromkeys(diff["before_header"] for diff in host.diffs[before:]):
        reason = "it is stopped because its configuration is removed; it may have run before the first apply"
        host.kept(name, reason, f"if it is needed, check its configuration, then `systemctl enable --now {name}`")


def restore_units(host: Host, origin: Origin, names: Iterable[str]) -> None:
    """Restore the state of units that existed before: masked, enabled, running."""
    names = [name for name in names if name in origin.units]
    now = origin_record.unit_states(host) if names else {}
    for name in names:
        (file_before, active_before), (file_now, active_now) = origin.units[name], now.get(name, ("", "inactive"))
        fix = f"read `systemctl status {name}`"
        if file_now == "masked" != file_before:
            host.run_change(name, "masked", "unmasked", ["systemctl", "unmask", name], fix=fix)
            file_now = origin_record.unit_states(host).get(name, ("", ""))[0]
        if file_before != file_now and file_before in STARTABLE and file_now in STARTABLE:
            verb = "disable" if file_before == "disabled" else "enable"
            host.run_change(name, file_now, file_before, ["systemctl", verb, name], fix=fix)
        if (active_before == "active") != (active_now == "active"):
            verb = "start" if active_before == "active" else "stop"
            host.run_change(name, active_now, active_before, ["systemctl", verb, name], fix=fix)


def restore_kernel_values(host: Host, origin: Origin, sysctls: Iterable[str], patterns: Iterable[str]) -> None:
    """Restore kernel parameters and files of /sys. Files that cannot be written on this host were never changed."""
    paths = ["/proc/sys/" + key.translate(str.maketrans("./", "/.")) for key in sysctls]
    for pattern in patterns:
        found = glob.glob(str(host.at(pattern)))  # noqa: PTH207 - an absolute pattern, which Path.glob refuses
        paths += sorted("/" + os.path.relpath(path, host.root) for path in found)
    for path in paths:
        before, now = origin.kernel.get(path), host.read(path).strip()
        if before is None or " ".join(before.split()) == " ".join(now.split()) or not os.access(host.at(path), os.W_OK):
            continue
        chosen = re.search(r"\[(\S+)\]", before)
        try:
            if not host.check:
                host.at(path).write_text(chosen.group(1) if chosen else before, encoding="utf-8")
        except OSError as error:
            host.kept(path, f"the kernel refuses its original value: {os.strerror(error.errno or 0).lower()}", "reboot the host")
            continue
        host.changed(path, now, before)
