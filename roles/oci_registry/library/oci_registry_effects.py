#!/usr/bin/python
"""Ask the image registry what it takes, serves and refuses: the Ansible module `oci_registry_effects`.

It pushes an image of one small layer, pulls it by its digest, and deletes it again. The password is an argument that Ansible sends through
the module's input, and goes no further than a header inside TLS.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCHEMA = "primus.verdict/1"
SOURCE = "roles/oci_registry/meta/argument_specs.yml"
CALL_S = 20.0
DAY_S = 86400
GIB = 1 << 30
REPOSITORY = "primus/verify"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
FIX_LOG = "see `journalctl -u docker-registry -n 30`"
AGAIN = "apply the phase registry again"


class Answer:
    """One answer of the registry."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Keep it; header names are in small letters."""
        self.status, self.headers, self.body = status, headers, body

    def says(self) -> str:
        """Return the registry's own words for an error, in one line."""
        try:
            errors = json.loads(self.body)["errors"]
            words = "; ".join(f"{one.get('code')}: {one.get('message')} {one.get('detail') or ''}".strip() for one in errors)
        except (ValueError, KeyError, TypeError):
            words = " ".join(self.body.decode("utf-8", "replace").split())
        return f"{self.status} {words}".strip()[:300]


class Registry:
    """The registry as a client on its own host sees it; `call` sends one request with a password (None: without)."""

    def __init__(self, host: str, call: Callable[[str, str, str | None, bytes, Mapping[str, str]], Answer], password: str) -> None:
        """Keep how to call it; verdicts gather in `verdicts`."""
        self.host, self.call, self.password = host, call, password
        self.verdicts: list[dict[str, Any]] = []

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Send a request with the right password."""
        return self.call(method, path, self.password, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def judge(self, check: str, verdict: str, *, expected: str, found: str, reason: str = "", fix: str = "") -> None:  # noqa: PLR0913 (the record's fields)
        """Record one verdict."""
        record = {"check": f"oci_registry.{check}", "host": self.host, "verdict": verdict, "expected": expected, "found": found}
        bad = {} if verdict == "pass" else {"reason": reason or f"expected {expected}, found {found}", "fix": fix}
        self.verdicts.append({**record, **bad, "source": SOURCE, "started": time.time(), "seconds": 0.0, "schema": SCHEMA})


def look_at_certificate(registry: Registry, served: Mapping[str, Any] | str, min_days: int, now: float) -> bool:
    """See that what is served is trusted, named right and good for a while; return whether it can be talked to (text: why not)."""
    expected = f"trusted, > {min_days} days left"
    if isinstance(served, str):
        kind = "unknown" if "answer" in served else "fail"
        fix = (
            f"{FIX_LOG}, and `systemctl status docker-registry`"
            if kind == "unknown"
            else f"{AGAIN}; a given certificate must be replaced first"
        )
        registry.judge("certificate", kind, expected=expected, found="", reason=served, fix=fix)
        return False
    days = int((ssl.cert_time_to_seconds(served["notAfter"]) - now) // DAY_S)
    fix = "give a renewed one with oci_registry_tls_cert_file and apply; an own one is renewed by primus-registry-certificate.timer"
    reason = f"the certificate ends in {days} days ({served['notAfter']})"
    registry.judge(
        "certificate", "pass" if days > min_days else "fail", expected=expected, found=f"{days} days left", reason=reason, fix=fix
    )
    return True


def look_at_access(registry: Registry) -> None:
    """See that the right password is taken, and that a wrong one and none are refused."""
    tries = (
        ("takes_password", registry.password, 200),
        ("refuses_wrong_password", f"not-{registry.password}", 401),
        ("refuses_no_password", None, 401),
    )
    for check, password, expected in tries:
        answer = registry.call("GET", "/v2/", password, b"", {})
        verdict = "pass" if answer.status == expected else "fail" if answer.status in {200, 401} else "unknown"
        fix = f"{AGAIN}: the accounts in /etc/docker/registry/htpasswd are not in force" if verdict == "fail" else FIX_LOG
        registry.judge(check, verdict, expected=str(expected), found=answer.says() if answer.status != 200 else "200", fix=fix)


def digest_of(data: bytes) -> str:
    """Return how the registry names some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def push_blob(registry: Registry, data: bytes) -> Answer:
    """Push one blob in one request, as clients do after asking for a place."""
    begun = registry.ask("POST", f"/v2/{REPOSITORY}/blobs/uploads/")
    if begun.status != 202:
        return begun
    where = begun.headers.get("location", "")
    path = "/" + where.split("://", 1)[-1].split("/", 1)[-1] if "://" in where else where
    path += f"{'&' if '?' in path else '?'}digest={digest_of(data)}"
    return registry.ask("PUT", path, data, Content_Type="application/octet-stream")


