"""`probe`, `ssh` and `exec` with a real sshd."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap.cli.fleet_verbs import as_root
from tests.command_line import run_primus
from tests.integration.fleet_rig import LoopbackSshd, needs_sshd
from tests.integration.fleet_rig import sshd as sshd
from tests.integration.sshd_rig import make_key
from tests.unit.engine_rig import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(sshd: LoopbackSshd, tmp_path: Path) -> Cli:
    """Return a function that runs a verb in a folder whose hosts.yaml has `one`, `two` and `three` behind the sshd, and further hosts."""

    def run(*words: str, more: Mapping[str, Mapping[str, object]] | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        hosts = {name: {"ansible_host": f"127.0.0.{number}"} for number, name in enumerate(("one", "two", "three"), start=1)}
        inventory = {
            "all": {
                "vars": {
                    "cluster_name": "verbs",
                    "ansible_user": "root",
                    "ansible_port": sshd.port,
                    "ansible_ssh_private_key_file": sshd.key_file,
                },
                "children": {"gpu_node": {"hosts": {**hosts, **(more or {})}}},
            }
        }
        (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(inventory, sort_keys=False), encoding="utf-8")
        return run_primus(*words, folder=tmp_path, environment=env)

    return run


@needs_sshd
def test_probe_shows_every_host_and_pins_at_first_contact(cli: Cli) -> None:
    """Each host has a row. The first call prints the pinned keys, the second prints none."""
    first, second = cli("probe"), cli("probe")

    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert first.stderr.count("from first contact") == 3
    assert second.stderr == ""
    assert [row.split()[:3] for row in second.stdout.splitlines()[1:4]] == [[name, "ok", "yes"] for name in ("one", "two", "three")]
    assert "3 of 3 hosts answered, 0 GPUs" in second.stdout


@needs_sshd
def test_probe_reports_unknown_hosts_with_reason_and_fix(cli: Cli) -> None:
    """The other hosts are shown, and the exit code is 4."""
    more = {"dead": {"ansible_host": "127.0.0.9", "ansible_port": free_port()}}
    done = cli("probe", "--json", more=more)
    shown = cli("probe", "--limit", "dead", more=more)

    hosts = {host["host"]: host for host in json.loads(done.stdout)["hosts"]}
    assert (done.returncode, shown.returncode) == (4, 4)
    assert [hosts[name]["state"] for name in ("one", "two", "three", "dead")] == ["answered"] * 3 + ["unknown"]
    assert (hosts["dead"]["cause"], hosts["dead"]["facts"]) == ("refused", None)
    assert "dead: unknown: 127.0.0.9 port" in shown.stdout
    assert "fix: start sshd on the host" in shown.stdout
    assert "one " not in shown.stdout


@needs_sshd
def test_a_host_with_another_host_key_in_hosts_yaml_is_not_contacted(cli: Cli, tmp_path: Path) -> None:
    """The host is unknown."""
    make_key(tmp_path / "other")
    key = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    assert cli("probe", "--limit", "one").returncode == 0

    done = cli("probe", "--json", "--limit", "one", more={"one": {"ansible_host": "127.0.0.1", "host_key": key}})

    host = json.loads(done.stdout)["hosts"][0]
    assert (done.returncode, host["state"], host["cause"]) == (4, "unknown", "host_key_changed")


def test_an_invalid_file_or_pattern_is_an_error(cli: Cli) -> None:
    """No host is contacted. The exit code is 2."""
    wrong, none = cli("probe", "nowhere.yaml"), cli("exec", "nothing", "--", "true")

    assert (wrong.returncode, none.returncode) == (2, 2)
    assert "fix:" in wrong.stderr
    assert "no host matches 'nothing'" in none.stderr
    assert "gpu_node" in none.stderr


@needs_sshd
def test_exec_folds_equal_outputs(cli: Cli) -> None:
    """Equal outputs are shown once with their hosts. A failure has exit code 4."""
    done = cli(
        "exec", "all", "--", 'echo ${SSH_CONNECTION% *} | grep -c 127.0.0.2; true; [ "${SSH_CONNECTION#*127.0.0.3 }" = "$SSH_CONNECTION" ]'
    )

    assert done.returncode == 4
    assert "one: exit code 0\n    0\n" in done.stdout
    assert "two: exit code 0\n    1\n" in done.stdout
    assert "three: exit code 1\n    0\n" in done.stdout
    same = cli("exec", "all", "--", "echo", "a  b", "$HOME")
    assert (same.returncode, same.stdout) == (0, "one, two, three (3 hosts): exit code 0\n    a  b $HOME\n")


@needs_sshd
def test_exec_has_a_timeout_and_can_run_as_root(cli: Cli) -> None:
    """A host whose command does not end is unknown, and the exit code is 4. With --sudo the command is root and has no stdin."""
    slow = cli("exec", "one", "--timeout", "2", "--", "sleep 30")
    root = cli("exec", "one", "--sudo", "--", "id -u; cat")

    assert slow.returncode == 4
    assert "one: unknown: running the command took longer than 2 s" in slow.stdout
    assert (root.returncode, root.stdout) == (0, "one: exit code 0\n    0\n")


def test_a_sudo_password_never_reaches_the_command(tmp_path: Path) -> None:
    """The command cannot read it, whether or not sudo asks for it."""
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    asks = tmp_path / "sudo"
    asks.write_text('#!/bin/sh\n[ "$1" = -n ] && exit 1\nread -r word\nshift 3\necho "sudo got $word"\nexec "$@"\n')
    quiet = '#!/bin/sh\n[ "$2" = true ] && exit 0\nshift 3\nexec "$@"\n'
    for name in ("id", "sudo"):
        (tmp_path / name).chmod(0o755)

    def run() -> str:
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run(
            ["sh", "-c", as_root("echo ran; cat")], input="hunter2\n", env=env, capture_output=True, text=True, check=True
        ).stdout

    asked = run()
    asks.write_text(quiet)

    assert (asked, run()) == ("sudo got hunter2\nran\n", "ran\n")


@needs_sshd
def test_ssh_has_the_output_of_openssh(cli: Cli) -> None:
    """The exit code is that of the command. For an unknown host, a similar name is suggested."""
    done, typo = cli("ssh", "two", "--", "echo", "a  b; exit 9"), cli("ssh", "twoo")
    line = cli("ssh", "two", "--", "exit 9")

    assert (done.returncode, done.stdout) == (0, "a  b; exit 9\n")
    assert line.returncode == 9
    assert typo.returncode == 2
    assert "did you mean two?" in typo.stderr
