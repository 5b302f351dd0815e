"""Check the names of variables and groups in hosts.yaml, and find the known name that a misspelt one probably means."""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path

import yaml

from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.schema.groups import load_earlier_variables, load_groups, load_kubespray_variables, load_old_names
from primus_bootstrap.inventory.schema.specs import load_options

OWN_PREFIX = "site_"
# `all` is too short to compare: `hall` may be a group of the user's own.
_LIKE_ALL = ("All", "ALL", "al", "aall", "alll", "lal")
_INTERPRETER = re.compile(r"ansible_[a-z0-9]+_interpreter")
_PLUGINS = (("connection", ("ssh", "local")), ("become", ("sudo", "su")), ("shell", ("sh",)))
# Variables of Ansible that no plugin documents:
# https://docs.ansible.com/ansible/latest/reference_appendices/special_variables.html (2025-10)
_SPECIAL = frozenset({"ansible_group_priority", "ansible_become_method", "ansible_connection", "ansible_shell_type"})
_SECRET_ENDINGS = ("_pass", "_password", "_passphrase", "_private_key")
# Words that are similar to a word of a known group but mean something else, also as plurals and with numbers (`cpu_nodes`, `queue2`).
_OTHER_WORDS = frozenset(
    {"apu", "cpu", "dpu", "hpu", "ipu", "npu", "tpu", "vpu", "xpu"}  # gpu
    | {"cube", "tube"}  # kube
    | {"convoy", "etc", "etch", "queue", "share", "spark", "space", "spares", "square", "train", "trainee", "trainers"}
)
_NUMBER = re.compile(r"_?\d+$")
# The least similarity of names, as ratios of difflib. One wrong letter gives 0.67 in a word of three letters and 0.75 in one of four.
# A group name is an error if it may be a misspelling, so groups are also compared word by word.
_SIMILAR_VARIABLE, _SIMILAR_GROUP, _SIMILAR_WORD, _SIMILAR_LETTERS = 0.8, 0.75, 0.66, 0.9


@cache
def ansible_variables() -> frozenset[str]:
    """Return the variables of Ansible itself, from the documentation of the plugins for SSH hosts."""
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


def usual_plugins(kind: str) -> tuple[str, ...]:
    """Return the names of the `connection` or `become` plugins for SSH hosts."""
    return dict(_PLUGINS)[kind]


@cache
def is_ansible_plugin(kind: str, name: str) -> bool:
    """Return whether Ansible knows a `connection` or `become` plugin. The full name of a collection's plugin is not checked."""
    import ansible  # noqa: PLC0415

    folder = Path(ansible.__file__).parent
    if name == "smart" or "." in name or (folder / "plugins" / kind / f"{name}.py").is_file():
        return True
    routing = yaml.load((folder / "config" / "ansible_builtin_runtime.yml").read_bytes(), Loader=yaml.CSafeLoader)["plugin_routing"]
    return name in routing.get(kind, ())  # short names of plugins that have moved to collections


@cache
def known_variables() -> frozenset[str]:
    """Return every variable that hosts.yaml may set, without the user's own."""
    return frozenset(load_options()) | load_kubespray_variables() | ansible_variables()


def is_known_variable(name: str) -> bool:
    """Return whether a variable is one of a role, Kubespray or Ansible, or has the user's own prefix."""
    return name.startswith(OWN_PREFIX) or name in known_variables() or bool(_INTERPRETER.fullmatch(name))


def is_ansible_secret(name: str) -> bool:
    """Return whether a variable is a password or private key of Ansible itself."""
    return name.endswith(_SECRET_ENDINGS) and name in ansible_variables()


def explain_unknown_variable(name: str) -> tuple[str, str]:
    """Return what is wrong with a variable that hosts.yaml may not set, and the fix."""
    earlier = load_earlier_variables()
    if new_name := earlier["renamed"].get(name) or load_old_names()["variables"].get(name):
        return f"{name} has a new name", f"rename it to {new_name}"
    if reason := earlier["removed"].get(name):
        return f"{name} was removed: {reason}", "delete it"
    near = nearest_variable(name)
    fix = f"did you mean {near}?" if near else f"delete it, or rename it to {own_name(name)} if it is a variable of your own"
    return f"{name}: neither a role nor Kubespray nor Ansible has this variable", fix


def own_name(name: str) -> str:
    """Return the name that a variable of the user's own may have."""
    return OWN_PREFIX + re.sub(r"\W", "_", name, flags=re.ASCII)


@cache
def nearest_variable(name: str) -> str:
    """Return the known variable that `name` probably means, or an empty string."""
    return nearest(name, known_variables(), cutoff=_SIMILAR_VARIABLE)


def nearest_group(name: str) -> str:
    """Return the known group that `name` probably means, or an empty string.

    A known name with a suffix (`gpu_node_a`) is a group of the user's own.
    """
    if name in _LIKE_ALL:
        return "all"
    old_names = load_old_names()["groups"]
    if new_name := old_names.get(name):
        return new_name
    if any(_normalized(name).startswith((f"{known}_", OWN_PREFIX)) for known in load_groups()):
        return ""
    meanings = {_normalized(old): new for old, new in old_names.items()} | {known: known for known in load_groups()}
    match = nearest(name, [known for known in meanings if _may_be_misspelt(name, known)], cutoff=_SIMILAR_GROUP)
    return meanings.get(match, "")


def _may_be_misspelt(name: str, known: str) -> bool:
    """Return whether a name may be a misspelling of a group, compared word by word.

    `hpc_node` is similar to `gpu_node` as a whole, but its first word has two wrong letters of three. `cpu_node` has a word
    of `_OTHER_WORDS`.
    """
    words, known_words = _NUMBER.sub("", _normalized(name)).split("_"), known.split("_")
    if any(_is_other_word(word) and word not in known_words for word in words):
        return False
    if sorted(words) == sorted(known_words):
        return True
    if len(words) != len(known_words):  # `gpunode` is a misspelling; `control_plane`, a part of a name, is not
        return _similarity("".join(words), "".join(known_words)) >= _SIMILAR_LETTERS
    return all(_similarity(word, known_word) >= _SIMILAR_WORD for word, known_word in zip(words, known_words, strict=True))


def _similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _is_other_word(word: str) -> bool:
    return word in _OTHER_WORDS or word.removesuffix("s") in _OTHER_WORDS


def _normalized(name: str) -> str:
    return name.lower().replace("-", "_")
