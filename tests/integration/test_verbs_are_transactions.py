"""Verbs that edit hosts.yaml or its neighbours: they need the cluster's lock, and a killed verb can be repeated."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from primus_bootstrap import content
from primus_bootstrap.cli.main import app
from primus_bootstrap.core.errors import LockedError, PlanError
from primus_bootstrap.engine.lock import cluster_lock, read_holder
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.run import Options, apply_plan
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.lab.hosts_file import ensure_hosts_file
from tests.unit.engine_rig import local_hosts_yaml, write_playbooks
from tests.unit.test_lab_hosts_file import ANY, a_lab
from tests.unit.test_node_verbs import CLUSTER, KEY, node
from tests.unit.test_node_verbs import hosts as hosts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from primus_bootstrap.engine.events import Event

LOCAL_CLUSTER = local_hosts_yaml("g1", "g2")
JOIN = """---
- name: Join
  hosts: gpu_node:&{{ node | default('all') }}
  gather_facts: false
  tasks:
    - name: Answer
      ansible.builtin.ping:
"""
# Runs `node` and kills itself at a call of one function of node_changes: before it, or after it.
KILLED = """
import os, signal, sys
from pathlib import Path
from primus_bootstrap import content
from primus_bootstrap.cli import node_changes
from primus_bootstrap.cli.main import app

playbooks, function, when, *words = sys.argv[1:]
content.playbooks_dir = lambda: Path(playbooks)
real = getattr(node_changes, function)

def dying(*args, **kwargs):
    if when == "after":
        real(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(node_changes, function, dying)
app(["node", *words])
"""


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of a folder, without the files of the lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock", "lock.children"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def held(path: Path) -> AbstractContextManager[object]:
    """Hold the lock of a cluster like another apply."""
    return cluster_lock(path.parent / ".primus" / "small", verb="apply", run="20261111T000000Z-0000")


@pytest.mark.parametrize(
    "words",
    [
        ["add", "HOSTS", "new10", "--groups", "gpu_node", "--host", "127.0.0.10", "--yes"],
        ["add", "HOSTS", "odd9", "--groups", "gpu_node", "--yes"],
        ["remove", "HOSTS", "odd9", "--confirm", "small", "--dead"],
        ["remove", "HOSTS", "left7", "--confirm", "small"],
        ["replace", "HOSTS", "gpu01", "new10", "--host", "127.0.0.10", "--confirm", "small", "--dead"],
        ["replace", "HOSTS", "left7", "odd9", "--confirm", "small"],
        ["replace", "HOSTS", "odd9", "odd9", "--host-key", KEY],
    ],
)
def test_a_node_verb_changes_nothing_while_the_cluster_is_locked(hosts: Path, words: Sequence[str]) -> None:
    """The exit code is 5, with the holder. hosts.yaml, its neighbours and the state are unchanged."""
    (hosts.parent / "host_vars").mkdir()
    (hosts.parent / "host_vars" / "left7.yml").write_text("site_a: 1\n", encoding="utf-8")
    with held(hosts):
        before = contents(hosts.parent)
        with pytest.raises(LockedError, match=r"the cluster is locked by apply of "):
            node(*(str(hosts) if word == "HOSTS" else word for word in words))

        assert contents(hosts.parent) == before


def test_an_invalid_file_is_reported_before_the_lock(hosts: Path) -> None:
    """If hosts.yaml is not valid YAML, the exit code is 2 even while the cluster is locked."""
    with held(hosts):
        hosts.write_text("all: [", encoding="utf-8")
        done = CliRunner().invoke(app, ["node", "add", str(hosts), "new10", "--groups", "gpu_node", "--yes"])

    assert getattr(done.exception, "exit_code", None) == 2
    assert hosts.read_text() == "all: ["


def test_secrets_are_not_generated_while_the_cluster_is_locked(hosts: Path) -> None:
    """The current run would not have them."""
    hosts.write_text(CLUSTER.replace("    munge_key:", "    site_munge_key:"), encoding="utf-8")
    with held(hosts):
        before = contents(hosts.parent)
        done = CliRunner().invoke(app, ["secrets", "init", str(hosts)])

        assert isinstance(done.exception, LockedError)
        assert contents(hosts.parent) == before

    assert CliRunner().invoke(app, ["secrets", "init", str(hosts)]).exit_code == 0
    assert (hosts.parent / "group_vars" / "all" / "vault.yml").exists()
    assert (hosts.parent / ".primus" / "small" / ".gitignore").read_text() == "*\n"


def test_the_hosts_file_of_a_lab_is_not_written_while_the_cluster_is_locked(tmp_path: Path) -> None:
    """Without a run it is written."""
    from primus_bootstrap.cli.lab_verbs import _hold  # noqa: PLC0415

    ensure_hosts_file(a_lab(tmp_path, 3), ANY, _hold)
    more = a_lab(tmp_path, 5)
    before = more.hosts_file.read_bytes()
    with cluster_lock(load_cluster(more.hosts_file).state_dir, verb="apply", run="r"):
        with pytest.raises(LockedError):
            ensure_hosts_file(more, ANY, _hold)
        assert more.hosts_file.read_bytes() == before
        assert ensure_hosts_file(a_lab(tmp_path, 3), ANY, _hold) is False  # nothing to write: no lock is needed

    assert ensure_hosts_file(more, ANY, _hold) is True


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a hosts.yaml with two hosts that are this machine, and playbooks that ping them."""
    playbooks = write_playbooks(tmp_path, {"join": JOIN})
    (playbooks / "day2").mkdir()
    for verb in ("add", "replace"):
        (playbooks / "day2" / f"{verb}_node.yml").write_text("---\n- name: join\n  import_playbook: ../join.yml\n", encoding="utf-8")
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    path = tmp_path / "hosts.yaml"
    path.write_text(LOCAL_CLUSTER, encoding="utf-8")
    return path


def killed(hosts: Path, function: str, when: str, *words: str) -> None:
    """Run a verb of `node` that is killed before or after a call of a function."""
    argv = [sys.executable, "-c", KILLED, str(content.playbooks_dir()), function, when, *words]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=180, check=False, cwd=hosts.parent)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


