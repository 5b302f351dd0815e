"""Prove that what host_env wrote has its effect: a login shell and a systemd service see the values, and the facts can be read.

    python3 -m primus_bootstrap.launch.detect.verify_env [--host NAME] [--json]

Changes nothing. Exit codes: 0 nothing failed, 4 something did.
"""

from __future__ import annotations

import argparse
import grp
import json
import socket
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.verdicts import FAIL, PASS, SKIPPED, UNKNOWN, Verdict
from primus_bootstrap.launch.detect.render import envfiles, facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NOT_MET = 4
_PATIENCE_S = 30
_APPLY = "apply the phase gpu again"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="primus-cli verify-env", description="Check that this host's GPU environment has its effect.")
    parser.add_argument("--host", default=socket.gethostname(), help="name in the verdict records (default: this host's own)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    started = time.time()
    found = verify(Path("/"))
    seconds = round(time.time() - started, 3)
    records = [replace(record, host=options.host, started=started, seconds=seconds) for record in found]
    if options.json:
        sys.stdout.write(json.dumps({"verdicts": [record.to_json() for record in records]}) + "\n")
    else:
        sys.stdout.write("".join(f"{record.verdict}: {record.check}: {record.found} {record.reason}".rstrip() + "\n" for record in records))
    return _NOT_MET if any(record.verdict == FAIL for record in records) else 0


def verify(root: Path) -> tuple[Verdict, ...]:
    """Return one record for the facts, one for each kind of program that should see the variables, one for each kind of device."""
    try:
        document = json.loads((root / facts.FACTS).read_text("utf-8"))
        expected = {item["variable"]: item["value"] for item in document["profile"]["variables"]}
        files = [str(path) for path in sorted((root / envfiles.env_path("base")).parent.glob("*.env"))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return (Verdict("gpu_facts", "", FAIL, reason=f"/{facts.FACTS} cannot be read: {error}", fix=_APPLY),)
    good = document.get("schema") == facts.SCHEMA
    login = _seen(["/usr/bin/env", "-i", "HOME=/", "/bin/sh", "-l", "-c", "env -0"])
    unit = [f"--property=EnvironmentFile={file}" for file in files]
    service = _seen(["systemd-run", "--quiet", "--wait", "--pipe", "--collect", *unit, "/usr/bin/env", "-0"])
    return (
        Verdict(
            "gpu_facts", "", PASS if good else FAIL, expected=facts.SCHEMA, found=str(document.get("schema")), fix="" if good else _APPLY
        ),
        _compare("gpu_env_login", expected, login),
        _compare("gpu_env_service", expected, service),
        *_devices(root),
    )


def _compare(check: str, expected: Mapping[str, str], seen: Mapping[str, str] | str) -> Verdict:
    """Judge what a program saw; a text is the reason why nobody could look."""
    if isinstance(seen, str):
        return Verdict(
            check, "", UNKNOWN, expected=f"{len(expected)} variables", reason=seen, fix=f"look at the command's error, then {_APPLY}"
        )
    wrong = [name for name, value in sorted(expected.items()) if seen.get(name) != value]
    found = f"{len(expected) - len(wrong)} of {len(expected)} variables"
    if not wrong:
        return Verdict(check, "", PASS, expected=f"{len(expected)} variables", found=found)
    detail = ", ".join(f"{name} is {seen.get(name, 'not set')!r} instead of {expected[name]!r}" for name in wrong)
    fix = f"look for another file that sets it (/etc/environment, /etc/profile.d), then {_APPLY}"
    return Verdict(check, "", FAIL, expected=f"{len(expected)} variables", found=found, reason=detail, fix=fix)


def _seen(command: Sequence[str]) -> Mapping[str, str] | str:
    """Return the environment that a command prints with `env -0`, or why there is none."""
    try:
        done = run_command(command, timeout_s=_PATIENCE_S)
    except OSError as error:
        return f"{command[0]}: {error}"
    if done.code:
        return f"{command[0]} ended with {done.code}: {done.stderr.strip()}"
    pairs = (item.partition("=") for item in done.stdout.split("\0") if item)
    return {name: value for name, _, value in pairs}


def _devices(root: Path) -> tuple[Verdict, ...]:
    """Judge the device nodes that the rules of host_env are about, where the driver has made them."""
    rules: dict[str, Any] = _rule(root / "etc/udev/rules.d/70-primus-gpu.rules")
    if not rules:
        return ()
    nodes = [path for path in (root / "dev/kfd", *sorted((root / "dev/dri").glob("renderD*"))) if path.exists()]
    expected = f"{rules['GROUP']} {rules['MODE']}"
    if not nodes:
        return (Verdict("gpu_device_access", "", SKIPPED, expected=expected, reason="the driver has made no device node"),)
    wrong = [f"{node} is {found}" for node in nodes if (found := _access(node)) != expected]
    if not wrong:
        return (Verdict("gpu_device_access", "", PASS, expected=expected, found=f"{len(nodes)} devices"),)
    fix = "udevadm trigger --subsystem-match=drm --subsystem-match=kfd, and look for a later rule"
    return (Verdict("gpu_device_access", "", FAIL, expected=expected, found=f"{len(wrong)} others", reason=", ".join(wrong), fix=fix),)


def _rule(path: Path) -> dict[str, str]:
    """Return the assignments of the first rule in a udev file of ours; empty where there is none."""
    try:
        line = next(line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#"))
    except (OSError, StopIteration):
        return {}
    pairs = (part.strip().partition("=") for part in line.split(",") if "==" not in part)
    return {name: value.strip('"') for name, _, value in pairs}


def _access(node: Path) -> str:
    found = node.stat()
    try:
        group = grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        group = str(found.st_gid)
    return f"{group} {stat.S_IMODE(found.st_mode):04o}"


if __name__ == "__main__":
    sys.exit(main())
