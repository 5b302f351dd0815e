#!/usr/bin/python
"""Format a JuiceFS volume once: the Ansible module `juicefs_volume`. No collection has a module for JuiceFS.

An existing volume is never formatted again. If it differs from the arguments, the module fails. Secrets are read on the host from a file of
root, and passed to the program in its environment.
"""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.juicefs_program import VolumeError, last_error, read_environment, read_status, run
from ansible.module_utils.safe_files import open_lock

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORMAT_S = 180.0


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
            "Fix: correct juicefs_name, juicefs_storage or juicefs_bucket, or use another database in juicefs_meta_url. To move the files "
            "from juicefs_store to object_store, run `primus-bootstrap storage migrate hosts.yaml`"
        )


def read_settings(params: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the settings of the volume, or None if the engine answers and has no volume.

    Raises:
        VolumeError: The engine does not answer, or refuses the password.
    """
    status = read_status(params["program"], params["meta_url"], environment)
    return None if status is None else dict(status["Setting"])


def ensure_volume(params: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[bool, str]:
    """Format the volume if there is none; return whether it was formatted, and its UUID.

    Raises:
        VolumeError: It cannot be formatted, or is another one.
    """
    settings = read_settings(params, environment)
    formatted = settings is None
    if settings is None:
        options = [f"--storage={params['storage']}", f"--bucket={params['bucket']}", *params["options"]]
        status, output = run([params["program"], "format", *options, params["meta_url"], params["name"]], environment, _FORMAT_S)
        if status:
            fix = "check that the object store runs, and that juicefs_bucket, juicefs_access_key and juicefs_secret_key belong to it"
            raise VolumeError(f"the volume cannot be formatted: {last_error(output)}. Fix: {fix}")
        settings = read_settings(params, environment) or {}
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
