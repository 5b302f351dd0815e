#!/usr/bin/env python3
"""Create and renew the registry's certificate with a certificate authority on this host, or check and install one that the site provides.

    registry_certificate.py look|do|renew SETTINGS.json

It prints a line for each change; `look` changes nothing, `renew` signs a new certificate in any case. Ansible runs it on every apply, and
a timer every day. The authority's key is created here and never leaves this host. server.pem has certificate and key, so a renewal
replaces both at once. The timer works without Ansible and without Python's cryptography, so it uses the openssl program and not
community.crypto.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CALL_S = 60
DAY_S = 86400
# RFC 5280: the uses of an authority's and of a server's certificate.
CA_EXTENSIONS = "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"
SERVER_EXTENSIONS = "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth\n"


class CertificateError(Exception):
    """A certificate cannot be used; the message has the fix."""


def openssl(*words: str, stdin: str = "") -> tuple[int, str]:
    """Run openssl and return its exit code and output. Keys are files, never arguments."""
    done = subprocess.run(["openssl", *words], input=stdin, capture_output=True, text=True, errors="replace", check=False, timeout=CALL_S)
    return done.returncode, done.stdout + done.stderr


def run_openssl(*words: str) -> str:
    """Run openssl and return its output.

    Raises:
        CertificateError: It failed.
    """
    status, output = openssl(*words)
    if status:
        reason = (output.strip().splitlines() or ["it printed nothing"])[-1]
        raise CertificateError(f"openssl {words[0]} failed: {reason}. Fix: check the files in /etc/docker/registry/tls")
    return output


def is_address(name: str) -> bool:
    """Return whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def names_missing(certificate: Path, names: list[str]) -> list[str]:
    """Return the names that a certificate does not contain."""
    missing = []
    for name in names:
        _, output = openssl("x509", "-in", str(certificate), "-noout", "-checkip" if is_address(name) else "-checkhost", name)
        if "does match" not in output:
            missing.append(name)
    return missing


def ends_within(certificate: Path, days: int) -> bool:
    """Return whether a certificate expires within this number of days, or is not a certificate."""
    return openssl("x509", "-in", str(certificate), "-noout", "-checkend", str(days * DAY_S))[0] != 0


def key_fits(certificate: Path, key: Path) -> bool:
    """Return whether a key belongs to a certificate."""
    one, public = openssl("x509", "-in", str(certificate), "-noout", "-pubkey")
    other, derived = openssl("pkey", "-in", str(key), "-pubout")
    return one == other == 0 and public == derived


def signed_by(certificate: Path, authority: Path | None) -> tuple[bool, str]:
    """Return whether an authority (None: the system's) signed a certificate, with the chain in its file, and openssl's reason if not."""
    trusted = [] if authority is None else ["-CAfile", str(authority), "-no-CApath"]
    status, output = openssl("verify", *trusted, "-untrusted", str(certificate), str(certificate))
    reasons = [line for line in output.splitlines() if line.startswith("error ")]
    return status == 0, (reasons or output.strip().splitlines() or [""])[0]


