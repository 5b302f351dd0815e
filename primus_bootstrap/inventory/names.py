"""Which names hosts.yaml may use, and which known name a misspelt one is nearest to."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from primus_bootstrap.inventory.groups import load_groups, load_kubespray_variables
from primus_bootstrap.inventory.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    | {"convoy", "etc", "etch", "queue", "share", "spark", "space", "spares", "square", "trainee", "trainers"}
)
_NUMBER = re.compile(r"_?\d+$")


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
    return nearest(name, known_variables())


def nearest_group(name: str) -> str:
    """Return the known group that `name` is most likely to mean, or an empty string.

    A known name with a suffix of its own (`gpu_node_a`) is no misspelling.
    """
    if name in _OLD_GROUPS:
        return _OLD_GROUPS[name]
    if any(name.startswith((f"{known}_", OWN_PREFIX)) for known in load_groups()):
        return ""
    return nearest(name, [known for known in load_groups() if _may_be_meant(name, known)])


def _may_be_meant(name: str, known: str) -> bool:
    """Tell whether a name can be a slip for that group, word by word.

    `hpc_node` has two wrong letters of eight and yet is no slip for `gpu_node`: a short word with two wrong letters is
    another word. So is one that is known to be (`cpu_node`).
    """
    words, wanted = _NUMBER.sub("", _plain(name)).split("_"), known.split("_")
    if any(_other_word(word) and word not in wanted for word in words):
        return False
    if len(words) != len(wanted) or sorted(words) == sorted(wanted):
        return True
    return all(edit_distance(word, right, 3) <= (2 if len(right) >= 6 else 1) for word, right in zip(words, wanted, strict=True))


def _other_word(word: str) -> bool:
    return word in _OTHER_WORDS or word.removesuffix("s") in _OTHER_WORDS


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that few typing slips away `name` is, or an empty string.

    One slip is allowed from three characters on, two from eight, three from sixteen. Case, `-` for `_`, and the order of
    the words count as no slip.
    """
    wanted = _plain(name)
    most = (len(wanted) >= 3) + (len(wanted) >= 8) + (len(wanted) >= 16)
    best, best_distance = "", most + 1
    for candidate in sorted(known):
        plain = _plain(candidate)
        if abs(len(plain) - len(wanted)) < best_distance:
            distance = 0 if sorted(plain.split("_")) == sorted(wanted.split("_")) else edit_distance(wanted, plain, best_distance)
            if distance < best_distance:
                best, best_distance = candidate, distance
    return best


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def edit_distance(one: str, other: str, limit: int) -> int:
    """Return how many slips (a letter too many, too few, wrong, or two swapped) lie between two words; `limit` or more is `limit`."""
    two_ago: list[int] = []
    one_ago = list(range(len(other) + 1))
    for i, left in enumerate(one):
        row = [i + 1]
        for j, right in enumerate(other):
            slips = min(one_ago[j + 1] + 1, row[j] + 1, one_ago[j] + (left != right))
            if i and j and left == other[j - 1] and one[i - 1] == right:
                slips = min(slips, two_ago[j - 1] + 1)
            row.append(slips)
        if min(row) > limit:
            return limit
        two_ago, one_ago = one_ago, row
    return min(one_ago[-1], limit)
