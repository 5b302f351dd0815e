#!/usr/bin/python
"""Ansible module `host_tuning`: set kernel values, limits, swap, files and units of one host.

It changes only what differs and returns one verdict record for each setting. A setting that root cannot change on this host (a kernel
parameter in a container, a limit above the hard limit) is reported as `skipped` with the reason and left out of the files that are read
at boot. ansible.posix.sysctl and similar modules fail on such hosts, which is why this module exists.
Before a configuration file changes, a marker in /var/lib/primus/baseline records that its service needs a restart. If a run is
interrupted before the restart, the next run restarts the service.
"""

from __future__ import annotations

import glob
import json
import os
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host_files import replace_link
from ansible.module_utils.tuned_host import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

HEADER = "# Ansible managed: role baseline of primus-bootstrap; changes by hand are overwritten.\n"
# Keys that exist per namespace. A container shares every other key with its machine.
NAMESPACED_KEYS = ("net.", "kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")
# Missing if the kernel was built or started without the feature.
OPTIONAL_KEYS = ("kernel.numa_balancing", "net.ipv6.")
# Read after 99-sysctl.conf, and after 99-protect-links.conf, in which Debian 12 and Ubuntu set fs.protected_fifos.
SYSCTL_FILE = "/etc/sysctl.d/99-zz-primus.conf"
BOOT_ARGUMENTS_FILE = "/etc/primus/kernel-arguments"  # those that grubby has added
CAP_SYS_TIME = 25  # include/uapi/linux/capability.h


def kernel_value(text: str) -> str:
    """Return the current value from a kernel file: the word in brackets of a choice, else the text with single blanks."""
    chosen = re.search(r"\[(\S+)\]", text)
    return chosen.group(1) if chosen else " ".join(text.split())


def managed_text(lines: Iterable[str], *, first: str = "") -> str:
    """Return the lines with a header, or an empty text if there are none."""
    body = "".join(f"{line}\n" for line in lines)
    return f"{HEADER}{first}{body}" if body else ""


def set_kernel_value(host: Host, check: str, paths: Sequence[str], wanted: str, *, skip: str) -> bool:
    """Write one value to one or more kernel files; return whether to set it at boot as well.

    Args:
        host: The host.
        check: Name of the verdict.
        paths: The files; a frequency governor has one for each processor.
        wanted: The value.
        skip: Reason why this host cannot change it, if already known.
    """
    wanted = " ".join(wanted.split())
    values = {path: kernel_value(host.read(path) or "") for path in paths}
    differing = [path for path, value in values.items() if value != wanted]
    found = ", ".join(sorted(set(values.values())))
    if paths and not differing:
        host.record(check, "pass", expected=wanted, found=found)
        return not skip
    try:
        skip = skip or next(filter(None, (host.set_kernel_file(path, wanted) for path in differing)), "")
    except OSError as error:
        reason = f"the kernel refuses the value {wanted}: {os.strerror(error.errno or 0).lower()}"
        host.fail(check, expected=wanted, found=found, reason=reason, fix="set a value that this kernel supports")
        return False
    if skip:
        host.record(check, "skipped", expected=wanted, found=found, reason=skip)
        return False
    after = {kernel_value(host.read(path) or "") for path in paths}
    if not host.check and after != {wanted}:
        reason = f"wrote {wanted}, but the kernel shows {', '.join(sorted(after))}"
        host.fail(check, expected=wanted, found=found, reason=reason, fix="set a value within the kernel's limits")
        return False
    host.changed(check, found, wanted)
    host.record_applied(check, expected=wanted, found=found)
    return True


def set_sysctls(host: Host, wanted: Mapping[str, Any]) -> None:
    """Set kernel parameters, now and at boot."""
    persistent = []
    for key, value in sorted(wanted.items()):
        check, path = f"sysctl.{key}", "/proc/sys/" + key.translate(str.maketrans("./", "/."))
        absent = "" if host.at(path).exists() else f"this kernel or network namespace has no {key}"
        if absent and not host.container and not key.startswith(OPTIONAL_KEYS):
            fix = "correct the name in baseline_sysctl_extra, or add its kernel module to baseline_kernel_modules"
            host.fail(check, expected=str(value), found="", reason=absent, fix=fix)
            continue
        skip = absent or ("" if key.startswith(NAMESPACED_KEYS) else host.machine_reason("the kernel"))
        if set_kernel_value(host, check, [path], str(value), skip=skip):
            persistent.append(f"{key} = {value}")
    host.write(SYSCTL_FILE, managed_text(persistent))
    host.write("/etc/sysctl.d/90-primus.conf", "")  # its earlier name


