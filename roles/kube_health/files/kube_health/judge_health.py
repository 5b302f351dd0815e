"""Take Nodes out of service whose health fails, and put back those that pass: what the timer primus-kube-health starts.

    judge_health.py [--config /etc/primus/kube_health.json] [--out /var/lib/primus/kube_health.json] [--show]

One control plane judges at a time, by a Lease. It reads what nodes report of their health.json and changes nothing but marks of its own
(decide.py). `--show` prints what the last look found, as verdict records. Exit codes: 0 judged, or another one does; 1 it could not.
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
    parser = argparse.ArgumentParser(prog="judge_health", description="Take Nodes out of service whose health fails, and put back others.")
    parser.add_argument("--config", type=Path, default=Path("/etc/primus/kube_health.json"))
    parser.add_argument("--out", type=Path, default=Path("/var/lib/primus/kube_health.json"))
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args(arguments)
    try:
        config = json.loads(options.config.read_text("utf-8"))
        if options.show:
            print(json.dumps({"verdicts": [shown(options.out, config, time.time())]}))
            return 0
        server = Server(read_kubeconfig(Path(config["kubeconfig"])), Path(config["token_file"]).read_text("utf-8").strip())
        outcome = judge(server, config, time.time())
    except (OSError, ValueError, RequestError) as error:
        print(f"<4>health of Nodes: not judged: {error}")
        return 1
    options.out.write_text(json.dumps(outcome, indent=1), "utf-8")
    return 0


def judge(server: Server, config: dict[str, Any], now: float) -> dict[str, Any]:
    """Look at all Nodes, carry out what is decided, and return what was found and done."""
    if not takes_turn(server, config["holder"], now, 3 * float(config["interval_s"])):
        return {"written": now, "judges": False}
    nodes = {str(node["metadata"]["name"]): node for node in listed(server, "/api/v1/nodes")}
    before = standing(server)
    plan = decide(nodes.values(), now, float(config["limit_percent"]), float(config["stale_s"]), before)
    if plan.tripped:
        trip(server, plan.breaker)
        print(f"<3>health of Nodes: the breaker holds: {plan.breaker['reason']}. {reset_words()}")
    marked = change(server, {name: mark_patch(nodes[name], MARK, record) for name, record in plan.mark.items()})
    released = change(server, {name: unmark_patch(nodes[name], MARK) for name in plan.release})
    for what, names in (("out of service", marked), ("back in service", released)):
        if names:
            print(f"<5>health of Nodes: {what}: {few(names)}")
    out = [name for name, node in nodes.items() if mark_of(node, MARK)]
    return {
        "written": now, "judges": True, "marked": marked, "released": released, "unknown": plan.unknown, "breaker": plan.breaker,
        "out": sorted({*out, *marked} - set(released)),
    }  # fmt: skip


def takes_turn(server: Server, holder: str, now: float, valid_s: float) -> bool:
    """Take or renew the Lease; tell whether it is ours. Who was faster, or has renewed it lately, judges."""
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


def listed(server: Server, path: str) -> list[dict[str, Any]]:
    """Return all objects of a list, page by page."""
    found: list[dict[str, Any]] = []
    more = ""
    while True:
        page = server.ask("GET", f"{path}?limit={PAGE}{f'&continue={more}' if more else ''}")
        found += page["items"]
        more = page["metadata"].get("continue") or ""
        if not more:
            return found


def standing(server: Server) -> dict[str, Any]:
    """Return the breaker that stands; one that cannot be read is a breaker all the same."""
    try:
        data = server.ask("GET", f"{MAPS}/{BREAKER}").get("data") or {}
    except RequestError as error:
        if error.status == MISSING:
            return {}
        raise
    try:
        return dict(json.loads(data["breaker"]))
    except (ValueError, KeyError, TypeError) as error:
        return {"reason": f"a breaker stands whose record cannot be read: {error!r}", "since": 0, "nodes": []}


def trip(server: Server, breaker: dict[str, Any]) -> None:
    """Write the breaker down. The account may not delete it: only a person resets it."""
    server.ask("POST", MAPS, {"metadata": {"name": BREAKER}, "data": {"breaker": json.dumps(breaker)}})


def change(server: Server, patches: dict[str, Any]) -> list[str]:
    """Patch Nodes, a few at a time; one that somebody else changed meanwhile has its turn in the next look."""

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


def shown(path: Path, config: dict[str, Any], now: float) -> dict[str, Any]:
    """Return what the last look found as a verdict record; no look, or an old one, is unknown."""
    record = {"check": "kube_health.nodes", "host": config["holder"], "source": OWNER, "expected": "Nodes that are judged, and no breaker"}
    fix = "see `journalctl -u primus-kube-health` there"
    try:
        last = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        return {**record, "verdict": "unknown", "reason": f"nobody has judged here yet: {error}", "fix": fix}
    if now - float(last["written"]) > 3 * float(config["interval_s"]):
        return {**record, "verdict": "unknown", "reason": f"the last look is {now - last['written']:.0f} s old", "fix": fix}
    if not last["judges"]:
        return {**record, "verdict": "pass", "found": "another control plane judges"}
    if last["breaker"]:
        return {**record, "verdict": "fail", "reason": last["breaker"]["reason"], "fix": reset_words()}
    return {
        **record,
        "verdict": "pass",
        "found": f"{len(last['out'])} out of service, {len(last['unknown'])} unknown: {few(last['unknown'])}",
    }


def reset_words() -> str:
    """Say how a person resets the breaker."""
    return f"See what the Nodes share; then: kubectl -n {NAMESPACE} delete configmap {BREAKER}"


def few(names: Any) -> str:
    """Return the first of some names."""
    found = sorted(names)
    return ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
