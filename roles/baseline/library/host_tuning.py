#!/usr/bin/python
"""Bring one host's kernel values, limits, swap, files and units to the stated ones: the Ansible module `host_tuning`.

It compares first, changes only what differs, and says of every setting whether it is in force: one verdict record each.
What this host does not let root change (a key of the kernel that a container shares, a limit above the hard one) is found
on the host itself, reported as `skipped` with the reason, and left out of the files that are read at boot.
A service is restarted because a mark on disk says that one of its files changed, not because a handler was notified: a run
that is killed in between is finished by the next one.
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
from ansible.module_utils.tuned_host import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

HEADER = "# Ansible managed: role baseline of primus-bootstrap; what is changed here by hand is overwritten.\n"
# Keys that a namespace has for itself. Every other key belongs to the kernel that a container shares with its machine.
NAMESPACED_KEYS = ("net.", "kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")
# Absent where the kernel was built or started without the feature; there is nothing to set then.
OPTIONAL_KEYS = ("kernel.numa_balancing", "net.ipv6.")
CAP_SYS_TIME = 25  # include/uapi/linux/capability.h


def kernel_value(text: str) -> str:
    """Return the value in force from the kernel's text: the bracketed word of a choice, single blanks elsewhere."""
    chosen = re.search(r"\[(\S+)\]", text)
    return chosen.group(1) if chosen else " ".join(text.split())


def managed(lines: Iterable[str], *, first: str = "") -> str:
    """Return the text of a file of ours, or an empty one where there is nothing to say."""
    body = "".join(f"{line}\n" for line in lines)
    return f"{HEADER}{first}{body}" if body else ""


def set_kernel_value(host: Host, check: str, paths: Sequence[str], wanted: str, *, skip: str) -> bool:
    """Bring one value in force in one or many kernel files; return whether to set it at boot as well.

    Args:
        host: Where.
        check: The verdict's name.
        paths: The files, each of which takes the value: a governor has one for each processor.
        wanted: The value.
        skip: Why this host cannot change it, where that is known already.
    """
    wanted = " ".join(wanted.split())
    values = {path: kernel_value(host.read(path) or "") for path in paths}
    differing = [path for path, value in values.items() if value != wanted]
    found = ", ".join(sorted(set(values.values())))
    if paths and not differing:
        host.judge(check, "pass", expected=wanted, found=found)
        return not skip
    try:
        skip = skip or next(filter(None, (host.set_kernel_file(path, wanted) for path in differing)), "")
    except OSError as error:
        reason = f"the kernel refuses the value {wanted}: {os.strerror(error.errno or 0).lower()}"
        host.broke(check, expected=wanted, found=found, reason=reason, fix="set a value that this kernel offers")
        return False
    if skip:
        host.judge(check, "skipped", expected=wanted, found=found, reason=skip)
        return False
    after = {kernel_value(host.read(path) or "") for path in paths}
    if not host.check and after != {wanted}:
        reason = f"the kernel took the value {wanted} and shows {', '.join(sorted(after))}"
        host.broke(check, expected=wanted, found=found, reason=reason, fix="set a value within the kernel's bounds")
        return False
    host.changed(check, found, wanted)
    host.settled(check, expected=wanted, found=found)
    return True


def set_sysctls(host: Host, wanted: Mapping[str, Any]) -> None:
    """Bring kernel parameters in force and keep them over a reboot."""
    kept = []
    for key, value in sorted(wanted.items()):
        check, path = f"sysctl.{key}", "/proc/sys/" + key.translate(str.maketrans("./", "/."))
        absent = "" if host.at(path).exists() else f"this kernel or network namespace has no {key}"
        if absent and not host.container and not key.startswith(OPTIONAL_KEYS):
            fix = "mend the name in baseline_sysctl_extra, or name the module that brings it in baseline_kernel_modules"
            host.broke(check, expected=str(value), found="", reason=absent, fix=fix)
            continue
        skip = absent or ("" if key.startswith(NAMESPACED_KEYS) else host.below("the kernel"))
        if set_kernel_value(host, check, [path], str(value), skip=skip):
            kept.append(f"{key} = {value}")
    host.write("/etc/sysctl.d/90-primus.conf", managed(kept))


