"""Detect the GPUs and the fabric of a host and write its environment files. The role gpu_env runs this program on every GPU node.

    python3 -m primus_bootstrap.launch.detect.host_env [--sysfs /] [--out /] [--site FILE|-] [--check] [--json]

Exit codes: 0 success, 1 a file could not be written, 2 the site file is wrong, 4 the files are written but a verdict failed.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.verdicts import FAIL, Verdict
from primus_bootstrap.launch.detect import gpus, nics, profiles, routes, site, sysfs
from primus_bootstrap.launch.detect.detection_verdicts import evaluate
from primus_bootstrap.launch.detect.render import devices, envfiles, files, gpu_facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UNWRITABLE, _WRONG_SITE, _FAILED = 1, 2, 4


@dataclass(frozen=True)
class HostEnvironment:
    """The result of a detection: the content of gpu.json, the verdicts, and the files by path (None: must not exist)."""

    document: Mapping[str, Any]
    records: tuple[Verdict, ...]
    files: Mapping[str, str | None]


def detect(host: sysfs.Host, out: Path, site_values: site.Site) -> HostEnvironment:
    """Detect the hardware and render the files, without writing them."""
    started = time.time()
    found = gpus.find_gpus(host)
    interface = routes.choose_interface(host, name=site_values.socket_interface, peer=site_values.socket_peer)
    route_devices = routes.lower_devices(host, interface.name)
    fabric = nics.choose_ports(nics.read_ports(host), found.gpus, deny=site_values.nic_deny, route_devices=route_devices)
    profile = profiles.make_profile(found, fabric, interface, site_values)
    document = gpu_facts.facts_document(found, fabric, interface, profile)
    gid = devices.group_id(out, site_values.device_group) if site_values.device_group else None
    contents = {
        **envfiles.env_files(profile),
        **devices.device_files(found, site_values, gid),
        gpu_facts.FACTS: gpu_facts.facts_text(document),
    }
    seconds = round(time.time() - started, 3)
    records = tuple(
        replace(record, started=started, seconds=seconds) for record in evaluate(found, fabric, interface, site_values, gid=gid)
    )
    return HostEnvironment(document, records, contents)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        site_values = site.parse_site(_site_text(options.site))
        site_values = site_values if site_values.host else replace(site_values, host=socket.gethostname())
        result = detect(sysfs.Host(options.sysfs), options.out, site_values)
        changes = files.write_files(options.out, result.files, check=options.check)
        rules_changed = any(change.path == options.out / devices.UDEV_RULES for change in changes)
        if rules_changed and options.out == Path("/") and not options.check:
            devices.reload_rules()
    except site.SiteError as error:
        return _fail(error.what, error.fix, _WRONG_SITE, as_json=options.json)
    except OSError as error:
        fix = "run as root, and check that the file system is writable (mount, df -h)"
        return _fail(f"{error.filename}: {error.strerror}", fix, _UNWRITABLE, as_json=options.json)
    _print(result, changes, as_json=options.json)
    return _FAILED if any(record.verdict == FAIL for record in result.records) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="primus-cli host-env", description="Detect GPUs and fabric from sysfs and write this host's environment files."
    )
    parser.add_argument("--sysfs", type=Path, default=Path("/"), metavar="ROOT", help="folder that contains sys/ and proc/ (default: /)")
    parser.add_argument("--out", type=Path, default=Path("/"), metavar="ROOT", help="folder below which etc/ is written (default: /)")
    parser.add_argument("--site", metavar="FILE", help="the site's expected values and variables, YAML or JSON; - for standard input")
    parser.add_argument("--check", action="store_true", help="print the changes without making them")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _site_text(name: str | None) -> str:
    if name is None:
        return ""
    try:
        return (sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise site.SiteError(f"the site file {name} cannot be read: {error}", fix="pass a readable UTF-8 file, or omit --site") from error


def _fail(what: str, fix: str, code: int, *, as_json: bool) -> int:
    if as_json:
        sys.stdout.write(json.dumps({"changed": False, "error": {"what": what, "fix": fix}, "verdicts": []}) + "\n")
    else:
        sys.stderr.write(f"{what}\n  fix: {fix}\n")
    return code


def _print(result: HostEnvironment, changes: Sequence[files.Change], *, as_json: bool) -> None:
    document = result.document
    if as_json:
        summary = {name: document[name] for name in ("verdict", "vendor", "model", "count")}
        output = {
            "changed": bool(changes),
            **summary,
            "network": document["network"]["kind"],
            "diff": [change.to_json() for change in changes],
            "verdicts": [record.to_json() for record in result.records],
        }
        sys.stdout.write(json.dumps(output) + "\n")
        return
    sys.stdout.write(f"{document['count']} x {document['model'] or document['verdict']}, fabric: {document['network']['kind']}\n")
    for change in changes:
        sys.stdout.write(f"changed: {change.path}\n")
    for record in result.records:
        sys.stdout.write(f"{record.verdict}: {record.check}: {record.found} {record.reason}".rstrip() + "\n")


if __name__ == "__main__":
    sys.exit(main())
