"""Wait until this host's own etcd member and API server answer, for example after a reboot: `etcd_serves.py SETTINGS.json SECONDS`.

A host without one of them does not wait for it. Other members and API servers are not contacted. It changes nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from etcd_member import Member, RefusedError, api_answers, etcdctl, find_member, print_result, wait_until


def member_serves(settings: dict[str, Any], member: Member) -> bool:
    """Return whether the member can read through its leader. A member that is isolated or far behind the others cannot."""
    try:
        answers = etcdctl(settings, member, "endpoint", "health")
    except RefusedError:
        return False
    return isinstance(answers, list) and bool(answers) and all(one.get("health") for one in answers)


def wait(settings: dict[str, Any], limit_s: float) -> list[str]:
    """Wait for both, and return the names of those that this host has.

    Raises:
        RefusedError: One does not answer within the time.
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
    """Wait, and print what answers."""
    return print_result(lambda: wait(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), float(sys.argv[2])))


if __name__ == "__main__":
    sys.exit(main())
