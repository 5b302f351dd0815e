"""Check whether etcd keeps its majority if a member is removed: `etcd_quorum.py SETTINGS.json`, its names as JSON on standard input.

With a second argument, `reboot`: if this host's member is down for a while. It contacts each member and changes nothing. A member that does
not answer counts as lost. Exit code 1 and a reason on standard error: no.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from etcd_member import RefusedError, etcdctl, find_member


@dataclass(frozen=True)
class Voter:
    """A member of etcd; `answers` is whether it answers and has a leader."""

    name: str
    addresses: tuple[str, ...]
    answers: bool


def is_named(voter: Voter, names: list[str]) -> bool:
    """Return whether one of the names is the member's name or the host in one of its addresses."""
    hosts = {urlsplit(url).hostname for url in voter.addresses}
    return voter.name in names or not hosts.isdisjoint(names)


def removal_refusal(voters: list[Voter], names: list[str]) -> str:
    """Return why a member must not be removed; empty if it may.

    Two conditions: All members vote on the removal, so those that answer must be a majority of all. Afterwards, those that answer must be a
    majority of the remaining ones.
    """
    removed = [one for one in voters if is_named(one, [name for name in names if name])]
    if not removed:
        return ""
    rest = [one for one in voters if one not in removed]
    lost = ", ".join(one.name for one in rest if not one.answers) or "none"
    if not rest:
        return f"{removed[0].name} is the only member of etcd: all data would be lost. Fix: add another member first, or reset the cluster."
    answering, remaining = sum(one.answers for one in voters), sum(one.answers for one in rest)
    if answering <= len(voters) // 2:
        text = f"{answering} of {len(voters)} members of etcd answer, which is no majority, so none can be removed"
        return f"{text}. Fix: repair members, or run `primus-bootstrap restore etcd` on the remaining ones."
    if remaining <= len(rest) // 2:
        text = f"without {removed[0].name} etcd has {len(rest)} members, of which {remaining} answer (lost: {lost}): no majority"
        return f"{text}. Fix: repair the lost members, or remove them first."
    return ""


def reboot_refusal(voters: list[Voter], names: list[str]) -> str:
    """Return why a member must not be down for a while; empty if it may. It still counts, and one that does not answer may be rebooted."""
    rebooted = [one for one in voters if is_named(one, names)]
    rest = [one for one in voters if one not in rebooted]
    remaining = sum(one.answers for one in rest)
    if not any(one.answers for one in rebooted) or not rest or remaining > len(voters) // 2:
        return ""
    lost = ", ".join(one.name for one in rest if not one.answers)
    text = f"while {rebooted[0].name} is down {remaining} of {len(voters)} members of etcd answer, which is no majority (lost: {lost})"
    return f"{text}. Fix: repair the lost members first."


def read_voters(settings: dict[str, Any]) -> list[Voter]:
    """List the members, and contact each of them.

    Raises:
        RefusedError: This host's own member does not list them.
    """
    member = find_member(settings)
    if not member.form:
        raise RefusedError("this host of group etcd runs no etcd. Fix: correct kube_backup_env_file or kube_backup_manifest_dir.")
    voters = []
    for one in etcdctl(settings, member, "member", "list")["members"]:
        urls = one.get("clientURLs", [])
        answers = bool(urls)
        try:
            status = etcdctl(settings, replace(member, endpoint=",".join(urls)), "endpoint", "status", limit_s=15.0)
            answers = answers and any(one_status["Status"].get("leader") for one_status in status)
        except RefusedError:
            answers = False
        voters.append(Voter(one.get("name", ""), (*urls, *one.get("peerURLs", [])), answers))
    return voters


def check_reboot(settings: dict[str, Any]) -> str:
    """Return why this host must not be rebooted; empty if it may, also if its own member does not answer."""
    try:
        return reboot_refusal(read_voters(settings), [find_member(settings).name])
    except RefusedError:
        return ""


def main() -> int:
    """Check, and print why not."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        if sys.argv[2:] == ["reboot"]:
            refusal = check_reboot(settings)
        else:
            refusal = removal_refusal(read_voters(settings), json.loads(sys.stdin.read()))
    except (RefusedError, OSError) as error:
        refusal = str(error)
    print(refusal, file=sys.stderr)
    return 1 if refusal else 0


if __name__ == "__main__":
    sys.exit(main())
