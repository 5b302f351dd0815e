"""Read the site's values for a host: expected hardware, choices for the detection, and additional variables."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GROUP = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_MODE = re.compile(r"0[0-7]{3}")


class SiteError(UsageError):
    """The site file is wrong."""


@dataclass(frozen=True)
class Variable:
    """One variable that the site sets, with its reason."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class Site:
    """The site's values for one host."""

    host: str = ""
    model: str = "auto"  # the expected model, or `auto`
    count: int | None = None  # the expected number of GPUs, or None
    nic_count: int | None = None  # the expected number of training ports, or None
    nic_deny: tuple[str, ...] = ()
    socket_interface: str = ""  # the interface to use; empty means the route to `socket_peer`, or the default route
    socket_peer: str = ""
    device_group: str = ""  # the group of the GPU device files; empty leaves their permissions unchanged
    device_mode: str = "0660"
    variables: tuple[Variable, ...] = ()


def parse_site(text: str) -> Site:
    """Parse the site file, YAML or JSON.

    Raises:
        SiteError: It is not a mapping, or has an unknown key or a value of the wrong type.
    """
    try:
        # JSON first: YAML misreads JSON escapes of characters beyond U+FFFF.
        data = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError) as error:
        raise SiteError(f"the site file is neither YAML nor JSON: {error}", fix="write `key: value` lines") from error
    if not isinstance(data, dict):
        raise SiteError("the site file is not a mapping", fix="write `key: value` lines")
    known = [field.name for field in fields(Site)]
    for key in data:
        if key not in known:
            raise SiteError(f"the site file has an unknown key: {key}", fix=f"choose from: {', '.join(known)}")
    site = Site(
        host=_text(data, "host"),
        model=_text(data, "model", "auto"),
        count=_number(data, "count"),
        nic_count=_number(data, "nic_count"),
        nic_deny=_texts(data, "nic_deny"),
        socket_interface=_text(data, "socket_interface"),
        socket_peer=_text(data, "socket_peer"),
        device_group=_text(data, "device_group"),
        device_mode=_text(data, "device_mode", "0660"),
        variables=_variables(data.get("variables") or {}),
    )
    _check(site)
    return site


def _check(site: Site) -> None:
    if site.socket_peer:
        try:
            ipaddress.ip_address(site.socket_peer)
        except ValueError as error:
            raise SiteError(f"socket_peer: {site.socket_peer} is not an address", fix="set one IPv4 or IPv6 address") from error
    if site.device_group and not _GROUP.fullmatch(site.device_group):
        raise SiteError(f"device_group: {site.device_group!r} is not a group name", fix="set the name of a group, or an empty string")
    if not _MODE.fullmatch(site.device_mode):
        raise SiteError(f"device_mode: {site.device_mode!r} is not a file mode", fix='set four octal digits in quotes, like "0660"')


def _text(data: Mapping[str, Any], key: str, default: str = "") -> str:
    value = data.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise SiteError(f"{key}: {value!r} is not a text", fix=f"quote the value of {key}")
    return value


def _texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = data.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SiteError(f"{key}: {value!r} is not a list of texts", fix=f"write {key} as a list")
    return tuple(value)


def _number(data: Mapping[str, Any], key: str) -> int | None:
    value = data.get(key)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)  # `ansible-playbook -e gpu_env_count=8` passes a text
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise SiteError(f"{key}: {value!r} is not a non-negative integer", fix=f"set a number, or remove {key}")
    return value


def _variables(data: Any) -> tuple[Variable, ...]:
    """Read `NAME: value`, or `NAME: {value: ..., reason: ...}`."""
    if not isinstance(data, dict):
        raise SiteError("variables: not a mapping", fix="write NAME: value lines, or NAME: {value: ..., reason: ...}")
    return tuple(_variable(str(name), entry) for name, entry in sorted(data.items(), key=lambda item: str(item[0])))


def _variable(name: str, entry: Any) -> Variable:
    value, reason = entry, "set by the site"
    if isinstance(entry, dict):
        if set(entry) - {"value", "reason"} or "value" not in entry:
            raise SiteError(f"variables: {name} must have the keys value and reason only", fix="write {value: ..., reason: ...}")
        value, reason = entry["value"], str(entry.get("reason") or reason)
    if not _NAME.fullmatch(name):
        raise SiteError(f"variables: {name!r} is not a variable name", fix="use letters, digits and _, starting with a letter or _")
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise SiteError(f"variables: the value of {name} is {value!r}, not a text", fix="quote it: YAML reads yes, no and on as booleans")
    text = str(value)
    if not text.isprintable():
        raise SiteError(
            f"variables: the value of {name} contains a line break or another control character", fix="write one printable line"
        )
    return Variable(name, text, " ".join(reason.split()))
