"""Role `kube_certificates`: reads certificates, selects those to renew, and restarts the pods that use them."""

from __future__ import annotations

import base64
import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from primus_bootstrap import content
from tests.unit.role_module import load_file, load_role_module

if TYPE_CHECKING:
    from pathlib import Path

files: Any = load_role_module("kube_certificates", "kube_certificate_files")
filters: Any = load_file(content.roles_dir() / "kube_certificates/filter_plugins/kube_certificates.py", "kube_certificates_filter")

NOW = 1_800_000_000.0
MANIFEST = """apiVersion: v1
kind: Pod
metadata:
  annotations:
    kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint: 10.0.0.1:6443
  creationTimestamp: null
  labels:
    component: kube-apiserver
  name: kube-apiserver
spec:
  containers:
  - command:
    - kube-apiserver
"""


def make_certificate(name: str, days: float, *, authority: bool = False) -> tuple[str, str]:
    """Return a certificate with this many days left, and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.fromtimestamp(NOW, tz=dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key()).serial_number(7)
    builder = builder.not_valid_before(now - dt.timedelta(days=400)).not_valid_after(now + dt.timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), key.private_bytes(*form).decode()


def host(root: Path, **days: float) -> list[str]:
    """Write the files of a control plane and return their glob patterns."""
    for folder in ("pki/etcd", "ssl/etcd/ssl"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, left in {"pki/apiserver": 300.0, "pki/ca": 3000.0, "pki/etcd/server": 300.0, **days}.items():
        certificate, key = make_certificate(name, left, authority=name.endswith("ca"))
        (root / f"{name}.crt").write_text(certificate, encoding="ascii")
        (root / f"{name}.key").write_text(key, encoding="ascii")
    certificate, key = make_certificate("admin", days.get("admin", 300.0))
    user = {
        "client-certificate-data": base64.b64encode(certificate.encode()).decode(),
        "client-key-data": base64.b64encode(key.encode()).decode(),
    }
    (root / "admin.conf").write_text(yaml.safe_dump({"users": [{"name": "admin", "user": user}]}), encoding="utf-8")
    return [f"{root}/pki/*.crt", f"{root}/pki/etcd/*.crt", f"{root}/*.conf", f"{root}/ssl/etcd/ssl/*.pem"]


def test_certificates_are_read_and_keys_stay_on_the_host(tmp_path: Path) -> None:
    """Reads the user certificate of a kubeconfig and the first one of a PEM file; links are skipped."""
    patterns = host(tmp_path)
    (tmp_path / "pki/again.crt").symlink_to(tmp_path / "pki/ca.crt")
    certificate, key = make_certificate("member", 300)
    (tmp_path / "ssl/etcd/ssl/member-n1.pem").write_text(key + certificate, encoding="ascii")
    (tmp_path / "ssl/etcd/ssl/member-n1-key.pem").write_text(key, encoding="ascii")
    found, unread = files.read(patterns)

    names = [one["file"].removeprefix(f"{tmp_path}/") for one in found]
    assert names == ["admin.conf", "pki/again.crt", "pki/apiserver.crt", "pki/etcd/server.crt", "ssl/etcd/ssl/member-n1.pem"]
    assert unread == []
    assert all(one["pem"].startswith("-----BEGIN CERTIFICATE-----") for one in found)
    assert "PRIVATE" not in repr(found)


def test_only_expiring_certificates_are_renewed(tmp_path: Path) -> None:
    """Selects kubeadm's certificates by its names, or all of them on request; never an authority."""
    patterns = host(tmp_path, **{"pki/apiserver": 89.0, "pki/ca": 10.0, "admin": 5.0})
    read = filters.kube_certificates_read(files.read(patterns)[0], NOW)

    assert [(one["name"] or one["owner"], one["days"]) for one in read[:3]] == [
        ("admin.conf", 5.0),
        ("authority", 10.0),
        ("apiserver", 89.0),
    ]
    assert filters.kube_certificates_due(read, 90, now=False) == ["admin.conf", "apiserver"]
    assert filters.kube_certificates_due(read, 90, now=True) == ["admin.conf", "apiserver", "etcd-server"]
    assert filters.kube_certificates_due(read, 5, now=False) == []


@pytest.mark.parametrize(
    ("file", "owner", "name"),
    [
        ("/etc/kubernetes/pki/front-proxy-client.crt", "kubeadm", "front-proxy-client"),
        ("/etc/kubernetes/ssl/apiserver.crt", "kubeadm", "apiserver"),
        ("/etc/kubernetes/ssl/etcd/peer.crt", "kubeadm", "etcd-peer"),
        ("/etc/kubernetes/scheduler.conf", "kubeadm", "scheduler.conf"),
        ("/etc/ssl/etcd/ssl/member-cp1.pem", "kubespray", ""),
        ("/var/lib/kubelet/pki/kubelet-client-current.pem", "kubelet", ""),
        ("/etc/kubernetes/kubelet.conf", "kubelet", ""),
        ("/root/.kube/config", "site", ""),
        ("/etc/kubernetes/pki/own.crt", "site", ""),
    ],
)
def test_every_certificate_has_a_renewer(file: str, owner: str, name: str) -> None:
    """kubeadm, kubelet, Kubespray or the site, each with its own fix."""
    assert filters.owner_of(file, authority=False)[:2] == (owner, name)
    assert filters.FIXES[owner]


