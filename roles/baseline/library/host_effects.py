#!/usr/bin/python
"""Look at a tuned host as a service, a login and a program on it see it: the Ansible module `host_effects`, which changes nothing.

What the tuning had to skip is not judged here; a look that fails gives `unknown`, and only a wrong value gives `fail`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.tuned_host import Host

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The words of proc(5), /proc/pid/limits.
ROWS = {"memlock": "Max locked memory", "nofile": "Max open files", "nproc": "Max processes"}
SHOW = "cat /proc/self/limits"
VIEWS = {
    "service": ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", "/bin/sh", "-c", SHOW],
    "login": ["su", "-s", "/bin/sh", "nobody", "-c", SHOW],
}


def judge(host: Host, check: str, *, expected: str, found: str, fix: str) -> None:
    """Record a pass, a fail, or unknown where nothing was found at all."""
    verdict = "pass" if found == expected else "fail" if found else "unknown"
    if verdict == "pass":
        host.judge(check, verdict, expected=expected, found=found)
        return
    reason = "not what was stated" if found else "the look itself failed"
    host.judge(check, verdict, expected=expected, found=found, reason=reason, fix=fix)
    if verdict == "fail":
        host.broken.append(f"{check}: expected {expected}, found {found}. Fix: {fix}")


def look_at_limits(host: Host, limits: Mapping[str, Mapping[str, int]], skipped: Iterable[str]) -> None:
    """Compare the limits that a fresh service and a fresh login have."""
    due = {name: limit for name, limit in limits.items() if f"baseline.limit.{name}" not in skipped}
    for view, argv in VIEWS.items() if due else ():
        _, output = host.run(argv)
        for name, limit in due.items():
            expected = " ".join("unlimited" if limit[side] < 0 else str(limit[side] * limit["scale"]) for side in ("soft", "hard"))
            row = re.search(rf"(?m)^{ROWS[name]}\s+(\S+)\s+(\S+)", output)
            found = " ".join(row.groups()) if row else ""
            fix = "look for another file in /etc/security/limits.d or system.conf.d that sets it after 90-primus.conf"
            judge(host, f"effect.limit.{name}.{view}", expected=expected, found=found, fix=fix)


def look_at_names(host: Host, lines: Iterable[str]) -> None:
    """Compare what each name of the hosts block resolves to, as programs resolve it."""
    for line in lines:
        address, name = line.split()[:2]
        status, output = host.run(["getent", "ahosts", name])
        # 2 is getent's own word for a name that nobody knows; anything else is a look that failed.
        found = output.split()[0] if status == 0 and output else "nothing" if status == 2 else ""
        fix = "remove the other entry of that name from /etc/hosts, and let `files` come first in /etc/nsswitch.conf"
        judge(host, f"effect.name.{name}", expected=address, found=found, fix=fix)


def look_at_time(host: Host, unit: str) -> None:
    """See whether the time service runs, and whether it follows a server yet."""
    status, state = host.run(["systemctl", "is-active", unit])
    judge(host, "effect.time.service", expected="active", found="" if status == 127 else state, fix=f"see `journalctl -u {unit}`")
    _, tracking = host.run(["chronyc", "-n", "tracking"])
    leap = re.search(r"(?m)^Leap status\s*:\s*(.+)$", tracking)
    synchronised = bool(leap and leap.group(1).strip() == "Normal")
    judge(host, "effect.time.synchronised", expected="yes", found="yes" if synchronised else "", fix="see `chronyc sources`")


def look_at_upgrades(host: Host) -> None:
    """Compare what apt makes of all its configuration files together."""
    status, output = host.run(["apt-config", "dump", "APT::Periodic::Enable"])
    found = (output or "not set") if status == 0 else ""
    fix = "look for a file in /etc/apt/apt.conf.d that sets it after 90primus"
    judge(host, "effect.unattended_upgrades", expected='APT::Periodic::Enable "0";', found=found, fix=fix)


def main() -> None:
    """Read the arguments, look, and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "limits": {"type": "dict", "required": True},
            "hosts_lines": {"type": "list", "elements": "str", "required": True},
            "time_service": {"type": "str", "required": True},
            "apt_upgrades_off": {"type": "bool", "required": True},
            "skipped": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    wanted: Mapping[str, Any] = module.params
    host = Host(wanted["host"], check=True)
    look_at_limits(host, wanted["limits"], wanted["skipped"])
    look_at_names(host, wanted["hosts_lines"])
    if "baseline.time" not in wanted["skipped"]:
        look_at_time(host, wanted["time_service"])
    if wanted["apt_upgrades_off"]:
        look_at_upgrades(host)
    result = {"changed": False, "verdicts": host.verdicts, "stdout": json.dumps({"verdicts": host.verdicts})}
    if host.broken:
        module.fail_json(msg="; ".join(host.broken), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