def look_at_images(registry: Registry, collects: bool) -> None:  # noqa: FBT001 (what the host is doing)
    """Push an image, pull it by digest, delete it, and see that it is gone."""
    if collects:
        words = {
            "expected": "pushed, pulled, deleted",
            "found": "read-only",
            "fix": "verify again when `systemctl status primus-registry-gc` has ended",
        }
        registry.judge("push_and_pull", "unknown", reason="garbage is being collected, so nothing can be pushed now", **words)
        return
    layer = b"\0" * 10240  # an empty tar
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]}}).encode()
    described = [{"mediaType": kind, "size": len(data), "digest": digest_of(data)} for kind, data in ((CONFIG, config), (LAYER, layer))]
    manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": described[0], "layers": described[1:]}).encode()
    path = f"/v2/{REPOSITORY}/manifests/{digest_of(manifest)}"
    steps: tuple[tuple[str, Callable[[], Answer], int], ...] = (
        ("push a layer", lambda: push_blob(registry, layer), 201),
        ("push the configuration", lambda: push_blob(registry, config), 201),
        ("push the image", lambda: registry.ask("PUT", path, manifest, Content_Type=MANIFEST), 201),
        ("pull the image by digest", lambda: registry.ask("GET", path, Accept=MANIFEST), 200),
        ("pull its layer", lambda: registry.ask("GET", f"/v2/{REPOSITORY}/blobs/{digest_of(layer)}"), 200),
        ("delete the image", lambda: registry.ask("DELETE", path), 202),
        ("miss the deleted image", lambda: registry.ask("GET", path, Accept=MANIFEST), 404),
    )
    for what, step, expected in steps:
        answer = step()
        same = {"pull the image by digest": manifest, "pull its layer": layer}.get(what, answer.body) == answer.body
        if answer.status != expected or not same:
            reason = f"to {what} gave {answer.says() if answer.status != expected else 'other bytes than were pushed'}"
            verdict = "unknown" if answer.status == 0 else "fail"
            fix = f"{FIX_LOG}, and its storage: `df -h` of the folder, or the S3 endpoint"
            registry.judge("push_and_pull", verdict, expected=f"{what}: {expected}", found=answer.says()[:60], reason=reason, fix=fix)
            return
    registry.judge("push_and_pull", "pass", expected="pushed, pulled by digest, deleted", found="pushed, pulled by digest, deleted")


def look_at_room(registry: Registry, folder: str, min_free_gib: float) -> None:
    """See that images still have room."""
    if not folder:
        registry.judge("disk", "skipped", expected="", found="", reason="images are kept in S3", fix="")
        return
    expected = f">= {min_free_gib:g} GiB free"
    try:
        free = shutil.disk_usage(folder).free / GIB
    except OSError as error:
        registry.judge("disk", "unknown", expected=expected, found="", reason=str(error), fix=f"see `ls -ld {folder}`")
        return
    fix = "delete images and `systemctl start primus-registry-gc`, or give oci_registry_storage_dir a larger disk"
    reason = f"{folder} has {free:.1f} GiB free"
    registry.judge(
        "disk", "pass" if free >= min_free_gib else "fail", expected=expected, found=f"{free:.1f} GiB free", reason=reason, fix=fix
    )


