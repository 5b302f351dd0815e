# ruff: noqa: INP001 (Ansible loads it by path)
"""What the role `redis` decides on the controller: whether a change of roles, or an empty primary, would empty a host that holds data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GIVE_UP = '-e \'{{"redis_give_up_hosts": ["{host}"]}}\' gives them up (they are set aside in its data folder)'


def redis_losses(  # noqa: PLR0913, PLR0917 (what both sides of each pair are; Jinja passes them in order)
    host: str, hosts: Sequence[str], hostvars: Mapping[str, Any], answering: Sequence[str], address: str, give_up: Sequence[str]
) -> list[str]:
    """Return why this host must not be changed: data that would be lost, each with its fix.

    Args:
        host: The host that is asked about.
        hosts: The group, the future primary first.
        hostvars: Where each host's `__redis_state` is.
        answering: The hosts that answer in this run; of the others nothing is known.
        address: The future primary's address, as its replicas name it.
        give_up: Hosts whose data may go.
    """
    states = {name: (hostvars[name].get("__redis_state") or {}).get("state") if name in answering else None for name in hosts}
    first, *others = hosts
    if host == first:
        pairs = [(other, states[other]) for other in others]
        found = [_unread(first, states[first])] if first not in give_up else []
    else:
        pairs, found = [(host, states[host])], []
    found += [_lost(first, states[first], other, state, address) for other, state in pairs if other not in give_up]
    return [reason for reason in found if reason]


def _unread(first: str, state: Mapping[str, Any] | None) -> str:
    """A Redis that kept no append-only file starts empty with one, and then overwrites dump.rdb (redis.io, persistence)."""
    if state is None or state["files"] != "rdb" or (state["answers"] and state["keys"] == 0):
        return ""
    return (
        f"{first} has a dump.rdb and no append-only file, so Redis would begin empty. Fix: `redis-cli CONFIG SET appendonly yes` "
        "in the Redis that runs there, wait for `aof_rewrite_in_progress:0` in `INFO persistence`, and apply again; or move dump.rdb away"
    )


def _holds(state: Mapping[str, Any]) -> bool:
    """Whether a host holds data; what is not known is taken for data."""
    return bool(state["keys"] != 0) if state["answers"] else state["files"] != "none"


def _lost(first: str, primary: Mapping[str, Any] | None, other: str, state: Mapping[str, Any] | None, address: str) -> str:
    """Return what `other` would lose by following `first`, or nothing."""
    give_up = _GIVE_UP.format(host=other)
    if state is None:  # nothing is done to it now, but where it comes back, it follows
        if primary is None or _holds(primary):
            return ""
        return f"{first} holds nothing, and {other}, which may hold the data, does not answer. Fix: start {other}; or {give_up}"
    if not _holds(state):
        return ""
    if primary is not None and not _holds(primary):
        return f"{first} holds nothing, and {other} would lose what it holds by following it. Fix: put {other} first; or {give_up}"
    if state["follows"] == address or (primary and primary["answers"] and state["answers"] and _descends(primary, state)):
        return ""
    fix = (
        f"see that Redis runs on both; to make {first} the primary, stop the clients, then `redis-cli REPLICAOF NO ONE` on {first} "
        f"while it is in sync; else put {other} first in the group redis"
    )
    return f"{other} holds data which {first} may not have, and would lose them by following it. Fix: {fix}; or {give_up}"


def _descends(primary: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether all of `state`'s history is part of the primary's, as Redis itself decides for a partial resynchronisation."""
    if state["history"] == primary["history"]:  # of the two, the replica has its data from the other
        return bool(state["role"] == "replica")
    return bool(state["history"] == primary["former_history"] and state["offset"] < primary["former_offset"])


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"redis_losses": redis_losses}
