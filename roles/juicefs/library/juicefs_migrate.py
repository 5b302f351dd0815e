#!/usr/bin/python
"""Move the blocks of a JuiceFS volume from an sftp store to an S3 store: the Ansible module `juicefs_migrate`.

    action=look     read whether the volume has moved already.
    action=copy     copy all blocks while the volume is in use. Blocks never change, so a second run copies only what is missing.
    action=switch   needs a volume that no client mounts: copy what is missing, delete what the former store no longer has, use the new
                    store, and check with `juicefs fsck` that it has every block. If it has not, use the former store again.

The former store is only read. `switch` returns an error as `problem` and does not fail, so that the caller can mount the volume
again. A run waits for an earlier one that lost its controller.

Arguments:
    action: see above.
    settings: a dict:
        program, env_file, meta_url, name: how JuiceFS is called, and the name of the volume. For `copy` and `switch`, env_file also has
            STORE_PASSWORD.
        old_bucket, account: the sftp store as the volume records it. new_bucket: the URL of the S3 bucket.
        state_folder: a folder of root that is deleted after the migration.
        threads, limit_mbps (0 = none): how fast to copy.
        limit_s: how long one pass may take.

Returns `copied` (number of objects) and `complete`: whether the volume uses the new store and was checked there.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command
from ansible.module_utils.juicefs_program import VolumeError, last_error, read_environment, read_status, run
from ansible.module_utils.safe_files import open_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LOCK = "/run/juicefs-migrate.lock"
_CONFIG_S = 180.0
_POLL_S = 5.0
# A client that was killed stays in the list of sessions for up to a minute: five heartbeats of 12 s.
_SESSIONS_S = 150.0
# Passes until nothing differs. More than one is needed only if another host of the new store lists a name late.
_PASSES = 5
# How often objects that failed are tried again: a host may be busy, or have refused a connection.
_TRIES, _PAUSE_S = 3, 5.0
# The object with the volume's UUID, which `juicefs format` writes (1.0 and later).
_MARK = "juicefs_uuid"
# In the environment file, but not for JuiceFS: its environment has no variable for the password of sftp.
_PASSWORD = "STORE_PASSWORD"  # noqa: S105 - a name
# Of the end of a session, in UTC; such texts sort by time.
_TIME_FORMAT, _TIME = "%Y-%m-%dT%H:%M:%S", "2026-11-28T23:40:18"
_COUNTS = ("Found", "skipped", "copied", "deleted", "failed")


@dataclass(frozen=True)
class Stores:
    """Where the blocks are and where they belong."""

    old_bucket: str
    account: str
    new_bucket: str

    def old_location(self, volume: str) -> str:
        """Return the former store as an argument of `juicefs sync`."""
        return f"{self.account}@{self.old_bucket.rstrip('/')}/{volume}/"

    def new_location(self, volume: str) -> str:
        """Return the new store as an argument of `juicefs sync`, which takes only addresses and localhost as host of a path-style URL."""
        url = urlsplit(self.new_bucket)
        bucket = url.path.strip("/")
        if re.fullmatch(r"localhost|\d+\.\d+\.\d+\.\d+", url.hostname or ""):
            return f"s3://{url.netloc}/{bucket}/{volume}/"
        return f"s3://{bucket}.{url.netloc}/{volume}/"

    def in_use(self, settings: Mapping[str, Any]) -> str:
        """Return `old` or `new`: the store that the volume uses.

        Raises:
            VolumeError: It uses another one.
        """
        used = (settings.get("Storage"), settings.get("Bucket"))
        if used == ("sftp", self.old_bucket):
            return "old"
        if used == ("s3", self.new_bucket):
            return "new"
        raise VolumeError(
            f"the volume is in {used[0]} {used[1]}, neither in sftp {self.old_bucket} nor in s3 {self.new_bucket}. "
            "Fix: correct the groups juicefs_store and object_store in hosts.yaml"
        )


def counts_in(output: str) -> dict[str, int] | None:
    """Return the numbers of objects in the last line that `juicefs sync` prints; None if it did not complete."""
    lines = [line for line in output.splitlines() if "<INFO>: Found: " in line]
    found = dict(re.findall(r"(\w+): (\d+)", lines[-1])) if lines else {}
    return {name: int(found.get(name, 0)) for name in _COUNTS} if found else None


def failures_in(output: str) -> str:
    """Return the number of objects that failed and the first reason, or the last error."""
    counts = counts_in(output)
    reason = re.search(r"<ERROR>: (.*?)(?: \[[^\]]*\])?$", output, re.MULTILINE)
    failed = f"{counts['failed']} objects failed: " if counts and counts["failed"] else ""
    return failed + (reason[1][:300] if reason else last_error(output))


def clients_of(status: Mapping[str, Any], now: datetime) -> list[str]:
    """Return `host:/mountpoint` of each client whose session has not expired."""
    return [
        f"{session.get('HostName')}:{session.get('MountPoint')}"
        for session in status.get("Sessions") or ()
        if str(session.get("Expire") or "9")[: len(_TIME)] > now.strftime(_TIME_FORMAT)
    ]


def is_complete(settings: Mapping[str, Any]) -> bool:
    """Return whether the new store was checked: only then the former password is removed from the metadata."""
    return not settings.get("SecretKey")


class Migration:
    """One volume, the program, and its environment."""

    def __init__(self, params: Mapping[str, Any], environment: Mapping[str, str], pause: Callable[[float], None] = time.sleep) -> None:
        """Separate the password of sftp from the variables of the program."""
        self.params, self.pause = params, pause
        self.stores = Stores(params["old_bucket"], params["account"], params["new_bucket"])
        self.old, self.new = self.stores.old_location(params["name"]), self.stores.new_location(params["name"])
        self.password = environment.get(_PASSWORD, "")
        # An SSH key of root must not be tried.
        self.environment = {**{name: value for name, value in environment.items() if name != _PASSWORD}, "HOME": params["state_folder"]}
        self.checked = Path(params["state_folder"]) / "compared"

    def status(self) -> dict[str, Any]:
        """Return the settings and sessions of the volume.

        Raises:
            VolumeError: There is no volume, or the engine does not answer.
        """
        status = read_status(self.params["program"], self.params["meta_url"], self.environment)
        if status is None:
            raise VolumeError(f"{self.params['meta_url']} has no volume. Fix: run `primus-bootstrap apply hosts.yaml --phase storage`")
        return dict(status)

    def config(self, *options: str) -> None:
        """Change the settings of the volume.

        Raises:
            VolumeError: JuiceFS refuses it, for example because the store does not answer.
        """
        command = [self.params["program"], "--no-agent", "config", "--yes", *options, self.params["meta_url"]]
        code, output = run(command, self.environment, _CONFIG_S)
        if code:
            raise VolumeError(
                f"the volume cannot use the store: {last_error(output)}. Fix: check the store, then run the same command again"
            )

    def sync(self, source: str, target: str, *options: str) -> dict[str, int]:
        """Copy missing objects and return the numbers of objects; try again those that failed.

        Raises:
            VolumeError: JuiceFS fails, or objects could not be copied.
        """
        limit = self.params["limit_mbps"]
        words = ["--no-agent", "sync", "--metrics=127.0.0.1:off", "--consul=", f"--threads={self.params['threads']}"]
        command = [self.params["program"], *words, *([f"--bwlimit={limit}"] if limit else []), *options, source, target]
        copied = 0
        for attempt in range(_TRIES):
            self.pause(_PAUSE_S * attempt)
            code, output = self._with_password(command)
            counts = counts_in(output)
            copied += counts["copied"] if counts else 0
            if not code and counts and not counts["failed"]:
                return {**counts, "copied": copied}
            if counts is None:
                break
        raise VolumeError(
            f"copying from {source} to {target} failed: {failures_in(output)}. "
            "Fix: check both stores, then run the same command again; it continues"
        )

    def _with_password(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a command that asks for the password of sftp on a terminal. The terminal ends it if this process is killed."""
        master, slave = os.openpty()
        try:
            os.write(master, f"{self.password}\n".encode())
            terminal = os.ttyname(slave)
            variables = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **self.environment}
            words = ["setsid", "sh", "-c", 'exec "$@" < "$0"', terminal, *command]
            done = run_command(words, env=variables, timeout_s=self.params["limit_s"])
        except TimeoutError as error:
            raise VolumeError(f"{error}. Fix: run the same command again; it continues") from error
        finally:
            os.close(slave)
            os.close(master)
        return done.code, done.stdout + done.stderr

    def claim(self, uuid: str) -> None:
        """Write the UUID of the volume into the new store, or check that it is there.

        Raises:
            VolumeError: The new store has objects of another volume, or the former store is empty.
        """
        folder = Path(tempfile.mkdtemp(dir=self.params["state_folder"]))
        try:
            only = (f"--start={_MARK[:-1]}", f"--end={_MARK}~")  # the start is exclusive
            if not self.sync(self.old, f"{folder}/", "--dry", "--limit=1")["Found"]:
                fix = "check that the disk of juicefs_store_dir is mounted on the host of juicefs_store"
                raise VolumeError(f"the former store {self.stores.old_bucket} is empty. Fix: {fix}")
            self.sync(self.new, f"{folder}/", *only)
            mark = folder / _MARK
            found = mark.read_text(encoding="utf-8").strip() if mark.exists() else ""
            if not found and not self.sync(self.new, f"{folder}/", "--dry", "--limit=1")["Found"]:
                mark.write_text(uuid, encoding="utf-8")
                self.sync(f"{folder}/", self.new, *only)
            elif found != uuid:
                fix = "use another bucket (object_store_buckets), or delete these objects if nothing needs them"
                raise VolumeError(f"{self.new} has objects of another volume ({found or 'unknown'}). Fix: {fix}")
        finally:
            shutil.rmtree(folder)

    def look(self) -> dict[str, Any]:
        """Return whether the volume has moved already.

        Raises:
            VolumeError: The engine does not answer, or the volume is in another store.
        """
        settings = self.status()["Setting"]
        return {"changed": False, "complete": self.stores.in_use(settings) == "new" and is_complete(settings)}

    def copy(self) -> dict[str, Any]:
        """Copy all blocks, and compare the bytes of all blocks once.

        Raises:
            VolumeError: A store does not answer, or the volume is in another one.
        """
        settings = self.status()["Setting"]
        if self.stores.in_use(settings) == "new":
            return {"changed": False, "copied": 0, "complete": is_complete(settings)}
        uuid = str(settings.get("UUID", ""))
        self.claim(uuid)
        copied = self.sync(self.old, self.new, "--check-new")["copied"]
        done = f"{uuid} {self.new}"
        if not self.checked.exists() or self.checked.read_text(encoding="utf-8") != done:
            copied += self.sync(self.old, self.new, "--check-new", "--check-all")["copied"]
            self.checked.write_text(done, encoding="utf-8")
        return {"changed": copied > 0, "copied": copied, "complete": False}

    def switch(self) -> dict[str, Any]:
        """Complete the copy, use the new store, and check it.

        Raises:
            VolumeError: A client has the volume mounted, a store does not answer, or blocks are missing.
        """
        settings = self.status()["Setting"]
        store = self.stores.in_use(settings)
        if store == "new" and is_complete(settings):
            return {"changed": False, "complete": True}
        self.wait_until_unused()
        if store == "old":
            self.claim(str(settings.get("UUID", "")))
            self.mirror()
            # The former password stays in the metadata until the check, so that the way back needs no secret.
            self.config("--storage=s3", f"--bucket={self.stores.new_bucket}", "--access-key=")
        self.check()
        self.config("--secret-key=")
        return {"changed": True, "complete": True}

    def wait_until_unused(self) -> None:
        """Wait until the volume has no client.

        Raises:
            VolumeError: A client keeps its session.
        """
        end = time.monotonic() + _SESSIONS_S
        while True:
            clients = clients_of(self.status(), datetime.now(timezone.utc))  # noqa: UP017 - Python 3.9
            if not clients:
                return
            if time.monotonic() > end:
                fix = "unmount it there (pods with a volume too), then run the same command again"
                raise VolumeError(f"the volume is still mounted on {', '.join(clients)}. Fix: {fix}")
            self.pause(_POLL_S)

    def mirror(self) -> None:
        """Make both stores equal.

        Raises:
            VolumeError: They still differ after several passes, so something writes to the former store.
        """
        for _ in range(_PASSES):
            counts = self.sync(self.old, self.new, "--check-new", "--delete-dst")
            if not counts["copied"] and not counts["deleted"]:
                return
        raise VolumeError(f"{self.old} and {self.new} still differ. Fix: find what writes to one of them, then run the same command again")

    def check(self) -> None:
        """Check that the store in use has every block of every file; otherwise use the former one again.

        Raises:
            VolumeError: Blocks are missing.
        """
        code, output = run(
            [self.params["program"], "--no-agent", "fsck", self.params["meta_url"]], self.environment, self.params["limit_s"]
        )
        if code:
            self.config("--storage=sftp", f"--bucket={self.stores.old_bucket}", f"--access-key={self.stores.account}")
            lost = output.partition("<FATAL>: ")[2].strip()[:1000] or last_error(output)
            raise VolumeError(
                f"the new store does not have every block, and the volume uses the former one again: {lost}. "
                "Fix: run `juicefs fsck` with the former store too, and restore or delete files that are damaged there"
            )


def attempt(action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of an action, or its error as `problem`."""
    try:
        return {"problem": "", **action()}
    except (VolumeError, OSError) as error:
        return {"changed": True, "problem": str(error), "complete": False}


def perform(action: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run an action and return its result.

    Raises:
        OSError: There is no environment file.
        VolumeError: See the actions.
    """
    migration = Migration(settings, read_environment(settings["env_file"]))
    return {"look": migration.look, "copy": migration.copy, "switch": migration.switch}[action]()


def main() -> None:
    """Run the action."""
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "required": True, "choices": ["look", "copy", "switch"]},
            "settings": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    action, settings = module.params["action"], module.params["settings"]
    if module.check_mode and action != "look":
        module.exit_json(changed=True, copied=0, complete=False, problem="")
    with open_lock(LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = attempt(partial(perform, action, settings))
    if action != "switch" and result["problem"]:
        module.fail_json(msg=result["problem"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