ADD = ["add", "hosts.yaml", "g3", "--groups", "gpu_node", "--yes"]
REPLACE = ["replace", "hosts.yaml", "g1", "g3", "--confirm", "small", "--dead"]


@pytest.mark.parametrize(
    ("words", "function", "when", "between", "finally_"),
    [
        (ADD, "write_draft", "before", ("g1", "g2"), ("g1", "g2", "g3")),
        (ADD, "write_draft", "after", ("g1", "g2", "g3"), ("g1", "g2", "g3")),
        (ADD, "run_and_report", "after", ("g1", "g2", "g3"), ("g1", "g2", "g3")),
        (REPLACE, "write_draft", "after", ("g1", "g2", "g3"), ("g2", "g3")),
        (REPLACE, "run_and_report", "after", ("g1", "g2", "g3"), ("g2", "g3")),
        (REPLACE, "forget_host_keys", "before", ("g2", "g3"), ("g2", "g3")),
    ],
)
def test_a_killed_verb_is_finished_by_the_same_command(  # noqa: PLR0917 - one parameter per value of a row
    small: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: Sequence[str],
    function: str,
    when: str,
    between: Sequence[str],
    finally_: Sequence[str],
) -> None:
    """After each kill hosts.yaml is complete and the lock is free. The second run finishes the work."""
    killed(small, function, when, *words)

    assert load_cluster(small).groups["gpu_node"] == tuple(between)
    assert read_holder(small.parent / ".primus" / "small") is None

    monkeypatch.chdir(small.parent)
    done = CliRunner().invoke(app, ["node", *words])

    assert done.exit_code == 0, done.output
    assert load_cluster(small).groups["gpu_node"] == tuple(finally_)


