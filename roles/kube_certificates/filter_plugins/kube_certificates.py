# ruff: noqa: INP001 (Ansible loads it by path)
"""Filters that decide which certificates are renewed, who renews the others, and which pods are restarted and how."""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError
from cryptography import x509

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCE = "roles/kube_certificates/meta/argument_specs.yml"
# File -> (name in `kubeadm certs renew`, program that reads it): https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-certs/
# (read 2026-11). A client certificate that only kubectl or a probe reads needs no restart.
_API, _ETCD = "kube-apiserver", "etcd"
KUBEADM = {
    "apiserver.crt": ("apiserver", _API),
    "apiserver-kubelet-client.crt": ("apiserver-kubelet-client", _API),
    "apiserver-etcd-client.crt": ("apiserver-etcd-client", _API),
    "front-proxy-client.crt": ("front-proxy-client", _API),
    "etcd/server.crt": ("etcd-server", _ETCD),
    "etcd/peer.crt": ("etcd-peer", _ETCD),
    "etcd/healthcheck-client.crt": ("etcd-healthcheck-client", ""),
    "admin.conf": ("admin.conf", ""),
    "super-admin.conf": ("super-admin.conf", ""),
    "controller-manager.conf": ("controller-manager.conf", "kube-controller-manager"),
    "scheduler.conf": ("scheduler.conf", "kube-scheduler"),
}
# The order of restarts. etcd is first, so that the readiness of the API server covers both.
ORDER = (_ETCD, _API, "kube-controller-manager", "kube-scheduler")
ANNOTATION = "primus-bootstrap/restarted"
FIXES = {
    "kubeadm": "primus-bootstrap renew certificates",
    "kubelet": "kubelet renews it by itself: check `journalctl -u kubelet`, and rotateCertificates in its configuration",
    "kubespray": "set force_etcd_cert_refresh: true in hosts.yaml and apply, which renews etcd's certificates",
    "authority": "replace the CA manually: https://kubernetes.io/docs/tasks/tls/manual-rotation-of-ca-certificates/",
    "site": "renew it with the tool that created this file",
}


def owner_of(file: str, *, authority: bool) -> tuple[str, str, str]:
    """Return who renews a certificate, its name in kubeadm, and the program that must be restarted after it."""
    if authority:
        return "authority", "", ""
    kubernetes = re.match(r".*/(?:pki|ssl)/(etcd/[^/]+|[^/]+)$", file)
    name = file.rsplit("/", 1)[-1]
    known = KUBEADM.get(kubernetes[1] if kubernetes and "/ssl/etcd/ssl/" not in file else name)
    if known and "/kubelet/" not in file and "/.kube/" not in file:
        return "kubeadm", *known
    if "/ssl/etcd/ssl/" in file:
        return "kubespray", "", ""
    return ("kubelet" if "/kubelet/" in file or name == "kubelet.conf" else "site"), "", ""


def kube_certificates_read(found: Sequence[Mapping[str, Any]], now: float | None = None) -> list[dict[str, Any]]:
    """Return the certificates of a host, those that expire first at the beginning.

    Args:
        found: The result of the module kube_certificate_files: `file`, `pem`, `written`.
        now: Seconds since the epoch; None = the current time.
    """
    read = []
    moment = dt.datetime.fromtimestamp(time.time() if now is None else now, tz=dt.UTC)
    for one in found:
        try:
            certificate = x509.load_pem_x509_certificate(one["pem"].encode("ascii"))
        except ValueError as error:
            raise AnsibleFilterError(f"{one['file']} has no readable certificate: {error}. Fix: restore the file") from error
        owner, name, program = owner_of(one["file"], authority=_is_authority(certificate))
        left = (certificate.not_valid_after_utc - moment).total_seconds() / 86400
        words = {"owner": owner, "name": name, "program": program, "subject": certificate.subject.rfc4514_string(), "days": round(left, 1)}
        read.append({"file": one["file"], "written": one["written"], "not_after": f"{certificate.not_valid_after_utc:%Y-%m-%d}", **words})
    return sorted(read, key=lambda one: (one["days"], one["file"]))


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def kube_certificates_due(read: Sequence[Mapping[str, Any]], before_days: float, now: bool) -> list[str]:  # noqa: FBT001 - Jinja's order
    """Return the certificates that kubeadm must renew: those with fewer than `before_days` days left, or all with `now`."""
    return sorted({one["name"] for one in read if one["owner"] == "kubeadm" and (now or one["days"] < before_days)})


