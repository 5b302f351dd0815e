# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""From what slurmdbd holds to what the site states: the calls of sacctmgr, as a value. Pure functions.

What is not stated of an entry has its default: a limit that is taken out of hosts.yaml is lifted. An entry that is not stated at all
stays, unless the site asks for a purge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible.module_utils.slurm_ledger import NORMAL, QOS_FIELDS, ROOT, Association, Ledger, meaning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Stated = Mapping[str, Any]
    Call = tuple[str, ...]

_BOUND = "max_submit_per_user"
_NEW = Association(share=1, qos=frozenset())


@dataclass(frozen=True)
class Wanted:
    """What the site states."""

    cluster: str
    qos: Sequence[Stated] = ()
    accounts: Sequence[Stated] = ()
    users: Sequence[Stated] = ()
    purge: bool = False
    max_submit: int = 0  # jobs that one person may have in the queue, for each QOS that states none; 0 = no bound


@dataclass(frozen=True)
class Plan:
    """The calls of sacctmgr, in order, and what has to wait because no controller has named its GPUs to slurmdbd yet."""

    calls: tuple[Call, ...]
    waiting: tuple[str, ...] = ()


def make_plan(ledger: Ledger, wanted: Wanted) -> Plan:
    """Return what leads from one to the other.

    Raises:
        ValueError: a time or an amount that is none, or accounts that are each other's parents.
    """
    calls: list[Call] = [] if wanted.cluster in ledger.clusters else [("add", "cluster", wanted.cluster)]
    calls += [("add", "qos", one["name"]) for one in wanted.qos if one["name"] not in ledger.qos]
    waiting: list[str] = []
    for one in _bounded(ledger, wanted):
        changes, waits = _qos_changes(ledger, one)
        calls += [("modify", "qos", "where", f"name={one['name']}", "set", *changes)] if changes else []
        waiting += waits
    effective = _effective_qos(ledger, wanted)
    for one in in_order(wanted.accounts):
        calls += _account_calls(ledger, wanted.cluster, one, effective)
    for one in wanted.users:
        calls += _user_calls(ledger, wanted.cluster, one, effective)
    calls += _root_calls(ledger, wanted)
    calls += _purge(ledger, wanted) if wanted.purge else []
    return Plan(tuple(calls), tuple(waiting))


def _bounded(ledger: Ledger, wanted: Wanted) -> list[Stated]:
    """Return the stated QOS, each with a bound on the jobs that one person may have in the queue.

    The QOS that Slurm makes by itself is bounded as well. Of that one nothing else is known, so everything else stays as it is; without a
    bound to set, its own stays too.
    """
    if not wanted.max_submit:
        return [*wanted.qos]
    bounded: list[Stated] = [{**one, _BOUND: one.get(_BOUND) or wanted.max_submit} for one in wanted.qos]
    found = ledger.qos.get(NORMAL)
    if found is None or any(one["name"] == NORMAL for one in wanted.qos):
        return bounded
    kept = {name: found.get(column, "") for name, column, _, _ in QOS_FIELDS}
    return [*bounded, {**kept, "name": NORMAL, _BOUND: wanted.max_submit}]


def _qos_changes(ledger: Ledger, one: Stated) -> tuple[list[str], list[str]]:
    """Return what `modify qos` has to set, and what cannot be set yet."""
    found = ledger.qos.get(one["name"], {})
    changes: list[str] = []
    waiting: list[str] = []
    for name, column, key, back in QOS_FIELDS:
        now, then = meaning(name, found.get(column, "")), meaning(name, one.get(name))
        unknown = sorted(set(then) - ledger.tres) if name.startswith("max_tres") else []
        if unknown:
            waiting.append(f"QOS {one['name']}: no controller has named {', '.join(unknown)} yet, which {name} bounds")
        elif now != then:
            changes.append(f"{key}={_spelled(name, now, then, back)}")
    text = str(one.get("description") or "")
    changes += [f"description={text}"] if text and text.lower() != found.get("description", "").lower() else []
    return changes, waiting


def _spelled(name: str, now: Any, then: Any, back: str) -> str:
    """Return a QOS field's new value as `sacctmgr modify` takes it; an amount that goes is taken back by its name."""
    if name.startswith("max_tres"):
        return ",".join([f"{kind}={amount:g}" for kind, amount in then.items()] + [f"{kind}=-1" for kind in now if kind not in then])
    if name in ("preempt", "flags"):
        return ",".join(sorted(then)) or back
    if name == "max_wall" and then is not None:
        return f"{then // 86400}-{then // 3600 % 24:02d}:{then // 60 % 60:02d}:{then % 60:02d}"
    return back if then is None else f"{then:g}" if isinstance(then, float) else str(then)


def in_order(accounts: Sequence[Stated]) -> list[Stated]:
    """Return accounts with each parent before its children.

    Raises:
        ValueError: accounts are each other's parents.
    """
    done: list[Stated] = []
    waiting = list(accounts)
    while waiting:
        names = {one["name"] for one in waiting}
        ready = [one for one in waiting if one.get("parent") not in names]
        if not ready:
            raise ValueError(f"accounts {', '.join(sorted(names))} are each other's parents")
        done += ready
        waiting = [one for one in waiting if one.get("parent") in names]
    return done


