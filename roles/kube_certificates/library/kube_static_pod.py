#!/usr/bin/python
"""Have kubelet start a static pod anew: the Ansible module `kube_static_pod`.

An annotation of ours changes in its manifest, as `kubeadm upgrade` changes one: kubelet ends the pod and starts it again. The file is
replaced in one step and the pod is never without a manifest, so a kill at any moment leaves a control plane that runs. It returns where
this host's own API server answers, which has to be ready before the next pod.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_processes import running

MARK = "primus-bootstrap/restarted"
_POLL_S = 0.5


def with_mark(text: str, mark: str) -> str:
    """Return a manifest with our annotation in its own metadata.

    Raises:
        ValueError: It has no metadata where kubeadm writes them.
    """
    line = f'    {MARK}: "{mark}"'
    if re.search(rf"(?m)^    {re.escape(MARK)}:.*$", text):
        return re.sub(rf"(?m)^    {re.escape(MARK)}:.*$", line, text, count=1)
    if re.search(r"(?m)^metadata:\n(?:  .*\n)*?  annotations:\s*$", text):
        return re.sub(r"(?m)^(metadata:\n(?:  .*\n)*?  annotations:[ ]*)$", lambda found: f"{found[1]}\n{line}", text, count=1)
    if re.search(r"(?m)^metadata:\s*$", text):
        return re.sub(r"(?m)^metadata:[ ]*$", f"metadata:\n  annotations:\n{line}", text, count=1)
    raise ValueError("no `metadata:` at the beginning of a line")


def own_server(manifest: str) -> str:
    """Return where the API server of this host is reached, by its own manifest: a kubeconfig may name another host, or all of them."""
    said = dict(re.findall(r"(?m)^\s*-\s+[\"']?--(bind-address|secure-port)=(\S+?)[\"']?\s*$", manifest))
    bound = said.get("bind-address", "::")
    host = "127.0.0.1" if bound in ("::", "0.0.0.0") else f"[{bound}]" if ":" in bound else bound  # noqa: S104 - nothing is bound here
    return f"https://{host}:{said.get('secure-port', '6443')}"


def replace(path: Path, text: str) -> None:
    """Replace a manifest in one step; kubelet passes over names that begin with a dot."""
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, path.stat().st_mode & 0o777)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def restart(path: Path, name: str, wait_s: float) -> float:
    """Have the pod started anew and return when its program began.

    Raises:
        ValueError: The manifest is not kubeadm's, or nothing new runs within the time.
    """
    before = running(Path("/proc"), time.time()).get(name, 0.0)
    text = path.read_text(encoding="utf-8")
    replace(path, with_mark(text, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())))
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        began = running(Path("/proc"), time.time()).get(name, 0.0)
        if began > before + 0.5:  # the clock behind it has steps of a hundredth of a second
            return began
        time.sleep(_POLL_S)
    raise ValueError(f"{name} did not start anew within {wait_s:.0f} s. Fix: see `journalctl -u kubelet`, then run the same again")


def main() -> None:
    """Read the arguments, restart, and report."""
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
