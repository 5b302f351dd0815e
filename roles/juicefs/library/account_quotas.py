#!/usr/bin/python
"""Set the quotas of accounts on a JuiceFS volume: the Ansible module `account_quotas`. No collection has a module for JuiceFS.

An account that already exceeds its quota gets none, because its running jobs could no longer write. The result names it.

Arguments:
    settings: a dict:
        program, env_file, meta_url: how JuiceFS is called.
        record_folder: a folder on the volume that only root can change. It stores the exact quotas, because the program shows rounded ones.
        kind: `user` limits all files of an account (JuiceFS 1.4), `home` its folder home/NAME (1.1), empty = this version has no quotas.
        accounts: as in users_groups_accounts.
        gib, inodes: the quota of each account; 0 = none.
        exceptions: {NAME: {gib, inodes}} of accounts with another quota.
    report_for: print verdicts for this host instead of changing quotas. Used in check mode.

Returns `quotas`, the accounts whose quota was set, and `over`, the accounts that exceed theirs.
"""

from __future__ import annotations

import json
import math
import os
import pwd
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command
from ansible.module_utils.safe_files import open_folder, within

SCHEMA = "primus.verdict/1"
SOURCE = "roles/juicefs/meta/argument_specs.yml"
COMMAND_S = 120.0
# JuiceFS counts the usage of an account once it has a quota. These are larger than any volume, so they limit nobody.
MEASURING_GIB, MEASURING_INODES = 1 << 30, 1 << 50
UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50, "EiB": 60}
NEARLY_FULL_PERCENT = 90
# Larger lists and records are refused.
MAX_BYTES = 64 << 20
RECORD = "quotas.json"


class QuotaError(Exception):
    """The program failed; the message has the cause and the fix."""


@dataclass(frozen=True)
class Limit:
    """A quota or a usage, in bytes and in number of files and folders; in a quota 0 = no limit."""

    space: int = 0
    inodes: int = 0

    def exceeds(self, limit: Limit) -> bool:
        """Return whether this usage exceeds a quota."""
        return bool((limit.space and self.space > limit.space) or (limit.inodes and self.inodes > limit.inodes))

    def __str__(self) -> str:
        """Return it in readable form."""
        space = f"{self.space / (1 << 30):.4g} GiB" if self.space else "any size"
        return f"{space}, {f'{self.inodes:,}' if self.inodes else 'any number of'} files"


MEASURING = Limit(MEASURING_GIB << 30, MEASURING_INODES)


def configured_limits(settings: dict[str, Any]) -> dict[str, Limit]:
    """Return the quota of every account that is not absent."""
    found = {}
    for account in settings["accounts"]:
        if account.get("state") == "absent":
            continue
        exception = settings["exceptions"].get(account["name"]) or {}
        gib, inodes = (int(exception.get(key, settings[key])) for key in ("gib", "inodes"))
        found[account["name"]] = Limit(gib << 30, inodes)
    return found


def format_size(space: int) -> str:
    """Return a size as the program shows it: `humanize.IBytes` of https://github.com/dustin/go-humanize, v1.0.1."""
    unit = max((name for name in UNITS if space >= 1 << UNITS[name]), key=UNITS.__getitem__, default="B")
    value = math.floor(space / (1 << UNITS[unit]) * 10 + 0.5) / 10
    return f"{value:.1f} {unit}" if unit != "B" and value < 10 else f"{value:.0f} {unit}"


def parse_size(cell: str) -> int:
    """Return the number of bytes in a cell of the program's table; 0 if it has no size."""
    match = re.fullmatch(r"([\d.]+) ([KMGTPE]?i?B)", cell)
    return round(float(match[1]) * (1 << UNITS[match[2]])) if match else 0


def parse_table(table: str) -> dict[str, tuple[Limit, Limit]]:
    """Return quota and usage by `uid:NUMBER` or path, from the table that `juicefs quota list` prints; sizes are rounded."""
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) > 5 and re.match(r"uid:|/", cells[0]):
            inodes = [int(re.sub(r"\D", "", cell) or 0) for cell in (cells[4], cells[5])]
            found[cells[0]] = (Limit(parse_size(cells[1]), inodes[0]), Limit(parse_size(cells[2]), inodes[1]))
    return found


