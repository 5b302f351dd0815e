"""The verb `reset`: its checks before a host is contacted, and its plan."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.command_line import run_primus
from tests.playbooks import run_playbook

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

HOSTS = """\
all:
  vars:
    cluster_name: tiny
    redis_password: "{{ lookup('ansible.builtin.env', 'NOBODY') }}"
  children:
    redis:
      hosts: {one: {ansible_host: 192.0.2.1}}
    juicefs_client:
      hosts: {two: {ansible_host: 192.0.2.2}}
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """Write an inventory with hosts that do not answer."""
    path = tmp_path / "hosts.yaml"
    path.write_text(HOSTS)
    return path


def reset(hosts: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the verb without a terminal."""
    return run_primus("reset", str(hosts), *words)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--confirm", "another"), 2, "the cluster's name is tiny, not another"),
        ((), 3, "add --confirm tiny"),
        (("--confirm", "tiny", "--limit", "nobody"), 2, "the limit matches no host: nobody"),
    ],
)
def test_reset_needs_the_name_of_the_cluster(hosts: Path, words: tuple[str, ...], code: int, message: str) -> None:
    """A wrong name or limit has exit code 2, and no name without a terminal 3, before any state is written."""
    done = reset(hosts, *words)

    assert done.returncode == code
    assert message in done.stderr
    assert not (hosts.parent / ".primus").exists()


def test_the_plan_has_clients_before_servers(hosts: Path) -> None:
    """Without a confirmation the plan is printed first."""
    shown = reset(hosts).stdout

    assert shown.index("guard") < shown.index("storage") < shown.index("baseline")
    assert "tiny: 3 phases on 2 hosts" in shown


def test_a_server_is_not_reset_while_a_client_uses_it(hosts: Path) -> None:
    """A client that failed in an earlier phase is in no later play. Its server is refused, with a fix."""
    local = f"ansible_connection: local, ansible_become: false, ansible_python_interpreter: {sys.executable}"
    hosts.write_text(HOSTS.replace("ansible_host: 192.0.2.1", local))

    done = run_playbook(hosts, "day2/reset/storage.yml", "--limit", "one", "--check", "-e", "confirm=tiny")

    assert done.returncode != 0
    assert "one serves two, where this run did not unmount the shared file system." in " ".join(done.stdout.split())
    assert "TASK [redis : " not in done.stdout
