# ruff: noqa: INP001 (Ansible loads it by path)
"""Run container programs on a host and collect verdicts; used by the verification modules of `registry_trust`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ansible.module_utils.commands import run_command
from ansible.module_utils.verdict_records import Verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CALL_S = 60.0
REPOSITORY = "primus/verify"
APPLY = "primus-bootstrap apply hosts.yaml --phase registry"
# Messages of containers/image and containerd for each type of refusal. Any other message proves nothing.
REFUSED = {
    "password": re.compile(
        r"unauthorized|authentication required|invalid username/password|status code: 401|\b401\b|authorization failed", re.IGNORECASE
    ),
    "authority": re.compile(
        r"x509:|certificate signed by unknown authority|failed to verify certificate|unable to (?:read|load) CA cert", re.IGNORECASE
    ),
    "policy": re.compile(r"Source image rejected|signature was required|rejected by policy", re.IGNORECASE),
}


def run(words: Sequence[str], stdin: str = "") -> tuple[int | None, str]:
    """Run a program as root's shell would; return its exit code (None: it could not run or timed out) and its output."""
    keep = {
        name: os.environ[name]
        for name in ("PATH", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "no_proxy")
        if name in os.environ
    }
    try:
        done = run_command(words, stdin=stdin, env={**keep, "HOME": "/root"}, timeout_s=CALL_S)
    except OSError as error:
        return None, f"{words[0]}: {type(error).__name__}, at most {CALL_S:.0f} s"
    return done.code, (done.stdout + done.stderr).strip()


def last_line(output: str) -> str:
    """Return the last line of a program's output, without its time stamp."""
    line = (output.splitlines() or ["it printed nothing"])[-1]
    return re.sub(r'^time="[^"]*" level=\w+ msg=', "", line).strip('"')[:400]


class Host:
    """The host and its registry; `verdicts` collects the results."""

    def __init__(self, host: str, address: str, call: Callable[..., tuple[int | None, str]]) -> None:
        """Store names, and the function that runs programs."""
        self.address, self.call = address, call
        self.verdicts = Verdicts("registry_trust", host)

    def add_refusal(self, check: str, kind: str, answer: tuple[int | None, str], fix: str) -> None:
        """Add a verdict on an access that must be refused for this reason; a failure for another reason is `unknown`."""
        status, output = answer
        if status == 0:
            self.verdicts.add(check, "fail", expected="refused", found="accepted", fix=fix)
        elif status is not None and REFUSED[kind].search(output):
            self.verdicts.add(check, "pass", expected="refused", found="refused")
        else:
            reason = f"it failed for another reason: {last_line(output)}"
            self.verdicts.add(check, "unknown", expected="refused", found="", reason=reason, fix=f"check that {self.address} answers")

    def image(self, digest: str) -> str:
        """Return the reference of the test image with this digest."""
        return f"docker://{self.address}/{REPOSITORY}@{digest}"
