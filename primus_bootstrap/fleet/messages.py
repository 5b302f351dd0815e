"""What the fan-out is asked and what it answers, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Cause = Literal[
    "timeout", "refused", "unreachable", "name", "auth", "key_file", "host_key_unknown", "host_key_changed",
    "bastion", "protocol", "lost", "no_python", "bad_answer", "ssh_arguments",
]  # fmt: skip

FIXES: Mapping[Cause, str] = {
    "timeout": "check that the host is up and not overloaded, or give it longer with --timeout",
    "refused": "start sshd on the host, or correct ansible_port",
    "unreachable": "check ansible_host, the route to it and firewalls between",
    "name": "set ansible_host to an address, or add the name to DNS or /etc/hosts",
    "auth": "put the public key of this controller into the host's authorized_keys; check ansible_user and ansible_ssh_private_key_file",
    "key_file": "correct ansible_ssh_private_key_file, or load the key into ssh-agent if it has a passphrase",
    "host_key_unknown": "pin its key: `primus-bootstrap probe` does so at the first contact, or set host_key in hosts.yaml",
    "host_key_changed": "if the host was reinstalled, remove its lines from the cluster's known_hosts; if it was not, find out who answers",
    "bastion": "try the bastion by hand with ssh; its host key must be in ~/.ssh/known_hosts",
    "ssh_arguments": "correct ansible_ssh_common_args or ssh_config(5): `ssh -G HOST` shows what ssh makes of them",
    "protocol": "check with `ssh -v` what answers at this address and port",
    "lost": "look at the host's console and sshd's journal",
    "no_python": "install python3 (3.9 or newer) on the host, or name one in ansible_python_interpreter",
    "bad_answer": "run `primus-bootstrap ssh` to the host and look for programs that print at log-in",
}


@dataclass(frozen=True, slots=True)
class Target:
    """One host and how to reach it; passwords travel through a pipe, never in an argument list.

    Empty strings mean "not set": ssh's own configuration then decides. `ssh_arguments` are OpenSSH words, as in
    `ansible_ssh_common_args`. `local` is this machine itself, with no connection at all (`ansible_connection: local`).
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
    """A shell command for every host and what each reads on its standard input.

    `timeout_s` is one host's budget, from its first packet to its last. `known_hosts` is checked strictly, and is the
    only file that is.
    """

    command: str
    stdin: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 15.0
    known_hosts: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """How one host answered; without an `exit_code` it did not, and `cause` and `detail` say why.

    `sent` and `received` are the controller's clock (seconds since the epoch) right before the command was sent and
    right after its last byte came back. `truncated` is true where more output came than is kept.
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
        """Whether the command ran and ended there."""
        return self.exit_code is not None

    @property
    def fix(self) -> str:
        """How to mend what kept the host from answering."""
        return FIXES[self.cause] if self.cause else ""

    @staticmethod
    def parse(data: Mapping[str, Any]) -> Answer:
        """Read one line of the worker."""
        return Answer(**data)
