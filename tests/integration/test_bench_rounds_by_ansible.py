"""Rounds of runs over several hosts by plain ansible-playbook: the real tasks and plug-ins, with a stand-in for primus-cli.

All hosts are this machine, each with its own /run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.bench.quarantine.policy import SHIPPED
from primus_bootstrap.bench.results.store import BenchStore
from tests.playbooks import run_playbook
from tests.unit.bench_group_rig import line
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

NODE = load_role_module("bench", "bench_node")
HOSTS = ("n1", "n2", "n3", "n4")
STEPS = [
    {"run": "preflight", "timeout_s": 60},
    {"run": "collectives", "over": "pairs", "inside": 9, "across": 0, "timeout_s": 60, "repeats": 7},
]
PREFLIGHT = {"verdicts": [{"check": "preflight_swap", "host": "", "verdict": "pass"}]}
# Rank 0 writes the result; a bad host's part fails.
PROGRAM = """#!{python}
import os, sys
words = sys.argv[1:]
if words[0] == "preflight":
    print('{preflight}')
    sys.exit(0)
if {bad}:
    sys.exit("a link is down")
if "--node-rank=0" in words:
    folder = words[words.index("--output") + 1]
    os.makedirs(folder)
    open(folder + "/results.jsonl", "w").write('{line}' + "\\n")
"""
LONG = pytest.mark.long("roles/bench", "primus_bootstrap/bench")


def can_mount_own_run() -> bool:
    """Return whether a process may have its own mounts here."""
    try:
        return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False, timeout=120).returncode == 0
    except FileNotFoundError:
        return False


def executable(path: Path, text: str) -> str:
    """Write a program and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with hosts.yaml, a policy and a play; n4's part of every run fails."""
    for host in HOSTS:
        (tmp_path / host / "run").mkdir(parents=True)
        mount = f'mount --bind {tmp_path}/{host}/run /run && exec {sys.executable} "$@"'
        executable(tmp_path / host / "python", f"#!/bin/sh\nexec unshare -m sh -c '{mount}' python \"$@\"\n")
        text = PROGRAM.format(python=sys.executable, preflight=json.dumps(PREFLIGHT), bad=host == "n4", line=line(300, 2))
        executable(tmp_path / host / "primus-cli", text)
    policy = yaml.safe_load(SHIPPED.read_text())
    policy["tiers"] = {"wide": {"meaning": "hosts together", "budget_s": 600, "steps": STEPS}}
    (tmp_path / "policy.yml").write_text(yaml.safe_dump(policy))
    variables = {
        "cluster_name": "c",
        "bench_tier": "wide",
        "bench_force": True,
        "bench_parallel_hosts": 2,
        "bench_policy_file": str(tmp_path / "policy.yml"),
        "bench_folder": str(tmp_path / "bench"),
        "primus_cli_program": str(tmp_path) + "/{{ inventory_hostname }}/primus-cli",
        "ansible_connection": "local",
        "ansible_python_interpreter": str(tmp_path) + "/{{ inventory_hostname }}/python",
    }
    hosts = {"all": {"vars": variables, "children": {"gpu_node": {"hosts": {host: {"rack": "r1"} for host in HOSTS}}}}}
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(hosts))
    (tmp_path / "play.yml").write_text("- hosts: gpu_node\n  gather_facts: false\n  roles: [bench]\n")
    return tmp_path


def play(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the role when no job runs on this machine; other tests may start some."""
    end = time.monotonic() + 120
    while NODE.running_jobs() and time.monotonic() < end:
        time.sleep(1)
    return run_playbook(folder / "hosts.yaml", folder / "play.yml", environment={"PYTHONPATH": str(content.content_root())})


@pytest.mark.timeout(900)
@pytest.mark.skipif(not can_mount_own_run(), reason="no process may have mounts of its own here: run it as root")
@LONG
def test_all_rounds_run_and_the_bad_host_fails(folder: Path) -> None:
    """Six rounds of one pair, then a second run of the three that failed. The report has all runs, and nothing is left on the hosts."""
    for _ in range(3):
        done = play(folder)
        assert done.returncode == 0, done.stdout + done.stderr
        report = BenchStore(folder / "bench").last_report()
        verdicts: list[dict[str, Any]] = json.loads((report / "bench.json").read_text())["verdicts"]
        if not any("jobs run on it" in one.get("reason", "") for one in verdicts):
            break
    else:
        pytest.skip("jobs run on this machine, which a bench does not disturb")
    ran = [json.loads(line) for line in (report / "fabric.jsonl").read_text().splitlines()]

    assert [f"Start collectives on 1 pair, round {number}]" in done.stdout for number in range(1, 11)] == [True] * 9 + [False]
    assert len(ran) == 9
    assert {tuple(sorted(one["hosts"])): one["answer"] for one in ran} == {
        (one, other): "fail" if "n4" in (one, other) else "pass" for one in HOSTS for other in HOSTS if one < other
    }
    assert {one["host"]: one["verdict"] for one in verdicts if one["check"] == "fabric_pairs"} == {
        **dict.fromkeys(("n1", "n2", "n3"), "unknown"),
        "n4": "fail",
    }
    assert all("a link is down" in one["reason"] for one in verdicts if one["check"] == "fabric_pairs" and one["host"] == "n4")
    assert not list(folder.glob("n*/run/primus-bench"))
