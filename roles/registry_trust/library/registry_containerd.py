#!/usr/bin/python
"""Let containerd trust registries, one folder each below /etc/containerd/certs.d: the Ansible module `registry_containerd`.

containerd reads these files at every pull, so nothing is restarted for them: "Updates under this directory do not require restarting the
containerd daemon" (https://github.com/containerd/containerd/blob/v2.1.3/docs/hosts.md). That it looks there at all is `config_path` in its
own configuration, which it reads at its start. Kubespray always sets it; where it is missing, `state: reads_folder` adds it, and says
that containerd has to be restarted. Folders of others are left alone: which are ours stands in a record beside them.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CALL_S = 30.0
# The table of CRI's registries by the version of the file: https://github.com/containerd/containerd/blob/v2.1.3/docs/cri/registry.md
TABLES = {2: 'plugins."io.containerd.grpc.v1.cri".registry', 3: 'plugins."io.containerd.cri.v1.images".registry'}
_READ = re.compile(r"""^\s*\[plugins\.['"]?io\.containerd\.(?:grpc\.v1\.cri|cri\.v1\.images)['"]?\.registry\]\s*$""")
_TABLE = re.compile(r"^\s*\[")
_PATH = re.compile(r"""^\s*config_path\s*=\s*["'](.*?)["']""")
_VERSION = re.compile(r"^\s*version\s*=\s*(\d+)", re.MULTILINE)
# containerd does not start where these stand beside config_path (the page above).
_OLD = re.compile(r"""^\s*\[plugins\.[^\]]*\.registry\.(?:mirrors|configs)\.[^\]]*\]""", re.MULTILINE)
HEAD = "# Kept by primus-bootstrap (role registry_trust); what is changed here by hand does not last.\n"


class RefusedError(Exception):
    """Something that is not ours to change; the message ends in an instruction."""


def hosts_toml(address: str, ca: str, username: str, password: str) -> str:
    """Return hosts.toml of one registry, its settings at the root and in a table of its own.

    Of the two some releases read only one (containerd issues 10027 and 13212), and both are tried in turn: an image that is not there would
    be answered with an authority that is unknown. Since containerd 2.0 a header is its only place for credentials.
    """
    login = base64.b64encode(f"{username}:{password}".encode()).decode("ascii")
    settings = ['capabilities = ["pull", "resolve", "push"]', *([f'ca = ["{ca}"]'] if ca else [])]
    header = [f'  Authorization = ["Basic {login}"]'] if username else []
    table = f'host."https://{address}"'
    root = [f'server = "https://{address}"', *settings, *(["", "[header]", *header] if header else [])]
    own = ["", f"[{table}]", *settings, *(["", f"[{table}.header]", *header] if header else [])]
    return HEAD + "\n".join(root + own) + "\n"


def folder_read(dumped: str) -> list[str]:
    """Return the folders that CRI's registries are read from, of what `containerd config dump` prints."""
    inside = False
    for line in dumped.splitlines():
        if _TABLE.match(line):
            inside = bool(_READ.match(line))
        elif inside and (found := _PATH.match(line)):
            return [one for one in found[1].split(":") if one]
    return []


def with_folder(text: str, folder: str) -> str:
    """Return containerd's configuration with the folder named in it, everything else as it is.

    Raises:
        RefusedError: it has mirrors of its own, or a form that this does not know.
    """
    found = _VERSION.search(text)
    version = int(found[1]) if found else 2 if not text.strip() else 1
    if version not in TABLES:
        raise RefusedError(f"its version is {version}. Fix: let `containerd config migrate` bring it to a newer one")
    if old := _OLD.search(text):
        raise RefusedError(f"{old[0].strip()} cannot stand beside config_path. Fix: move it to {folder}/NAME/hosts.toml")
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
            "# So that registries of certs.d count (primus-bootstrap).",
            header,
            setting,
        ]
    return "\n".join(lines) + "\n"


class Folder:
    """The folder of registries, and what of it is ours."""

    def __init__(self, root: Path, record: Path, *, check: bool) -> None:
        """Keep where they are; with `check` nothing is written."""
        self.root, self.record, self.check = root, record, check
        self.ours = record.read_text("utf-8").split() if record.exists() else []
        self.said: list[str] = []

    def keep(self, registries: Sequence[Mapping[str, Any]]) -> None:
        """Bring the registries that are stated, take away those that were ours before.

        Raises:
            RefusedError: somebody else has a hosts.toml for one of them.
        """
        wanted = [one["address"] for one in registries]
        taken = [name for name in wanted if name not in self.ours and (self.root / name / "hosts.toml").exists()]
        if taken:
            names = ", ".join(f"{self.root}/{name}/hosts.toml" for name in taken)
            raise RefusedError(
                f"{names} is somebody else's. Fix: take it out of containerd_registries_mirrors (Kubespray writes it) and remove the file"
            )
        # Before any file: killed in between, what was begun is still known as ours.
        self._note(sorted({*self.ours, *wanted}))
        for one in registries:
            self._bring(one)
        for name in sorted(set(self.ours) - set(wanted)):
            self._remove(name)
        self._note(wanted)

    def _note(self, names: Sequence[str]) -> None:
        text = "".join(f"{name}\n" for name in names)
        if not self.check and (self.ours or names) and (not self.record.exists() or self.record.read_text("utf-8") != text):
            write(self.record, text, 0o644)

    def _bring(self, one: Mapping[str, Any]) -> None:
        folder = self.root / one["address"]
        ca = folder / "ca.crt"
        if one["pem"] is not None:  # None: nobody could be asked in this run, so the host keeps what it has
            self._put(ca, one["pem"], 0o644)
        has_ca = bool(one["pem"]) if one["pem"] is not None else ca.exists()
        self._put(folder / "hosts.toml", hosts_toml(one["address"], str(ca) if has_ca else "", one["username"], one["password"]), 0o600)

    def _put(self, path: Path, text: str, mode: int) -> None:
        if not text:
            if path.exists():
                self.said.append(f"{path} goes")
                if not self.check:
                    path.unlink()
            return
        if path.exists() and path.read_text("utf-8") == text and path.stat().st_mode & 0o777 == mode:
            return
        self.said.append(f"{path} is written")
        if not self.check:
            write(path, text, mode)

    def _remove(self, name: str) -> None:
        if not (self.root / name).is_dir():
            return
        self.said.append(f"{self.root}/{name} goes")
        if not self.check:
            for file in ("hosts.toml", "ca.crt"):
                (self.root / name / file).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a file of somebody else's keeps the folder
                (self.root / name).rmdir()


