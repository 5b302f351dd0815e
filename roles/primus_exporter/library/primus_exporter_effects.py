#!/usr/bin/python
"""Let the exporter run once, and read the file that node_exporter passes on: the Ansible module `primus_exporter_effects`."""

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
LOG = "see `journalctl -u primus-exporter -n 30`"
WRITTEN = re.compile(r"(?m)^primus_exporter_written_timestamp_seconds (\S+)$")
UP = re.compile(r'(?m)^primus_exporter_source_up\{source="([a-z]+)"\} ([01])(?:\.0)?$')


def record(host: str, check: str, verdict: str, **fields: Any) -> dict[str, Any]:
    """Return one verdict record."""
    fixed = {"source": SOURCE, "started": time.time(), "seconds": 0.0, "schema": SCHEMA}
    return {"check": f"primus_exporter.{check}", "host": host, "verdict": verdict, **fields, **fixed}


def judge(host: str, content: str, began: float, timer: str, why: str) -> list[dict[str, Any]]:
    """Judge what the file says after a run that began then; a source that is silent is unknown, which stops nothing."""
    written = WRITTEN.search(content)
    fresh = bool(written) and float(written[1]) >= began - 1  # type: ignore[index]
    words = {"expected": "written just now", "found": "written just now" if fresh else "old, or not there"}
    bad = {} if fresh else {"reason": why or "the run wrote nothing", "fix": LOG}
    found = [record(host, "written", "pass" if fresh else "fail", **words, **bad)]
    bad = {} if timer == "active" else {"reason": "it does not run by itself", "fix": "apply the phase monitoring again"}
    found.append(record(host, "timer", "pass" if timer == "active" else "fail", expected="active", found=timer, **bad))
    for source, up in UP.findall(content) if fresh else ():
        bad = {} if up == "1" else {"reason": "it hung, failed or could not be read: its numbers are unknown", "fix": LOG}
        words = {"device": source, "expected": "answers", "found": "answers" if up == "1" else "silent"}
        found.append(record(host, "source", "pass" if up == "1" else "unknown", **words, **bad))
    return found


def judge_folder(host: str, path: str, owner: int, mode: int | None) -> dict[str, Any]:
    """Judge the folder above those in which accounts write their metrics; `mode` is None if there is no such folder."""
    found = "no folder" if mode is None else f"owner {owner}, mode {mode:04o}"
    words = {"device": path, "expected": "owner 0, mode 0755", "found": found}
    if (owner, mode) == (0, 0o755):
        return record(host, "training_folder", "pass", **words)
    if (owner, mode) == (0, 0o1777):
        reason = "runs of an earlier release still write here; nothing reads these files"
        return record(
            host, "training_folder", "unknown", **words, reason=reason, fix="apply the phase monitoring once these runs have ended"
        )
    reason = "another account than root can put folders of accounts in the place of others"
    return record(host, "training_folder", "fail", **words, reason=reason, fix="apply the phase monitoring again")


def look_at_folder(path: str) -> tuple[int, int | None]:
    """Return owner and permission bits of a folder; the mode is None if there is none, or a link in its place."""
    try:
        with open_folder(path) as folder:
            return folder.owner, folder.mode
    except OSError:
        return 0, None


def run(argv: list[str], limit_s: float) -> tuple[str, str]:
    """Return what a program printed, and what is wrong (nothing where it ended well)."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    return done.stdout.strip(), done.stderr.strip() if done.returncode else ""


def main() -> None:
    """Read the arguments, run, look, and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "output": {"type": "path", "required": True},
            "training": {"type": "path", "required": True},
            "limit_s": {"type": "float", "required": True},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    began = time.time()
    _, why = run(["systemctl", "start", "primus-exporter.service"], wanted["limit_s"])
    try:
        content = Path(wanted["output"]).read_text("utf-8")
    except OSError as error:
        content, why = "", f"{why} {error}".strip()
    timer, _ = run(["systemctl", "is-active", "primus-exporter.timer"], wanted["limit_s"])
    verdicts = judge(wanted["host"], content, began, timer, why)
    verdicts.append(judge_folder(wanted["host"], wanted["training"], *look_at_folder(wanted["training"])))
    result = {"changed": False, "verdicts": verdicts, "stdout": json.dumps({"verdicts": verdicts})}
    failed = [f"{one['check']}: {one['reason']}. Fix: {one['fix']}" for one in verdicts if one["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
