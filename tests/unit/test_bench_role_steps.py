"""The steps of the role `bench`: what they send to a host, store, and return."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.bench.quarantine.policy import SHIPPED
from primus_bootstrap.bench.results.store import BenchStore
from primus_bootstrap.bench.role_steps import RoleStep
from primus_bootstrap.core.errors import UsageError
from tests.unit.test_bench_fabric_session import FABRIC, PREFLIGHT, PRINT

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_790_000_000.0
FACTS = {"due": "changed", "fingerprint": PRINT, "record": {}, "now": NOW, "gpus": 0}
HOSTS = ("n1", "n2")
INVENTORY = {"n1": {"ip": "10.0.0.1", "rack": "r1"}, "n2": {"ansible_host": "10.0.0.2", "slurm_switch": "leaf1"}}


class Bench:
    """A bench of two hosts; `sent` has what the hosts were told, `reply` is their answer."""

    def __init__(self, folder: Path) -> None:
        """Write a policy whose tier has a step for each host and one over all of them."""
        policy = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
        policy["tiers"] = {"wide": {"meaning": "both", "budget_s": 600, "steps": [PREFLIGHT, FABRIC]}}
        (folder / "policy.yml").write_text(yaml.safe_dump(policy), encoding="utf-8")
        self.store = BenchStore(folder / "bench")
        self.common = {"folder": str(folder / "bench"), "policy_file": str(folder / "policy.yml"), "tier": "wide"}
        self.sent: list[dict[str, Any]] = []
        self.reply: dict[str, Any] = {}

    def run(self, state: str, host: str = "n1", *, check: bool = False, **args: Any) -> dict[str, Any]:
        """Run a step on a host."""

        def on_host(arguments: dict[str, Any]) -> dict[str, Any]:
            self.sent.append(arguments)
            return self.reply

        for_hosts = {"program": "primus-cli", "image": "", "facts": FACTS, "expected": {}, "round": 0, "port": 0}
        for_all = {"hosts": list(HOSTS), "fleet": 2, "limit_percent": 50, "cluster": "c", "present": list(HOSTS), "at_once": 0}
        variables = {"inventory_hostname": host, "hostvars": INVENTORY}
        return RoleStep({**self.common, **for_all, **for_hosts, "state": state, **args}, variables, on_host, check=check).run()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a bench that has begun."""
    found = Bench(tmp_path)
    assert found.run("begin") == {"tiers": ["wide"]}
    return found


def measured(host: str) -> dict[str, Any]:
    """Return what bench_node returns for the step that each host runs."""
    record = {"check": "preflight_gpu_ecc", "host": host, "verdict": "pass", "started": NOW}
    output = {"code": 0, "error": "", "stdout": json.dumps({"verdicts": [record]}), "stderr": "", "results": []}
    return {"steps": [{**output, "name": "preflight", "started": NOW, "seconds": 1.0, "jobs": []}], "now": NOW}


def test_begin_checks_the_tier_and_in_check_mode_writes_nothing(tmp_path: Path) -> None:
    """A tier that the policy does not have is the user's mistake."""
    bench = Bench(tmp_path)

    assert bench.run("begin", check=True) == {"tiers": ["wide"]}
    assert not bench.store.folder.exists()
    with pytest.raises(UsageError):
        bench.run("begin", tier="absent")


def test_a_host_that_needs_no_bench_is_not_contacted(bench: Bench) -> None:
    """Without `force`, only a new or changed host is due."""
    assert bench.run("measure", facts={**FACTS, "due": ""}, force=False) == {"steps": 0}
    assert bench.sent == []


def test_what_a_host_measured_is_stored(bench: Bench) -> None:
    """A module that fails is returned as it is, and the host counts as lost."""
    bench.reply = {"failed": True, "msg": "no primus-cli"}
    assert bench.run("measure") == bench.reply
    assert not bench.store.answers("n1").steps

    bench.reply = measured("n2")
    assert bench.run("measure", host="n2") == {"steps": 1}
    assert [(one["state"], len(one["steps"]), one["left_s"]) for one in bench.sent] == [("measure", 1, 600.0)] * 2
    assert [step.name for step in bench.store.answers("n2").steps] == ["preflight"]


def test_hosts_take_part_in_a_run_over_several(bench: Bench) -> None:
    """Addresses come from the inventory. A host that cannot start ends the run for the others; the last round has none."""
    for host in HOSTS:
        bench.reply = measured(host)
        bench.run("measure", host=host)
    assert bench.run("next")["more"]
    state = bench.store.fabric_state()
    assert state
    assert {host: facts["address"] for host, facts in state.facts.items()} == {"n1": "10.0.0.1", "n2": "10.0.0.2"}

    bench.reply = {"started": True}
    assert bench.run("start") == {"runs": True}
    first = state.facts[state.runs[0].hosts[0]]["address"]
    assert f"--master-addr={first}" in bench.sent[-1]["steps"][0]["argv"]
    bench.reply = {"failed": True, "msg": "jobs run on it"}
    assert bench.run("start", host="n2") == {"runs": True}
    assert bench.run("finish", host="n2") == {"runs": False}
    assert bench.run("finish") == {"runs": True}
    assert bench.sent[-1] == {"state": "finish", "number": state.number, "stop": True}
    assert bench.run("start", host="n3") == {"runs": False}


def test_the_decision_returns_verdicts(bench: Bench) -> None:
    """They are JSON, which the engine reads from the task's message."""
    for host in HOSTS:
        bench.reply = measured(host)
        bench.run("measure", host=host)

    assert bench.run("rerun") == {"round": 0}
    verdicts = json.loads(bench.run("decide")["msg"])["verdicts"]
    assert {one["host"] for one in verdicts} >= set(HOSTS)
