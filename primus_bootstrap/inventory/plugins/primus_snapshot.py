"""Ansible inventory plugin that reads a copy of hosts.yaml in place of the original. Runs on Ansible 2.19 and 2.18 (Kubespray)."""  # noqa: INP001

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.plugins.inventory import BaseFileInventoryPlugin
from ansible.plugins.inventory.yaml import InventoryModule as YamlInventory
from ansible.utils.path import unfrackpath

DOCUMENTATION = """
name: primus_snapshot
short_description: reads a copy of a YAML inventory in place of the original
description:
  - Reads the same format as the plugin C(yaml). The file C(.primus-source) beside the inventory names the original.
  - C(inventory_file) and C(inventory_dir) are those of the original, so that relative paths still work.
  - Ansible reads C(group_vars) and C(host_vars) beside the copy.
options: {}
"""
_SOURCE = ".primus-source"


class InventoryModule(YamlInventory):  # type: ignore[misc]
    """The plugin `yaml` with the `inventory_file` and `inventory_dir` of the original."""

    NAME = "primus_snapshot"

    def verify_file(self, path: str) -> bool:
        """Accept a file only if a file beside it names the original."""
        return bool(BaseFileInventoryPlugin.verify_file(self, path)) and Path(path).with_name(_SOURCE).is_file()

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:  # noqa: FBT001, FBT002 - Ansible's signature
        """Read the copy and set the path of the original for its hosts."""
        source = unfrackpath(os.fsdecode(Path(path).with_name(_SOURCE).read_bytes()), follow=False)
        before = set(inventory.hosts)
        super().parse(inventory, loader, path, cache)
        for name, host in inventory.hosts.items():
            if name not in before:
                host.set_variable("inventory_file", source)
                host.set_variable("inventory_dir", str(Path(source).parent))
