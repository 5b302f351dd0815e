#!/usr/bin/python
"""Ask slurmdbd what it answers and holds, and look at its settings and backups: the Ansible module `slurm_accounting_effects`.

It changes nothing.
"""

from __future__ import annotations

import json
import stat
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_ledger import read_ledger, rows
from ansible.module_utils.slurm_ledger_plan import Wanted, make_plan
from ansible.module_utils.slurm_sacctmgr import RefusedError, make_sacctmgr, read_all

if TYPE_CHECKING:
    from ansible.module_utils.slurm_sacctmgr import Sacctmgr

SCHEMA = "primus.verdict/1"
SOURCE = "roles/slurm_accounting/meta/argument_specs.yml"
TIMER = "primus-slurm-accounting-backup.timer"
SERVICE = "primus-slurm-accounting-backup.service"
CALL_S = 15.0
AGAIN = "apply the phase slurm again"


class Verdicts:
    """The records of one host."""

    def __init__(self, host: str) -> None:
        """Start with none."""
        self.host = host
        self.records: list[dict[str, Any]] = []
        self.started = time.time()

    def judge(self, check: str, verdict: str, *, expected: str, found: str, reason: str = "", fix: str = "") -> None:  # noqa: PLR0913 (the record's fields)
        """Record one verdict."""
        record = {"check": f"slurm_accounting.{check}", "host": self.host, "verdict": verdict, "expected": expected, "found": found}
        bad = {} if verdict == "pass" else {"reason": reason or f"expected {expected}, found {found or 'nothing'}", "fix": fix}
        now = time.time()
        seconds = round(now - self.started, 3)
        self.records.append({**record, **bad, "source": SOURCE, "started": self.started, "seconds": seconds, "schema": SCHEMA})
        self.started = now


def look_at_answer(verdicts: Verdicts, sacctmgr: Sacctmgr, cluster: str, *, controllers: int) -> bool:
    """See that slurmdbd answers, knows the cluster, and that a controller has come to it; return whether it answers."""
    try:
        found = rows(sacctmgr(["--noheader", "--parsable2", "show", "cluster", "format=cluster,controlhost"]), ("cluster", "host"))
    except RefusedError as error:
        fix = "see `journalctl -u slurmdbd -u mariadb -n 30`"
        verdicts.judge("answers", "fail", expected="an answer", found="", reason=str(error)[:300], fix=fix)
        return False
    verdicts.judge("answers", "pass", expected="an answer", found="an answer")
    hosts = {row["cluster"]: row["host"] for row in found}
    known = "pass" if cluster in hosts else "fail"
    verdicts.judge("cluster", known, expected=cluster, found=", ".join(sorted(hosts)), fix=AGAIN)
    if not controllers:
        verdicts.judge("controller", "skipped", expected="", found="", reason="the group slurm_controller has no host")
        return True
    fix = "see whether slurmctld runs, and reaches this host's port: `sacctmgr show cluster` there"
    reason = "no controller has registered with slurmdbd"
    came = bool(hosts.get(cluster))
    verdicts.judge("controller", "pass" if came else "fail", expected="registered", found=hosts.get(cluster, ""), reason=reason, fix=fix)
    return True


def look_at_ledger(verdicts: Verdicts, sacctmgr: Sacctmgr, wanted: Wanted) -> None:
    """See that QOS, accounts and users are as stated."""
    try:
        plan = make_plan(read_ledger(read_all(sacctmgr, wanted.cluster)), wanted)
    except RefusedError as error:
        verdicts.judge("as_stated", "unknown", expected="no difference", found="", reason=str(error)[:300], fix="ask again")
        return
    differences = [*(" ".join(call) for call in plan.calls), *plan.waiting]
    counted = f"{len(wanted.qos)} QOS, {len(wanted.accounts)} accounts, {len(wanted.users)} users"
    verdict = "fail" if differences else "pass"
    verdicts.judge("as_stated", verdict, expected=counted, found="; ".join(differences)[:500] or counted, fix=AGAIN)


def look_at_files(verdicts: Verdicts, settings_file: str) -> None:
    """See that nobody but slurmdbd can read the password."""
    try:
        mode = stat.S_IMODE(Path(settings_file).stat().st_mode)
    except OSError as error:
        verdicts.judge("password_file", "unknown", expected="0600", found="", reason=f"{settings_file}: {error.strerror}", fix=AGAIN)
        return
    verdicts.judge("password_file", "pass" if mode == 0o600 else "fail", expected="0600", found=f"{mode:04o}", fix=AGAIN)


def unit_property(unit: str, name: str) -> str:
    """Return what systemd says of a unit; empty where it does not answer."""
    command = ["systemctl", "show", "--property", name, "--value", unit]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_S).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def look_at_backups(verdicts: Verdicts, *, timer: str, result: str, newest: str) -> None:
    """See that the timer of the backups runs, and that the last backup came about.

    Args:
        verdicts: Where to record.
        timer: systemd's word for the timer's state.
        result: systemd's word for how the last backup ended.
        newest: The newest backup; empty where there is none yet.
    """
    state = "pass" if timer == "active" else "fail" if timer else "unknown"
    verdicts.judge("backup_timer", state, expected="active", found=timer, fix=f"systemctl enable --now {TIMER}")
    if result not in ("", "success"):
        fix = f"see `journalctl -u {SERVICE} -n 30`"
        verdicts.judge("last_backup", "fail", expected="success", found=result, fix=fix)
    elif newest:
        verdicts.judge("last_backup", "pass", expected="a backup", found=newest)
    else:
        reason = "the first backup is not due yet"
        verdicts.judge("last_backup", "skipped", expected="a backup", found="", reason=reason, fix=f"systemctl start {SERVICE}")


def newest_backup(folder: str) -> str:
    """Return the name of the newest backup; empty where there is none."""
    return max((path.name for path in Path(folder).glob("dump-*.sql.gz")), default="")


def main() -> None:
    """Read the arguments, look, and report verdicts."""
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
        module.fail_json(msg=f"{given['configuration']} is missing: accounting was not set up here. Fix: apply the phase slurm.")
    verdicts = Verdicts(given["host"])
    sacctmgr = make_sacctmgr(given["configuration"])
    if look_at_answer(verdicts, sacctmgr, given["cluster"], controllers=given["controllers"]):
        stated = [given[name] for name in ("cluster", "qos", "accounts", "users")]
        look_at_ledger(verdicts, sacctmgr, Wanted(*stated, max_submit=given["max_submit"]))
    look_at_files(verdicts, given["settings_file"])
    state, result = unit_property(TIMER, "ActiveState"), unit_property(SERVICE, "Result")
    look_at_backups(verdicts, timer=state, result=result, newest=newest_backup(given["backup_dir"]))
    answer = {"changed": False, "verdicts": verdicts.records, "stdout": json.dumps({"verdicts": verdicts.records})}
    failed = [f"{record['check']}: {record['reason']}. Fix: {record['fix']}" for record in verdicts.records if record["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
