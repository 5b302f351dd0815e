#!/usr/bin/python
"""Format a JuiceFS volume once: the Ansible module `juicefs_volume`. No collection has a module for JuiceFS.

An existing volume is never formatted again. If it differs from the arguments, the module fails. Secrets are read on the host from a file of
root, and passed to the program in its environment.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command
from ansible.module_utils.safe_files import open_lock

if TYPE_CHECKING:
    from collections.abc import Mapping

# JuiceFS itself retries for minutes if an engine does not answer (0.14: four minutes).
_STATUS_S = 40.0
_FORMAT_S = 180.0
# Time for the end of a program after its time limit.
_END_S = 10.0
# Messages of 0.14 and 1.x for an engine without a volume.
_EMPTY = ("no volume found", "database is not formatted")
_REFUSED = ("NOAUTH", "WRONGPASS", "password authentication failed", "Access denied")


class VolumeError(Exception):
    """The volume cannot be used; the message has the fix."""


def read_environment(path: str) -> dict[str, str]:
    """Return the variables of an environment file of systemd's simplest form."""
    text = Path(path).read_text(encoding="utf-8")
    lines = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {name: value for name, _, value in lines}


def settings_in(output: str) -> dict[str, Any] | None:
    """Return the settings that `juicefs status` prints among its log lines, or None if there are none."""
    start = re.search(r"(?m)^\{", output)
    if not start:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(output[start.start() :])
    except ValueError:
        return None
    return value.get("Setting") if isinstance(value, dict) else None


def last_error(output: str) -> str:
    """Return the last error or warning in the program's log, without time and source line."""
    lines = re.findall(r"<(?:FATAL|ERROR|WARNING)>: (.*?)(?: \[[^\]]*\])?$", output, re.MULTILINE)
    return lines[-1] if lines else (output.strip().splitlines() or ["it printed nothing"])[-1]


def compare(settings: Mapping[str, Any], params: Mapping[str, str]) -> None:
    """Fail if the volume is another one than configured.

    Raises:
        VolumeError: Name, type of store or bucket differ.
    """
    fields = {"name": "Name", "storage": "Storage", "bucket": "Bucket"}
    other = [
        f"{key} {settings.get(name)!r} instead of {params[key]!r}" for key, name in fields.items() if settings.get(name) != params[key]
    ]
    if other:
        raise VolumeError(
            f"the metadata engine holds a volume with {', '.join(other)}, and formatting it again would lose its files. "
            "Fix: correct juicefs_name, juicefs_storage or juicefs_bucket, or use another database in juicefs_meta_url"
        )


def run(command: list[str], environment: Mapping[str, str], limit_s: float) -> tuple[int, str]:
    """Run the program and return its exit code and output; timeout(1) keeps the output of a program that it ends, with status 124."""
    variables = {"HOME": "/root", "PATH": os.environ.get("PATH", "/usr/bin:/bin"), **environment}
    try:
        done = run_command(["timeout", f"{limit_s:g}", *command], env=variables, timeout_s=limit_s + _END_S)
    except TimeoutError:
        return 124, ""
    return done.code, done.stdout + done.stderr


def read_settings(program: str, meta_url: str, environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the settings of the volume, or None if the engine answers and has no volume.

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
        raise VolumeError(f"{meta_url} refuses the password. Fix: set juicefs_meta_password (or redis_password) to the engine's password")
    late = f"no answer within {_STATUS_S:.0f} s; " if status == 124 else ""
    raise VolumeError(
        f"{meta_url} cannot be used: {late}{last_error(output)}. Fix: check that the engine runs and that its port is open from this host"
    )


def ensure_volume(params: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[bool, str]:
    """Format the volume if there is none; return whether it was formatted, and its UUID.

    Raises:
        VolumeError: It cannot be formatted, or is another one.
    """
    settings = read_settings(params["program"], params["meta_url"], environment)
    formatted = settings is None
    if settings is None:
        options = [f"--storage={params['storage']}", f"--bucket={params['bucket']}", *params["options"]]
        status, output = run([params["program"], "format", *options, params["meta_url"], params["name"]], environment, _FORMAT_S)
        if status:
            fix = "check that the object store runs, and that juicefs_bucket, juicefs_access_key and juicefs_secret_key belong to it"
            raise VolumeError(f"the volume cannot be formatted: {last_error(output)}. Fix: {fix}")
        settings = read_settings(params["program"], params["meta_url"], environment) or {}
    compare(settings, params)
    return formatted, str(settings.get("UUID", ""))


def main() -> None:
    """Format the volume if there is none."""
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
    params = module.params
    try:
        # A command of an earlier run, which lost its controller, may still be formatting.
        with open_lock("/run/juicefs-volume.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            formatted, uuid = ensure_volume(params, read_environment(params["env_file"]))
    except (VolumeError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=formatted, uuid=uuid)


if __name__ == "__main__":
    main()
