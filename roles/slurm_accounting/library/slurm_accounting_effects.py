#!/usr/bin/python
"""Ansible module `slurm_accounting_effects`: verify slurmdbd, its entries, its settings and its backups. It changes nothing.

No collection has a module for it.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_accounting_data import parse_data, rows
from ansible.module_utils.slurm_accounting_plan import DesiredState, make_plan
from ansible.module_utils.slurm_sacctmgr import RefusedError, make_sacctmgr, read_all
from ansible.module_utils.unit_properties import unit_properties
from ansible.module_utils.verdict_records import Verdicts

if TYPE_CHECKING:
    from ansible.module_utils.slurm_sacctmgr import Sacctmgr

TIMER = "primus-slurm-accounting-backup.timer"
SERVICE = "primus-slurm-accounting-backup.service"
APPLY_AGAIN = "apply the phase slurm again"


def check_answer(verdicts: Verdicts, sacctmgr: Sacctmgr, cluster: str, *, controllers: int) -> bool:
    """Check that slurmdbd answers, knows the cluster, and that a controller has registered; return whether it answers."""
    try:
        found = rows(sacctmgr(["--noheader", "--parsable2", "show", "cluster", "format=cluster,controlhost"]), ("cluster", "host"))
    except RefusedError as error:
        fix = "see `journalctl -u slurmdbd -u mariadb -n 30`"
        verdicts.add("answers", "fail", expected="an answer", found="", reason=str(error)[:300], fix=fix)
        return False
    verdicts.add("answers", "pass", expected="an answer", found="an answer")
    hosts = {row["cluster"]: row["host"] for row in found}
    known = "pass" if cluster in hosts else "fail"
    verdicts.add("cluster", known, expected=cluster, found=", ".join(sorted(hosts)), fix=APPLY_AGAIN)
    if not controllers:
        verdicts.skip("controller", "the group slurm_controller has no host")
        return True
    fix = "run `systemctl status slurmctld` and `sacctmgr show cluster` on the controller; it must reach the port of slurmdbd on this host"
    reason = "no controller has registered with slurmdbd"
    registered = bool(hosts.get(cluster))
    verdicts.add(
        "controller", "pass" if registered else "fail", expected="registered", found=hosts.get(cluster, ""), reason=reason, fix=fix
    )
    return True


def check_entries(verdicts: Verdicts, sacctmgr: Sacctmgr, desired: DesiredState) -> None:
    """Check that QOS, accounts and users are as in hosts.yaml."""
    try:
        plan = make_plan(parse_data(read_all(sacctmgr, desired.cluster)), desired)
    except RefusedError as error:
        verdicts.add("as_stated", "unknown", expected="no difference", found="", reason=str(error)[:300], fix="run the verification again")
        return
    differences = [*(" ".join(call) for call in plan.calls), *plan.waiting]
    counted = f"{len(desired.qos)} QOS, {len(desired.accounts)} accounts, {len(desired.users)} users"
    verdict = "fail" if differences else "pass"
    verdicts.add("as_stated", verdict, expected=counted, found="; ".join(differences)[:500] or counted, fix=APPLY_AGAIN)


def check_password_file(verdicts: Verdicts, settings_file: str) -> None:
    """Check that only slurmdbd can read the password."""
    try:
        mode = stat.S_IMODE(Path(settings_file).stat().st_mode)
    except OSError as error:
        verdicts.add("password_file", "unknown", expected="0600", found="", reason=f"{settings_file}: {error.strerror}", fix=APPLY_AGAIN)
        return
    verdicts.add("password_file", "pass" if mode == 0o600 else "fail", expected="0600", found=f"{mode:04o}", fix=APPLY_AGAIN)


def check_backups(verdicts: Verdicts, *, timer: str, result: str, newest: str) -> None:
    """Check that the backup timer runs and that the last backup succeeded.

    Args:
        verdicts: Gets the records.
        timer: ActiveState of the timer.
        result: Result of the backup service.
        newest: Name of the newest backup; empty if there is none yet.
    """
    state = "pass" if timer == "active" else "fail" if timer else "unknown"
    verdicts.add("backup_timer", state, expected="active", found=timer, fix=f"systemctl enable --now {TIMER}")
    if result not in ("", "success"):
        fix = f"see `journalctl -u {SERVICE} -n 30`"
        verdicts.add("last_backup", "fail", expected="success", found=result, fix=fix)
    elif newest:
        verdicts.add("last_backup", "pass", expected="a backup", found=newest)
    else:
        verdicts.skip("last_backup", "the first backup is not due yet", expected="a backup", fix=f"systemctl start {SERVICE}")


def newest_backup(folder: str) -> str:
    """Return the name of the newest backup; empty if there is none."""
    return max((path.name for path in Path(folder).glob("dump-*.sql.gz")), default="")


def main() -> None:
    """Run as an Ansible module."""
    lists: dict[str, Any] = {name: {"type": "list", "elements": "dict", "required": True} for name in ("qos", "accounts", "users")}
    module = AnsibleModule(
        {
            "host": {"type": "str", "required": True},
            "configuration": {"type": "path", "required": True},
            "cluster": {"type": "str", "required": True},
            "controllers": {"type": "int", "required": True},
            **lists,
            "max_submit": {"type": "int", "required": True},
            "settings_file": {"type": "path", "required": True},
            "backup_dir": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    if not Path(given["configuration"]).exists():
        module.fail_json(msg=f"{given['configuration']} is missing: accounting is not installed here. Fix: apply the phase slurm.")
    verdicts = Verdicts("slurm_accounting", given["host"])
    sacctmgr = make_sacctmgr(given["configuration"])
    if check_answer(verdicts, sacctmgr, given["cluster"], controllers=given["controllers"]):
        stated = [given[name] for name in ("cluster", "qos", "accounts", "users")]
        check_entries(verdicts, sacctmgr, DesiredState(*stated, max_submit=given["max_submit"]))
    check_password_file(verdicts, given["settings_file"])
    timer = unit_properties(TIMER, "ActiveState").get("ActiveState", "")
    result = unit_properties(SERVICE, "Result").get("Result", "")
    check_backups(verdicts, timer=timer, result=result, newest=newest_backup(given["backup_dir"]))
    verdicts.finish(module)


if __name__ == "__main__":
    main()
