"""Mistakes in a command line: they are exit code 2, name the alternatives, and contact no host."""

from __future__ import annotations

import os
import sys
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from primus_bootstrap.cli import bench_verbs, fleet_verbs, lab_verbs
from primus_bootstrap.cli.main import app, main
from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.verdicts import Verdict
from primus_bootstrap.lab import status as lab_status
from primus_bootstrap.lab.lab_values import Lab, LabError, LabNode
from primus_bootstrap.lab.up import UpReport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.core.verdicts import Outcome

INVENTORY = """\
all:
  vars: {cluster_name: blue}
  hosts: {gpu1: {ansible_host: 10.0.0.1}, gpu2: {ansible_host: 10.0.0.2}}
  children: {gpu_node: {hosts: {gpu1: , gpu2: }}}
"""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hosts.yaml outside the current folder; every contact with a host fails the test."""
    path = tmp_path / "cluster" / "hosts.yaml"
    path.parent.mkdir()
    path.write_text(INVENTORY)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def fail(*_arguments: Any, **_options: Any) -> None:
        pytest.fail("a host was contacted")

    monkeypatch.setattr(bench_verbs, "run_plan", fail)
    monkeypatch.setattr(fleet_verbs, "pin_host_keys", fail)
    return path


MISTAKES = [
    (("plan", "HOSTS", "--phase", "gpuu"), "no such phase: gpuu", "did you mean gpu? choose from: preflight, baseline"),
    (("apply", "HOSTS", "--from", "gpuu"), "no such phase: gpuu", "did you mean gpu?"),
    (("plan", "HOSTS", "--limit", "gpu9"), "the limit matches no host: gpu9", "did you mean gpu"),
    (("apply", "HOSTS", "-e", "slurm_node_timeout=3"), "slurm_node_timeout: neither a role nor", "did you mean slurm_node_timeout_s?"),
    (("init", "new", "--template", "mi300"), "no such template: mi300", "did you mean mi300x?"),
    (("bench", "HOSTS", "--tier", "fastt"), "no such tier: fastt", "choose from: none, checks, quick"),
    (("bench", "HOSTS", "--tier", "quik"), "no such tier: quik", "did you mean quick?"),
    (("ssh", "-i", "HOSTS", "gpu9"), "hosts.yaml has no host gpu9", "choose from: gpu1, gpu2"),
    (("ssh", "HOSTS", "gpu9"), "hosts.yaml has no host gpu9", "choose from: gpu1, gpu2"),
    (("ssh", "HOSTS"), "is the inventory, and HOST is missing", "pass [hosts.yaml] HOST"),
    (("exec", "HOSTS", "nobody", "--", "uptime"), "no host matches 'nobody'", "gpu_node"),
    (("exec", "HOSTS", "gpu_node"), "is the inventory, and PATTERN -- COMMAND is missing", "pass [hosts.yaml] PATTERN -- COMMAND"),
    (("exec", "-i", "HOSTS", "nobody", "uptime"), "no host matches 'nobody'", "gpu_node"),
    (("node", "remove", "HOSTS", "gpu9"), "hosts.yaml has no host gpu9", "choose from: gpu1, gpu2"),
    (("node", "remove", "HOSTS"), "is the inventory, and NAME is missing", "pass [hosts.yaml] NAME"),
    (("report", "HOSTS", "--run", "2026"), "no run starts with 2026", "list the runs: primus-bootstrap runs HOSTS"),
    (("schema", "slurm_node_timeout"), "no role has a variable slurm_node_timeout", "did you mean slurm_node_timeout_s?"),
    (("workload", "status", "HOSTS", "try"), "try is not the id of a job", "primus-bootstrap workload list HOSTS --all"),
    (("workload", "submit", "HOSTS", "debug-dens"), "there is no job debug-dens", "did you mean debug-dense?"),
    (("secrets", "rotate", "HOSTS", "mung"), "cannot rotate mung", "choose from:"),
]


@pytest.mark.parametrize(("words", "what", "fix"), MISTAKES, ids=[" ".join(words) for words, *_ in MISTAKES])
def test_a_mistake_is_exit_code_2_with_a_fix(hosts: Path, words: tuple[str, ...], what: str, fix: str) -> None:
    """The fix names the alternatives, and a command in it has the path that the user gave."""
    result = CliRunner().invoke(app, [str(hosts) if word == "HOSTS" else word for word in words])

    assert isinstance(result.exception, UsageError), result.output
    assert result.exception.exit_code == 2
    assert what in result.exception.what
    assert fix.replace("HOSTS", str(hosts)) in result.exception.fix


@pytest.mark.parametrize("words", [["plan", "--nosuch"], ["nosuch"], ["lab", "up", "--nodes", "many"]])
def test_wrong_syntax_is_exit_code_2_too(words: list[str]) -> None:
    """An unknown option or verb, or a value of the wrong type."""
    assert CliRunner().invoke(app, words).exit_code == 2


def test_a_fix_begins_with_the_program_as_the_user_started_it(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the program in PATH, its path is printed."""
    monkeypatch.setattr(sys, "argv", ["/opt/x/bin/primus-bootstrap"])
    with pytest.raises(SystemExit) as ended:
        main(["report", str(hosts)])

    assert ended.value.code == 3
    assert f"fix: /opt/x/bin/primus-bootstrap apply {hosts}" in capsys.readouterr().err


