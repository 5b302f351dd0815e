"""Ansible action `host_certificate`: sign a certificate for a host or a service with the cluster's own authority, on the controller.

community.crypto would need four delegated tasks for each certificate, and has no lock for hosts that run in parallel.
Everything is in one folder with mode 0700: `ca.key`, `ca.crt` and `hosts/<name>.key|crt`. Files are written to a temporary name and
renamed, under a lock, so a run can be interrupted at any time.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import datetime as dt
import fcntl
import ipaddress
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_AUTHORITY_DAYS = 3650
# Defaults, as in defaults/main.yml of this role.
_DAYS, _RENEW_DAYS = 365, 60
# A certificate is valid from one hour ago, because a host's clock can be behind the controller's.
_BEFORE = dt.timedelta(hours=1)


class Authority(NamedTuple):
    """The authority's private key and certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


class CertificateRequest(NamedTuple):
    """The names and the lifetime of a certificate, and how many days before its end it is renewed."""

    host: str
    names: tuple[str, ...]
    valid_days: int
    renew_before_days: int


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create the folder if it does not exist, and hold its lock."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / ".lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def load_authority(folder: Path) -> Authority | None:
    """Return the authority of a folder, or None if there is none.

    Raises:
        ValueError: One of its two files is missing, damaged or does not belong to the other.
    """
    key_file, certificate_file = folder / "ca.key", folder / "ca.crt"
    if not key_file.exists() and not certificate_file.exists():
        return None
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"the authority in {folder} cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError(f"{certificate_file} is not the certificate of {key_file}")
    return Authority(key, certificate)


def create_authority(folder: Path, cluster: str) -> Authority:
    """Create the authority. The certificate is written last; a key without a certificate is replaced."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{cluster[:40]} cluster authority")])
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False
    )
    builder = _builder(name, name, key.public_key(), _AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    _write(folder / "ca.key", _pem(key))
    _write(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))
    return Authority(key, certificate)


def renewal_reason(folder: Path, authority: Authority, request: CertificateRequest, now: dt.datetime) -> str:
    """Return why a certificate must be signed again, or an empty text if the current one is right."""
    try:
        certificate = x509.load_pem_x509_certificate((folder / "hosts" / f"{request.host}.crt").read_bytes())
        key = serialization.load_pem_private_key((folder / "hosts" / f"{request.host}.key").read_bytes(), password=None)
        certificate.verify_directly_issued_by(authority.certificate)
    except (OSError, ValueError, TypeError):
        return "there is no certificate"
    except InvalidSignature:
        return "another authority signed it"
    if key.public_key() != certificate.public_key():
        return "the key does not belong to the certificate"
    current = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if set(current) != set(_names(request.names)):
        return "the host's names changed"
    left = certificate.not_valid_after_utc - now
    return "it expires soon" if left < dt.timedelta(days=request.renew_before_days) else ""


def sign(folder: Path, authority: Authority, request: CertificateRequest) -> None:
    """Sign a certificate with a new key; the certificate is written last."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, request.host[:64])])
    builder = _builder(subject, authority.certificate.subject, key.public_key(), request.valid_days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName(_names(request.names)), critical=False)
    # Server and client: an Alertmanager is a client of its peers.
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(purposes, critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = builder.add_extension(issuer, critical=False).sign(authority.key, hashes.SHA256())
    (folder / "hosts").mkdir(mode=0o700, exist_ok=True)
    _write(folder / "hosts" / f"{request.host}.key", _pem(key))
    _write(folder / "hosts" / f"{request.host}.crt", certificate.public_bytes(serialization.Encoding.PEM))


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), now - _BEFORE, now + dt.timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _names(names: Sequence[str]) -> list[x509.GeneralName]:
    """Return names and addresses as subject alternative names."""
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name))
    return found


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write(path: Path, data: bytes) -> None:
    """Replace a file atomically; only its owner can read it (mkstemp's mode)."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    Path(name).replace(path)


def ensure_certificate(folder: Path, cluster: str, request: CertificateRequest, *, check: bool) -> bool:
    """Create or renew a certificate; return whether something was written, or with `check` would be.

    Raises:
        ValueError: The existing authority cannot be read. A new one would invalidate the certificates of all hosts.
        OSError: The folder cannot be written.
    """
    if check and not folder.exists():
        return True
    with locked(folder):
        # A run that was interrupted between the two files has signed nothing.
        incomplete = (folder / "ca.key").exists() and not (folder / "ca.crt").exists()
        authority = None if incomplete else load_authority(folder)
        now = dt.datetime.now(dt.UTC)
        if authority and not renewal_reason(folder, authority, request, now):
            return False
        if not check:
            sign(folder, authority or create_authority(folder, cluster), request)
    return True


class ActionModule(ActionBase):
    """Contacts no host."""

    # `folder` of the authority, empty = in the cluster's state folder; `name` of the certificate's files; `now` signs a new certificate
    # even if the current one is valid.
    _VALID_ARGS = frozenset({"folder", "name", "names", "valid_days", "renew_before_days", "now"})
    _supports_check_mode = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the paths of certificate, key and authority on the controller."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        args, known = self._task.args, task_vars or {}
        cluster = str(known.get("cluster_name") or Path(known["inventory_dir"]).name)
        state = Path(os.environ.get("PRIMUS_STATE_DIR") or Path(known["inventory_dir"], ".primus"))
        folder = Path(args.get("folder") or state / cluster / "ca")
        name = str(args.get("name") or known["inventory_hostname"])
        days = int(args.get("valid_days", _DAYS))
        # No certificate is valid for longer than `days`, so `days + 1` renews every one.
        before = days + 1 if boolean(args.get("now", False)) else int(args.get("renew_before_days", _RENEW_DAYS))
        request = CertificateRequest(name, tuple(args["names"]), days, before)
        try:
            changed = ensure_certificate(folder, cluster, request, check=self._task.check_mode)
        except (OSError, ValueError) as error:
            fix = f"restore {folder} from a backup, or move it away; every host then gets a new certificate from a new authority"
            raise AnsibleActionFail(f"{error}. Fix: {fix}") from error
        own = folder / "hosts" / name
        return {**result, "changed": changed, "cert_file": f"{own}.crt", "key_file": f"{own}.key", "ca_file": str(folder / "ca.crt")}