def look_at_timer(registry: Registry, name: str, shown: Mapping[str, str]) -> None:
    """See that a timer runs, and that its last run went well; before the first one is due there is nothing to see."""
    check, service = name.removeprefix("primus-registry-"), f"{name}.service"
    timer, result = shown.get("timer", ""), shown.get("Result", "")
    words = {
        "expected": "active, success",
        "found": f"{timer}, {result}",
        "fix": f"see `journalctl -u {service} -n 30`; `systemctl start {service}` does it now",
    }
    if not timer or not result:
        registry.judge(check, "unknown", reason="systemd did not say", **words)
    elif timer != "active":
        registry.judge(check, "fail", reason=f"{name}.timer is {timer}", **{**words, "fix": AGAIN})
    else:
        registry.judge(check, "pass" if result == "success" else "fail", reason=f"the last run ended with {result}", **words)


def make_call(
    context: ssl.SSLContext, address: str, port: int, name: str, username: str
) -> Callable[[str, str, str | None, bytes, Mapping[str, str]], Answer]:
    """Return how to send one request; the name is judged by TLS, whatever address it is reached at."""

    def call(method: str, path: str, password: str | None, body: bytes, headers: Mapping[str, str]) -> Answer:
        login = (
            {} if password is None else {"Authorization": "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode("ascii")}
        )
        connection = http.client.HTTPSConnection(name, port, context=context, timeout=CALL_S)
        try:
            connection.sock = context.wrap_socket(socket.create_connection((address, port), CALL_S), server_hostname=name)
            connection.request(method, path, body=body or None, headers={**headers, **login})
            got = connection.getresponse()
            return Answer(got.status, {key.lower(): value for key, value in got.getheaders()}, got.read())
        except (OSError, http.client.HTTPException) as error:
            return Answer(0, {}, f"no answer: {error}".encode())
        finally:
            connection.close()

    return call


def served_certificate(context: ssl.SSLContext, address: str, port: int, name: str) -> Mapping[str, Any] | str:
    """Return the certificate that a client which knows the authority is given, or why it goes no further. A start is waited for."""
    why = ""
    for _ in range(5):
        try:
            with socket.create_connection((address, port), CALL_S) as plain, context.wrap_socket(plain, server_hostname=name) as secure:
                return secure.getpeercert() or {}
        except ssl.SSLCertVerificationError as error:
            return f"clients refuse the certificate: {error.verify_message}"
        except OSError as error:
            why = f"no answer at {address}:{port}: {error}"
            time.sleep(1)
    return why


def systemd_says(name: str) -> dict[str, str]:
    """Return the state of a timer, and the result of its service's last run."""
    try:
        timer = subprocess.run(["systemctl", "is-active", f"{name}.timer"], capture_output=True, text=True, check=False, timeout=CALL_S)
        shown = subprocess.run(
            ["systemctl", "show", "--property=Result,ActiveState", f"{name}.service"],
            capture_output=True,
            text=True,
            check=False,
            timeout=CALL_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {"timer": timer.stdout.strip(), **dict(line.partition("=")[::2] for line in shown.stdout.splitlines())}


def main() -> None:
    """Read the arguments, look, and report verdicts."""
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
    wanted: Mapping[str, Any] = module.params
    where = (wanted["address"], wanted["port"], wanted["name"])
    try:
        context = ssl.create_default_context(cafile=wanted["ca_file"] or None)
        # On from Python 3.13: it refuses authorities without a key usage, which the clients of a registry (Go) take.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    except (OSError, ssl.SSLError) as error:
        module.fail_json(msg=f"{wanted['ca_file']} cannot be read: {error}. Fix: {AGAIN}")
    registry = Registry(wanted["host"], make_call(context, *where, wanted["username"]), wanted["password"])
    collection = systemd_says("primus-registry-gc")
    if look_at_certificate(registry, served_certificate(context, *where), wanted["min_days"], time.time()):
        look_at_access(registry)
        look_at_images(registry, collection.get("ActiveState") == "activating")
    look_at_room(registry, wanted["storage_dir"], wanted["min_free_gib"])
    look_at_timer(registry, "primus-registry-gc", collection)
    if wanted["renews"]:
        look_at_timer(registry, "primus-registry-certificate", systemd_says("primus-registry-certificate"))
    result = {"changed": False, "verdicts": registry.verdicts, "stdout": json.dumps({"verdicts": registry.verdicts})}
    failed = [f"{record['check']}: {record['reason']}. Fix: {record['fix']}" for record in registry.verdicts if record["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
