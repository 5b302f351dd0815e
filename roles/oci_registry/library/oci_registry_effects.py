#!/usr/bin/python
"""Verify the image registry: certificate, access, images, free space and timers. It reports verdicts.

It pushes an image with one small layer, pulls it by its digest, and deletes it. The password is sent only in a header inside TLS.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import shutil
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.own_addresses import check_address
from ansible.module_utils.unit_properties import unit_properties
from ansible.module_utils.verdict_records import Verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CALL_S = 20.0
DAY_S = 86400
GIB = 1 << 30
REPOSITORY = "primus/verify"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
FIX_LOG = "see `journalctl -u docker-registry -n 30`"
APPLY = "primus-bootstrap apply hosts.yaml --phase registry"


class Answer:
    """One answer of the registry."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Store the answer; header names are in lower case."""
        self.status, self.headers, self.body = status, headers, body

    def summary(self) -> str:
        """Return status and error message in one line."""
        try:
            errors = json.loads(self.body)["errors"]
            text = "; ".join(f"{one.get('code')}: {one.get('message')} {one.get('detail') or ''}".strip() for one in errors)
        except (ValueError, KeyError, TypeError):
            text = " ".join(self.body.decode("utf-8", "replace").split())
        return f"{self.status} {text}".strip()[:300]


class Registry:
    """The registry as a client on its host sees it. `call` sends one request with a password (None: without)."""

    def __init__(self, host: str, call: Callable[[str, str, str | None, bytes, Mapping[str, str]], Answer], password: str) -> None:
        """Store the parameters; `verdicts` collects the results."""
        self.call, self.password = call, password
        self.verdicts = Verdicts("oci_registry", host)

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Send a request with the right password."""
        return self.call(method, path, self.password, body, {name.replace("_", "-"): value for name, value in headers.items()})


def check_certificate(registry: Registry, served: Mapping[str, Any] | str, min_days: int, now: float) -> bool:
    """Check the served certificate (a string: why there is none); return whether further requests are possible."""
    expected = f"trusted, > {min_days} days left"
    if isinstance(served, str):
        kind = "unknown" if "answer" in served else "fail"
        fix = (
            f"{FIX_LOG}, and `systemctl status docker-registry`"
            if kind == "unknown"
            else f"`{APPLY}`; replace the site's own certificate first"
        )
        registry.verdicts.add("certificate", kind, expected=expected, found="", reason=served, fix=fix)
        return False
    days = int((ssl.cert_time_to_seconds(served["notAfter"]) - now) // DAY_S)
    fix = "set oci_registry_tls_cert_file to a renewed one and apply; without it, `systemctl start primus-registry-certificate` renews it"
    reason = f"the certificate expires in {days} days ({served['notAfter']})"
    registry.verdicts.add(
        "certificate", "pass" if days > min_days else "fail", expected=expected, found=f"{days} days left", reason=reason, fix=fix
    )
    return True


def check_access(registry: Registry) -> None:
    """Check that the right password is accepted, and that a wrong one and none are rejected."""
    tries = (
        ("takes_password", registry.password, 200),
        ("refuses_wrong_password", f"not-{registry.password}", 401),
        ("refuses_no_password", None, 401),
    )
    for check, password, expected in tries:
        answer = registry.call("GET", "/v2/", password, b"", {})
        verdict = "pass" if answer.status == expected else "fail" if answer.status in {200, 401} else "unknown"
        fix = f"`{APPLY}`: the registry does not use the accounts in /etc/docker/registry/htpasswd" if verdict == "fail" else FIX_LOG
        registry.verdicts.add(check, verdict, expected=str(expected), found=answer.summary() if answer.status != 200 else "200", fix=fix)


def digest_of(data: bytes) -> str:
    """Return the digest under which the registry stores data."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def push_blob(registry: Registry, data: bytes) -> Answer:
    """Push one blob in one request, after starting an upload as clients do."""
    upload = registry.request("POST", f"/v2/{REPOSITORY}/blobs/uploads/")
    if upload.status != 202:
        return upload
    location = upload.headers.get("location", "")
    path = "/" + location.split("://", 1)[-1].split("/", 1)[-1] if "://" in location else location
    path += f"{'&' if '?' in path else '?'}digest={digest_of(data)}"
    return registry.request("PUT", path, data, Content_Type="application/octet-stream")


