#!/usr/bin/python
"""Ask PAM whether sshd of this node would let people in: the Ansible module `slurm_logins`, which changes nothing.

Somebody who has no job on the node must be refused, and root must not be. It asks PAM's account stage, as sshd does after it took a key.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.safe_files import within
from ansible.module_utils.slurm_ask import CALL_S, call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ansible.module_utils.slurm_ask import Caller

    Asker = Callable[[str], "int | None"]

CHECK = "slurm.logins"
SCHEMA = "primus.verdict/1"
SOURCE = "roles/slurm/meta/argument_specs.yml"
SERVICE = b"sshd"
PAM_S = 20.0
# Linux-PAM's _pam_types.h.
PAM_SUCCESS, PAM_PERM_DENIED, PAM_CONV_ERR, PAM_SILENT = 0, 6, 19, 0x8000
FIX = "apply the phase slurm to this node, and look at /etc/pam.d/sshd and `journalctl -t sshd`"


class Finding(NamedTuple):
    """What the look showed: a verdict word, what was expected and found, and why it is no pass."""

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
    """Return what PAM's account stage of sshd answers for an account, a number of _pam_types.h.

    Where it lets the account in, pam_slurm_adopt puts the calling process into the account's job: call it in a process of its own.
    """
    # Global: pam_slurm_adopt.so names no library of PAM itself, and takes its functions from the program that loads it.
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
    """Return the same, asked by a child; None where it does not answer in time or PAM cannot be asked."""
    try:
        answer: int = within(PAM_S, lambda: account_stage(account))
    except (OSError, AttributeError):
        return None
    return answer


def without_job(node: str, people: Sequence[str], caller: Caller = call) -> list[str] | None:
    """Return the people who have no job on this node; None where no controller answers."""
    answer = caller(["squeue", "--noheader", f"--nodelist={node}", "--format=%u"], CALL_S)
    if answer.status != 0:
        return None
    busy = set(answer.text.split())
    return [name for name in people if name not in busy]


def look(node: str, people: Sequence[str], *, wanted: bool, asker: Asker = ask_pam, caller: Caller = call) -> Finding:
    """Return what PAM does with root and with one of the people who have no job here."""
    if not wanted:
        return Finding("skipped", reason="slurm_pam_adopt is false, or the host is a controller or a login host as well")
    if not people:
        return Finding("skipped", reason="users_groups_accounts has nobody without sudo_rules")
    free = without_job(node, people, caller)
    if free is None:
        return Finding("unknown", reason="no controller says whose jobs run here. Fix: see slurm.controller")
    if not free:
        return Finding("skipped", reason="everybody has a job on this node")
    expected = f"{free[0]}, who has no job here, is refused, and root is not"
    refused, root = asker(free[0]), asker("root")
    if refused is None or root is None:
        return Finding("unknown", expected, "PAM does not answer", "PAM does not answer")
    found = f"PAM answers {refused} for {free[0]} and {root} for root ({PAM_SUCCESS} lets in, {PAM_PERM_DENIED} refuses)"
    right = refused == PAM_PERM_DENIED and root == PAM_SUCCESS
    return Finding("pass" if right else "fail", expected, found, "" if right else f"expected: {expected}; {found}")


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        {
            "host": {"type": "str", "required": True},
            "people": {"type": "list", "elements": "str", "required": True},
            "wanted": {"type": "bool", "required": True},
        },
        supports_check_mode=True,
    )
    host, started = module.params["host"], time.time()
    found = look(host, module.params["people"], wanted=module.params["wanted"])
    record = {"check": CHECK, "host": host, "verdict": found.verdict, "expected": found.expected, "found": found.found}
    bad = {} if found.verdict == "pass" else {"reason": found.reason, "fix": "" if found.verdict == "skipped" else FIX}
    verdict: dict[str, Any] = {
        **record,
        **bad,
        "source": SOURCE,
        "started": started,
        "seconds": round(time.time() - started, 3),
        "schema": SCHEMA,
    }
    result = {"changed": False, "verdicts": [verdict], "stdout": json.dumps({"verdicts": [verdict]})}
    if found.verdict == "fail":
        module.fail_json(msg=f"{host} {CHECK}: {found.reason}. Fix: {FIX}", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
