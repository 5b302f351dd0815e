# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Check the settings of Slurm. Used by the rules of the inventory, by the preflight of the role, and by the module `slurm_config`.

Every function returns all findings at once. Values of a wrong type are ignored here: the argument specs report them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible.module_utils.slurm_host_lists import SPARE, Fleet, select_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# slurmdbd creates it: https://slurm.schedmd.com/qos.html
BUILT_IN_QOS = "normal"
MOST_CONTROLLERS = 2
# The variables that are checked, with the values of the first controller.
VARIABLES = ("slurm_partitions", "slurm_qos", "slurm_accounts", "slurm_users", "slurm_extra_conf", "slurm_shared_state_dir")
GROUPS = ("slurm_controller", "slurm_accounting", "slurm_node", "slurm_login")
NEED_A_CONTROLLER = {
    "slurm_node": "a node needs a controller to register with",
    "slurm_login": "jobs cannot be submitted without a controller",
    "slurm_accounting": "accounting needs a controller",
}
# A value that is known only in a run: a template that cannot be resolved yet, or a Vault value without a password.
UNKNOWN = "?"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_LINE = re.compile(r"[^\n\r#]*")
# Keys that the role sets, and keys with which a second line would break these.
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
    """One mistake: the variable or group, the problem, the fix, and the name of the rule."""

    about: str
    what: str
    fix: str
    rule: str


def _entries(values: Any) -> list[Mapping[str, Any]]:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, (list, tuple)) else []


def _names(values: Any) -> list[str]:
    return [str(one["name"]) for one in _entries(values) if one.get("name")]


def _words(given: Any) -> list[str]:
    return [str(one) for one in given] if isinstance(given, (list, tuple)) else [part for part in str(given or "").split(",") if part]


def name_findings(about: str, kind: str, values: Any) -> Iterator[Finding]:
    """Report invalid and duplicate names. slurmctld would not start, or would ignore one of the two."""
    names = _names(values)
    for name in dict.fromkeys(names):
        if not _NAME.fullmatch(name) or name.upper() == "DEFAULT":
            fix = "use letters, digits, dots, dashes and underscores; DEFAULT is reserved"
            yield Finding(about, f"{about}: `{name}` is not a valid name of {kind}", fix, "slurm-name")
    for name, times in Counter(names).items():
        if times > 1:
            yield Finding(about, f"{about}: {name} is defined {times} times", "keep one entry for each", "slurm-name")


def partition_findings(partitions: Any, fleet: Fleet) -> Iterator[Finding]:
    """Report partitions without nodes, whose jobs would never start, and several default partitions, of which Slurm uses the last."""
    about = "slurm_partitions"
    yield from name_findings(about, "a partition", partitions)
    for one in _entries(partitions):
        name = one.get("name", "")
        try:
            chosen = select_nodes(one.get("nodes", "all"), fleet)
        except ValueError as error:
            yield Finding(about, f"partition {name}: {error}", "write hosts as gpu[01-08], or name a group", "slurm-partition")
            continue
        if chosen.unknown:
            shown = ", ".join(chosen.unknown[:5]) + (f" and {len(chosen.unknown) - 5} more" if len(chosen.unknown) > 5 else "")
            fix = "name hosts of slurm_node, a group of the inventory, or all"
            yield Finding(about, f"partition {name}: slurm_node has no {shown}", fix, "slurm-partition")
        elif not chosen.nodes and fleet.members and name != SPARE:
            fix = "name hosts of slurm_node or a group that has some (spare hosts count only if they are named)"
            yield Finding(about, f"partition {name} has no node", fix, "slurm-partition")
        yield from _value_findings(about, f"partition {name}", one)
    defaults = [str(one.get("name")) for one in _entries(partitions) if one.get("default") is True]
    if len(defaults) > 1:
        what = f"{len(defaults)} partitions are the default: {', '.join(defaults)}"
        yield Finding(about, what, "keep `default: true` in one of them", "slurm-default-partition")