def check_images(registry: Registry, *, collecting: bool) -> None:
    """Push an image, pull it by digest, delete it, and check that it is deleted. During a garbage collection the check is unknown."""
    if collecting:
        facts = {
            "expected": "pushed, pulled, deleted",
            "found": "read-only",
            "fix": "verify again when primus-registry-gc.service has ended",
        }
        registry.verdicts.add("push_and_pull", "unknown", reason="a garbage collection is running, so nothing can be pushed", **facts)
        return
    layer = b"\0" * 10240  # an empty tar
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]}}).encode()
    blobs = [{"mediaType": kind, "size": len(data), "digest": digest_of(data)} for kind, data in ((CONFIG, config), (LAYER, layer))]
    manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": blobs[0], "layers": blobs[1:]}).encode()
    path = f"/v2/{REPOSITORY}/manifests/{digest_of(manifest)}"
    steps: tuple[tuple[str, Callable[[], Answer], int], ...] = (
        ("push a layer", lambda: push_blob(registry, layer), 201),
        ("push the configuration", lambda: push_blob(registry, config), 201),
        ("push the image", lambda: registry.request("PUT", path, manifest, Content_Type=MANIFEST), 201),
        ("pull the image by digest", lambda: registry.request("GET", path, Accept=MANIFEST), 200),
        ("pull its layer", lambda: registry.request("GET", f"/v2/{REPOSITORY}/blobs/{digest_of(layer)}"), 200),
        ("delete the image", lambda: registry.request("DELETE", path), 202),
        ("request the deleted image", lambda: registry.request("GET", path, Accept=MANIFEST), 404),
    )
    for what, step, expected in steps:
        answer = step()
        same = {"pull the image by digest": manifest, "pull its layer": layer}.get(what, answer.body) == answer.body
        if answer.status != expected or not same:
            reason = f"to {what} gave {answer.summary() if answer.status != expected else 'other bytes than were pushed'}"
            verdict = "unknown" if answer.status == 0 else "fail"
            fix = f"{FIX_LOG}, and the storage: `df -h` of its folder, or the S3 endpoint"
            registry.verdicts.add(
                "push_and_pull", verdict, expected=f"{what}: {expected}", found=answer.summary()[:60], reason=reason, fix=fix
            )
            return
    registry.verdicts.add("push_and_pull", "pass", expected="pushed, pulled by digest, deleted", found="pushed, pulled by digest, deleted")


def check_free_space(registry: Registry, folder: str, min_free_gib: float) -> None:
    """Check that the image folder has enough free space."""
    if not folder:
        registry.verdicts.add("disk", "skipped", expected="", found="", reason="images are stored in S3", fix="")
        return
    expected = f">= {min_free_gib:g} GiB free"
    try:
        free = shutil.disk_usage(folder).free / GIB
    except OSError as error:
        registry.verdicts.add("disk", "unknown", expected=expected, found="", reason=str(error), fix=f"see `ls -ld {folder}`")
        return
    fix = "delete images and `systemctl start primus-registry-gc`, or give oci_registry_storage_dir a larger disk"
    reason = f"{folder} has {free:.1f} GiB free"
    registry.verdicts.add(
        "disk", "pass" if free >= min_free_gib else "fail", expected=expected, found=f"{free:.1f} GiB free", reason=reason, fix=fix
    )


def check_timer(registry: Registry, name: str, state: Mapping[str, str]) -> None:
    """Check that a timer is active, and that its last run, if there was one, succeeded."""
    check, service = name.removeprefix("primus-registry-"), f"{name}.service"
    timer, result = state.get("timer", ""), state.get("Result", "")
    facts = {
        "expected": "active, success",
        "found": f"{timer}, {result}",
        "fix": f"see `journalctl -u {service} -n 30`; `systemctl start {service}` runs it now",
    }
    if not timer or not result:
        registry.verdicts.add(check, "unknown", reason="systemd did not answer", **facts)
    elif timer != "active":
        registry.verdicts.add(check, "fail", reason=f"{name}.timer is {timer}", **{**facts, "fix": APPLY})
    else:
        registry.verdicts.add(check, "pass" if result == "success" else "fail", reason=f"the last run ended with {result}", **facts)