def set_sysfs(host: Host, settings: Sequence[Mapping[str, str]]) -> None:
    """Set /sys values now, and at boot with systemd-tmpfiles."""
    persistent = []
    for setting in settings:
        found = glob.glob(str(host.at(setting["pattern"])))  # noqa: PTH207 - an absolute pattern, which Path.glob refuses
        paths = sorted(f"/{os.path.relpath(path, host.root)}" for path in found)
        skip = host.machine_reason("the kernel") or ("" if paths else setting["absent"])
        if set_kernel_value(host, setting["check"], paths, setting["value"], skip=skip):
            persistent.append(f"w- {setting['pattern']} - - - - {setting['value']}")
    host.write("/etc/tmpfiles.d/90-primus.conf", managed_text(persistent))


def load_modules(host: Host, names: Sequence[str]) -> None:
    """Load kernel modules, now and at boot."""
    persistent = []
    for name in names:
        check = f"kernel_module.{name}"
        if host.at(f"/sys/module/{name.replace('-', '_')}").exists():
            host.record(check, "pass", expected="loaded", found="loaded")
        elif host.container:
            host.record(check, "skipped", expected="loaded", found="absent", reason=host.machine_reason("the kernel"))
            continue
        else:
            status, output = (0, "") if host.check else host.run(["modprobe", "--", name])
            if status:
                fix = "install the package that has this module for the running kernel"
                host.fail(check, expected="loaded", found="absent", reason=output, fix=fix)
                continue
            host.changed(check, "absent", "loaded")
            host.record_applied(check, expected="loaded", found="absent")
        persistent.append(name)
    host.write("/etc/modules-load.d/90-primus.conf", managed_text([] if host.container else persistent))


def can_set_limit(limit: int, soft: int, hard: int) -> bool:
    """Return whether a process of root can set this limit, by trying it in a child process."""
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(limit, (soft, hard))
        except (OSError, ValueError):
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def set_limits(host: Host, limits: Mapping[str, Mapping[str, int]], may: Callable[[int, int, int], bool] = can_set_limit) -> None:
    """Set the limits of logins (PAM) and of services (systemd).

    A limit that PAM cannot set makes every login fail, so a limit that root cannot raise on this host is not written.

    Args:
        host: The host.
        limits: By name (`nofile`, …): `soft` and `hard` in the unit of limits.conf (-1 = no limit), and `scale`, the factor from that
            unit to the kernel's.
        may: Returns whether root can set a limit; replaced in tests.
    """
    logins, services, settable = [], [], {}
    for name, limit in limits.items():
        soft, hard = (-1 if limit[side] < 0 else limit[side] * limit["scale"] for side in ("soft", "hard"))
        expected = ":".join("unlimited" if limit[side] < 0 else str(limit[side]) for side in ("soft", "hard"))
        number = getattr(resource, f"RLIMIT_{name.upper()}")
        if not may(number, soft, hard):
            highest = resource.getrlimit(number)[1]
            reason = f"root cannot raise it above {highest} on this host: no CAP_SYS_RESOURCE, or above the kernel's limit"
            host.record(f"limit.{name}", "skipped", expected=expected, found=str(highest), reason=reason)
            continue
        shown = dict(zip(("soft", "hard"), expected.split(":")))  # noqa: B905 - `strict` needs Python 3.10
        # In limits.conf `*` does not include root.
        logins += [f"{who} {side} {name} {value}" for who in ("*", "root") for side, value in shown.items()]
        services.append(f"DefaultLimit{name.upper()}=" + ":".join("infinity" if value < 0 else str(value) for value in (soft, hard)))
        settable[name] = expected
    differed = host.write("/etc/security/limits.d/90-primus.conf", managed_text(logins))
    differed |= host.write("/etc/systemd/system.conf.d/90-primus.conf", managed_text(services, first="[Manager]\n"), notify="systemd")
    host.run_pending("systemd", ["systemctl", "daemon-reload"])
    for name, expected in settable.items():
        verdict = "fail" if differed and host.check else "pass"
        host.record(f"limit.{name}", verdict, expected=expected, found=expected if verdict == "pass" else "not in limits.d")


def turn_swap_off(host: Host, off: bool) -> None:  # noqa: FBT001 - one signature for all setters
    """Turn every swap area off, now and at boot; do nothing if `off` is false.

    systemd also starts swap units that are not in /etc/fstab: those of an administrator, of zram, and swap partitions that it finds.
    All of them belong to swap.target.
    """
    if not off:
        return
    areas = [line.split()[0] for line in (host.read("/proc/swaps") or "").splitlines()[1:]]
    found = " ".join(areas) or "off"
    if host.container and areas:
        host.record("swap", "skipped", expected="off", found=found, reason=host.machine_reason("the swap area"))
        return
    if not host.container:
        mask_units(host, ["swap.target"])
    table = host.read("/etc/fstab") or ""
    host.write("/etc/fstab", re.sub(r"(?m)^(?=[^#\s]\S*\s+\S+\s+swap\s)", "# off by primus-bootstrap: ", table))
    if not areas:
        host.record("swap", "pass", expected="off", found="off")
        return
    status, output = (0, "") if host.check else host.run(["swapoff", "-a"])
    if status:
        host.fail("swap", expected="off", found=found, reason=output, fix="free memory until the swapped pages fit, then run again")
        return
    host.changed("swap", found, "off")
    host.record_applied("swap", expected="off", found=found)


