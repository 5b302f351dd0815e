#!/usr/bin/python
"""Ask what containerd of a Kubernetes node may pull: the Ansible module `registry_containerd_effects`.

An image that is not there is asked for. A registry says so only to whom it lets in, so `not found` proves address, authority and
credentials at once, and costs a fleet of nodes one small answer each. It holds no password: containerd reads its own files.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.registry_trust_host import AGAIN, REFUSED, REPOSITORY, Host, last, run

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path("/etc/containerd/certs.d")
SOCKET = "unix:///run/containerd/containerd.sock"
ABSENT = "absent"
NOT_FOUND = "not found"


def ask(host: Host, address: str, folder: Path = FOLDER) -> tuple[int | None, str]:
    """Ask for an image that is not there, through CRI as the kubelet does where there is crictl, with containerd's own client otherwise."""
    image = f"{address}/{REPOSITORY}:{ABSENT}"
    if folder == FOLDER and shutil.which("crictl"):
        return host.call(["crictl", "--runtime-endpoint", SOCKET, "--image-endpoint", SOCKET, "--timeout", "30s", "pull", image])
    return host.call(["ctr", "--namespace", "primus-verify", "--timeout", "30s", "content", "fetch", "--hosts-dir", str(folder), image])


def look_at_own(host: Host) -> None:
    """See that containerd is let in by the cluster's own registry, and that it checks whom it talks to."""
    status, said = ask(host, host.address)
    expected = {"expected": "not found: it was let in"}
    if NOT_FOUND in said:
        host.judge("containerd_pull", "pass", found="not found", **expected)
    elif status == 0:
        host.judge("containerd_pull", "pass", found="pulled", **expected)
    else:
        kind = next((one for one in ("authority", "password") if REFUSED[one].search(said)), "")
        fixes = {
            "password": f"{AGAIN}: the credentials in {FOLDER}/{host.address}/hosts.toml are not those of the registry",
            "authority": f"{AGAIN}: the registry has another authority or certificate, or containerd does not read {FOLDER} (config_path)",
        }
        fix = fixes.get(kind, f"see that {host.address} resolves and answers, and `journalctl -u containerd -n 30`")
        host.judge("containerd_pull", "fail" if kind else "unknown", reason=last(said), fix=fix, **expected)
    if not (FOLDER / host.address / "ca.crt").exists():
        host.judge("containerd_refuses_missing_authority", "skipped", reason="the registry's authority is one that every system knows")
        return
    with tempfile.TemporaryDirectory(prefix="primus-verify-") as empty:
        answer = ask(host, host.address, Path(empty))
    if NOT_FOUND in answer[1]:
        answer = (0, answer[1])  # it talked to the registry without its authority
    host.refusal("containerd_refuses_missing_authority", "authority", answer, "take the registry's authority out of the system's store")


def look_at_others(host: Host, others: list[str]) -> None:
    """See that other registries are trusted. Which of their images an account may see nobody says, so a refusal proves no less."""
    for address in others:
        _, said = ask(host, address)
        answers = NOT_FOUND in said or REFUSED["password"].search(said)
        verdict = "fail" if REFUSED["authority"].search(said) else "pass" if answers else "unknown"
        fix = f"see that {address} resolves and answers, and mend its ca_file in registry_trust_registries"
        words = {"expected": "an answer over TLS that is trusted", "reason": last(said), "fix": fix}
        host.judge("containerd_trusts", verdict, device=address, found="answers" if verdict == "pass" else "", **words)


def main() -> None:
    """Read the arguments, look, and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "own": {"type": "str", "required": True},
            "others": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    wanted: Mapping[str, Any] = module.params
    host = Host(wanted["host"], wanted["own"], run)
    if host.address:
        look_at_own(host)
    look_at_others(host, wanted["others"])
    result = {"changed": False, "verdicts": host.verdicts, "stdout": json.dumps({"verdicts": host.verdicts})}
    failed = [f"{record['check']}: {record['reason']}. Fix: {record['fix']}" for record in host.verdicts if record["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
