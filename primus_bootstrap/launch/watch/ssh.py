"""Send one request over SSH to the program `primus-cli unit` on a host. The broker uses it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.launch.untrusted import parse_json
from primus_bootstrap.launch.watch.broker_client import NoAnswerError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = "primus.unit/1"
CONNECT_S = 5
_SHOWN = 300
_MAX_ANSWER_BYTES = 4 << 20  # an answer has some hundred bytes


@dataclass(frozen=True)
class Ssh:
    """The SSH settings: the account on the nodes, the private key, and the hosts' public keys."""

    account: str
    identity: str
    known_hosts: str


@dataclass(frozen=True)
class Channel:
    """Sends requests over SSH, with strict host keys. A request contains the job's key, so it is sent on standard input."""

    ssh: Ssh

    def ask(self, address: str, port: int, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Return a host's answer.

        Raises:
            NoAnswerError: There is no answer in time, or it is not from this program.
            RefusedError: The program refused the request.
        """
        line = json.dumps({"schema": SCHEMA, **request}).encode() + b"\n"
        try:
            done = run_command(self.command(address, port), stdin=line, timeout_s=timeout_s, max_output_bytes=_MAX_ANSWER_BYTES)
        except TimeoutError as error:
            raise NoAnswerError(f"no answer over SSH within {timeout_s:.0f} s") from error
        except OSError as error:
            raise NoAnswerError(f"ssh: {error}") from error
        try:
            answer = dict(parse_json(done.stdout))
        except (ValueError, TypeError) as error:
            output = " ".join((done.stderr or done.stdout).split())[-_SHOWN:]
            raise NoAnswerError(f"ssh ended with exit code {done.code}: {output or 'no message'}") from error
        if answer.get("ok") is not True:
            raise RefusedError(
                f"{answer.get('error', 'refused without a reason')}; fix: {answer.get('fix', 'read the system log of the host')}"
            )
        return answer

    def command(self, address: str, port: int) -> tuple[str, ...]:
        """Return the command line of ssh; it ignores the user's own configuration."""
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": self.ssh.known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
            "IdentitiesOnly": "yes",
            "IdentityFile": self.ssh.identity,
            "IdentityAgent": "none",
            "ConnectTimeout": str(CONNECT_S),
            "ConnectionAttempts": "1",
            "ServerAliveInterval": "3",
            "ServerAliveCountMax": "2",
            "ControlPath": "none",
            "ForwardAgent": "no",
            "LogLevel": "ERROR",
        }
        words = tuple(f"-o{name}={value}" for name, value in options.items())
        return ("ssh", "-F", "/dev/null", "-T", *words, "-p", str(port), "-l", self.ssh.account, "--", address, "primus-unit")
