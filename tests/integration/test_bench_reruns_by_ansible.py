"""Reruns by plain ansible-playbook: the real tasks and plug-ins, with a stand-in for primus-cli.

Both hosts are this machine.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.quarantine.policy import SHIPPED
from primus_bootstrap.bench.results.store import BenchStore
from tests.integration.test_bench_rounds_by_ansible import PREFLIGHT, executable, play
from tests.unit.test_bench_finalize import gemm

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = ("n1", "n2")
STEPS = [
    {"run": "preflight", "timeout_s": 60},
    {"run": "gemm", "timeout_s": 60, "repeats": 8},
    {"run": "trial", "timeout_s": 60, "options": {"steps": 9, "preset": "debug-moe"}, "needed": False},
]
FAILED: dict[str, Any] = {"value": None, "samples": [], "p95": None, "repeats": 0, "correct": None, "error": "out of memory"}
# Keeps each call; gemm fails on n1 each time, on n2 the first time.
PROGRAM = """#!{python}
import json, os, sys
words, log = sys.argv[1:], {log!r}
if words[0] == "preflight":
    print('{preflight}')
    sys.exit(0)
ran = open(log).read().splitlines() if os.path.exists(log) else []
open(log, "a").write(json.dumps(words[words.index("benchmark") + 1:]) + "\\n")
if "gemm" in words:
    folder = words[words.index("--output") + 1]
    os.makedirs(folder)
    open(folder + "/results.jsonl", "w").write(('{good}' if {heals} and ran else '{failed}') + "\\n")
"""
LONG = pytest.mark.long("roles/bench", "primus_bootstrap/bench")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with hosts.yaml, a policy and a play."""
    for host in HOSTS:
        good, failed = (gemm(host, **fields)["results"][0] for fields in ({"time": "2026-11-22T12:30:00+00:00"}, FAILED))
        words = {"python": sys.executable, "preflight": json.dumps(PREFLIGHT), "log": str(tmp_path / f"{host}.log")}
        executable(tmp_path / host / "primus-cli", PROGRAM.format(**words, good=good, failed=failed, heals=host == "n2"))
    policy = yaml.safe_load(SHIPPED.read_text())
    policy["tiers"] = {"alone": {"meaning": "each by itself", "budget_s": 600, "steps": STEPS}}
    (tmp_path / "policy.yml").write_text(yaml.safe_dump(policy))
    variables = {
        "cluster_name": "c",
        "bench_tier": "alone",
        "bench_force": True,
        "bench_policy_file": str(tmp_path / "policy.yml"),
        "bench_folder": str(tmp_path / "bench"),
        "bench_trial_preset": "llama-3.1-8b",
        "bench_trial_tensor": 2,
        "bench_trial_settings": ["train.micro_batch=1", "train.global_batch=8"],
        "primus_cli_program": str(tmp_path) + "/{{ inventory_hostname }}/primus-cli",
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
    }
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump({"gpu_node": {"vars": variables, "hosts": {host: {} for host in HOSTS}}}))
    (tmp_path / "play.yml").write_text("- hosts: gpu_node\n  gather_facts: false\n  roles: [bench]\n")
    return tmp_path


def calls(folder: Path, host: str) -> list[list[str]]:
    """Return the commands that a host ran, and clear its log."""
    log = folder / f"{host}.log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.access("/run", os.W_OK), reason="the lock of a bench lies in /run: run it as root")
@LONG
def test_undecided_benchmarks_run_again_until_the_last_round(folder: Path) -> None:
    """Each host has its own reruns, and the trial training has the options of the inventory."""
    for _ in range(3):
        done = play(folder)
        assert done.returncode == 0, done.stdout + done.stderr
        ran = {host: calls(folder, host) for host in HOSTS}
        verdicts = json.loads((BenchStore(folder / "bench").last_report() / "bench.json").read_text())["verdicts"]
        if not any("jobs run on it" in one.get("reason", "") for one in verdicts):
            break
    else:
        pytest.skip("jobs run on this machine, which a bench does not disturb")
    outcomes = {one["host"]: (one["verdict"], one["reason"]) for one in verdicts if one["check"] == "bench_gemm"}

    assert {host: sum(words[0] == "gemm" for words in ran[host]) for host in HOSTS} == {"n1": 1 + JudgingSettings().max_rounds, "n2": 2}
    assert outcomes["n1"] == ("unknown", "out of memory")
    assert outcomes["n2"][1].startswith("nothing to compare with")
    assert [words[1:9] for words in ran["n1"] if words[0] == "trial"] == [
        ["--preset", "llama-3.1-8b", "--steps", "9", "--tensor", "2", "--settings", "train.micro_batch=1,train.global_batch=8"]
    ]