def set_sysfs(host: Host, settings: Sequence[Mapping[str, str]]) -> None:
    """Bring /sys values in force and have systemd-tmpfiles set them again at boot."""
    kept = []
    for setting in settings:
        found = glob.glob(str(host.at(setting["pattern"])))  # noqa: PTH207 - an absolute pattern, which Path.glob refuses
        paths = sorted(f"/{os.path.relpath(path, host.root)}" for path in found)
        skip = host.below("the kernel") or ("" if paths else setting["absent"])
        if set_kernel_value(host, setting["check"], paths, setting["value"], skip=skip):
            kept.append(f"w- {setting['pattern']} - - - - {setting['value']}")
    host.write("/etc/tmpfiles.d/90-primus.conf", managed(kept))


def load_modules(host: Host, names: Sequence[str]) -> None:
    """Load kernel modules, now and at boot."""
    kept = []
    for name in names:
        check = f"kernel_module.{name}"
        if host.at(f"/sys/module/{name.replace('-', '_')}").exists():
            host.judge(check, "pass", expected="loaded", found="loaded")
        elif host.container:
            host.judge(check, "skipped", expected="loaded", found="absent", reason=host.below("the kernel"))
            continue
        else:
            status, output = (0, "") if host.check else host.run(["modprobe", "--", name])
            if status:
                fix = "install the package that carries this module for the running kernel"
                host.broke(check, expected="loaded", found="absent", reason=output, fix=fix)
                continue
            host.changed(check, "absent", "loaded")
            host.settled(check, expected="loaded", found="absent")
        kept.append(name)
    host.write("/etc/modules-load.d/90-primus.conf", managed([] if host.container else kept))


def can_set_limit(limit: int, soft: int, hard: int) -> bool:
    """Say whether a process of root's may take this limit, by trying it in a child."""
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(limit, (soft, hard))
        except (OSError, ValueError):
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def set_limits(host: Host, limits: Mapping[str, Mapping[str, int]], may: Callable[[int, int, int], bool] = can_set_limit) -> None:
    """Set the limits of logins (PAM) and of services (systemd), without those that root cannot raise here.

    A limit that PAM cannot set makes every login fail, so one that cannot be raised is not written.

    Args:
        host: Where.
        limits: By name (`nofile`, …): `soft` and `hard` in the unit of limits.conf (-1 = no limit), and `scale`, the
            factor from that unit to the kernel's.
        may: Whether root may take a limit; tests give their own.
    """
    logins, services, settable = [], [], {}
    for name, limit in limits.items():
        soft, hard = (-1 if limit[side] < 0 else limit[side] * limit["scale"] for side in ("soft", "hard"))
        expected = ":".join("unlimited" if limit[side] < 0 else str(limit[side]) for side in ("soft", "hard"))
        number = getattr(resource, f"RLIMIT_{name.upper()}")
        if not may(number, soft, hard):
            top = resource.getrlimit(number)[1]
            reason = f"root cannot raise it here above {top}: no CAP_SYS_RESOURCE, or it is above the kernel's own bound"
            host.judge(f"limit.{name}", "skipped", expected=expected, found=str(top), reason=reason)
            continue
        shown = dict(zip(("soft", "hard"), expected.split(":")))  # noqa: B905 - `strict` needs Python 3.10
        # `*` does not mean root in limits.conf.
        logins += [f"{who} {side} {name} {value}" for who in ("*", "root") for side, value in shown.items()]
        services.append(f"DefaultLimit{name.upper()}=" + ":".join("infinity" if value < 0 else str(value) for value in (soft, hard)))
        settable[name] = expected
    differed = host.write("/etc/security/limits.d/90-primus.conf", managed(logins))
    differed |= host.write("/etc/systemd/system.conf.d/90-primus.conf", managed(services, first="[Manager]\n"), tell="systemd")
    host.tell("systemd", ["systemctl", "daemon-reload"])
    for name, expected in settable.items():
        verdict = "fail" if differed and host.check else "pass"
        host.judge(f"limit.{name}", verdict, expected=expected, found=expected if verdict == "pass" else "not in limits.d")


