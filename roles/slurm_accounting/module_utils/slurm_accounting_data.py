# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Parse the QOS, accounts and users of slurmdbd from the output of `sacctmgr --noheader --parsable2 show ...`.

Source of names and formats: sacctmgr(1) of Slurm 22.05 and 24.11.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = "root"
NORMAL = "normal"  # slurmdbd creates this QOS
# Name in hosts.yaml, in `sacctmgr show`, in `sacctmgr modify`, and the value that resets the field.
QOS_FIELDS = (
    ("priority", "priority", "priority", "0"),
    ("preempt", "preempt", "preempt", ""),
    ("grace_time_s", "gracetime", "gracetime", "0"),
    ("max_wall", "maxwall", "maxwall", "-1"),
    ("max_jobs_per_user", "maxjobspu", "maxjobsperuser", "-1"),
    ("max_submit_per_user", "maxsubmitpu", "maxsubmitjobsperuser", "-1"),
    ("max_tres", "maxtres", "maxtresperjob", ""),
    ("max_tres_per_user", "maxtrespu", "maxtresperuser", ""),
    ("flags", "flags", "flags", "-1"),
    ("usage_factor", "usagefactor", "usagefactor", "1"),
)
QOS_COLUMNS = ("name", "description", *(column for _, column, _, _ in QOS_FIELDS))
_UNITS = {"": 1, "k": 1 / 1024, "m": 1, "g": 1024, "t": 1024**2, "p": 1024**3}


def rows(text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of `sacctmgr --noheader --parsable2 show` by column."""
    return [dict(zip(columns, line.split("|"))) for line in text.splitlines() if line.strip()]  # noqa: B905 (hosts have Python 3.9)


def parse_time(text: str) -> int:
    """Return a time in Slurm's formats (minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s) in seconds.

    Raises:
        ValueError: It is not a time.
    """
    days, dash, rest = text.partition("-") if "-" in text else ("0", "", text)
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, secs = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, secs = parts
    else:
        hours, minutes, secs = 0, parts[0], parts[1] if len(parts) == 2 else 0
    return ((int(days) * 24 + hours) * 60 + minutes) * 60 + secs


def parse_tres(text: str) -> dict[str, float]:
    """Return `cpu=4,mem=100G,gres/gpu=8` as numbers, memory in MiB.

    Raises:
        ValueError: An amount is not a number.
    """
    found: dict[str, float] = {}
    for part in text.lower().split(","):
        kind, _, amount = part.strip().partition("=")
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtp]?)", amount)
        if part and not match:
            raise ValueError(f"{part} is not an amount; write cpu=4,mem=100G,gres/gpu=8")
        if match:
            found[kind] = float(match.group(1)) * (_UNITS[match.group(2)] if match.group(2) else 1)
    return found


def normalize(name: str, value: Any) -> Any:
    """Return the value of a QOS field in a comparable form, from hosts.yaml or from sacctmgr."""
    if name in ("preempt", "flags"):
        words = value if isinstance(value, (list, tuple)) else str(value or "").split(",")
        return frozenset(str(word).lower() for word in words if word)
    text = "" if value is None else str(value).strip()
    if name in ("max_tres", "max_tres_per_user"):
        return parse_tres(text)
    if name == "grace_time_s":
        return parse_time(text) if ":" in text else int(text or 0)
    if name == "max_wall":
        return parse_time(text) if text else None
    if name == "usage_factor":
        return float(text or 1)
    return int(text) if text else 0 if name == "priority" else None


@dataclass(frozen=True)
class Association:
    """An association of an account or a user: its share, and its QOS including inherited ones."""

    share: int
    qos: frozenset[str]
    parent: str = ""
    default_qos: str = ""


@dataclass(frozen=True)
class AccountingData:
    """The data of one cluster in slurmdbd. The keys of user_associations are (user, account)."""

    clusters: frozenset[str] = frozenset()
    tres: frozenset[str] = frozenset()
    qos: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    accounts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    users: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    account_associations: Mapping[str, Association] = field(default_factory=dict)
    user_associations: Mapping[tuple[str, str], Association] = field(default_factory=dict)


SHOWS = {
    "cluster": ("cluster",),
    "tres": ("type", "name"),
    "qos": QOS_COLUMNS,
    "account": ("account", "descr", "org"),
    "user": ("user", "defaultaccount", "admin"),
    "association": ("account", "user", "parentname", "share", "qos", "defaultqos"),
}


def parse_data(answers: Mapping[str, str]) -> AccountingData:
    """Parse the output of the commands in SHOWS."""
    table = {what: rows(answers[what], columns) for what, columns in SHOWS.items()}
    account_associations: dict[str, Association] = {}
    user_associations: dict[tuple[str, str], Association] = {}
    for row in table["association"]:
        share = int(row["share"]) if row["share"].isdigit() else 0
        found = Association(share, frozenset(filter(None, row["qos"].split(","))), row["parentname"], row["defaultqos"])
        if row["user"]:
            user_associations[row["user"], row["account"]] = found
        else:
            account_associations[row["account"]] = found
    return AccountingData(
        clusters=frozenset(row["cluster"] for row in table["cluster"]),
        tres=frozenset("/".join(filter(None, (row["type"], row["name"]))) for row in table["tres"]),
        qos={row["name"]: row for row in table["qos"]},
        accounts={row["account"]: row for row in table["account"]},
        users={row["user"]: row for row in table["user"]},
        account_associations=account_associations,
        user_associations=user_associations,
    )