def test_status_of_an_unknown_lab_shows_no_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lab without containers, hosts.yaml and state is an error."""
    lab = Lab("nolab", tmp_path, IPv4Network("10.187.9.0/24"), (), 0)
    monkeypatch.setattr(lab_status, "inspect_machine", lambda: None)
    monkeypatch.setattr(lab_status, "find_lab", lambda *_: (lab, {}))

    with pytest.raises(LabError) as caught:
        lab_status.status("nolab", tmp_path)

    assert caught.value.what == f"there is no lab 'nolab' in {tmp_path}"
    assert caught.value.fix == f"start it: primus-bootstrap lab up --name nolab --dir {tmp_path}"


@pytest.mark.parametrize("words", [["apply", "--yes"], ["verify"], ["diff"]], ids=" ".join)
@pytest.mark.parametrize("written", [True, False], ids=["secrets init wrote it", "another one"])
def test_a_vault_file_without_its_password_is_an_error(
    hosts: Path, capsys: pytest.CaptureFixture[str], words: list[str], *, written: bool
) -> None:
    """Ansible would fail on every host, with a message that names neither the file nor the option."""
    vault = hosts.parent / "group_vars/all/vault.yml"
    password = hosts.parent / ".primus/blue/vault-password"
    for folder in (vault.parent, password.parent):
        folder.mkdir(parents=True)
    vault.write_text("$ANSIBLE_VAULT;1.1;AES256\n3061\n")
    if written:
        password.write_text("secret\n")
    with pytest.raises(SystemExit) as ended:
        main([words[0], str(hosts), *words[1:]])
    error = " ".join(capsys.readouterr().err.split())

    assert ended.value.code == UsageError.exit_code
    assert "group_vars/all/vault.yml: encrypted with Vault, and no password was given" in error
    assert f"add --vault-password-file {password if written else 'FILE'}, or --ask-vault-pass" in error


@pytest.mark.parametrize("words", [["apply"], ["node", "add"], ["lab", "fault", "kill"], ["node"], []])
def test_a_flag_has_no_type_in_the_help(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no value. Nothing is cut off at 80 columns, and paragraphs are as wide as the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(app, [*words, "--help"]).output

    assert "<bool>" not in text
    assert "…" not in text


def groups(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command that only has verbs below it."""
    for name, below in getattr(command, "commands", {}).items():
        if hasattr(below, "commands"):
            yield (*path, name)
            yield from groups(below, *path, name)


@pytest.mark.parametrize("words", [(), *groups(get_command(app))], ids=" ".join)
def test_a_group_without_a_verb_lists_its_verbs(words: tuple[str, ...]) -> None:
    """As with --help, instead of an error that only names the missing verb."""
    command: Any = get_command(app)
    for word in words:
        command = command.commands[word]
    output = CliRunner().invoke(app, list(words)).output

    assert output.lstrip().startswith("Usage:")
    assert [name for name in command.commands if name not in output] == []


