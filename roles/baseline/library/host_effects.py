#!/usr/bin/python
"""Ansible module `host_effects`: verify limits, name resolution, time and upgrades as programs on the host get them. Changes nothing.

It runs several programs and returns verdict records, which no existing module does. A program that fails gives `unknown`; only a wrong
value gives `fail`. Checks that host_tuning skipped are left out.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.tuned_host import Host

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Row names of /proc/pid/limits, see proc(5).
LIMIT_ROWS = {"memlock": "Max locked memory", "nofile": "Max open files", "nproc": "Max processes"}
# Prints the restart mode as needrestart reads it: its file, which reads conf.d.
NEEDRESTART_CONF = "/etc/needrestart/needrestart.conf"
PRINT_RESTART_MODE = "our %nrconf; our $LOGPREF = q(); do shift; die $@ if $@; print $nrconf{restart} // q(not set)"
PRINT_LIMITS = "cat /proc/self/limits"
VIEWS = {
    "service": ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", "/bin/sh", "-c", PRINT_LIMITS],
    "login": ["su", "-s", "/bin/sh", "nobody", "-c", PRINT_LIMITS],
}


def compare(host: Host, check: str, *, expected: str, found: str, fix: str) -> None:
    """Record a pass or a fail, or unknown if nothing was found."""
    verdict = "pass" if found == expected else "fail" if found else "unknown"
    if verdict == "pass":
        host.record(check, verdict, expected=expected, found=found)
        return
    reason = "the value differs from the inventory" if found else "the command that reads it failed"
    host.record(check, verdict, expected=expected, found=found, reason=reason, fix=fix)
    if verdict == "fail":
        host.failures.append(f"{check}: expected {expected}, found {found}. Fix: {fix}")


def check_limits(host: Host, limits: Mapping[str, Mapping[str, int]], skipped: Iterable[str]) -> None:
    """Compare the limits of a new service and of a new login."""
    due = {name: limit for name, limit in limits.items() if f"baseline.limit.{name}" not in skipped}
    for view, argv in VIEWS.items() if due else ():
        _, output = host.run(argv)
        for name, limit in due.items():
            expected = " ".join("unlimited" if limit[side] < 0 else str(limit[side] * limit["scale"]) for side in ("soft", "hard"))
            row = re.search(rf"(?m)^{LIMIT_ROWS[name]}\s+(\S+)\s+(\S+)", output)
            found = " ".join(row.groups()) if row else ""
            fix = "remove the file in /etc/security/limits.d or /etc/systemd/system.conf.d that sets it after 90-primus.conf"
            compare(host, f"effect.limit.{name}.{view}", expected=expected, found=found, fix=fix)


def check_names(host: Host, lines: Iterable[str]) -> None:
    """Compare the address that each name of the hosts block resolves to."""
    for line in lines:
        address, name = line.split()[:2]
        status, output = host.run(["getent", "ahosts", name])
        # getent exits with 2 if the name does not exist. Any other code means that the lookup failed.
        found = output.split()[0] if status == 0 and output else "nothing" if status == 2 else ""
        fix = "remove the other entry of that name from /etc/hosts, and put `files` first in /etc/nsswitch.conf"
        compare(host, f"effect.name.{name}", expected=address, found=found, fix=fix)


def check_time(host: Host, unit: str) -> None:
    """Check whether the time service runs and is synchronised with a server."""
    status, state = host.run(["systemctl", "is-active", unit])
    compare(host, "effect.time.service", expected="active", found="" if status == 127 else state, fix=f"see `journalctl -u {unit}`")
    _, tracking = host.run(["chronyc", "-n", "tracking"])
    leap = re.search(r"(?m)^Leap status\s*:\s*(.+)$", tracking)
    synchronised = bool(leap and leap.group(1).strip() == "Normal")
    compare(host, "effect.time.synchronised", expected="yes", found="yes" if synchronised else "", fix="see `chronyc sources`")


def check_time_servers(host: Host, servers: Iterable[str]) -> None:
    """Check that each time server has an address. A failed check does not end the run: chrony may use the other servers."""
    for server in servers:
        status, output = host.run(["getent", "ahosts", server])
        verdict = "pass" if status == 0 and output else "fail" if status == 2 else "unknown"
        reason = {"pass": "", "fail": f"the time server {server} has no address", "unknown": "the command that reads it failed"}[verdict]
        fix = "" if verdict == "pass" else f"correct {server} in baseline_ntp_servers, or the DNS servers of this host"
        host.record(f"effect.time.server.{server}", verdict, expected="an address", found=output.split("\n")[0], reason=reason, fix=fix)


def check_upgrades(host: Host) -> None:
    """Check the setting that results from all of apt's configuration files."""
    status, output = host.run(["apt-config", "dump", "APT::Periodic::Enable"])
    found = (output or "not set") if status == 0 else ""
    fix = "remove the file in /etc/apt/apt.conf.d that sets it after 90primus"
    compare(host, "effect.unattended_upgrades", expected='APT::Periodic::Enable "0";', found=found, fix=fix)


def check_needrestart(host: Host) -> None:
    """Check the restart mode that results from all of needrestart's configuration files, on a host that has it."""
    if not host.at(NEEDRESTART_CONF).exists():
        host.record("effect.needrestart", "skipped", expected="l", found="", reason="needrestart is not installed")
        return
    status, output = host.run(["perl", "-e", PRINT_RESTART_MODE, str(host.at(NEEDRESTART_CONF))])
    fix = "remove the file in /etc/needrestart/conf.d that sets $nrconf{restart} after 90-primus.conf"
    compare(host, "effect.needrestart", expected="l", found=output if status == 0 else "", fix=fix)


def main() -> None:
    """Run all checks and report the verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "limits": {"type": "dict", "required": True},
            "hosts_lines": {"type": "list", "elements": "str", "required": True},
            "time_service": {"type": "str", "required": True},
            "time_servers": {"type": "list", "elements": "str", "required": True},
            "apt_upgrades_off": {"type": "bool", "required": True},
            "needrestart_list_only": {"type": "bool", "required": True},
            "skipped": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    options: Mapping[str, Any] = module.params
    host = Host(options["host"], check=True)
    check_limits(host, options["limits"], options["skipped"])
    check_names(host, options["hosts_lines"])
    check_time_servers(host, options["time_servers"])
    if "baseline.time" not in options["skipped"]:
        check_time(host, options["time_service"])
    if options["apt_upgrades_off"]:
        check_upgrades(host)
    if options["needrestart_list_only"]:
        check_needrestart(host)
    result = {"changed": False, "verdicts": host.verdicts, "stdout": json.dumps({"verdicts": host.verdicts})}
    if host.failures:
        module.fail_json(msg="; ".join(host.failures), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
