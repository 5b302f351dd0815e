#!/usr/bin/python
"""Restart a static pod of kubelet: the Ansible module `kube_static_pod`.

Own module: no collection restarts static pods. It changes an annotation in the manifest, as `kubeadm upgrade` does, and kubelet restarts
the pod. The file is replaced atomically, so the pod always has a manifest, even if the module is killed. It returns the URL of this
host's own API server, which must be ready before the next restart.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_processes import running

ANNOTATION = "primus-bootstrap/restarted"
_POLL_S = 0.5


def with_annotation(text: str, value: str) -> str:
    """Return a manifest with our annotation in its metadata.

    Raises:
        ValueError: It has no metadata in kubeadm's format.
    """
    line = f'    {ANNOTATION}: "{value}"'
    if re.search(rf"(?m)^    {re.escape(ANNOTATION)}:.*$", text):
        return re.sub(rf"(?m)^    {re.escape(ANNOTATION)}:.*$", line, text, count=1)
    if re.search(r"(?m)^metadata:\n(?:  .*\n)*?  annotations:\s*$", text):
        return re.sub(r"(?m)^(metadata:\n(?:  .*\n)*?  annotations:[ ]*)$", lambda found: f"{found[1]}\n{line}", text, count=1)
    if re.search(r"(?m)^metadata:\s*$", text):
        return re.sub(r"(?m)^metadata:[ ]*$", f"metadata:\n  annotations:\n{line}", text, count=1)
    raise ValueError("no `metadata:` at the beginning of a line")


def own_server(manifest: str) -> str:
    """Return the URL of this host's API server from its manifest. A kubeconfig may name another host or a load balancer."""
    options = dict(re.findall(r"(?m)^\s*-\s+[\"']?--(bind-address|secure-port)=(\S+?)[\"']?\s*$", manifest))
    bound = options.get("bind-address", "::")
    host = "127.0.0.1" if bound in ("::", "0.0.0.0") else f"[{bound}]" if ":" in bound else bound  # noqa: S104 - nothing is bound here
    return f"https://{host}:{options.get('secure-port', '6443')}"


def replace(path: Path, text: str) -> None:
    """Replace a manifest atomically; kubelet ignores names that start with a dot."""
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, path.stat().st_mode & 0o777)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def restart(path: Path, name: str, wait_s: float) -> float:
    """Restart the pod and return the start time of its program.

    Raises:
        ValueError: The manifest is not in kubeadm's format, or the program was not restarted within the time.
    """
    before = running(Path("/proc"), time.time()).get(name, 0.0)
    text = path.read_text(encoding="utf-8")
    replace(path, with_annotation(text, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())))
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        began = running(Path("/proc"), time.time()).get(name, 0.0)
        if began > before + 0.5:  # start times have a resolution of 10 ms
            return began
        time.sleep(_POLL_S)
    raise ValueError(f"{name} was not restarted within {wait_s:.0f} s. Fix: check `journalctl -u kubelet`, then run the same command again")


def main() -> None:
    """Restart the pod, and return the URL of the API server."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "manifest": {"type": "path", "required": True},
            "wait_s": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    wanted: dict[str, Any] = module.params
    if module.check_mode:
        module.exit_json(changed=True)
    try:
        manifest = Path(wanted["manifest"])
        began = restart(manifest, wanted["name"], wanted["wait_s"])
        server = own_server(manifest.with_name("kube-apiserver.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"{wanted['manifest']}: {error}.")
    module.exit_json(changed=True, began=began, server=server)


if __name__ == "__main__":
    main()
