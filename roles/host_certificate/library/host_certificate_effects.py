#!/usr/bin/python
"""Meet a host's certificate as a client does that knows the authority: the Ansible module `host_certificate_effects`. It changes nothing.

Both ends of the TLS handshake are in this process, so no port is needed and nothing else than certificate, key and authority is judged.
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
FIX = "apply again, which signs a new one; with certificates of the site, mend host_certificate_*_file"
DAY_S = 86400.0


def meet(folder: Path, name: str) -> tuple[str, float]:
    """Shake hands under a name; return what is wrong (nothing where it is believed) and the days that are left."""
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
    bad = {} if verdict == "pass" else {"fix": FIX}
    fixed = {"source": SOURCE, "started": time.time(), "seconds": 0.0, "schema": SCHEMA}
    return {"check": f"host_certificate.{check}", "host": host, "verdict": verdict, **fields, **bad, **fixed}


def look(host: str, folder: Path, names: list[str], least_days: int) -> list[dict[str, Any]]:
    """Return a verdict for each name, and one for the days that are left."""
    found = []
    days: list[float] = []
    for name in names:
        try:
            wrong, left = meet(folder, name)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError: key and certificate do not belong together
            found.append(record(host, "believed", "fail", device=name, expected="believed", found="", reason=f"{folder}: {error}"))
            continue
        words = {"device": name, "expected": "believed", "found": wrong or "believed", "reason": wrong}
        found.append(record(host, "believed", "fail" if wrong else "pass", **words))
        days += [] if wrong else [left]
    if not days:
        reason = "no name of it is believed"
        return [*found, record(host, "valid", "unknown", expected=f">= {least_days}", found="", unit="days", reason=reason)]
    left = min(days)
    reason = "" if left >= least_days else f"it runs out in {left:.0f} days"
    words = {"expected": f">= {least_days}", "found": f"{left:.0f}", "unit": "days", "reason": reason}
    return [*found, record(host, "valid", "fail" if reason else "pass", **words)]


def main() -> None:
    """Read the arguments, look, and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "folder": {"type": "path", "required": True},
            "names": {"type": "list", "elements": "str", "required": True},
            "least_days": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    verdicts = look(wanted["host"], Path(wanted["folder"]), wanted["names"], wanted["least_days"])
    result = {"changed": False, "verdicts": verdicts, "stdout": json.dumps({"verdicts": verdicts})}
    failed = [f"{one['check']} {one.get('device', '')}: {one['reason']}. Fix: {one['fix']}" for one in verdicts if one["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
