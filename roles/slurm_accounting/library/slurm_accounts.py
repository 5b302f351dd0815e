#!/usr/bin/python
"""Ansible module `slurm_accounts`: create, update and delete QOS, accounts and users in slurmdbd. No collection has a module for it.

It reads everything first and calls sacctmgr only for differences. In check mode it returns the commands without running them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_accounting_data import parse_data
from ansible.module_utils.slurm_accounting_plan import DesiredState, Plan, make_plan
from ansible.module_utils.slurm_sacctmgr import RefusedError, make_sacctmgr, read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from ansible.module_utils.slurm_sacctmgr import Sacctmgr

# Time limit for the start of slurmdbd: it may create or convert its tables first.
START_S = 120.0


def wait_for(sacctmgr: Sacctmgr, *, wait: Callable[[float], None], wait_s: float = START_S) -> None:
    """Wait until slurmdbd answers.

    Raises:
        RefusedError: It did not answer in time.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            sacctmgr(["--noheader", "--parsable2", "show", "cluster", "format=cluster"])
        except RefusedError:
            if time.monotonic() > deadline:
                raise
            wait(1.0)
        else:
            return


def apply(sacctmgr: Sacctmgr, desired: DesiredState, *, check: bool, wait_s: float, wait: Callable[[float], None]) -> Plan:
    """Apply the plan and return it; in check mode only return it.

    Limits that wait for a controller are waited for up to `wait_s`, and then left to the next run.
    """
    deadline = time.monotonic() + wait_s
    while True:
        plan = make_plan(parse_data(read_all(sacctmgr, desired.cluster)), desired)
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
            "wait_s": {"type": "float", "default": 0.0},
            **lists,
        },
        supports_check_mode=True,
    )
    given = module.params
    desired = DesiredState(given["cluster"], given["qos"], given["accounts"], given["users"], given["purge"], given["max_submit"])
    sacctmgr = make_sacctmgr(given["configuration"])
    try:
        wait_for(sacctmgr, wait=time.sleep)
        plan = apply(sacctmgr, desired, check=module.check_mode, wait_s=given["wait_s"], wait=time.sleep)
    except (RefusedError, ValueError) as error:
        module.fail_json(msg=f"{error}. Fix: correct slurm_qos, slurm_accounts or slurm_users; see `journalctl -u slurmdbd -n 30`")
    lines = "".join(f"sacctmgr {' '.join(words)}\n" for words in plan.calls)
    diff = {"before_header": "slurmdbd", "after_header": "slurmdbd", "before": "", "after": lines}
    module.exit_json(changed=bool(plan.calls), calls=[" ".join(words) for words in plan.calls], waiting=list(plan.waiting), diff=diff)


if __name__ == "__main__":
    main()
