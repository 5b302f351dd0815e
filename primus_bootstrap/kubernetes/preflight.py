"""What is judged before Kubespray runs: in seconds, on the controller alone, before any host is contacted."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.kubespray_release import load_release

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.inventory.cluster import Cluster
    from primus_bootstrap.kubernetes.commands import Command, KubesprayPaths

_LIMIT_S = 300
_OUTPUT_BYTES = 4 << 30  # ansible-inventory prints all variables of every host of a fleet


def refuse_foreign(cluster: Cluster, verb: str) -> None:
    """Refuse a verb about machines where somebody else makes the cluster.

    Raises:
        PlanError: `kubernetes_provider` is `existing`.
    """
    if provider(cluster) == "existing":
        what = f"{verb}: kubernetes_provider is existing, so the machines of this Kubernetes are not ours"
        raise PlanError(what, fix="do it with the tools that made the cluster; what stands on it is brought up as before")


def provider(cluster: Cluster) -> str:
    """Return who makes the cluster: `kubespray` or `existing`."""
    first = next(iter(cluster.hosts), None)
    return str(cluster.view.variables(first.name).get("kubernetes_provider", "kubespray")) if first else "kubespray"


def parse_version(text: str) -> tuple[int, int, int]:
    """Return major, minor and patch of `1.35.4` or `v1.35.4`.

    Raises:
        PlanError: it is no version.
    """
    found = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)", text)
    if not found:
        raise PlanError(f"`{text}` is no version of Kubernetes", fix=f"write it as {load_release().newest}")
    return int(found[1]), int(found[2]), int(found[3])


def judge_upgrade(running: Iterable[str], wanted: str) -> None:
    """Refuse an upgrade that Kubernetes or Kubespray cannot do; an upgrade that was cut short may be finished.

    Args:
        running: the versions of the nodes now.
        wanted: the version to go to.

    Raises:
        PlanError: it is outside the window, goes back, or leaves a minor out.
    """
    release = load_release()
    to = parse_version(wanted)
    if wanted not in release.kubernetes:
        raise PlanError(
            f"Kubernetes {wanted}: Kubespray {release.version} installs {release.oldest} to {release.newest}",
            fix=release.version_fix(wanted),
        )
    for text in sorted(set(running), key=parse_version):
        at = parse_version(text)
        if at > to:
            raise PlanError(f"a node runs Kubernetes {text}, newer than {wanted}: Kubernetes cannot go back", fix=f"go to {text} or newer")
        if at[0] != to[0] or to[1] - at[1] > 1:
            step = next((one for one in release.kubernetes if parse_version(one)[:2] == (at[0], at[1] + 1)), "")
            fix = f"go to {step} first" if step else f"first bring it to {release.oldest} with an older release of Kubespray"
            raise PlanError(f"from {text} to {wanted} leaves a minor version out: Kubernetes goes up one at a time", fix=fix)


def read_inventory(place: KubesprayPaths, environment: Mapping[str, str], secrets: Sequence[str] = ()) -> dict[str, Any]:
    """Return the inventory as the release's own Ansible reads it.

    Raises:
        PlanError: it does not read it.
    """
    argv = [str(place.programs / "ansible-inventory"), *place.inventory, *secrets, "--list"]
    listed: dict[str, Any] = json.loads(_run(argv, place, environment, "does not read this inventory"))
    return listed


def check(place: KubesprayPaths, commands: Sequence[Command], environment: Mapping[str, str], secrets: Sequence[str] = ()) -> None:
    """Let the release itself judge the inventory, without SSH: seconds at any size.

    Args:
        place: where it runs.
        commands: what is to run; each playbook's syntax is checked.
        environment: the whole environment of its Ansible.
        secrets: arguments that open Vault.

    Raises:
        PlanError: with the first thing that it refuses.
    """
    given = dict(environment) | {"ANSIBLE_STDOUT_CALLBACK": "json", "ANSIBLE_CALLBACKS_ENABLED": ""}
    playbook = [str(place.programs / "ansible-playbook"), *place.inventory, *secrets]
    # Asserts only. Of a large fleet one host is enough: every host would cost minutes, and the rules are the cluster's.
    _run([*playbook, "playbooks/boilerplate.yml", "--limit", "kube_control_plane[0]"], place, given, "refuses this inventory")
    for name in dict.fromkeys(command.playbook for command in commands):
        _run([*playbook, "--syntax-check", name], place, given, f"cannot read its playbook {name}")


def _run(argv: Sequence[str], place: KubesprayPaths, environment: Mapping[str, str], what: str) -> str:
    name = f"Kubespray {load_release().version}"
    try:
        done = run_command(argv, timeout_s=_LIMIT_S, cwd=place.release, env=environment, max_output_bytes=_OUTPUT_BYTES)
    except OSError as error:
        raise PlanError(f"{name} {what}: {error}", fix=f"see whether {argv[0]} runs") from error
    if done.code != 0:
        raise PlanError(f"{name} {what}: {_cause(done.stdout, done.stderr)}", fix="mend hosts.yaml; no host was contacted")
    return done.stdout


def _cause(stdout: str, stderr: str) -> str:
    """Return the message of the first task that failed, or Ansible's last word."""
    start = stdout.find("{")
    try:
        said = json.loads(stdout[start:]) if start >= 0 else {}
    except ValueError:
        said = {}
    for play in said.get("plays") or ():
        for task in play.get("tasks") or ():
            for host, result in (task.get("hosts") or {}).items():
                if result.get("failed"):
                    messages = [str(one.get("msg")) for one in result.get("results") or () if one.get("failed")]
                    return f"{host}: {task['task'].get('name', '')}: {messages[0] if messages else result.get('msg', '')}".strip()
    lines = [line for line in (stderr.strip() or stdout.strip()).splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line]
    return (errors or lines or ["it said nothing"])[0 if errors else -1].strip()


# Of this process's Ansible settings, those that are as true of Kubespray's.
_KEPT = (
    *("ANSIBLE_LOCAL_TEMP", "ANSIBLE_SSH_CONTROL_PATH_DIR", "ANSIBLE_SSH_ARGS", "ANSIBLE_FORKS", "ANSIBLE_TIMEOUT"),
    *("ANSIBLE_REMOTE_USER", "ANSIBLE_PRIVATE_KEY_FILE"),
    *("ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_VAULT_IDENTITY_LIST", "ANSIBLE_BECOME_PASSWORD_FILE"),
)
# Over Kubespray's own, which check no host key. A run of ours brings its own arguments.
_SSH_ARGS = "-C -o ControlMaster=auto -o ControlPersist=30m"


def base_environment() -> dict[str, str]:
    """Return this process's environment without what would lead another Python or another Ansible astray."""
    astray = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    plain = {name: value for name, value in os.environ.items() if name not in astray and (name in _KEPT or not name.startswith("ANSIBLE_"))}
    return {"ANSIBLE_SSH_ARGS": _SSH_ARGS, **plain}
