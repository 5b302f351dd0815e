"""Verify that the files of host_env take effect: in a login shell, in a systemd service, and on the GPU device files.

    python3 -m primus_bootstrap.launch.detect.verify_env [--host NAME] [--user NAME] [--json]

Exit codes: 0 no verdict failed, 4 a verdict failed.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.verdicts import FAIL, PASS, SKIPPED, UNKNOWN, Verdict
from primus_bootstrap.launch.detect import sysfs
from primus_bootstrap.launch.detect.device_access import device_names, group_name, groups_of, permissions, refused_devices
from primus_bootstrap.launch.detect.render import envfiles, gpu_facts
from primus_bootstrap.launch.detect.render.devices import MODULE_OPTIONS, UDEV_RULES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FAILED = 4
_TIMEOUT_S = 30
_APPLY = "apply the phase gpu"
# The options of the loaded module: the driver's README, "How and when are the NVIDIA device files created?". The mode is decimal there.
_LOADED_OPTIONS = "proc/driver/nvidia/params"
_INITRAMFS_FIX = "renew the initramfs (`update-initramfs -u -k all`; RHEL: `dracut --force`) and reboot"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="primus-cli verify-env", description="Verify that this host's GPU environment takes effect.")
    parser.add_argument("--host", default=socket.gethostname(), help="host name in the verdict records (default: this host)")
    parser.add_argument("--user", default="", metavar="NAME", help="an account that must be able to open the GPUs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    started = time.time()
    found = verify(Path("/"), user=options.user)
    seconds = round(time.time() - started, 3)
    records = [replace(record, host=options.host, started=started, seconds=seconds) for record in found]
    if options.json:
        sys.stdout.write(json.dumps({"verdicts": [record.to_json() for record in records]}) + "\n")
    else:
        sys.stdout.write("".join(f"{record.verdict}: {record.check}: {record.found} {record.reason}".rstrip() + "\n" for record in records))
    return _FAILED if any(record.verdict == FAIL for record in records) else 0


def verify(root: Path, *, user: str = "") -> tuple[Verdict, ...]:
    """Return records for gpu.json, the environment of a login shell and of a service, and the device files, also opened as `user`."""
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
        *_user_access(root, str(document.get("vendor") or ""), user),
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
    """Compare group and mode of the GPU device files with the udev rules (AMD) or module options (NVIDIA) of host_env."""
    rules = _rule(root / UDEV_RULES)
    if rules:
        nodes = [root / "dev" / name for name in device_names("amd", (), sysfs.names_in(root / "dev/dri"))]
        fix = "run udevadm trigger --subsystem-match=drm --subsystem-match=kfd; if it persists, find a later udev rule"
        return (_compare_devices(nodes, f"{rules['GROUP']} {rules['MODE']}", fix),)
    options = _options(root / MODULE_OPTIONS, r"NVreg_DeviceFile(GID|Mode)=(\w+)")
    if not options:
        return ()
    loaded = _options(root / _LOADED_OPTIONS, r"^DeviceFile(GID|Mode): (\d+)")
    expected = f"{group_name(int(options['GID']))} {options['Mode']}"
    if loaded and (loaded["GID"], int(loaded["Mode"])) != (options["GID"], int(options["Mode"], 8)):
        return (_other_options(root, expected, f"{group_name(int(loaded['GID']))} {int(loaded['Mode']):04o}"),)
    nodes = [root / "dev" / name for name in device_names("nvidia", sysfs.names_in(root / "dev"), ())]
    return (_compare_devices(nodes, expected, "restart the driver or reboot; if it persists, find a later udev rule"),)


def _compare_devices(nodes: Sequence[Path], expected: str, fix: str) -> Verdict:
    existing = [node for node in nodes if node.exists()]
    if not existing:
        return Verdict("gpu_device_access", "", SKIPPED, expected=expected, reason="the driver has created no device file")
    wrong = [f"{node} is {found}" for node in existing if (found := permissions(node)) != expected]
    if not wrong:
        return Verdict("gpu_device_access", "", PASS, expected=expected, found=f"{len(existing)} devices")
    return Verdict("gpu_device_access", "", FAIL, expected=expected, found=f"{len(wrong)} others", reason=", ".join(wrong), fix=fix)


def _other_options(root: Path, expected: str, found: str) -> Verdict:
    """Return the verdict for a module that was loaded with other options than those in its file.

    They were written after the boot, or the initramfs has an older copy of the file, which a reboot does not change.
    """
    result = Verdict("gpu_device_access", "", SKIPPED, expected=expected, found=found, source=f"/{_LOADED_OPTIONS}")
    if (root / MODULE_OPTIONS).stat().st_mtime > _boot_time(root):
        return replace(result, reason="the options were written after the boot, and take effect when the driver is loaded next")
    reason = "the driver was loaded with other options than /etc/modprobe.d has, probably from an older initramfs"
    return replace(result, verdict=FAIL, reason=reason, fix=_INITRAMFS_FIX)


def _user_access(root: Path, vendor: str, user: str) -> tuple[Verdict, ...]:
    """Open the GPU device files as an ordinary account: root can open them with any mode."""
    if not vendor:
        return ()
    names = device_names(vendor, sysfs.names_in(root / "dev"), sysfs.names_in(root / "dev/dri"))
    nodes = [root / "dev" / name for name in names if (root / "dev" / name).exists()]
    if not user or not nodes:
        reason = "the driver has created no device file" if user else "users_groups_accounts has no account without sudo_rules"
        return (Verdict("gpu_user_access", "", SKIPPED, reason=reason),)
    result = Verdict("gpu_user_access", "", PASS, expected=f"{user} opens {len(nodes)} devices", source="hosts.yaml: gpu_env_device_group")
    return (_open_as(user, nodes, result),)


def _open_as(user: str, nodes: Sequence[Path], result: Verdict) -> Verdict:
    """Return the result of opening all files as an account; unknown if the account does not exist or gives no answer."""
    try:
        refused, groups = refused_devices(user, nodes), ", ".join(groups_of(user))
    except KeyError:
        return replace(result, verdict=UNKNOWN, reason=f"the host has no account {user}", fix="apply the phase baseline")
    except OSError as error:
        return replace(result, verdict=UNKNOWN, reason=str(error), fix="see `journalctl -k` for the GPU that does not answer")
    result = replace(result, found=f"{len(nodes) - len(refused)} devices")
    if not refused:
        return result
    detail = "; ".join(f"{node} ({permissions(node)}): {error}" for node, error in refused.items())
    reason = f"{user} (groups {groups}) cannot open {detail}"
    fix = f"set gpu_env_device_group to a group of {user}, or add its group to `groups` of the account; then apply"
    return replace(result, verdict=FAIL, reason=reason, fix=fix)


def _boot_time(root: Path) -> float:
    """Return when the host was booted, in seconds since the epoch; 0 if it cannot be read."""
    uptime = (sysfs.read_text(root / "proc/uptime") or "").split()
    return time.time() - float(uptime[0]) if uptime else 0.0


def _options(path: Path, pattern: str) -> dict[str, str]:
    """Return what the pattern finds in a file, name by value; empty if the file is missing or lacks one of GID and Mode."""
    found = dict(re.findall(pattern, sysfs.read_text(path) or "", re.MULTILINE))
    return found if {"GID", "Mode"} <= set(found) else {}


def _rule(path: Path) -> dict[str, str]:
    """Return the assignments of the first rule in a udev file, or an empty mapping."""
    try:
        line = next(line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#"))
    except (OSError, StopIteration):
        return {}
    pairs = (part.strip().partition("=") for part in line.split(",") if "==" not in part)
    return {name: value.strip('"') for name, _, value in pairs}


if __name__ == "__main__":
    sys.exit(main())
