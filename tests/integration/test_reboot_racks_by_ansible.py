"""`playbooks/day2/reboot_rack.yml` with plain ansible-playbook and fake roles."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from tests.playbooks import run_playbook, write_yaml
from tests.unit.launch_rig import expand

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RACKS = {"g1": "a", "g2": "b", "g3": "a", "g4": None, "g5": "b"}
LONG = pytest.mark.long("roles/gpu_driver", "roles/baseline", "playbooks/day2")


def note(step: str, *, only: str = "true") -> list[dict[str, Any]]:
    """Return tasks that print a step of a host. Debug is ten times faster than a program on each host."""
    return [{"ansible.builtin.debug": {"msg": f"STEP {step} {{{{ inventory_hostname }}}}"}, "when": only}]


@pytest.fixture
def roles(tmp_path: Path) -> Path:
    """Fake roles, except the real order of racks; g2 is unhealthy if a file says so, and g5 needs no reboot."""
    folder = tmp_path / "roles"
    write_yaml(
        folder / "baseline/vars/main.yml", {"_baseline_reboot_open": "{{ inventory_hostname != 'g5' }}", "_baseline_has_slurmd": True}
    )
    write_yaml(folder / "baseline/tasks/reboot_begin.yml", note("begin"))
    write_yaml(folder / "baseline/tasks/reboot.yml", note("reboot", only="_baseline_reboot_open"))
    write_yaml(folder / "baseline/tasks/reboot_end.yml", note("end"))
    write_yaml(folder / "slurm/tasks/node_drain.yml", note("drain", only="slurm_drain_enabled and slurm_drain_reason == 'primus: reboot'"))
    write_yaml(folder / "slurm/tasks/node_resume.yml", note("resume", only="slurm_drain_enabled"))
    write_yaml(folder / "kube_drain/tasks/main.yml", note("evict", only="kube_drain_enabled"))
    write_yaml(folder / "kube_drain/tasks/ready.yml", note("ready", only="kube_drain_enabled"))
    for tasks, step in (("reboot_check", "away"), ("wait_ready", "serves")):
        write_yaml(folder / f"kube_backup/tasks/{tasks}.yml", note(step, only="kube_backup_reboot_check_enabled"))
    write_yaml(folder / "kube_drain/tasks/uncordon.yml", note("uncordon", only="kube_drain_enabled"))
    ill = {"ansible.builtin.assert": {"that": "not node_health_wait_enabled or inventory_hostname not in ill | default([])"}}
    write_yaml(folder / "node_health/tasks/wait.yml", [ill, *note("well", only="node_health_wait_enabled")])
    real = content.roles_dir() / "gpu_driver"
    write_yaml(folder / "gpu_driver/tasks/verify.yml", note("driver"))
    write_yaml(folder / "gpu_driver/tasks/check_reboot.yml", note("waits"))
    (folder / "gpu_driver/tasks/group_by_rack.yml").symlink_to(real / "tasks/group_by_rack.yml")
    (folder / "gpu_driver/filter_plugins").symlink_to(real / "filter_plugins")
    return folder


@pytest.fixture
def driver_roles(roles: Path) -> Path:
    """Fake roles with the driver's real reboot check. Its mark is written to a folder per host, which the fake baseline reads."""
    marks = roles.parent / "marks"
    write_yaml(
        roles / "baseline/vars/main.yml",
        {
            "_baseline_reboot_open": f"{{{{ ('{marks}/' ~ inventory_hostname ~ '/reboot-required') is file }}}}",
            "_baseline_has_slurmd": True,
        },
    )
    real, mine = content.roles_dir() / "gpu_driver", roles / "gpu_driver"
    (mine / "tasks/check_reboot.yml").unlink()
    for name in ("check_reboot", "detect", "record_reboot", "initramfs", "write_reboot_marker"):
        (mine / f"tasks/{name}.yml").symlink_to(real / f"tasks/{name}.yml")
    for name in ("defaults", "files", "library"):
        (mine / name).symlink_to(real / name)
    variables = yaml.safe_load((real / "vars/main.yml").read_text(encoding="utf-8"))
    write_yaml(mine / "vars/main.yml", {**variables, "_gpu_driver_reboot_marks": [f"{marks}/{{{{ inventory_hostname }}}}/reboot-required"]})
    for host, version in {"g1": "6.10.5", "g3": "6.12.12"}.items():
        (marks / host).mkdir(parents=True)
        root = expand("mi300x-roce", roles.parent / "trees" / host)
        (root / "sys/module/amdgpu/parameters").mkdir(parents=True)
        (root / "sys/module/amdgpu/version").write_text(version, encoding="utf-8")
        (root / "sys/module/amdgpu/parameters/noretry").write_text("1", encoding="utf-8")
    return roles