def make_call(
    context: ssl.SSLContext, address: str, port: int, name: str, username: str
) -> Callable[[str, str, str | None, bytes, Mapping[str, str]], Answer]:
    """Return a function that sends one request to the address. TLS verifies the name."""

    def call(method: str, path: str, password: str | None, body: bytes, headers: Mapping[str, str]) -> Answer:
        login = (
            {} if password is None else {"Authorization": "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode("ascii")}
        )
        connection = http.client.HTTPSConnection(name, port, context=context, timeout=CALL_S)
        try:
            connection.sock = context.wrap_socket(socket.create_connection((address, port), CALL_S), server_hostname=name)
            connection.request(method, path, body=body or None, headers={**headers, **login})
            response = connection.getresponse()
            return Answer(response.status, {key.lower(): value for key, value in response.getheaders()}, response.read())
        except (OSError, http.client.HTTPException) as error:
            return Answer(0, {}, f"no answer: {error}".encode())
        finally:
            connection.close()

    return call


def served_certificate(context: ssl.SSLContext, address: str, port: int, name: str) -> Mapping[str, Any] | str:
    """Return the certificate that a client with the authority accepts, or why there is none. Retry while the registry starts."""
    reason = ""
    for _ in range(5):
        try:
            with socket.create_connection((address, port), CALL_S) as plain, context.wrap_socket(plain, server_hostname=name) as secure:
                return secure.getpeercert() or {}
        except ssl.SSLCertVerificationError as error:
            return f"clients refuse the certificate: {error.verify_message}"
        except OSError as error:
            reason = f"no answer at {address}:{port}: {error}"
            time.sleep(1)
    return reason


def timer_state(name: str) -> dict[str, str]:
    """Return the state of a timer, and the state and the result of its service's last run."""
    timer = unit_properties(f"{name}.timer", "ActiveState").get("ActiveState", "")
    return {"timer": timer, **unit_properties(f"{name}.service", "Result", "ActiveState")}


def main() -> None:
    """Run all checks and report the verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "name": {"type": "str", "required": True},
            "ca_file": {"type": "path", "required": True},
            "username": {"type": "str", "required": True},
            "password": {"type": "str", "required": True, "no_log": True},
            "min_days": {"type": "int", "required": True},
            "storage_dir": {"type": "path", "required": True},
            "min_free_gib": {"type": "float", "required": True},
            "renews": {"type": "bool", "required": True},
        },
        supports_check_mode=True,
    )
    params: Mapping[str, Any] = module.params
    server = (params["address"], params["port"], params["name"])
    try:
        context = ssl.create_default_context(cafile=params["ca_file"] or None)
        # On by default from Python 3.13. It rejects authorities without a key usage, which the clients of a registry (Go) accept.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    except (OSError, ssl.SSLError) as error:
        module.fail_json(msg=f"{params['ca_file']} cannot be read: {error}. Fix: {APPLY}")
    registry = Registry(params["host"], make_call(context, *server, params["username"]), params["password"])
    check_address(registry.verdicts, params["address"], params["host"], "oci_registry_listen_address")
    collection = timer_state("primus-registry-gc")
    if check_certificate(registry, served_certificate(context, *server), params["min_days"], time.time()):
        check_access(registry)
        check_images(registry, collecting=collection.get("ActiveState") == "activating")
    check_free_space(registry, params["storage_dir"], params["min_free_gib"])
    check_timer(registry, "primus-registry-gc", collection)
    if params["renews"]:
        check_timer(registry, "primus-registry-certificate", timer_state("primus-registry-certificate"))
    registry.verdicts.finish(module)


if __name__ == "__main__":
    main()
