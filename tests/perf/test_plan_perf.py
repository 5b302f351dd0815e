"""Measures time and memory of planning and following a run for 12,500 hosts. Each size runs in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.perf

SIZES = (1_000, 12_500)
# 12.5 times the hosts may take 20 times the time: linear growth plus noise. Quadratic growth would be 156 times.
MAX_GROWTH = 20.0

_PROGRAM = """
import json, resource, sys, time
from pathlib import Path
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.inventory.load import load_cluster
def mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
started = time.monotonic()
cluster = load_cluster(Path(sys.argv[1]))
loaded, loaded_mib = time.monotonic() - started, mib()
times = []
for _ in range(3):
    started = time.monotonic()
    plan = make_plan(cluster)
    times.append(time.monotonic() - started)
assert len(plan.hosts) == int(sys.argv[2])
started = time.monotonic()
make_plan(cluster, limit="gpu00001:gpu00500")
limited = time.monotonic() - started
print(json.dumps({"load": loaded, "load_mib": loaded_mib, "plan": times[0], "repeated": min(times), "limited": limited, "mib": mib()}))
"""


def _hosts_yaml(count: int) -> str:
    lines = [
        f"        gpu{number:05}: {{ansible_host: 10.{number // 65025}.{number // 255 % 255}.{number % 255}}}\n"
        for number in range(1, count + 1)
    ]
    return "all:\n  vars: {cluster_name: large, ansible_user: root}\n  children:\n    gpu_node:\n      hosts:\n" + "".join(lines)


def _measure(folder: Path, count: int) -> dict[str, float]:
    (folder / "hosts.yaml").write_text(_hosts_yaml(count), encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(folder), str(count)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def test_planning_time_is_linear_in_hosts(tmp_path: Path) -> None:
    """From 1,000 to 12,500 hosts the planning time grows linearly. Prints time and memory."""
    table = {}
    for count in SIZES:
        folder = tmp_path / str(count)
        folder.mkdir()
        table[count] = _measure(folder, count)

    print("\nhosts    load s   plan s  repeated s  limited s  memory of load MiB  with plan MiB")
    for count, row in table.items():
        seconds = f"{row['load']:7.2f}  {row['plan']:7.3f}  {row['repeated']:10.3f}  {row['limited']:9.3f}"
        print(f"{count:6}  {seconds}  {row['load_mib']:18.0f}  {row['mib']:13.0f}")
    small, large = (table[count] for count in SIZES)
    growth = large["plan"] / max(small["plan"], 0.002)
    print(f"plan: {growth:.1f} times the time for {SIZES[1] / SIZES[0]:.1f} times the hosts (at most {MAX_GROWTH})")
    assert growth <= MAX_GROWTH


_FOLLOW = """
import json, resource, sys, time
from pathlib import Path
from primus_bootstrap.engine.events import RunStarted
from primus_bootstrap.engine.journal import Journal
from primus_bootstrap.engine.plan_values import Step
from primus_bootstrap.engine.playbooks import Play
from primus_bootstrap.engine.report import Tally, report_text
from primus_bootstrap.engine.translate import Translator
hosts = tuple(f"gpu{number:05}" for number in range(12_500))
tasks = int(sys.argv[2])
journal, tally = Journal(Path(sys.argv[1])), Tally()
translator = Translator([(1, Step("gpu", "gpu.yml", hosts, (), ""))], [[Play("gpu_node", ())]], 1)
tally.add(RunStarted("r", "apply", "large", 0.0, (("gpu", hosts),)))
def raw():
    yield {"event": "playbook_on_play_start", "event_data": {"uuid": "u"}}
    for task in range(tasks):
        yield {"event": "playbook_on_task_start", "event_data": {"task": f"task {task}"}}
        for number, host in enumerate(hosts):
            result = {"changed": number % 50 == 0, "msg": "a message of no consequence" * 3}
            yield {"event": "runner_on_ok", "event_data": {"host": host, "task": f"task {task}", "res": result, "duration": 0.1}}
    yield {"event": "playbook_on_stats", "event_data": {"failures": {}, "dark": {}}}
started = time.monotonic()
for event in raw():
    for parsed in translator.read(event):
        journal.write(parsed)
        tally.add(parsed)
spent = time.monotonic() - started
mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
assert tally.report().changed == 250 * tasks
size = len(report_text(tally.report())) / 2**20
journal_mib = Path(sys.argv[1]).stat().st_size / 2**20
print(json.dumps({"us": spent / (tasks * len(hosts)) * 1e6, "mib": mib, "journal_mib": journal_mib, "report_mib": size}))
"""
FEW, MANY = 5, 25
MAX_GROWTH_MIB = 8.0


def test_memory_is_independent_of_the_number_of_events(tmp_path: Path) -> None:
    """Five times as many tasks on 12,500 hosts take no more memory. Prints time per event and file sizes."""
    print("\ntasks  events      us/event  memory MiB  journal MiB  report.json MiB")
    rows = {}
    for tasks in (FEW, MANY):
        command = [sys.executable, "-c", _FOLLOW, str(tmp_path / f"{tasks}.jsonl"), str(tasks)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        row = rows[tasks] = json.loads(done.stdout)
        sizes = f"{row['mib']:10.0f}  {row['journal_mib']:11.1f}  {row['report_mib']:15.1f}"
        print(f"{tasks:5}  {tasks * 12_500:6}  {row['us']:12.1f}  {sizes}")

    assert rows[MANY]["mib"] - rows[FEW]["mib"] <= MAX_GROWTH_MIB
