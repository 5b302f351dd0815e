#!/usr/bin/python
"""Configure registries for containerd, one folder each below /etc/containerd/certs.d: the Ansible module `registry_containerd`.

No collection's module edits these files. containerd reads them at every pull, so they need no restart: "Updates under this directory do
not require restarting the containerd daemon" (https://github.com/containerd/containerd/blob/v2.1.3/docs/hosts.md). It reads the folder
only if `config_path` in its own configuration names it, which needs a restart. Kubespray always sets it; if it is missing, `state`
config_path adds it and reports that containerd must be restarted. Other folders are not changed: a record has the names of ours.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command
from ansible.module_utils.host_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CALL_S = 30.0
# The table of CRI's registries by the version of the file: https://github.com/containerd/containerd/blob/v2.1.3/docs/cri/registry.md
TABLES = {2: 'plugins."io.containerd.grpc.v1.cri".registry', 3: 'plugins."io.containerd.cri.v1.images".registry'}
_READ = re.compile(r"""^\s*\[plugins\.['"]?io\.containerd\.(?:grpc\.v1\.cri|cri\.v1\.images)['"]?\.registry\]\s*$""")
_TABLE = re.compile(r"^\s*\[")
_PATH = re.compile(r"""^\s*config_path\s*=\s*["'](.*?)["']""")
_VERSION = re.compile(r"^\s*version\s*=\s*(\d+)", re.MULTILINE)
# With these tables and config_path, containerd does not start (the page above).
_OLD = re.compile(r"""^\s*\[plugins\.[^\]]*\.registry\.(?:mirrors|configs)\.[^\]]*\]""", re.MULTILINE)
HEAD = "# Written by primus-bootstrap (role registry_trust), which overwrites manual changes.\n"


class RefusedError(Exception):
    """The configuration cannot be changed; the message has the fix."""


def hosts_toml(address: str, ca: str, username: str, password: str) -> str:
    """Return hosts.toml of one registry, with its settings at the root and repeated in a table.

    Some releases read only one of the two (containerd issues 10027 and 13212) and try both in turn: for a missing image the error would be
    an unknown authority. Since containerd 2.0, credentials can only be in a header.
    """
    login = base64.b64encode(f"{username}:{password}".encode()).decode("ascii")
    settings = ['capabilities = ["pull", "resolve", "push"]', *([f'ca = ["{ca}"]'] if ca else [])]
    header = [f'  Authorization = ["Basic {login}"]'] if username else []
    table = f'host."https://{address}"'
    root = [f'server = "https://{address}"', *settings, *(["", "[header]", *header] if header else [])]
    own = ["", f"[{table}]", *settings, *(["", f"[{table}.header]", *header] if header else [])]
    return HEAD + "\n".join(root + own) + "\n"


def folder_read(dumped: str) -> list[str]:
    """Return the folders of CRI's registries from the output of `containerd config dump`."""
    inside = False
    for line in dumped.splitlines():
        if _TABLE.match(line):
            inside = bool(_READ.match(line))
        elif inside and (found := _PATH.match(line)):
            return [one for one in found[1].split(":") if one]
    return []


def with_folder(text: str, folder: str) -> str:
    """Return containerd's configuration with config_path set, and everything else unchanged.

    Raises:
        RefusedError: It has mirrors in the old form, or an unknown version.
    """
    found = _VERSION.search(text)
    version = int(found[1]) if found else 2 if not text.strip() else 1
    if version not in TABLES:
        raise RefusedError(f"its version is {version}. Fix: convert it with `containerd config migrate`")
    if old := _OLD.search(text):
        raise RefusedError(f"{old[0].strip()} cannot be combined with config_path. Fix: move it to {folder}/NAME/hosts.toml")
    setting, header = f'  config_path = "{folder}"', f"[{TABLES[version]}]"
    lines: list[str] = []
    inside = named = False
    for line in text.splitlines():
        if inside and _PATH.match(line):
            continue
        lines.append(line)
        if _TABLE.match(line):
            inside = bool(_READ.match(line))
            lines += [setting] if inside else []
            named |= inside
    if not named:
        lines += ([] if found else [f"version = {version}"]) + [
            "",
            "# Added by primus-bootstrap, to read the registries in certs.d.",
            header,
            setting,
        ]
    return "\n".join(lines) + "\n"


class Folder:
    """The folder of registries, and the record of ours."""

    def __init__(self, root: Path, record: Path, *, check: bool) -> None:
        """Store the paths; with `check` nothing is written. `messages` collects the changes."""
        self.root, self.record, self.check = root, record, check
        self.ours = record.read_text("utf-8").split() if record.exists() else []
        self.messages: list[str] = []

    def apply(self, registries: Sequence[Mapping[str, Any]]) -> None:
        """Write the configured registries, and remove others that the module has written before.

        Raises:
            RefusedError: There is a foreign hosts.toml for one of them.
        """
        names = [one["address"] for one in registries]
        foreign = [name for name in names if name not in self.ours and (self.root / name / "hosts.toml").exists()]
        if foreign:
            paths = ", ".join(f"{self.root}/{name}/hosts.toml" for name in foreign)
            raise RefusedError(
                f"{paths} was not written by primus-bootstrap. "
                "Fix: remove it from containerd_registries_mirrors (Kubespray writes it) and delete the file"
            )
        # The record first: if the run is killed in between, the new folders are still known as ours.
        self._write_record(sorted({*self.ours, *names}))
        for one in registries:
            self._write_registry(one)
        for name in sorted(set(self.ours) - set(names)):
            self._remove(name)
        self._write_record(names)

    def _write_record(self, names: Sequence[str]) -> None:
        text = "".join(f"{name}\n" for name in names)
        if not self.check and (self.ours or names) and (not self.record.exists() or self.record.read_text("utf-8") != text):
            replace_file(self.record, text, mode=0o644)

    def _write_registry(self, one: Mapping[str, Any]) -> None:
        folder = self.root / one["address"]
        ca = folder / "ca.crt"
        if one["pem"] is not None:  # None: it could not be read in this run, so the host keeps the one that it has
            self._write_file(ca, one["pem"], 0o644)
        has_ca = bool(one["pem"]) if one["pem"] is not None else ca.exists()
        self._write_file(
            folder / "hosts.toml", hosts_toml(one["address"], str(ca) if has_ca else "", one["username"], one["password"]), 0o600
        )

    def _write_file(self, path: Path, text: str, mode: int) -> None:
        if not text:
            if path.exists():
                self.messages.append(f"remove {path}")
                if not self.check:
                    path.unlink()
            return
        if path.exists() and path.read_text("utf-8") == text and path.stat().st_mode & 0o777 == mode:
            return
        self.messages.append(f"write {path}")
        if not self.check:
            replace_file(path, text, mode=mode)

    def _remove(self, name: str) -> None:
        if not (self.root / name).is_dir():
            return
        self.messages.append(f"remove {self.root}/{name}")
        if not self.check:
            for file in ("hosts.toml", "ca.crt"):
                (self.root / name / file).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the folder stays if it has other files
                (self.root / name).rmdir()


def dump(config: Path) -> str:
    """Return containerd's effective configuration with a file, including its defaults.

    Raises:
        RefusedError: containerd is missing, times out, or rejects the file.
    """
    program = shutil.which("containerd", path=f"{os.environ.get('PATH', '')}:/usr/local/bin:/usr/bin:/usr/sbin")
    if not program:
        raise RefusedError("this host has no containerd. Fix: primus-bootstrap apply hosts.yaml --phase kubernetes")
    argv = [program, "--config", str(config), "config", "dump"] if config.exists() else [program, "config", "default"]
    try:
        done = run_command(argv, timeout_s=CALL_S)
    except OSError as error:
        raise RefusedError(f"{' '.join(argv)}: {type(error).__name__}. Fix: see `systemctl status containerd`") from error
    if done.code:
        raise RefusedError(f"{' '.join(argv)}: {done.stderr.strip()[-300:]}. Fix: correct {config}")
    return done.stdout


def set_config_path(config: Path, mark: Path, folder: str) -> None:
    """Set config_path in containerd's configuration, after containerd has checked the new file.

    Raises:
        RefusedError: containerd rejects the file, or would not read the folder.
    """
    current = config.read_text("utf-8") if config.exists() else ""
    text, mode = with_folder(current, folder), config.stat().st_mode & 0o777 if config.exists() else 0o644
    draft = config.with_name(".primus-config.toml")
    replace_file(draft, text, mode=mode)
    try:
        if folder not in folder_read(dump(draft)):
            raise RefusedError(f"containerd does not read {folder} although config_path is set. Fix: set config_path in {config} by hand")
        # The mark first: if the run is killed in between, the next one still restarts containerd. It is in /run, because a reboot
        # restarts it too.
        replace_file(mark, "", mode=0o644)
        replace_file(config, text, mode=mode)
    finally:
        draft.unlink(missing_ok=True)


def main() -> None:
    """Write the registries, set config_path, or remove the mark after a restart."""
    one = {
        "address": {"type": "str", "required": True},
        "pem": {"type": "str"},
        "username": {"type": "str", "default": ""},
        "password": {"type": "str", "default": "", "no_log": True},
        "ca_file": {"type": "str"},
    }
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["registries", "config_path", "restarted"], "default": "registries"},
            "registries": {"type": "list", "elements": "dict", "default": [], "options": one},
            "folder": {"type": "path", "default": "/etc/containerd/certs.d"},
            "record": {"type": "path", "default": "/etc/containerd/primus-registries"},
            "config": {"type": "path", "default": "/etc/containerd/config.toml"},
            "mark": {"type": "path", "default": "/run/primus-containerd-restart"},
        },
        supports_check_mode=True,
    )
    params: Mapping[str, Any] = module.params
    config, mark = Path(params["config"]), Path(params["mark"])
    os.umask(0o022)
    try:
        if params["state"] == "restarted":
            changed = mark.exists()
            if changed and not module.check_mode:
                mark.unlink()
            module.exit_json(changed=changed)
        folder = Folder(Path(params["folder"]), Path(params["record"]), check=module.check_mode)
        removes_all = params["state"] == "registries" and not params["registries"]
        # In check mode, containerd may not be installed yet.
        not_installed = module.check_mode and shutil.which("containerd") is None and not config.exists()
        reads_folder = removes_all or not_installed or params["folder"] in folder_read(dump(config))
        if params["state"] == "config_path":
            if not reads_folder and not module.check_mode:
                set_config_path(config, mark, params["folder"])
            module.exit_json(changed=not reads_folder)
        folder.apply(params["registries"])
        restart = not removes_all and (not reads_folder or mark.exists())
        module.exit_json(changed=bool(folder.messages), changes=folder.messages, restart=restart)
    except (OSError, UnicodeDecodeError) as error:
        module.fail_json(msg=f"containerd's registries cannot be configured: {error}. Fix: check that root can write to {params['folder']}")
    except RefusedError as error:
        module.fail_json(msg=f"containerd's registries cannot be configured: {error}")


if __name__ == "__main__":
    main()
