"""The real Ansible reads the same from an INI inventory and from the imported hosts.yaml."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from primus_bootstrap.inventory.ini.conversion import import_ini, write_import
from tests.unit.test_ini_import import DATA


def listed(path: Path, plugin: str) -> dict[str, Any]:
    """Return the output of `ansible-inventory --list`."""
    command = [str(Path(sys.executable).with_name("ansible-inventory")), "-i", str(path), "--list"]
    environment = {"ANSIBLE_INVENTORY_ENABLED": plugin, "PATH": "/usr/bin:/bin", "HOME": str(path.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment)
    return dict(json.loads(done.stdout))


def test_ansible_reads_the_same_in_both(tmp_path: Path) -> None:
    """Hosts, groups, their order and all variables are the same if no name had to change."""
    source = tmp_path / "hosts.ini"
    source.write_text((DATA / "kubespray.ini").read_text().replace("v1.34.3", "1.34.3").replace("true", "True"))
    target = tmp_path / "hosts.yaml"
    write_import(import_ini(source), target)
    before, after = listed(source, "ini"), listed(target, "yaml")

    assert after["_meta"]["hostvars"] == before["_meta"]["hostvars"]
    assert {name: group for name, group in after.items() if name not in ("all", "_meta")} == {
        name: group for name, group in before.items() if name not in ("all", "_meta")
    }
