"""Two hosts of a bench as two process groups on this machine, with the real module, primus-cli, torchrun and gloo."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from primus_bootstrap.bench.fabric.group_runs import evaluate_group_run
from primus_bootstrap.bench.quarantine.policy import Step
from primus_bootstrap.bench.results.group_records import GroupAnswer, GroupRun
from primus_bootstrap.bench.results.step_commands import BenchRequest, group_command
from primus_bootstrap.core.structured import read
from tests.integration.test_launch_direct import needs_torch
from tests.integration.test_role_bench_node_real import is_running
from tests.unit.role_module import load_role_module
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = load_role_module("bench", "bench_node")
SMALL: dict[str, Any] = {"collectives": ["all_reduce"], "smallest_kib": 64, "largest_kib": 64, "device": "cpu"}


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Path]]:
    """Return the folders of two hosts without jobs; end whatever still runs there afterwards."""
    monkeypatch.setattr(NODE, "running_jobs", list)
    folders = {"a": tmp_path / "a", "b": tmp_path / "b"}
    yield folders
    for folder in folders.values():
        known = NODE.read_json(folder / "process.json")
        if known and NODE._start_ticks(known["pid"]) == known["began"]:
            os.kill(known["pid"], signal.SIGTERM)


def launcher(folder: Path) -> str:
    """Return a primus-cli that runs this checkout."""
    path = folder / "primus-cli"
    words = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": content.content_root(),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    export = "".join(f"export {name}={value}\n" for name, value in words.items())
    path.write_text(f'#!/bin/sh\n{export}exec {sys.executable} -m primus_bootstrap.launch "$@"\n')
    path.chmod(0o755)
    return str(path)


def group(program: str, port: int, timeout_s: float, **options: Any) -> dict[str, dict[str, Any]]:
    """Return the parts of a group of two hosts."""
    step = Step("collectives", timeout_s, over="pairs", repeats=5, inside=1, options={**SMALL, **options})
    request = BenchRequest("wide", "", program, "", "", force=True)
    launch_options = {"nnodes": 2, "nproc": 1, "master-addr": "127.0.0.1", "master-port": port}
    return {host: group_command(step, request, "auto", {**launch_options, "node-rank": rank}) for rank, host in enumerate("ab")}


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@needs_torch
@pytest.mark.timeout(240)
def test_a_group_of_two_measures_its_bus_bandwidth(hosts: dict[str, Path], tmp_path: Path) -> None:
    """Both parts start together; rank 0 writes a result for two hosts."""
    for host, step in group(launcher(tmp_path), free_port(), 200).items():
        NODE.start(step, 7, hosts[host])
    answers = {host: NODE.finish(7, folder, stop=False) for host, folder in hosts.items()}
    run = evaluate_group_run(GroupRun(0, ("a", "b")), {host: read(GroupAnswer, answer) for host, answer in answers.items()})

    assert (run.answer, run.reason) == ("pass", ""), answers
    (result,) = run.results()
    assert (result.series.ranks, json.loads(result.series.sizes)["hosts"]) == (2, 2)
    assert result.value
    assert result.value > 0
    assert result.correct is True
    assert result.host.endswith(",+1")
    assert [folder.exists() for folder in hosts.values()] == [False, False]


@needs_torch
@pytest.mark.timeout(240)
def test_a_host_without_its_partner_is_ended_and_unknown(hosts: dict[str, Path], tmp_path: Path) -> None:
    """The host's own time limit ends it."""
    step = group(launcher(tmp_path), free_port(), 200)["a"]
    NODE.start({**step, "timeout_s": 5}, 7, hosts["a"])
    started = time.monotonic()
    answers = {"a": NODE.finish(7, hosts["a"], stop=False)}
    run = evaluate_group_run(GroupRun(0, ("a", "b")), {host: read(GroupAnswer, answer) for host, answer in answers.items()})

    assert answers["a"]["step"]["error"] == "no answer within 5 s"
    assert (run.answer, run.reason) == ("unknown", "b: it was lost")
    assert time.monotonic() - started < 60


def test_a_part_is_ended_with_all_its_processes(hosts: dict[str, Path], tmp_path: Path) -> None:
    """If another host of the group did not start, processes in other sessions are ended too, and the next part can start."""
    child = tmp_path / "child"
    words = f"setsid sleep 300 & echo $! > {child}; wait"
    NODE.start({"name": "collectives", "argv": ["sh", "-c", words], "timeout_s": 300, "alone": True}, 7, hosts["a"])
    pid = until(lambda: child.read_text().strip() if child.exists() else "", "what it started")
    alive = is_running(pid)
    answers = NODE.finish(7, hosts["a"], stop=True)

    assert alive
    assert answers == {"cut": "it was killed, because another host of its group did not start"}
    assert not is_running(pid)
    assert not hosts["a"].exists()


def test_the_part_of_another_round_is_ignored(hosts: dict[str, Path]) -> None:
    """Results of an earlier bench do not count; exit code and output of the own part are kept."""
    NODE.start({"name": "collectives", "argv": ["sh", "-c", "echo hello; exit 5"], "timeout_s": 30, "alone": True}, 7, hosts["a"])
    other = NODE.finish(8, hosts["a"], stop=False)
    answers = NODE.finish(7, hosts["a"], stop=False)

    assert other == {"cut": "its step does not exist"}
    assert (answers["step"]["code"], answers["step"]["stdout"]) == (5, "hello\n")


def test_the_host_stays_locked_until_its_part_has_ended(hosts: dict[str, Path], tmp_path: Path) -> None:
    """No other bench gets the host meanwhile."""
    with NODE.host_lock(tmp_path / "lock", 0.1) as free:
        NODE.start({"name": "collectives", "argv": ["sleep", "2"], "timeout_s": 30, "alone": True}, 7, hosts["a"])
    with NODE.host_lock(tmp_path / "lock", 0.1) as during:
        pass
    NODE.finish(7, hosts["a"], stop=False)
    with NODE.host_lock(tmp_path / "lock", 5.0) as after:
        pass

    assert (free, during, after) == (True, False, True)
