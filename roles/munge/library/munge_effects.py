#!/usr/bin/python
"""Ask munged what it runs with and whom it believes: the Ansible module `munge_effects`, which changes nothing.

Without `credential` it looks at this host and returns a fresh credential; with one it says whether this host believes it.
"""

from __future__ import annotations

import hmac
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

SCHEMA = "primus.verdict/1"
SOURCE = "roles/munge/meta/argument_specs.yml"
KEY = Path("/etc/munge/munge.key")
APPLIED = Path("/run/munge/applied")
CALL_S = 10.0
AGAIN = "apply the phase slurm to this host again"
# What unmunge says of a credential whose time does not fit; every other refusal is the key's.
WRONG_TIME = ("Expired", "Rewound")


class Look:
    """One look at one host; verdicts gather in `verdicts`."""

    def __init__(self, host: str) -> None:
        """Keep whose host it is."""
        self.host = host
        self.verdicts: list[dict[str, Any]] = []

    def judge(self, check: str, verdict: str, *, expected: str, found: str, fix: str) -> None:
        """Record one verdict."""
        record = {"check": f"munge.{check}", "host": self.host, "verdict": verdict, "expected": expected, "found": found}
        bad = {} if verdict == "pass" else {"reason": f"expected {expected}, found {found}", "fix": fix}
        self.verdicts.append({**record, **bad, "source": SOURCE, "started": time.time(), "seconds": 0.0, "schema": SCHEMA})


def run(command: list[str], text: str = "") -> tuple[int | None, str]:
    """Return the status of a command and what it printed; None where it did not end in time or is not there."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=CALL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return done.returncode, (done.stdout + done.stderr).strip()


def look_at_host(look: Look, key: str, *, key_file: Path = KEY, applied: Path = APPLIED) -> str:
    """See that munged runs, with the stated key; return a credential, empty where there is none."""
    status, answer = run(["munge", "--no-input"])
    credential = answer if status == 0 else ""
    found = "a credential" if credential else answer[:200]
    verdict = "pass" if credential else "unknown" if status is None else "fail"
    look.judge("answers", verdict, expected="a credential", found=found, fix="see `journalctl -u munge -n 30`")
    try:
        stated = hmac.compare_digest(key_file.read_bytes(), key.encode())
    except OSError as error:
        look.judge("key", "fail", expected="the stated key", found=str(error), fix=AGAIN)
        return credential
    look.judge(
        "key", "pass" if stated else "fail", expected="the stated key", found="the stated key" if stated else "another key", fix=AGAIN
    )
    running, _ = run(["sha256sum", "--status", "--check", str(applied)])
    verdict = "unknown" if running is None else "fail" if running else "pass"
    found = "key and settings as they are on disk" if running == 0 else "other ones, or nobody noted which"
    look.judge("in_force", verdict, expected="key and settings as they are on disk", found=found, fix="systemctl restart munge")
    return credential


def look_at_credential(look: Look, reference: str, credential: str) -> None:
    """See whether this host believes a credential that another host made a moment ago."""
    check, expected = "believes", f"a credential of {reference} is valid here"
    if not credential:
        look.judge(check, "unknown", expected=expected, found=f"no credential of {reference}", fix=f"mend munge on {reference} first")
        return
    status, answer = run(["unmunge", "--metadata=/dev/null"], credential)
    if status is None or status == 0:
        look.judge(
            check,
            "unknown" if status is None else "pass",
            expected=expected,
            found=answer[:200] or "valid",
            fix="see `systemctl status munge`",
        )
        return
    if any(word in answer for word in WRONG_TIME):
        fix = f"set the clock: `chronyc tracking` here and on {reference}; apply the phase baseline"
    else:
        fix = f"the munge key of this host is not the one of {reference}: {AGAIN}"
    look.judge(check, "fail", expected=expected, found=answer[:200], fix=fix)


def main() -> None:
    """Read the arguments, look, and report verdicts."""
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
    wanted = module.params
    look = Look(wanted["host"])
    result: dict[str, Any] = {"changed": False}
    if wanted["credential"] is not None:
        look_at_credential(look, wanted["reference"], wanted["credential"])
    else:
        result["credential"] = look_at_host(look, wanted["key"])
    result |= {"verdicts": look.verdicts, "stdout": json.dumps({"verdicts": look.verdicts})}
    failed = [f"{record['check']}: {record['reason']}. Fix: {record['fix']}" for record in look.verdicts if record["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
