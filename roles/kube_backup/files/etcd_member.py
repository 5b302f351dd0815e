"""Find this host's etcd and run its commands: shared by the programs of the role `kube_backup`. It changes nothing.

Two forms are supported: a systemd unit with an environment file (Kubespray's etcd on hosts, packages of distributions), and
kubeadm's static pod.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# Kubespray's program folder is not in root's PATH on all systems.
SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/bin", "/usr/bin"))
COMMAND_S = 30.0
_POLL_S = 0.5


class RefusedError(Exception):
    """An operation failed or is not allowed; the message ends with a fix."""


def print_result(step: Callable[[], Any]) -> int:
    """Run a step and print its result as JSON; if it fails, print why to stderr. Return the exit code."""
    try:
        print(json.dumps(step()))
    except (RefusedError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


@dataclass(frozen=True)
class Member:
    """The etcd of this host. `form` is `systemd`, `static_pod`, or empty without an etcd; URLs are separated by commas."""

    form: str = ""
    name: str = ""
    data_dir: str = ""
    endpoint: str = ""
    peer_urls: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    def to_json(self) -> dict[str, str]:
        """Return it as a dict."""
        return asdict(self)


def read_env(text: str) -> dict[str, str]:
    """Return the settings of a systemd environment file."""
    found = (re.match(r"\s*(ETCD\w*)=(.*)$", line) for line in text.splitlines())
    return {one[1]: one[2].strip().strip("\"'") for one in found if one}


def read_manifest(text: str) -> dict[str, str]:
    """Return the options of a static pod's command, with etcd's names for environment variables."""
    found = re.findall(r"(?m)^\s*-\s+[\"']?--([a-z0-9-]+)=(.*?)[\"']?\s*$", text)
    return {"ETCD_" + name.upper().replace("-", "_"): value for name, value in found}


def preferred_url(urls: str) -> str:
    """Return the loopback URL, else the first one."""
    listed = [one.strip() for one in urls.split(",") if one.strip()]
    return next((one for one in listed if "//127.0.0.1:" in one), listed[0] if listed else "")


def member_of(form: str, found: dict[str, str]) -> Member:
    """Return the member with these settings.

    Raises:
        RefusedError: A setting is missing that connections or a restore need.
    """
    listened = found.get("ETCD_LISTEN_CLIENT_URLS") or found.get("ETCD_ADVERTISE_CLIENT_URLS", "")
    member = Member(
        form=form,
        name=found.get("ETCD_NAME", ""),
        data_dir=found.get("ETCD_DATA_DIR", ""),
        endpoint=preferred_url(found.get("ETCDCTL_ENDPOINTS") or listened),
        peer_urls=found.get("ETCD_INITIAL_ADVERTISE_PEER_URLS", ""),
        ca=found.get("ETCDCTL_CACERT") or found.get("ETCD_TRUSTED_CA_FILE", ""),
        cert=found.get("ETCDCTL_CERT") or found.get("ETCD_CERT_FILE", ""),
        key=found.get("ETCDCTL_KEY") or found.get("ETCD_KEY_FILE", ""),
    )
    missing = [name for name in ("name", "data_dir", "endpoint", "peer_urls") if not getattr(member, name)]
    if missing:
        raise RefusedError(f"etcd's settings have no {', '.join(missing)}. Fix: correct kube_backup_env_file or kube_backup_manifest_dir.")
    return member


def moved_manifest(settings: dict[str, Any], name: str) -> Path:
    """Return the path of a static pod's manifest while the pod is stopped: beside the manifest folder, on the same file system."""
    folder = Path(settings["manifest_dir"])
    return folder.with_name(folder.name + ".primus-held") / f"{name}.yaml"


def find_member(settings: dict[str, Any]) -> Member:
    """Return the etcd of this host; one with an empty form if there is none. A manifest that a restore moved is found too."""
    in_place = Path(settings["manifest_dir"]) / "etcd.yaml"
    for manifest in (in_place, moved_manifest(settings, "etcd")):
        if manifest.is_file():
            return member_of("static_pod", read_manifest(manifest.read_text(encoding="utf-8")))
    unit = Path(settings["env_file"])
    return member_of("systemd", read_env(unit.read_text(encoding="utf-8"))) if unit.is_file() else Member()


def program(settings: dict[str, Any], name: str) -> str:
    """Return the path of a program; empty if this host does not have it."""
    configured = settings.get(name, "")
    return configured if configured and os.access(configured, os.X_OK) else shutil.which(name, path=SEARCH_PATH) or ""