def _value_findings(about: str, owner: str, one: Mapping[str, Any]) -> Iterator[Finding]:
    for key, given in one.items():
        if key == "extra" and isinstance(given, dict):
            yield from _value_findings(about, owner, {str(name): content for name, content in given.items()})
        elif not all(_LINE.fullmatch(word) and " " not in word for word in _words(given)):
            yield Finding(about, f"{owner}: {key} contains a space, a # or a line break", "write one word", "slurm-value")


def qos_findings(qos: Any, partitions: Any, users: Any, accounts: Any) -> Iterator[Finding]:
    """Report unknown QOS. Without accounting, Slurm ignores them silently; with accounting, it rejects jobs later."""
    about = "slurm_qos"
    yield from name_findings(about, "a quality of service", qos)
    known = {*_names(qos), BUILT_IN_QOS}
    for one in _entries(qos):
        yield from _unknown_qos(about, f"QOS {one.get('name', '')}: preempt", _words(one.get("preempt")), known)
        if str(one.get("name")) in _words(one.get("preempt")):
            yield Finding(about, f"QOS {one.get('name')} preempts itself", "remove its own name from preempt", "slurm-qos")
    for one in _entries(partitions):
        names = [*_words(one.get("qos")), *_words(one.get("allow_qos"))]
        yield from _unknown_qos("slurm_partitions", f"partition {one.get('name', '')}", names, known)
    for variable, kind, values in (("slurm_accounts", "account", accounts), ("slurm_users", "user", users)):
        for one in _entries(values):
            names = [*_words(one.get("qos")), *_words(one.get("default_qos"))]
            yield from _unknown_qos(variable, f"{kind} {one.get('name', '')}", names, known)


def _unknown_qos(about: str, owner: str, names: Sequence[str], known: set[str]) -> Iterator[Finding]:
    for name in dict.fromkeys(names):
        if name not in known:
            fix = f"add it to slurm_qos, or use one of {', '.join(sorted(known))}"
            yield Finding(about, f"{owner} uses the QOS {name}, which is not defined", fix, "slurm-qos")


def account_findings(accounts: Any, users: Any) -> Iterator[Finding]:
    """Report accounts with an unknown parent and users with unknown accounts. sacctmgr would reject them in the middle of a run."""
    yield from name_findings("slurm_accounts", "an account", accounts)
    yield from name_findings("slurm_users", "a user", users)
    known = {*_names(accounts), "root"}
    for one in _entries(accounts):
        parent = str(one.get("parent") or "root")
        if parent not in known or parent == one.get("name"):
            what = f"account {one.get('name', '')}: its parent {parent} does not exist"
            yield Finding("slurm_accounts", what, f"add {parent} to slurm_accounts", "slurm-account")
    for one in _entries(users):
        yield from _user_findings(f"user {one.get('name', '')}", one, known)


def _user_findings(owner: str, one: Mapping[str, Any], known: set[str]) -> Iterator[Finding]:
    values, default = _words(one.get("accounts")), str(one.get("default_account") or "")
    for name in dict.fromkeys(values):
        if name not in known:
            yield Finding("slurm_users", f"{owner}: the account {name} does not exist", "add it to slurm_accounts", "slurm-account")
    if not values:
        yield Finding("slurm_users", f"{owner} has no account", "name at least one in `accounts`", "slurm-account")
    elif default and default not in values:
        what = f"{owner}: default_account {default} is not one of its accounts"
        yield Finding("slurm_users", what, "add it to `accounts`", "slurm-account")


