#!/usr/bin/python
"""Whether something on Kubernetes has its effect: the Ansible module `kube_effects`, which prints a verdict for each check.

A check has objects that are made for it and removed after it (a certificate that must be issued, a claim that must be bound), and what must
then hold. A server that does not answer makes a check `unknown`, never good or bad.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_client import ReachError, ask, reason_of
from ansible.module_utils.kube_cluster import Cluster, RefusedError, have, remove, wait_for
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

SCHEMA = "primus.verdict/1"


def record(host: str, check: dict[str, Any], began: float, verdict: str, reason: str = "") -> dict[str, Any]:
    """Return one verdict record."""
    expected = check.get("expected") or "; ".join(
        f"{one['kind']} {one.get('name') or ', '.join(one['names'])}" for one in check.get("ready") or ()
    )
    fix = "" if verdict == "pass" else check["fix"]
    fixed = {"device": "", "serial": "", "unit": "", "source": "docs/charts.md", "started": began, "schema": SCHEMA}
    found = {"verdict": verdict, "expected": expected, "found": reason or expected, "reason": reason, "fix": fix}
    return {"check": check["check"], "host": host, **found, **fixed, "seconds": time.time() - began}


def answered(cluster: Cluster, question: dict[str, Any]) -> list[str]:
    """Ask a path of the API server, which may hand it on to a service; return what is wrong with the answer."""
    try:
        answer = json.dumps(ask(cluster.kinds.client, question["path"], **(question.get("query") or {})))
    except ApiException as error:
        return [f"{question['path']}: {error.status} {reason_of(error)[:200]}"]
    return [] if re.search(question["matches"], answer) else [f"the answer is {answer[:200]}"]


def judge(cluster: Cluster, host: str, check: dict[str, Any]) -> dict[str, Any]:
    """Make what the check needs, see what becomes of it, and take it away."""
    began = time.time()
    made = check.get("objects") or []
    try:
        try:
            dropped = have(cluster, made)["dropped"]
            missing = wait_for(cluster, check.get("ready") or [], float(check.get("timeout_s", 60)))
            missing += answered(cluster, check["ask"]) if check.get("ask") and not missing else []
        finally:
            remove(cluster, [*made, *(check.get("leaves") or [])])
    except RefusedError as error:
        return record(host, check, began, "fail", str(error))
    except (ReachError, HTTPError) as error:
        return record(host, check, began, "unknown", f"the API server did not answer: {error}")
    if dropped:
        return record(host, check, began, "unknown", f"the API server does not know what the check needs: {'; '.join(dropped)}")
    return record(host, check, began, "fail" if missing else "pass", "; ".join(missing))


def main() -> None:
    """Judge every check."""
    options = {
        "kubeconfig": {"type": "path", "required": True},
        "host": {"required": True},
        "checks": {"type": "list", "elements": "dict", "required": True},
    }
    module = AnsibleModule(options, supports_check_mode=True)
    host, checks = module.params["host"], module.params["checks"]
    try:
        cluster = Cluster(module.params["kubeconfig"], look_only=False)
    except (ReachError, HTTPError) as error:
        found = [record(host, check, time.time(), "unknown", str(error)) for check in checks]
    else:
        found = [judge(cluster, host, check) for check in checks]
    bad = [f"{one['check']}: {one['reason']}" for one in found if one["verdict"] == "fail"]
    answer = {"changed": False, "stdout": json.dumps({"verdicts": found})}
    if bad:
        module.fail_json(msg="; ".join(bad), **answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
