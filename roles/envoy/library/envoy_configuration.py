#!/usr/bin/python
"""Write Envoy's configuration after Envoy has validated it, and wait until it is active: the Ansible module `envoy_configuration`.

Envoy watches its files and loads them when they are moved into place, without closing connections. The module reads the active versions
from the admin socket, so that a run completes one that was interrupted. The files contain keys, so every message is masked.
It is a module of its own because the order of the files, the validation and the comparison with a running Envoy belong together.
"""

from __future__ import annotations

import grp
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.atomic_files import write_owned
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.envoy_admin import read_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# Time limits of the validation, and of loading new files, which includes compiling Wasm.
VALIDATE_S = 120.0
LOAD_S = 60.0
MAX_REASON = 600
# In this order no file refers to something missing: clusters, then routes to them, then listeners with these routes.
ORDER = ("clusters", "routes", "listeners")


def kind_of(name: str) -> str:
    """Return the kind of resources in a file: clusters, listeners or routes."""
    return "routes" if name.startswith("routes-") else name


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return a text with the secrets masked."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "********") if secret else text
    return text


def error_in(output: str) -> str:
    """Return the errors in Envoy's output: its critical lines without the prefix of the log."""
    lines = [line.rpartition("] ")[2] for line in output.splitlines() if "[critical]" in line or "[error]" in line]
    text = " ".join(" ".join(lines or output.splitlines()[-3:]).split())
    return text[:MAX_REASON] or "no output"


def validate(program: str, user: str, static: str, parent: Path) -> str:
    """Return why Envoy would reject this configuration, or an empty string. Validates with the account that Envoy runs as."""
    folder = Path(tempfile.mkdtemp(prefix=".check-", dir=parent))
    try:
        path = folder / "envoy.json"
        path.write_text(static, encoding="utf-8")
        for one, mode in ((folder, 0o750), (path, 0o640)):
            shutil.chown(one, "root", user)
            one.chmod(mode)
        command = [program, "--mode", "validate", "--log-level", "error", "-c", str(path)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=VALIDATE_S,
                user=user,
                group=user,
                extra_groups=[],
            )
        except subprocess.TimeoutExpired:
            return f"the validation did not finish within {VALIDATE_S:.0f} s"
        return "" if done.returncode == 0 else error_in(done.stderr + done.stdout)
    finally:
        shutil.rmtree(folder)


def read_admin_page(admin_socket: str, page: str) -> Any:
    """Return a page of the admin interface, or None if Envoy does not answer."""
    try:
        return read_page(admin_socket, page)
    except (OSError, ValueError):
        return None


def active_versions(dump: Mapping[str, Any]) -> dict[str, str]:
    """Return the active version of each file, from /config_dump of a running Envoy."""
    found: dict[str, str] = {}
    for part in dump.get("configs", ()):
        kind = part.get("@type", "").rpartition(".")[2]
        if kind == "ClustersConfigDump":
            # A warming cluster waits for name resolution or its first health check and gets no requests yet.
            found["clusters"] = part.get("version_info", "") + (" (incomplete)" if part.get("dynamic_warming_clusters") else "")
        elif kind == "ListenersConfigDump":
            found["listeners"] = part.get("version_info", "")
            # Envoy sets the version even if it could not bind a port.
            unfinished = [
                one
                for one in part.get("dynamic_listeners", ())
                if "error_state" in one or ("warming_state" in one and "active_state" not in one)
            ]
            found["listeners"] += " (incomplete)" if unfinished else ""
        elif kind == "RoutesConfigDump":
            for one in part.get("dynamic_route_configs", ()):
                found[f"routes-{one['route_config']['name']}"] = one.get("version_info", "")
    return found


def rejections(dump: Mapping[str, Any]) -> list[str]:
    """Return why a running Envoy rejected resources, from /config_dump."""
    groups = ("dynamic_listeners", "dynamic_active_clusters", "dynamic_warming_clusters", "dynamic_route_configs")
    entries = [one for part in dump.get("configs", ()) for group in groups for one in part.get(group, ())]
    details = [one["error_state"]["details"] for one in entries if one.get("error_state", {}).get("details")]
    return list(dict.fromkeys(details))


def version_of(text: str) -> str:
    """Return the version in a file."""
    return str(json.loads(text)["version_info"])


class Folder:
    """The folder that Envoy watches. Files are replaced by a move, which Envoy detects."""

    def __init__(self, path: Path, group: str) -> None:
        """Store the path and the group that may read the files."""
        self.path = path
        self.group = group

    def read(self, name: str) -> str:
        """Return the text of a file, or an empty string if it does not exist."""
        path = self.path / f"{name}.json"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def write(self, name: str, text: str) -> None:
        """Replace a file atomically, readable by Envoy and root only."""
        write_for(self.group, self.path / f"{name}.json", text)

    def names(self) -> set[str]:
        """Return the names of the existing files."""
        return {path.stem for path in self.path.glob("*.json")}

    def remove(self, name: str) -> None:
        """Remove a file that is no longer used."""
        (self.path / f"{name}.json").unlink()