def _effective_qos(ledger: Ledger, wanted: Wanted) -> dict[str, frozenset[str]]:
    """Return the QOS of each stated account once the calls are done: its own, else its parent's."""
    found = {ROOT: ledger.places.get(ROOT, Association(1, frozenset([NORMAL]))).qos}
    for one in in_order(wanted.accounts):
        inherited = found.get(one.get("parent") or ROOT) or ledger.places.get(str(one.get("parent")), _NEW).qos
        found[one["name"]] = frozenset(one["qos"]) if one.get("qos") else inherited
    return found


def _account_calls(ledger: Ledger, cluster: str, one: Stated, effective: Mapping[str, frozenset[str]]) -> Iterator[Call]:
    """Yield what makes one account so; its description belongs to no cluster, its place in the tree does."""
    name, parent = one["name"], one.get("parent") or ROOT
    described = {key: str(one[key]) for key in ("description", "organization") if one.get(key)}
    place = ledger.places.get(name)
    if place is None:
        yield ("add", "account", name, f"cluster={cluster}", f"parent={parent}", *(f"{key}={text}" for key, text in described.items()))
        place = Association(1, effective.get(parent, frozenset()), parent)
    else:
        row = ledger.accounts.get(name, {})
        shown = {"description": row.get("descr", ""), "organization": row.get("org", "")}
        changes = [f"{key}={text}" for key, text in described.items() if text.lower() != shown[key].lower()]
        if changes:
            yield ("modify", "account", "where", f"name={name}", "set", *changes)
    share = one.get("fairshare") or 1
    changes = [f"parent={parent}"] if place.parent != parent else []
    changes += [f"fairshare={share}"] if place.share != share else []
    changes += [f"qos={','.join(sorted(one.get('qos') or ()))}"] if place.qos != effective[name] else []
    if changes:
        yield ("modify", "account", "where", f"name={name}", f"cluster={cluster}", "set", *changes)


def _user_calls(ledger: Ledger, cluster: str, one: Stated, effective: Mapping[str, frozenset[str]]) -> Iterator[Call]:
    """Yield what makes one user so: a seat at each account, the account of jobs that name none, and what the user may do."""
    name, default = one["name"], one.get("default_account") or one["accounts"][0]
    row = ledger.users.get(name, {})
    for account in sorted(one["accounts"], key=lambda account: account != default):
        seat = ledger.seats.get((name, account))
        inherited = effective.get(account, frozenset())
        if seat is None:
            yield ("add", "user", name, f"cluster={cluster}", f"account={account}")
            seat = Association(1, inherited)
        wanted = frozenset(one["qos"]) if one.get("qos") else inherited
        changes = [f"qos={','.join(sorted(one.get('qos') or ()))}"] if seat.qos != wanted else []
        first = one.get("default_qos") or ""
        changes += [f"defaultqos={first or -1}"] if seat.default_qos != first else []
        if changes:
            yield ("modify", "user", "where", f"name={name}", f"account={account}", f"cluster={cluster}", "set", *changes)
    level = str(one.get("admin_level") or "None")
    changes = [f"defaultaccount={default}"] if row.get("defaultaccount", default) != default else []
    changes += [f"adminlevel={level}"] if row.get("admin", "None").lower() != level.lower() else []
    if changes:
        yield ("modify", "user", "where", f"name={name}", "set", *changes)


def _root_calls(ledger: Ledger, wanted: Wanted) -> Iterator[Call]:
    """Yield what lets root's own seat use every QOS: root proves preemption with jobs of its own. No account inherits from a seat."""
    every = frozenset((NORMAL, *(one["name"] for one in wanted.qos)))
    # A cluster that these calls make gets root's seat with it.
    seat = ledger.seats.get((ROOT, ROOT), Association(1, frozenset([NORMAL])))
    if not every <= seat.qos and ROOT not in {one["name"] for one in wanted.users}:
        names = ",".join(sorted(every | seat.qos))
        yield ("modify", "user", "where", f"name={ROOT}", f"account={ROOT}", f"cluster={wanted.cluster}", "set", f"qos={names}")


def _purge(ledger: Ledger, wanted: Wanted) -> Iterator[Call]:
    """Yield what takes out everything that is not stated: seats, users, accounts from the leaves up, QOS."""
    seats = {(one["name"], account) for one in wanted.users for account in one["accounts"]}
    users = {one["name"] for one in wanted.users} | {ROOT}
    accounts = {one["name"] for one in wanted.accounts} | {ROOT}
    qos = {one["name"] for one in wanted.qos} | {NORMAL}
    yield from (("delete", "user", "where", f"name={name}") for name in sorted(set(ledger.users) - users))
    for name, account in sorted(set(ledger.seats) - seats):
        if name in users and name != ROOT:
            yield ("delete", "user", "where", f"name={name}", f"account={account}")
    yield from (("delete", "account", "where", f"name={name}") for name in sorted(set(ledger.accounts) - accounts))
    yield from (("delete", "qos", "where", f"name={name}") for name in sorted(set(ledger.qos) - qos))
