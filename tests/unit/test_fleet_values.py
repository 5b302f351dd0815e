"""Test the fan-out's values without a host: routes, pinned keys, clocks and answers."""

from __future__ import annotations

import json
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.fleet import fanout, ssh_config
from primus_bootstrap.fleet.facts import clock_of
from primus_bootstrap.fleet.jobs import read_list, read_show
from primus_bootstrap.fleet.known_hosts import host_key_name, split_known_hosts
from primus_bootstrap.fleet.messages import FIXES, Answer, Cause, Target
from primus_bootstrap.fleet.probe import read_answer
from primus_bootstrap.fleet.ssh_config import parse_route, route_of
from primus_bootstrap.fleet.targets import target_of
from tests.unit.engine_rig import make_cluster

ANSWER = "hostname 10.0.0.5\nport 2200\nuser joe\n"


def test_every_cause_has_a_fix() -> None:
    """Every cause has a fix."""
    assert set(FIXES) == set(get_args(Cause))


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("", ""),
        ("proxycommand none\nproxyjump none\n", ""),
        ("proxycommand nc -X %% %h %p %r %n\n", "nc -X % 10.0.0.5 2200 joe box"),
        ("proxyjump bastion\n", "ssh -o BatchMode=yes -W '[10.0.0.5]:2200' -- ssh://bastion"),
        ("proxyjump a,me@b:2222\n", "ssh -o BatchMode=yes -J a -W '[10.0.0.5]:2200' -- ssh://me@b:2222"),
    ],
)
def test_proxy_command_equals_that_of_ssh(says: str, expected: str) -> None:
    """Tokens of ProxyCommand are replaced as in ssh_config(5); ProxyJump becomes `ssh -W`."""
    assert parse_route(Target("box", "box"), ANSWER + says).proxy_command == expected


def test_configuration_file_is_passed_to_the_jump_host() -> None:
    """`-F FILE` is passed on like by OpenSSH's -J."""
    target = Target("box", "box", ssh_arguments=("-F", "/etc/x", "-J", "bastion"))

    assert "-F /etc/x" in parse_route(target, ANSWER + "proxyjump bastion\n").proxy_command


def test_key_file_of_the_inventory_overrides_the_configuration(tmp_path: Path) -> None:
    """Without a key file in hosts.yaml, the existing ones of the configuration are used."""
    key = tmp_path / "key"
    key.touch()
    says = f"{ANSWER}identityfile {key}\nidentityfile {tmp_path}/missing\nidentitiesonly yes\nhostkeyalias alias\n"

    route, own = (parse_route(Target("box", "box", key_file=name), says) for name in ("", "/other"))

    assert (route.key_files, own.key_files) == ((str(key),), ("/other",))
    assert (route.identities_only, route.key_name, route.user) == (True, "alias", "joe")