def test_the_edit_is_reverted_if_no_host_was_contacted(small: Path) -> None:
    """The state folder is not writable: exit code 3, and hosts.yaml is unchanged."""
    state = small.parent / ".primus" / "small"
    state.mkdir(parents=True)
    (state / "runs").write_text("no folder", encoding="utf-8")

    with pytest.raises(PlanError, match=r"cannot use .*runs"):
        node("add", small, "g3", "--groups", "gpu_node", "--yes")

    assert small.read_text() == LOCAL_CLUSTER


def test_a_verb_holds_the_lock_from_its_first_read_to_its_last_edit(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile another command fails, with the verb that holds the lock."""
    from primus_bootstrap.cli import node_changes, node_verbs  # noqa: PLC0415

    calls: list[tuple[str, str]] = []
    state = small.parent / ".primus" / "small"
    for module, name in ((node_verbs, "load"), (node_changes, "write_draft"), (node_changes, "forget_host_keys")):
        real = getattr(module, name)

        def look(*args: object, _real: object = real, _name: str = name) -> object:
            holder = read_holder(state)
            calls.append((_name, holder.verb if holder else ""))
            return _real(*args)  # type: ignore[operator]

        monkeypatch.setattr(module, name, look)
    monkeypatch.chdir(small.parent)

    assert CliRunner().invoke(app, ["node", *REPLACE]).exit_code == 0
    assert [name for name, _ in calls] == ["load", "write_draft", "write_draft", "forget_host_keys"]
    assert {verb for _, verb in calls} == {"node replace g1 g3"}


EDITED = """---
- name: Edit and fail
  hosts: breaking
  gather_facts: false
  tasks:
    - name: Edit hosts.yaml and a variable file, as another command does
      ansible.builtin.shell: |
        sed -i 's/^        g2:$/        g2:\\n        g9:/' hosts.yaml
        echo 'site_word: new' > group_vars/all.yml
      args: {chdir: "{{ inventory_dir }}"}
      changed_when: true
    - name: Fail, so that the other hosts go on in another process
      ansible.builtin.fail:
        msg: no
"""
LOOKED = """---
- name: Look
  hosts: gpu_node
  gather_facts: false
  tasks:
    - name: Look
      ansible.builtin.assert:
        that: [site_word == 'old', "'g9' not in groups['all']", inventory_file == expected]
        fail_msg: "{{ site_word }} {{ groups['all'] }} {{ inventory_file }}"
    - name: Make a secret where hosts.yaml is
      ansible.builtin.assert:
        that: lookup('ansible.builtin.password', inventory_dir ~ '/secrets/word', length=20) | length == 20
"""


def test_an_edit_does_not_affect_a_running_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files change between two processes of a run: the second process reads the checked files, the next run the new ones."""
    playbooks = write_playbooks(tmp_path, {"edit": EDITED, "look": LOOKED})
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    site = tmp_path / "site"
    (site / "group_vars").mkdir(parents=True)
    (site / "group_vars" / "all.yml").write_text("site_word: old\n", encoding="utf-8")
    path = site / "hosts.yaml"
    path.write_text(LOCAL_CLUSTER + "        p1:\n    breaking: {hosts: {p1: }}\n", encoding="utf-8")
    cluster = load_cluster(path)
    events: list[Event] = []
    options = Options(extra_vars=(f"expected={path}",))

    report = apply_plan(cluster, make_plan(cluster), options, on_event=events.append, cancel=threading.Event())

    assert {host.host: host.result for host in report.hosts} == {"p1": "failed", "g1": "ok", "g2": "ok"}, report
    assert "g9" in load_cluster(path).groups["gpu_node"]
    assert (site / "secrets" / "word").is_file()
    assert list(cluster.state_dir.glob("runs/*/inventory")) == []
