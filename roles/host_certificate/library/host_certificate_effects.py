#!/usr/bin/python
"""Ansible module `host_certificate_effects`: verify a host's certificate as a TLS client that trusts the authority. Changes nothing.

Both ends of the TLS handshake are in this process, so no port is needed. community.crypto reads certificates but does no handshake.
"""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.verdict_records import Verdicts

FIX = "apply again to sign a new one; with your own certificates, correct host_certificate_*_file"
DAY_S = 86400.0


def handshake(folder: Path, name: str) -> tuple[str, float]:
    """Do a TLS handshake for a name; return the error, empty if the certificate is trusted, and the days until it expires."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(str(folder / "host.crt"), str(folder / "host.key"))
    client_side = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    client = client_side.wrap_bio(to_client, to_server, server_hostname=name)
    done: set[Any] = set()
    for _ in range(10):
        for end in (client, server):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message, 0.0
        if len(done) == 2:
            break
    certificate = client.getpeercert() or {}
    return "", (ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()) / DAY_S


def check_certificate(verdicts: Verdicts, folder: Path, names: list[str], least_days: int) -> None:
    """Check the certificate for each name, and the days until it expires."""
    days: list[float] = []
    for name in names:
        try:
            error_text, left = handshake(folder, name)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError: key and certificate do not belong together
            verdicts.add("trusted", "fail", device=name, expected="trusted", reason=f"{folder}: {error}", fix=FIX)
            continue
        verdict, found = ("fail", error_text) if error_text else ("pass", "trusted")
        verdicts.add("trusted", verdict, device=name, expected="trusted", found=found, reason=error_text, fix=FIX)
        days += [] if error_text else [left]
    expected = f">= {least_days}"
    if not days:
        verdicts.add("valid", "unknown", expected=expected, unit="days", reason="it is not trusted for any name", fix=FIX)
        return
    left = min(days)
    verdict, reason = "pass" if left >= least_days else "fail", f"it expires in {left:.0f} days"
    verdicts.add("valid", verdict, expected=expected, found=f"{left:.0f}", unit="days", reason=reason, fix=FIX)


def main() -> None:
    """Run the checks and report the verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "folder": {"type": "path", "required": True},
            "names": {"type": "list", "elements": "str", "required": True},
            "least_days": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    options = module.params
    verdicts = Verdicts("host_certificate", options["host"])
    check_certificate(verdicts, Path(options["folder"]), options["names"], options["least_days"])
    verdicts.finish(module)


if __name__ == "__main__":
    main()
