"""`playbooks/gpu.yml`: the settings of the role `node_health` that depend on other roles."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content
from primus_bootstrap.engine.playbooks import load_plays
from primus_bootstrap.inventory.schema.specs import load_options
from tests.playbooks import run_playbook

if TYPE_CHECKING:
    from pathlib import Path

HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
GROUPS = {
    "juicefs_client": ["busy", "files", "stated"],
    "slurm_node": ["busy", "jobs", "stated"],
    "container_host": ["busy", "podman"],
    "gpu_node": ["busy"],
}
# Variables of single hosts.
STATED: dict[str, dict[str, Any]] = {
    "busy": {"container_runtime_engine": "docker", "juicefs_mount_point": "/shared"},
    "stated": {
        "node_health_mounts": [{"path": "/jfs", "fstype": ""}, {"path": "/scratch", "fstype": "xfs"}],
        "node_health_units": ["munge.service", "sshd.service"],
    },
}


def configurations(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the configuration of each host's checks."""
    vars_files = next(play.vars_files for play in load_plays(content.playbooks_dir() / "gpu.yml") if "node_health" in play.roles)
    hosts = {name: {**HERE, **STATED.get(name, {})} for name in ("busy", "files", "jobs", "podman", "stated", "plain")}
    children = {group: {"hosts": dict.fromkeys(members)} for group, members in GROUPS.items()}
    (folder / "hosts.yaml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "children": children}}), encoding="utf-8")
    told = {"content": "{{ _node_health_config | to_json }}", "dest": f"{folder}/{{{{ inventory_hostname }}}}.json", "mode": "0600"}
    tasks = [{"ansible.builtin.import_role": {"name": "node_health", "tasks_from": "preflight"}}, {"ansible.builtin.copy": told}]
    play = {"hosts": "all", "gather_facts": False, "vars_files": [str(path) for path in vars_files], "tasks": tasks}
    (folder / "play.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
    done = run_playbook(folder / "hosts.yaml", folder / "play.yml", environment={"ANSIBLE_HOME": str(folder / "home")})
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in hosts}


def role_vars(role: str) -> dict[str, Any]:
    """Return a role's variables, without Ansible."""
    found: dict[str, Any] = yaml.safe_load((content.roles_dir() / role / "vars/main.yml").read_text(encoding="utf-8"))
    return found


def test_checks_follow_the_groups_of_a_host(tmp_path: Path) -> None:
    """Mount for file system clients, munge for Slurm nodes, docker where installed. The site's values have priority."""
    found = configurations(tmp_path)
    told = {name: (config["mounts"], config["units"], config["managed_units"]) for name, config in found.items()}
    mount = {"path": "/jfs", "fstype": "fuse.juicefs", "unit": "juicefs.service"}

    assert told["plain"] == told["podman"] == ([], [], [])
    assert told["files"] == ([mount], [], [])
    assert told["jobs"] == ([], [], ["munge.service"])
    assert told["busy"] == ([{**mount, "path": "/shared"}], [], ["munge.service", "docker.service"])
    assert told["stated"] == (STATED["stated"]["node_health_mounts"], ["munge.service", "sshd.service"], [])


def test_every_compute_host_is_checked() -> None:
    """Slurm nodes without GPUs need HealthCheckProgram too. Apply, verify and removal have the same hosts."""
    of = {name: load_plays(content.playbooks_dir() / name) for name in ("gpu.yml", "verify/gpu.yml", "day2/reset/gpu.yml")}
    hosts = {name: [play.pattern for play in plays if "node_health" in play.roles] for name, plays in of.items()}

    assert hosts == {name: ["gpu_node:slurm_node"] for name in of}


def test_gpus_are_counted_on_gpu_hosts_only(tmp_path: Path) -> None:
    """A Slurm node outside gpu_node has no counting program, so its check is skipped, not unknown."""
    found = configurations(tmp_path)

    assert {name: list(config["skip"]) for name, config in found.items() if name != "busy"} == {
        name: ["gpu_count"] for name in ("files", "jobs", "podman", "stated", "plain")
    }
    assert found["busy"]["skip"] == {}


def test_values_equal_those_of_other_roles(tmp_path: Path) -> None:
    """Mount point and units are defined in both places."""
    options = load_options()
    mount = configurations(tmp_path)["files"]["mounts"][0]

    assert mount["path"] == options["juicefs_mount_point"].default
    assert mount["unit"] == role_vars("juicefs")["_juicefs_unit"]
    assert role_vars("munge")["_munge_unit"] == "munge.service"
    assert options["container_runtime_engine"].default == "podman"
