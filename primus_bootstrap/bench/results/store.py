"""The store of a cluster's benches: a folder on the controller.

incoming/HOST.json          facts of a host and the output of its steps, for the current bench
incoming/fabric.json        state of the runs over several hosts
incoming/fabric.jsonl       finished runs over several hosts
incoming/groups/HOST.json   a host's answer in the current round of these runs
reruns.json                 the round of reruns, with repeats by host and benchmark
decisions.json              hosts to quarantine and to release, and hosts that passed; the role `bench` carries it out
history.jsonl               results of earlier benches by device
breaker.json                exists while the breaker is open
runs/TIME/                  report files of a finished bench
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.quarantine.decisions import Breaker, parse_breaker
from primus_bootstrap.bench.results.group_records import FabricState, GroupAnswer, GroupRunResult
from primus_bootstrap.bench.results.history import History, append_history, read_history
from primus_bootstrap.bench.results.host_answers import HostAnswers, parse_answers
from primus_bootstrap.bench.results.step_commands import NO_TIER, read_policy
from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import PlanError, RunError, UsageError
from primus_bootstrap.core.structured import InvalidDataError, read
from primus_bootstrap.core.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from primus_bootstrap.bench.results.history import DeviceRecord

DECISIONS_SCHEMA = "primus.bench-decisions/1"
_RERUNS = "reruns.json"
_DECISIONS = "decisions.json"
_FABRIC_STATE = "incoming/fabric.json"
_NO_ANSWERS: Mapping[str, Any] = {"facts": None, "requested": False, "rounds": []}


def check_tier(policy_file: str, tier: str) -> list[str]:
    """Return the names of all tiers, from the shortest to the longest.

    Raises:
        InventoryError: The policy is invalid.
        UsageError: The policy has no such tier.
    """
    tiers = list(read_policy(policy_file).tiers)
    if tier not in (NO_TIER, *tiers):
        near = nearest(tier, tiers)
        hint = f"did you mean {near}? " if near else ""
        raise UsageError(f"no such tier: {tier}", fix=f"{hint}choose from: {', '.join((NO_TIER, *tiers))}")
    return tiers


class BenchStore:
    """The folder of a cluster's benches. Every method that reads or writes raises RunError if the folder cannot be used."""

    def __init__(self, folder: Path) -> None:
        """Set the folder; `begin` creates it."""
        self.folder = folder
        self._group_runs = folder / "incoming" / "fabric.jsonl"

    def begin(self, policy_file: str, tier: str, *, read_only: bool = False) -> list[str]:
        """Start a bench: remove the answers of the one before, and its decisions, so that they are not carried out twice.

        Args:
            policy_file: The site's policy; empty for the shipped one.
            read_only: Only check the arguments, and change nothing.

        Returns:
            The names of the tiers, from the shortest to the longest.

        Raises:
            InventoryError: The policy is invalid.
            UsageError: The policy has no such tier.
            RunError: The folder cannot be used, or the earlier decisions are damaged.
        """
        tiers = check_tier(policy_file, tier)
        if read_only:
            return tiers
        quarantined = self.quarantined()
        try:
            shutil.rmtree(self.folder / "incoming", ignore_errors=True)
            (self.folder / "incoming").mkdir(parents=True, mode=0o700)
            (self.folder / _RERUNS).unlink(missing_ok=True)
        except OSError as error:
            raise _unusable(error, self.folder) from error
        self.save_decisions(quarantined=quarantined)
        return tiers

    def save_facts(self, host: str, facts: Mapping[str, Any]) -> None:
        """Save the facts of a host."""
        self._write(_host_file(host), {**_NO_ANSWERS, "facts": dict(facts)})

    def mark_requested(self, host: str) -> None:
        """Note that steps are sent to a host. If it never answers, it counts as lost."""
        self._write(_host_file(host), {**self._raw_answers(host), "requested": True})

    def add_round(self, host: str, steps: Sequence[Mapping[str, Any]], *, now: float) -> None:
        """Add the output of a round of steps; `now` is the host's clock (seconds since the epoch)."""
        answers = self._raw_answers(host)
        self._write(_host_file(host), {**answers, "rounds": [*answers["rounds"], {"now": now, "steps": list(steps)}]})

    def answers(self, host: str) -> HostAnswers:
        """Return what a host reported so far. A damaged file counts as no answer, so the host is lost and not passed."""
        try:
            return parse_answers(host, self._raw_answers(host))
        except (TypeError, AttributeError, InvalidDataError):
            return HostAnswers()

    def _raw_answers(self, host: str) -> Mapping[str, Any]:
        try:
            return {**_NO_ANSWERS, **(self._load(_host_file(host)) or {})}
        except ValueError:
            return _NO_ANSWERS

    def rounds_done(self) -> int:
        """Return the number of rounds of reruns."""
        return int((self.read(_RERUNS) or {"round": 0})["round"])

    def reruns(self, host: str) -> dict[str, int]:
        """Return the repeats by benchmark that a host runs in the current round of reruns."""
        return dict((self.read(_RERUNS) or {"hosts": {}})["hosts"].get(host, {}))

    def save_reruns(self, reruns: Mapping[str, Mapping[str, int]]) -> int:
        """Save the repeats by host and benchmark; return the number of this round, 0 if there are no reruns."""
        round_ = self.rounds_done() + bool(reruns)
        self._write(_RERUNS, {"round": round_, "hosts": reruns})
        return round_ if reruns else 0

    def save_decisions(
        self,
        *,
        quarantined: Sequence[str],
        records: Sequence[Mapping[str, Any]] = (),
        released: Sequence[str] = (),
        passes: Mapping[str, Any] | None = None,
    ) -> None:
        """Save what the role carries out.

        Args:
            quarantined: All hosts that benches have in quarantine afterwards.
            records: New quarantine records.
            released: Hosts to release.
            passes: Pass notes by host.
        """
        decisions = {"records": list(records), "released": list(released), "passes": dict(passes or {}), "ours": list(quarantined)}
        self._write(_DECISIONS, {"schema": DECISIONS_SCHEMA, **decisions})

    def quarantined(self) -> list[str]:
        """Return the hosts that earlier benches have in quarantine.

        Raises:
            RunError: decisions.json is damaged, so these hosts are unknown.
        """
        return list((self.read(_DECISIONS) or {}).get("ours", []))

    def breaker(self) -> Breaker | None:
        """Return the open breaker; a damaged record counts as open."""
        try:
            data = self._load("breaker.json")
        except ValueError:
            data = {}
        return None if data is None else parse_breaker(data)

    def save_breaker(self, breaker: Breaker) -> None:
        """Open the breaker."""
        self._write("breaker.json", breaker.to_json())

    def history(self) -> History:
        """Return the results of earlier benches."""
        return read_history(self.folder / "history.jsonl")

    def append_history(self, records: Sequence[DeviceRecord]) -> None:
        """Append the results of this bench."""
        append_history(self.folder / "history.jsonl", records)

    def fabric_state(self) -> FabricState | None:
        """Return the state of the runs over several hosts; None before the first round."""
        data = self.read(_FABRIC_STATE)
        return read(FabricState, data, origin=_FABRIC_STATE) if data else None

    def save_fabric_state(self, state: FabricState) -> None:
        """Save the state of the runs over several hosts."""
        self._write(_FABRIC_STATE, asdict(state))

    def group_answer(self, host: str) -> GroupAnswer:
        """Return a host's last answer to a group run; an empty one if there is none."""
        return read(GroupAnswer, self.read(f"incoming/groups/{host}.json") or {}, ignore_unknown=True)

    def save_group_answer(self, host: str, answer: Mapping[str, Any]) -> None:
        """Save a host's answer in the current round: `started`, or `absent` with the reason; later `step`, or `cut` with the reason."""
        state = self.fabric_state()
        self._write(f"incoming/groups/{host}.json", {"number": state.number if state else 0, **answer})

    def group_runs(self) -> tuple[GroupRunResult, ...]:
        """Return the finished runs over several hosts."""
        if not self._group_runs.exists():
            return ()
        try:
            return tuple(read(GroupRunResult, json.loads(line)) for line in self._group_runs.read_bytes().splitlines())
        except (ValueError, InvalidDataError) as error:
            fix = "start a new bench: primus-bootstrap bench hosts.yaml"
            raise RunError(f"{self._group_runs} is damaged: {error}", fix=fix) from error

    def append_group_runs(self, runs: Iterable[GroupRunResult]) -> None:
        """Append finished runs, on disk before this returns: the state that is saved next no longer contains them."""
        try:
            with self._group_runs.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(run)) + "\n" for run in runs)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unusable(error, self._group_runs) from error

    def save_report(self, files: Mapping[str, str], *, now: float) -> Path:
        """Write the report files of a bench and return their folder. The last file must be bench.json: it marks a finished bench."""
        folder = self.folder / "runs" / datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        try:
            folder.mkdir(parents=True, mode=0o700)
            for name, text in files.items():
                write_atomic(folder / name, text)
            if self._group_runs.exists():
                shutil.copyfile(self._group_runs, folder / self._group_runs.name)
        except OSError as error:
            raise _unusable(error, folder) from error
        return folder

    def reports(self) -> tuple[Path, ...]:
        """Return the report folders of all finished benches, newest first."""
        return tuple(sorted((path.parent for path in (self.folder / "runs").glob("*/bench.json")), reverse=True))

    def last_report(self) -> Path:
        """Return the report folder of the last bench.

        Raises:
            PlanError: There is none.
        """
        reports = self.reports()
        if not reports:
            raise PlanError(f"no finished bench in {self.folder / 'runs'}", fix="primus-bootstrap bench hosts.yaml")
        return reports[0]

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object in a file; None if there is no such file.

        Raises:
            RunError: The file cannot be read, or is damaged.
        """
        path = self.folder / name
        try:
            return self._load(name)
        except ValueError as error:
            fix = f"remove {path}, then measure all hosts again: primus-bootstrap bench hosts.yaml"
            raise RunError(f"{path} is damaged: {error}", fix=fix) from error

    def _load(self, name: str) -> dict[str, Any] | None:
        """Return the object in a file; None without a file. Raises ValueError if the file is damaged."""
        try:
            data = json.loads((self.folder / name).read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(error, self.folder / name) from error
        if not isinstance(data, dict):
            raise ValueError(f"expected a JSON object, found {type(data).__name__}")  # noqa: TRY004 - damaged, as for broken JSON
        return data

    def _write(self, name: str, value: Any) -> None:
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(value, indent=1) + "\n")
        except OSError as error:
            raise _unusable(error, path) from error


def _host_file(host: str) -> str:
    return f"incoming/{host}.json"


def _unusable(error: OSError, path: Path) -> RunError:
    what = f"cannot use {error.filename or path}: {error.strerror or error}"
    return RunError(what, fix="free space there and make it writable, or set bench_folder to another folder")