def write_for(group: str, path: Path, text: str) -> None:
    """Replace a file atomically, readable by a group and root only."""
    write_owned(path, text, mode=0o640, owner=(0, grp.getgrnam(group).gr_gid))


def merged_clusters(new: str, old: str) -> str:
    """Return the new clusters and the removed ones of `old`, which the active routes still use until the new routes are active."""
    document, previous = json.loads(new), json.loads(old) if old else {"resources": []}
    names = {one["name"] for one in document["resources"]}
    removed = [one for one in previous["resources"] if one["name"] not in names]
    version = f"{document['version_info']}+{len(removed)}"
    return json.dumps({**document, "version_info": version, "resources": document["resources"] + removed})


def write_documents(
    folder: Folder, documents: Mapping[str, str], read_dump: Callable[[], Mapping[str, Any] | None], wait: Callable[[float], None]
) -> list[str]:
    """Write every file in an order that drops no request, and return why Envoy did not load one.

    If Envoy does not run, it reads the files at its start.
    """
    by_kind = sorted(documents, key=lambda name: ORDER.index(kind_of(name)))
    running = read_dump()
    active = active_versions(running) if running else {}
    before = folder.read("clusters")
    for name in by_kind:
        is_active = not running or active.get(name) == version_of(documents[name])
        if folder.read(name) == documents[name] and is_active:
            continue
        if name == "clusters" and running and before:
            folder.write(name, both := merged_clusters(documents[name], before))
            wait_for_versions({name: version_of(both)}, read_dump, wait)
        else:
            folder.write(name, documents[name])
    if not running:
        return []
    rest = {name: version_of(text) for name, text in documents.items() if name != "clusters"}
    problems = wait_for_versions(rest, read_dump, wait)
    if not problems and folder.read("clusters") != documents["clusters"]:
        folder.write("clusters", documents["clusters"])
    return problems or wait_for_versions({"clusters": version_of(documents["clusters"])}, read_dump, wait)


def wait_for_versions(
    expected: Mapping[str, str], read_dump: Callable[[], Mapping[str, Any] | None], wait: Callable[[float], None], limit_s: float = LOAD_S
) -> list[str]:
    """Wait until these versions are active; return why not: what Envoy rejected, or what it did not load in time."""
    deadline = time.monotonic() + limit_s
    while True:
        dump = read_dump()
        active = active_versions(dump) if dump else {}
        late = sorted(name for name, version in expected.items() if active.get(name) != version)
        if not late:
            return []
        rejected = rejections(dump) if dump else []
        if rejected and time.monotonic() > deadline - limit_s + 3:  # an older rejection may still be listed for a moment
            return rejected
        if time.monotonic() > deadline:
            return [f"{name} is not active after {limit_s:.0f} s" for name in late] if dump else ["its admin socket does not answer"]
        wait(0.5)


def main() -> None:
    """Validate, write and wait, and report the problem."""
    module = AnsibleModule(
        argument_spec={
            "program": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
            "config_dir": {"type": "path", "required": True},
            "admin_socket": {"type": "path", "required": True},
            "bootstrap": {"type": "str", "required": True},
            "documents": {"type": "dict", "required": True, "no_log": True},
            "static": {"type": "str", "required": True, "no_log": True},
            "secrets": {"type": "list", "elements": "str", "required": True, "no_log": True},
            "wait_only": {"type": "bool", "default": False},  # only wait, and report what is not active
        },
        supports_check_mode=True,
    )
    params, documents = module.params, module.params["documents"]
    base = Path(params["config_dir"])
    folder, start = Folder(base / "dynamic", params["user"]), base / "bootstrap.json"

    def read_dump() -> Any:
        return read_admin_page(params["admin_socket"], "/config_dump")

    def message(problems: list[str]) -> str:
        return masked("; ".join(problems)[:MAX_REASON], params["secrets"])

    if params["wait_only"]:
        versions = {name: version_of(text) for name, text in documents.items()}
        module.exit_json(changed=False, problem=message(wait_for_versions(versions, read_dump, time.sleep)))
    dump = read_dump()
    active = active_versions(dump) if dump else {}
    different = [name for name, text in documents.items() if folder.read(name) != text]
    inactive = [name for name, text in documents.items() if dump and active.get(name) != version_of(text)]
    obsolete = sorted(folder.names() - set(documents)) if folder.path.exists() else []
    new_start = not start.exists() or start.read_text(encoding="utf-8") != params["bootstrap"]
    files = sorted({*different, *inactive, *obsolete})
    result = {"changed": bool(files or new_start), "files": files, "problem": ""}
    if module.check_mode or not result["changed"]:
        module.exit_json(**result)
    if different or new_start:
        result["problem"] = masked(validate(params["program"], params["user"], params["static"], base), params["secrets"])
    if not result["problem"]:
        if new_start:
            write_for(params["user"], start, params["bootstrap"])
        problems = write_documents(folder, documents, read_dump, time.sleep)
        for name in obsolete if not problems else ():
            folder.remove(name)
        result["problem"] = message(problems)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