@pytest.mark.parametrize(
    ("noretry", "waiting"), [(1, {"g1"}), (0, {"g1", "g3"})], ids=["an older driver runs", "an option is not in force either"]
)
@LONG
def test_host_with_an_outdated_driver_is_rebooted(driver_roles: Path, noretry: int, waiting: set[str]) -> None:
    """The verification requests it without an earlier mark. A host with the right driver is not rebooted."""
    variables = {
        "gpu_driver_version": "6.4.4", "gpu_driver_module_options": {"amdgpu": {"noretry": noretry}},
        "_primus_sysfs_root": f"{driver_roles.parent}/trees/{{{{ inventory_hostname }}}}", "reboot_rack": "a",
    }  # fmt: skip
    code, steps = run(driver_roles, "-e", json.dumps(variables))

    assert code == 0
    assert set(hosts_of(steps, "begin")) == {"g1", "g3"}
    assert set(hosts_of(steps, "reboot")) == waiting
    assert set(hosts_of(steps, "drain")) == waiting


def run(roles: Path, *words: str, serving: Mapping[str, str] | None = None) -> tuple[int, list[str]]:
    """Run the playbook on five hosts on this machine; return its exit code and the steps in order.

    `serving` maps a service group to its host.
    """
    hosts = {
        name: {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, **({"rack": rack} if rack else {})}
        for name, rack in RACKS.items()
    }
    inventory = roles.parent / "hosts.yaml"
    groups: dict[str, Any] = {name: {"hosts": {host: {}}} for name, host in (serving or {}).items()}
    children: dict[str, Any] = {"gpu_node": {"hosts": hosts}, "k8s_cluster": {"hosts": {"g3": {}, "g5": {}}}, **groups}
    inventory.write_text(yaml.safe_dump({"all": {"children": children}}), encoding="utf-8")
    environment = {
        "ANSIBLE_ROLES_PATH": str(roles), "ANSIBLE_BECOME_METHOD": "none",
        "ANSIBLE_LOCAL_TEMP": str(roles.parent / "tmp"), "ANSIBLE_HOME": str(roles.parent / "home"),
    }  # fmt: skip
    done = run_playbook(inventory, "day2/reboot_rack.yml", "-e", "ansible_become=false", *words, environment=environment)
    steps = re.findall(r'"msg": "STEP (\w+ \w+)"', done.stdout)
    assert steps, done.stdout + done.stderr
    return done.returncode, steps


def hosts_of(steps: list[str], step: str) -> list[str]:
    """Return the hosts of a step, in order."""
    return [line.split()[1] for line in steps if line.startswith(f"{step} ")]


def rounds(steps: list[str], step: str) -> list[set[str]]:
    """Return the hosts of a step by rack; each rack begins with the step `begin`."""
    found: list[set[str]] = []
    last = ""
    for line in steps:
        name, host = line.split()
        if name == "begin" and last != "begin":
            found.append(set())
        if name == step:
            found[-1].add(host)
        last = name
    return found


@LONG
def test_racks_are_rebooted_one_after_another(roles: Path) -> None:
    """A host without a rack is its own batch; hosts that need no reboot are skipped."""
    code, steps = run(roles)

    assert code == 0
    assert rounds(steps, "begin") == [{"g1", "g3"}, {"g2", "g5"}, {"g4"}]
    assert rounds(steps, "reboot") == [{"g1", "g3"}, {"g2"}, {"g4"}]
    assert rounds(steps, "resume") == [{"g1", "g3"}, {"g2"}, {"g4"}]
    of = {host: [line.split()[0] for line in steps if line.endswith(f" {host}")] for host in ("g1", "g3")}
    assert of["g1"] == ["waits", "begin", "drain", "reboot", "well", "driver", "resume", "end"]
    assert of["g3"] == ["waits", "begin", "drain", "evict", "reboot", "ready", "well", "driver", "resume", "uncordon", "end"]
    assert hosts_of(steps, "evict") == ["g3"], "g5 is a Node too, and waits for no reboot"


def test_service_hosts_are_rebooted_one_by_one(roles: Path) -> None:
    """A rack with an etcd member and Redis never loses both at once, and etcd is checked."""
    code, steps = run(roles, "-e", "reboot_rack=a", serving={"etcd": "g1", "redis": "g3"})

    assert code == 0
    assert rounds(steps, "reboot") == [{"g1"}, {"g3"}]
    assert [line for line in steps if line.split()[0] in ("away", "reboot", "serves")] == ["away g1", "reboot g1", "serves g1", "reboot g3"]


@LONG
def test_unhealthy_host_stops_the_reboots(roles: Path) -> None:
    """No host of its rack is resumed, and no other rack is changed."""
    code, steps = run(roles, "-e", '{"ill": ["g2"]}')

    assert code != 0
    assert set(hosts_of(steps, "reboot")) == {"g1", "g3", "g2"}
    assert set(hosts_of(steps, "resume")) == {"g1", "g3"}
    assert "g4" not in {line.split()[1] for line in steps}


def test_single_rack(roles: Path) -> None:
    """With the name of a rack only its hosts are checked."""
    code, steps = run(roles, "-e", "reboot_rack=b")

    assert code == 0
    assert set(hosts_of(steps, "begin")) == {"g2", "g5"}