def test_a_paragraph_of_the_help_is_one_line() -> None:
    """The terminal wraps it: line ends of the source are not those of the help."""
    command: Any = get_command(app)
    paragraphs = command.commands["verify"].help.split("\n\n")

    assert len(paragraphs) == 2
    assert not any("\n" in paragraph for paragraph in paragraphs)


@pytest.mark.parametrize("words", [("ssh", "HOSTS", "gpu1", "--", "uptime"), ("ssh", "-i", "HOSTS", "gpu1", "--", "uptime")])
def test_the_inventory_of_ssh_may_be_the_first_word(hosts: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    """As with other verbs."""
    started: list[list[str]] = []
    monkeypatch.setattr(fleet_verbs, "pin_host_keys", lambda *_: ())
    monkeypatch.setattr(fleet_verbs, "key_conflicts", lambda *_: ())
    monkeypatch.setattr(os, "execvp", lambda _program, argv: started.append(argv))
    CliRunner().invoke(app, [str(hosts) if word == "HOSTS" else word for word in words])

    assert [argv[-2:] for argv in started] == [["10.0.0.1", "uptime"]]


def test_ssh_to_a_dead_host_ends_with_a_fix(hosts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the message of ssh itself; for a host of a lab the fix starts it again."""
    started: list[list[str]] = []
    monkeypatch.setattr(fleet_verbs, "pin_host_keys", lambda *_: ())
    monkeypatch.setattr(fleet_verbs, "key_conflicts", lambda *_: ())
    monkeypatch.setattr(os, "execvp", lambda _program, argv: started.append(argv))
    CliRunner().invoke(app, ["ssh", str(hosts), "gpu1"])
    lab = hosts.parent / ".primus" / "blue"
    lab.mkdir(parents=True)
    (lab / "lab.json").write_text("{}")
    CliRunner().invoke(app, ["ssh", str(hosts), "gpu1"])
    fixes = [argv[3].partition("fix: ")[2] for argv in started]

    assert fixes == [
        f"primus-bootstrap status {hosts} --limit gpu1",
        f"primus-bootstrap lab fault heal gpu1 --name blue --dir {hosts.parent}",
    ]


@pytest.mark.parametrize(
    ("outcomes", "line", "code"),
    [
        (["pass"], "ready", 0),
        (["pass", "unknown"], "ready, except that this is unknown: check1", 0),
        (["fail", "unknown"], "not ready: apply the fixes above", 1),
    ],
)
def test_doctor_names_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch, outcomes: list[Outcome], line: str, code: int) -> None:
    """An unknown check is no failure, but the last line has its name."""
    records = [Verdict(f"check{number}", "", word, reason="why", fix="do it") for number, word in enumerate(outcomes)]
    monkeypatch.setattr(fleet_verbs, "check_controller", lambda _folder: records)
    result = CliRunner().invoke(app, ["doctor"])

    assert result.output.splitlines()[-1] == line
    assert result.exit_code == code


@pytest.mark.parametrize(
    ("created", "command"),
    [
        (("node1", "node2"), "apply {file}"),
        (("node2",), "node add {file} node2 --host 10.187.9.12 --like node1"),
        ((), "apply {file}"),
    ],
)
def test_lab_up_names_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, created: tuple[str, ...], command: str) -> None:
    """New hosts that are spares join with `node add`."""
    nodes = tuple(LabNode(f"node{number}", f"c{number}", "bookworm", f"10.187.9.1{number}") for number in (1, 2))
    lab = Lab("lab", tmp_path, IPv4Network("10.187.9.0/24"), nodes, 1)
    report = UpReport(lab, ("changed",), tuple((name, "SHA256:x") for name in created))
    monkeypatch.setattr(lab_verbs, "lab_up", lambda *_arguments, **_hooks: report)
    result = CliRunner().invoke(app, ["lab", "up"])

    assert result.output.splitlines()[-1].endswith(f"Next: primus-bootstrap {command.format(file=lab.hosts_file)}")
