"""The requests and answers of the fan-out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Cause = Literal[
    "timeout", "refused", "unreachable", "name", "auth", "key_file", "host_key_unknown", "host_key_changed",
    "bastion", "protocol", "lost", "no_python", "bad_answer", "ssh_arguments",
]  # fmt: skip

FIXES: Mapping[Cause, str] = {
    "timeout": "check that the host is up and not overloaded, or raise the limit with --timeout",
    "refused": "start sshd on the host, or correct ansible_port",
    "unreachable": "check ansible_host, the route to it, and firewalls in between",
    "name": "set ansible_host to an address, or add the name to DNS or /etc/hosts",
    "auth": "put the public key of this controller into the host's authorized_keys; check ansible_user and ansible_ssh_private_key_file",
    "key_file": "correct ansible_ssh_private_key_file, or load the key into ssh-agent if it has a passphrase",
    "host_key_unknown": "run `primus-bootstrap probe hosts.yaml` to pin its key at the first contact, or set host_key in hosts.yaml",
    "host_key_changed": "if the host was reinstalled, remove its lines from the cluster's known_hosts; otherwise find out why",
    "bastion": "connect to the bastion with ssh; its host key must be in ~/.ssh/known_hosts",
    "ssh_arguments": "correct ansible_ssh_common_args or ssh_config(5): `ssh -G HOST` shows the resulting options",
    "protocol": "run `ssh -v` to see which service answers at this address and port",
    "lost": "check the host's console and sshd's journal",
    "no_python": "install python3 (3.9 or newer) on the host, or set ansible_python_interpreter",
    "bad_answer": "run `primus-bootstrap ssh -i hosts.yaml HOST` and look for login scripts that print text",
}


@dataclass(frozen=True, slots=True)
class Target:
    """The connection settings of one host. Passwords are sent through a pipe, never as arguments.

    Empty strings mean that ssh's configuration decides. `ssh_arguments` are those of `ansible_ssh_common_args`. With `local` the
    command runs on this machine without a connection (`ansible_connection: local`).
    """

    host: str
    address: str
    port: int = 22
    user: str = ""
    key_file: str = ""
    ssh_arguments: tuple[str, ...] = ()
    python: str = ""
    local: bool = False
    password: str = field(default="", repr=False)
    become_password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Task:
    """A shell command for all hosts, and the standard input of each.

    `timeout_s` is the time limit per host. Only the file `known_hosts` is used, and host keys are checked strictly.
    """

    command: str
    stdin: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 15.0
    known_hosts: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one host. Without an `exit_code` there was none, and `cause` and `detail` give the reason.

    `sent` and `received` are the controller's time (seconds since the epoch) before the command was sent and after its last
    output. `truncated` means that a part of the output was dropped.
    """

    host: str
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    cause: Cause | None = None
    detail: str = ""
    sent: float = 0.0
    received: float = 0.0
    seconds: float = 0.0
    truncated: bool = False

    @property
    def answered(self) -> bool:
        """Whether the command ran to its end."""
        return self.exit_code is not None

    @property
    def fix(self) -> str:
        """The fix for the cause, or an empty string."""
        return FIXES[self.cause].replace("HOST", self.host or "HOST") if self.cause else ""
