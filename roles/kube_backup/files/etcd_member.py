"""What etcd this host runs, and how it is spoken to: the part that the programs of role `kube_backup` share. It changes nothing.

Two forms are known: a systemd unit with an environment file (Kubespray's etcd on hosts, the distributions' packages), and
kubeadm's static pod.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# Kubespray's folder of programs is not in root's PATH everywhere.
SEARCHED = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/bin", "/usr/bin"))
ASK_S = 30.0
_POLL_S = 0.5


class RefusedError(Exception):
    """What is asked for cannot be done, or must not be; the message ends in a fix."""


@dataclass(frozen=True)
class Member:
    """The etcd of this host. `form` is `systemd`, `static_pod`, or empty where there is none; urls are lists with commas between."""

    form: str = ""
    name: str = ""
    data_dir: str = ""
    endpoint: str = ""
    peer_urls: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    def to_json(self) -> dict[str, str]:
        """Return it as plain data."""
        return asdict(self)


def read_env(text: str) -> dict[str, str]:
    """Return the settings of an environment file of systemd."""
    found = (re.match(r"\s*(ETCD\w*)=(.*)$", line) for line in text.splitlines())
    return {one[1]: one[2].strip().strip("\"'") for one in found if one}


def read_manifest(text: str) -> dict[str, str]:
    """Return the options of a static pod's command, each under the name that etcd's has in an environment file."""
    found = re.findall(r"(?m)^\s*-\s+[\"']?--([a-z0-9-]+)=(.*?)[\"']?\s*$", text)
    return {"ETCD_" + name.upper().replace("-", "_"): value for name, value in found}


def nearest(urls: str) -> str:
    """Return the address to speak to: the one on loopback where there is one, the first otherwise."""
    listed = [one.strip() for one in urls.split(",") if one.strip()]
    return next((one for one in listed if "//127.0.0.1:" in one), listed[0] if listed else "")


def member_of(form: str, found: dict[str, str]) -> Member:
    """Return the member that these settings make.

    Raises:
        RefusedError: A setting is missing without which it can neither be reached nor be restored.
    """
    listened = found.get("ETCD_LISTEN_CLIENT_URLS") or found.get("ETCD_ADVERTISE_CLIENT_URLS", "")
    member = Member(
        form=form,
        name=found.get("ETCD_NAME", ""),
        data_dir=found.get("ETCD_DATA_DIR", ""),
        endpoint=nearest(found.get("ETCDCTL_ENDPOINTS") or listened),
        peer_urls=found.get("ETCD_INITIAL_ADVERTISE_PEER_URLS", ""),
        ca=found.get("ETCDCTL_CACERT") or found.get("ETCD_TRUSTED_CA_FILE", ""),
        cert=found.get("ETCDCTL_CERT") or found.get("ETCD_CERT_FILE", ""),
        key=found.get("ETCDCTL_KEY") or found.get("ETCD_KEY_FILE", ""),
    )
    missing = [name for name in ("name", "data_dir", "endpoint", "peer_urls") if not getattr(member, name)]
    if missing:
        raise RefusedError(
            f"etcd's settings do not say its {', '.join(missing)}. Fix: see kube_backup_env_file and kube_backup_manifest_dir."
        )
    return member


def held(settings: dict[str, Any], name: str) -> Path:
    """Return where a static pod's manifest waits while the pod must not run: beside the folder, on the same file system."""
    folder = Path(settings["manifest_dir"])
    return folder.with_name(folder.name + ".primus-held") / f"{name}.yaml"


def find_member(settings: dict[str, Any]) -> Member:
    """Return the etcd of this host; one without form where there is none. A manifest that is held for a restore counts."""
    here = Path(settings["manifest_dir"]) / "etcd.yaml"
    for manifest in (here, held(settings, "etcd")):
        if manifest.is_file():
            return member_of("static_pod", read_manifest(manifest.read_text(encoding="utf-8")))
    unit = Path(settings["env_file"])
    return member_of("systemd", read_env(unit.read_text(encoding="utf-8"))) if unit.is_file() else Member()


def program(settings: dict[str, Any], name: str) -> str:
    """Return where a program of etcd lies, empty where it is not on this host."""
    stated = settings.get(name, "")
    return stated if stated and os.access(stated, os.X_OK) else shutil.which(name, path=SEARCHED) or ""