def set_kernel_arguments(host: Host, arguments: Sequence[str]) -> None:
    """Add arguments to the kernel command line, with GRUB's drop-in folder or with grubby; they take effect at the next boot."""
    expected, given = " ".join(arguments), (host.read("/proc/cmdline") or "").split()
    tools = [tool for tool in ("update-grub", "grubby") if host.at(f"/usr/sbin/{tool}").exists()]
    if host.container or not tools:
        reason = host.machine_reason("the kernel") or "this host has neither update-grub nor grubby"
        if arguments:
            fix = "" if host.container else "set them in this host's boot loader"
            host.record("kernel_arguments", "skipped", expected=expected, found=" ".join(given), reason=reason, fix=fix)
        return
    if tools[0] == "grubby":
        if not update_boot_entries(host, arguments):
            return
    else:
        line = [f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {expected}"'] if arguments else []
        host.write("/etc/default/grub.d/90-primus.cfg", managed_text(line), notify="grub")
        host.run_pending("grub", ["update-grub"])
    absent = [argument for argument in arguments if argument not in given]
    if absent:
        reason = f"set for the next boot, not in effect yet: {' '.join(absent)}"
        fix = f"ansible-playbook -i hosts.yaml playbooks/day2/reboot_node.yml --limit {host.name}"
        host.record("kernel_arguments", "fail", expected=expected, found=" ".join(given), reason=reason, fix=fix)
    elif arguments:
        host.record("kernel_arguments", "pass", expected=expected, found=" ".join(given))


def update_boot_entries(host: Host, arguments: Sequence[str]) -> bool:
    """Add arguments to every boot entry of RHEL, and remove those of an earlier run; return whether that worked.

    grubby has no drop-in folder, so a file tells which arguments are ours. It also changes /etc/default/grub, for kernels that come later.
    """
    ours = [line for line in (host.read(BOOT_ARGUMENTS_FILE) or "").splitlines() if not line.startswith("#")]
    former, command = " ".join(one for one in ours if one not in arguments), ["grubby", "--update-kernel=ALL"]
    status, output = host.run([*command, f"--remove-args={former}"]) if former and not host.check else (0, "")
    if status:
        host.fail("kernel_arguments", expected=f"without {former}", found=former, reason=output, fix="run the same grubby command by hand")
        return False
    host.write(BOOT_ARGUMENTS_FILE, managed_text(arguments), notify="grubby")
    host.run_pending("grubby", [*command, f"--args={' '.join(arguments)}"] if arguments else ["true"])
    return True


def set_timezone(host: Host, zone: str) -> None:
    """Point /etc/localtime at the time zone; do nothing if it is empty."""
    if not zone:
        return
    link, data = host.at("/etc/localtime"), f"/usr/share/zoneinfo/{zone}"
    before = os.path.normpath(Path("/etc") / link.readlink()) if link.is_symlink() else ""
    if before == data:
        host.record("timezone", "pass", expected=zone, found=zone)
        return
    if not host.check and not host.at(data).exists():
        fix = "correct the name in baseline_timezone, or install tzdata"
        host.fail("timezone", expected=zone, found=before, reason=f"there is no {data}", fix=fix)
        return
    if not host.check:
        replace_link(link, data)
    host.changed("/etc/localtime", before, data)
    host.record_applied("timezone", expected=zone, found=before)


def unit_states(host: Host, units: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return LoadState, ActiveState and UnitFileState of each unit, from one call."""
    _, output = host.run(["systemctl", "show", "--property=LoadState,ActiveState,UnitFileState", *units])
    blocks = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in output.split("\n\n")]
    return dict(zip(units, blocks))  # noqa: B905 - `strict` needs Python 3.10


def mask_units(host: Host, units: Sequence[str]) -> None:
    """Stop and mask units; units that this host does not have are ignored."""
    states = unit_states(host, units) if units else {}
    due = [unit for unit, state in states.items() if state.get("LoadState") not in ("masked", "not-found")]
    failed = [unit for unit, state in states.items() if state.get("LoadState") == "masked" and state.get("ActiveState") == "failed"]
    if not due and not failed:
        return
    # Stop first: a timer that is masked while it runs fails, and systemd then reports the host as `degraded`.
    commands = [["systemctl", verb, *units] for verb, units in (("stop", due), ("mask", due), ("reset-failed", failed)) if units]
    for command in commands:
        status, output = host.run(command) if not host.check else (0, "")
        if status:
            host.fail("units", expected="masked", found="", reason=output, fix="read `systemctl status` of that unit")
            return
    host.changed("systemctl mask", "", " ".join([*due, *failed]))


def set_time_service(host: Host, unit: str) -> None:
    """Enable and start the time service, and restart it if its configuration changed."""
    bounding = re.search(r"CapBnd:\s*(\w+)", host.read("/proc/1/status") or "")
    may_set = int(bounding.group(1), 16) >> CAP_SYS_TIME & 1 if bounding else 1
    if host.container or not may_set:
        reason = host.machine_reason("the clock") or "root cannot set the clock on this host (no CAP_SYS_TIME)"
        host.record("time", "skipped", expected=f"{unit} active", found="", reason=reason)
        return
    state = unit_states(host, [unit]).get(unit, {})
    found = f"{unit} {state.get('ActiveState', 'unknown')}"
    if state.get("ActiveState") == "active" and state.get("UnitFileState") == "enabled":
        host.run_pending(unit, ["systemctl", "restart", unit])
        host.record("time", "pass", expected=f"{unit} active", found=found)
        return
    for action in ("enable", "restart"):
        status, output = (0, "") if host.check else host.run(["systemctl", action, unit])
        if status:
            host.fail("time", expected=f"{unit} active", found=found, reason=output, fix=f"read `journalctl -u {unit}`")
            return
    host.changed("time", found, f"{unit} active")
    host.record_applied("time", expected=f"{unit} active", found=found)
    if not host.check:
        host.clear_pending(unit)


def set_files(host: Host, files: Sequence[Mapping[str, Any]]) -> None:
    """Write whole files; one with `create: false` only if it exists already."""
    for file in files:
        if file["create"] or host.at(file["path"]).exists():
            host.write(file["path"], file["content"], notify=file["notify"])


def set_blocks(host: Host, blocks: Sequence[Mapping[str, str]]) -> None:
    """Write a marked block at the top of shared files; in /etc/hosts the first matching line wins."""
    begin, end = "# BEGIN primus-bootstrap\n", "# END primus-bootstrap\n"
    for block in blocks:
        rest = re.sub(rf"(?s){begin}.*?{end}", "", host.read(block["path"]) or "")
        content = block["content"].strip()
        host.write(block["path"], f"{begin}{content}\n{end}{rest}" if content else rest)


# The order matters: a kernel module adds kernel parameters, and a service reads its file.
SETTERS: dict[str, Callable[[Host, Any], None]] = {
    "files": set_files,
    "blocks": set_blocks,
    "masked_units": mask_units,
    "kernel_modules": load_modules,
    "sysctl": set_sysctls,
    "sysfs": set_sysfs,
    "limits": set_limits,
    "swap_off": turn_swap_off,
    "kernel_arguments": set_kernel_arguments,
    "timezone": set_timezone,
    "time_service": set_time_service,
}


def tune(host: Host, settings: Mapping[str, Any]) -> None:
    """Apply every given setting; settings that are not given are not read."""
    for name, setter in SETTERS.items():
        if settings.get(name) is not None:
            setter(host, settings[name])


def main() -> None:
    """Apply the settings and report changes, differences and verdicts."""
    text = {"type": "str", "required": True}
    file_options = {"path": text, "content": text, "notify": {"type": "str", "default": ""}, "create": {"type": "bool", "default": True}}
    module = AnsibleModule(
        argument_spec={
            "host": text,
            "files": {"type": "list", "elements": "dict", "options": file_options},
            "blocks": {"type": "list", "elements": "dict", "options": {"path": text, "content": text}},
            "masked_units": {"type": "list", "elements": "str"},
            "kernel_modules": {"type": "list", "elements": "str"},
            "sysctl": {"type": "dict"},
            "sysfs": {"type": "list", "elements": "dict"},
            "limits": {"type": "dict"},
            "swap_off": {"type": "bool"},
            "kernel_arguments": {"type": "list", "elements": "str"},
            "timezone": {"type": "str"},
            "time_service": {"type": "str"},
        },
        supports_check_mode=True,
    )
    host = Host(module.params["host"], check=module.check_mode)
    try:
        tune(host, module.params)
    except OSError as error:
        host.failures.append(f"{error.filename or 'the host'}: {error.strerror}. Fix: free space on that disk, or mount it read-write")
    result = {
        "changed": bool(host.diffs),
        "diff": host.diffs,
        "verdicts": host.verdicts,
        "stdout": json.dumps({"verdicts": host.verdicts}),
    }
    if host.failures:
        module.fail_json(msg="; ".join(host.failures), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