def test_ssh_does_not_run_without_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without arguments and a user's configuration, `ssh -G` does not run."""
    monkeypatch.setattr(ssh_config, "configuration_matters", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert route_of(Target("box", "192.0.2.7", 2200, "joe", "~/key")).key_files == (str(Path("~/key").expanduser()),)


def test_known_hosts_are_split_by_name() -> None:
    """A host gets its lines and the hashed ones; comments and markers are ignored."""
    known = split_known_hosts("# x\na,[b]:22022 ssh-rsa K1 c\n|1|s|h ssh-rsa K2\n@revoked a ssh-rsa K3\n\n")

    assert known.lines_for("a") == "a ssh-rsa K1 c\n|1|s|h ssh-rsa K2\n"
    assert known.lines_for(host_key_name("b", 22022)).startswith("[b]:22022 ssh-rsa K1")
    assert known.lines_for("c") == "|1|s|h ssh-rsa K2\n"
    assert host_key_name("a", 22) == "a"


def test_clock_offset_excludes_the_network_delay() -> None:
    """A host 2 s ahead, with 0.1 s delay in each direction and 0.5 s of work, has the offset 2 ± 0.1 s."""
    clock = clock_of({"read_at": 102.1, "done_at": 102.6, "synchronised": None}, sent=100.0, received=100.7)

    assert clock.offset_s == pytest.approx(2.0)
    assert clock.error_s == pytest.approx(0.1)
    assert clock.synchronised is None


@pytest.mark.parametrize(
    ("answer", "cause", "detail"),
    [
        (Answer("h", 127, stderr="no python3 on this host\n"), "no_python", "no python3"),
        (Answer("h", 1, stderr="python 3.6 is older than 3.9\n"), "no_python", "older than 3.9"),
        (Answer("h", 1, stderr="No space left on device\n"), "bad_answer", "No space left"),
        (Answer("h", 0, "hello\n"), "bad_answer", "the output of the probe is not valid"),
        (Answer("h", 0, "[]\n"), "bad_answer", "the output of the probe is not valid"),
        (Answer("h", 0, '{"schema": "primus.probe/9"}\n'), "bad_answer", "primus.probe/9"),
        (Answer("h", 0, '{"schema": "primus.probe/1", "facts": {}}\n'), "bad_answer", "a field is missing or invalid"),
        (Answer("h", cause="timeout", detail="slow"), "timeout", "slow"),
    ],
)
def test_invalid_output_is_unknown(answer: Answer, cause: str, detail: str) -> None:
    """Any other output than that of this version's probe makes the host unknown, with a reason."""
    probe = read_answer(answer)

    assert (probe.facts, probe.cause) == (None, cause)
    assert detail in probe.detail
    assert json.dumps(probe.to_json())


def test_target_has_ansibles_connection_variables(tmp_path: Path) -> None:
    """Connection variables become the target; an automatic interpreter becomes an empty string."""
    variables: dict[str, dict[str, Any]] = {
        "a": {
            "ansible_host": "192.0.2.1", "ansible_port": 2200, "ansible_user": "joe", "ansible_password": "p1", "ansible_become_pass": "p2",
            "ansible_ssh_common_args": "-J 'a b'", "ansible_ssh_extra_args": "-4", "ansible_python_interpreter": "auto_silent",
        },
        "b": {"ansible_connection": "local", "ansible_python_interpreter": "/opt/python3"},
    }  # fmt: skip
    cluster = make_cluster(tmp_path, {"all": ("a", "b")}, variables)

    first, second = (target_of(cluster, host) for host in "ab")

    assert (first.address, first.port, first.user, first.password, first.become_password) == ("192.0.2.1", 2200, "joe", "p1", "p2")
    assert (first.ssh_arguments, first.python, first.local) == (("-J", "a b", "-4"), "", False)
    assert (second.python, second.local) == ("/opt/python3", True)


def test_an_answer_that_was_cut_counts_as_none() -> None:
    """A worker that is killed while it writes leaves a part of a line; the host is lost, and the other answers count."""
    complete = json.dumps(asdict(Answer("host1", exit_code=0)))
    worker: Any = SimpleNamespace(stdin=StringIO(), stdout=StringIO(f"{complete}\n{complete[:20]}"))
    waiting = dict.fromkeys(("host1", "host2"))

    answers = list(fanout._answers(worker, "{}", waiting))

    assert [answer.host for answer in answers] == ["host1"]
    assert list(waiting) == ["host2"]


JOB = {"id": "try-0a1b2c", "name": "try", "user": "ada", "target": "slurm"}


def test_a_job_is_in_the_last_line_of_the_answer() -> None:
    """A login script may print text before it."""
    line = json.dumps({"job": JOB, "state": {"phase": "running"}})
    listed = json.dumps({"jobs": [{"job": JOB, "state": {"hosts": 1}}, {"job": {**JOB, "name": "two"}}]})

    assert read_show(f"welcome\n{line}\n").phase == "running"
    assert [job.name for job in read_list(f"welcome\n{listed}\n")] == ["try", "two"]


@pytest.mark.parametrize("text", ["", "welcome", "5", "[]", "{}", '{"jobs": 3}', '{"jobs": [{}]}', '{"job": {}}', "[" * 100_000])
def test_an_answer_about_jobs_that_cannot_be_read_is_an_error_with_a_fix(text: str) -> None:
    """The message shows the end of the answer."""
    for reader in (read_show, read_list):
        with pytest.raises(RunError) as caught:
            reader(text)

        assert text[-20:] in caught.value.what
        assert "primus-bootstrap apply hosts.yaml" in caught.value.fix
