"""Take Nodes out of service whose health checks fail, and put back those that pass. The timer primus-kube-health starts it.

    evaluate_health.py [--config /etc/primus/kube_health.json] [--out /var/lib/primus/kube_health.json] [--show]

One control plane at a time is active, by a Lease. It reads the health reports of all Nodes and changes only its own marks (decide.py).
`--show` prints the result of the last run as verdict records. Exit codes: 0 done, or another control plane is active; 1 failed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from api_request import MERGE, RequestError, Server, read_kubeconfig
from decide import MARK, OWNER, decide, seconds_of
from node_marks import mark_of, mark_patch, unmark_patch

NAMESPACE = "kube-system"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
LEASE, BREAKER = "primus-health", "primus-health-breaker"
PAGE, WORKERS, NAMED = 500, 8, 5
CONFLICT, MISSING = 409, 404


def main(arguments: list[str]) -> int:
    """Run the program; return its exit code."""
    description = "Take Nodes out of service whose health checks fail, and put back those that pass."
    parser = argparse.ArgumentParser(prog="evaluate_health", description=description)
    parser.add_argument("--config", type=Path, default=Path("/etc/primus/kube_health.json"))
    parser.add_argument("--out", type=Path, default=Path("/var/lib/primus/kube_health.json"))
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args(arguments)
    try:
        config = json.loads(options.config.read_text("utf-8"))
        if options.show:
            print(json.dumps({"verdicts": [last_verdict(options.out, config, time.time())]}))
            return 0
        server = Server(read_kubeconfig(Path(config["kubeconfig"])), Path(config["token_file"]).read_text("utf-8").strip())
        outcome = evaluate(server, config, time.time())
    except (OSError, ValueError, RequestError) as error:
        print(f"<4>health of Nodes: not evaluated: {error}")
        return 1
    options.out.write_text(json.dumps(outcome, indent=1), "utf-8")
    return 0


def evaluate(server: Server, config: dict[str, Any], now: float) -> dict[str, Any]:
    """Read all Nodes, apply the decision, and return what was found and changed."""
    if not holds_lease(server, config["holder"], now, 3 * float(config["interval_s"])):
        return {"written": now, "active": False}
    nodes = {str(node["metadata"]["name"]): node for node in list_all(server, "/api/v1/nodes")}
    before = open_breaker(server)
    plan = decide(nodes.values(), now, float(config["limit_percent"]), float(config["stale_s"]), before)
    if plan.tripped:
        write_breaker(server, plan.breaker)
        print(f"<3>health of Nodes: the breaker opened: {plan.breaker['reason']}. {reset_command()}")
    marked = patch_nodes(server, {name: mark_patch(nodes[name], MARK, record) for name, record in plan.mark.items()})
    released = patch_nodes(server, {name: unmark_patch(nodes[name], MARK) for name in plan.release})
    for what, names in (("out of service", marked), ("back in service", released)):
        if names:
            print(f"<5>health of Nodes: {what}: {first_names(names)}")
    out = [name for name, node in nodes.items() if mark_of(node, MARK)]
    return {
        "written": now, "active": True, "marked": marked, "released": released, "unknown": plan.unknown, "breaker": plan.breaker,
        "out": sorted({*out, *marked} - set(released)),
    }  # fmt: skip


def holds_lease(server: Server, holder: str, now: float, valid_s: float) -> bool:
    """Take or renew the Lease, and return whether this host holds it: nobody else has renewed it within `valid_s`."""
    spec = {"holderIdentity": holder, "renewTime": dt.datetime.fromtimestamp(now, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}  # noqa: UP017
    try:
        found = server.ask("GET", f"{LEASES}/{LEASE}")
        other = found["spec"].get("holderIdentity")
        renewed = seconds_of(found["spec"].get("renewTime") or "1970-01-01T00:00:00Z")
        if other not in (None, holder) and now - renewed < valid_s:
            return False
        body = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "spec": spec}
        server.ask("PATCH", f"{LEASES}/{LEASE}", body, MERGE)
    except RequestError as error:
        if error.status == CONFLICT:
            return False
        if error.status != MISSING:
            raise
        server.ask("POST", LEASES, {"metadata": {"name": LEASE}, "spec": spec})
    return True


def list_all(server: Server, path: str) -> list[dict[str, Any]]:
    """Return all objects of a list, page by page."""
    found: list[dict[str, Any]] = []
    more = ""
    while True:
        page = server.ask("GET", f"{path}?limit={PAGE}{f'&continue={more}' if more else ''}")
        found += page["items"]
        more = page["metadata"].get("continue") or ""
        if not more:
            return found


def open_breaker(server: Server) -> dict[str, Any]:
    """Return the open breaker, or an empty dict. A damaged record counts as an open breaker."""
    try:
        data = server.ask("GET", f"{MAPS}/{BREAKER}").get("data") or {}
    except RequestError as error:
        if error.status == MISSING:
            return {}
        raise
    try:
        return dict(json.loads(data["breaker"]))
    except (ValueError, KeyError, TypeError) as error:
        return {"reason": f"the breaker is open, and its record cannot be read: {error!r}", "since": 0, "nodes": []}


def write_breaker(server: Server, breaker: dict[str, Any]) -> None:
    """Record the open breaker. The account has no right to delete it: only a person resets it."""
    server.ask("POST", MAPS, {"metadata": {"name": BREAKER}, "data": {"breaker": json.dumps(breaker)}})


def patch_nodes(server: Server, patches: dict[str, Any]) -> list[str]:
    """Patch Nodes in parallel, and return those that were changed. The next run repeats a patch that conflicts with another change."""

    def one(name: str) -> str:
        try:
            server.ask("PATCH", f"/api/v1/nodes/{name}", patches[name], MERGE)
        except RequestError as error:
            if error.status not in (CONFLICT, MISSING):
                print(f"<4>health of Nodes: {name}: {error}")
            return ""
        return name

    with ThreadPoolExecutor(WORKERS) as pool:
        return sorted(filter(None, pool.map(one, [name for name, patch in patches.items() if patch])))


def last_verdict(path: Path, config: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the result of the last run as a verdict record. No run, a damaged result or an old one is unknown."""
    record = {"check": "kube_health.nodes", "host": config["holder"], "source": OWNER, "expected": "Nodes are evaluated, no open breaker"}
    fix = "check `journalctl -u primus-kube-health` on this host"
    try:
        last = json.loads(path.read_text("utf-8"))
        written, is_active = float(last["written"]), last["active"]
    except (OSError, ValueError, KeyError) as error:
        return {**record, "verdict": "unknown", "reason": f"no result of a run on this host: {error!r}", "fix": fix}
    if now - written > 3 * float(config["interval_s"]):
        return {**record, "verdict": "unknown", "reason": f"the last run was {now - written:.0f} s ago", "fix": fix}
    if not is_active:
        return {**record, "verdict": "pass", "found": "another control plane is active"}
    if last["breaker"]:
        return {**record, "verdict": "fail", "reason": last["breaker"]["reason"], "fix": reset_command()}
    return {
        **record,
        "verdict": "pass",
        "found": f"{len(last['out'])} out of service, {len(last['unknown'])} unknown: {first_names(last['unknown'])}",
    }


def reset_command() -> str:
    """Return how a person resets the breaker."""
    return f"Remove the cause that the Nodes share, then: kubectl -n {NAMESPACE} delete configmap {BREAKER}"


def first_names(names: Any) -> str:
    """Return the first names, and how many more there are."""
    found = sorted(names)
    return ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
