"""Report this node's health to Kubernetes: the verdict in health.json, as the condition PrimusHealthy of its own Node.

    report_health.py [--config /etc/primus/kube_health.json] [--state /var/lib/primus/kube_health_report.json]

It uses the kubelet's credentials, which can write the status of this Node only, so that the node needs no other credential. A change is
reported at once, an unchanged state every `report_s`, to limit the requests of a large fleet. Exit codes: 0 reported, or nothing to
report; 1 the server did not accept it, and the next run tries again.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import time
from pathlib import Path
from typing import Any

from api_request import STRATEGIC, RequestError, Server, read_kubeconfig

CONDITION = "PrimusHealthy"
STATUS = {"pass": "True", "fail": "False", "unknown": "Unknown"}
REASON = {"pass": "HealthPass", "fail": "HealthFail", "unknown": "HealthUnknown"}


def condition(reading: Any, before: dict[str, Any], now: float) -> dict[str, str]:
    """Return the condition for the reading of the health gate; `before` is the condition that was reported last."""
    status = STATUS[reading.verdict]
    changed = stamp(now) if before.get("status") != status else before["lastTransitionTime"]
    written = now if reading.verdict == "unknown" else reading.written
    return {
        "type": CONDITION,
        "status": status,
        "reason": REASON[reading.verdict],
        "message": reading.reason,
        "lastHeartbeatTime": stamp(written),
        "lastTransitionTime": changed,
    }


def is_due(wanted: dict[str, str], before: dict[str, Any], now: float, report_s: float) -> bool:
    """Return whether to report: the condition changed, or the last report is `report_s` old."""
    same = all(before.get(key) == wanted[key] for key in ("status", "reason", "message"))
    return not same or not 0 <= now - float(before.get("reported", 0.0)) < report_s


def stamp(seconds: float) -> str:
    """Return a time in the format of Kubernetes."""
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")  # noqa: UP017 - Python 3.9


def read_state(path: Path) -> dict[str, Any]:
    """Return the last report; empty if it cannot be read, so that the health is reported again."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and "lastTransitionTime" in found else {}


def main(arguments: list[str]) -> int:
    """Run the program; return its exit code."""
    sys.path.append(str(Path(__file__).parent.parent))
    import health_gate  # noqa: PLC0415 - the role node_health installs it beside this folder

    parser = argparse.ArgumentParser(prog="report_health", description="Report this node's health to Kubernetes.")
    parser.add_argument("--config", type=Path, default=Path("/etc/primus/kube_health.json"))
    parser.add_argument("--state", type=Path, default=Path("/var/lib/primus/kube_health_report.json"))
    options = parser.parse_args(arguments)
    config, before, now = json.loads(options.config.read_text("utf-8")), read_state(options.state), time.time()
    wanted = condition(health_gate.read(Path(config["health"])), before, now)
    if not is_due(wanted, before, now, float(config["report_s"])):
        return 0
    try:
        server = Server(read_kubeconfig(Path(config["kubeconfig"])))
        server.ask("PATCH", f"/api/v1/nodes/{config['node']}/status", {"status": {"conditions": [wanted]}}, STRATEGIC)
    except RequestError as error:
        print(f"<4>health: not reported to Kubernetes ({wanted['status']}): {error}")
        return 1
    if before.get("status") != wanted["status"]:
        print(f"<5>health: reported to Kubernetes: {wanted['reason']} {wanted['message']}")
    options.state.write_text(json.dumps({**wanted, "reported": now}), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
