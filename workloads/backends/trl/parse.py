"""Pass jobs through the own parsers of TRL and PEFT, without a GPU and without process groups.

Reads one JSON object per line from stdin, {"name": …, "job": {…}} with the content of trl.json, and prints one per line:
{"name": …, "error": ""}; `error` is the message of TRL or PEFT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from workloads.backends.trl import parser


def judge(name: str, job: dict[str, Any]) -> dict[str, str]:
    """Return what TRL and PEFT make of a job."""
    try:
        parser.trainer_settings(job["method"], {**job["trainer"], "use_cpu": True})
        if job["lora"] is not None:
            parser.lora_settings(job["lora"])
    except Exception as error:  # noqa: BLE001 - they raise TypeError, ValueError and others
        return {"name": name, "error": f"{type(error).__name__}: {error}"}
    return {"name": name, "error": ""}


def main() -> int:
    """Judge every job of stdin; return 0, or 1 if one is refused."""
    refused = False
    for line in sys.stdin:
        asked = json.loads(line)
        answer = judge(asked["name"], asked["job"])
        refused = refused or bool(answer["error"])
        print(json.dumps(answer), flush=True)
    return int(refused)


if __name__ == "__main__":
    sys.exit(main())
