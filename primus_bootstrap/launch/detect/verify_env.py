"""Verify that the files of host_env take effect: in a login shell, in a systemd service, and on the GPU device files.

    python3 -m primus_bootstrap.launch.detect.verify_env [--host NAME] [--json]

Exit codes: 0 no verdict failed, 4 a verdict failed.
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
from primus_bootstrap.launch.detect.render import envfiles, gpu_facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FAILED = 4
_TIMEOUT_S = 30
_APPLY = "apply the phase gpu"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="primus-cli verify-env", description="Verify that this host's GPU environment takes effect.")
    parser.add_argument("--host", default=socket.gethostname(), help="host name in the verdict records (default: this host)")
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
    return _FAILED if any(record.verdict == FAIL for record in records) else 0


def verify(root: Path) -> tuple[Verdict, ...]:
    """Return records for gpu.json, the environment of a login shell and of a service, and the device files."""
    try:
        document = json.loads((root / gpu_facts.FACTS).read_text("utf-8"))
        expected = {item["variable"]: item["value"] for item in document["profile"]["variables"]}
        files = [str(path) for path in sorted((root / envfiles.env_path("base")).parent.glob("*.env"))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return (Verdict("gpu_facts", "", FAIL, reason=f"/{gpu_facts.FACTS} cannot be read: {error}", fix=_APPLY),)
    good = document.get("schema") == gpu_facts.SCHEMA
    login = _environment_of(["/usr/bin/env", "-i", "HOME=/", "/bin/sh", "-l", "-c", "env -0"])
    unit = [f"--property=EnvironmentFile={file}" for file in files]
    service = _environment_of(["systemd-run", "--quiet", "--wait", "--pipe", "--collect", *unit, "/usr/bin/env", "-0"])
    return (
        Verdict(
            "gpu_facts",
            "",
            PASS if good else FAIL,
            expected=gpu_facts.SCHEMA,
            found=str(document.get("schema")),
            fix="" if good else _APPLY,
        ),
        _compare("gpu_env_login", expected, login),
        _compare("gpu_env_service", expected, service),
        *_devices(root),
    )


def _compare(check: str, expected: Mapping[str, str], actual: Mapping[str, str] | str) -> Verdict:
    """Compare a program's environment with the expected variables. A text is the reason why it could not be read."""
    if isinstance(actual, str):
        fix = f"read the error in the reason, then {_APPLY}"
        return Verdict(check, "", UNKNOWN, expected=f"{len(expected)} variables", reason=actual, fix=fix)
    wrong = [name for name, value in sorted(expected.items()) if actual.get(name) != value]
    found = f"{len(expected) - len(wrong)} of {len(expected)} variables"
    if not wrong:
        return Verdict(check, "", PASS, expected=f"{len(expected)} variables", found=found)
    detail = ", ".join(f"{name} is {actual.get(name, 'not set')!r} instead of {expected[name]!r}" for name in wrong)
    fix = f"find the other file that sets it (/etc/environment, /etc/profile.d), then {_APPLY}"
    return Verdict(check, "", FAIL, expected=f"{len(expected)} variables", found=found, reason=detail, fix=fix)


def _environment_of(command: Sequence[str]) -> Mapping[str, str] | str:
    """Return the environment that a command prints with `env -0`, or, as text, why it failed."""
    try:
        done = run_command(command, timeout_s=_TIMEOUT_S)
    except OSError as error:
        return f"{command[0]}: {error}"
    if done.code:
        return f"{command[0]} failed with exit code {done.code}: {done.stderr.strip()}"
    pairs = (item.partition("=") for item in done.stdout.split("\0") if item)
    return {name: value for name, _, value in pairs}


def _devices(root: Path) -> tuple[Verdict, ...]:
    """Compare group and mode of the GPU device files with the udev rules of host_env."""
    rules: dict[str, Any] = _rule(root / "etc/udev/rules.d/70-primus-gpu.rules")
    if not rules:
        return ()
    nodes = [path for path in (root / "dev/kfd", *sorted((root / "dev/dri").glob("renderD*"))) if path.exists()]
    expected = f"{rules['GROUP']} {rules['MODE']}"
    if not nodes:
        return (Verdict("gpu_device_access", "", SKIPPED, expected=expected, reason="the driver has created no device file"),)
    wrong = [f"{node} is {found}" for node in nodes if (found := _access(node)) != expected]
    if not wrong:
        return (Verdict("gpu_device_access", "", PASS, expected=expected, found=f"{len(nodes)} devices"),)
    fix = "run udevadm trigger --subsystem-match=drm --subsystem-match=kfd; if it persists, find a later udev rule"
    return (Verdict("gpu_device_access", "", FAIL, expected=expected, found=f"{len(wrong)} others", reason=", ".join(wrong), fix=fix),)


def _rule(path: Path) -> dict[str, str]:
    """Return the assignments of the first rule in a udev file, or an empty mapping."""
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
