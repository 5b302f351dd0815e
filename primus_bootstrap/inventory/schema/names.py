"""Which names hosts.yaml may use, and which known name a misspelt one is nearest to."""

from __future__ import annotations

import difflib
import re
from functools import cache

from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.ansible.groups import load_groups, load_kubespray_variables
from primus_bootstrap.inventory.schema.specs import load_options

OWN_PREFIX = "site_"
_INTERPRETER = re.compile(r"ansible_[a-z0-9]+_interpreter")
_PLUGINS = (("connection", ("ssh", "local")), ("become", ("sudo", "su")), ("shell", ("sh",)))
# Read by Ansible or by modules, and in no plugin's documentation:
# https://docs.ansible.com/ansible/latest/reference_appendices/special_variables.html (2025-10)
_SPECIAL = frozenset({"ansible_group_priority", "ansible_become_method", "ansible_connection", "ansible_shell_type"})
_SECRET_ENDINGS = ("_pass", "_password", "_passphrase", "_private_key")
# Groups of older Kubespray releases (renamed in v2.16) and of DeepOps inventories.
_OLD_GROUPS = {
    "kube-master": "kube_control_plane",
    "kube_master": "kube_control_plane",
    "kube-node": "kube_node",
    "k8s-cluster": "k8s_cluster",
    "calico-rr": "calico_rr",
    "slurm-master": "slurm_controller",
    "slurm-node": "slurm_node",
    "All": "all",
    "ALL": "all",
}
# Words that are a slip away from a known group's or from a word of it, and mean something else. Their plurals and numbers behind them
# count too (`cpu_nodes`, `queue2`).
_OTHER_WORDS = frozenset(
    {"apu", "cpu", "dpu", "hpu", "ipu", "npu", "tpu", "vpu", "xpu"}  # gpu
    | {"cube", "tube"}  # kube
    | {"convoy", "etc", "etch", "queue", "share", "spark", "space", "spares", "square", "train", "trainee", "trainers"}
)
_NUMBER = re.compile(r"_?\d+$")
# How similar names have to be, as ratios of difflib. One wrong letter is 0.67 in a word of three, 0.75 in one of four. A group's name is
# refused where another may be meant, so groups are compared word by word as well.
_SAME_VARIABLE, _SAME_GROUP, _SAME_WORD, _SAME_LETTERS = 0.8, 0.75, 0.66, 0.9


@cache
def ansible_variables() -> frozenset[str]:
    """Return the variables that steer Ansible itself on our kind of hosts, read from its own plugins' documentation."""
    from ansible import constants  # noqa: PLC0415 - importing Ansible takes 0.2 s and reads its configuration
    from ansible.plugins import loader  # noqa: PLC0415

    names = {name for mapped in constants.MAGIC_VARIABLE_MAPPING.values() for name in mapped}
    definitions = [constants.config.get_configuration_definitions()]
    for kind, plugins in _PLUGINS:
        for plugin in plugins:
            getattr(loader, f"{kind}_loader").get(plugin, class_only=True)
            definitions.append(constants.config.get_configuration_definitions(kind, plugin))
    for options in definitions:
        names.update(variable["name"] for option in options.values() for variable in option.get("vars") or ())
    return frozenset(name for name in names if name.startswith("ansible_")) | _SPECIAL


@cache
def known_variables() -> frozenset[str]:
    """Return every variable name that hosts.yaml may set, those of the user's own left out."""
    return frozenset(load_options()) | load_kubespray_variables() | ansible_variables()


def is_known_variable(name: str) -> bool:
    """Tell whether a role, Kubespray, Ansible or the user's own prefix claims this name."""
    return name.startswith(OWN_PREFIX) or name in known_variables() or bool(_INTERPRETER.fullmatch(name))


def is_ansible_secret(name: str) -> bool:
    """Tell whether this is one of Ansible's own variables that holds a password or a key itself."""
    return name.endswith(_SECRET_ENDINGS) and name in ansible_variables()


@cache
def nearest_variable(name: str) -> str:
    """Return the known variable that `name` is most likely to mean, or an empty string."""
    return nearest(name, known_variables(), cutoff=_SAME_VARIABLE)


def nearest_group(name: str) -> str:
    """Return the known group that `name` is most likely to mean, or an empty string.

    A known name with a suffix of its own (`gpu_node_a`) is no misspelling.
    """
    if name in _OLD_GROUPS:
        return _OLD_GROUPS[name]
    if any(name.startswith((f"{known}_", OWN_PREFIX)) for known in load_groups()):
        return ""
    return nearest(name, [known for known in load_groups() if _may_be_meant(name, known)], cutoff=_SAME_GROUP)


def _may_be_meant(name: str, known: str) -> bool:
    """Tell whether a name can be a slip for that group, word by word.

    `hpc_node` has two wrong letters of eight and yet is no slip for `gpu_node`: a short word with two wrong letters is
    another word. So is one that is known to be (`cpu_node`).
    """
    words, wanted = _NUMBER.sub("", _plain(name)).split("_"), known.split("_")
    if any(_other_word(word) and word not in wanted for word in words):
        return False
    if sorted(words) == sorted(wanted):
        return True
    if len(words) != len(wanted):  # `gpunode`; a part of a name, such as `control_plane`, is a name of its own
        return _ratio("".join(words), "".join(wanted)) >= _SAME_LETTERS
    return all(_ratio(word, right) >= _SAME_WORD for word, right in zip(words, wanted, strict=True))


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _other_word(word: str) -> bool:
    return word in _OTHER_WORDS or word.removesuffix("s") in _OTHER_WORDS


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
