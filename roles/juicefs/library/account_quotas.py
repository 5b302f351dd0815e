#!/usr/bin/python
"""Limit what each account may keep on a JuiceFS volume: the Ansible module `account_quotas`. No collection has one for JuiceFS.

An account that already keeps more than its limit gets none, because its running jobs could no longer write. The result names it.

Arguments:
    wanted: a dict:
        program, env_file, meta_url: how JuiceFS is called.
        record_folder: a folder of the volume that only root can change. It keeps the exact limits, because the program shows rounded ones.
        by: `user` limits an account wherever its files lie (JuiceFS 1.4), `home` its folder home/NAME (1.1), empty = this version cannot.
        accounts: as in users_groups_accounts.
        gib, inodes: the limit of each account; 0 = none.
        exceptions: {NAME: {gib, inodes}} of accounts with another limit.
    verdict_of: print verdicts, for this host, instead of a change. Used in check mode.

Returns `quotas`, what was set, and `over`, who keeps more than the limit.
"""

from __future__ import annotations

import json
import math
import os
import pwd
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.safe_files import open_folder, within

SCHEMA = "primus.verdict/1"
SOURCE = "roles/juicefs/meta/argument_specs.yml"
COMMAND_S = 120.0
# JuiceFS counts what an account keeps once it has a limit. These are larger than any volume, so nobody notices them.
MEASURING_GIB, MEASURING_INODES = 1 << 30, 1 << 50
UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50, "EiB": 60}
NEARLY_FULL_PERCENT = 90
# A list or record that is larger is refused.
MAX_BYTES = 64 << 20
RECORD = "quotas.json"


class QuotaError(Exception):
    """The program did not do what it was asked; the text says what, and what to do."""


@dataclass(frozen=True)
class Limit:
    """A limit in bytes and in files with folders, or what is kept; 0 = no limit."""

    space: int = 0
    inodes: int = 0

    def exceeds(self, limit: Limit) -> bool:
        """Return whether this, as what is kept, is more than a limit."""
        return bool((limit.space and self.space > limit.space) or (limit.inodes and self.inodes > limit.inodes))

    def __str__(self) -> str:
        """Return it as a person reads it."""
        space = f"{self.space / (1 << 30):.4g} GiB" if self.space else "any size"
        return f"{space}, {f'{self.inodes:,}' if self.inodes else 'any number of'} files"


MEASURING = Limit(MEASURING_GIB << 30, MEASURING_INODES)


def limits_wanted(wanted: dict[str, Any]) -> dict[str, Limit]:
    """Return the limit of every account that is not absent."""
    found = {}
    for account in wanted["accounts"]:
        if account.get("state") == "absent":
            continue
        other = wanted["exceptions"].get(account["name"]) or {}
        gib, inodes = (int(other.get(key, wanted[key])) for key in ("gib", "inodes"))
        found[account["name"]] = Limit(gib << 30, inodes)
    return found


def shown(space: int) -> str:
    """Return a size as the program shows it: `humanize.IBytes` of https://github.com/dustin/go-humanize, v1.0.1."""
    unit = max((name for name in UNITS if space >= 1 << UNITS[name]), key=UNITS.__getitem__, default="B")
    value = math.floor(space / (1 << UNITS[unit]) * 10 + 0.5) / 10
    return f"{value:.1f} {unit}" if unit != "B" and value < 10 else f"{value:.0f} {unit}"


def size_in(cell: str) -> int:
    """Return the bytes that the program shows; 0 where it shows no size."""
    match = re.fullmatch(r"([\d.]+) ([KMGTPE]?i?B)", cell)
    return round(float(match[1]) * (1 << UNITS[match[2]])) if match else 0


def rows_in(table: str) -> dict[str, tuple[Limit, Limit]]:
    """Return limit and usage by `uid:NUMBER` or path, from the table that `juicefs quota list` prints; sizes are rounded."""
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) > 5 and re.match(r"uid:|/", cells[0]):
            inodes = [int(re.sub(r"\D", "", cell) or 0) for cell in (cells[4], cells[5])]
            found[cells[0]] = (Limit(size_in(cells[1]), inodes[0]), Limit(size_in(cells[2]), inodes[1]))
    return found


