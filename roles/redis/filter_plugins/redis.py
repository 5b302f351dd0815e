# ruff: noqa: INP001 (Ansible loads it by path)
"""Filter `redis_data_loss_errors`: detects changes of the group redis that would lose data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DISCARD = 'pass -e \'{{"redis_discard_data_on": ["{host}"]}}\' to discard them (they are set aside in its data folder)'


def redis_data_loss_errors(  # noqa: PLR0913, PLR0917 (the facts of both hosts of each pair; Jinja passes them in order)
    host: str, hosts: Sequence[str], hostvars: Mapping[str, Any], answering: Sequence[str], address: str, discard_on: Sequence[str]
) -> list[str]:
    """Return an error with its fix for each loss of data that a change of this host would cause.

    Args:
        host: The host to check.
        hosts: The group, the future primary first.
        hostvars: Contains each host's `__redis_state`.
        answering: The hosts that answer in this run; the state of the others is unknown.
        address: The future primary's address, as its replicas use it.
        discard_on: Hosts whose data may be discarded.
    """
    states = {name: (hostvars[name].get("__redis_state") or {}).get("state") if name in answering else None for name in hosts}
    first, *others = hosts
    if host == first:
        pairs = [(other, states[other]) for other in others]
        found = [_ignored_dump(first, states[first])] if first not in discard_on else []
    else:
        pairs, found = [(host, states[host])], []
    found += [_loss(first, states[first], other, state, address) for other, state in pairs if other not in discard_on]
    return [reason for reason in found if reason]


def _ignored_dump(first: str, state: Mapping[str, Any] | None) -> str:
    """Return an error if Redis would start empty and then overwrite dump.rdb: it had no append-only file before (redis.io, persistence)."""
    if state is None or state["files"] != "rdb" or (state["answers"] and state["keys"] == 0):
        return ""
    return (
        f"{first} has a dump.rdb and no append-only file, so Redis would start empty. Fix: run `redis-cli CONFIG SET appendonly yes` "
        "in the Redis that runs there, wait for `aof_rewrite_in_progress:0` in `INFO persistence`, and apply again; or move dump.rdb away"
    )


def _has_data(state: Mapping[str, Any]) -> bool:
    """Return whether a host has data. An unknown number of keys counts as data."""
    return bool(state["keys"] != 0) if state["answers"] else state["files"] != "none"


def _loss(first: str, primary: Mapping[str, Any] | None, other: str, state: Mapping[str, Any] | None, address: str) -> str:
    """Return an error if `other` would lose data as a replica of `first`."""
    discard = _DISCARD.format(host=other)
    if state is None:  # It is not changed now, but becomes a replica when it returns.
        if primary is None or _has_data(primary):
            return ""
        return f"{first} has no data, and {other}, which may have the data, does not answer. Fix: start {other}; or {discard}"
    if not _has_data(state):
        return ""
    if primary is not None and not _has_data(primary):
        reason = f"{first} has no data, and {other} would lose its data as a replica of it"
        return f"{reason}. Fix: put {other} first in the group redis; or {discard}"
    if state["follows"] == address or (primary and primary["answers"] and state["answers"] and _is_descendant(primary, state)):
        return ""
    fix = (
        f"check that Redis runs on both; to make {first} the primary, stop the clients, then `redis-cli REPLICAOF NO ONE` on {first} "
        f"while it is in sync; otherwise put {other} first in the group redis"
    )
    return f"{other} has data that {first} may not have, and would lose them as its replica. Fix: {fix}; or {discard}"


def _is_descendant(primary: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Return whether the whole history of `state` is part of the primary's, as Redis itself decides for a partial resynchronisation."""
    if state["history"] == primary["history"]:  # The replica of the two has its data from the other.
        return bool(state["role"] == "replica")
    return bool(state["history"] == primary["former_history"] and state["offset"] < primary["former_offset"])


class FilterModule:
    """The filters, as Ansible loads them."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"redis_data_loss_errors": redis_data_loss_errors}
