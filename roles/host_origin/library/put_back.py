#!/usr/bin/python
"""Ansible module `put_back`: undo what a role has installed and changed on a host. Each role's tasks/reset.yml calls it.

The role lists what it touches. The record of the role `host_origin` has the state before the first apply and decides what is removed,
restored or kept; no collection has such a module. Every step reads the current state first, so the next reset finishes an interrupted one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ansible.module_utils import origin_record
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.reset_accounts import recreate_owners, restore_accounts, restore_groups, restore_keys
from ansible.module_utils.reset_files import (
    keep_or_delete_data,
    move_data_aside,
    remove_empty_folders,
    remove_marked_text,
    restore_files,
    return_data,
)
from ansible.module_utils.reset_host import Host
from ansible.module_utils.reset_packages import reinstall_packages, removable_packages, remove_packages
from ansible.module_utils.reset_system import restore_kernel_values, restore_units, stop_units, stop_unrecorded_units

if TYPE_CHECKING:
    from collections.abc import Mapping

STRINGS = {"type": "list", "elements": "str", "default": []}
OPTIONS: dict[str, dict[str, Any]] = {
    "units": STRINGS,  # units of the role: stopped and disabled
    "package_units": STRINGS,  # units of packages: restored; stopped if they are new or the record is incomplete
    "system_units": STRINGS,  # units of the distribution: restored; stopped if they are new
    # Both get back what they were before the first apply. If the record does not tell, `files` are removed and `replaced` are kept.
    "files": STRINGS,  # files and folders that only the role writes
    "replaced": STRINGS,  # files that packages or people may have written before the role
    "blocks": STRINGS,  # files with a marked block: the block is removed
    "folders": STRINGS,  # folders of the role: removed if empty
    "packages": STRINGS,  # removed if they are new
    "packages_back": STRINGS,  # packages that the role's packages replaced: installed again
    "accounts": STRINGS,
    "groups": STRINGS,
    "login_keys_of": STRINGS,  # accounts whose authorized_keys the role writes
    "sysctl": STRINGS,
    "kernel_files": STRINGS,  # glob patterns below /sys
    "swap": {"type": "bool", "default": False},
    "data": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"path": {"type": "str", "required": True}, "account": {"type": "str", "default": ""}},
    },
    "delete_data": {"type": "bool", "default": False},
    "notify_commands": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"name": {"type": "str", "required": True}, "argv": {"type": "list", "elements": "str", "required": True}},
    },
}


def put_back(host: Host, wanted: Mapping[str, Any]) -> None:
    """Run all steps; users of a thing stop before it is removed."""
    origin = origin_record.load(host)
    data, accounts_before = wanted["data"], origin_record.entries(host, "passwd")
    with_packages = [*wanted["package_units"], *wanted["system_units"]]
    new = [name for name in with_packages if origin.complete and name not in origin.units]
    stop_units(host, [*wanted["units"], *new])
    if not origin.complete:
        stop_unrecorded_units(host, [name for name in wanted["package_units"] if name not in origin.units])
    return_data(host, data)
    if host.failures:
        return
    if wanted["delete_data"]:
        keep_or_delete_data(host, origin, data, delete=True)
    if removable := removable_packages(host, origin, wanted["packages"]):
        remove_packages(host, removable, purge=move_data_aside(host, data))
        return_data(host, data)
    reinstall_packages(host, origin, wanted["packages_back"])
    recreate_owners(host, data, accounts_before)
    if host.failures:
        return
    restarts = {f"restart-{name}": ["systemctl", "try-restart", name] for name in with_packages if name in origin.units}
    commands = {"systemd": ["systemctl", "daemon-reload"], **restarts, **{item["name"]: item["argv"] for item in wanted["notify_commands"]}}
    restore_files(host, origin, wanted["files"], wanted["replaced"], list(commands))
    restore_keys(host, origin, wanted["login_keys_of"])
    remove_marked_text(host, origin, wanted["blocks"], swap=wanted["swap"])
    remove_empty_folders(host, origin, wanted["folders"])
    for name, argv in commands.items():
        host.run_pending(name, argv, fix=f"run it by hand: {' '.join(argv)}")
    restore_units(host, origin, with_packages)
    restore_kernel_values(host, origin, wanted["sysctl"], wanted["kernel_files"])
    if not wanted["delete_data"]:
        keep_or_delete_data(host, origin, data, delete=False)
    owners = {item["account"] for item in data if item["account"] and host.exists(item["path"])}
    # Roles can share an account (Prometheus and its exporters): only the role with the kept data removes it.
    others = set(origin_record.load_kept(host)["accounts"]) - {item["account"] for item in data}
    restore_accounts(host, origin, [name for name in wanted["accounts"] if name not in others], owners, delete_homes=wanted["delete_data"])
    restore_groups(host, origin, [name for name in wanted["groups"] if name not in others], owners)


def main() -> None:
    """Undo the role's changes, and report changes and what was kept and why."""
    module = AnsibleModule(argument_spec={"host": {"type": "str", "required": True}, **OPTIONS}, supports_check_mode=True)
    host = Host(module.params["host"], check=module.check_mode)
    try:
        put_back(host, module.params)
    except OSError as error:
        host.fail(error.filename or "the host", str(error.strerror), "correct the reported error, then reset again")
    except ValueError as error:
        host.fail(origin_record.FOLDER, f"the record cannot be read: {error}", f"remove {origin_record.FOLDER}, then reset again")
    result = {**host.result(), "stdout": json.dumps({"verdicts": host.verdicts})}
    if host.failures:
        module.fail_json(msg="; ".join(host.failures), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
