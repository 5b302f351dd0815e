"""Check the inventory and the versions on the controller before Kubespray runs, without contacting a host."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.kubespray_release import VARIABLE, load_release, load_releases

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.inventory.cluster import Cluster
    from primus_bootstrap.inventory.kubespray_release import Release
    from primus_bootstrap.kubernetes.commands import Command, KubesprayPaths

_LIMIT_S = 300
_OUTPUT_BYTES = 4 << 30  # ansible-inventory prints all variables of every host


def refuse_foreign(cluster: Cluster, verb: str) -> None:
    """Fail if the verb would change the hosts of an existing Kubernetes cluster.

    Raises:
        PlanError: `kubernetes_provider` is `existing`.
    """
    if provider(cluster) == "existing":
        what = f"{verb}: kubernetes_provider is existing, so primus-bootstrap does not manage the hosts of this Kubernetes cluster"
        raise PlanError(what, fix="use the tool that created the cluster; `apply` still installs services on it")


def provider(cluster: Cluster) -> str:
    """Return `kubernetes_provider`: `kubespray` or `existing`."""
    return _first_value(cluster, "kubernetes_provider", "kubespray")


def release_of(cluster: Cluster) -> Release:
    """Return the release of Kubespray that hosts.yaml names, or the default one.

    Raises:
        PlanError: There is no such release.
    """
    return load_release(_first_value(cluster, VARIABLE, ""))


def _first_value(cluster: Cluster, name: str, default: str) -> str:
    """Return a variable that has the same value for all hosts."""
    first = next(iter(cluster.hosts), None)
    return str(cluster.view.variables(first.name).get(name, default)) if first else default


def parse_version(text: str) -> tuple[int, int, int]:
    """Return major, minor and patch of `1.35.4` or `v1.35.4`.

    Raises:
        PlanError: The text is not a version.
    """
    match = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)", text)
    if not match:
        raise PlanError(f"`{text}` is not a version of Kubernetes", fix=f"write it like {load_release().newest}")
    return int(match[1]), int(match[2]), int(match[3])


def check_upgrade(running: Iterable[str], version: str, release: Release) -> None:
    """Check that Kubernetes and Kubespray support an upgrade. An interrupted upgrade may be finished.

    Args:
        running: The current versions of the nodes.
        version: The target version.
        release: The release of Kubespray.

    Raises:
        PlanError: The version is unsupported or older, or the upgrade skips a minor version.
    """
    to = parse_version(version)
    if version not in release.kubernetes:
        raise PlanError(
            f"Kubernetes {version}: Kubespray {release.version} installs {release.oldest} to {release.newest}",
            fix=release.version_fix(version),
        )
    for text in sorted(set(running), key=parse_version):
        at = parse_version(text)
        if at > to:
            what = f"a node runs Kubernetes {text}, which is newer than {version}: Kubernetes does not support downgrades"
            raise PlanError(what, fix=f"upgrade to {text} or newer")
        if at[0] != to[0] or to[1] - at[1] > 1:
            what = f"an upgrade from {text} to {version} skips a minor version, which Kubernetes does not support"
            raise PlanError(what, fix=_step_fix((at[0], at[1] + 1), release))


def _step_fix(minor: tuple[int, int], release: Release) -> str:
    """Return the upgrade to do first, with the release that can do it."""
    others = (other for other in reversed(tuple(load_releases().values())) if other != release)
    for one in (release, *others):
        step = next((known for known in one.kubernetes if parse_version(known)[:2] == minor), "")
        if step:
            return f"upgrade to {step} first" + ("" if one == release else f", with `{VARIABLE}: {one.version}` in hosts.yaml")
    return f"first upgrade to {release.oldest} with an older release of Kubespray"


def read_inventory(paths: KubesprayPaths, environment: Mapping[str, str], secrets: Sequence[str] = ()) -> dict[str, Any]:
    """Return the inventory as Kubespray's Ansible reads it.

    Raises:
        PlanError: Its Ansible cannot read it.
    """
    argv = [str(paths.programs / "ansible-inventory"), *paths.inventory, *secrets, "--list"]
    listed: dict[str, Any] = json.loads(_run(argv, paths, environment, "cannot read this inventory"))
    return listed


def check(paths: KubesprayPaths, commands: Sequence[Command], environment: Mapping[str, str], secrets: Sequence[str] = ()) -> None:
    """Run Kubespray's own checks of the inventory, without SSH.

    Args:
        commands: The commands to run; the syntax of each playbook is checked.

    Raises:
        PlanError: A check failed; the error has the first failure.
    """
    settings = dict(environment) | {"ANSIBLE_STDOUT_CALLBACK": "json", "ANSIBLE_CALLBACKS_ENABLED": ""}
    playbook = [str(paths.programs / "ansible-playbook"), *paths.inventory, *secrets]
    # This playbook has only asserts. They concern the cluster, so one host suffices; all hosts of a fleet would take minutes.
    _run([*playbook, "playbooks/boilerplate.yml", "--limit", "kube_control_plane[0]"], paths, settings, "rejects this inventory")
    for name in dict.fromkeys(command.playbook for command in commands):
        _run([*playbook, "--syntax-check", name], paths, settings, f"cannot parse its playbook {name}")


def _run(argv: Sequence[str], paths: KubesprayPaths, environment: Mapping[str, str], what: str) -> str:
    name = f"Kubespray {paths.version}"
    try:
        done = run_command(argv, timeout_s=_LIMIT_S, cwd=paths.release, env=environment, max_output_bytes=_OUTPUT_BYTES)
    except OSError as error:
        raise PlanError(f"{name} {what}: {error}", fix=f"run `{argv[0]} --version` to see whether it works") from error
    if done.code != 0:
        raise PlanError(f"{name} {what}: {_cause(done.stdout, done.stderr)}", fix="correct hosts.yaml; no host was contacted")
    return done.stdout


def _cause(stdout: str, stderr: str) -> str:
    """Return the message of the first failed task, or else Ansible's last line."""
    start = stdout.find("{")
    try:
        output = json.loads(stdout[start:]) if start >= 0 else {}
    except ValueError:
        output = {}
    for play in output.get("plays") or ():
        for task in play.get("tasks") or ():
            for host, result in (task.get("hosts") or {}).items():
                if result.get("failed"):
                    messages = [str(item.get("msg")) for item in result.get("results") or () if item.get("failed")]
                    return f"{host}: {task['task'].get('name', '')}: {messages[0] if messages else result.get('msg', '')}".strip()
    lines = [line for line in (stderr.strip() or stdout.strip()).splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line]
    return (errors or lines or ["no output"])[0 if errors else -1].strip()


# The Ansible settings of this process that also apply to Kubespray's Ansible.
_KEPT = (
    *("ANSIBLE_LOCAL_TEMP", "ANSIBLE_SSH_CONTROL_PATH_DIR", "ANSIBLE_SSH_ARGS", "ANSIBLE_FORKS", "ANSIBLE_TIMEOUT"),
    *("ANSIBLE_REMOTE_USER", "ANSIBLE_PRIVATE_KEY_FILE"),
    *("ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_VAULT_IDENTITY_LIST", "ANSIBLE_BECOME_PASSWORD_FILE"),
)
# Replaces Kubespray's, which disable the check of host keys. A run of the engine sets its own arguments.
_SSH_ARGS = "-C -o ControlMaster=auto -o ControlPersist=30m"


def base_environment() -> dict[str, str]:
    """Return this process's environment without the settings of its own Python and Ansible."""
    python = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in python and (name in _KEPT or not name.startswith("ANSIBLE_"))}
    return {"ANSIBLE_SSH_ARGS": _SSH_ARGS, **kept}
