# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Compute the sacctmgr commands that change the data of slurmdbd to the desired state.

Fields that are missing in an entry get their default: a limit that is removed from hosts.yaml is removed. Entries that are not listed
stay, unless they are purged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible.module_utils.slurm_accounting_data import NORMAL, QOS_FIELDS, ROOT, AccountingData, Association, normalize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Entry = Mapping[str, Any]
    Call = tuple[str, ...]

_JOB_LIMIT = "max_submit_per_user"
_NEW = Association(share=1, qos=frozenset())


@dataclass(frozen=True)
class DesiredState:
    """QOS, accounts and users in hosts.yaml."""

    cluster: str
    qos: Sequence[Entry] = ()
    accounts: Sequence[Entry] = ()
    users: Sequence[Entry] = ()
    purge: bool = False
    max_submit: int = 0  # largest number of queued jobs of a user, for each QOS without its own limit; 0 means no limit


@dataclass(frozen=True)
class Plan:
    """The sacctmgr commands in order, and the limits that wait until a controller has registered its GPUs."""

    calls: tuple[Call, ...]
    waiting: tuple[str, ...] = ()


def make_plan(data: AccountingData, desired: DesiredState) -> Plan:
    """Return the plan.

    Raises:
        ValueError: A time or an amount is invalid, or the parents of accounts form a cycle.
    """
    calls: list[Call] = [] if desired.cluster in data.clusters else [("add", "cluster", desired.cluster)]
    calls += [("add", "qos", one["name"]) for one in desired.qos if one["name"] not in data.qos]
    waiting: list[str] = []
    for one in _with_job_limits(data, desired):
        changes, waits = _qos_changes(data, one)
        calls += [("modify", "qos", "where", f"name={one['name']}", "set", *changes)] if changes else []
        waiting += waits
    effective = _effective_qos(data, desired)
    for one in sort_accounts(desired.accounts):
        calls += _account_calls(data, desired.cluster, one, effective)
    for one in desired.users:
        calls += _user_calls(data, desired.cluster, one, effective)
    calls += _root_calls(data, desired)
    calls += _purge(data, desired) if desired.purge else []
    return Plan(tuple(calls), tuple(waiting))


def _with_job_limits(data: AccountingData, desired: DesiredState) -> list[Entry]:
    """Return the QOS with a limit on the queued jobs of a user.

    The QOS that slurmdbd creates gets the limit too, and keeps all its other fields. Without a limit to set, it is not changed.
    """
    if not desired.max_submit:
        return [*desired.qos]
    bounded: list[Entry] = [{**one, _JOB_LIMIT: one.get(_JOB_LIMIT) or desired.max_submit} for one in desired.qos]
    found = data.qos.get(NORMAL)
    if found is None or any(one["name"] == NORMAL for one in desired.qos):
        return bounded
    kept = {name: found.get(column, "") for name, column, _, _ in QOS_FIELDS}
    return [*bounded, {**kept, "name": NORMAL, _JOB_LIMIT: desired.max_submit}]


def _qos_changes(data: AccountingData, one: Entry) -> tuple[list[str], list[str]]:
    """Return what `modify qos` has to set, and what cannot be set yet."""
    found = data.qos.get(one["name"], {})
    changes: list[str] = []
    waiting: list[str] = []
    for name, column, key, back in QOS_FIELDS:
        now, then = normalize(name, found.get(column, "")), normalize(name, one.get(name))
        unknown = sorted(set(then) - data.tres) if name.startswith("max_tres") else []
        if unknown:
            waiting.append(f"QOS {one['name']}: no controller has named {', '.join(unknown)} yet, which {name} bounds")
        elif now != then:
            changes.append(f"{key}={_format_value(name, now, then, back)}")
    text = str(one.get("description") or "")
    changes += [f"description={text}"] if text and text.lower() != found.get("description", "").lower() else []
    return changes, waiting


def _format_value(name: str, now: Any, then: Any, back: str) -> str:
    """Return the new value of a QOS field for `sacctmgr modify`; removed amounts are reset by name."""
    if name.startswith("max_tres"):
        return ",".join([f"{kind}={amount:g}" for kind, amount in then.items()] + [f"{kind}=-1" for kind in now if kind not in then])
    if name in ("preempt", "flags"):
        return ",".join(sorted(then)) or back
    if name == "max_wall" and then is not None:
        return f"{then // 86400}-{then // 3600 % 24:02d}:{then // 60 % 60:02d}:{then % 60:02d}"
    return back if then is None else f"{then:g}" if isinstance(then, float) else str(then)


def sort_accounts(accounts: Sequence[Entry]) -> list[Entry]:
    """Return the accounts with each parent before its children.

    Raises:
        ValueError: The parents form a cycle.
    """
    done: list[Entry] = []
    waiting = list(accounts)
    while waiting:
        names = {one["name"] for one in waiting}
        ready = [one for one in waiting if one.get("parent") not in names]
        if not ready:
            raise ValueError(f"the parents of the accounts {', '.join(sorted(names))} form a cycle")
        done += ready
        waiting = [one for one in waiting if one.get("parent") in names]
    return done


