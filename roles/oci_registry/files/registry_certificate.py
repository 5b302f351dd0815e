#!/usr/bin/env python3
"""Keep the registry's certificate: make and renew one by an authority of this host's own, or judge and take up one that was given.

    registry_certificate.py look|do SETTINGS.json

A line is printed for everything that is (or would be) changed. Ansible runs it on every apply, and a timer every day. The authority's key
is made here and never leaves this host. server.pem holds certificate and key, so a renewal replaces both at once.
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
# RFC 5280: what a server's certificate may be used for, and what an authority's may.
CA_EXTENSIONS = "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"
SERVER_EXTENSIONS = "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth\n"


class CertificateError(Exception):
    """What is wrong with a certificate, with its `Fix:`."""


def openssl(*words: str, stdin: str = "") -> tuple[int, str]:
    """Run openssl; return its status and what it said. Keys are files, never arguments."""
    done = subprocess.run(["openssl", *words], input=stdin, capture_output=True, text=True, check=False, timeout=CALL_S)
    return done.returncode, done.stdout + done.stderr


def must(*words: str) -> str:
    """Run openssl and return what it said; where it fails, say so."""
    status, said = openssl(*words)
    if status:
        why = (said.strip().splitlines() or ["it said nothing"])[-1]
        raise CertificateError(f"openssl {words[0]} failed: {why}. Fix: see that its folder is whole")
    return said


def is_address(name: str) -> bool:
    """Whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def names_missing(certificate: Path, names: list[str]) -> list[str]:
    """Return the names that a certificate does not stand for."""
    missing = []
    for name in names:
        _, said = openssl("x509", "-in", str(certificate), "-noout", "-checkip" if is_address(name) else "-checkhost", name)
        if "does match" not in said:
            missing.append(name)
    return missing


def ends_within(certificate: Path, days: int) -> bool:
    """Whether a certificate ends within so many days, or is none."""
    return openssl("x509", "-in", str(certificate), "-noout", "-checkend", str(days * DAY_S))[0] != 0


def key_fits(certificate: Path, key: Path) -> bool:
    """Whether a key is that of a certificate."""
    one, public = openssl("x509", "-in", str(certificate), "-noout", "-pubkey")
    other, derived = openssl("pkey", "-in", str(key), "-pubout")
    return one == other == 0 and public == derived


def signed_by(certificate: Path, authority: Path | None) -> tuple[bool, str]:
    """Whether an authority (None: one that the system knows) stands for a certificate and the chain in its file; and what openssl says."""
    known = [] if authority is None else ["-CAfile", str(authority), "-no-CApath"]
    status, said = openssl("verify", *known, "-untrusted", str(certificate), str(certificate))
    reasons = [line for line in said.splitlines() if line.startswith("error ")]
    return status == 0, (reasons or said.strip().splitlines() or [""])[0]


