#!/usr/bin/python
"""Give Envoy its configuration, once Envoy itself has checked it, and wait until it is in force: the Ansible module `envoy_take_up`.

Envoy watches its files and takes them when they are moved into place; connections in flight are not dropped. The module asks the admin
socket what Envoy runs with, so the next run finishes one that was killed in between. Keys are in these files: no message leaves unmasked.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.envoy_admin import read_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# How long Envoy may look through a configuration, until its admin socket answers, and take up new files (Wasm is compiled then).
CHECK_S = 120.0
TAKE_S = 60.0
LONGEST_REASON = 600
# In this order nothing is named before it is there: endpoints, then routes to them, then listeners of these routes.
ORDER = ("clusters", "routes", "listeners")


def kind_of(name: str) -> str:
    """Return what a file holds: clusters, listeners or routes."""
    return "routes" if name.startswith("routes-") else name


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return a text in which no secret stands."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "********") if secret else text
    return text


def reason_in(output: str) -> str:
    """Return what Envoy says is wrong: its critical lines, without what its log puts before them."""
    lines = [line.rpartition("] ")[2] for line in output.splitlines() if "[critical]" in line or "[error]" in line]
    words = " ".join(" ".join(lines or output.splitlines()[-3:]).split())
    return words[:LONGEST_REASON] or "it said nothing"


def check(program: str, user: str, static: str, near: Path) -> str:
    """Return why Envoy would not start with this configuration; empty where it would. It is read by the account that will read it."""
    folder = Path(tempfile.mkdtemp(prefix=".check-", dir=near))
    try:
        path = folder / "envoy.json"
        path.write_text(static, encoding="utf-8")
        for one, mode in ((folder, 0o750), (path, 0o640)):
            shutil.chown(one, "root", user)
            one.chmod(mode)
        command = [program, "--mode", "validate", "--log-level", "error", "-c", str(path)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=CHECK_S, user=user, group=user, extra_groups=[]
            )
        except subprocess.TimeoutExpired:
            return f"it had not finished after {CHECK_S:.0f} s"
        return "" if done.returncode == 0 else reason_in(done.stderr + done.stdout)
    finally:
        shutil.rmtree(folder)


def ask(admin_socket: str, page: str) -> Any:
    """Return what a page of the admin interface answers, or None if Envoy does not answer."""
    try:
        return read_page(admin_socket, page)
    except (OSError, ValueError):
        return None


def taken(dump: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions that a running Envoy has, by file name, out of /config_dump."""
    found: dict[str, str] = {}
    for part in dump.get("configs", ()):
        kind = part.get("@type", "").rpartition(".")[2]
        if kind == "ClustersConfigDump":
            # One that waits for its names or its first checks answers nobody yet.
            found["clusters"] = part.get("version_info", "") + (" in part" if part.get("dynamic_warming_clusters") else "")
        elif kind == "ListenersConfigDump":
            found["listeners"] = part.get("version_info", "")
            # Envoy notes the version even where it could not bind a port.
            unfinished = [
                one
                for one in part.get("dynamic_listeners", ())
                if "error_state" in one or ("warming_state" in one and "active_state" not in one)
            ]
            found["listeners"] += " in part" if unfinished else ""
        elif kind == "RoutesConfigDump":
            for one in part.get("dynamic_route_configs", ()):
                found[f"routes-{one['route_config']['name']}"] = one.get("version_info", "")
    return found


def refusals(dump: Mapping[str, Any]) -> list[str]:
    """Return why a running Envoy did not take what it was given, out of /config_dump."""
    groups = ("dynamic_listeners", "dynamic_active_clusters", "dynamic_warming_clusters", "dynamic_route_configs")
    entries = [one for part in dump.get("configs", ()) for group in groups for one in part.get(group, ())]
    said = [one["error_state"]["details"] for one in entries if one.get("error_state", {}).get("details")]
    return list(dict.fromkeys(said))


def version(text: str) -> str:
    """Return the version that a file states."""
    return str(json.loads(text)["version_info"])


class Folder:
    """The files that Envoy watches; each is replaced at once, by a move, which is what Envoy looks for."""

    def __init__(self, path: Path, group: str) -> None:
        """Keep where they lie and who may read them."""
        self.path = path
        self.group = group

    def read(self, name: str) -> str:
        """Return a file's text, empty where there is none."""
        path = self.path / f"{name}.json"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def put(self, name: str, text: str) -> None:
        """Put a file in place, whole, readable by Envoy and root only."""
        write(self.path / f"{name}.json", text, self.group)

    def names(self) -> set[str]:
        """Return which files there are."""
        return {path.stem for path in self.path.glob("*.json")}

    def drop(self, name: str) -> None:
        """Remove a file that nothing names any more."""
        (self.path / f"{name}.json").unlink()


