#!/usr/bin/python
"""Ansible module `host_origin`: record the state of a host before the first role changes it, or finish a reset.

`recorded`: write the record unless there is one; an existing record is never updated. `removed`: remove the record and the last files of
primus-bootstrap, and report remaining differences from the original state. No collection has a module for that.
"""

from __future__ import annotations

import json

from ansible.module_utils import origin_record
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.reset_host import Host
from ansible.module_utils.reset_packages import remove_leftover_packages

# Folders that several roles share. Each role's reset has removed its own files.
SHARED = ("/etc/primus", "/usr/local/lib/primus", "/run/primus-health", "/run/primus-reset")
STATE = "/var/lib/primus"
MAX_SHOWN = 20


def differences(host: Host, origin: origin_record.Origin) -> dict[str, list[str]]:
    """Return what was added (+) and removed (-) since the record, for each kind that differs."""
    kept = origin_record.load_kept(host)
    pairs = {
        "packages": (origin.packages, origin_record.installed_packages(host)),
        "accounts": (origin.accounts, set(origin_record.entries(host, "passwd")) - set(kept["accounts"])),
        "groups": (origin.groups, set(origin_record.entries(host, "group")) - set(kept["groups"])),
        "units": (origin.units, [name for name, (state, _) in origin_record.unit_states(host).items() if state]),
    }
    found = {}
    for kind, (before, now) in pairs.items():
        added, missing = sorted(set(now) - set(before)), sorted(set(before) - set(now)) if kind != "units" else []
        if added or missing:
            found[kind] = [*(f"+{name}" for name in added), *(f"-{name}" for name in missing)]
    return found


def remove_record(host: Host, *, delete_data: bool) -> None:
    """Remove the last files, and the record at the end, so that the next reset can finish an interrupted one.

    With `delete_data`, data that earlier resets kept are removed too, because the roles may not list them any more.
    """
    for path in origin_record.load_kept(host)["data"] if delete_data else ():
        host.remove(path)
        origin_record.drop_kept(host, "data", path)
    origin = origin_record.load(host)
    known = host.exists(origin_record.FOLDER)
    remove_leftover_packages(host, origin)
    if host.failures:
        return
    for kind, names in (differences(host, origin) if origin.complete else {}).items():
        shown = " ".join(names[:MAX_SHOWN]) + (f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else "")
        host.kept(kind, f"differ from before the first apply, and no role changed them: {shown}")
    if known and not origin.complete:
        reason = "the record was written after roles had changed this host: their packages, accounts and values stay"
        host.kept("original state", reason, "reinstall the host if it must be clean")
    for path in SHARED:
        host.remove(path)
    kept = host.at(origin_record.KEPT)
    for path in sorted(host.at(STATE).glob("*"), key=lambda found: found == host.at(origin_record.FOLDER)):
        if path != kept or not any(origin_record.load_kept(host).values()):
            host.remove(f"{STATE}/{path.name}")
    if host.at(STATE).is_dir() and not any(host.at(STATE).iterdir()):
        host.remove(STATE)


def main() -> None:
    """Write or remove the record, and report."""
    choices = ["recorded", "removed"]
    spec = {
        "host": {"type": "str", "required": True},
        "state": {"type": "str", "choices": choices, "default": "recorded"},
        "delete_data": {"type": "bool", "default": False},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    host = Host(module.params["host"], check=module.check_mode)
    try:
        if module.params["state"] == "removed":
            remove_record(host, delete_data=module.params["delete_data"])
        elif origin_record.record(host):
            host.changed(origin_record.FOLDER, "", "record of the original state")
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"{origin_record.FOLDER}: {error}. Fix: free space in /var/lib or mount it read-write, then run again")
    result = {**host.result(), "stdout": json.dumps({"verdicts": host.verdicts})}
    if host.failures:
        module.fail_json(msg="; ".join(host.failures), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
