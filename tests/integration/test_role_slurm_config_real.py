"""Module `slurm_config`, run as Ansible does."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from primus_bootstrap import content
from tests.unit.slurm_rig import SETTINGS, fragment
from tests.unit.test_role_slurm_config import read

if TYPE_CHECKING:
    from pathlib import Path


def run_module(tmp_path: Path, nodes: dict[str, dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """Run the module for these nodes; return its result."""
    fragments = tmp_path / "nodes.d"
    fragments.mkdir(exist_ok=True)
    for name, node in nodes.items():
        (fragments / f"{name}.json").write_text(fragment(name, **node))
    folder = content.roles_dir() / "slurm"
    settings = {**SETTINGS, **changes}
    given = {"folder": str(tmp_path), "descriptions": str(fragments), "nodes": list(nodes), "settings": settings}
    utilities = [str(folder / "module_utils"), str(content.plugins_dir() / "module_utils")]
    program = (
        f"import sys, ansible.module_utils as u, runpy; u.__path__ += {utilities!r}; "
        f"runpy.run_path({str(folder / 'library/slurm_config.py')!r}, run_name='__main__')"
    )
    text = json.dumps({"ANSIBLE_MODULE_ARGS": given})
    done = subprocess.run([sys.executable, "-c", program], input=text, capture_output=True, text=True, check=False, timeout=60)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_node_without_control_groups_is_refused(tmp_path: Path) -> None:
    """It would remove limits from every job. The message has name and reason; a setting permits it."""
    weak = {"cgroup": "", "cgroup_reason": "cgroup v2 has no cpuset here"}
    first = run_module(tmp_path, {"n1": {}})
    refused = run_module(tmp_path, {"n1": {}, "n2": weak})
    before = read(tmp_path)
    permitted = run_module(tmp_path, {"n1": {}, "n2": weak}, proctrack="proctrack/linuxproc")

    assert first["changed"]
    assert refused["failed"]
    assert "n2 (cgroup v2 has no cpuset here). Fix:" in refused["msg"]
    assert "NodeName=n2" not in before
    assert permitted["changed"]
    assert "ProctrackType=proctrack/linuxproc" in read(tmp_path)
