#!/usr/bin/python
"""Check that something on Kubernetes works, and print a verdict for each check: the Ansible module `kube_effects`.

Own module: kubernetes.core has no checks that create objects, wait for a result and always remove the objects again. A check creates its
`objects` (a certificate to issue, a claim to bind), waits for `ready`, may send a request (`ask`), and removes `objects` and `leaves`.
A check with `images` compares the running images of `namespace` with these digests instead.
A server that does not answer makes the check `unknown`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_client import ReachError, ask, reason_of
from ansible.module_utils.kube_cluster import Cluster, RefusedError, apply_objects, remove_objects, wait_for
from ansible.module_utils.kube_discovery import Kind, list_objects
from ansible.module_utils.kube_images import compare_images
from ansible.module_utils.verdict_records import Verdicts
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError


def expected_state(check: dict[str, Any]) -> str:
    """Return what a check expects: its own words, or the objects that it waits for."""
    ready = (f"{one['kind']} {one.get('name') or ', '.join(one['names'])}" for one in check.get("ready") or ())
    return check.get("expected") or "; ".join(ready)


def request_problems(cluster: Cluster, request: dict[str, Any]) -> list[str]:
    """Request a path of the API server, which may proxy it to a service; return what is wrong with the response."""
    try:
        answer = json.dumps(ask(cluster.kinds.client, request["path"], **(request.get("query") or {})))
    except ApiException as error:
        return [f"{request['path']}: {error.status} {reason_of(error)[:200]}"]
    return [] if re.search(request["matches"], answer) else [f"the answer is {answer[:200]}"]


def check_images(cluster: Cluster, check: dict[str, Any]) -> tuple[str, str]:
    """Compare the images of running pods with a lock; return the verdict and its reason."""
    try:
        pods = list(list_objects(cluster.kinds.client, Kind("", "v1", "Pod", "pods", namespaced=True), check["namespace"]))
    except (ApiException, ReachError, HTTPError) as error:
        return "unknown", f"the pods of {check['namespace']} cannot be listed: {error}"
    count, wrong = compare_images(pods, check["images"])
    if wrong:
        return "fail", "; ".join(wrong)
    return ("pass", "") if count else ("unknown", f"no container of {check['namespace']} has an image of the lock")


def run_check(cluster: Cluster, check: dict[str, Any]) -> tuple[str, str]:
    """Create the objects of a check, wait for the result, remove the objects, and return the verdict and its reason."""
    created = check.get("objects") or []
    try:
        try:
            dropped = apply_objects(cluster, created)["dropped"]
            missing = wait_for(cluster, check.get("ready") or [], float(check.get("timeout_s", 60)))
            missing += request_problems(cluster, check["ask"]) if check.get("ask") and not missing else []
        finally:
            remove_objects(cluster, [*created, *(check.get("leaves") or [])])
    except RefusedError as error:
        return "fail", str(error)
    except (ReachError, HTTPError) as error:
        return "unknown", f"the API server did not answer: {error}"
    if dropped:
        return "unknown", f"the API server does not know what the check needs: {'; '.join(dropped)}"
    return ("fail", "; ".join(missing)) if missing else ("pass", "")


def main() -> None:
    """Run every check, and fail if one of them failed."""
    options = {
        "kubeconfig": {"type": "path", "required": True},
        "host": {"required": True},
        "checks": {"type": "list", "elements": "dict", "required": True},
    }
    module = AnsibleModule(options, supports_check_mode=True)
    checks = module.params["checks"]
    verdicts = Verdicts(checks[0]["check"].partition(".")[0], module.params["host"])
    cluster, silence = None, ""
    try:
        cluster = Cluster(module.params["kubeconfig"], dry_run=False)
    except (ReachError, HTTPError) as error:
        silence = str(error)
    for check in checks:
        run = check_images if "images" in check else run_check
        verdict, reason = run(cluster, check) if cluster else ("unknown", silence)
        name, expected = check["check"].partition(".")[2], expected_state(check)
        verdicts.add(name, verdict, expected=expected, found=reason or expected, reason=reason, fix=check["fix"])
    verdicts.finish(module)


if __name__ == "__main__":
    main()
