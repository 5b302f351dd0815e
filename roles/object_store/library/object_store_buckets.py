#!/usr/bin/python
"""Ansible module `object_store_buckets`: create buckets that do not exist, with the shell of SeaweedFS.

amazon.aws.s3_bucket needs boto3, and an account that may create buckets. The shell uses the certificate of this host.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Shell = Callable[[str], str]

CALL_S = 60
RETRY_S = 2.0
# The shell reads security.toml here.
FOLDER = "/etc/seaweedfs"
FIX = (
    "run `journalctl -u primus-object-master -u primus-object-filer -n 30` on the hosts of object_store, then apply the phase storage again"
)


class StoreError(Exception):
    """The store does not answer, or refuses a command."""


def weed_shell(program: str, masters: Iterable[str]) -> Shell:
    """Return a function that runs one command of the shell and returns its output, with errors."""

    def run(command: str) -> str:
        try:
            done = run_command([program, "shell", f"-master={','.join(masters)}"], stdin=f"{command}\n", cwd=FOLDER, timeout_s=CALL_S)
        except TimeoutError:
            return f"error: no answer within {CALL_S} s"
        return f"{done.stdout}\n{done.stderr}"

    return run


def error_of(output: str) -> str:
    """Return the error in the output of a command, or an empty text. The exit code is always 0."""
    return next((line for line in output.splitlines() if line.startswith("error")), "")


def existing(output: str) -> set[str]:
    """Return the names in the output of s3.bucket.list, which has one indented line for each bucket."""
    return {line.split("\t", 1)[0].strip() for line in output.splitlines() if line.startswith("  ") and "\t" in line}


def create_missing(shell: Shell, buckets: Iterable[str], *, check: bool) -> list[str]:
    """Create the missing buckets and return their names; with `check` create none.

    Raises:
        StoreError: The store does not answer, or refuses a command.
    """
    listing = shell("s3.bucket.list")
    if problem := error_of(listing):
        raise StoreError(problem)
    missing = [bucket for bucket in buckets if bucket not in existing(listing)]
    for bucket in () if check else missing:
        if problem := error_of(shell(f"s3.bucket.create -name {bucket}")):
            raise StoreError(f"bucket {bucket}: {problem}")
    return missing


def main() -> None:
    """Retry until the store answers: after a start, the masters elect a leader first."""
    module = AnsibleModule(
        {
            "program": {"type": "path", "required": True},
            "masters": {"type": "list", "elements": "str", "required": True},
            "buckets": {"type": "list", "elements": "str", "required": True},
            "wait_s": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    shell = weed_shell(module.params["program"], module.params["masters"])
    end = time.monotonic() + module.params["wait_s"]
    while True:
        try:
            created = create_missing(shell, module.params["buckets"], check=module.check_mode)
            module.exit_json(changed=bool(created), created=created)
        except StoreError as error:
            if time.monotonic() > end:
                module.fail_json(msg=f"the object store cannot create buckets: {error}. Fix: {FIX}")
        time.sleep(RETRY_S)


if __name__ == "__main__":
    main()
