"""`-e`: read before a host is contacted, so that a slip in it is as harmless as one in hosts.yaml."""

from __future__ import annotations

from pathlib import Path

import yaml

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.schema.names import is_known_variable, nearest_variable


def check_extra_vars(given: str) -> None:
    """Refuse a file that is missing or no mapping, and a variable that nothing knows; a file under Vault is left to Ansible.

    Raises:
        PlanError: what is wrong with it, and how to mend it.
    """
    if given.startswith("@"):
        names = _names(given, Path(given[1:]).expanduser())
    elif "=" in given:
        names = [given.partition("=")[0].strip()]
    else:
        raise PlanError(f"--extra-vars {given}: neither @FILE nor key=value", fix="-e @values.yml, or -e name=value")
    for name in names:
        if not is_known_variable(name):
            meant = nearest_variable(name)
            fix = f"did you mean {meant}?" if meant else f"delete it, or call it site_{name} if it is a variable of your own"
            raise PlanError(f"--extra-vars {given.partition('=')[0]}: no role has a variable {name}, nor Kubespray, nor Ansible", fix=fix)


def _names(given: str, path: Path) -> list[str]:
    if not path.is_file():
        raise PlanError(f"--extra-vars {given}: there is no such file", fix="give a YAML or JSON file after the @")
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.startswith("$ANSIBLE_VAULT"):
        return []
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise PlanError(f"--extra-vars {given}: not YAML: {' '.join(str(error).split())}", fix="mend the file") from error
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise PlanError(f"--extra-vars {given}: holds no mapping of names to values", fix="write name: value, one a line")
    return [str(key.value) for key, _ in node.value] if node else []
