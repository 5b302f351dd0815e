"""Search a machine for values that must not show there. Travels alone to hosts as `python3 -`: standard library only, Python 3.9 and later.

Reads one JSON line: {"mode": "watch" | "files", "values": {name: value}, …}; prints one JSON line with what it found. A value never stands
in a command line of the search itself.

* watch: until the file `stop` is there, looks at every process's command line, and at its environment unless `holders` has its name or
  its unit's: with the highest number of an account that may run it, 0 being root.
* files: the journal, and every file below `roots` that was changed after the file `since`, but for what lies below `left_out`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

MOST_BYTES = 64 * 1024 * 1024
OFTEN_AT_FIRST, SELDOM = 20, 25  # looks, of some 20 ms each


def names_in(data: bytes, values: dict[str, bytes]) -> list[str]:
    """Return the names of the values in some bytes."""
    return [name for name, value in values.items() if value in data]


def contents(path: str) -> bytes:
    """Return the first bytes of a file, or nothing if it is not readable."""
    with contextlib.suppress(OSError), open(path, "rb") as stream:  # noqa: PTH123 (a quarter of the time of Path, in a loop)
        return stream.read(MOST_BYTES)
    return b""


def name_of(pid: str) -> str:
    """Return the name of a process's program."""
    return contents(f"/proc/{pid}/comm").decode(errors="replace").strip()


def owner(pid: str) -> int | None:
    """Return the user ID of a process, or None after its end."""
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 (as above)
    return None


def units_of(pid: str) -> set[str]:
    """Return the systemd units of a process."""
    return set(re.findall(r"[^/\s]+\.service", contents(f"/proc/{pid}/cgroup").decode(errors="replace")))


def holds_for(pid: str, holders: dict[str, int], name: str, user: int | None, units: set[str]) -> bool:
    """Return whether a process is a holder or of the unit of one, and runs as an account that this one may have: nobody else reads it.

    Name, owner and units are those before its environment was read: since then it may have become another program, or ended.
    """
    highest = max((holders[known] for known in {name, name_of(pid), *units} & holders.keys()), default=-1)
    return user is not None and max(user, owner(pid) or 0) <= highest


def watch(values: dict[str, bytes], stop: str, holders: dict[str, int]) -> dict[str, Any]:
    """Search all processes repeatedly; return the findings and the number of searches."""
    found: set[str] = set()
    looks = 0
    ages: dict[str, int] = {}
    while not os.path.exists(stop):  # noqa: PTH110 (as above)
        looks += 1
        ages = {pid: ages.get(pid, 0) + 1 for pid in os.listdir("/proc") if pid.isdigit()}  # noqa: PTH208 (as above)
        # A process becomes another program soon after its start, if at all: later it is looked at more seldom.
        for pid in (pid for pid, age in ages.items() if age <= OFTEN_AT_FIRST or age % SELDOM == 0):
            name, user, units = name_of(pid), owner(pid), units_of(pid)
            shown = names_in(contents(f"/proc/{pid}/cmdline"), values)
            found |= {f"command line of {name}: {value}" for value in shown}
            held = names_in(contents(f"/proc/{pid}/environ"), values)
            if held and not holds_for(pid, holders, name, user, units):
                found |= {f"environment of {name}: {value}" for value in held}
        time.sleep(0.02)
    return {"found": sorted(found), "looks": looks}


def search_files(values: dict[str, bytes], roots: list[str], since: str, left_out: list[str]) -> dict[str, Any]:
    """Search every file that changed after `since`; return the findings and the number of files."""
    earliest = os.stat(since).st_mtime if since else 0.0  # noqa: PTH116 (as above)
    found, count = [], 0
    for root in roots:
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if os.path.join(folder, name) not in left_out]  # noqa: PTH118 (as above)
            for name in files:
                path = os.path.join(folder, name)  # noqa: PTH118 (as above)
                with contextlib.suppress(OSError):
                    if path in left_out or os.lstat(path).st_mtime < earliest or not os.path.isfile(path):  # noqa: PTH113 (as above)
                        continue
                    count += 1
                    found += [f"{path}: {value}" for value in names_in(contents(path), values)]
    return {"found": found, "files": count}


def search_journal(values: dict[str, bytes]) -> list[str]:
    """Return the names of the values in fields of the journal."""
    done = subprocess.run(["journalctl", "--no-pager", "--output=export"], capture_output=True, check=False)
    return [f"journal: {value}" for value in names_in(done.stdout, values)]


def main() -> None:
    """Read the request, search, and print the findings."""
    wanted = json.loads(sys.stdin.readline())
    values = {name: value.encode() for name, value in wanted["values"].items()}
    if wanted["mode"] == "watch":
        result = watch(values, wanted["stop"], wanted["holders"])
    else:
        result = search_files(values, wanted["roots"], wanted["since"], wanted["left_out"])
        if wanted["journal"]:
            result["found"] += search_journal(values)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