def exact(limit: Limit, noted: Limit | None) -> Limit:
    """Return the limit that was noted where it is the one that the program shows rounded."""
    same = noted and noted.inodes == limit.inodes and bool(noted.space) == bool(limit.space)
    return noted if same and (not noted.space or shown(noted.space) == shown(limit.space)) else limit


class Volume:
    """The volume's limits, read and set through the program."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        """Keep how it is called."""
        self.wanted, self.by = wanted, wanted["by"]

    def run(self, command: str, *options: str) -> str:
        """Run the program and return what it printed.

        Raises:
            QuotaError: It failed, or did not end in time.
        """
        lines = (line.partition("=") for line in Path(self.wanted["env_file"]).read_text(encoding="utf-8").splitlines())
        secrets = {name: value for name, _, value in lines if value and not name.startswith("#")}
        environment = {"HOME": "/root", "PATH": os.environ.get("PATH", "/usr/bin:/bin"), **secrets}
        argv = [self.wanted["program"], "--no-agent", *command.split(), self.wanted["meta_url"], *options]
        said = f"juicefs {command}"
        try:
            done = subprocess.run(argv, env=environment, capture_output=True, text=True, errors="replace", check=False, timeout=COMMAND_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise QuotaError(f"{said}: {type(error).__name__}. Fix: see that the metadata engine answers on this host") from error
        if done.returncode or len(done.stdout) > MAX_BYTES:
            reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:300]
            raise QuotaError(f"{said} ended with {done.returncode}: {reason}. Fix: run it by hand on this host; see its last lines")
        return done.stdout

    def look(self) -> dict[str, tuple[Limit, Limit]]:
        """Return limit and usage of everybody who has a limit."""
        noted = self.noted()
        return {key: (exact(limit, noted.get(key)), kept) for key, (limit, kept) in rows_in(self.run("quota list")).items()}

    def noted(self) -> dict[str, Limit]:
        """Return the exact limits that were set last; nothing where there is no record of them."""

        def read() -> bytes:
            with open_folder(self.wanted["record_folder"], owner=0) as folder:
                return folder.read(RECORD, owner=0, max_bytes=MAX_BYTES)

        try:
            rows = json.loads(within(COMMAND_S, read))
            return {key: Limit(int(row[0]), int(row[1])) for key, row in rows.items()}
        except (FileNotFoundError, ValueError, TypeError, LookupError, AttributeError):
            return {}

    def note(self, limits: dict[str, Limit]) -> None:
        """Keep the exact limits, where others are kept."""
        if limits == self.noted():
            return
        content = json.dumps({key: [limit.space, limit.inodes] for key, limit in limits.items()}, indent=1, sort_keys=True)

        def write() -> None:
            with open_folder(self.wanted["record_folder"], owner=0) as folder:
                folder.write(RECORD, content.encode(), mode=0o600)

        within(COMMAND_S, write)

    def key_of(self, name: str) -> str:
        """Return the word under which the program lists an account's limit."""
        return f"uid:{pwd.getpwnam(name).pw_uid}" if self.by == "user" else f"/home/{name}"

    def set(self, key: str, limit: Limit, there: Limit | None) -> None:
        """Give an account a limit."""
        whose = f"--uid={key.removeprefix('uid:')}" if self.by == "user" else f"--path={key}"
        # The program takes 0 as "as it was", so a limit that goes away takes the other one with it first.
        if there and ((there.space and not limit.space) or (there.inodes and not limit.inodes)):
            self.run("quota delete", whose)
        words = [f"--capacity={limit.space >> 30}"] if limit.space else []
        words += [f"--inodes={limit.inodes}"] if limit.inodes else []
        if words:
            self.run("quota set", whose, *words)


@dataclass
class Outcome:
    """What was set, whose limit differs, and who keeps more than the limit."""

    changed: list[str]
    over: dict[str, str]
    kept: dict[str, Limit]


