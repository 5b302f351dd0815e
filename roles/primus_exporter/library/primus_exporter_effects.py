#!/usr/bin/python
"""Run primus_exporter once, and check its text file, timer and folders: the Ansible module `primus_exporter_effects`.

It is a module of its own because it reports verdicts for several parts of one run.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command
from ansible.module_utils.safe_files import open_folder
from ansible.module_utils.unit_properties import unit_properties
from ansible.module_utils.verdict_records import Verdicts

APPLY_AGAIN = "apply the phase monitoring again"
LOG = "read `journalctl -u primus-exporter -n 30`"
WRITTEN = re.compile(r"(?m)^primus_exporter_written_timestamp_seconds (\S+)$")
UP = re.compile(r'(?m)^primus_exporter_source_up\{source="([a-z]+)"\} ([01])(?:\.0)?$')


def check_output(verdicts: Verdicts, content: str, started: float, timer: str, error: str) -> None:
    """Check the text file of a run, the timer and each source. A source that could not be read is unknown, not a failure."""
    written = WRITTEN.search(content)
    current = bool(written) and float(written[1]) >= started - 1  # type: ignore[index]
    found = "written by this run" if current else "old or missing"
    reason = error or "the run wrote no file"
    verdicts.add("written", "pass" if current else "fail", expected="written by this run", found=found, reason=reason, fix=LOG)
    verdict, reason = "pass" if timer == "active" else "fail", "primus-exporter.timer is not active"
    verdicts.add("timer", verdict, expected="active", found=timer, reason=reason, fix=APPLY_AGAIN)
    reason = "it hung, failed or could not be read, so its metrics are unknown"
    for source, up in UP.findall(content) if current else ():
        verdict, found = ("pass", "up") if up == "1" else ("unknown", "down")
        verdicts.add("source", verdict, expected="up", found=found, reason=reason, fix=LOG, device=source)


def check_folder(verdicts: Verdicts, path: str, owner: int, mode: int | None) -> None:
    """Check the parent of the folders in which accounts write metrics; `mode` is None if it does not exist."""
    found = "no folder" if mode is None else f"owner {owner}, mode {mode:04o}"
    verdict, reason = "pass" if (owner, mode) == (0, 0o755) else "fail", "another account than root can replace the folders of accounts"
    verdicts.add("training_folder", verdict, expected="owner 0, mode 0755", found=found, reason=reason, fix=APPLY_AGAIN, device=path)


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
        done = run_command(argv, timeout_s=limit_s)
    except OSError as error:
        return "", str(error)
    return done.stdout.strip(), done.stderr.strip() if done.code else ""


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
    timer = unit_properties("primus-exporter.timer", "ActiveState").get("ActiveState", "")
    verdicts = Verdicts("primus_exporter", params["host"])
    check_output(verdicts, content, started, timer, problem)
    check_folder(verdicts, params["training"], *read_folder(params["training"]))
    verdicts.finish(module)


if __name__ == "__main__":
    main()
