#!/usr/bin/python
"""Run primus_exporter once, and check its text file, timer and folders: the Ansible module `primus_exporter_effects`.

It is a module of its own because it reports verdicts for several parts of one run.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.safe_files import open_folder

SCHEMA = "primus.verdict/1"
SOURCE = "roles/primus_exporter/meta/argument_specs.yml"
LOG = "read `journalctl -u primus-exporter -n 30`"
WRITTEN = re.compile(r"(?m)^primus_exporter_written_timestamp_seconds (\S+)$")
UP = re.compile(r'(?m)^primus_exporter_source_up\{source="([a-z]+)"\} ([01])(?:\.0)?$')


def record(host: str, check: str, verdict: str, **fields: Any) -> dict[str, Any]:
    """Return one verdict record."""
    fixed = {"source": SOURCE, "started": time.time(), "seconds": 0.0, "schema": SCHEMA}
    return {"check": f"primus_exporter.{check}", "host": host, "verdict": verdict, **fields, **fixed}


def output_verdicts(host: str, content: str, started: float, timer: str, error: str) -> list[dict[str, Any]]:
    """Return verdicts on the text file of a run, the timer and each source. A source that could not be read is unknown, not a failure."""
    written = WRITTEN.search(content)
    current = bool(written) and float(written[1]) >= started - 1  # type: ignore[index]
    fields = {"expected": "written by this run", "found": "written by this run" if current else "old or missing"}
    problem = {} if current else {"reason": error or "the run wrote no file", "fix": LOG}
    verdicts = [record(host, "written", "pass" if current else "fail", **fields, **problem)]
    problem = {} if timer == "active" else {"reason": "primus-exporter.timer is not active", "fix": "apply the phase monitoring again"}
    verdicts.append(record(host, "timer", "pass" if timer == "active" else "fail", expected="active", found=timer, **problem))
    for source, up in UP.findall(content) if current else ():
        problem = {} if up == "1" else {"reason": "it hung, failed or could not be read, so its metrics are unknown", "fix": LOG}
        fields = {"device": source, "expected": "up", "found": "up" if up == "1" else "down"}
        verdicts.append(record(host, "source", "pass" if up == "1" else "unknown", **fields, **problem))
    return verdicts


def folder_verdict(host: str, path: str, owner: int, mode: int | None) -> dict[str, Any]:
    """Return the verdict on the parent of the folders in which accounts write metrics; `mode` is None if it does not exist."""
    found = "no folder" if mode is None else f"owner {owner}, mode {mode:04o}"
    fields = {"device": path, "expected": "owner 0, mode 0755", "found": found}
    if (owner, mode) == (0, 0o755):
        return record(host, "training_folder", "pass", **fields)
    if (owner, mode) == (0, 0o1777):
        reason = "runs of an earlier release still write to it; nothing reads these files"
        return record(
            host, "training_folder", "unknown", **fields, reason=reason, fix="apply the phase monitoring after these runs have ended"
        )
    reason = "another account than root can replace the folders of accounts"
    return record(host, "training_folder", "fail", **fields, reason=reason, fix="apply the phase monitoring again")


def read_folder(path: str) -> tuple[int, int | None]:
    """Return owner and permission bits of a folder; the mode is None if it is missing or a link."""
    try:
        with open_folder(path) as folder:
            return folder.owner, folder.mode
    except OSError:
        return 0, None


def run(argv: list[str], limit_s: float) -> tuple[str, str]:
    """Return the output of a program, and its error (empty if it succeeded)."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    return done.stdout.strip(), done.stderr.strip() if done.returncode else ""


def main() -> None:
    """Read the arguments, run the checks and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "output": {"type": "path", "required": True},
            "training": {"type": "path", "required": True},
            "limit_s": {"type": "float", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    started = time.time()
    _, problem = run(["systemctl", "start", "primus-exporter.service"], params["limit_s"])
    try:
        content = Path(params["output"]).read_text("utf-8")
    except OSError as error:
        content, problem = "", f"{problem} {error}".strip()
    timer, _ = run(["systemctl", "is-active", "primus-exporter.timer"], params["limit_s"])
    verdicts = output_verdicts(params["host"], content, started, timer, problem)
    verdicts.append(folder_verdict(params["host"], params["training"], *read_folder(params["training"])))
    result = {"changed": False, "verdicts": verdicts, "stdout": json.dumps({"verdicts": verdicts})}
    failed = [f"{one['check']}: {one['reason']}. Fix: {one['fix']}" for one in verdicts if one["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