class RegistryCertificate:
    """The files of the registry's certificate in one folder."""

    def __init__(self, settings: dict[str, Any], *, check: bool, renew: bool = False) -> None:
        """Store the parameters. With `check` nothing is changed. `messages` collects the changes."""
        self.settings = settings
        self.check = check
        self.renew = renew
        self.folder = Path(settings["folder"])
        self.server = self.folder / "server.pem"
        self.authority = self.folder / "ca.crt"
        self.authority_key = self.folder / "authority" / "ca.key"
        self.messages: list[str] = []

    def write(self, path: Path, text: str, mode: int, group: str | None = None) -> None:
        """Replace a file atomically, with its final mode."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            if group:
                shutil.chown(name, group=group)
            Path(name).chmod(mode)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise

    def install_provided(self) -> None:
        """Check the site's certificate and install it.

        Raises:
            CertificateError: Clients would reject it.
        """
        certificate, key = self.folder / "given.crt", self.folder / "given.key"
        authority = self.folder / "given-ca.crt" if self.settings["given_ca"] else None
        if reason := self.rejection(certificate, key, authority):
            raise CertificateError(reason)
        combined = certificate.read_text("utf-8").rstrip("\n") + "\n" + key.read_text("utf-8")
        if not self.server.exists() or self.server.read_text("utf-8") != combined:
            self.messages.append("installs the provided certificate")
            if not self.check:
                self.write(self.server, combined, 0o640, self.settings["group"])
        text = authority.read_text("utf-8") if authority else ""
        if not self.authority.exists() or self.authority.read_text("utf-8") != text:
            self.messages.append("installs the provided CA certificate")
            if not self.check:
                self.write(self.authority, text, 0o644)

    def rejection(self, certificate: Path, key: Path, authority: Path | None) -> str:
        """Return why clients would reject a provided certificate, with the fix; empty if they would not."""
        variable = "oci_registry_tls_cert_file"
        status, dates = openssl("x509", "-in", str(certificate), "-noout", "-enddate")
        if status:
            return f"{variable} is not a certificate in PEM. Fix: provide one that begins with BEGIN CERTIFICATE"
        if ends_within(certificate, 0):
            return (
                f"the certificate of {variable} has expired ({dates.strip().partition('=')[2]}). Fix: provide a renewed one and apply again"
            )
        if not key_fits(certificate, key):
            return f"oci_registry_tls_key_file is not the key of {variable}. Fix: provide the matching key, without a passphrase"
        if missing := names_missing(certificate, self.settings["names"][:1]):
            names = run_openssl("x509", "-in", str(certificate), "-noout", "-ext", "subjectAltName").partition("\n")[2].strip() or "no name"
            return (
                f"the certificate of {variable} is for {names}, and clients use {missing[0]}. "
                "Fix: provide one with this name (subjectAltName), or set oci_registry_name to a name that it has"
            )
        good, reason = signed_by(certificate, authority)
        if not good:
            signer = "oci_registry_tls_ca_file did not sign" if authority else "no certificate authority of the system signed"
            return f"{signer} {variable}: {reason}. Fix: provide the right authority, and the chain in the certificate's file"
        return ""

    def ensure_own(self) -> None:
        """Create the authority, renew its certificate with the same key, and create or renew a certificate for all names."""
        self.ensure_authority()
        if reason := self.renewal_reason():
            self.messages.append(f"signs a certificate: {reason}")
            if not self.check:
                self.issue()

    def ensure_authority(self) -> None:
        """Create the authority's key once, and a CA certificate that is valid for longer than every certificate that it signs."""
        if not self.authority_key.exists():
            self.messages.append("creates a certificate authority")
            if not self.check:
                self.write(self.authority_key, run_openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"), 0o600)
                self.sign_authority()
        elif ends_within(self.authority, self.settings["valid_days"]) or not key_fits(self.authority, self.authority_key):
            self.messages.append("renews the CA certificate with the same key")
            if not self.check:
                self.sign_authority()

    def sign_authority(self) -> None:
        """Sign the CA certificate. Its subject and key stay the same, so certificates that it has signed stay valid."""
        subject = f"/CN={self.settings['ca_name']}"
        days = str(self.settings["ca_valid_days"])
        with tempfile.TemporaryDirectory(dir=self.authority_key.parent) as folder:
            request, extensions, certificate = (Path(folder, name) for name in ("csr", "ext", "crt"))
            extensions.write_text(CA_EXTENSIONS, encoding="utf-8")
            run_openssl("req", "-new", "-key", str(self.authority_key), "-subj", subject, "-out", str(request))
            run_openssl(
                "x509",
                "-req",
                "-in",
                str(request),
                "-signkey",
                str(self.authority_key),
                "-days",
                days,
                "-sha256",
                "-extfile",
                str(extensions),
                "-out",
                str(certificate),
            )
            self.write(self.authority, certificate.read_text("utf-8"), 0o644)

    def renewal_reason(self) -> str:
        """Return why a new certificate is needed; empty if the current one is valid for long enough."""
        if not self.server.exists():
            return "there is none"
        if not key_fits(self.server, self.server):
            return "its key does not match"
        if missing := names_missing(self.server, self.settings["names"]):
            return f"it lacks {', '.join(missing)}"
        if self.renew:
            return "a renewal was requested"
        if ends_within(self.server, self.settings["renew_days"]):
            return f"it expires within {self.settings['renew_days']} days"
        good, reason = signed_by(self.server, self.authority)
        return "" if good else f"the authority did not sign it ({reason})"

    def issue(self) -> None:
        """Create a key and a certificate for all names, and replace both at once."""
        names = ",".join(f"{'IP' if is_address(name) else 'DNS'}:{name}" for name in self.settings["names"])
        days = str(self.settings["valid_days"])
        with tempfile.TemporaryDirectory(dir=self.authority_key.parent) as folder:
            key, request, extensions, certificate = (Path(folder, name) for name in ("key", "csr", "ext", "crt"))
            text = f"{SERVER_EXTENSIONS}subjectAltName={names}\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
            extensions.write_text(text, encoding="utf-8")
            run_openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(key))
            run_openssl("req", "-new", "-key", str(key), "-subj", f"/CN={self.settings['names'][0][:64]}", "-out", str(request))
            signer = [
                "-CA",
                str(self.authority),
                "-CAkey",
                str(self.authority_key),
                "-CAserial",
                str(Path(folder, "serial")),
                "-CAcreateserial",
            ]
            output = ["-days", days, "-sha256", "-extfile", str(extensions), "-out", str(certificate)]
            run_openssl("x509", "-req", "-in", str(request), *signer, *output)
            self.write(self.server, certificate.read_text("utf-8") + key.read_text("utf-8"), 0o640, self.settings["group"])


def main() -> int:
    """Print the changes, or the reason why the certificate cannot be used."""
    mode, path = sys.argv[1:]
    os.umask(0o077)
    files = RegistryCertificate(json.loads(Path(path).read_text("utf-8")), check=mode == "look", renew=mode == "renew")
    try:
        if files.settings["given"]:
            files.install_provided()
        else:
            files.ensure_own()
    except CertificateError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"{error.filename or files.folder}: {error.strerror}. Fix: check that its file system is writable and has free space",
            file=sys.stderr,
        )
        return 1
    print("\n".join(files.messages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
