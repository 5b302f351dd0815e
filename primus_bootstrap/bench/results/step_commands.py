"""Decide which steps a host runs in a round, and build their command lines. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.quarantine.policy import PREFLIGHT, SHIPPED, Policy, Step, Tier, load_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.bench.results.host_answers import HostAnswers

# The tier that measures nothing.
NO_TIER = "none"
_WITHOUT_DEVICE = (PREFLIGHT, "storage")
# What the results of node checks name as the source of `{expected}`.
_EXPECTED = "bench_expected or gpu_env_count in hosts.yaml"
# The program ends itself after its own time limit; the host kills it this much later.
_KILL_MARGIN_S = 60


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """How hosts are measured: variables of the role. `trial` are options of the trial training; empty ones leave the policy's."""

    tier: str
    policy_file: str
    program: str
    image: str
    storage_folder: str
    force: bool
    trial: Mapping[str, Any] = field(default_factory=dict)


def read_policy(policy_file: str) -> Policy:
    """Return the site's policy, or the shipped one if no file is named."""
    return load_policy(Path(policy_file) if policy_file else SHIPPED)


def host_tier(tier: Tier, *, with_storage: bool) -> Tier:
    """Return a tier with only the steps that a host runs alone; storage is left out unless a folder for it is configured."""
    return replace(tier, steps=tuple(step for step in tier.steps if step.over == "host" and (step.run != "storage" or with_storage)))


def remaining_s(answers: HostAnswers, request: BenchRequest) -> float:
    """Return the part of the tier's time budget that the host has not used (s)."""
    return read_policy(request.policy_file).tiers[request.tier].budget_s - sum(step.seconds for step in answers.steps)


def steps_for_host(answers: HostAnswers, request: BenchRequest, *, round_: int, reruns: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the steps that a host runs in a round; nothing if no bench is due.

    Args:
        round_: 0 for the first round; later rounds run only `reruns`, while the time budget lasts.
        reruns: Repeats by benchmark.
    """
    if answers.facts is None or request.tier == NO_TIER or not (request.force or answers.facts.due):
        return []
    tier = host_tier(read_policy(request.policy_file).tiers[request.tier], with_storage=bool(request.storage_folder))
    device = "cuda" if answers.facts.gpus else "auto"
    if round_ == 0:
        return [step_command(step, request, device) for step in tier.steps]
    if remaining_s(answers, request) <= 0:
        return []
    return [step_command(step, request, device, reruns[step.run]) for step in tier.steps if step.run in reruns]


def step_command(step: Step, request: BenchRequest, device: str, repeats: int = 0) -> dict[str, Any]:
    """Return one step in the form that the host runs. The host replaces `{run}` by its run folder and `{expected}` by a file."""
    if step.run == "trial":
        step = replace(step, options={**step.options, **{name: value for name, value in request.trial.items() if value}})
    words = list(step.arguments())
    if step.run == PREFLIGHT:
        return _limited(step, [request.program, PREFLIGHT, "--json", "--expect-json", "{expected}", "--expect-source", _EXPECTED, *words])
    if repeats and "--repeats" in words:
        words[words.index("--repeats") + 1] = str(repeats)
    if step.run == "storage":
        words += ["--folder", request.storage_folder]
    elif step.run not in _WITHOUT_DEVICE and "--device" not in words:
        words += ["--device", device]
    runtime = ["container", "--image", request.image] if request.image else ["direct"]
    return _limited(step, [request.program, "--output", "{run}/out", *runtime, "--", "benchmark", step.run, *words])


def group_command(step: Step, request: BenchRequest, device: str, launch_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return one host's part of a step over several hosts; `launch_options` are options of `primus-cli direct` for this part."""
    command = step_command(step, request, device)
    end = command["argv"].index("--")
    command["argv"][end:end] = [f"--{name}={value}" for name, value in launch_options.items()]
    return command


def _limited(step: Step, argv: list[str]) -> dict[str, Any]:
    """Add the time limit; `alone` means that the step does not run beside jobs."""
    return {"name": step.run, "argv": argv, "timeout_s": step.timeout_s + _KILL_MARGIN_S, "alone": step.run != PREFLIGHT}
