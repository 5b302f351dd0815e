# ruff: noqa: INP001 (Ansible loads it by path)
"""Verify what containerd of a Kubernetes node can pull.

It requests an image that does not exist. A registry answers `not found` only to an authenticated client, so this proves address, CA
certificate and credentials with one small request per node. It handles no password: containerd reads its own files.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.registry_trust_host import APPLY, REFUSED, REPOSITORY, last_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ansible.module_utils.registry_trust_host import Host

FOLDER = Path("/etc/containerd/certs.d")
SOCKET = "unix:///run/containerd/containerd.sock"
ABSENT = "absent"
NOT_FOUND = "not found"


def request(host: Host, address: str, folder: Path = FOLDER) -> tuple[int | None, str]:
    """Request an image that does not exist, with crictl through CRI as the kubelet does, or with ctr if there is no crictl."""
    image = f"{address}/{REPOSITORY}:{ABSENT}"
    if folder == FOLDER and shutil.which("crictl"):
        return host.call(["crictl", "--runtime-endpoint", SOCKET, "--image-endpoint", SOCKET, "--timeout", "30s", "pull", image])
    return host.call(["ctr", "--namespace", "primus-verify", "--timeout", "30s", "content", "fetch", "--hosts-dir", str(folder), image])


def check_cluster_registry(host: Host) -> None:
    """Check that the cluster's registry accepts containerd, and that containerd verifies its certificate."""
    status, output = request(host, host.address)
    expected = {"expected": "not found: authenticated"}
    if NOT_FOUND in output:
        host.verdicts.add("containerd_pull", "pass", found="not found", **expected)
    elif status == 0:
        host.verdicts.add("containerd_pull", "pass", found="pulled", **expected)
    else:
        kind = next((one for one in ("authority", "password") if REFUSED[one].search(output)), "")
        fixes = {
            "password": f"`{APPLY}`: the credentials in {FOLDER}/{host.address}/hosts.toml are not those of the registry",
            "authority": f"`{APPLY}`: the registry has another CA certificate, or containerd does not read {FOLDER} (config_path)",
        }
        fix = fixes.get(kind, f"check that {host.address} resolves and answers, and `journalctl -u containerd -n 30`")
        host.verdicts.add("containerd_pull", "fail" if kind else "unknown", reason=last_line(output), fix=fix, **expected)
    if not (FOLDER / host.address / "ca.crt").exists():
        host.verdicts.add(
            "containerd_refuses_missing_authority", "skipped", reason="every system trusts the registry's certificate authority"
        )
        return
    with tempfile.TemporaryDirectory(prefix="primus-verify-") as empty:
        answer = request(host, host.address, Path(empty))
    if NOT_FOUND in answer[1]:
        answer = (0, answer[1])  # the registry answered without its CA certificate
    fix = "remove the registry's CA certificate from the system's store"
    host.add_refusal("containerd_refuses_missing_authority", "authority", answer, fix)


def check_others(host: Host, others: Sequence[str]) -> None:
    """Check that other registries are trusted. The account may not see the image, so a refused login passes too."""
    for address in others:
        _, output = request(host, address)
        answers = NOT_FOUND in output or REFUSED["password"].search(output)
        verdict = "fail" if REFUSED["authority"].search(output) else "pass" if answers else "unknown"
        fix = f"check that {address} resolves and answers, and correct its ca_file in registry_trust_registries"
        facts = {"expected": "an answer over trusted TLS", "reason": last_line(output), "fix": fix}
        host.verdicts.add("containerd_trusts", verdict, device=address, found="answers" if verdict == "pass" else "", **facts)


def check(host: Host, others: Sequence[str]) -> None:
    """Check the cluster's registry, if there is one, and the others."""
    if host.address:
        check_cluster_registry(host)
    check_others(host, others)