def write(path: Path, text: str, group: str) -> None:
    """Replace a file at once."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    shutil.chown(name, "root", group)
    Path(name).chmod(0o640)
    Path(name).replace(path)


def together(new: str, old: str) -> str:
    """Return the new clusters with those of old that are gone from it: routes in force still lead there until the new ones are."""
    wanted, former = json.loads(new), json.loads(old) if old else {"resources": []}
    names = {one["name"] for one in wanted["resources"]}
    kept = [one for one in former["resources"] if one["name"] not in names]
    return json.dumps({**wanted, "version_info": f"{wanted['version_info']}+{len(kept)}", "resources": wanted["resources"] + kept})


def settle(
    folder: Folder, documents: Mapping[str, str], look: Callable[[], Mapping[str, Any] | None], wait: Callable[[float], None]
) -> list[str]:
    """Put every file in place, in an order that drops no request, and return why Envoy did not take one.

    Where Envoy does not run, it reads them when it starts.
    """
    by_kind = sorted(documents, key=lambda name: ORDER.index(kind_of(name)))
    running = look()
    now = taken(running) if running else {}
    before = folder.read("clusters")
    for name in by_kind:
        in_force = not running or now.get(name) == version(documents[name])
        if folder.read(name) == documents[name] and in_force:
            continue
        if name == "clusters" and running and before:
            folder.put(name, both := together(documents[name], before))
            await_versions({name: version(both)}, look, wait)
        else:
            folder.put(name, documents[name])
    if not running:
        return []
    rest = {name: version(text) for name, text in documents.items() if name != "clusters"}
    problems = await_versions(rest, look, wait)
    if not problems and folder.read("clusters") != documents["clusters"]:
        folder.put("clusters", documents["clusters"])
    return problems or await_versions({"clusters": version(documents["clusters"])}, look, wait)


def await_versions(
    wanted: Mapping[str, str], look: Callable[[], Mapping[str, Any] | None], wait: Callable[[float], None], most_s: float = TAKE_S
) -> list[str]:
    """Wait until Envoy runs with these versions, and return why it does not: what it refused, or what it did not take in time."""
    deadline = time.monotonic() + most_s
    while True:
        dump = look()
        late = sorted(name for name, wish in wanted.items() if taken(dump).get(name) != wish) if dump else sorted(wanted)
        if not late:
            return []
        refused = refusals(dump) if dump else []
        if refused and time.monotonic() > deadline - most_s + 3:  # an older refusal may still stand there for a moment
            return refused
        if time.monotonic() > deadline:
            return [f"{name} is not in force after {most_s:.0f} s" for name in late] if dump else ["its admin socket does not answer"]
        wait(0.5)


def main() -> None:
    """Check, put in place, wait, and say what stands in the way."""
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
            "await": {"type": "bool", "default": False},  # only wait, and say what is not in force
        },
        supports_check_mode=True,
    )
    wanted = module.params
    base = Path(wanted["config_dir"])
    folder = Folder(base / "dynamic", wanted["user"])
    start = base / "bootstrap.json"
    if wanted["await"]:
        versions = {name: version(text) for name, text in wanted["documents"].items()}
        problems = await_versions(versions, lambda: ask(wanted["admin_socket"], "/config_dump"), time.sleep)
        module.exit_json(changed=False, problem=masked("; ".join(problems)[:LONGEST_REASON], wanted["secrets"]))
    dump = ask(wanted["admin_socket"], "/config_dump")
    now = taken(dump) if dump else {}
    differ = [name for name, text in wanted["documents"].items() if folder.read(name) != text]
    stale = [name for name, text in wanted["documents"].items() if dump and now.get(name) != version(text)]
    extra = sorted(folder.names() - set(wanted["documents"])) if folder.path.exists() else []
    other = not start.exists() or start.read_text(encoding="utf-8") != wanted["bootstrap"]
    result = {"changed": bool(differ or stale or extra or other), "files": sorted({*differ, *stale, *extra}), "problem": ""}
    if module.check_mode or not result["changed"]:
        module.exit_json(**result)
    if differ or other:
        result["problem"] = masked(check(wanted["program"], wanted["user"], wanted["static"], base), wanted["secrets"])
    if not result["problem"]:
        if other:
            write(start, wanted["bootstrap"], wanted["user"])
        problems = settle(folder, wanted["documents"], lambda: ask(wanted["admin_socket"], "/config_dump"), time.sleep)
        for name in extra if not problems else ():
            folder.drop(name)
        result["problem"] = masked("; ".join(problems)[:LONGEST_REASON], wanted["secrets"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