def exact_limit(limit: Limit, recorded: Limit | None) -> Limit:
    """Return the recorded quota if the program shows it rounded as `limit`, otherwise `limit`."""
    same = recorded and recorded.inodes == limit.inodes and bool(recorded.space) == bool(limit.space)
    return recorded if same and (not recorded.space or format_size(recorded.space) == format_size(limit.space)) else limit


class Volume:
    """The quotas of the volume, read and set with the program."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Store the settings."""
        self.settings, self.kind = settings, settings["kind"]

    def run(self, command: str, *options: str) -> str:
        """Run the program and return what it printed.

        Raises:
            QuotaError: It failed or timed out.
        """
        lines = (line.partition("=") for line in Path(self.settings["env_file"]).read_text(encoding="utf-8").splitlines())
        secrets = {name: value for name, _, value in lines if value and not name.startswith("#")}
        environment = {"HOME": "/root", "PATH": os.environ.get("PATH", "/usr/bin:/bin"), **secrets}
        argv = [self.settings["program"], "--no-agent", *command.split(), self.settings["meta_url"], *options]
        name = f"juicefs {command}"
        try:
            done = run_command(argv, env=environment, timeout_s=COMMAND_S, max_output_bytes=MAX_BYTES)
        except OSError as error:
            raise QuotaError(f"{name}: {type(error).__name__}. Fix: check that the metadata engine answers on this host") from error
        if done.code:
            reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:300]
            raise QuotaError(f"{name} ended with {done.code}: {reason}. Fix: run it by hand on this host and see its last lines")
        return done.stdout

    def read(self) -> dict[str, tuple[Limit, Limit]]:
        """Return quota and usage of every account that has a quota."""
        recorded = self.recorded()
        return {key: (exact_limit(limit, recorded.get(key)), usage) for key, (limit, usage) in parse_table(self.run("quota list")).items()}

    def recorded(self) -> dict[str, Limit]:
        """Return the exact quotas that were set last; empty if there is no record."""

        def read() -> bytes:
            with open_folder(self.settings["record_folder"], owner=0) as folder:
                return folder.read(RECORD, owner=0, max_bytes=MAX_BYTES)

        try:
            rows = json.loads(within(COMMAND_S, read))
            return {key: Limit(int(row[0]), int(row[1])) for key, row in rows.items()}
        except (FileNotFoundError, ValueError, TypeError, LookupError, AttributeError):
            return {}

    def record(self, limits: dict[str, Limit]) -> None:
        """Write the record of the exact quotas if it differs."""
        if limits == self.recorded():
            return
        content = json.dumps({key: [limit.space, limit.inodes] for key, limit in limits.items()}, indent=1, sort_keys=True)

        def write() -> None:
            with open_folder(self.settings["record_folder"], owner=0) as folder:
                folder.write(RECORD, content.encode(), mode=0o600)

        within(COMMAND_S, write)

    def key_of(self, name: str) -> str:
        """Return the key under which the program lists an account's quota."""
        return f"uid:{pwd.getpwnam(name).pw_uid}" if self.kind == "user" else f"/home/{name}"

    def set(self, key: str, limit: Limit, current: Limit | None) -> None:
        """Set the quota of an account."""
        target = f"--uid={key.removeprefix('uid:')}" if self.kind == "user" else f"--path={key}"
        # To the program 0 means "unchanged", so a limit can only be removed by deleting the whole quota first.
        if current and ((current.space and not limit.space) or (current.inodes and not limit.inodes)):
            self.run("quota delete", target)
        options = [f"--capacity={limit.space >> 30}"] if limit.space else []
        options += [f"--inodes={limit.inodes}"] if limit.inodes else []
        if options:
            self.run("quota set", target, *options)


@dataclass
class Outcome:
    """The accounts whose quota was set or differs, those that exceed it, and the usage of all."""

    changed: list[str]
    over: dict[str, str]
    usage: dict[str, Limit]


