#!/usr/bin/python
"""Verify what a container host, or containerd of a Kubernetes node, can push and pull, and what it refuses. It reports verdicts.

On a container host it pushes an image with one small layer, using the host's credentials and CA certificates, and pulls the image of
another host by its digest, also with the installed runtimes. Then it tries accesses that must be refused. It handles no password: the
programs read root's own file. `containerd` verifies a Kubernetes node instead: module_utils/registry_trust_containerd.py.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils import registry_trust_containerd
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.registry_trust_host import APPLY, REFUSED, REPOSITORY, Host, last_line, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AUTH_FILE = "/root/.docker/config.json"
AUTHORITIES = "/etc/containers/certs.d"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
# Engines that ignore containers-policy.json, with their programs, their name, and how to remove them.
# Apptainer pulls with its own client, which checks no signature of an image and does not read certs.d:
# https://github.com/apptainer/apptainer/blob/2f069d7/internal/pkg/ociimage/sourcesink.go (getDockerImage), read 2026-11-24.
WITHOUT_POLICY = {
    "docker": (("dockerd",), "docker", "remove docker"),
    "apptainer": (
        ("apptainer", "singularity"), "Apptainer", "remove Apptainer (without container_runtime_apptainer_version none is installed again)",
    ),
}  # fmt: skip


def make_image(folder: Path, text: str) -> str:
    """Write an OCI layout of one image with one small file, and return the image's digest."""

    def put(data: bytes) -> dict[str, Any]:
        name = hashlib.sha256(data).hexdigest()
        (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        (folder / "blobs" / "sha256" / name).write_bytes(data)
        return {"digest": f"sha256:{name}", "size": len(data)}

    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        entry = tarfile.TarInfo("primus-verify")
        entry.size = len(text.encode())
        archive.addfile(entry, io.BytesIO(text.encode()))
    # Compressed, because skopeo would compress the layer during the push, which changes the digest.
    layered = {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **put(gzip.compress(layer.getvalue(), mtime=0))}
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    settings = {
        "architecture": machine,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]},
    }
    config = {"mediaType": "application/vnd.oci.image.config.v1+json", **put(json.dumps(settings).encode())}
    manifest = put(json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layered]}).encode())
    index = {
        "schemaVersion": 2,
        "manifests": [{"mediaType": MANIFEST, **manifest, "annotations": {"org.opencontainers.image.ref.name": "verify"}}],
    }
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', encoding="utf-8")
    return str(manifest["digest"])


def push(host: Host, folder: Path) -> str:
    """Push an image with the host's credentials; return its digest, or an empty string."""
    digest = make_image(folder / "image", f"{host.verdicts.host} {time.time()}")
    tag = re.sub(r"[^A-Za-z0-9_.-]", "-", host.verdicts.host)
    status, output = host.call(
        ["skopeo", "copy", "--insecure-policy", f"oci:{folder}/image:verify", f"docker://{host.address}/{REPOSITORY}:{tag}"]
    )
    if status == 0:
        host.verdicts.add("push", "pass", expected="pushed", found="pushed")
        return digest
    fixes = {
        "password": f"`{APPLY}`: the credentials in {AUTH_FILE} are not those of the registry",
        "authority": f"`{APPLY}`: the registry has another CA certificate",
    }
    default = f"check that {host.address} resolves, answers, and has free space"
    fix = next((fixes[kind] for kind in fixes if REFUSED[kind].search(output)), default)
    reason = f"the push failed: {last_line(output)}"
    host.verdicts.add("push", "unknown" if status is None else "fail", expected="pushed", found="", reason=reason, fix=fix)
    return ""


