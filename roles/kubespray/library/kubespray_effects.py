#!/usr/bin/python
"""Check a Kubernetes cluster through its API, and run a pod that resolves a name: the Ansible module `kubespray_effects`.

Own module: it checks nodes, versions, etcd, certificates and a pod in one connection and returns verdict records. Whatever cannot be read
is `unknown`. The pod is always removed.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import os
import secrets
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCHEMA = "primus.verdict/1"
SOURCE = "roles/kubespray/meta/argument_specs.yml"
CLUSTER = "kubernetes"
# kubeadm's certificates are valid for a year, and the timer that renews them runs monthly.
SOON_DAYS = 21
REQUEST_S = 20
POD_NAMESPACE = "default"


def record(check: str, verdict: str, **facts: Any) -> dict[str, Any]:
    """Return one verdict record."""
    return {"schema": SCHEMA, "check": check, "host": facts.pop("host", CLUSTER), "verdict": verdict, "source": SOURCE, **facts}


def node_records(found: Mapping[str, tuple[bool, str]], wanted: Mapping[str, str], version: str) -> list[dict[str, Any]]:
    """Return a record for each node that is not Ready, or one for all nodes, and one for their versions.

    Args:
        found: Node name -> (whether it is Ready, version of its kubelet).
        wanted: Host -> Node name; empty if they are the same.
        version: The version that all should have; empty = any, but all the same.
    """
    bad = []
    for host, name in ((host, name or host) for host, name in wanted.items()):
        if name not in found:
            bad.append(
                record(
                    "kubernetes.node",
                    "fail",
                    host=host,
                    expected="a Ready node",
                    found="no node",
                    fix="primus-bootstrap apply --phase kubernetes",
                )
            )
        elif not found[name][0]:
            fix = f"kubectl describe node {name}; on it: journalctl -u kubelet -n 50"
            bad.append(record("kubernetes.node", "fail", host=host, expected="Ready", found="not Ready", fix=fix))
    versions = sorted({text.removeprefix("v") for _, text in found.values()})
    expected = version or "one version"
    equal = versions == [version] if version else len(versions) == 1
    of_versions = record("kubernetes.versions", "pass" if equal else "fail", expected=expected, found=", ".join(versions) or "no node")
    if not equal:
        of_versions["fix"] = (
            f"primus-bootstrap upgrade kubernetes hosts.yaml {version or 'VERSION'}, which continues an interrupted upgrade"
        )
    ready = sum(1 for is_ready, _ in found.values() if is_ready)
    passed = [] if bad else [record("kubernetes.node", "pass", expected="Ready", found=f"{ready} nodes are Ready")]
    return [*bad, *passed, of_versions]


def certificate_record(name: str, ends: dt.datetime | None, now: dt.datetime, why: str = "") -> dict[str, Any]:
    """Return the verdict of how long a certificate is still valid."""
    check = f"kubernetes.certificate.{name}"
    if ends is None:
        return record(check, "unknown", expected=f"more than {SOON_DAYS} days", reason=why or "it cannot be read")
    days = (ends - now).days
    fix = "" if days >= SOON_DAYS else "primus-bootstrap renew certificates"
    return record(check, "pass" if days >= SOON_DAYS else "fail", expected=f"more than {SOON_DAYS}", found=str(days), unit="days", fix=fix)


def etcd_record(status: int, text: str) -> dict[str, Any]:
    """Return the verdict of the API server's check of etcd (`/readyz/etcd`)."""
    if status == 0:
        return record("kubernetes.etcd", "unknown", expected="ok", reason=text)
    good = status == 200
    fix = "" if good else "on an etcd host: etcdctl endpoint health --cluster"
    return record("kubernetes.etcd", "pass" if good else "fail", expected="ok", found=text[:200] or str(status), fix=fix)


def pod_record(phase: str, reason: str, wait_s: int) -> dict[str, Any]:
    """Return the verdict of the pod: unknown if it could not pull its image or was not scheduled."""
    check = "kubernetes.pod"
    if phase == "Succeeded":
        return record(check, "pass", expected="runs and resolves a name", found="it did")
    if phase == "Failed":
        fix = "kubectl -n kube-system get pods -l k8s-app=kube-dns; kubectl -n kube-system logs -l k8s-app=kube-dns"
        return record(check, "fail", expected="runs and resolves a name", found=reason or "the name was not resolved", fix=fix)
    return record(check, "unknown", expected="runs and resolves a name", reason=reason or f"it did not end within {wait_s} s")