def apply(volume: Volume, limits: dict[str, Limit], *, check: bool) -> Outcome:
    """Set the quotas that differ, except for accounts that already exceed theirs."""
    current = volume.read()
    keys = {name: volume.key_of(name) for name in limits}
    differing = {name for name, limit in limits.items() if current.get(keys[name], (Limit(),))[0] != limit}
    unmeasured = sorted(name for name in differing if keys[name] not in current)
    changed = set()
    if unmeasured and not check:
        for name in unmeasured:
            volume.set(keys[name], MEASURING, None)
            changed.add(name)
        current = volume.read()
    usage = {name: current.get(keys[name], (Limit(), Limit()))[1] for name in limits}
    over = {name: f"uses {usage[name]}, more than {limits[name]}" for name in differing if usage[name].exceeds(limits[name])}
    for name in sorted(differing - set(over)):
        changed.add(name)
        if not check:
            volume.set(keys[name], limits[name], current.get(keys[name], (None,))[0])
    if not check:
        volume.record({keys[name]: current[keys[name]][0] if name in over else limit for name, limit in limits.items()})
    return Outcome(sorted(changed), over, usage)


def percent(usage: Limit, limit: Limit) -> float:
    """Return how much of a quota is used, in percent."""
    pairs = [(usage.space, limit.space), (usage.inodes, limit.inodes)]
    return max((100 * used / most for used, most in pairs if most), default=0.0)


def verdicts(host: str, limits: dict[str, Limit], outcome: Outcome) -> list[dict[str, Any]]:
    """Return a verdict for each account whose quota is not set, and one for all others, which names accounts near their quota."""
    base = {"check": "juicefs.quota", "host": host, "source": SOURCE, "started": time.time(), "schema": SCHEMA}
    found = []
    for name, reason in sorted(outcome.over.items()):
        fix = f"raise its quota (juicefs_quotas: {{{name}: {{gib: …, inodes: …}}}}) or let it delete files, and apply the phase storage"
        one = {"device": name, "expected": str(limits[name]), "found": str(outcome.usage[name]), "fix": fix}
        found.append({**base, **one, "verdict": "skipped", "reason": f"{name} has no quota yet: it {reason}"})
    for name in outcome.changed:
        one = {"device": name, "expected": str(limits[name]), "found": "another quota"}
        fix = "primus-bootstrap apply hosts.yaml --phase storage"
        found.append({**base, **one, "verdict": "fail", "reason": f"the quota of {name} is not as configured", "fix": fix})
    used = {name: percent(outcome.usage[name], limits[name]) for name in limits if name not in outcome.over and name not in outcome.changed}
    full = [f"{name} {used[name]:.0f} %" for name in sorted(used, key=lambda name: -used[name]) if used[name] >= NEARLY_FULL_PERCENT]
    summary = f"{len(used)} accounts as configured" + (f"; nearly full: {', '.join(full)}" if full else "")
    return [*found, {**base, "verdict": "pass", "expected": "quotas as configured", "found": summary}]


def main() -> None:
    """Set the quotas, or report them."""
    module = AnsibleModule(
        argument_spec={"settings": {"type": "dict", "required": True}, "report_for": {"type": "str", "default": ""}},
        supports_check_mode=True,
    )
    settings, host = module.params["settings"], module.params["report_for"]
    if not settings["kind"]:
        reason = "this version of JuiceFS has no quotas (1.1 limits homes, 1.4 accounts)"
        record = {"check": "juicefs.quota", "host": host, "verdict": "skipped", "reason": reason, "source": SOURCE, "schema": SCHEMA}
        module.exit_json(changed=False, quotas=[], over={}, stdout=json.dumps({"verdicts": [record]}))
    limits = configured_limits(settings)
    try:
        outcome = apply(Volume(settings), limits, check=module.check_mode)
    except KeyError as error:
        module.fail_json(msg=f"this host has no account {error}. Fix: primus-bootstrap apply hosts.yaml --phase baseline")
    except (QuotaError, OSError) as error:
        module.fail_json(msg=str(error))
    found = verdicts(host, limits, outcome) if host else []
    result = {"quotas": outcome.changed, "over": outcome.over, "stdout": json.dumps({"verdicts": found})}
    failed = [f"{one['check']}: {one['reason']}. Fix: {one['fix']}" for one in found if one["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(changed=bool(outcome.changed) and not host, **result)


if __name__ == "__main__":
    main()
