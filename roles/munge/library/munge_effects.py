#!/usr/bin/python
"""Ansible module `munge_effects`: verify munge. No collection has a module for it. It changes nothing.

Without `credential` it checks munge of this host and returns a new credential. With `credential` it checks that this host accepts it.
"""

from __future__ import annotations

import hmac
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command
from ansible.module_utils.verdict_records import Verdicts

KEY = Path("/etc/munge/munge.key")
APPLIED = Path("/run/munge/applied")
CALL_S = 10.0
APPLY_AGAIN = "apply the phase slurm to this host again"
# Errors of unmunge that are caused by the clock; all others are caused by the key.
WRONG_TIME = ("Expired", "Rewound")


def run(command: list[str], text: str = "") -> tuple[int | None, str]:
    """Return the exit code and the output of a command; the code is None if it is missing or times out."""
    try:
        done = run_command(command, stdin=text, timeout_s=CALL_S)
    except OSError as error:
        return None, str(error)
    return done.code, (done.stdout + done.stderr).strip()


def check_host(verdicts: Verdicts, key: str, *, key_file: Path = KEY, applied: Path = APPLIED) -> str:
    """Check that munged runs with the configured key; return a credential, empty if there is none."""
    status, answer = run(["munge", "--no-input"])
    credential = answer if status == 0 else ""
    found = "a credential" if credential else answer[:200]
    verdict = "pass" if credential else "unknown" if status is None else "fail"
    verdicts.add("answers", verdict, expected="a credential", found=found, fix="see `journalctl -u munge -n 30`")
    try:
        equal = hmac.compare_digest(key_file.read_bytes(), key.encode())
    except OSError as error:
        verdicts.add("key", "fail", expected="munge_key", found=str(error), fix=APPLY_AGAIN)
        return credential
    verdicts.add("key", "pass" if equal else "fail", expected="munge_key", found="munge_key" if equal else "another key", fix=APPLY_AGAIN)
    running, _ = run(["sha256sum", "--status", "--check", str(applied)])
    verdict = "unknown" if running is None else "fail" if running else "pass"
    expected = "the key and settings on disk"
    found = expected if running == 0 else "other ones, or no record of them"
    verdicts.add("in_force", verdict, expected=expected, found=found, fix="systemctl restart munge")
    return credential


def check_credential(verdicts: Verdicts, reference: str, credential: str) -> None:
    """Check that this host accepts a new credential of another host."""
    check, expected = "trusts", f"a credential of {reference} is valid here"
    if not credential:
        verdicts.add(check, "unknown", expected=expected, found=f"no credential of {reference}", fix=f"repair munge on {reference} first")
        return
    status, answer = run(["unmunge", "--metadata=/dev/null"], credential)
    if status is None or status == 0:
        verdict = "unknown" if status is None else "pass"
        verdicts.add(check, verdict, expected=expected, found=answer[:200] or "valid", fix="see `systemctl status munge`")
        return
    if any(word in answer for word in WRONG_TIME):
        fix = f"set the clock: `chronyc tracking` here and on {reference}; apply the phase baseline"
    else:
        fix = f"the munge key of this host is not the one of {reference}: {APPLY_AGAIN}"
    verdicts.add(check, "fail", expected=expected, found=answer[:200], fix=fix)


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "key": {"type": "str", "no_log": True},
            "reference": {"type": "str", "default": ""},
            "credential": {"type": "str", "no_log": False},
        },
        required_one_of=[("key", "credential")],
        supports_check_mode=True,
    )
    options = module.params
    verdicts = Verdicts("munge", options["host"])
    result = {}
    if options["credential"] is not None:
        check_credential(verdicts, options["reference"], options["credential"])
    else:
        result["credential"] = check_host(verdicts, options["key"])
    verdicts.finish(module, **result)


if __name__ == "__main__":
    main()
