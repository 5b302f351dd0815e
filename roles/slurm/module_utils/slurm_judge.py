# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""What is wrong with what a site states about Slurm, for all who judge it: the inventory's rules, preflight, and `slurm_config`.

Every function returns all findings at once, and none for a value of a wrong type: the roles' specs judge types.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible.module_utils.slurm_wishes import SPARE, Fleet, choose

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# slurmdbd makes it by itself: https://slurm.schedmd.com/qos.html
BUILT_IN_QOS = "normal"
MOST_CONTROLLERS = 2
# What is judged, and where: variables as the first controller has them.
VARIABLES = ("slurm_partitions", "slurm_qos", "slurm_accounts", "slurm_users", "slurm_extra_conf", "slurm_shared_state_dir")
GROUPS = ("slurm_controller", "slurm_accounting", "slurm_node", "slurm_login")
NEED_A_CONTROLLER = {
    "slurm_node": "a Slurm node has nothing to register with",
    "slurm_login": "jobs have nowhere to be submitted to",
    "slurm_accounting": "there is nothing to account for",
}
# A value that only a run knows: a template that cannot be resolved yet, or under Vault without a password.
UNKNOWN = "?"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_LINE = re.compile(r"[^\n\r#]*")
# What the role writes itself and what else would not hold if a second line said otherwise.
OWNED_KEYS = frozenset(
    (
        *("accountingstorageenforce", "accountingstoragehost", "accountingstoragepass", "accountingstorageport", "accountingstoragetype"),
        *("authtype", "clustername", "controlmachine", "downnodes", "epilog", "grestypes", "healthcheckinterval", "healthchecknodestate"),
        *("healthcheckprogram", "include", "jobacctgathertype", "killwait", "nodename", "nodeset", "partitionname", "preemptmode"),
        *("preempttype", "proctracktype", "prolog", "requeueexit", "returntoservice", "selecttypeparameters", "slurmctldhost"),
        *("slurmctldlogfile", "slurmctldparameters", "slurmctldpidfile", "slurmctldport", "slurmctldtimeout", "slurmdlogfile"),
        *("slurmdparameters", "slurmdpidfile", "slurmdport", "slurmdspooldir", "slurmdtimeout", "slurmuser", "srunportrange"),
        *("statesavelocation", "taskplugin", "taskprolog", "topologyplugin"),
    )
)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: which variable or group, what, how to mend it, and a short name of the rule."""

    about: str
    what: str
    fix: str
    rule: str


def _entries(stated: Any) -> list[Mapping[str, Any]]:
    return [one for one in stated if isinstance(one, dict)] if isinstance(stated, (list, tuple)) else []


def _names(stated: Any) -> list[str]:
    return [str(one["name"]) for one in _entries(stated) if one.get("name")]


def _words(given: Any) -> list[str]:
    return [str(one) for one in given] if isinstance(given, (list, tuple)) else [part for part in str(given or "").split(",") if part]


def name_findings(about: str, kind: str, stated: Any) -> Iterator[Finding]:
    """A name that Slurm cannot write, or that stands twice, would stop slurmctld or hide one of the two."""
    names = _names(stated)
    for name in dict.fromkeys(names):
        if not _NAME.fullmatch(name) or name.upper() == "DEFAULT":
            fix = "use letters, digits, dot, dash and underscore; DEFAULT has a meaning of its own"
            yield Finding(about, f"{about}: `{name}` is no name for {kind}", fix, "slurm-name")
    for name, times in Counter(names).items():
        if times > 1:
            yield Finding(about, f"{about}: {name} is stated {times} times", "keep one entry for each", "slurm-name")


def partition_findings(partitions: Any, fleet: Fleet) -> Iterator[Finding]:
    """A partition without nodes takes jobs that never start, and of two default partitions Slurm silently takes the last."""
    about = "slurm_partitions"
    yield from name_findings(about, "a partition", partitions)
    for one in _entries(partitions):
        name = one.get("name", "")
        try:
            chosen = choose(one.get("nodes", "all"), fleet)
        except ValueError as error:
            yield Finding(about, f"partition {name}: {error}", "write hosts as gpu[01-08], or name a group", "slurm-partition")
            continue
        if chosen.unknown:
            shown = ", ".join(chosen.unknown[:5]) + (f" and {len(chosen.unknown) - 5} more" if len(chosen.unknown) > 5 else "")
            fix = "name hosts of slurm_node, a group of the inventory, or all"
            yield Finding(about, f"partition {name}: in slurm_node there is no {shown}", fix, "slurm-partition")
        elif not chosen.nodes and fleet.members and name != SPARE:
            fix = "name hosts of slurm_node or a group that holds some (spare hosts count only where they are named)"
            yield Finding(about, f"partition {name} has no node", fix, "slurm-partition")
        yield from _value_findings(about, f"partition {name}", one)
    defaults = [str(one.get("name")) for one in _entries(partitions) if one.get("default") is True]
    if len(defaults) > 1:
        what = f"{len(defaults)} partitions are the default: {', '.join(defaults)}"
        yield Finding(about, what, "leave `default: true` to one of them", "slurm-default-partition")


def _value_findings(about: str, owner: str, one: Mapping[str, Any]) -> Iterator[Finding]:
    for key, given in one.items():
        if key == "extra" and isinstance(given, dict):
            yield from _value_findings(about, owner, {str(name): content for name, content in given.items()})
        elif not all(_LINE.fullmatch(word) and " " not in word for word in _words(given)):
            yield Finding(about, f"{owner}: {key} holds a blank, a # or a line break", "write one word", "slurm-value")


def qos_findings(qos: Any, partitions: Any, users: Any, accounts: Any) -> Iterator[Finding]:
    """Slurm takes an unknown quality of service in silence where nothing keeps accounts, and refuses jobs later where something does."""
    about = "slurm_qos"
    yield from name_findings(about, "a quality of service", qos)
    known = {*_names(qos), BUILT_IN_QOS}
    for one in _entries(qos):
        yield from _unknown_qos(about, f"QOS {one.get('name', '')}: preempt", _words(one.get("preempt")), known)
        if str(one.get("name")) in _words(one.get("preempt")):
            yield Finding(about, f"QOS {one.get('name')} preempts itself", "take its own name out of preempt", "slurm-qos")
    for one in _entries(partitions):
        wanted = [*_words(one.get("qos")), *_words(one.get("allow_qos"))]
        yield from _unknown_qos("slurm_partitions", f"partition {one.get('name', '')}", wanted, known)
    for variable, kind, stated in (("slurm_accounts", "account", accounts), ("slurm_users", "user", users)):
        for one in _entries(stated):
            wanted = [*_words(one.get("qos")), *_words(one.get("default_qos"))]
            yield from _unknown_qos(variable, f"{kind} {one.get('name', '')}", wanted, known)


def _unknown_qos(about: str, owner: str, wanted: Sequence[str], known: set[str]) -> Iterator[Finding]:
    for name in dict.fromkeys(wanted):
        if name not in known:
            fix = f"state it in slurm_qos, or use one of {', '.join(sorted(known))}"
            yield Finding(about, f"{owner} names the QOS {name}, which is not stated", fix, "slurm-qos")


def account_findings(accounts: Any, users: Any) -> Iterator[Finding]:
    """An account below one that does not exist, or a user in none, is refused by sacctmgr in the middle of a run."""
    yield from name_findings("slurm_accounts", "an account", accounts)
    yield from name_findings("slurm_users", "a user", users)
    known = {*_names(accounts), "root"}
    for one in _entries(accounts):
        parent = str(one.get("parent") or "root")
        if parent not in known or parent == one.get("name"):
            yield Finding(
                "slurm_accounts", f"account {one.get('name', '')}: there is no parent {parent}", "state that account too", "slurm-account"
            )
    for one in _entries(users):
        yield from _user_findings(f"user {one.get('name', '')}", one, known)


def _user_findings(owner: str, one: Mapping[str, Any], known: set[str]) -> Iterator[Finding]:
    stated, default = _words(one.get("accounts")), str(one.get("default_account") or "")
    for name in dict.fromkeys(stated):
        if name not in known:
            yield Finding("slurm_users", f"{owner}: there is no account {name}", "state it in slurm_accounts", "slurm-account")
    if not stated:
        yield Finding("slurm_users", f"{owner} has no account", "name at least one in `accounts`", "slurm-account")
    elif default and default not in stated:
        yield Finding("slurm_users", f"{owner}: default_account {default} is none of its accounts", "add it to `accounts`", "slurm-account")


def needs_accounting(stated: Mapping[str, Any]) -> Iterator[Finding]:
    """QOS, accounts and users live in slurmdbd's database: without it slurmctld accepts them in silence and nothing is enforced."""
    fix = "put a host into slurm_accounting, or take it out"
    for variable in ("slurm_qos", "slurm_accounts", "slurm_users"):
        if _entries(stated.get(variable)):
            yield Finding(variable, f"{variable} is stated and slurm_accounting has no host", fix, "slurm-accounting")
    for one in _entries(stated.get("slurm_partitions")):
        for key in ("qos", "allow_qos", "allow_accounts"):
            if one.get(key):
                what = f"partition {one.get('name', '')}: {key} is stated and slurm_accounting has no host"
                yield Finding("slurm_partitions", what, fix, "slurm-accounting")


