"""The cluster's own authority on the controller: the Ansible action `host_certificate`, which signs a certificate for a host or a service.

Other roles link to this file. Everything lies in one folder of mode 0700: `ca.key`, `ca.crt`, and `hosts/<name>.key|crt`. A file is
written beside its name and then renamed, under a lock, so hosts may be served at once and a run may be killed at any moment.
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
# Where nothing else is asked for; defaults/main.yml of this role says the same.
_DAYS, _RENEW_DAYS = 365, 60
# Clocks of hosts may be behind the controller's.
_BEFORE = dt.timedelta(hours=1)


class Authority(NamedTuple):
    """The key that signs, and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


class Wish(NamedTuple):
    """What a host's certificate must be: for which names, for how long, and how long before its end it is renewed."""

    host: str
    names: tuple[str, ...]
    valid_days: int
    renew_before_days: int


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Have the folder to oneself; it is made where there is none."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / ".lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def load_authority(folder: Path) -> Authority | None:
    """Return the authority of a folder, None where there is none.

    Raises:
        ValueError: One of its two files is there and cannot be read as what it should be.
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


def make_authority(folder: Path, cluster: str) -> Authority:
    """Make the authority: the certificate is written last, and a key without one begins anew."""
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


def needs_new(folder: Path, authority: Authority, wish: Wish, now: dt.datetime) -> str:
    """Return why a host's certificate must be signed anew, nothing where the one that is there does."""
    try:
        certificate = x509.load_pem_x509_certificate((folder / "hosts" / f"{wish.host}.crt").read_bytes())
        key = serialization.load_pem_private_key((folder / "hosts" / f"{wish.host}.key").read_bytes(), password=None)
        certificate.verify_directly_issued_by(authority.certificate)
    except (OSError, ValueError, TypeError):
        return "there is none"
    except InvalidSignature:
        return "another authority signed it"
    if key.public_key() != certificate.public_key():
        return "the key is another one"
    held = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if set(held) != set(_names(wish.names)):
        return "the host's names changed"
    left = certificate.not_valid_after_utc - now
    return "it runs out" if left < dt.timedelta(days=wish.renew_before_days) else ""


def sign(folder: Path, authority: Authority, wish: Wish) -> None:
    """Sign a certificate with a new key for a host; the certificate is written last."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, wish.host[:64])])
    builder = _builder(subject, authority.certificate.subject, key.public_key(), wish.valid_days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName(_names(wish.names)), critical=False)
    # Both: an Alertmanager is a client of its peers.
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(purposes, critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = builder.add_extension(issuer, critical=False).sign(authority.key, hashes.SHA256())
    (folder / "hosts").mkdir(mode=0o700, exist_ok=True)
    _write(folder / "hosts" / f"{wish.host}.key", _pem(key))
    _write(folder / "hosts" / f"{wish.host}.crt", certificate.public_bytes(serialization.Encoding.PEM))


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), now - _BEFORE, now + dt.timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _names(names: Sequence[str]) -> list[x509.GeneralName]:
    """Return the names as a certificate writes them: addresses are of a kind of their own."""
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
    """Replace a file at once; only its owner may read it (mkstemp's mode)."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    Path(name).replace(path)


def bring(folder: Path, cluster: str, wish: Wish, *, look_only: bool) -> bool:
    """Have a certificate of the folder's authority for a host; return whether anything was, or would be, made.

    Raises:
        ValueError: The authority that is there cannot be read; another one would shut every host out.
        OSError: The folder cannot be written.
    """
    if look_only and not folder.exists():
        return True
    with locked(folder):
        # A run that was killed between the two has signed nothing.
        halfway = (folder / "ca.key").exists() and not (folder / "ca.crt").exists()
        authority = None if halfway else load_authority(folder)
        now = dt.datetime.now(dt.UTC)
        if authority and not needs_new(folder, authority, wish, now):
            return False
        if not look_only:
            sign(folder, authority or make_authority(folder, cluster), wish)
    return True


class ActionModule(ActionBase):
    """Contacts no host."""

    # `folder` is the authority's, empty for that in the cluster's state folder; `name` is what the certificate is filed under; `now` signs
    # it anew whatever time it has left.
    _VALID_ARGS = frozenset({"folder", "name", "names", "valid_days", "renew_before_days", "now"})
    _supports_check_mode = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return where certificate, key and authority lie on the controller."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        args, known = self._task.args, task_vars or {}
        cluster = str(known.get("cluster_name") or Path(known["inventory_dir"]).name)
        state = Path(os.environ.get("PRIMUS_STATE_DIR") or Path(known["inventory_dir"], ".primus"))
        folder = Path(args.get("folder") or state / cluster / "ca")
        name = str(args.get("name") or known["inventory_hostname"])
        days = int(args.get("valid_days", _DAYS))
        # Every certificate runs out within more days than it is valid for.
        before = days + 1 if boolean(args.get("now", False)) else int(args.get("renew_before_days", _RENEW_DAYS))
        wish = Wish(name, tuple(args["names"]), days, before)
        try:
            changed = bring(folder, cluster, wish, look_only=self._task.check_mode)
        except (OSError, ValueError) as error:
            fix = "put the folder back from your copy, or move it away: every host then gets a new certificate of a new authority"
            raise AnsibleActionFail(f"{error}. Fix: {fix}") from error
        own = folder / "hosts" / name
        return {**result, "changed": changed, "cert_file": f"{own}.crt", "key_file": f"{own}.key", "ca_file": str(folder / "ca.crt")}