def kube_certificates_stale(read: Sequence[Mapping[str, Any]], running: Mapping[str, float]) -> list[str]:
    """Return the programs that started before one of their certificates was written, in the order of their restarts.

    So the next run completes one that was killed between renewal and restart. Programs that do not run on this host are left out.
    """
    stale = {one["program"] for one in read if one["program"] in running and running[one["program"]] < one["written"]}
    return [name for name in ORDER if name in stale]


def kube_certificates_annotated(manifest: str, value: str) -> str:
    """Return a manifest with our annotation, a change for which kubelet restarts the pod. Nothing else is changed.

    Raises:
        AnsibleFilterError: It has no metadata in kubeadm's format.
    """
    line = f'    {ANNOTATION}: "{value}"'
    for pattern, text in (
        (rf"(?m)^    {re.escape(ANNOTATION)}:.*$", line),
        (r"(?m)^(metadata:\n(?:  .*\n)*?  annotations:)[ ]*$", rf"\1\n{line}"),
        (r"(?m)^metadata:[ ]*$", f"metadata:\n  annotations:\n{line}"),
    ):
        annotated, count = re.subn(pattern, text, manifest, count=1)
        if count:
            return annotated
    raise AnsibleFilterError("the manifest has no `metadata:` at the beginning of a line. Fix: restore the file that kubeadm has written")


def kube_certificates_server(manifest: str) -> str:
    """Return the URL of this host's API server from its manifest. A kubeconfig may name another host or a load balancer."""
    options = dict(re.findall(r"(?m)^\s*-\s+[\"']?--(bind-address|secure-port)=(\S+?)[\"']?\s*$", manifest))
    bound = options.get("bind-address", "::")
    host = "127.0.0.1" if bound in ("::", "0.0.0.0") else f"[{bound}]" if ":" in bound else bound  # noqa: S104 - nothing is bound here
    return f"https://{host}:{options.get('secure-port', '6443')}"


def kube_certificates_verdicts(
    read: Sequence[Mapping[str, Any]], unread: Sequence[str], host: str, least_days: float
) -> list[dict[str, Any]]:
    """Return a verdict for each certificate, and `unknown` for each file that could not be read."""
    fixed = {"host": host, "source": SOURCE, "started": time.time()}
    found = []
    for one in read:
        words = {"device": one["file"], "expected": f">= {least_days:.0f}", "found": f"{one['days']:.0f}", "unit": "days"}
        is_due = one["days"] < least_days
        reason = f"{one['subject']} {'expired' if one['days'] < 0 else 'expires'} on {one['not_after']}" if is_due else ""
        more = {"reason": reason, "fix": FIXES[one["owner"]]} if is_due else {}
        found.append({"check": "kube_certificates.valid", "verdict": "fail" if is_due else "pass", **words, **more, **fixed})
    unknown = {"check": "kube_certificates.valid", "verdict": "unknown", "fix": "check the permissions of the file and its disk", **fixed}
    found += [{**unknown, "device": reason.split(":", maxsplit=1)[0], "reason": reason} for reason in unread]
    if not found:
        found.append({**unknown, "verdict": "skipped", "reason": "this host has no certificates of Kubernetes", "fix": ""})
    return found


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {name: value for name, value in globals().items() if name.startswith("kube_certificates_")}
