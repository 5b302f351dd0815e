"""Test reboots and removals of etcd members and control planes with the real playbooks; fakes replace the tasks on hosts."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.playbooks import one_line, run_playbook, write_yaml

if TYPE_CHECKING:
    from pathlib import Path

LOCAL = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
# Of the host that runs the real tasks: its programs lie here, and `bad` says which of them refuse it.
PROGRAM = """import json, pathlib, sys
host = json.loads(pathlib.Path(sys.argv[1]).read_text())["host"]
with open({log!r}, "a") as log:
    print({step!r}, host, *sys.argv[2:], file=log)
sys.exit("it is not well" if host in {bad!r} else 0)
"""
LONG = pytest.mark.long("roles/kube_backup", "playbooks/day2")


def note(step: str, log: Path, *, only: str = "true") -> list[dict[str, Any]]:
    """Return tasks that record a step of a host."""
    return [{"ansible.builtin.shell": f"echo {step} {{{{ inventory_hostname }}}} >> {log}", "when": only}]


class Site:
    """Three control planes with etcd and a worker, all on this machine, with fake roles except for `kube_backup`'s tasks."""

    def __init__(self, folder: Path, *, away: tuple[str, ...] = (), silent: tuple[str, ...] = ()) -> None:
        """Store which members must stay, and which do not answer after their reboot."""
        self.folder, self.log, self.roles = folder, folder / "log", folder / "roles"
        log, roles = self.log, self.roles
        write_yaml(
            roles / "baseline/vars/main.yml", {"_baseline_reboot_open": "{{ inventory_hostname != 'cp1' }}", "_baseline_has_slurmd": True}
        )
        write_yaml(roles / "baseline/tasks/reboot_begin.yml", note("begin", log))
        write_yaml(roles / "baseline/tasks/reboot.yml", note("reboot", log, only="_baseline_reboot_open"))
        write_yaml(roles / "baseline/tasks/reboot_end.yml", note("end", log))
        for tasks, step in (("main", "evict"), ("ready", "ready"), ("uncordon", "uncordon")):
            write_yaml(roles / f"kube_drain/tasks/{tasks}.yml", note(step, log, only="kube_drain_enabled"))
        for tasks in ("slurm/tasks/node_drain", "slurm/tasks/node_resume", "node_health/tasks/wait"):
            write_yaml(roles / f"{tasks}.yml", [])
        write_yaml(roles / "kubespray/tasks/own_api.yml", note("own", log))
        write_yaml(roles / "kubespray/tasks/remove.yml", note("remove", log))
        real, mine = content.roles_dir() / "kube_backup", roles / "kube_backup"
        (mine / "tasks").mkdir(parents=True)
        for name in ("defaults", "filter_plugins", "vars"):
            (mine / name).symlink_to(real / name)
        for name in ("reboot_check", "wait_ready", "removal_check"):
            (mine / f"tasks/{name}.yml").symlink_to(real / f"tasks/{name}.yml")
        copy = {"content": "{{ _kube_backup_settings | to_json }}", "dest": "{{ _kube_backup_settings_file }}"}
        write_yaml(mine / "tasks/install.yml", [{"ansible.builtin.copy": copy}])
        for host in ("cp1", "cp2", "cp3", "w1"):
            (folder / host).mkdir()
            for name, step, bad in (("etcd_quorum", "quorum", away), ("etcd_serves", "serves", silent)):
                text = PROGRAM.format(log=str(log), step=step, bad=bad)
                (folder / host / f"{name}.py").write_text(text, encoding="utf-8")
        hosts = {host: {"kube_backup_program_dir": str(folder / host)} for host in ("cp1", "cp2", "cp3", "w1")}
        serving = {"hosts": dict.fromkeys(("cp1", "cp2", "cp3"))}
        children: dict[str, Any] = {"kube_control_plane": serving, "etcd": serving, "kube_node": {"hosts": {"w1": None}}}
        children["k8s_cluster"] = {"children": {"kube_control_plane": None, "kube_node": None}}
        tree = {"all": {"vars": {**LOCAL, "cluster_name": "demo"}, "hosts": hosts, "children": children}}
        (folder / "hosts.yaml").write_text(json.dumps(tree), encoding="utf-8")

    def play(self, playbook: str, *words: str) -> tuple[int, list[str], str]:
        """Run a day-2 playbook; return its exit code, the steps in order, and its output with single spaces."""
        self.log.write_text("", encoding="utf-8")
        environment = {
            "ANSIBLE_ROLES_PATH": str(self.roles),
            "ANSIBLE_LOCAL_TEMP": str(self.folder / "tmp"),
            "ANSIBLE_HOME": str(self.folder / "home"),
        }
        done = run_playbook(self.folder / "hosts.yaml", f"day2/{playbook}", *words, environment=environment)
        return done.returncode, self.log.read_text(encoding="utf-8").splitlines(), one_line(done)


def test_next_host_waits_for_etcd_and_the_api_server(tmp_path: Path) -> None:
    """An etcd member and its API server are checked before and after a reboot; of a worker, only its Node."""
    code, steps, output = Site(tmp_path).play("reboot_node.yml")

    assert code == 0, output
    of = {host: [line.split()[0] for line in steps if line.split()[1] == host] for host in ("cp1", "cp2", "w1")}
    assert of["cp1"] == ["begin", "end"]
    assert of["cp2"] == ["begin", "quorum", "evict", "reboot", "serves", "ready", "uncordon", "end"]
    assert of["w1"] == ["begin", "evict", "reboot", "ready", "uncordon", "end"]
    assert "quorum cp2 reboot" in steps
    assert "serves cp2 300" in steps


@pytest.mark.parametrize(
    ("ill", "reboots"),
    [({"silent": ("cp2",)}, ["cp2"]), ({"away": ("cp2",)}, [])],
    ids=["a member that does not come back", "a member that the others need"],
)
@LONG
def test_failed_host_stops_the_reboots(tmp_path: Path, ill: dict[str, Any], reboots: list[str]) -> None:
    """After a host that does not return, no further host is rebooted, and its Node stays marked."""
    code, steps, output = Site(tmp_path, **ill).play("reboot_node.yml")

    assert code != 0
    assert "it is not well" in output
    assert [line.split()[1] for line in steps if line.startswith("reboot ")] == reboots
    assert not {"end cp2", "uncordon cp2", "begin cp3"} & set(steps)


@LONG
def test_limit_without_etcd_hosts_removes_no_member(tmp_path: Path) -> None:
    """The removal fails if --limit excludes the play that checks etcd."""
    site = Site(tmp_path)
    refused = site.play("node/kubernetes.yml", "-e", "node=cp3", "--limit", "cp3")
    whole = site.play("node/kubernetes.yml", "-e", "node=cp3")
    worker = site.play("node/kubernetes.yml", "-e", "node=w1", "--limit", "w1")

    assert refused[0] != 0
    assert "Whether etcd keeps its majority without cp3 is unknown: cp1 is not in this run. Fix: omit --limit" in refused[2]
    assert refused[1] == []
    assert whole[:2] == (0, ["quorum cp1", "own cp1", "remove cp3"]), whole[2]
    assert worker[:2] == (0, ["remove w1"]), worker[2]


@LONG
def test_required_member_is_not_removed(tmp_path: Path) -> None:
    """If etcd would lose its majority, nothing runs."""
    code, steps, _ = Site(tmp_path, away=("cp1",)).play("node/kubernetes.yml", "-e", "node=cp3")

    assert (code != 0, steps) == (True, ["quorum cp1"])
