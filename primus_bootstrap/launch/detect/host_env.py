"""Detect the GPUs and the fabric of a host and render its environment: the program that the role gpu_env runs on every GPU node.

    python3 -m primus_bootstrap.launch.detect.host_env [--sysfs /] [--out /] [--site FILE|-] [--check] [--json]

Exit codes: 0 done, 1 a file could not be written, 2 the site file is wrong, 4 done, but an expectation of the site is not met.
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
from primus_bootstrap.launch.detect.detection_verdicts import judge
from primus_bootstrap.launch.detect.render import devices, envfiles, facts, files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UNWRITABLE, _WRONG_SITE, _NOT_MET = 1, 2, 4


@dataclass(frozen=True)
class HostEnvironment:
    """Everything that follows from one look at a host."""

    document: Mapping[str, Any]
    records: tuple[Verdict, ...]
    files: Mapping[str, str | None]


def look(host: sysfs.Host, out: Path, wishes: site.Site) -> HostEnvironment:
    """Detect, choose, and render; nothing is written."""
    started = time.time()
    found = gpus.find_gpus(host)
    interface = routes.choose_interface(host, wanted=wishes.socket_interface, peer=wishes.socket_peer)
    carriers = routes.lower_devices(host, interface.name)
    fabric = nics.choose_ports(nics.read_ports(host), found.gpus, deny=wishes.nic_deny, route_devices=carriers)
    profile = profiles.make_profile(found, fabric, interface, wishes)
    document = facts.facts_document(found, fabric, interface, profile)
    gid = devices.group_id(out, wishes.device_group) if wishes.device_group else None
    wanted = {
        **envfiles.env_files(profile),
        **devices.device_files(found, wishes, gid),
        facts.FACTS: facts.facts_text(document),
    }
    seconds = round(time.time() - started, 3)
    records = tuple(replace(record, started=started, seconds=seconds) for record in judge(found, fabric, interface, wishes, gid=gid))
    return HostEnvironment(document, records, wanted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        wishes = site.parse_site(_site_text(options.site))
        wishes = wishes if wishes.host else replace(wishes, host=socket.gethostname())
        result = look(sysfs.Host(options.sysfs), options.out, wishes)
        changes = files.bring_about(options.out, result.files, check=options.check)
        rules_changed = any(change.path == options.out / devices.UDEV_RULES for change in changes)
        if rules_changed and options.out == Path("/") and not options.check:
            devices.reload_rules()
    except site.SiteError as error:
        return _fail(error.what, error.fix, _WRONG_SITE, as_json=options.json)
    except OSError as error:
        return _fail(
            f"{error.filename}: {error.strerror}", "run as root on a file system that can be written", _UNWRITABLE, as_json=options.json
        )
    _print(result, changes, as_json=options.json)
    return _NOT_MET if any(record.verdict == FAIL for record in result.records) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="primus-cli host-env", description="Detect GPUs and fabric from sysfs and render this host's environment."
    )
    parser.add_argument("--sysfs", type=Path, default=Path("/"), metavar="ROOT", help="folder that holds sys/ and proc/ (default: /)")
    parser.add_argument("--out", type=Path, default=Path("/"), metavar="ROOT", help="folder below which etc/ is written (default: /)")
    parser.add_argument("--site", metavar="FILE", help="the site's expectations and variables, YAML or JSON; - for standard input")
    parser.add_argument("--check", action="store_true", help="change nothing, say what would change")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _site_text(name: str | None) -> str:
    if name is None:
        return ""
    try:
        return (sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise site.SiteError(
            f"the site file {name} cannot be read: {error}", fix="give a readable UTF-8 file, or leave --site out"
        ) from error


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
