"""What the inventory says about a host: expectations, choices that detection must respect, and variables of the site's own."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GROUP = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_MODE = re.compile(r"0[0-7]{3}")


class SiteError(Exception):
    """The site's input is wrong; `fix` says how to mend it."""

    def __init__(self, what: str, *, fix: str) -> None:
        """Keep what is wrong and how to mend it apart."""
        super().__init__(what)
        self.what = what
        self.fix = fix


@dataclass(frozen=True)
class Variable:
    """One variable that the site sets for every host or for this one, with its reason."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class Site:
    """The input of one host.

    `model` is `auto` or the expected model. `count` and `nic_count` are None where nothing is expected. `socket_interface` and
    `socket_peer` are empty where the default route decides. `device_group` is empty where device permissions are left alone.
    """

    host: str = ""
    model: str = "auto"
    count: int | None = None
    nic_count: int | None = None
    nic_deny: tuple[str, ...] = ()
    socket_interface: str = ""
    socket_peer: str = ""
    device_group: str = ""
    device_mode: str = "0660"
    variables: tuple[Variable, ...] = ()


def parse_site(text: str) -> Site:
    """Read the site's input from YAML or JSON.

    Raises:
        SiteError: It is no mapping, has an unknown key, or a value of the wrong kind.
    """
    try:
        # JSON first: YAML reads its escaped characters beyond U+FFFF wrongly.
        data = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError) as error:
        raise SiteError(f"the site file is neither YAML nor JSON: {error}", fix="write it as a YAML mapping") from error
    if not isinstance(data, dict):
        raise SiteError("the site file is not a mapping", fix="write it as `key: value` lines")
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
            raise SiteError(f"socket_peer: {site.socket_peer} is not an address", fix="give one IPv4 or IPv6 address") from error
    if site.device_group and not _GROUP.fullmatch(site.device_group):
        raise SiteError(f"device_group: {site.device_group!r} is not a group name", fix="give the name of a group, or leave it empty")
    if not _MODE.fullmatch(site.device_mode):
        raise SiteError(f"device_mode: {site.device_mode!r} is not a file mode", fix='quote it and give four octal digits, like "0660"')


def _text(data: Mapping[str, Any], key: str, default: str = "") -> str:
    value = data.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise SiteError(f"{key}: a text is expected, {value!r} is none", fix=f"quote the value of {key}")
    return value


def _texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = data.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SiteError(f"{key}: a list of texts is expected", fix=f"write {key} as a list")
    return tuple(value)


def _number(data: Mapping[str, Any], key: str) -> int | None:
    value = data.get(key)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)  # what `ansible-playbook -e gpu_env_count=8` makes of a number
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise SiteError(f"{key}: a number from 0 on is expected, {value!r} is none", fix=f"give a number, or leave {key} out")
    return value


def _variables(data: Any) -> tuple[Variable, ...]:
    """Read `NAME: value`, or `NAME: {value: ..., reason: ...}`."""
    if not isinstance(data, dict):
        raise SiteError("variables: a mapping is expected", fix="write NAME: value lines, or NAME: {value: ..., reason: ...}")
    return tuple(_variable(str(name), entry) for name, entry in sorted(data.items(), key=lambda item: str(item[0])))


def _variable(name: str, entry: Any) -> Variable:
    value, reason = entry, "set by the site"
    if isinstance(entry, dict):
        if set(entry) - {"value", "reason"} or "value" not in entry:
            raise SiteError(f"variables: {name} has other keys than value and reason", fix="write {value: ..., reason: ...}")
        value, reason = entry["value"], str(entry.get("reason") or reason)
    if not _NAME.fullmatch(name):
        raise SiteError(f"variables: {name!r} is not a variable's name", fix="use letters, digits and _, and no digit first")
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise SiteError(
            f"variables: {name} needs a text, {value!r} is none", fix='quote it: YAML reads yes, no and on as booleans, so write "1"'
        )
    text = str(value)
    if not text.isprintable():
        raise SiteError(f"variables: the value of {name} has a line break or another control character", fix="give one printable line")
    return Variable(name, text, " ".join(reason.split()))
