#!/usr/bin/python
"""Read the Kubernetes certificates of a host, and when the programs that use them started: the Ansible module `kube_certificate_files`.

Own module: community.crypto.x509_certificate_info needs a library on the host and cannot read the certificate in a kubeconfig. This one
changes nothing and returns certificates only: private keys in kubeconfigs and PEM files stay on the host.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
CLIENT = re.compile(r"client-certificate-data:\s*[\"']?([A-Za-z0-9+/=]+)")


def certificate_in(text: str) -> str:
    """Return the first certificate of a file, or the user's certificate of a kubeconfig; empty if there is none."""
    coded = CLIENT.search(text)
    if coded:
        with suppress(ValueError, binascii.Error):
            text = base64.b64decode(coded[1]).decode("ascii")
    found = PEM.search(text)
    return found[0] if found else ""


def read(patterns: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the certificates of these files, each once even if several links name it, and the files that cannot be read."""
    found: dict[str, dict[str, Any]] = {}
    unread = []
    for path in sorted({str(name) for pattern in patterns for name in Path("/").glob(pattern.lstrip("/"))}):
        real = os.path.realpath(path)
        try:
            pem = certificate_in(Path(path).read_text(encoding="utf-8", errors="replace"))
            written = Path(path).stat().st_mtime
        except OSError as error:
            unread.append(f"{path}: {error.strerror}")
            continue
        if pem and real not in found:
            found[real] = {"file": path, "pem": pem, "written": written}
    return list(found.values()), unread


def started(stat: str, uptime_s: float, now: float, ticks: int) -> float:
    """Return the start time of a process in seconds since the epoch, from its line in /proc/PID/stat."""
    return now - uptime_s + int(stat.rsplit(")", 1)[1].split()[19]) / ticks


def running(programs: list[str], proc: Path, now: float) -> dict[str, float]:
    """Return the start time of those of the programs that run, by their names."""
    uptime_s, ticks = float((proc / "uptime").read_text(encoding="ascii").split()[0]), os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {}
    for path in proc.glob("[0-9]*/cmdline"):
        with suppress(OSError, IndexError, ValueError):
            name = path.read_bytes().split(b"\0")[0].rsplit(b"/", 1)[-1].decode("utf-8", "replace")
            if name in programs:
                began = started(path.with_name("stat").read_text(encoding="utf-8", errors="replace"), uptime_s, now, ticks)
                found[name] = max(found.get(name, 0.0), began)
    return found


def main() -> None:
    """Read the certificates and the running programs."""
    module = AnsibleModule(
        argument_spec={name: {"type": "list", "elements": "str", "required": True} for name in ("patterns", "programs")},
        supports_check_mode=True,
    )
    certificates, unread = read(module.params["patterns"])
    started_at = running(module.params["programs"], Path("/proc"), time.time())
    module.exit_json(changed=False, certificates=certificates, unread=unread, running=started_at)


if __name__ == "__main__":
    main()
