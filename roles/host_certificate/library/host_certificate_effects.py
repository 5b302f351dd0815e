#!/usr/bin/python
"""Ansible module `host_certificate_effects`: verify a host's certificate as a TLS client that trusts the authority. Changes nothing.

Both ends of the TLS handshake are in this process, so no port is needed. community.crypto reads certificates but does no handshake.
"""

from __future__ import annotations

import json
import ssl
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

SCHEMA = "primus.verdict/1"
SOURCE = "roles/host_certificate/meta/argument_specs.yml"
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


def record(host: str, check: str, verdict: str, **fields: Any) -> dict[str, Any]:
    """Return one verdict record."""
    fix = {} if verdict == "pass" else {"fix": FIX}
    constant = {"source": SOURCE, "started": time.time(), "seconds": 0.0, "schema": SCHEMA}
    return {"check": f"host_certificate.{check}", "host": host, "verdict": verdict, **fields, **fix, **constant}


def check_certificate(host: str, folder: Path, names: list[str], least_days: int) -> list[dict[str, Any]]:
    """Return a verdict for each name, and one for the days until the certificate expires."""
    found = []
    days: list[float] = []
    for name in names:
        try:
            error_text, left = handshake(folder, name)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError: key and certificate do not belong together
            found.append(record(host, "trusted", "fail", device=name, expected="trusted", found="", reason=f"{folder}: {error}"))
            continue
        fields = {"device": name, "expected": "trusted", "found": error_text or "trusted", "reason": error_text}
        found.append(record(host, "trusted", "fail" if error_text else "pass", **fields))
        days += [] if error_text else [left]
    if not days:
        reason = "it is not trusted for any name"
        return [*found, record(host, "valid", "unknown", expected=f">= {least_days}", found="", unit="days", reason=reason)]
    left = min(days)
    reason = "" if left >= least_days else f"it expires in {left:.0f} days"
    fields = {"expected": f">= {least_days}", "found": f"{left:.0f}", "unit": "days", "reason": reason}
    return [*found, record(host, "valid", "fail" if reason else "pass", **fields)]


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
    verdicts = check_certificate(options["host"], Path(options["folder"]), options["names"], options["least_days"])
    result = {"changed": False, "verdicts": verdicts, "stdout": json.dumps({"verdicts": verdicts})}
    failed = [f"{one['check']} {one.get('device', '')}: {one['reason']}. Fix: {one['fix']}" for one in verdicts if one["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
