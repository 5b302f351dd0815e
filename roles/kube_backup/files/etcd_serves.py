"""Wait until what this host serves answers again, after a reboot for example: `etcd_serves.py SETTINGS.json SECONDS`.

Its own member of etcd and its own API server, each where it is here; that others answer says nothing of these. It changes nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from etcd_member import Member, RefusedError, api_answers, ask, find_member, wait_until


def member_serves(settings: dict[str, Any], member: Member) -> bool:
    """Tell whether the member reads through its leader, which one that is alone, or that lags behind the others, cannot."""
    try:
        said = ask(settings, member, "endpoint", "health")
    except RefusedError:
        return False
    return isinstance(said, list) and bool(said) and all(one.get("health") for one in said)


def wait(settings: dict[str, Any], limit_s: float) -> list[str]:
    """Return what serves here, once all of it does.

    Raises:
        RefusedError: Something does not within the time.
    """
    member, found = find_member(settings), []
    if member.form:
        wait_until(lambda: member_serves(settings, member), limit_s, "etcd of this host did not answer through its leader")
        found.append("etcd")
    if (Path(settings["manifest_dir"]) / "kube-apiserver.yaml").is_file():
        wait_until(lambda: api_answers(settings), limit_s, "the API server of this host did not become ready")
        found.append("kube-apiserver")
    return found


def main() -> int:
    """Wait, and print what serves."""
    try:
        print(json.dumps(wait(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), float(sys.argv[2]))))
    except (RefusedError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