def check_refusals(host: Host, folder: Path, username: str, *, has_ca: bool) -> None:
    """Try a wrong password, no password, and a client without the CA certificate."""
    for check, text in (("refuses_wrong_password", username), ("refuses_no_password", "")):
        auth = folder / f"{check}.json"
        login = base64.b64encode(f"{text}:not-the-password-of-it".encode()).decode("ascii")
        auth.write_text(json.dumps({"auths": {host.address: {"auth": login}}}), encoding="utf-8")
        # --no-creds, because with an empty file skopeo would read other files of root.
        login_options = ["--authfile", str(auth)] if text else ["--no-creds"]
        answer = host.call(["skopeo", "list-tags", *login_options, f"docker://{host.address}/{REPOSITORY}"])
        host.add_refusal(check, "password", answer, "check the settings of the registry: it accepts unknown accounts")
    if not has_ca:
        host.verdicts.add("refuses_missing_authority", "skipped", reason="every system trusts the registry's certificate authority")
        return
    empty = folder / "no-authority"
    empty.mkdir()
    answer = host.call(["skopeo", "list-tags", "--cert-dir", str(empty), f"docker://{host.address}/{REPOSITORY}"])
    fix = f"remove `insecure = true` for {host.address} from /etc/containers, and its CA certificate from the system's store"
    host.add_refusal("refuses_missing_authority", "authority", answer, fix)


def check_policy(host: Host, folder: Path, digest: str, policy: str, unsigned_from: Sequence[str]) -> None:
    """Check that an image without a signature is refused if the policy requires one."""
    if policy != "signed":
        host.verdicts.add("refuses_unsigned", "skipped", reason=f"registry_trust_policy is {policy}")
        return
    name = f"{host.address}/{REPOSITORY}"
    if any(name == scope or name.startswith((f"{scope}/", f"{scope}:")) for scope in unsigned_from):
        host.verdicts.add("refuses_unsigned", "skipped", reason="registry_trust_unsigned_from allows the test image")
    elif not digest:
        host.verdicts.add(
            "refuses_unsigned",
            "unknown",
            expected="refused",
            reason="no image could be pushed",
            fix="see the verdict of registry_trust.push",
        )
    else:
        answer = host.call(["skopeo", "copy", host.image(digest), f"dir:{folder}/unsigned"])
        host.add_refusal("refuses_unsigned", "policy", answer, f"`{APPLY}`: /etc/containers/policy.json has no effect")


def check_engines(host: Host, policy: str) -> None:
    """If only signed images may run, find installed engines that ignore the policy."""
    if policy != "signed":
        return
    for engine, (programs, name, remedy) in WITHOUT_POLICY.items():
        found = next(filter(None, map(shutil.which, programs)), None)
        if not found:
            host.verdicts.add(f"policy_of_{engine}", "pass", expected=f"no {name}", found=f"no {name}")
            continue
        reason = f"{name} is installed here ({found}) and pulls images without asking containers-policy.json"
        fix = f"use podman on this host and {remedy}, or exclude the host: registry_trust_policy: keep, registry_trust_signed_by: []"
        host.verdicts.add(f"policy_of_{engine}", "fail", expected=f"no {name}", found=found, reason=reason, fix=fix)


def check_others(host: Host, others: Sequence[str]) -> None:
    """Check that other registries accept the host's credentials, by a login, which needs no image."""
    for address in others:
        path = Path(AUTH_FILE)
        entry = json.loads(path.read_text("utf-8")).get("auths", {}).get(address, {}) if path.exists() else {}
        if not entry.get("auth"):
            host.verdicts.add("other_registry", "skipped", device=address, reason="it needs no account, and there is no image name to pull")
            continue
        username, _, password = base64.b64decode(entry["auth"]).decode("utf-8").partition(":")
        with tempfile.TemporaryDirectory() as folder:
            status, output = host.call(
                ["skopeo", "login", "--authfile", f"{folder}/auth.json", "--username", username, "--password-stdin", address], password
            )
        verdict = "pass" if status == 0 else "unknown" if status is None else "fail"
        fix = f"check that {address} resolves and answers, and correct its ca_file, username or password in registry_trust_registries"
        found, reason = "accepted" if status == 0 else "", f"{address}: {last_line(output)}"
        host.verdicts.add("other_registry", verdict, device=address, expected="accepted", found=found, reason=reason, fix=fix)


