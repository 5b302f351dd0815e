#!/usr/bin/python
"""Check etcd and the certificates of a Kubernetes cluster, and run a pod that resolves a name: the Ansible module `kubespray_effects`.

Own module: kubernetes.core cannot tell a failed check from one without an answer, which is `unknown`, and the pod must always be removed.
It uses kube_common's code, so a play loads that role first.
"""

from __future__ import annotations

import datetime as dt
import secrets
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_client import ReachError, api_client, ask_text, context_of, days_left, days_valid, read_kubeconfig, reason_of
from ansible.module_utils.kube_cluster import Cluster, RefusedError, pod_problems, remove_objects
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = "roles/kubespray/meta/argument_specs.yml"
CLUSTER = "kubernetes"
# kubeadm's certificates are valid for a year, and the timer that renews them runs monthly.
SOON_DAYS = 21
REQUEST_S = 20
POD_NAMESPACE = "default"
RESOLVES = "runs and resolves a name"


def record(check: str, verdict: str, **facts: str) -> dict[str, Any]:
    """Return one verdict record."""
    return {"check": f"kubernetes.{check}", "host": CLUSTER, "verdict": verdict, "source": SOURCE, **facts}


def certificate_record(name: str, days: float | None, why: str = "it cannot be read") -> dict[str, Any]:
    """Return the verdict on a certificate that is valid for some days; None = it cannot be read."""
    check = f"certificate.{name}"
    if days is None:
        return record(check, "unknown", expected=f"more than {SOON_DAYS} days", reason=why)
    fix = "" if days >= SOON_DAYS else "primus-bootstrap renew certificates"
    return record(check, "fail" if fix else "pass", expected=f"more than {SOON_DAYS}", found=f"{days // 1:.0f}", unit="days", fix=fix)


def check_certificates(kubeconfig: str, now: dt.datetime) -> list[dict[str, Any]]:
    """Return the verdicts on the API server's certificate and the administrator's.

    Raises:
        ReachError: There is no usable kubeconfig.
    """
    cluster, user = context_of(read_kubeconfig(kubeconfig), kubeconfig)
    left = days_left(user, Path(kubeconfig).parent, now)
    administrator = certificate_record("administrator", left, "the kubeconfig has no readable certificate")
    server = urlsplit(cluster.get("server", ""))
    try:
        pem = ssl.get_server_certificate((server.hostname or "", server.port or 443), timeout=REQUEST_S)
        return [certificate_record("api", days_valid(pem.encode(), now)), administrator]
    except (OSError, ValueError) as error:
        return [certificate_record("api", None, str(error)), administrator]


def etcd_record(status: int, text: str) -> dict[str, Any]:
    """Return the verdict of the API server's check of etcd (`/readyz/etcd`); status 0 = no answer."""
    if status == 0:
        return record("etcd", "unknown", expected="ok", reason=text)
    if status == 200:
        return record("etcd", "pass", expected="ok", found=text)
    return record("etcd", "fail", expected="ok", found=text[:200] or str(status), fix="on an etcd host: etcdctl endpoint health --cluster")


def check_etcd(kubeconfig: str) -> dict[str, Any]:
    """Ask the API server whether etcd is ready."""
    try:
        return etcd_record(200, ask_text(api_client(kubeconfig), "/readyz/etcd"))
    except ApiException as error:
        return etcd_record(int(error.status or 0), reason_of(error))
    except ReachError as error:
        return etcd_record(0, str(error))


def pod_body(name: str, image: str, wait_s: int) -> dict[str, Any]:
    """Return the pod, which resolves the API's service name."""
    container = {
        "name": "resolve",
        "image": image,
        "command": ["nslookup", "kubernetes.default.svc"],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "runAsUser": 65534, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "activeDeadlineSeconds": wait_s,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    metadata = {"name": name, "namespace": POD_NAMESPACE, "labels": {"app.kubernetes.io/managed-by": "primus-bootstrap"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pod_record(phase: str, reason: str, wait_s: int) -> dict[str, Any]:
    """Return the verdict of the pod: unknown if it could not pull its image or was not scheduled."""
    if phase == "Succeeded":
        return record("pod", "pass", expected=RESOLVES, found="it did")
    if phase == "Failed":
        fix = "kubectl -n kube-system get pods -l k8s-app=kube-dns; kubectl -n kube-system logs -l k8s-app=kube-dns"
        return record("pod", "fail", expected=RESOLVES, found=f"the name was not resolved {reason}".strip(), fix=fix)
    return record("pod", "unknown", expected=RESOLVES, reason=reason or f"it did not end within {wait_s} s ({phase or 'no phase'})")


def run_pod(cluster: Cluster, image: str, wait_s: int, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Run the pod to its end and remove it."""
    pod = pod_body(f"primus-verify-{secrets.token_hex(4)}", image, wait_s)
    phase = reason = ""
    try:
        cluster.apply(pod)
        deadline = time.monotonic() + wait_s
        while phase not in ("Succeeded", "Failed") and time.monotonic() < deadline:
            sleep(2)
            live = cluster.live(pod) or {}
            status = live.get("status") or {}
            phase, reason = status.get("phase") or "", "; ".join(pod_problems(live)) or reason
            if status.get("reason") == "DeadlineExceeded":
                phase = ""
                break
    except RefusedError as error:
        phase, reason = "", str(error)
    finally:
        remove_objects(cluster, [pod])
    return pod_record(phase, reason, wait_s)


def check_pod(kubeconfig: str, image: str, wait_s: int) -> dict[str, Any]:
    """Run a pod with an image; an empty one skips the check."""
    if not image:
        return record("pod", "skipped", expected=RESOLVES, reason="kubespray_verify_image is empty")
    try:
        return run_pod(Cluster(kubeconfig, dry_run=False), image, wait_s)
    except (ReachError, RefusedError, ApiException, HTTPError) as error:
        return pod_record("", f"the API server did not answer: {error}".splitlines()[0], wait_s)


def main() -> None:
    """Check the cluster, and return the records."""
    options = {
        "kubeconfig": {"type": "path", "required": True},
        "image": {"type": "str", "required": True},
        "wait_s": {"type": "int", "required": True},
    }
    module = AnsibleModule(options)
    kubeconfig = module.params["kubeconfig"]
    try:
        certificates = check_certificates(kubeconfig, dt.datetime.now(dt.UTC))
    except ReachError as error:
        module.fail_json(msg=str(error))
    pod = check_pod(kubeconfig, module.params["image"], module.params["wait_s"])
    module.exit_json(changed=False, verdicts=[check_etcd(kubeconfig), *certificates, pod])


if __name__ == "__main__":
    main()