def write(path: Path, text: str, mode: int) -> None:
    """Replace a file at once, its mode from the start."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".primus-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def dump(config: Path) -> str:
    """Return what containerd makes of a configuration file, its own defaults included.

    Raises:
        RefusedError: it is not there, does not end, or does not take the file.
    """
    program = shutil.which("containerd", path=f"{os.environ.get('PATH', '')}:/usr/local/bin:/usr/bin:/usr/sbin")
    if not program:
        raise RefusedError("there is no containerd here. Fix: apply the phase kubernetes first")
    words = [program, "--config", str(config), "config", "dump"] if config.exists() else [program, "config", "default"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=CALL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RefusedError(f"{' '.join(words)}: {type(error).__name__}. Fix: see `systemctl status containerd`") from error
    if done.returncode:
        raise RefusedError(f"{' '.join(words)}: {done.stderr.strip()[-300:]}. Fix: mend {config}")
    return done.stdout


def name_folder(config: Path, mark: Path, folder: str) -> None:
    """Have the folder named in containerd's configuration; the new text is read by containerd itself before it counts.

    Raises:
        RefusedError: containerd would not take it, or not read the folder.
    """
    there = config.read_text("utf-8") if config.exists() else ""
    text, mode = with_folder(there, folder), config.stat().st_mode & 0o777 if config.exists() else 0o644
    draft = config.with_name(".primus-config.toml")
    write(draft, text, mode)
    try:
        if folder not in folder_read(dump(draft)):
            raise RefusedError(f"containerd does not read it although it is named. Fix: name config_path in {config} by hand")
        # Before the file counts: killed in between, containerd is still restarted. It lies in /run: a reboot restarts it as well.
        write(mark, "", 0o644)
        draft.replace(config)
    finally:
        draft.unlink(missing_ok=True)


def main() -> None:
    """Read the arguments, and do what the state says."""
    one = {
        "address": {"type": "str", "required": True},
        "pem": {"type": "str"},
        "username": {"type": "str", "default": ""},
        "password": {"type": "str", "default": "", "no_log": True},
        "ca_file": {"type": "str"},
    }
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["registries", "reads_folder", "restarted"], "default": "registries"},
            "registries": {"type": "list", "elements": "dict", "default": [], "options": one},
            "folder": {"type": "path", "default": "/etc/containerd/certs.d"},
            "record": {"type": "path", "default": "/etc/containerd/primus-registries"},
            "config": {"type": "path", "default": "/etc/containerd/config.toml"},
            "mark": {"type": "path", "default": "/run/primus-containerd-restart"},
        },
        supports_check_mode=True,
    )
    wanted: Mapping[str, Any] = module.params
    config, mark = Path(wanted["config"]), Path(wanted["mark"])
    os.umask(0o022)
    try:
        if wanted["state"] == "restarted":
            changed = mark.exists()
            if changed and not module.check_mode:
                mark.unlink()
            module.exit_json(changed=changed)
        folder = Folder(Path(wanted["folder"]), Path(wanted["record"]), check=module.check_mode)
        idle = wanted["state"] == "registries" and not wanted["registries"]
        imagined = module.check_mode and shutil.which("containerd") is None and not config.exists()
        named = idle or imagined or wanted["folder"] in folder_read(dump(config))
        if wanted["state"] == "reads_folder":
            if not named and not module.check_mode:
                name_folder(config, mark, wanted["folder"])
            module.exit_json(changed=not named)
        folder.keep(wanted["registries"])
        restart = not idle and (not named or mark.exists())
        module.exit_json(changed=bool(folder.said), said=folder.said, restart=restart)
    except (OSError, UnicodeDecodeError) as error:
        module.fail_json(msg=f"containerd's registries cannot be kept: {error}. Fix: see that {wanted['folder']} can be written")
    except RefusedError as error:
        module.fail_json(msg=f"containerd's registries cannot be kept: {error}")


if __name__ == "__main__":
    main()
