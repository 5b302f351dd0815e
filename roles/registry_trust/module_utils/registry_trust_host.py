# ruff: noqa: INP001 (Ansible loads it by path)
"""One host that is asked what it may pull: how programs are run there, and the verdicts that gather."""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCHEMA = "primus.verdict/1"
SOURCE = "roles/registry_trust/meta/argument_specs.yml"
CALL_S = 60.0
REPOSITORY = "primus/verify"
AGAIN = "apply the phase registry again"
# What containers/image and containerd say of each kind of refusal; anything else is no proof of one.
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
    """Run a program as root's own shell would; return its status (None: it did not end) and what it said."""
    keep = {
        name: os.environ[name]
        for name in ("PATH", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "no_proxy")
        if name in os.environ
    }
    try:
        done = subprocess.run(
            list(words), input=stdin, env={**keep, "HOME": "/root"}, capture_output=True, text=True, check=False, timeout=CALL_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{words[0]}: {type(error).__name__}, at most {CALL_S:.0f} s"
    return done.returncode, (done.stdout + done.stderr).strip()


def last(said: str) -> str:
    """Return the last line of what a program said, without its time stamp."""
    line = (said.splitlines() or ["it said nothing"])[-1]
    return re.sub(r'^time="[^"]*" level=\w+ msg=', "", line).strip('"')[:400]


class Host:
    """The host and its registry; verdicts gather in `verdicts`."""

    def __init__(self, host: str, address: str, call: Callable[..., tuple[int | None, str]]) -> None:
        """Keep names, and how programs are run."""
        self.host, self.address, self.call = host, address, call
        self.verdicts: list[dict[str, Any]] = []

    def judge(  # noqa: PLR0913 (the record's fields)
        self, check: str, verdict: str, *, expected: str = "", found: str = "", reason: str = "", fix: str = "", device: str = ""
    ) -> None:
        """Record one verdict."""
        record = {
            "check": f"registry_trust.{check}",
            "host": self.host,
            "device": device,
            "verdict": verdict,
            "expected": expected,
            "found": found,
        }
        bad = {} if verdict == "pass" else {"reason": reason or f"expected {expected}, found {found}", "fix": fix}
        self.verdicts.append({**record, **bad, "source": SOURCE, "started": time.time(), "seconds": 0.0, "schema": SCHEMA})

    def refusal(self, check: str, kind: str, answer: tuple[int | None, str], fix: str) -> None:
        """Judge something that must be refused, and for that reason only: an answer of another kind proves nothing."""
        status, said = answer
        if status == 0:
            self.judge(check, "fail", expected="refused", found="let in", fix=fix)
        elif status is not None and REFUSED[kind].search(said):
            self.judge(check, "pass", expected="refused", found="refused")
        else:
            self.judge(
                check,
                "unknown",
                expected="refused",
                found="",
                reason=f"it failed for another reason: {last(said)}",
                fix=f"see that {self.address} answers",
            )

    def named(self, digest: str) -> str:
        """Return the transport name of an image by digest."""
        return f"docker://{self.address}/{REPOSITORY}@{digest}"