def needs_accounting(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Report settings that need slurmdbd. Without it, slurmctld accepts them silently and enforces nothing."""
    fix = "add a host to slurm_accounting, or remove it"
    for variable in ("slurm_qos", "slurm_accounts", "slurm_users"):
        if _entries(values.get(variable)):
            yield Finding(variable, f"{variable} is set, and slurm_accounting has no host", fix, "slurm-accounting")
    for one in _entries(values.get("slurm_partitions")):
        for key in ("qos", "allow_qos", "allow_accounts"):
            if one.get(key):
                what = f"partition {one.get('name', '')}: {key} is set, and slurm_accounting has no host"
                yield Finding("slurm_partitions", what, fix, "slurm-accounting")


def host_findings(groups: Mapping[str, Sequence[str]], shared_state_dir: Any) -> Iterator[Finding]:
    """Report missing and superfluous hosts. Two controllers without a shared state lose all jobs at a failover.

    Args:
        groups: The groups of the inventory.
        shared_state_dir: The value of slurm_shared_state_dir; empty or None if it is not set, UNKNOWN if only a run can resolve it.
    """
    controllers, accounting = groups.get("slurm_controller", ()), groups.get("slurm_accounting", ())
    for group, why in NEED_A_CONTROLLER.items():
        if groups.get(group) and not controllers:
            what = f"{group} has hosts and slurm_controller has none: {why}"
            yield Finding(group, what, "add a host to slurm_controller", "missing-partner")
    if len(controllers) > MOST_CONTROLLERS:
        what = f"slurm_controller has {len(controllers)} hosts; a primary and one backup are supported"
        yield Finding("slurm_controller", what, "keep one or two", "slurm-controllers")
    elif len(controllers) == MOST_CONTROLLERS and not shared_state_dir:
        what = "slurm_controller has 2 hosts and no shared state folder: a failover would lose all jobs"
        fix = "set slurm_shared_state_dir to a folder of a file server that both mount (not juicefs_mount_point), or keep one controller"
        yield Finding("slurm_controller", what, fix, "slurm-shared-state")
    if len(accounting) > 1:
        what = f"slurm_accounting has {len(accounting)} hosts; one slurmdbd with its database is supported"
        yield Finding("slurm_accounting", what, "keep one", "slurm-accounting")


def extra_findings(extra: Any) -> Iterator[Finding]:
    """Report invalid keys and keys that the role sets itself."""
    for key, given in (extra if isinstance(extra, dict) else {}).items():
        if not _KEY.fullmatch(str(key)):
            yield Finding(
                "slurm_extra_conf", f"slurm_extra_conf: `{key}` is not a key of slurm.conf", "write a key of slurm.conf(5)", "slurm-extra"
            )
        elif str(key).lower() in OWNED_KEYS:
            fix = "use the variable of the role: `primus-bootstrap schema` lists them"
            yield Finding("slurm_extra_conf", f"slurm_extra_conf: the role sets {key} itself", fix, "slurm-extra")
        elif not _LINE.fullmatch(str(given)):
            yield Finding("slurm_extra_conf", f"slurm_extra_conf: {key} contains a # or a line break", "write one line", "slurm-value")


def all_findings(groups: Mapping[str, Sequence[str]], values: Mapping[str, Any]) -> list[Finding]:
    """Return all findings.

    Args:
        groups: The groups of the inventory with their hosts.
        values: The values of VARIABLES on the first controller; None if not set, UNKNOWN if only a run can resolve it.
    """
    fleet = Fleet(tuple(groups.get("slurm_node", ())), groups, tuple(groups.get(SPARE, ())))
    partitions, qos, accounts, users = (values[name] for name in ("slurm_partitions", "slurm_qos", "slurm_accounts", "slurm_users"))
    found = [*host_findings(groups, values["slurm_shared_state_dir"]), *extra_findings(values["slurm_extra_conf"])]
    found += partition_findings(partitions, fleet)
    found += [] if UNKNOWN in (qos, accounts, users) else qos_findings(qos, partitions, users, accounts)
    found += [] if UNKNOWN in (accounts, users) else account_findings(accounts, users)
    return found if groups.get("slurm_accounting") else [*found, *needs_accounting(values)]


def problems(settings: Mapping[str, Any], members: Sequence[str]) -> list[dict[str, str]]:
    """Return the findings on the settings of the module `slurm_config`; the hosts were checked before."""
    groups = {**settings["groups"], "slurm_node": members, SPARE: settings["spare"]}
    groups |= {"slurm_controller": members[:1], "slurm_accounting": members[:1] if settings["accounting"] else []}
    values = {name: settings.get(name.removeprefix("slurm_")) for name in VARIABLES}
    found = all_findings(groups, {**values, "slurm_extra_conf": settings["extra"]})
    return [{"what": one.what, "fix": one.fix} for one in found]
