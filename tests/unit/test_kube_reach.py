"""Test the errors of kube_reach for an unusable kubeconfig."""

from __future__ import annotations

import base64
import datetime as dt
import socket
from typing import TYPE_CHECKING

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

reach = load_role_module("kube_common", "kube_reach")


def certificate(days: int) -> tuple[str, str]:
    """Return a certificate and key for a kubeconfig that expire in so many days."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "admin")])
    now = dt.datetime.now(dt.UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    made = made.not_valid_before(now - dt.timedelta(days=400)).not_valid_after(now + dt.timedelta(days=days))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    texts = (made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), key.private_bytes(*form))
    return base64.b64encode(texts[0]).decode(), base64.b64encode(texts[1]).decode()


def kubeconfig(folder: Path, *, days: int) -> str:
    """Write a kubeconfig with a closed port of this machine; return its path."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cert, key = certificate(days)
    data = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": f"https://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"client-certificate-data": cert, "client-key-data": key}}],
    }
    path = folder / "admin.conf"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return str(path)


def test_missing_kubeconfig_is_refused(tmp_path: Path) -> None:
    """The error has the path and a fix."""
    with pytest.raises(reach.ReachError, match=r"no kubeconfig at .*nothing: No such file.*Fix: correct kubernetes_kubeconfig"):
        reach.check_server(str(tmp_path / "nothing"), "")


@pytest.mark.parametrize("text", ["", "not: a kubeconfig", "{ broken", "clusters: []\ncontexts: []\n"])
def test_other_file_is_refused(tmp_path: Path, text: str) -> None:
    """A file that is not a kubeconfig raises ReachError."""
    (tmp_path / "file").write_text(text, encoding="utf-8")
    with pytest.raises(reach.ReachError, match="is no kubeconfig"):
        reach.check_server(str(tmp_path / "file"), "")


@pytest.mark.parametrize(
    ("found", "least", "old"), [((1, 20), "1.25", True), ((1, 30), "1.30", False), ((1, 9), "1.10", True), ((1, 20), "", False)]
)
def test_versions_are_compared_as_numbers(found: tuple[int, int], least: str, *, old: bool) -> None:
    """1.9 is older than 1.10, and without a minimum any version passes."""
    assert reach.too_old(found, least) is old
