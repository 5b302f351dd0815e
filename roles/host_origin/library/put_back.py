#!/usr/bin/python
"""Put back on one host what a role brought and changed: the Ansible module `put_back`, which each role's tasks/reset.yml calls.

The role says what it has touched; the record of the role `host_origin` says what was there before, and so what goes, what is restored
and what stays. Each step looks first, so a reset that was killed is finished by the next one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ansible.module_utils import origin_record
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.reset_accounts import keep_owners, put_accounts_back, put_groups_back, put_keys_back
from ansible.module_utils.reset_files import (
    bring_data_back,
    put_files_back,
    put_texts_back,
    remove_empty_folders,
    set_data_aside,
    settle_data,
)
from ansible.module_utils.reset_host import Host
from ansible.module_utils.reset_packages import bring_packages_back, removable_packages, remove_packages
from ansible.module_utils.reset_system import end_units, end_unknown_units, put_kernel_back, put_units_back

if TYPE_CHECKING:
    from collections.abc import Mapping

WORDS = {"type": "list", "elements": "str", "default": []}
OPTIONS: dict[str, dict[str, Any]] = {
    "units": WORDS,  # ours: stopped, disabled
    "package_units": WORDS,  # services of packages: as they were; ended where they were not there before, or nobody knows
    "system_units": WORDS,  # of the system: as they were; ended where they were not there before, left where nobody knows
    "files": WORDS,  # ours, folders too
    "replaced": WORDS,  # files of others that the role writes
    "blocks": WORDS,  # files with a marked block of ours
    "folders": WORDS,  # go where they are empty
    "packages": WORDS,
    "packages_back": WORDS,  # those that give way to ours
    "accounts": WORDS,
    "groups": WORDS,
    "login_keys_of": WORDS,  # accounts whose authorized_keys the role writes
    "sysctl": WORDS,
    "kernel_files": WORDS,  # patterns below /sys
    "swap": {"type": "bool", "default": False},
    "data": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"path": {"type": "str", "required": True}, "account": {"type": "str", "default": ""}},
    },
    "delete_data": {"type": "bool", "default": False},
    "tell": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"name": {"type": "str", "required": True}, "argv": {"type": "list", "elements": "str", "required": True}},
    },
}


def put_back(host: Host, wanted: Mapping[str, Any]) -> None:
    """Take every step, in the order in which one needs the other: what uses a thing ends before the thing goes."""
    origin = origin_record.load(host)
    data, accounts_before = wanted["data"], origin_record.entries(host, "passwd")
    with_packages = [*wanted["package_units"], *wanted["system_units"]]
    new = [name for name in with_packages if origin.complete and name not in origin.units]
    end_units(host, [*wanted["units"], *new])
    if not origin.complete:
        end_unknown_units(host, [name for name in wanted["package_units"] if name not in origin.units])
    bring_data_back(host, data)
    if host.broken:
        return
    if wanted["delete_data"]:
        settle_data(host, origin, data, delete=True)
    if removable := removable_packages(host, origin, wanted["packages"]):
        remove_packages(host, removable, purge=set_data_aside(host, data))
        bring_data_back(host, data)
    bring_packages_back(host, origin, wanted["packages_back"])
    keep_owners(host, data, accounts_before)
    if host.broken:
        return
    restarts = {f"restart-{name}": ["systemctl", "try-restart", name] for name in with_packages if name in origin.units}
    told = {"systemd": ["systemctl", "daemon-reload"], **restarts, **{one["name"]: one["argv"] for one in wanted["tell"]}}
    put_files_back(host, origin, wanted["files"], wanted["replaced"], list(told))
    put_keys_back(host, origin, wanted["login_keys_of"])
    put_texts_back(host, origin, wanted["blocks"], swap=wanted["swap"])
    remove_empty_folders(host, origin, wanted["folders"])
    for name, argv in told.items():
        host.tell(name, argv, fix=f"run it by hand: {' '.join(argv)}")
    put_units_back(host, origin, with_packages)
    put_kernel_back(host, origin, wanted["sysctl"], wanted["kernel_files"])
    if not wanted["delete_data"]:
        settle_data(host, origin, data, delete=False)
    owners = {one["account"] for one in data if one["account"] and host.there(one["path"])}
    # Two roles may share an account (Prometheus and its exporters): whose data it was kept for lets it go.
    others = set(origin_record.load_kept(host)["accounts"]) - {one["account"] for one in data}
    put_accounts_back(host, origin, [name for name in wanted["accounts"] if name not in others], owners, delete_homes=wanted["delete_data"])
    put_groups_back(host, origin, [name for name in wanted["groups"] if name not in others], owners)


def main() -> None:
    """Read the arguments, put back, and report changes, and what was kept and why."""
    module = AnsibleModule(argument_spec={"host": {"type": "str", "required": True}, **OPTIONS}, supports_check_mode=True)
    host = Host(module.params["host"], check=module.check_mode)
    try:
        put_back(host, module.params)
    except OSError as error:
        host.broke(error.filename or "the host", str(error.strerror), "mend what it names, then reset again")
    except ValueError as error:
        host.broke(origin_record.FOLDER, f"the record cannot be read: {error}", f"remove {origin_record.FOLDER}, then reset again")
    result = {**host.result(), "stdout": json.dumps({"verdicts": host.verdicts})}
    if host.broken:
        module.fail_json(msg="; ".join(host.broken), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