def test_pod_older_than_its_certificate_is_restarted() -> None:
    """Restarts etcd first, one pod at a time. Newer or stopped pods are skipped, so interrupted runs can resume."""
    read = [
        {"program": "kube-apiserver", "written": 100.0},
        {"program": "kube-apiserver", "written": 300.0},
        {"program": "etcd", "written": 300.0},
        {"program": "kube-scheduler", "written": 100.0},
        {"program": "kube-controller-manager", "written": 300.0},
        {"program": "", "written": 900.0},
    ]

    assert filters.kube_certificates_stale(read, {"kube-apiserver": 200.0, "etcd": 200.0, "kube-scheduler": 200.0}) == [
        "etcd",
        "kube-apiserver",
    ]
    assert filters.kube_certificates_stale(read, {"kube-apiserver": 301.0}) == []


def test_remaining_days_decide_and_unreadable_files_are_unknown(tmp_path: Path) -> None:
    """An expired certificate fails with date and renewer. No file at all is skipped."""
    patterns = host(tmp_path, **{"pki/apiserver": -2.0})
    read = filters.kube_certificates_read(files.read(patterns)[0], NOW)
    found = filters.kube_certificates_verdicts(read, ["/x: Permission denied"], "cp1", 30)

    assert [one["verdict"] for one in found] == ["fail", "pass", "pass", "pass", "unknown"]
    assert "CN=pki/apiserver expired on" in found[0]["reason"]
    assert (found[0]["fix"], found[-1]["device"]) == ("primus-bootstrap renew certificates", "/x")
    assert [one["verdict"] for one in filters.kube_certificates_verdicts([], [], "n1", 30)] == ["skipped"]


def test_mark_is_one_annotation() -> None:
    """The rest of the manifest stays unchanged; a second mark replaces the first."""
    before = yaml.safe_load(MANIFEST)
    bare = MANIFEST.replace("  annotations:\n    kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint: 10.0.0.1:6443\n", "")
    for text in (MANIFEST, bare):
        once = filters.kube_certificates_annotated(text, "2026-01-01T00:00:00Z")
        twice = filters.kube_certificates_annotated(once, "2026-02-02T00:00:00Z")
        after = yaml.safe_load(twice)

        assert yaml.safe_load(once)["metadata"]["annotations"][filters.ANNOTATION] == "2026-01-01T00:00:00Z"
        assert after["metadata"]["annotations"].pop(filters.ANNOTATION) == "2026-02-02T00:00:00Z"
        assert after["metadata"]["name"] == "kube-apiserver"
        assert after["spec"] == before["spec"]
        assert after["metadata"]["annotations"] == (before["metadata"]["annotations"] if text is MANIFEST else {})
    with pytest.raises(AnsibleFilterError, match="no `metadata:`"):
        filters.kube_certificates_annotated("{}", "x")


def test_start_time_is_read_from_proc(tmp_path: Path) -> None:
    """Start in ticks after boot, whatever the process name; the newest process counts, and other programs do not."""
    line = "7 (kube (api) server) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 9 0 {} 1 2"
    for pid, ticks in ((7, 1000), (8, 5000)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(b"/usr/local/bin/kube-apiserver\0--x=1\0")
        (tmp_path / str(pid) / "stat").write_text(line.format(ticks), encoding="ascii")
    (tmp_path / "uptime").write_text("500.0 1.0\n", encoding="ascii")

    began = 10_000.0 - 500.0 + 5000 / files.os.sysconf("SC_CLK_TCK")
    assert files.running(["kube-apiserver", "etcd"], tmp_path, 10_000.0) == {"kube-apiserver": began}
    assert files.running(["etcd"], tmp_path, 10_000.0) == {}


def test_local_api_server_must_be_ready_before_the_next_pod() -> None:
    """The kubeconfig may name another server, whose answer proves nothing."""
    tasks = yaml.safe_load((content.roles_dir() / "kube_certificates/tasks/restart_pod.yml").read_text(encoding="utf-8"))
    argv = tasks[-1]["ansible.builtin.command"]["argv"]

    assert tasks[0]["loop"][1] == "kube-apiserver"
    assert f"--server={{{{ {tasks[0]['register']}['results'][1]['content'] | b64decode | kube_certificates_server }}}}" in argv
    assert "--tls-server-name=kubernetes" in argv
    assert filters.kube_certificates_server(MANIFEST) == "https://127.0.0.1:6443"
