"""What Kubernetes takes as a label or a taint of a Node, and which keys are not the inventory's to set. Pure functions.

Each returns what is wrong and what to do about it, or None. `validate` and the role `kube_node_labels` ask the same ones.
"""

from __future__ import annotations

import re

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set: a name, and a prefix that is a DNS
# subdomain (RFC 1123: lower case, 253 characters). A taint's key and value have the same form.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_NAME_CHARS, _PREFIX_CHARS = 63, 253
_SAID_CHARS = 80
_FORM = "letters, digits, - _ . inside, at most 63 characters; a prefix before / is a domain in lower case"

# kubernetes.io and k8s.io are reserved for Kubernetes' own components (the page above). These below them an administrator may set:
# https://kubernetes.io/docs/reference/labels-annotations-taints/, and for the second
# https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction
_RESERVED = ("kubernetes.io", "k8s.io")
_FREE_LABELS = ("node-role.kubernetes.io", "node-restriction.kubernetes.io", "topology.kubernetes.io", "node.kubernetes.io")
# Every taint below node.kubernetes.io is a controller's word on the Node's state (not-ready, memory-pressure, …): it comes and goes.
_FREE_TAINTS = ("node-role.kubernetes.io",)
# What this project's own programs write; tests hold it against primus_bootstrap/kubernetes/node_marks.py, which must stand alone.
OURS = "primus-bootstrap.io"

Fault = tuple[str, str]


def label_fault(key: object, value: object) -> Fault | None:
    """Return what is wrong with one entry of `node_labels`."""
    text = str(key)
    if fault := _key_fault(text):
        return f"{_short(text)} is no label: {fault}", _FORM
    if isinstance(value, bool) or not isinstance(value, str | int):
        # Kubespray would write True and None, this project true; and YAML takes yes for a truth and 1.30 for 1.3.
        return f"{_short(text)}: the value of a label is a text, found {_kind(value)}", 'put it in quotes; "" is a label without a value'
    if fault := _value_fault(str(value)):
        return f"{_short(text)}={_short(str(value))} is no label: {fault}", _FORM
    if _prefix(text) == OURS:
        return f"{_short(text)}: {OURS} is this project's own", "set rack, slurm_switch or gpu_env_model, which give such a label"
    if _is_reserved(text, _FREE_LABELS):
        what = f"{_short(text)} belongs to Kubernetes' own components, which write it as they see it"
        return what, f"take a prefix of your own (example.com/…), or one of {', '.join(_FREE_LABELS)}"
    return None


def taint_fault(taint: object) -> Fault | None:
    """Return what is wrong with one entry of `node_taints`."""
    form = f"write key=value:effect, or key:effect, with one of {', '.join(EFFECTS)}"
    if not isinstance(taint, str):
        return f"a taint is a text, found {_kind(taint)}", form
    key, value, effect = split_taint(taint)
    said = _short(taint)
    if effect not in EFFECTS:
        return f"{said} is no taint: {'its effect is ' + _short(effect) if effect else 'it has no effect'}", form
    if fault := _key_fault(key) or _value_fault(value):
        return f"{said} is no taint: {fault}", f"{form}; key and value: {_FORM}"
    if _prefix(key) == OURS:
        return (
            f"{said}: {OURS} is this project's own",
            "take a prefix of the site; `node quarantine` is what keeps pods away by ours",
        )
    if _is_reserved(key, _FREE_TAINTS):
        what = f"{said} belongs to Kubernetes' own controllers, which set and lift it by the Node's state"
        return what, f"take a prefix of your own (example.com/…), or {_FREE_TAINTS[0]}"
    return None


def split_taint(taint: str) -> tuple[str, str, str]:
    """Return key, value and effect of `key=value:effect`; what is not there is empty."""
    head, colon, effect = taint.rpartition(":")
    key, _, value = (head if colon else effect).partition("=")
    return key, value, effect if colon else ""


def _key_fault(key: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > _PREFIX_CHARS or not _SUBDOMAIN.fullmatch(prefix)):
        return f"its prefix is {_length(prefix, _PREFIX_CHARS) or 'no domain'}"
    if not _NAME.fullmatch(name):
        return "its name is empty" if not name else "its name has other characters, or they stand at its ends"
    return f"its name has {_length(name, _NAME_CHARS)}" if _length(name, _NAME_CHARS) else ""


def _value_fault(value: str) -> str:
    if value and not _NAME.fullmatch(value):
        return "its value has other characters, or they stand at its ends"
    return f"its value has {_length(value, _NAME_CHARS)}" if _length(value, _NAME_CHARS) else ""


def _length(text: str, most: int) -> str:
    return f"{len(text)} characters, at most {most}" if len(text) > most else ""


def _prefix(key: str) -> str:
    return key.rpartition("/")[0]


def _is_reserved(key: str, free: tuple[str, ...]) -> bool:
    prefix = _prefix(key)
    return any(_is_below(prefix, one) for one in _RESERVED) and not any(prefix == one for one in free)


def _is_below(prefix: str, domain: str) -> bool:
    return prefix == domain or prefix.endswith(f".{domain}")


def _kind(value: object) -> str:
    return {bool: "true or false", type(None): "nothing", float: "a number with a point", list: "a list", dict: "a mapping"}.get(
        type(value), type(value).__name__
    )


def _short(text: str) -> str:
    return text if len(text) <= _SAID_CHARS else f"{text[:_SAID_CHARS]}…"
