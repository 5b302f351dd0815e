"""The lab's hosts.yaml on the disk, and the promise that a file edited by a person is never overwritten."""

from __future__ import annotations

from contextlib import nullcontext
from ipaddress import IPv4Network, ip_network
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.lab.hosts_text import hosts_text
from primus_bootstrap.lab.lab_values import FORMS, LabError, make_lab

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.lab.lab_values import Form, Hold, Lab
    from primus_bootstrap.lab.request import Request


class _AnyTag(yaml.SafeLoader):
    """Reads a file that a person extended with Ansible's own tags, such as `!vault`, whose values do not matter here."""


_AnyTag.add_multi_constructor("!", lambda _loader, _suffix, _node: None)


def hosts_of(path: Path) -> dict[str, str]:
    """Return the hosts that stand under `all.hosts` of a hosts.yaml with their addresses, empty where there is no such file.

    Raises:
        LabError: The file is no YAML that a lab could have written.
    """
    if not path.exists():
        return {}
    try:
        data: Any = yaml.load(path.read_text(), _AnyTag)  # noqa: S506 (a SafeLoader that skips values with a tag)
        hosts = data["all"]["hosts"]
        return {str(name): str((variables or {}).get("ansible_host", "")) for name, variables in hosts.items()}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise LabError(
            f"{path} does not name the lab's hosts under all.hosts",
            fix=f"`primus-bootstrap validate {path}` says what is wrong with it; or move it away and run `lab up` again",
        ) from error


def recorded_subnet(path: Path) -> IPv4Network | None:
    """Return the /24 that a lab's hosts.yaml puts its hosts in, or None where there is none to see."""
    addresses = [address for address in hosts_of(path).values() if address]
    try:
        subnets = {ip_network(f"{address}/24", strict=False) for address in addresses}
    except ValueError:
        return None
    subnet = subnets.pop() if len(subnets) == 1 else None
    return subnet if isinstance(subnet, IPv4Network) else None


def ensure_hosts_file(lab: Lab, request: Request, hold: Hold = lambda _: nullcontext()) -> bool:
    """Write hosts.yaml where it is absent, or still as the lab wrote it and now to be another; return whether it was written.

    Args:
        lab: The lab that it describes.
        request: What was asked for.
        hold: Holds the lock of the cluster with this state folder: no run is under way while a file that is there is written anew.

    Raises:
        LabError: A person edited it, and it names other hosts than this lab has, or another form was asked for.
    """
    path = lab.hosts_file
    if not path.exists():
        _write(path, hosts_text(lab, request.form or "whole"))
        return True
    if _new_text(lab, request) is None:
        return False
    with hold(lab.cluster_state):
        text = _new_text(lab, request)  # read again: it may have been edited before the lock was held
        if text is not None:
            _write(path, text)
    return text is not None


def _new_text(lab: Lab, request: Request) -> str | None:
    """Return the text that takes the place of an existing hosts.yaml; None where it stays as it is."""
    found = hosts_of(lab.hosts_file)
    form = _untouched_form(lab, found)
    if form is None:
        _refuse_strange(lab, found, request)
        return None
    text = hosts_text(lab, request.form or form)
    return text if lab.hosts_file.read_text() != text else None


def _refuse_strange(lab: Lab, found: dict[str, str], request: Request) -> None:
    """Refuse an edited file that this lab cannot stand behind.

    Raises:
        LabError: It names hosts that the lab does not have, others than those that were asked for, or another form was asked for.
    """
    if request.form is not None:
        raise LabError(
            f"{lab.hosts_file} was edited, and --{request.form} would write it anew",
            fix="move it away first, or use another folder with --dir",
        )
    exact = {node.address for node in lab.listed}
    addresses = set(found.values())
    if addresses == exact or (request.nodes is None and addresses and addresses <= {node.address for node in lab.nodes}):
        return
    wanted = ", ".join(f"{node.name} {node.address}" for node in lab.listed)
    raise LabError(
        f"{lab.hosts_file} was edited and names other hosts ({_listed(found)}) than the lab is to have ({wanted})",
        fix=f"give it the lab's hosts, or ask for as many as it names (--nodes {len(found)}), or use another folder with --dir",
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)


def _untouched_form(lab: Lab, found: dict[str, str]) -> Form | None:
    """Return the form in which the file is, to the letter, what the lab writes for that many hosts; None where it is in none."""
    subnet = recorded_subnet(lab.hosts_file)
    if subnet is None or not found:
        return None
    # Releases do not show in the text.
    same = make_lab(lab.name, lab.directory, subnet=subnet, count=len(found), suites=("",))
    text = lab.hosts_file.read_text()
    return next((form for form in FORMS if text == hosts_text(same, form)), None)


def _listed(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {address}".strip() for name, address in found.items()) or "none"
