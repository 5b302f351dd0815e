"""Say whether etcd keeps its majority when a member leaves: `etcd_quorum.py SETTINGS.json`, the member's names as a list on standard input.

With a second word, `away`: when the member of this host is away for a while, in a reboot for example. It asks each member and changes
nothing. A member that does not answer counts as lost.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from etcd_member import RefusedError, ask, find_member


@dataclass(frozen=True)
class Voter:
    """A member as the others know it; `well` says that it answers."""

    name: str
    addresses: tuple[str, ...]
    well: bool


def leaves(voter: Voter, names: list[str]) -> bool:
    """Tell whether a member is meant by its name, or by the host in one of its addresses."""
    hosts = {urlsplit(url).hostname for url in voter.addresses}
    return voter.name in names or not hosts.isdisjoint(names)


def refusal(voters: list[Voter], names: list[str]) -> str:
    """Return why a member must not leave; empty where it may.

    Two bounds. While it is removed all members vote, so those that answer must be a majority of all. Afterwards the rest votes, and
    those of it that answer must be a majority of the rest.
    """
    meant = [one for one in voters if leaves(one, [name for name in names if name])]
    if not meant:
        return ""
    rest = [one for one in voters if one not in meant]
    lost = ", ".join(one.name for one in rest if not one.well) or "none"
    if not rest:
        return f"{meant[0].name} is the only member of etcd: all data would go. Fix: let another member join first, or reset the cluster."
    answering, staying = sum(one.well for one in voters), sum(one.well for one in rest)
    if answering <= len(voters) // 2:
        text = f"{answering} of {len(voters)} members of etcd answer, which is no majority, so none can be removed"
        return f"{text}. Fix: bring members back, or `restore etcd` on those that are left."
    if staying <= len(rest) // 2:
        text = f"without {meant[0].name} etcd has {len(rest)} members, of which {staying} answer (lost: {lost}): no majority"
        return f"{text}. Fix: bring the lost ones back, or remove them first."
    return ""


def refusal_away(voters: list[Voter], names: list[str]) -> str:
    """Return why a member must not be away for a while; empty where it may. All vote meanwhile; one that is lost already is no loss."""
    meant = [one for one in voters if leaves(one, names)]
    rest = [one for one in voters if one not in meant]
    staying = sum(one.well for one in rest)
    if not any(one.well for one in meant) or not rest or staying > len(voters) // 2:
        return ""
    lost = ", ".join(one.name for one in rest if not one.well)
    text = f"while {meant[0].name} is away {staying} of {len(voters)} members of etcd answer, which is no majority (lost: {lost})"
    return f"{text}. Fix: bring the lost ones back first."


def ask_voters(settings: dict[str, Any]) -> list[Voter]:
    """Ask for the members, and each of them whether it answers.

    Raises:
        RefusedError: This host's own member does not say who they are.
    """
    member = find_member(settings)
    if not member.form:
        raise RefusedError("this host of group etcd runs no etcd. Fix: see kube_backup_env_file and kube_backup_manifest_dir.")
    voters = []
    for one in ask(settings, member, "member", "list")["members"]:
        urls = one.get("clientURLs", [])
        well = bool(urls)
        try:
            said = ask(settings, replace(member, endpoint=",".join(urls)), "endpoint", "status", limit_s=15.0)
            well = well and any(answer["Status"].get("leader") for answer in said)
        except RefusedError:
            well = False
        voters.append(Voter(one.get("name", ""), (*urls, *one.get("peerURLs", [])), well))
    return voters


def ask_away(settings: dict[str, Any]) -> str:
    """Return why this host's member must not be away; one that does not answer may be."""
    try:
        return refusal_away(ask_voters(settings), [find_member(settings).name])
    except RefusedError:
        return ""


def main() -> int:
    """Ask, and say why not."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        said = ask_away(settings) if sys.argv[2:] == ["away"] else refusal(ask_voters(settings), json.loads(sys.stdin.read()))
    except (RefusedError, OSError) as error:
        said = str(error)
    print(said, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
