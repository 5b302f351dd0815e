#!/usr/bin/python
"""Record what a host is before the first role changes it, or end a reset: the Ansible module `host_origin`.

`taken`: the record is there; one that is there is never renewed. `forgotten`: the record and the last files of ours go, and what
still differs from before is named.
"""

from __future__ import annotations

import json

from ansible.module_utils import origin_record
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.reset_host import Host
from ansible.module_utils.reset_packages import sweep_packages

# What several roles share; each role has put back its own.
SHARED = ("/etc/primus", "/usr/local/lib/primus", "/run/primus-health", "/run/primus-reset")
STATE = "/var/lib/primus"
SHOWN = 20


def differences(host: Host, origin: origin_record.Origin) -> dict[str, list[str]]:
    """Return what is more and what is less than before, by kind; only kinds that differ."""
    kept = origin_record.load_kept(host)
    pairs = {
        "packages": (origin.packages, origin_record.installed_packages(host)),
        "accounts": (origin.accounts, set(origin_record.entries(host, "passwd")) - set(kept["accounts"])),
        "groups": (origin.groups, set(origin_record.entries(host, "group")) - set(kept["groups"])),
        "units": (origin.units, [name for name, (state, _) in origin_record.unit_states(host).items() if state]),
    }
    found = {}
    for kind, (before, now) in pairs.items():
        more, less = sorted(set(now) - set(before)), sorted(set(before) - set(now)) if kind != "units" else []
        if more or less:
            found[kind] = [*(f"+{name}" for name in more), *(f"-{name}" for name in less)]
    return found


def forget(host: Host, *, delete_data: bool) -> None:
    """Remove the record last, so that a reset that is killed before can still read it.

    With `delete_data`, what earlier resets kept goes too: the roles that brought it may not name it any more.
    """
    for path in origin_record.load_kept(host)["data"] if delete_data else ():
        host.remove(path)
        origin_record.drop_kept(host, "data", path)
    origin = origin_record.load(host)
    known = host.there(origin_record.FOLDER)
    sweep_packages(host, origin)
    if host.broken:
        return
    for kind, names in (differences(host, origin) if origin.complete else {}).items():
        shown = " ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        host.kept(kind, f"differ from before the first apply, by another hand than a role's: {shown}")
    if known and not origin.complete:
        reason = (
            "the record was taken after roles had changed this host: packages, accounts and values that they brought were left as they are"
        )
        host.kept("what was there before", reason, "install the host anew where it must be as new")
    for path in SHARED:
        host.remove(path)
    kept = host.at(origin_record.KEPT)
    for path in sorted(host.at(STATE).glob("*"), key=lambda one: one == host.at(origin_record.FOLDER)):
        if path != kept or not any(origin_record.load_kept(host).values()):
            host.remove(f"{STATE}/{path.name}")
    if host.at(STATE).is_dir() and not any(host.at(STATE).iterdir()):
        host.remove(STATE)


def main() -> None:
    """Read the arguments, take or forget the record, and report."""
    choices = ["taken", "forgotten"]
    spec = {
        "host": {"type": "str", "required": True},
        "state": {"type": "str", "choices": choices, "default": "taken"},
        "delete_data": {"type": "bool", "default": False},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    host = Host(module.params["host"], check=module.check_mode)
    try:
        if module.params["state"] == "forgotten":
            forget(host, delete_data=module.params["delete_data"])
        elif origin_record.take(host):
            host.changed(origin_record.FOLDER, "", "what this host was before")
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"{origin_record.FOLDER}: {error}. Fix: see that /var/lib has room and can be written, then run again")
    result = {**host.result(), "stdout": json.dumps({"verdicts": host.verdicts})}
    if host.broken:
        module.fail_json(msg="; ".join(host.broken), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
