"""Create keys, certificates and kubeconfigs for a test's API server, valid for a day by default."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from pathlib import Path

_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
# Who asks, with the group that RBAC knows them by.
_CLIENTS = {
    "admin": ("kubernetes-admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
}


_A_DAY = dt.timedelta(days=1)


class _Pair(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def write(folder: Path, url: str, ends: dt.timedelta = _A_DAY) -> None:
    """Write `pki/` and one kubeconfig per client into a folder; existing files stay.

    Args:
        folder: The target folder.
        url: The server's URL.
        ends: When the clients' certificates expire; a negative value is expired.
    """
    pki = folder / "pki"
    if pki.is_dir():
        return
    pki.mkdir(mode=0o700)
    authority = _authority()
    _save(pki, "ca", authority)
    _save(pki, "apiserver", _issue(authority, "kube-apiserver"))
    for client, (user, group) in _CLIENTS.items():
        pair = _issue(authority, user, group, ends)
        _save(pki, client, pair)
        (folder / f"{client}.conf").write_text(json.dumps(_kubeconfig(url, authority, pair), indent=1))
    accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (pki / "accounts.key").write_bytes(_private(accounts))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    (pki / "accounts.pub").write_bytes(accounts.public_key().public_bytes(serialization.Encoding.PEM, public))


def _authority() -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("kubernetes", "")
    # Python 3.13 refuses an authority that does not say what its key is for.
    usage = _usage(signs=True)
    builder = _certificate(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return _Pair(builder.add_extension(usage, critical=True).sign(key, hashes.SHA256()), key)


def _issue(authority: _Pair, user: str, group: str = "", ends: dt.timedelta = _A_DAY) -> _Pair:
    """Issue a certificate for loopback and a user."""
    key = ec.generate_private_key(ec.SECP256R1())
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "10.96.0.1")]
    builder = (
        _certificate(_name(user, group), authority.certificate.subject, key, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([*(x509.DNSName(name) for name in _SERVER_NAMES), *addresses]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    return _Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, ends: dt.timedelta = _A_DAY
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + ends) - dt.timedelta(minutes=5))
        .not_valid_after(now + ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(user: str, group: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _save(pki: Path, name: str, pair: _Pair) -> None:
    (pki / f"{name}.crt").write_bytes(_public(pair))
    (pki / f"{name}.key").write_bytes(_private(pair.key))


def _public(pair: _Pair) -> bytes:
    return pair.certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    form, encryption = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, encryption)


def _kubeconfig(url: str, authority: _Pair, pair: _Pair) -> dict[str, object]:
    def coded(content: bytes) -> str:
        return base64.b64encode(content).decode()

    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": {"server": url, "certificate-authority-data": coded(_public(authority))}}],
        "users": [
            {"name": "tests", "user": {"client-certificate-data": coded(_public(pair)), "client-key-data": coded(_private(pair.key))}}
        ],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        "current-context": "tests",
    }
