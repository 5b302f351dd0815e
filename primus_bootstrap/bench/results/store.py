"""The controller's folder of one cluster's benches: what each host said of itself, what is to be run again, what was decided.

incoming/HOST.json   what a host runs with and what its steps gave, of the bench under way
again.json           the round of measuring again, and what more repeats can decide, by host
decisions.json       who goes, who comes back, who has passed: what the role `bench` carries out
history.jsonl        what every device showed before
breaker.json         stands while nobody may be quarantined
runs/TIME/           the reports of each bench
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.quarantine.gate import Breaker, parse_breaker
from primus_bootstrap.bench.quarantine.policy import SHIPPED, Policy, Step, Tier, load_policy
from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import PlanError, RunError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_AGAIN = Path("again.json")
NOBODY = "none"
DECISIONS_SCHEMA = "primus.bench-decisions/1"
_NO_DEVICE = ("preflight", "storage")
_JOBS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """How hosts are measured: the variables of the role. `trial` are options of the trial training; empty ones leave the policy's."""

    tier: str
    policy_file: str
    program: str
    image: str
    storage_folder: str
    force: bool
    trial: Mapping[str, Any] = field(default_factory=dict)


class BenchStore:
    """The folder."""

    def __init__(self, folder: Path) -> None:
        """Keep where it is; it is made by `begin`."""
        self.folder = folder

    def begin(self, policy_file: str, tier: str, *, look_only: bool = False) -> list[str]:
        """Forget the bench before, and return the tiers from the quickest to the most thorough; `look_only` forgets nothing.

        What was decided before is never carried out again: a run in which every host is lost decides nothing.

        Raises:
            InventoryError: the policy is wrong.
            PlanError: it has no such tier.
            RunError: the folder cannot be used, or what was decided before is damaged.
        """
        tiers = list(read_policy(policy_file).tiers)
        if tier not in (NOBODY, *tiers):
            raise PlanError(f"bench_tier: no such tier: {tier}", fix=f"choose from: {', '.join((NOBODY, *tiers))}")
        if look_only:
            return tiers
        out_of_service = self.previous().get("ours", [])
        try:
            shutil.rmtree(self.folder / "incoming", ignore_errors=True)
            (self.folder / "incoming").mkdir(parents=True, mode=0o700)
            (self.folder / _AGAIN).unlink(missing_ok=True)
        except OSError as error:
            raise _unusable(error, self.folder) from error
        self.decide(ours=out_of_service)
        return tiers

    def keep_seen(self, host: str, seen: Mapping[str, Any]) -> None:
        """Keep what a host runs with."""
        self._write_incoming(host, {"seen": dict(seen), "asked": False, "measured": []})

    def keep_asked(self, host: str) -> None:
        """Keep that steps are on their way to a host: where nothing comes back, it was lost."""
        self._write_incoming(host, {**self.said(host), "asked": True})

    def keep_measured(self, host: str, steps: Sequence[Mapping[str, Any]], *, now: float) -> None:
        """Keep what the steps of one round gave; `now` is by the host's clock."""
        said = self.said(host)
        self._write_incoming(host, {**said, "measured": [*said["measured"], {"now": now, "steps": list(steps)}]})

    def said(self, host: str) -> dict[str, Any]:
        """Return what a host has said so far; nothing where it was lost before it said anything, or its file is damaged."""
        try:
            found = self._load(Path("incoming") / f"{host}.json")
        except ValueError:
            found = None  # the host counts as lost, so what it measured is unknown
        return found or {"seen": {}, "asked": False, "measured": []}

    def steps(self, host: str, asked: BenchRequest, *, round_: int) -> list[dict[str, Any]]:
        """Return what to run on a host in this round; nothing where no bench is due."""
        seen = self.said(host)["seen"]
        if asked.tier == NOBODY or not (asked.force or seen.get("due")):
            return []
        tier = read_policy(asked.policy_file).tiers[asked.tier]
        device = "cuda" if seen.get("gpus") else "auto"
        steps = [step for step in tier.steps if _runs_alone(step, asked)]
        if round_ == 0:
            return [step_words(step, asked, device) for step in steps]
        wanted = (self.read(_AGAIN) or {"hosts": {}})["hosts"].get(host, {}) if self.left_s(host, asked) > 0 else {}
        return [step_words(step, asked, device, wanted[step.run]) for step in steps if step.run in wanted]

    def left_s(self, host: str, asked: BenchRequest) -> float:
        """Return what is left of the tier's time on a host, after what its steps have taken so far."""
        spent = sum(float(step["seconds"]) for each in self.said(host)["measured"] for step in each["steps"])
        return read_policy(asked.policy_file).tiers[asked.tier].budget_s - spent

    def rounds_done(self) -> int:
        """Return how often was measured again."""
        return int((self.read(_AGAIN) or {"round": 0})["round"])

    def ask_again(self, wanted: Mapping[str, Mapping[str, int]]) -> int:
        """Leave how many repeats of which benchmark are wanted of each host; return the number of that round, 0 where nothing is wanted."""
        round_ = self.rounds_done() + bool(wanted)
        self.write(str(_AGAIN), {"round": round_, "hosts": wanted})
        return round_ if wanted else 0

    def write(self, name: str, value: Any) -> None:
        """Replace one of the folder's files at once.

        Raises:
            RunError: it cannot be written.
        """
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(value, indent=1) + "\n")
        except OSError as error:
            raise _unusable(error, path) from error

    def decide(
        self,
        *,
        ours: Sequence[str],
        records: Sequence[Mapping[str, Any]] = (),
        released: Sequence[str] = (),
        passes: Mapping[str, Any] | None = None,
    ) -> None:
        """Leave what the role carries out; `ours` are all hosts that benches have out of service then."""
        decided = {"records": list(records), "released": list(released), "passes": dict(passes or {}), "ours": list(ours)}
        self.write("decisions.json", {"schema": DECISIONS_SCHEMA, **decided})

    def breaker(self) -> Breaker | None:
        """Return the breaker that stands; a record that is damaged is one as well."""
        try:
            found = self._load(Path("breaker.json"))
        except ValueError:
            found = {}
        return None if found is None else parse_breaker(found)

    def previous(self) -> dict[str, Any]:
        """Return what was decided last; nothing before the first bench.

        Raises:
            RunError: It is damaged: which hosts are out of service is then unknown, and not "none".
        """
        return self.read(Path("decisions.json")) or {}

    def read(self, name: Path) -> dict[str, Any] | None:
        """Return the object in one of the folder's files; None if there is no such file.

        Raises:
            RunError: The file cannot be read, or is damaged.
        """
        path = self.folder / name
        try:
            return self._load(name)
        except ValueError as error:
            fix = f"remove {path}, then measure all hosts again: primus-bootstrap bench hosts.yaml"
            raise RunError(f"{path} is damaged: {error}; its content is not guessed", fix=fix) from error

    def _load(self, name: Path) -> dict[str, Any] | None:
        """Return the object in a file, None without a file; ValueError if it is damaged."""
        try:
            found = json.loads((self.folder / name).read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(error, self.folder / name) from error
        if not isinstance(found, dict):
            raise ValueError(f"it holds no JSON object but a {type(found).__name__}")  # noqa: TRY004 - damaged, as for broken JSON
        return found

    def _write_incoming(self, host: str, value: Mapping[str, Any]) -> None:
        self.write(f"incoming/{host}.json", value)


def read_policy(policy_file: str) -> Policy:
    """Return the shipped policy, or the site's own."""
    return load_policy(Path(policy_file) if policy_file else SHIPPED)


def tier_of(policy: Policy, name: str, asked_storage: str) -> Tier:
    """Return a tier without what a host does not measure by itself, and without storage where no folder is stated for it."""
    tier = policy.tiers[name]
    steps = tuple(step for step in tier.steps if step.over == "host" and (step.run != "storage" or asked_storage))
    return Tier(tier.name, tier.meaning, tier.budget_s, steps)


def jobs_in_words(jobs: Sequence[str]) -> str:
    """Return jobs as people read them: the first ones, and how many more."""
    more = f" and {len(jobs) - _JOBS_SHOWN} more" if len(jobs) > _JOBS_SHOWN else ""
    return ", ".join(jobs[:_JOBS_SHOWN]) + more


def step_words(step: Step, asked: BenchRequest, device: str, repeats: int = 0) -> dict[str, Any]:
    """Return one step as the host runs it; `{run}` and `{expected}` stand for its own folder and for the file of what is expected."""
    if step.run == "trial":
        step = replace(step, options={**step.options, **{name: value for name, value in asked.trial.items() if value}})
    words = list(step.arguments())
    if step.run == "preflight":
        argv = [asked.program, "preflight", "--json", "--expect-json", "{expected}", *words]
        return _limited(step, argv)
    if repeats and "--repeats" in words:
        words[words.index("--repeats") + 1] = str(repeats)
    if step.run == "storage":
        words += ["--folder", asked.storage_folder]
    elif step.run not in _NO_DEVICE and "--device" not in words:
        words += ["--device", device]
    runtime = ["container", "--image", asked.image] if asked.image else ["direct"]
    return _limited(step, [asked.program, "--output", "{run}/out", *runtime, "--", "benchmark", step.run, *words])


def group_words(step: Step, asked: BenchRequest, device: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Return one host's part of a step over several hosts; `shape` holds the options of `primus-cli direct` for it."""
    made = step_words(step, asked, device)
    end = made["argv"].index("--")
    made["argv"][end:end] = [f"--{name}={value}" for name, value in shape.items()]
    return made


def _limited(step: Step, argv: list[str]) -> dict[str, Any]:
    """Return a step with its limit: the program ends by itself at its own and says so; this one is for where it does not.

    `alone`: jobs would spoil it, and it them; what a node shows of itself is looked at beside them.
    """
    return {"name": step.run, "argv": argv, "timeout_s": step.timeout_s + 60, "alone": step.run != "preflight"}


def _runs_alone(step: Step, asked: BenchRequest) -> bool:
    return step.over == "host" and (step.run != "storage" or bool(asked.storage_folder))


def _unusable(error: OSError, path: Path) -> RunError:
    return RunError(
        f"cannot use {error.filename or path}: {error.strerror or error}", fix="free space there and make it writable, or set bench_folder"
    )
