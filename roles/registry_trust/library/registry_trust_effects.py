#!/usr/bin/python
"""Ask a host what it may pull and what it refuses: the Ansible module `registry_trust_effects`.

It pushes an image of one small layer with the credentials and the authority that the host has, pulls by its digest what another host
pushed, also with the runtimes that are there, and tries what must be refused. It holds no password: the programs read root's own file.
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

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.registry_trust_host import AGAIN, REFUSED, REPOSITORY, Host, last, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AUTH_FILE = "/root/.docker/config.json"
AUTHORITIES = "/etc/containers/certs.d"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
# Engines that pull images without asking containers-policy.json: by name, their programs, how people write it, and what takes it away.
# Apptainer pulls with a client of its own that looks at no signature of an image, and reads no certs.d:
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
    # As a registry is to keep it: what is not compressed, skopeo would compress on the way, and the digest would be another.
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
    """Push an image with what the host has; return its digest, or nothing."""
    digest = make_image(folder / "image", f"{host.host} {time.time()}")
    tag = re.sub(r"[^A-Za-z0-9_.-]", "-", host.host)
    status, said = host.call(
        ["skopeo", "copy", "--insecure-policy", f"oci:{folder}/image:verify", f"docker://{host.address}/{REPOSITORY}:{tag}"]
    )
    if status == 0:
        host.judge("push", "pass", expected="pushed", found="pushed")
        return digest
    fixes = {
        "password": f"{AGAIN}: the credentials in {AUTH_FILE} are not those of the registry",
        "authority": f"{AGAIN}: the registry has another authority or certificate",
    }
    fix = next((fixes[kind] for kind in fixes if REFUSED[kind].search(said)), f"see that {host.address} resolves, answers, and has room")
    host.judge(
        "push", "unknown" if status is None else "fail", expected="pushed", found="", reason=f"the push failed: {last(said)}", fix=fix
    )
    return ""


def look_at_refusals(host: Host, folder: Path, username: str, *, has_ca: bool) -> None:
    """Try a wrong password, none, and a client without the authority."""
    for check, text in (("refuses_wrong_password", username), ("refuses_no_password", "")):
        auth = folder / f"{check}.json"
        login = base64.b64encode(f"{text}:not-the-password-of-it".encode()).decode("ascii")
        auth.write_text(json.dumps({"auths": {host.address: {"auth": login}}}), encoding="utf-8")
        # An empty file would not do: other files of root's are read as well.
        how = ["--authfile", str(auth)] if text else ["--no-creds"]
        answer = host.call(["skopeo", "list-tags", *how, f"docker://{host.address}/{REPOSITORY}"])
        host.refusal(check, "password", answer, "look at the settings of the registry: it lets in whom it does not know")
    if not has_ca:
        host.judge("refuses_missing_authority", "skipped", reason="the registry's authority is one that every system knows")
        return
    empty = folder / "no-authority"
    empty.mkdir()
    answer = host.call(["skopeo", "list-tags", "--cert-dir", str(empty), f"docker://{host.address}/{REPOSITORY}"])
    fix = f"take `insecure = true` for {host.address} out of /etc/containers, and its authority out of the system's store"
    host.refusal("refuses_missing_authority", "authority", answer, fix)


def look_at_policy(host: Host, folder: Path, digest: str, policy: str, unsigned_from: Sequence[str]) -> None:
    """See that an image without a signature is refused where the policy says so."""
    if policy != "signed":
        host.judge("refuses_unsigned", "skipped", reason=f"registry_trust_policy is {policy}")
        return
    name = f"{host.address}/{REPOSITORY}"
    if any(name == scope or name.startswith((f"{scope}/", f"{scope}:")) for scope in unsigned_from):
        host.judge("refuses_unsigned", "skipped", reason="registry_trust_unsigned_from lets the images of this proof in")
    elif not digest:
        host.judge("refuses_unsigned", "unknown", expected="refused", reason="no image could be pushed", fix="see registry_trust.push")
    else:
        answer = host.call(["skopeo", "copy", host.named(digest), f"dir:{folder}/unsigned"])
        host.refusal("refuses_unsigned", "policy", answer, f"{AGAIN}: /etc/containers/policy.json is not in force")


def look_at_engines(host: Host, policy: str) -> None:
    """Where only signed images may run, find the engines that know no such policy: what they pull, nobody has judged."""
    if policy != "signed":
        return
    for engine, (programs, name, remedy) in WITHOUT_POLICY.items():
        found = next(filter(None, map(shutil.which, programs)), None)
        if not found:
            host.judge(f"policy_of_{engine}", "pass", expected=f"no {name}", found=f"no {name}")
            continue
        reason = f"{name} is installed here ({found}) and pulls images without asking containers-policy.json"
        fix = f"use podman on this host and {remedy}, or leave it out: registry_trust_policy: keep, registry_trust_signed_by: []"
        host.judge(f"policy_of_{engine}", "fail", expected=f"no {name}", found=found, reason=reason, fix=fix)


def look_at_others(host: Host, others: Sequence[str]) -> None:
    """See that other registries take what this host has: their /v2/ is asked, which needs no image."""
    for address in others:
        found = Path(AUTH_FILE)
        entry = json.loads(found.read_text("utf-8")).get("auths", {}).get(address, {}) if found.exists() else {}
        if not entry.get("auth"):
            host.judge(
                "other_registry", "skipped", device=address, reason="it asks for no account; nothing is pulled without a name of an image"
            )
            continue
        username, _, password = base64.b64decode(entry["auth"]).decode("utf-8").partition(":")
        with tempfile.TemporaryDirectory() as folder:
            status, said = host.call(
                ["skopeo", "login", "--authfile", f"{folder}/auth.json", "--username", username, "--password-stdin", address], password
            )
        verdict = "pass" if status == 0 else "unknown" if status is None else "fail"
        fix = f"see that {address} resolves and answers, and mend its ca_file, username or password in registry_trust_registries"
        host.judge(
            "other_registry",
            verdict,
            device=address,
            expected="taken",
            found="taken" if status == 0 else "",
            reason=f"{address}: {last(said)}",
            fix=fix,
        )


def pull(host: Host, folder: Path, other: str, digest: str) -> None:
    """Pull by digest what another host pushed."""
    who = {"device": other, "expected": digest[:19]}
    if not digest:
        host.judge("pull_other", "unknown", reason=f"{other} pushed no image", fix=f"see what {other} says", **who)
        return
    status, said = host.call(["skopeo", "copy", "--insecure-policy", host.named(digest), f"dir:{folder}/pulled"])
    manifest = folder / "pulled" / "manifest.json"
    found = f"sha256:{hashlib.sha256(manifest.read_bytes()).hexdigest()}" if status == 0 and manifest.exists() else ""
    fix = f"see that {host.address} resolves and answers from here; {AGAIN}"
    if other == host.host and found == digest:
        host.judge("pull_other", "skipped", reason="no other host runs containers in this run; its own image could be pulled", **who)
    elif found == digest:
        host.judge("pull_other", "pass", found=found[:19], **who)
    else:
        host.judge(
            "pull_other", "unknown" if status is None else "fail", found=found[:19], reason=f"the pull failed: {last(said)}", fix=fix, **who
        )


def pull_with_runtimes(host: Host, digest: str, policy: str) -> None:
    """Pull the same image with podman and docker where they are, and remove it again; they read the files in their own way."""
    image = f"{host.address}/{REPOSITORY}@{digest}"
    for runtime, service in (("podman", "podman"), ("docker", "dockerd")):
        if not digest or not shutil.which(service) or not shutil.which(runtime):
            continue
        status, said = host.call([runtime, "pull", "--quiet", image])
        if status == 0:
            host.call([runtime, "rmi", image])
        if policy == "signed" and runtime == "podman":
            host.refusal(
                "podman_refuses_unsigned",
                "policy",
                (status, said),
                f"{AGAIN}: podman reads another policy.json than /etc/containers/policy.json",
            )
            continue
        verdict = "pass" if status == 0 else "unknown" if status is None else "fail"
        fix = f"run `{runtime} pull {image}` by hand as root; see its last lines"
        host.judge(
            f"{runtime}_pull", verdict, expected="pulled", found="pulled" if status == 0 else "", reason=f"{runtime}: {last(said)}", fix=fix
        )


def remove(host: Host, digest: str) -> None:
    """Take the image of the proof out of the registry; its blobs go with the next collection of garbage."""
    if digest:
        host.call(["skopeo", "delete", host.named(digest)])


def main() -> None:
    """Read the arguments, look, and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "address": {"type": "str", "required": True},
            "username": {"type": "str", "required": True},
            "others": {"type": "list", "elements": "str", "required": True},
            "policy": {"type": "str", "required": True},
            "unsigned_from": {"type": "list", "elements": "str", "required": True},
            "other": {"type": "str"},
            "digest": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    wanted: Mapping[str, Any] = module.params
    host, digest = Host(wanted["host"], wanted["address"], run), ""
    with tempfile.TemporaryDirectory(prefix="primus-verify-") as name:
        folder = Path(name)
        if wanted["other"] is not None:
            pull(host, folder, wanted["other"], wanted["digest"])
            pull_with_runtimes(host, wanted["digest"], wanted["policy"])
            remove(host, wanted["digest"])
        else:
            if wanted["address"]:
                digest = push(host, folder)
                look_at_refusals(host, folder, wanted["username"], has_ca=Path(AUTHORITIES, wanted["address"], "ca.crt").exists())
                look_at_policy(host, folder, digest, wanted["policy"], wanted["unsigned_from"])
            look_at_engines(host, wanted["policy"])
            look_at_others(host, wanted["others"])
    result = {"changed": False, "digest": digest, "verdicts": host.verdicts, "stdout": json.dumps({"verdicts": host.verdicts})}
    failed = [f"{record['check']}: {record['reason']}. Fix: {record['fix']}" for record in host.verdicts if record["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