def apply(volume: Volume, wanted: dict[str, Limit], *, check: bool) -> Outcome:
    """Set the limits that differ, but for accounts that already keep more."""
    seen = volume.look()
    keys = {name: volume.key_of(name) for name in wanted}
    differing = {name for name, limit in wanted.items() if seen.get(keys[name], (Limit(),))[0] != limit}
    unknown = sorted(name for name in differing if keys[name] not in seen)
    changed = set()
    if unknown and not check:
        for name in unknown:
            volume.set(keys[name], MEASURING, None)
            changed.add(name)
        seen = volume.look()
    kept = {name: seen.get(keys[name], (Limit(), Limit()))[1] for name in wanted}
    over = {name: f"keeps {kept[name]}, more than {wanted[name]}" for name in differing if kept[name].exceeds(wanted[name])}
    for name in sorted(differing - set(over)):
        changed.add(name)
        if not check:
            volume.set(keys[name], wanted[name], seen.get(keys[name], (None,))[0])
    if not check:
        volume.note({keys[name]: seen[keys[name]][0] if name in over else limit for name, limit in wanted.items()})
    return Outcome(sorted(changed), over, kept)


def percent(kept: Limit, limit: Limit) -> float:
    """Return how much of a limit is used, in percent."""
    pairs = [(kept.space, limit.space), (kept.inodes, limit.inodes)]
    return max((100 * used / most for used, most in pairs if most), default=0.0)


def verdicts(host: str, wanted: dict[str, Limit], outcome: Outcome) -> list[dict[str, Any]]:
    """Return what `verify` says: a record for each account whose limit is not set or nearly used up, and one for all others."""
    base = {"check": "juicefs.quota", "host": host, "source": SOURCE, "started": time.time(), "schema": SCHEMA}
    found = []
    for name, reason in sorted(outcome.over.items()):
        fix = f"raise its quota (juicefs_quotas: {{{name}: {{gib: …, inodes: …}}}}) or have files deleted, and apply the phase storage"
        one = {"device": name, "expected": str(wanted[name]), "found": str(outcome.kept[name]), "fix": fix}
        found.append({**base, **one, "verdict": "skipped", "reason": f"{name} has no quota yet: it {reason}"})
    for name in outcome.changed:
        one = {"device": name, "expected": str(wanted[name]), "found": "another quota"}
        fix = "primus-bootstrap apply hosts.yaml --phase storage"
        found.append({**base, **one, "verdict": "fail", "reason": f"the quota of {name} is not as stated", "fix": fix})
    used = {name: percent(outcome.kept[name], wanted[name]) for name in wanted if name not in outcome.over and name not in outcome.changed}
    full = [f"{name} {used[name]:.0f} %" for name in sorted(used, key=lambda name: -used[name]) if used[name] >= NEARLY_FULL_PERCENT]
    said = f"{len(used)} accounts as stated" + (f"; nearly full: {', '.join(full)}" if full else "")
    return [*found, {**base, "verdict": "pass", "expected": "quotas as stated", "found": said}]


def main() -> None:
    """Read the arguments, set the limits, and report."""
    module = AnsibleModule(
        argument_spec={"wanted": {"type": "dict", "required": True}, "verdict_of": {"type": "str", "default": ""}}, supports_check_mode=True
    )
    wanted, host = module.params["wanted"], module.params["verdict_of"]
    if not wanted["by"]:
        reason = "this version of JuiceFS has no quotas (1.1 limits homes, 1.4 accounts)"
        record = {"check": "juicefs.quota", "host": host, "verdict": "skipped", "reason": reason, "source": SOURCE, "schema": SCHEMA}
        module.exit_json(changed=False, quotas=[], over={}, stdout=json.dumps({"verdicts": [record]}))
    limits = limits_wanted(wanted)
    try:
        outcome = apply(Volume(wanted), limits, check=module.check_mode)
    except KeyError as error:
        module.fail_json(msg=f"this host does not know the account {error}. Fix: apply the phase baseline to it first.")
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