def host_findings(groups: Mapping[str, Sequence[str]], shared_state_dir: Any) -> Iterator[Finding]:
    """Two controllers that do not share their state lose every job at a failover; more than two, and two databases, are not supported.

    Args:
        groups: The inventory's groups.
        shared_state_dir: The folder that both controllers share, empty or None where none is stated; UNKNOWN where only a run knows it.
    """
    controllers, accounting = groups.get("slurm_controller", ()), groups.get("slurm_accounting", ())
    for group, why in NEED_A_CONTROLLER.items():
        if groups.get(group) and not controllers:
            what = f"{group} has hosts and slurm_controller has none: {why}"
            yield Finding(group, what, "put a host into slurm_controller", "missing-partner")
    if len(controllers) > MOST_CONTROLLERS:
        what = f"slurm_controller has {len(controllers)} hosts; a primary and one backup are supported"
        yield Finding("slurm_controller", what, "keep one or two", "slurm-controllers")
    elif len(controllers) == MOST_CONTROLLERS and not shared_state_dir:
        what = "slurm_controller has 2 hosts and no state folder that both share: a failover would lose every job"
        fix = "set slurm_shared_state_dir to a folder that both mount, such as one below juicefs_mount_point, or keep one controller"
        yield Finding("slurm_controller", what, fix, "slurm-shared-state")
    if len(accounting) > 1:
        what = f"slurm_accounting has {len(accounting)} hosts; one slurmdbd with its database is supported"
        yield Finding("slurm_accounting", what, "keep one", "slurm-accounting")


