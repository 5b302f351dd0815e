"""Variables of roles as Ansible computes them for a host: from defaults and vars of the role and the facts of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from primus_bootstrap import content

if TYPE_CHECKING:
    from collections.abc import Mapping


def trusted(value: Any) -> Any:
    """Mark every string as a template, as Ansible does for roles."""
    if isinstance(value, dict):
        return {key: trusted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [trusted(item) for item in value]
    return trust_as_template(value) if isinstance(value, str) else value


def templar_of(role: str, facts: Mapping[str, str], **variables: Any) -> Templar:
    """Return a templar with defaults and vars of the role, facts of a host, and extra variables."""
    known: dict[str, Any] = {"ansible_managed": "Ansible managed", "ansible_facts": dict(facts), "inventory_hostname": "n1", "groups": {}}
    for part in ("defaults", "vars"):
        path = content.roles_dir() / role / part / "main.yml"
        known |= trusted(yaml.safe_load(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    return Templar(loader=DataLoader(), variables={**known, **variables})


def variable(role: str, name: str, facts: Mapping[str, str], **variables: Any) -> Any:
    """Return the value of a role's variable on a host."""
    return templar_of(role, facts, **variables).template(trust_as_template("{{ " + name + " }}"))
