"""Write and read the lab's hosts.yaml. A file that a person edited is never overwritten."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from ipaddress import IPv4Network, ip_network
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.lab.hosts_text import hosts_text
from primus_bootstrap.lab.lab_values import FORMS, LabError, make_lab

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.lab.lab_values import Form, Lab, LockCluster
    from primus_bootstrap.lab.request import Request


class _AnyTag(yaml.SafeLoader):
    """Loads YAML and ignores the values of unknown tags such as Ansible's `!vault`."""


_AnyTag.add_multi_constructor("!", lambda _loader, _suffix, _node: None)


def read_hosts(path: Path) -> dict[str, str]:
    """Return the hosts under `all.hosts` with their addresses, or nothing if the file does not exist.

    Raises:
        LabError: The file has no such hosts.
    """
    if not path.exists():
        return {}
    try:
        data: Any = yaml.load(path.read_text(), _AnyTag)  # noqa: S506 (a SafeLoader that skips values with a tag)
        hosts = data["all"]["hosts"]
        return {str(name): str((variables or {}).get("ansible_host", "")) for name, variables in hosts.items()}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise LabError(
            f"{path} has no hosts under all.hosts",
            fix=f"run `primus-bootstrap validate {path}` and correct it, or move it away and run `lab up` again",
        ) from error


def recorded_subnet(path: Path) -> IPv4Network | None:
    """Return the /24 network of the hosts in a lab's hosts.yaml, or None if they do not share one."""
    addresses = [address for address in read_hosts(path).values() if address]
    try:
        subnets = {ip_network(f"{address}/24", strict=False) for address in addresses}
    except ValueError:
        return None
    subnet = subnets.pop() if len(subnets) == 1 else None
    return subnet if isinstance(subnet, IPv4Network) else None


def ensure_hosts_file(lab: Lab, request: Request, lock_cluster: LockCluster = lambda _: nullcontext()) -> bool:
    """Write hosts.yaml if it is missing, or if it is unedited and the lab changed; return whether it was written.

    Args:
        lab: The lab.
        request: The options of `lab up`.
        lock_cluster: Locks the cluster while an existing file is replaced, so that no run reads it meanwhile.

    Raises:
        LabError: The file was edited, and its hosts or the requested form do not match.
    """
    if not lab.hosts_file.exists():
        _write(lab, request.form or "whole")
        return True
    if _new_form(lab, request) is None:
        return False
    with lock_cluster(lab.cluster_state):
        form = _new_form(lab, request)  # again: it may have been edited before the lock was acquired
        if form is not None:
            _write(lab, form)
    return form is not None


def _new_form(lab: Lab, request: Request) -> Form | None:
    """Return the form in which an existing hosts.yaml must be written again, or None if it stays unchanged."""
    hosts = read_hosts(lab.hosts_file)
    unedited = _unedited_form(lab, hosts)
    if unedited is None:
        _check_edited(lab, hosts, request)
        return None
    form = request.form or unedited
    return form if lab.hosts_file.read_text() != hosts_text(lab, form) else None


def _check_edited(lab: Lab, hosts: dict[str, str], request: Request) -> None:
    """Check that an edited file matches the lab.

    Raises:
        LabError: Its hosts differ from the lab's, or another form was requested.
    """
    if request.form is not None:
        raise LabError(
            f"{lab.hosts_file} was edited, and --{request.form} would overwrite it",
            fix=f"move it away (`mv {lab.hosts_file} {lab.hosts_file}.old`), or use another folder with --dir",
        )
    addresses = set(hosts.values())
    if addresses == {node.address for node in lab.listed}:
        return
    if request.nodes is None and addresses and addresses <= {node.address for node in lab.nodes}:
        return
    expected = ", ".join(f"{node.name} {node.address}" for node in lab.listed)
    raise LabError(
        f"{lab.hosts_file} was edited and has the hosts {_format_hosts(hosts)}; the lab has {expected}",
        fix=f"put the lab's hosts into it, or run `lab up --nodes {len(hosts)}`, or use another folder with --dir",
    )


def _write(lab: Lab, form: Form) -> None:
    """Write hosts.yaml, and its sum, so that a later release knows that nobody edited it."""
    text = hosts_text(lab, form)
    for path, content in ((lab.hosts_file, text), (_written_file(lab), json.dumps({"form": form, "sha256": _sum(text)}) + "\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)


def _written_file(lab: Lab) -> Path:
    """Return the file with the form and the sum of the hosts.yaml that `lab up` wrote last."""
    return lab.lab_state / "hosts-file.json"


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _written_form(lab: Lab) -> Form | None:
    """Return the form of a file that is as `lab up`, possibly of another release, wrote it; None if it was edited."""
    try:
        written: Any = json.loads(_written_file(lab).read_text())
        unedited = written["sha256"] == _sum(lab.hosts_file.read_text())
        return next((form for form in FORMS if unedited and form == written["form"]), None)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _unedited_form(lab: Lab, hosts: dict[str, str]) -> Form | None:
    """Return the form of a file that `lab up` wrote, or None if it was edited or is that of another lab."""
    if form := _written_form(lab):
        return form
    subnet = recorded_subnet(lab.hosts_file)
    if subnet is None or not hosts:
        return None
    # The text does not contain the releases.
    same = make_lab(lab.name, lab.directory, subnet=subnet, count=len(hosts), suites=("",))
    text = lab.hosts_file.read_text()
    return next((form for form in FORMS if text == hosts_text(same, form)), None)


def _format_hosts(hosts: dict[str, str]) -> str:
    return ", ".join(f"{name} {address}".strip() for name, address in hosts.items()) or "(none)"