def turn_swap_off(host: Host, off: bool) -> None:  # noqa: FBT001 - one signature for all setters
    """Turn every swap area off, now and in /etc/fstab; leave swap alone where `off` is false."""
    if not off:
        return
    areas = [line.split()[0] for line in (host.read("/proc/swaps") or "").splitlines()[1:]]
    found = " ".join(areas) or "off"
    if host.container and areas:
        host.judge("swap", "skipped", expected="off", found=found, reason=host.below("the swap area"))
        return
    table = host.read("/etc/fstab") or ""
    host.write("/etc/fstab", re.sub(r"(?m)^(?=[^#\s]\S*\s+\S+\s+swap\s)", "# off by primus-bootstrap: ", table))
    if not areas:
        host.judge("swap", "pass", expected="off", found="off")
        return
    status, output = (0, "") if host.check else host.run(["swapoff", "-a"])
    if status:
        host.broke("swap", expected="off", found=found, reason=output, fix="free memory until the swapped pages fit, then run again")
        return
    host.changed("swap", found, "off")
    host.settled("swap", expected="off", found=found)


def set_kernel_arguments(host: Host, arguments: Sequence[str]) -> None:
    """Add arguments to the kernel's command line through GRUB's drop-in folder; they count from the next boot."""
    expected, given = " ".join(arguments), (host.read("/proc/cmdline") or "").split()
    if host.container or not host.at("/usr/sbin/update-grub").exists():
        reason = host.below("the kernel") or "this host has no update-grub"
        if arguments:
            fix = "" if host.container else "set them where this host boots (RHEL: grubby --update-kernel=ALL --args=...)"
            host.judge("kernel_arguments", "skipped", expected=expected, found=" ".join(given), reason=reason, fix=fix)
        return
    line = [f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {expected}"'] if arguments else []
    host.write("/etc/default/grub.d/90-primus.cfg", managed(line), tell="grub")
    host.tell("grub", ["update-grub"])
    absent = [argument for argument in arguments if argument not in given]
    if absent:
        reason = f"set for the next boot, not in force: {' '.join(absent)}"
        fix = f"ansible-playbook -i hosts.yaml playbooks/day2/reboot_node.yml --limit {host.name}"
        host.judge("kernel_arguments", "fail", expected=expected, found=" ".join(given), reason=reason, fix=fix)
    elif arguments:
        host.judge("kernel_arguments", "pass", expected=expected, found=" ".join(given))


def set_timezone(host: Host, zone: str) -> None:
    """Point /etc/localtime at the zone; an empty one leaves it alone."""
    if not zone:
        return
    link, data = host.at("/etc/localtime"), f"/usr/share/zoneinfo/{zone}"
    before = os.path.normpath(Path("/etc") / link.readlink()) if link.is_symlink() else ""
    if before == data:
        host.judge("timezone", "pass", expected=zone, found=zone)
        return
    if not host.check and not host.at(data).exists():
        fix = "mend the name in baseline_timezone, or install tzdata"
        host.broke("timezone", expected=zone, found=before, reason=f"there is no {data}", fix=fix)
        return
    if not host.check:
        fresh = host.at("/etc/.primus-localtime")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(data)
        fresh.replace(link)
    host.changed("/etc/localtime", before, data)
    host.settled("timezone", expected=zone, found=before)


def unit_states(host: Host, units: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return LoadState, ActiveState and UnitFileState of each unit, from one call."""
    _, output = host.run(["systemctl", "show", "--property=LoadState,ActiveState,UnitFileState", *units])
    blocks = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in output.split("\n\n")]
    return dict(zip(units, blocks))  # noqa: B905 - `strict` needs Python 3.10


def mask_units(host: Host, units: Sequence[str]) -> None:
    """Stop units for good; a unit that this host does not have needs nothing."""
    states = unit_states(host, units) if units else {}
    due = [unit for unit, state in states.items() if state.get("LoadState") not in ("masked", "not-found")]
    failed = [unit for unit, state in states.items() if state.get("LoadState") == "masked" and state.get("ActiveState") == "failed"]
    if not due and not failed:
        return
    # Stopped first: a timer that is masked while it runs fails, and leaves the whole host `degraded`.
    commands = [["systemctl", verb, *units] for verb, units in (("stop", due), ("mask", due), ("reset-failed", failed)) if units]
    for command in commands:
        status, output = host.run(command) if not host.check else (0, "")
        if status:
            host.broke("units", expected="masked", found="", reason=output, fix="see `systemctl status` of the unit named")
            return
    host.changed("systemctl mask", "", " ".join([*due, *failed]))


def keep_time(host: Host, unit: str) -> None:
    """Have the time service enabled, running, and restarted since its configuration changed."""
    bounding = re.search(r"CapBnd:\s*(\w+)", host.read("/proc/1/status") or "")
    may_set = int(bounding.group(1), 16) >> CAP_SYS_TIME & 1 if bounding else 1
    if host.container or not may_set:
        reason = host.below("the clock") or "root may not set the clock here (no CAP_SYS_TIME)"
        host.judge("time", "skipped", expected=f"{unit} active", found="", reason=reason)
        return
    state = unit_states(host, [unit]).get(unit, {})
    found = f"{unit} {state.get('ActiveState', 'unknown')}"
    if state.get("ActiveState") == "active" and state.get("UnitFileState") == "enabled":
        host.tell(unit, ["systemctl", "restart", unit])
        host.judge("time", "pass", expected=f"{unit} active", found=found)
        return
    for action in ("enable", "restart"):
        status, output = (0, "") if host.check else host.run(["systemctl", action, unit])
        if status:
            host.broke("time", expected=f"{unit} active", found=found, reason=output, fix=f"see `journalctl -u {unit}`")
            return
    host.changed("time", found, f"{unit} active")
    host.settled("time", expected=f"{unit} active", found=found)
    if not host.check:
        host.told(unit)


def set_files(host: Host, files: Sequence[Mapping[str, Any]]) -> None:
    """Write whole files; one with `create: false` only where the host has it already."""
    for file in files:
        if file["create"] or host.at(file["path"]).exists():
            host.write(file["path"], file["content"], tell=file["tell"])


def set_blocks(host: Host, blocks: Sequence[Mapping[str, str]]) -> None:
    """Keep a marked block at the head of files that others write as well: the first line that fits wins in /etc/hosts."""
    begin, end = "# BEGIN primus-bootstrap\n", "# END primus-bootstrap\n"
    for block in blocks:
        rest = re.sub(rf"(?s){begin}.*?{end}", "", host.read(block["path"]) or "")
        content = block["content"].strip()
        host.write(block["path"], f"{begin}{content}\n{end}{rest}" if content else rest)


# One needs the other: a module brings its kernel parameters, a file its service.
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
    "time_service": keep_time,
}


def tune(host: Host, wanted: Mapping[str, Any]) -> None:
    """Bring everything that was asked for to its value; what was not asked for is not looked at."""
    for name, setter in SETTERS.items():
        if wanted.get(name) is not None:
            setter(host, wanted[name])


def main() -> None:
    """Read the arguments, tune, and report changes, differences and verdicts."""
    text = {"type": "str", "required": True}
    file_options = {"path": text, "content": text, "tell": {"type": "str", "default": ""}, "create": {"type": "bool", "default": True}}
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
        host.broken.append(f"{error.filename or 'the host'}: {error.strerror}. Fix: free space on that disk, or mount it for writing")
    result = {
        "changed": bool(host.diffs),
        "diff": host.diffs,
        "verdicts": host.verdicts,
        "stdout": json.dumps({"verdicts": host.verdicts}),
    }
    if host.broken:
        module.fail_json(msg="; ".join(host.broken), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