def snapshot_program(settings: dict[str, Any]) -> str:
    """Return the program that reads and restores snapshots: etcdutl exists since etcd 3.5 and is required since 3.6.

    Raises:
        RefusedError: This host does not have it.
    """
    found = program(settings, "etcdutl") or program(settings, "etcdctl")
    if not found:
        raise RefusedError("this host has neither etcdutl nor etcdctl. Fix: install etcd-client, or set kube_backup_etcdctl.")
    return found


def call(argv: list[str], *, limit_s: float = COMMAND_S) -> str:
    """Run a program and return its output.

    Raises:
        RefusedError: It fails or exceeds the time limit.
    """
    # Environment variables of the caller's shell would override or conflict with the options.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCDCTL_")}
    try:
        done = subprocess.run(
            argv,
            env={**environment, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise RefusedError(f"{' '.join(argv[:2])} did not end within {limit_s:.0f} s. Fix: check whether etcd has a leader.") from error
    if done.returncode:
        output = " ".join((done.stderr or done.stdout).split()[-60:])
        raise RefusedError(f"{Path(argv[0]).name} ended with {done.returncode}: {output}. Fix: check the log of etcd on this host.")
    return done.stdout


def etcdctl(settings: dict[str, Any], member: Member, *words: str, limit_s: float = COMMAND_S) -> Any:
    """Run etcdctl for the member of this host, and return its output, parsed if it is JSON.

    Raises:
        RefusedError: The member does not answer.
    """
    path = program(settings, "etcdctl")
    if not path:
        raise RefusedError("this host has no etcdctl. Fix: install etcd-client, or set kube_backup_etcdctl.")
    secure = ["--cacert", member.ca, "--cert", member.cert, "--key", member.key] if member.endpoint.startswith("https") else []
    output = call([path, "--endpoints", member.endpoint, *secure, "--write-out", "json", *words], limit_s=limit_s)
    return json.loads(output) if output.strip().startswith(("{", "[")) else output


def health(settings: dict[str, Any], member: Member) -> dict[str, Any]:
    """Return the member's status: version, revision, cluster id, members and alarms."""
    status = etcdctl(settings, member, "endpoint", "status")[0]["Status"]
    listed = etcdctl(settings, member, "member", "list")["members"]
    members = {one.get("name", ""): ",".join(one.get("peerURLs", [])) for one in listed}
    return {
        "version": status["version"],
        "revision": int(status["header"]["revision"]),
        "cluster_id": f"{status['header']['cluster_id']:x}",
        "leader": bool(status.get("leader")),
        "members": members,
        "errors": status.get("errors") or [],
    }


def own_server(manifest: str) -> str:
    """Return the URL of this host's API server from its manifest. A kubeconfig may name another host or a load balancer."""
    options = read_manifest(manifest)
    bound = options.get("ETCD_BIND_ADDRESS", "::")
    host = "127.0.0.1" if bound in ("::", "0.0.0.0") else f"[{bound}]" if ":" in bound else bound  # noqa: S104 - nothing is bound here
    return f"https://{host}:{options.get('ETCD_SECURE_PORT', '6443')}"


def api_answers(settings: dict[str, Any]) -> bool:
    """Return whether the API server of this host is ready.

    Its certificate always has the name kubernetes, but not always the address that is used here.
    """
    kubectl = program(settings, "kubectl")
    words = ["--kubeconfig", settings["kubeconfig"], "--tls-server-name=kubernetes", "--request-timeout=5s", "get", "--raw=/readyz"]
    try:
        server = own_server((Path(settings["manifest_dir"]) / "kube-apiserver.yaml").read_text(encoding="utf-8"))
        return bool(kubectl) and call([kubectl, "--server", server, *words], limit_s=10.0).strip() == "ok"
    except (RefusedError, OSError):
        return False


def wait_until(is_done: Callable[[], bool], limit_s: float, failure: str) -> None:
    """Wait until a condition is true.

    Raises:
        RefusedError: It is not true within the time; `failure` is the beginning of the message.
    """
    end = time.monotonic() + limit_s
    while not is_done():
        if time.monotonic() > end:
            raise RefusedError(
                f"{failure} within {limit_s:.0f} s. Fix: check the logs of kubelet and etcd on this host, then run the same command again."
            )
        time.sleep(_POLL_S)


def inspect(settings: dict[str, Any], snapshot: str) -> dict[str, Any]:
    """Return hash, revision and number of keys of a snapshot. It is read to its end, which shows that it is complete."""
    status = json.loads(call([snapshot_program(settings), "snapshot", "status", snapshot, "--write-out", "json"], limit_s=600.0))
    return {"hash": f"{status['hash']:x}", "revision": int(status["revision"]), "keys": int(status["totalKey"])}
