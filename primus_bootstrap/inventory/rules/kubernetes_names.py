"""Check labels and taints of Kubernetes nodes: their syntax, and that their keys are not reserved.

`validate` and the role `kube_node_labels` use these functions. Each returns (what is wrong, fix), or None.
"""

from __future__ import annotations

import re

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set: a name, and a prefix that is a DNS
# subdomain (RFC 1123: lower case, 253 characters). A taint's key and value have the same form.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_NAME_CHARS, _PREFIX_CHARS = 63, 253
_SHOWN_CHARS = 80
_FORM = "at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends; a prefix before `/` is a domain in lower case"

# kubernetes.io and k8s.io are reserved for Kubernetes (the page above). An administrator may set these subdomains:
# https://kubernetes.io/docs/reference/labels-annotations-taints/, and for the second
# https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction
_RESERVED = ("kubernetes.io", "k8s.io")
_FREE_LABELS = ("node-role.kubernetes.io", "node-restriction.kubernetes.io", "topology.kubernetes.io", "node.kubernetes.io")
# Controllers set and remove all taints of node.kubernetes.io by the state of the node (not-ready, memory-pressure, …).
_FREE_TAINTS = ("node-role.kubernetes.io",)
# The prefix of this project's labels and taints. A test compares it with primus_bootstrap/kubernetes/node_marks.py.
OURS = "primus-bootstrap.io"

Fault = tuple[str, str]


def label_fault(key: object, value: object) -> Fault | None:
    """Check one entry of `node_labels`."""
    text = str(key)
    if fault := _key_fault(text):
        return f"{_short(text)} is not a valid label: {fault}", _FORM
    if isinstance(value, bool) or not isinstance(value, str | int):
        # Kubespray would write True and None, this project true. YAML reads yes as a boolean and 1.30 as 1.3.
        fix = 'put the value in quotes; "" is a label without a value'
        return f"{_short(text)}: the value of a label must be a string, found {_kind(value)}", fix
    if fault := _value_fault(str(value)):
        return f"{_short(text)}={_short(str(value))} is not a valid label: {fault}", _FORM
    if _prefix(text) == OURS:
        return f"{_short(text)}: the prefix {OURS} is reserved for this project", "set rack, slurm_switch or gpu_env_model instead"
    if _is_reserved(text, _FREE_LABELS):
        fix = f"use a prefix of your own (example.com/…), or one of {', '.join(_FREE_LABELS)}"
        return f"{_short(text)}: the prefix is reserved for Kubernetes, which sets this label itself", fix
    return None


def taint_fault(taint: object) -> Fault | None:
    """Check one entry of `node_taints`."""
    form = f"write key=value:effect or key:effect; the effect is one of {', '.join(EFFECTS)}"
    if not isinstance(taint, str):
        return f"a taint must be a string, found {_kind(taint)}", form
    key, value, effect = split_taint(taint)
    shown = _short(taint)
    if effect not in EFFECTS:
        reason = f"{_short(effect)} is not an effect" if effect else "it has no effect"
        return f"{shown} is not a valid taint: {reason}", form
    if fault := _key_fault(key) or _value_fault(value):
        return f"{shown} is not a valid taint: {fault}", f"{form}; key and value: {_FORM}"
    if _prefix(key) == OURS:
        fix = "use a prefix of your own; to keep pods off a node, run: primus-bootstrap node quarantine hosts.yaml NODE --reason TEXT"
        return f"{shown}: the prefix {OURS} is reserved for this project", fix
    if _is_reserved(key, _FREE_TAINTS):
        fix = f"use a prefix of your own (example.com/…), or {_FREE_TAINTS[0]}"
        return f"{shown}: the prefix is reserved for Kubernetes, whose controllers set and remove this taint", fix
    return None


def split_taint(taint: str) -> tuple[str, str, str]:
    """Return key, value and effect of `key=value:effect`; a missing part is empty."""
    head, colon, effect = taint.rpartition(":")
    key, _, value = (head if colon else effect).partition("=")
    return key, value, effect if colon else ""


def _key_fault(key: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if slash and len(prefix) > _PREFIX_CHARS:
        return f"the prefix of its key has {len(prefix)} characters, at most {_PREFIX_CHARS} are allowed"
    if slash and not _SUBDOMAIN.fullmatch(prefix):
        return "the prefix of its key is not a domain in lower case"
    return "the name of its key is empty" if not name else _name_fault(name, "the name of its key")


def _value_fault(value: str) -> str:
    return _name_fault(value, "its value") if value else ""


def _name_fault(text: str, part: str) -> str:
    if not _NAME.fullmatch(text):
        return f"{part} contains an invalid character, or `-`, `_` or `.` at one end"
    return f"{part} has {len(text)} characters, at most {_NAME_CHARS} are allowed" if len(text) > _NAME_CHARS else ""


def _prefix(key: str) -> str:
    return key.rpartition("/")[0]


def _is_reserved(key: str, free: tuple[str, ...]) -> bool:
    prefix = _prefix(key)
    return prefix not in free and any(prefix == domain or prefix.endswith(f".{domain}") for domain in _RESERVED)


def _kind(value: object) -> str:
    names = {bool: "a boolean", type(None): "nothing", float: "a decimal number", list: "a list", dict: "a mapping"}
    return names.get(type(value), type(value).__name__)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