def snapshot_program(settings: dict[str, Any]) -> str:
    """Return the program that reads and restores snapshots: etcdutl since etcd 3.5, and nothing else since 3.6.

    Raises:
        RefusedError: It is not on this host.
    """
    found = program(settings, "etcdutl") or program(settings, "etcdctl")
    if not found:
        raise RefusedError("neither etcdutl nor etcdctl is on this host. Fix: install etcd-client, or name them: kube_backup_etcdctl.")
    return found


def call(argv: list[str], *, limit_s: float = ASK_S) -> str:
    """Run a program and return what it prints.

    Raises:
        RefusedError: It fails, or takes longer.
    """
    # Settings of the caller's shell would win over, or clash with, the options.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCDCTL_")}
    try:
        done = subprocess.run(
            argv,
            env={**environment, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise RefusedError(f"{' '.join(argv[:2])} did not end within {limit_s:.0f} s. Fix: see whether etcd has a leader.") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()[-60:])
        raise RefusedError(f"{Path(argv[0]).name} ended with {done.returncode}: {said}. Fix: see the log of etcd on this host.")
    return done.stdout


def ask(settings: dict[str, Any], member: Member, *words: str, limit_s: float = ASK_S) -> Any:
    """Ask the member of this host by etcdctl, and return its answer.

    Raises:
        RefusedError: It does not answer.
    """
    etcdctl = program(settings, "etcdctl")
    if not etcdctl:
        raise RefusedError("etcdctl is not on this host. Fix: install etcd-client, or name it: kube_backup_etcdctl.")
    secure = ["--cacert", member.ca, "--cert", member.cert, "--key", member.key] if member.endpoint.startswith("https") else []
    said = call([etcdctl, "--endpoints", member.endpoint, *secure, "--write-out", "json", *words], limit_s=limit_s)
    return json.loads(said) if said.strip().startswith(("{", "[")) else said


def health(settings: dict[str, Any], member: Member) -> dict[str, Any]:
    """Return what the member says of itself: version, revision, the cluster's number, its members, and alarms."""
    status = ask(settings, member, "endpoint", "status")[0]["Status"]
    listed = ask(settings, member, "member", "list")["members"]
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
    """Return where the API server of this host is reached, by its own manifest: a kubeconfig may name another host, or all of them."""
    said = read_manifest(manifest)
    bound = said.get("ETCD_BIND_ADDRESS", "::")
    host = "127.0.0.1" if bound in ("::", "0.0.0.0") else f"[{bound}]" if ":" in bound else bound  # noqa: S104 - nothing is bound here
    return f"https://{host}:{said.get('ETCD_SECURE_PORT', '6443')}"


def api_answers(settings: dict[str, Any]) -> bool:
    """Tell whether the API server of this host says that it is ready.

    Its certificate always has the name kubernetes, and not always the address that it is reached by here.
    """
    kubectl = program(settings, "kubectl")
    words = ["--kubeconfig", settings["kubeconfig"], "--tls-server-name=kubernetes", "--request-timeout=5s", "get", "--raw=/readyz"]
    try:
        server = own_server((Path(settings["manifest_dir"]) / "kube-apiserver.yaml").read_text(encoding="utf-8"))
        return bool(kubectl) and call([kubectl, "--server", server, *words], limit_s=10.0).strip() == "ok"
    except (RefusedError, OSError):
        return False


def wait_until(holds: Callable[[], bool], limit_s: float, what: str) -> None:
    """Wait until something holds.

    Raises:
        RefusedError: It does not within the time.
    """
    end = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end:
            raise RefusedError(
                f"{what} within {limit_s:.0f} s. Fix: see the log of kubelet and etcd on this host, then run the same again."
            )
        time.sleep(_POLL_S)


def inspect(settings: dict[str, Any], snapshot: str) -> dict[str, Any]:
    """Return hash, revision and number of keys of a snapshot; reading it to the end is the check that it is whole."""
    said = json.loads(call([snapshot_program(settings), "snapshot", "status", snapshot, "--write-out", "json"], limit_s=600.0))
    return {"hash": f"{said['hash']:x}", "revision": int(said["revision"]), "keys": int(said["totalKey"])}
