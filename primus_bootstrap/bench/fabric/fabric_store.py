"""The part of the controller's folder that is about runs over several hosts, and what each host is to run next.

incoming/fabric.json        who takes part, who left, and the round under way
incoming/fabric.jsonl       every run that has ended
incoming/groups/HOST.json   what a host gave in the round under way
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.fabric.group_runs import GroupRun, jobs_beside, parse_ran, read_ran
from primus_bootstrap.bench.fabric.schedule import FabricSchedule, places_of
from primus_bootstrap.bench.results.store import group_words
from primus_bootstrap.core.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.bench.fabric.group_runs import GroupRunResult
    from primus_bootstrap.bench.quarantine.policy import Tier
    from primus_bootstrap.bench.results.store import BenchRequest, BenchStore

# Below the range that Linux gives to outgoing connections; another port each time, so that a stale run disturbs nobody.
_FIRST_PORT, _PORTS = 10000, 20000
# Ansible includes a round in the one before, and its stack ends at some 900 of them.
MOST_ROUNDS = 800
LOST = "it was lost during the runs over several hosts"


class FabricStore:
    """What has run over several hosts in the bench under way."""

    def __init__(self, desk: BenchStore) -> None:
        """Keep whose part it is."""
        self._desk = desk
        self._file, self._ran = Path("incoming/fabric.json"), desk.folder / "incoming" / "fabric.jsonl"

    def state(self) -> dict[str, Any]:
        """Return who takes part and what is under way; nothing before the first round."""
        return self._desk.read(self._file) or {}

    def begin(
        self, hosts: Sequence[str], absent: Mapping[str, Sequence[str]], facts: Mapping[str, Any], models: Mapping[str, str], *, now: float
    ) -> None:
        """Keep who takes part; `absent` says of the others the verdict and why.

        Args:
            hosts: Who takes part.
            absent: Of the others: verdict and why.
            facts: What the inventory states of each host.
            models: What devices each host has.
            now: The controller's clock (epoch, s).
        """
        who = {"hosts": list(hosts), "absent": dict(absent), "facts": dict(facts), "models": dict(models), "left": {}}
        self._write({**who, "begun": now, "number": 0, "runs": [], "given_up": "", "done": False})

    def take_in(self, present: Sequence[str]) -> None:
        """Keep how the runs under way went, and who has left since."""
        state = self.state()
        said = {host: each for host in state["hosts"] if (each := self.said(host)).get("number") == state["number"]}
        ran = [read_ran(GroupRun(int(run["step"]), tuple(run["hosts"])), said) for run in state["runs"]]
        try:
            with self._ran.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(each.to_json()) + "\n" for each in ran)
                file.flush()
                os.fsync(file.fileno())  # fabric.json, which is written next, no longer lists these runs
        except OSError as error:
            raise RunError(f"cannot write {self._ran}: {error.strerror or error}", fix="free space there, or set bench_folder") from error
        gone = {host: LOST for host in state["hosts"] if host not in present}
        unable = {host: str(each["absent"]) for host, each in said.items() if each.get("absent")}
        busy = {host: jobs_beside(each["step"]) for host, each in said.items() if "step" in each and each["step"]["jobs"]}
        self._write({**state, "left": {**gone, **busy, **unable, **state["left"]}, "runs": []})

    def course(self, tier: Tier, *, at_once: int) -> FabricSchedule:
        """Return the course so far."""
        state = self.state()
        return FabricSchedule(
            steps={number: step for number, step in enumerate(tier.steps) if step.over != "host"},
            hosts=tuple(state["hosts"]),
            places=places_of(state["facts"]),
            models=state["models"],
            left=state["left"],
            ran=self.ran(),
            at_once=at_once,
            given_up=state["given_up"],
        )

    def ran(self) -> tuple[GroupRunResult, ...]:
        """Return every run that has ended.

        Raises:
            RunError: The file is damaged; a bench starts a new one.
        """
        if not self._ran.exists():
            return ()
        try:
            return tuple(parse_ran(json.loads(line)) for line in self._ran.read_bytes().splitlines())
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self._ran} is damaged: {error}", fix="run it again: primus-bootstrap bench hosts.yaml") from error

    def keep_with(self, report: Path) -> None:
        """Put the runs beside a bench's reports, where there were any."""
        if self._ran.exists():
            try:
                shutil.copyfile(self._ran, report / self._ran.name)
            except OSError as error:
                raise RunError(f"cannot write {report}: {error.strerror or error}", fix="free space there, or set bench_folder") from error

    def give_up(self, why: str) -> None:
        """Keep why nothing more is run."""
        self._write({**self.state(), "given_up": why})

    def set_round(self, runs: Sequence[GroupRun]) -> None:
        """Keep what is run next; nothing is the end."""
        state = self.state()
        number = state["number"] + 1
        kept = [{"step": run.step, "hosts": list(run.hosts)} for run in runs]
        self._write({**state, "number": number, "runs": kept, "done": not runs})

    def words(self, host: str, asked: BenchRequest, tier: Tier, *, port: int) -> dict[str, Any] | None:
        """Return what a host is to run in this round, as `{"number": …, "hosts": …, "step": …}`; None where it rests."""
        state = self.state()
        for position, run in enumerate(state.get("runs", [])):
            if host in run["hosts"]:
                first = state["facts"][run["hosts"][0]]["address"]
                meeting = port or _FIRST_PORT + zlib.crc32(f"{state['begun']} {state['number']} {position}".encode()) % _PORTS
                gpus = [int(self._desk.said(each)["seen"].get("gpus") or 0) for each in run["hosts"]]
                shape = {
                    "nnodes": len(run["hosts"]),
                    "node-rank": run["hosts"].index(host),
                    "nproc": max(1, min(gpus)),
                    "master-addr": first,
                    "master-port": meeting,
                }
                step = group_words(tier.steps[run["step"]], asked, "cuda" if min(gpus) else "auto", shape)
                return {"number": state["number"], "hosts": run["hosts"], "step": step}
        return None

    def keep(self, host: str, said: Mapping[str, Any]) -> None:
        """Keep what a host gave in the round under way: `started` or `absent` and why; then its `step`, or `cut` and why it gave none."""
        self._desk.write(f"incoming/groups/{host}.json", {"number": self.state()["number"], **said})

    def said(self, host: str) -> dict[str, Any]:
        """Return what a host gave last."""
        return self._desk.read(Path("incoming/groups") / f"{host}.json") or {}

    def started(self, hosts: Sequence[str]) -> bool:
        """Return whether all of a group have started in this round: where one has not, the others would wait for it in vain."""
        number = self.state()["number"]
        return all(said.get("number") == number and said.get("started") for said in map(self.said, hosts))

    def _write(self, state: Mapping[str, Any]) -> None:
        self._desk.write(str(self._file), state)
