"""The registry's certificate, created and checked with the real openssl."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.unit.role_module import load_file

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ["registry.test", "10.0.0.5"]
PROGRAM = load_file(content.roles_dir() / "oci_registry" / "files" / "registry_certificate.py")


def files_in(folder: Path, *, check: bool = False, **other: Any) -> Any:
    """Return the certificate files of a folder with the role's defaults."""
    settings = {"folder": str(folder), "group": os.getgid(), "given": False, "given_ca": False, "names": NAMES, "ca_name": "test"}
    return PROGRAM.RegistryCertificate({**settings, "valid_days": 397, "renew_days": 60, "ca_valid_days": 3650, **other}, check=check)


def run(*words: str) -> None:
    """Run openssl."""
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=60)


def give(folder: Path, name: str = "registry.test") -> None:
    """Create a self-signed certificate as a site would provide it."""
    outputs = ["-keyout", str(folder / "given.key"), "-out", str(folder / "given.crt")]
    named = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *named, *outputs)
    (folder / "given-ca.crt").write_bytes((folder / "given.crt").read_bytes())


def test_second_run_changes_nothing(tmp_path: Path) -> None:
    """Authority and certificate are created once; names match and keys are private."""
    first, second = files_in(tmp_path), files_in(tmp_path)
    first.ensure_own()
    before = (tmp_path / "server.pem").read_bytes()

    second.ensure_own()

    assert first.messages == ["creates a certificate authority", "signs a certificate: there is none"]
    assert second.messages == []
    assert (tmp_path / "server.pem").read_bytes() == before
    assert PROGRAM.names_missing(tmp_path / "server.pem", NAMES) == []
    assert oct((tmp_path / "authority" / "ca.key").stat().st_mode & 0o777) == "0o600"
    assert oct((tmp_path / "server.pem").stat().st_mode & 0o777) == "0o640"


def test_check_mode_changes_nothing(tmp_path: Path) -> None:
    """It reports the pending changes."""
    look = files_in(tmp_path, check=True)

    look.ensure_own()

    assert look.messages == ["creates a certificate authority", "signs a certificate: there is none"]
    assert list(tmp_path.iterdir()) == []


def test_new_name_or_near_expiry_renews(tmp_path: Path) -> None:
    """Each leads to a new certificate of the same authority."""
    files_in(tmp_path).ensure_own()
    authority = (tmp_path / "ca.crt").read_bytes()
    named, near = files_in(tmp_path, names=[*NAMES, "new.test"]), files_in(tmp_path, names=[*NAMES, "new.test"], renew_days=398)

    named.ensure_own()
    near.ensure_own()

    assert named.messages == ["signs a certificate: it lacks new.test"]
    assert near.messages == ["signs a certificate: it expires within 398 days"]
    assert (tmp_path / "ca.crt").read_bytes() == authority


def test_authority_is_renewed_with_the_same_key(tmp_path: Path) -> None:
    """Certificates of the old one remain valid."""
    files_in(tmp_path, ca_valid_days=400).ensure_own()
    server, key = (tmp_path / "server.pem").read_bytes(), (tmp_path / "authority" / "ca.key").read_bytes()
    again = files_in(tmp_path, valid_days=401)

    again.ensure_own()

    assert again.messages == ["renews the CA certificate with the same key"]
    assert (tmp_path / "server.pem").read_bytes() == server
    assert (tmp_path / "authority" / "ca.key").read_bytes() == key
    assert PROGRAM.signed_by(tmp_path / "server.pem", tmp_path / "ca.crt")[0]


def test_lost_certificate_and_damaged_file_are_replaced(tmp_path: Path) -> None:
    """This occurs after a kill or a manual change."""
    files_in(tmp_path).ensure_own()
    (tmp_path / "server.pem").write_text("torn", encoding="utf-8")
    again = files_in(tmp_path)

    again.ensure_own()

    assert again.messages == ["signs a certificate: its key does not match"]
    assert files_in(tmp_path).renewal_reason() == ""


def test_provided_certificate_is_installed_once(tmp_path: Path) -> None:
    """A second run changes nothing."""
    give(tmp_path)
    first, second = files_in(tmp_path, given=True, given_ca=True), files_in(tmp_path, given=True, given_ca=True)

    first.install_provided()
    second.install_provided()

    assert first.messages == ["installs the provided certificate", "installs the provided CA certificate"]
    assert second.messages == []


def test_provided_certificate_with_another_name_is_refused(tmp_path: Path) -> None:
    """The error contains both names and a fix; the current certificate stays."""
    give(tmp_path, name="other.test")
    (tmp_path / "server.pem").write_text("what serves", encoding="utf-8")

    with pytest.raises(PROGRAM.CertificateError, match=r"is for DNS:other.test, and clients use registry.test\. Fix: "):
        files_in(tmp_path, given=True, given_ca=True).install_provided()

    assert (tmp_path / "server.pem").read_text(encoding="utf-8") == "what serves"


def test_expired_provided_certificate_is_refused(tmp_path: Path) -> None:
    """The error contains the date and a fix."""
    give(tmp_path)
    settings = f"[ca]\ndefault_ca=d\n[d]\ndatabase={tmp_path}/index\nserial={tmp_path}/serial\nnew_certs_dir={tmp_path}\n"
    (tmp_path / "conf").write_text(f"{settings}default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n", encoding="utf-8")
    (tmp_path / "index").touch()
    (tmp_path / "serial").write_text("01\n", encoding="utf-8")
    key, request = str(tmp_path / "given.key"), str(tmp_path / "csr")
    run("req", "-new", "-key", key, "-subj", "/CN=registry.test", "-out", request)
    dates = ["-startdate", "20200101000000Z", "-enddate", "20200201000000Z"]
    given = ["-in", request, "-keyfile", key, "-out", str(tmp_path / "given.crt")]
    run("ca", "-batch", "-selfsign", "-notext", "-config", str(tmp_path / "conf"), *given, *dates)

    with pytest.raises(PROGRAM.CertificateError, match=r"has expired \(Feb  1 00:00:00 2020 GMT\)\. Fix: "):
        files_in(tmp_path, given=True, given_ca=True).install_provided()


def test_mismatched_key_and_foreign_authority_are_refused(tmp_path: Path) -> None:
    """The pair must match, and the chain must end at the provided authority."""
    give(tmp_path)
    certificate = (tmp_path / "given.crt").read_bytes()
    give(tmp_path)
    (tmp_path / "given.crt").write_bytes(certificate)
    files = files_in(tmp_path, given=True, given_ca=True)

    key = files.rejection(tmp_path / "given.crt", tmp_path / "given.key", tmp_path / "given-ca.crt")
    give(tmp_path)
    (tmp_path / "given-ca.crt").write_bytes(certificate)
    authority = files.rejection(tmp_path / "given.crt", tmp_path / "given.key", tmp_path / "given-ca.crt")

    assert key.startswith("oci_registry_tls_key_file is not the key of oci_registry_tls_cert_file")
    assert authority.startswith("oci_registry_tls_ca_file did not sign oci_registry_tls_cert_file")