class Keeper:
    """The folder of certificates and what is to be in it."""

    def __init__(self, settings: dict[str, Any], *, changes: bool, anew: bool = False) -> None:
        """Keep where everything lies, and whether an own certificate is made anew in any case; `said` gathers what is changed."""
        self.settings = settings
        self.changes = changes
        self.anew = anew
        self.folder = Path(settings["folder"])
        self.server = self.folder / "server.pem"
        self.authority = self.folder / "ca.crt"
        self.authority_key = self.folder / "authority" / "ca.key"
        self.said: list[str] = []

    def put(self, path: Path, text: str, mode: int, group: str | None = None) -> None:
        """Replace a file at once, with its mode from the start."""
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

    def take_given(self) -> None:
        """Judge the certificate that was given, and take it up."""
        certificate, key = self.folder / "given.crt", self.folder / "given.key"
        authority = self.folder / "given-ca.crt" if self.settings["given_ca"] else None
        if found := self.refusal(certificate, key, authority):
            raise CertificateError(found)
        wanted = certificate.read_text("utf-8").rstrip("\n") + "\n" + key.read_text("utf-8")
        if not self.server.exists() or self.server.read_text("utf-8") != wanted:
            self.said.append("takes the given certificate")
            if self.changes:
                self.put(self.server, wanted, 0o640, self.settings["group"])
        text = authority.read_text("utf-8") if authority else ""
        if not self.authority.exists() or self.authority.read_text("utf-8") != text:
            self.said.append("takes the given authority")
            if self.changes:
                self.put(self.authority, text, 0o644)

    def refusal(self, certificate: Path, key: Path, authority: Path | None) -> str:
        """Return why a given certificate cannot serve, with its fix; empty where it can."""
        stated = "oci_registry_tls_cert_file"
        status, dates = openssl("x509", "-in", str(certificate), "-noout", "-enddate")
        if status:
            return f"{stated} holds no certificate in PEM. Fix: give one that begins with BEGIN CERTIFICATE"
        if ends_within(certificate, 0):
            return f"the certificate of {stated} has expired ({dates.strip().partition('=')[2]}). Fix: give a renewed one and apply again"
        if not key_fits(certificate, key):
            return f"oci_registry_tls_key_file is not the key of {stated}. Fix: give the key that it was made with, without a passphrase"
        if missing := names_missing(certificate, self.settings["names"][:1]):
            names = must("x509", "-in", str(certificate), "-noout", "-ext", "subjectAltName").partition("\n")[2].strip() or "no name"
            return (
                f"the certificate of {stated} is for {names}, and clients use {missing[0]}. "
                "Fix: give one that names it (subjectAltName), or set oci_registry_name to a name that it has"
            )
        good, reason = signed_by(certificate, authority)
        if not good:
            who = "oci_registry_tls_ca_file does not stand" if authority else "no authority that the system knows stands"
            return f"{who} for {stated}: {reason}. Fix: give the right authority, and the chain in the certificate's file"
        return ""

    def keep_own(self) -> None:
        """Make the authority once, renew its certificate with the same key, and keep a certificate for all names."""
        self.keep_authority()
        why = self.why_renew()
        if why:
            self.said.append(f"makes a certificate: {why}")
            if self.changes:
                self.issue()

    def keep_authority(self) -> None:
        """Have a key that is made once, and a certificate that outlives every one that it signs."""
        if not self.authority_key.exists():
            self.said.append("makes an authority")
            if self.changes:
                self.put(self.authority_key, must("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"), 0o600)
                self.sign_authority()
        elif ends_within(self.authority, self.settings["valid_days"]) or not key_fits(self.authority, self.authority_key):
            self.said.append("renews the certificate of the authority, with the same key")
            if self.changes:
                self.sign_authority()

    def sign_authority(self) -> None:
        """Sign the authority's own certificate. Its subject and key stay, so certificates that it has signed stay good."""
        subject = f"/CN={self.settings['ca_name']}"
        days = str(self.settings["ca_valid_days"])
        with tempfile.TemporaryDirectory(dir=self.authority_key.parent) as folder:
            request, extensions, made = (Path(folder, name) for name in ("csr", "ext", "crt"))
            extensions.write_text(CA_EXTENSIONS, encoding="utf-8")
            must("req", "-new", "-key", str(self.authority_key), "-subj", subject, "-out", str(request))
            must(
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
                str(made),
            )
            self.put(self.authority, made.read_text("utf-8"), 0o644)

    def why_renew(self) -> str:
        """Return why a certificate must be made; empty where the present one is good."""
        if not self.server.exists():
            return "there is none"
        if not key_fits(self.server, self.server):
            return "it and its key do not belong together"
        if missing := names_missing(self.server, self.settings["names"]):
            return f"it lacks {', '.join(missing)}"
        if self.anew:
            return "it is asked for"
        if ends_within(self.server, self.settings["renew_days"]):
            return f"it ends within {self.settings['renew_days']} days"
        good, reason = signed_by(self.server, self.authority)
        return "" if good else f"the authority does not stand for it ({reason})"

    def issue(self) -> None:
        """Make a key and a certificate for all names, and take both up at once."""
        names = ",".join(f"{'IP' if is_address(name) else 'DNS'}:{name}" for name in self.settings["names"])
        days = str(self.settings["valid_days"])
        with tempfile.TemporaryDirectory(dir=self.authority_key.parent) as folder:
            key, request, extensions, made = (Path(folder, name) for name in ("key", "csr", "ext", "crt"))
            text = f"{SERVER_EXTENSIONS}subjectAltName={names}\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
            extensions.write_text(text, encoding="utf-8")
            must("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(key))
            must("req", "-new", "-key", str(key), "-subj", f"/CN={self.settings['names'][0][:64]}", "-out", str(request))
            signs = [
                "-CA",
                str(self.authority),
                "-CAkey",
                str(self.authority_key),
                "-CAserial",
                str(Path(folder, "serial")),
                "-CAcreateserial",
            ]
            must("x509", "-req", "-in", str(request), *signs, "-days", days, "-sha256", "-extfile", str(extensions), "-out", str(made))
            self.put(self.server, made.read_text("utf-8") + key.read_text("utf-8"), 0o640, self.settings["group"])


def main() -> int:
    """Look, do, or renew in any case; say what changes, or what is wrong."""
    mode, path = sys.argv[1:]
    os.umask(0o077)
    keeper = Keeper(json.loads(Path(path).read_text("utf-8")), changes=mode != "look", anew=mode == "renew")
    try:
        if keeper.settings["given"]:
            keeper.take_given()
        else:
            keeper.keep_own()
    except CertificateError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"{error.filename or keeper.folder}: {error.strerror}. Fix: see that its file system is writable and has room", file=sys.stderr
        )
        return 1
    print("\n".join(keeper.said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