def _effective_qos(data: AccountingData, desired: DesiredState) -> dict[str, frozenset[str]]:
    """Return the QOS of each account after the commands: its own, else those of its parent."""
    found = {ROOT: data.account_associations.get(ROOT, Association(1, frozenset([NORMAL]))).qos}
    for one in sort_accounts(desired.accounts):
        inherited = found.get(one.get("parent") or ROOT) or data.account_associations.get(str(one.get("parent")), _NEW).qos
        found[one["name"]] = frozenset(one["qos"]) if one.get("qos") else inherited
    return found


def _account_calls(data: AccountingData, cluster: str, one: Entry, effective: Mapping[str, frozenset[str]]) -> Iterator[Call]:
    """Yield the commands for one account. The description is global; the association belongs to the cluster."""
    name, parent = one["name"], one.get("parent") or ROOT
    described = {key: str(one[key]) for key in ("description", "organization") if one.get(key)}
    association = data.account_associations.get(name)
    if association is None:
        yield ("add", "account", name, f"cluster={cluster}", f"parent={parent}", *(f"{key}={text}" for key, text in described.items()))
        association = Association(1, effective.get(parent, frozenset()), parent)
    else:
        row = data.accounts.get(name, {})
        shown = {"description": row.get("descr", ""), "organization": row.get("org", "")}
        changes = [f"{key}={text}" for key, text in described.items() if text.lower() != shown[key].lower()]
        if changes:
            yield ("modify", "account", "where", f"name={name}", "set", *changes)
    share = one.get("fairshare") or 1
    changes = [f"parent={parent}"] if association.parent != parent else []
    changes += [f"fairshare={share}"] if association.share != share else []
    changes += [f"qos={','.join(sorted(one.get('qos') or ()))}"] if association.qos != effective[name] else []
    if changes:
        yield ("modify", "account", "where", f"name={name}", f"cluster={cluster}", "set", *changes)


def _user_calls(data: AccountingData, cluster: str, one: Entry, effective: Mapping[str, frozenset[str]]) -> Iterator[Call]:
    """Yield the commands for one user: the associations, the default account and the admin level."""
    name, default = one["name"], one.get("default_account") or one["accounts"][0]
    row = data.users.get(name, {})
    for account in sorted(one["accounts"], key=lambda account: account != default):
        association = data.user_associations.get((name, account))
        inherited = effective.get(account, frozenset())
        if association is None:
            yield ("add", "user", name, f"cluster={cluster}", f"account={account}")
            association = Association(1, inherited)
        qos = frozenset(one["qos"]) if one.get("qos") else inherited
        changes = [f"qos={','.join(sorted(one.get('qos') or ()))}"] if association.qos != qos else []
        first = one.get("default_qos") or ""
        changes += [f"defaultqos={first or -1}"] if association.default_qos != first else []
        if changes:
            yield ("modify", "user", "where", f"name={name}", f"account={account}", f"cluster={cluster}", "set", *changes)
    level = str(one.get("admin_level") or "None")
    changes = [f"defaultaccount={default}"] if row.get("defaultaccount", default) != default else []
    changes += [f"adminlevel={level}"] if row.get("admin", "None").lower() != level.lower() else []
    if changes:
        yield ("modify", "user", "where", f"name={name}", "set", *changes)


def _root_calls(data: AccountingData, desired: DesiredState) -> Iterator[Call]:
    """Yield the command that allows root to use every QOS, for the test jobs of the verification."""
    every = frozenset((NORMAL, *(one["name"] for one in desired.qos)))
    # A new cluster gets this association of root automatically.
    association = data.user_associations.get((ROOT, ROOT), Association(1, frozenset([NORMAL])))
    if not every <= association.qos and ROOT not in {one["name"] for one in desired.users}:
        names = ",".join(sorted(every | association.qos))
        yield ("modify", "user", "where", f"name={ROOT}", f"account={ROOT}", f"cluster={desired.cluster}", "set", f"qos={names}")


def _purge(data: AccountingData, desired: DesiredState) -> Iterator[Call]:
    """Yield the commands that delete all entries that are not listed."""
    associations = {(one["name"], account) for one in desired.users for account in one["accounts"]}
    users = {one["name"] for one in desired.users} | {ROOT}
    accounts = {one["name"] for one in desired.accounts} | {ROOT}
    qos = {one["name"] for one in desired.qos} | {NORMAL}
    yield from (("delete", "user", "where", f"name={name}") for name in sorted(set(data.users) - users))
    for name, account in sorted(set(data.user_associations) - associations):
        if name in users and name != ROOT:
            yield ("delete", "user", "where", f"name={name}", f"account={account}")
    yield from (("delete", "account", "where", f"name={name}") for name in sorted(set(data.accounts) - accounts))
    yield from (("delete", "qos", "where", f"name={name}") for name in sorted(set(data.qos) - qos))
