#!/usr/bin/python
"""Bring QOS, accounts and users in slurmdbd to what is stated: the Ansible module `slurm_accounts`.

It reads everything first and calls sacctmgr only for what differs. In check mode it says which calls it would make.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_ledger import read_ledger
from ansible.module_utils.slurm_ledger_plan import Plan, Wanted, make_plan
from ansible.module_utils.slurm_sacctmgr import RefusedError, make_sacctmgr, read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from ansible.module_utils.slurm_sacctmgr import Sacctmgr

# How long a slurmdbd that was just started may take: it makes or converts its tables first.
START_S = 120.0


def wait_for(sacctmgr: Sacctmgr, *, wait: Callable[[float], None], patience_s: float = START_S) -> None:
    """Wait until slurmdbd answers.

    Raises:
        RefusedError: it did not in time.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            sacctmgr(["--noheader", "--parsable2", "show", "cluster", "format=cluster"])
        except RefusedError:
            if time.monotonic() > deadline:
                raise
            wait(1.0)
        else:
            return


def bring_about(sacctmgr: Sacctmgr, wanted: Wanted, *, check: bool, patience_s: float, wait: Callable[[float], None]) -> Plan:
    """Make what differs so; return the plan that was carried out (in check mode: that would be).

    What has to wait for a controller is waited for `patience_s`, and then left to the next run.
    """
    deadline = time.monotonic() + patience_s
    while True:
        plan = make_plan(read_ledger(read_all(sacctmgr, wanted.cluster)), wanted)
        if not plan.waiting or time.monotonic() >= deadline:
            break
        wait(1.0)
    for words in () if check else plan.calls:
        sacctmgr(["--immediate", *words])
    return plan


def main() -> None:
    """Run as an Ansible module."""
    lists: dict[str, Any] = {name: {"type": "list", "elements": "dict", "default": []} for name in ("qos", "accounts", "users")}
    module = AnsibleModule(
        {
            "configuration": {"type": "path", "required": True},
            "cluster": {"type": "str", "required": True},
            "purge": {"type": "bool", "default": False},
            "max_submit": {"type": "int", "default": 0},
            "patience_s": {"type": "float", "default": 0.0},
            **lists,
        },
        supports_check_mode=True,
    )
    given = module.params
    wanted = Wanted(given["cluster"], given["qos"], given["accounts"], given["users"], given["purge"], given["max_submit"])
    sacctmgr = make_sacctmgr(given["configuration"])
    try:
        wait_for(sacctmgr, wait=time.sleep)
        plan = bring_about(sacctmgr, wanted, check=module.check_mode, patience_s=given["patience_s"], wait=time.sleep)
    except (RefusedError, ValueError) as error:
        module.fail_json(msg=f"{error}. Fix: mend slurm_qos, slurm_accounts or slurm_users, or see `journalctl -u slurmdbd -n 30`")
    lines = "".join(f"sacctmgr {' '.join(words)}\n" for words in plan.calls)
    diff = {"before_header": "slurmdbd", "after_header": "slurmdbd", "before": "", "after": lines}
    module.exit_json(changed=bool(plan.calls), calls=[" ".join(words) for words in plan.calls], waiting=list(plan.waiting), diff=diff)


if __name__ == "__main__":
    main()
