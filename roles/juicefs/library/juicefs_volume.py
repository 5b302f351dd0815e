#!/usr/bin/python
"""Have a JuiceFS volume, formatted exactly once: the Ansible module `juicefs_volume`.

An existing volume is never formatted again, whatever the values say: where it differs from them, that is an error. Secrets are read on
the host from a file of root's and go to the program through its environment.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.safe_files import open_lock

if TYPE_CHECKING:
    from collections.abc import Mapping

# An engine that does not answer is asked for minutes by JuiceFS itself (0.14: four).
_STATUS_S = 40.0
_FORMAT_S = 180.0
# How 0.14 and 1.x say that an engine answers and holds no volume.
_EMPTY = ("no volume found", "database is not formatted")
_REFUSED = ("NOAUTH", "WRONGPASS", "password authentication failed", "Access denied")


class VolumeError(Exception):
    """The volume is not as stated, and what to do about it."""


def read_environment(path: str) -> dict[str, str]:
    """Return the variables of an environment file of systemd's simplest form."""
    text = Path(path).read_text(encoding="utf-8")
    lines = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {name: value for name, _, value in lines}


def settings_in(output: str) -> dict[str, Any] | None:
    """Return the settings that `juicefs status` prints among its log lines, or None where it prints none."""
    start = re.search(r"(?m)^\{", output)
    if not start:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(output[start.start() :])
    except ValueError:
        return None
    return value.get("Setting") if isinstance(value, dict) else None


def cause_in(output: str) -> str:
    """Return the last complaint in the program's log, without time and source line."""
    lines = re.findall(r"<(?:FATAL|ERROR|WARNING)>: (.*?)(?: \[[^\]]*\])?$", output, re.MULTILINE)
    return lines[-1] if lines else (output.strip().splitlines() or ["it said nothing"])[-1]


def compare(settings: Mapping[str, Any], wanted: Mapping[str, str]) -> None:
    """Refuse a volume that is another one than the stated.

    Raises:
        VolumeError: Name, kind of store or bucket differ.
    """
    facts = {"name": "Name", "storage": "Storage", "bucket": "Bucket"}
    other = [f"{key} {settings.get(word)!r} instead of {wanted[key]!r}" for key, word in facts.items() if settings.get(word) != wanted[key]]
    if other:
        raise VolumeError(
            f"the metadata engine holds a volume with {', '.join(other)}, and formatting it again would lose its files. "
            "Fix: mend juicefs_name, juicefs_storage or juicefs_bucket, or name another database in juicefs_meta_url"
        )


def run(command: list[str], environment: Mapping[str, str], limit_s: float) -> tuple[int, str]:
    """Run the program; a time-out is status 124, as timeout(1) says it."""
    known = {"HOME": "/root", "PATH": os.environ.get("PATH", "/usr/bin:/bin"), **environment}
    try:
        done = subprocess.run(command, env=known, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired as late:
        parts = [part.decode(errors="replace") if isinstance(part, bytes) else part or "" for part in (late.stdout, late.stderr)]
        return 124, "".join(parts)
    return done.returncode, done.stdout + done.stderr


def look(program: str, meta_url: str, environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the settings of the volume, or None where the engine answers and holds none.

    Raises:
        VolumeError: The engine does not answer, or refuses the password.
    """
    status, output = run([program, "status", meta_url], environment, _STATUS_S)
    settings = settings_in(output) if status == 0 else None
    if settings is not None:
        return settings
    if any(words in output for words in _EMPTY):
        return None
    if any(words in output for words in _REFUSED):
        raise VolumeError(f"{meta_url} refuses the password. Fix: give juicefs_meta_password (or redis_password) the engine's own")
    late = f"no answer within {_STATUS_S:.0f} s; " if status == 124 else ""
    raise VolumeError(
        f"{meta_url} cannot be used: {late}{cause_in(output)}. Fix: see that the engine runs and that its port is open from here"
    )


def have(wanted: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[bool, str]:
    """Have the volume; return whether it was made now, and its UUID.

    Raises:
        VolumeError: It cannot be had, or is another one.
    """
    settings = look(wanted["program"], wanted["meta_url"], environment)
    made = settings is None
    if settings is None:
        where = [f"--storage={wanted['storage']}", f"--bucket={wanted['bucket']}", *wanted["options"]]
        status, output = run([wanted["program"], "format", *where, wanted["meta_url"], wanted["name"]], environment, _FORMAT_S)
        if status:
            fix = "see that the object store runs, and that juicefs_bucket, access key and secret key are its own"
            raise VolumeError(f"the volume cannot be formatted: {cause_in(output)}. Fix: {fix}")
        settings = look(wanted["program"], wanted["meta_url"], environment) or {}
    compare(settings, wanted)
    return made, str(settings.get("UUID", ""))


def main() -> None:
    """Read the arguments, have the volume, and say whether it is new."""
    module = AnsibleModule(
        argument_spec={
            "program": {"type": "path", "required": True},
            "env_file": {"type": "path", "required": True},
            "meta_url": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "storage": {"type": "str", "required": True},
            "bucket": {"type": "str", "required": True},
            "options": {"type": "list", "elements": "str", "required": True},
        },
    )
    wanted = module.params
    try:
        # A command of an earlier run, whose controller is gone, may still be formatting.
        with open_lock("/run/juicefs-volume.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            made, uuid = have(wanted, read_environment(wanted["env_file"]))
    except (VolumeError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=made, uuid=uuid)


if __name__ == "__main__":
    main()
