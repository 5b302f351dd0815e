#!/usr/bin/python
"""Ansible module `slurm_logins`: verify that PAM of this node rejects SSH logins of users without a job, and accepts root.

No collection has a module for it. It calls the account stage of PAM, as sshd does after the authentication, and changes nothing.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from typing import TYPE_CHECKING, NamedTuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.safe_files import within
from ansible.module_utils.slurm_commands import CALL_S, call
from ansible.module_utils.verdict_records import Verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ansible.module_utils.slurm_commands import Caller

    PamCheck = Callable[[str], "int | None"]

SERVICE = b"sshd"
PAM_S = 20.0
# From _pam_types.h of Linux-PAM.
PAM_SUCCESS, PAM_PERM_DENIED, PAM_CONV_ERR, PAM_SILENT = 0, 6, 19, 0x8000
FIX = "apply the phase slurm to this node; if it fails again, see /etc/pam.d/sshd and `journalctl -t sshd`"


class CheckResult(NamedTuple):
    """The verdict, the expected and the found value, and the reason if the verdict is not pass."""

    verdict: str
    expected: str = ""
    found: str = ""
    reason: str = ""


class _Conversation(ctypes.Structure):
    _fields_ = (
        ("conv", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)),
        ("appdata_ptr", ctypes.c_void_p),
    )


def account_stage(account: str) -> int:
    """Return the result of PAM's account stage for sshd and an account, a number of _pam_types.h.

    pam_slurm_adopt moves the calling process into a job of the account if it accepts the login, so call this in a child process.
    """
    # RTLD_GLOBAL: pam_slurm_adopt.so is not linked with libpam and uses the symbols of the program that loads it.
    pam = ctypes.CDLL(ctypes.util.find_library("pam") or "libpam.so.0", mode=ctypes.RTLD_GLOBAL)
    handle = ctypes.c_void_p()
    talk = _Conversation(_Conversation._fields_[0][1](lambda *_: PAM_CONV_ERR), None)
    pam.pam_end.argtypes = (ctypes.c_void_p, ctypes.c_int)
    pam.pam_acct_mgmt.argtypes = (ctypes.c_void_p, ctypes.c_int)
    answer: int = pam.pam_start(SERVICE, account.encode(), ctypes.byref(talk), ctypes.byref(handle))
    if answer == PAM_SUCCESS:
        answer = pam.pam_acct_mgmt(handle, PAM_SILENT)
        pam.pam_end(handle, answer)
    return answer


def ask_pam(account: str) -> int | None:
    """Return the result of `account_stage` in a child process; None if it times out or PAM is not available."""
    try:
        answer: int = within(PAM_S, lambda: account_stage(account))
    except (OSError, AttributeError):
        return None
    return answer


def users_without_job(node: str, users: Sequence[str], caller: Caller = call) -> list[str] | None:
    """Return the users without a job on this node; None if no controller answers."""
    answer = caller(["squeue", "--noheader", f"--nodelist={node}", "--format=%u"], CALL_S)
    if answer.status != 0:
        return None
    busy = set(answer.text.split())
    return [name for name in users if name not in busy]


def check_logins(node: str, users: Sequence[str], *, enabled: bool, pam: PamCheck = ask_pam, caller: Caller = call) -> CheckResult:
    """Check that PAM rejects a user without a job on the node and accepts root."""
    if not enabled:
        return CheckResult("skipped", reason="slurm_pam_adopt is false, or the host is also a controller or a login host")
    if not users:
        return CheckResult("skipped", reason="all accounts of users_groups_accounts have sudo_rules")
    without_job = users_without_job(node, users, caller)
    if without_job is None:
        return CheckResult("unknown", reason="no controller answers, so the users with jobs on this node are unknown")
    if not without_job:
        return CheckResult("skipped", reason="all users have a job on this node")
    user = without_job[0]
    expected = f"{user}, who has no job here, is rejected, and root is accepted"
    user_result, root_result = pam(user), pam("root")
    if user_result is None or root_result is None:
        return CheckResult("unknown", expected, "PAM does not answer", "PAM does not answer")
    found = f"PAM returned {user_result} for {user} and {root_result} for root ({PAM_SUCCESS} accepts, {PAM_PERM_DENIED} rejects)"
    passed = user_result == PAM_PERM_DENIED and root_result == PAM_SUCCESS
    return CheckResult("pass" if passed else "fail", expected, found, "" if passed else f"expected: {expected}; {found}")


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        {
            "host": {"type": "str", "required": True},
            "users": {"type": "list", "elements": "str", "required": True},
            "enabled": {"type": "bool", "required": True},
        },
        supports_check_mode=True,
    )
    verdicts = Verdicts("slurm", module.params["host"])
    result = check_logins(verdicts.host, module.params["users"], enabled=module.params["enabled"])
    verdicts.add("logins", **result._asdict(), fix="" if result.verdict == "skipped" else FIX)
    verdicts.finish(module)


if __name__ == "__main__":
    main()