def pull(host: Host, folder: Path, other: str, digest: str) -> None:
    """Pull the image of another host by its digest."""
    facts = {"device": other, "expected": digest[:19]}
    if not digest:
        host.verdicts.add("pull_other", "unknown", reason=f"{other} pushed no image", fix=f"see the verdicts of {other}", **facts)
        return
    status, output = host.call(["skopeo", "copy", "--insecure-policy", host.image(digest), f"dir:{folder}/pulled"])
    manifest = folder / "pulled" / "manifest.json"
    found = f"sha256:{hashlib.sha256(manifest.read_bytes()).hexdigest()}" if status == 0 and manifest.exists() else ""
    fix = f"check that {host.address} resolves and answers from this host; `{APPLY}`"
    if other == host.verdicts.host and found == digest:
        host.verdicts.add(
            "pull_other", "skipped", reason="this run has no other container host; the host's own image could be pulled", **facts
        )
    elif found == digest:
        host.verdicts.add("pull_other", "pass", found=found[:19], **facts)
    else:
        reason = f"the pull failed: {last_line(output)}"
        host.verdicts.add("pull_other", "unknown" if status is None else "fail", found=found[:19], reason=reason, fix=fix, **facts)


def pull_with_runtimes(host: Host, digest: str, policy: str) -> None:
    """Pull the same image with podman and docker if installed, and remove it; they read the configuration differently."""
    image = f"{host.address}/{REPOSITORY}@{digest}"
    for runtime, service in (("podman", "podman"), ("docker", "dockerd")):
        if not digest or not shutil.which(service) or not shutil.which(runtime):
            continue
        status, output = host.call([runtime, "pull", "--quiet", image])
        if status == 0:
            host.call([runtime, "rmi", image])
        if policy == "signed" and runtime == "podman":
            fix = f"`{APPLY}`: podman reads another policy.json than /etc/containers/policy.json"
            host.add_refusal("podman_refuses_unsigned", "policy", (status, output), fix)
            continue
        verdict = "pass" if status == 0 else "unknown" if status is None else "fail"
        fix = f"run `{runtime} pull {image}` by hand as root and see its last lines"
        found, reason = "pulled" if status == 0 else "", f"{runtime}: {last_line(output)}"
        host.verdicts.add(f"{runtime}_pull", verdict, expected="pulled", found=found, reason=reason, fix=fix)


def remove(host: Host, digest: str) -> None:
    """Delete the test image from the registry; the next garbage collection deletes its blobs."""
    if digest:
        host.call(["skopeo", "delete", host.image(digest)])


def main() -> None:
    """Run the checks and report the verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "address": {"type": "str", "required": True},
            "others": {"type": "list", "elements": "str", "required": True},
            "containerd": {"type": "bool", "default": False},
            "username": {"type": "str"},
            "policy": {"type": "str"},
            "unsigned_from": {"type": "list", "elements": "str"},
            "other": {"type": "str"},
            "digest": {"type": "str", "default": ""},
        },
        required_if=[("containerd", False, ("username", "policy", "unsigned_from"))],
        supports_check_mode=True,
    )
    params: Mapping[str, Any] = module.params
    host, digest = Host(params["host"], params["address"], run), ""
    if params["containerd"]:
        registry_trust_containerd.check(host, params["others"])
        host.verdicts.finish(module)
    with tempfile.TemporaryDirectory(prefix="primus-verify-") as name:
        folder = Path(name)
        if params["other"] is not None:
            pull(host, folder, params["other"], params["digest"])
            pull_with_runtimes(host, params["digest"], params["policy"])
            remove(host, params["digest"])
        else:
            if params["address"]:
                digest = push(host, folder)
                check_refusals(host, folder, params["username"], has_ca=Path(AUTHORITIES, params["address"], "ca.crt").exists())
                check_policy(host, folder, digest, params["policy"], params["unsigned_from"])
            check_engines(host, params["policy"])
            check_others(host, params["others"])
    host.verdicts.finish(module, digest=digest)


if __name__ == "__main__":
    main()