def waiting_reason(pod: Any) -> str:
    """Return why a pod does not run, from its containers or its conditions."""
    for status in (pod.status.container_statuses or []) if pod.status else []:
        if status.state and status.state.waiting and status.state.waiting.reason:
            return f"{status.state.waiting.reason}: {status.state.waiting.message or ''}"[:300].rstrip(": ")
    for condition in (pod.status.conditions or []) if pod.status else []:
        if condition.status == "False" and condition.message:
            return str(condition.message)[:300]
    return ""


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
        "activeDeadlineSeconds": wait_s,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    metadata = {"name": name, "labels": {"app.kubernetes.io/managed-by": "primus-bootstrap"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def expiry_of(pem: str) -> dt.datetime:
    """Return when a certificate expires."""
    from cryptography import x509  # noqa: PLC0415 - the controller has it

    return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc


def certificates(client: Any, kubeconfig: str, now: dt.datetime) -> list[dict[str, Any]]:
    """Return the verdicts of the API server's certificate and the administrator's."""
    import yaml  # noqa: PLC0415 - the controller has it

    found = []
    server = urlsplit(client.configuration.host)
    try:
        pem = ssl.get_server_certificate((server.hostname or "", server.port or 443), timeout=REQUEST_S)
        found.append(certificate_record("api", expiry_of(pem), now))
    except (OSError, ValueError) as error:
        found.append(certificate_record("api", None, now, str(error)))
    try:
        users = yaml.safe_load(Path(kubeconfig).read_text(encoding="utf-8"))["users"]
        data = next(user["user"]["client-certificate-data"] for user in users if "client-certificate-data" in user.get("user", {}))
        found.append(certificate_record("administrator", expiry_of(base64.b64decode(data).decode()), now))
    except (StopIteration, KeyError, TypeError, ValueError, OSError):
        found.append(certificate_record("administrator", None, now, "the kubeconfig has no certificate"))
    return found


def run_pod(core: Any, image: str, wait_s: int, errors: type[Exception], sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Run the pod to its end and remove it."""
    name = f"primus-verify-{secrets.token_hex(4)}"
    phase = reason = ""
    try:
        core.create_namespaced_pod(POD_NAMESPACE, pod_body(name, image, wait_s), _request_timeout=REQUEST_S)
        deadline = time.monotonic() + wait_s
        while phase not in ("Succeeded", "Failed") and time.monotonic() < deadline:
            sleep(2)
            pod = core.read_namespaced_pod(name, POD_NAMESPACE, _request_timeout=REQUEST_S)
            phase, reason = str(pod.status.phase or ""), waiting_reason(pod) or reason
            if phase == "Failed" and str(pod.status.reason or "") == "DeadlineExceeded":
                phase = ""
                break
    except errors as error:
        phase, reason = "", f"the API rejected the pod: {error}".splitlines()[0]
    finally:
        with contextlib.suppress(errors):  # it was never created
            core.delete_namespaced_pod(name, POD_NAMESPACE, grace_period_seconds=0, _request_timeout=REQUEST_S)
    return pod_record(phase, reason, wait_s)


def check_cluster(client_module: Any, config_module: Any, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Read everything from the API, and return the verdict records."""
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - comes with the client

    client = config_module.new_client_from_config(config_file=wanted["kubeconfig"])
    core = client_module.CoreV1Api(client)
    failures = (client_module.exceptions.ApiException, HTTPError, OSError)
    found: list[dict[str, Any]] = []
    try:
        listed = core.list_node(_request_timeout=REQUEST_S).items
        nodes = {
            one.metadata.name: (
                any(condition.type == "Ready" and condition.status == "True" for condition in one.status.conditions or ()),
                one.status.node_info.kubelet_version,
            )
            for one in listed
        }
        found += node_records(nodes, wanted["nodes"], wanted["version"])
    except failures as error:
        found.append(record("kubernetes.node", "unknown", expected="Ready", reason=str(error).splitlines()[0]))
    try:
        answer = client.call_api("/readyz/etcd", "GET", auth_settings=["BearerToken"], response_type="str", _request_timeout=REQUEST_S)
        found.append(etcd_record(int(answer[1]), str(answer[0])))
    except client_module.exceptions.ApiException as error:
        found.append(etcd_record(int(error.status or 0), str(error.body or error.reason)))
    except (HTTPError, OSError) as error:
        found.append(etcd_record(0, str(error)))
    found += certificates(client, wanted["kubeconfig"], dt.datetime.now(dt.UTC))
    if wanted["image"]:
        found.append(run_pod(core, wanted["image"], wanted["wait_s"], failures))  # type: ignore[arg-type]
    else:
        found.append(record("kubernetes.pod", "skipped", expected="runs and resolves a name", reason="kubespray_verify_image is empty"))
    return found


def main() -> None:
    """Read the arguments, check the cluster, and return the records."""
    module = AnsibleModule(
        argument_spec={
            "kubeconfig": {"type": "path", "required": True},
            "image": {"type": "str", "required": True},
            "wait_s": {"type": "int", "required": True},
            "nodes": {"type": "dict", "required": True},
            "version": {"type": "str", "required": True},
        }
    )
    try:
        from kubernetes import client, config  # noqa: PLC0415 - where it is missing the error has a fix
    except ImportError as error:
        module.fail_json(msg=f"{error}. Fix: install the package kubernetes into the Python that runs ansible-playbook")
    if not os.access(module.params["kubeconfig"], os.R_OK):
        fix = "primus-bootstrap apply --phase kubernetes, or set kubernetes_kubeconfig"
        module.fail_json(msg=f"no kubeconfig at {module.params['kubeconfig']}. Fix: {fix}")
    module.exit_json(changed=False, verdicts=check_cluster(client, config, module.params))


if __name__ == "__main__":
    main()