def extra_findings(extra: Any) -> Iterator[Finding]:
    """A second line for what the role itself writes would win or lose by its place."""
    for key, given in (extra if isinstance(extra, dict) else {}).items():
        if not _KEY.fullmatch(str(key)):
            yield Finding(
                "slurm_extra_conf", f"slurm_extra_conf: `{key}` is no key of slurm.conf", "write a key of slurm.conf(5)", "slurm-extra"
            )
        elif str(key).lower() in OWNED_KEYS:
            fix = "use the role's own variable: `primus-bootstrap schema` lists them"
            yield Finding("slurm_extra_conf", f"slurm_extra_conf: {key} is written by the role", fix, "slurm-extra")
        elif not _LINE.fullmatch(str(given)):
            yield Finding("slurm_extra_conf", f"slurm_extra_conf: {key} holds a # or a line break", "write one line", "slurm-value")


def all_findings(groups: Mapping[str, Sequence[str]], stated: Mapping[str, Any]) -> list[Finding]:
    """Return everything that is wrong.

    Args:
        groups: The inventory's groups with their hosts.
        stated: VARIABLES as the first controller has them; None where one is not stated, UNKNOWN where only a run knows it.
    """
    fleet = Fleet(tuple(groups.get("slurm_node", ())), groups, tuple(groups.get(SPARE, ())))
    partitions, qos, accounts, users = (stated[name] for name in ("slurm_partitions", "slurm_qos", "slurm_accounts", "slurm_users"))
    found = [*host_findings(groups, stated["slurm_shared_state_dir"]), *extra_findings(stated["slurm_extra_conf"])]
    found += partition_findings(partitions, fleet)
    found += [] if UNKNOWN in (qos, accounts, users) else qos_findings(qos, partitions, users, accounts)
    found += [] if UNKNOWN in (accounts, users) else account_findings(accounts, users)
    return found if groups.get("slurm_accounting") else [*found, *needs_accounting(stated)]


def problems(settings: Mapping[str, Any], members: Sequence[str]) -> list[dict[str, str]]:
    """Return everything that is wrong with the settings of `slurm_config`, whose hosts were judged before."""
    groups = {**settings["groups"], "slurm_node": members, SPARE: settings["spare"]}
    groups |= {"slurm_controller": members[:1], "slurm_accounting": members[:1] if settings["accounting"] else []}
    stated = {name: settings.get(name.removeprefix("slurm_")) for name in VARIABLES}
    found = all_findings(groups, {**stated, "slurm_extra_conf": settings["extra"]})
    return [{"what": one.what, "fix": one.fix} for one in found]
