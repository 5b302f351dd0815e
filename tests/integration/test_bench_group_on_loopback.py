"""Two hosts of a bench as two groups of processes on this machine: the module's own start and take, primus-cli, torchrun, gloo."""

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
from primus_bootstrap.bench.fabric.group_runs import GroupRun, read_ran
from primus_bootstrap.bench.quarantine.policy import Step
from primus_bootstrap.bench.results.store import BenchRequest, group_words
from tests.integration.test_launch_direct import needs_torch
from tests.integration.test_role_bench_node_real import lives
from tests.unit.role_module import load_role_module
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = load_role_module("bench", "bench_node")
SMALL = {"collectives": ["all_reduce"], "smallest_kib": 64, "largest_kib": 64, "device": "cpu"}


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Path]]:
    """Return the folders of two hosts, on which no jobs are seen; whatever still runs there is ended afterwards."""
    monkeypatch.setattr(NODE, "running_jobs", list)
    folders = {"a": tmp_path / "a", "b": tmp_path / "b"}
    yield folders
    for folder in folders.values():
        known = NODE.read_json(folder / "process.json")
        if known and NODE._began(known["pid"]) == known["began"]:
            os.kill(known["pid"], signal.SIGTERM)


def launcher(folder: Path) -> str:
    """Return a primus-cli that runs this tree's launcher with this Python."""
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
    """Return the parts of a group of two."""
    step = Step("collectives", timeout_s, over="pairs", repeats=5, inside=1, options={**SMALL, **options})
    asked = BenchRequest("wide", "", program, "", "", force=True)
    shape = {"nnodes": 2, "nproc": 1, "master-addr": "127.0.0.1", "master-port": port}
    return {host: group_words(step, asked, "auto", {**shape, "node-rank": rank}) for rank, host in enumerate("ab")}


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@needs_torch
@pytest.mark.timeout(240)
def test_a_group_of_two_measures_its_bus_bandwidth(hosts: dict[str, Path], tmp_path: Path) -> None:
    """Both start at once and are then waited for; the first host's rank writes the result, which says that it is of two hosts."""
    for host, step in group(launcher(tmp_path), free_port(), 200).items():
        NODE.start(step, 7, hosts[host])
    said = {host: NODE.take(7, folder, stop=False) for host, folder in hosts.items()}
    ran = read_ran(GroupRun(0, ("a", "b")), said)

    assert (ran.answer, ran.reason) == ("pass", ""), said
    (result,) = ran.results()
    assert (result.series.ranks, json.loads(result.series.sizes)["hosts"]) == (2, 2)
    assert result.value
    assert result.value > 0
    assert result.correct is True
    assert result.host.endswith(",+1")
    assert [folder.exists() for folder in hosts.values()] == [False, False]


@needs_torch
@pytest.mark.timeout(240)
def test_a_host_whose_partner_never_comes_is_ended_and_unknown(hosts: dict[str, Path], tmp_path: Path) -> None:
    """Within the limit that the host itself keeps."""
    step = group(launcher(tmp_path), free_port(), 200)["a"]
    NODE.start({**step, "timeout_s": 5}, 7, hosts["a"])
    started = time.monotonic()
    said = {"a": NODE.take(7, hosts["a"], stop=False)}
    ran = read_ran(GroupRun(0, ("a", "b")), said)

    assert said["a"]["step"]["error"] == "no answer within 5 s"
    assert (ran.answer, ran.reason) == ("unknown", "b: it was lost")
    assert time.monotonic() - started < 60


def test_what_was_started_is_ended_with_all_that_it_started(hosts: dict[str, Path], tmp_path: Path) -> None:
    """Where another host of the group did not start, also what has a session of its own; nothing is left, and the next one can start."""
    child = tmp_path / "child"
    words = f"setsid sleep 300 & echo $! > {child}; wait"
    NODE.start({"name": "collectives", "argv": ["sh", "-c", words], "timeout_s": 300, "alone": True}, 7, hosts["a"])
    pid = until(lambda: child.read_text().strip() if child.exists() else "", "what it started")
    alive = lives(pid)
    said = NODE.take(7, hosts["a"], stop=True)

    assert alive
    assert said == {"cut": "it was ended, because another host of its group had not started"}
    assert not lives(pid)
    assert not hosts["a"].exists()


def test_the_part_of_another_round_is_not_taken(hosts: dict[str, Path]) -> None:
    """A result that an earlier bench left is nobody's; what ends by itself keeps exit code and output."""
    NODE.start({"name": "collectives", "argv": ["sh", "-c", "echo hello; exit 5"], "timeout_s": 30, "alone": True}, 7, hosts["a"])
    other = NODE.take(8, hosts["a"], stop=False)
    said = NODE.take(7, hosts["a"], stop=False)

    assert other == {"cut": "nothing of its step is left"}
    assert (said["step"]["code"], said["step"]["stdout"]) == (5, "hello\n")


def test_the_host_stays_locked_until_its_part_has_ended(hosts: dict[str, Path], tmp_path: Path) -> None:
    """No other bench gets the host meanwhile."""
    with NODE.alone(tmp_path / "lock", 0.1) as free:
        NODE.start({"name": "collectives", "argv": ["sleep", "2"], "timeout_s": 30, "alone": True}, 7, hosts["a"])
    with NODE.alone(tmp_path / "lock", 0.1) as during:
        pass
    NODE.take(7, hosts["a"], stop=False)
    with NODE.alone(tmp_path / "lock", 5.0) as after:
        pass

    assert (free, during, after) == (True, False, True)
