"""Create a fake release of Kubespray: its playbooks are real, its hosts are this machine, and its Ansible is this one.

The folder `kubespray_folder` refers to it. Its programs log how they were called.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content
from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.kubernetes.release import environment_folder
from tests.unit.engine_rig import LOCAL
from tests.unit.kube_nodes_rig import merged

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = Path(sys.executable).parent
PLACE = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
NODES = "/api/v1/nodes"
# Stored between runs, as Kubespray does: the cache contains the facts of earlier hosts.
FACTS = {"name": "Keep facts", "ansible.builtin.set_fact": {"cacheable": True, "main_access_ip": "{{ ip }}", "main_ip": "{{ ip }}"}}
# Switches for the tests: a host that fails, and a secret that must arrive.
ACT = [
    {"name": "Take the place", "ansible.builtin.debug": {"msg": "etcd has {{ etcd_retries | default(4) }} tries"}, "changed_when": True},
    {
        "name": "Unpack the images",
        "ansible.builtin.fail": {"msg": "no space left on {{ inventory_hostname }}"},
        "when": "inventory_hostname in site_full | default([])",
    },
    {
        "name": "Log in to the registry",
        "ansible.builtin.assert": {"that": "site_secret == site_expected"},
        "no_log": True,
        "when": "site_secret is defined",
    },
]
# Kubespray's Ansible 2.18 treats an empty list of callbacks as none and names fact files after hosts; the current one does not.
PROGRAM = """#!/bin/sh
echo {name} "$@" >> "$CALLS"
[ -n "$ANSIBLE_CALLBACKS_ENABLED" ] || unset ANSIBLE_CALLBACKS_ENABLED
{program} "$@"
ended=$?
for file in "$ANSIBLE_CACHE_PLUGIN_CONNECTION"/s1_*; do
  [ ! -e "$file" ] || cp "$file" "$ANSIBLE_CACHE_PLUGIN_CONNECTION/${{file##*/s1_}}"
done
exit $ended
"""
PLAYBOOKS: dict[str, list[dict[str, Any]]] = {
    "cluster.yml": [{"hosts": "k8s_cluster:etcd", "any_errors_fatal": True, "tasks": [FACTS, *ACT]}],
    "upgrade-cluster.yml": [{"hosts": "etcd:kube_control_plane:kube_node", "serial": 1, "tasks": ACT}],
    "scale.yml": [{"hosts": "kube_node", "tasks": ACT}],
    "playbooks/facts.yml": [{"hosts": "k8s_cluster:etcd", "tasks": [FACTS]}],
    "playbooks/boilerplate.yml": [
        {"hosts": "k8s_cluster", "tasks": [{"name": "Check the network", "ansible.builtin.assert": {"that": "site_bad is not defined"}}]}
    ],
    "remove-node.yml": [
        {
            "hosts": "{{ node | default('nobody') }}",
            "tasks": [{"name": "Leave", "ansible.builtin.debug": {"msg": "gone"}, "changed_when": True}],
        }
    ],
}


@dataclass(frozen=True)
class Site:
    """A folder with hosts.yaml, the release and its programs."""

    folder: Path

    @property
    def state(self) -> Path:
        """The state folder of Kubespray."""
        return self.folder / ".primus/demo/kubespray"

    def write(self, control: list[str], workers: list[str], **variables: Any) -> None:
        """Write hosts.yaml; control planes are also etcd members."""
        hosts = {
            name: {"ip": f"10.0.0.{number}", "etcd_member_name": f"etcd-{name}"} for number, name in enumerate([*control, *workers], 1)
        }
        children = {"kube_control_plane": control, "etcd": control, "kube_node": workers}
        told = {**LOCAL, "cluster_name": "demo", "kubespray_folder": str(self.folder / "release"), **variables}
        tree = {
            "vars": told,
            "hosts": hosts,
            "children": {group: {"hosts": dict.fromkeys(members)} for group, members in children.items()},
        }
        (self.folder / "hosts.yaml").write_text(yaml.safe_dump({"all": tree}), encoding="utf-8")

    def environment(self) -> dict[str, str]:
        """The environment of a run, with the cache of the site."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PRIMUS_", "ANSIBLE_"))}
        mine = {"XDG_CACHE_HOME": "cache", "CALLS": "calls", "ANSIBLE_LOCAL_TEMP": "temp"}
        folders = {name: str(self.folder / path) for name, path in mine.items()}
        # The package of this checkout, even if another one is installed.
        return {
            **inherited,
            **folders,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "ANSIBLE_CONFIG": str(content.ansible_cfg()),
            "ANSIBLE_NOCOLOR": "1",
        }

    def play(self, *words: str, tasks: str = "install") -> subprocess.CompletedProcess[str]:
        """Run tasks of the role with plain Ansible."""
        program = [str(PROGRAMS / "ansible-playbook"), "-i", str(self.folder / "hosts.yaml"), str(self.folder / f"{tasks}.yml")]
        return subprocess.run([*program, *words], env=self.environment(), capture_output=True, text=True, timeout=600, check=False)

    def calls(self) -> list[str]:
        """Return the playbooks since the last call, with limit and variables, without the checks."""
        path = self.folder / "calls"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        path.unlink(missing_ok=True)
        ran = [line for line in lines if " -b" in line]
        return [line.split("hosts.yaml ", 1)[1].split(" --forks")[0].split(" --vault-id")[0] for line in ran]

    def done(self) -> dict[str, Any]:
        """Return the state after the last successful run."""
        found: dict[str, Any] = json.loads((self.state / "done.json").read_text(encoding="utf-8"))
        return found


class ClusterInfo(BaseHTTPRequestHandler):
    """An API server with one ConfigMap, which has the server address for new hosts, and Nodes."""

    def do_GET(self) -> None:
        """Answer requests for API groups, the ConfigMap and the Nodes."""
        resources = [
            {"name": name, "singularName": "", "namespaced": kind == "ConfigMap", "kind": kind, "verbs": ["get", "list", "patch"]}
            for name, kind in (("configmaps", "ConfigMap"), ("namespaces", "Namespace"), ("nodes", "Node"))
        ]
        known: dict[str, dict[str, Any]] = {
            "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.4"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "groups": []},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": resources},
            "/api/v1/namespaces/kube-system": {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "kube-system"}},
            PLACE: self._object(),
            NODES: {"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": list(self.server.nodes.values())},  # type: ignore[attr-defined]
        }
        self._answer(known.get(self.path.split("?")[0]))

    def do_PATCH(self) -> None:
        """Merge the patch into the ConfigMap, or into a Node."""
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.startswith(NODES):
            nodes, name = self.server.nodes, self.path.split("?")[0].rpartition("/")[2]  # type: ignore[attr-defined]
            nodes[name] = merged(nodes[name], sent)
            self._answer(nodes[name])
            return
        self.server.data.update(sent.get("data", {}))  # type: ignore[attr-defined]
        self._answer(self._object())

    def log_message(self, *_: Any) -> None:
        """Disable the log."""

    def _object(self) -> dict[str, Any]:
        metadata = {"name": "cluster-info", "namespace": "kube-public"}
        return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": self.server.data}  # type: ignore[attr-defined]

    def _answer(self, body: dict[str, Any] | None) -> None:
        sent = json.dumps(body or {"kind": "Status", "code": 404}).encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)


@contextmanager
def api(server: str, kubeconfig: Path, nodes: dict[str, dict[str, Any]] | None = None) -> Iterator[dict[str, str]]:
    """Start the API server, write its kubeconfig, and yield the ConfigMap's data; Nodes change in place."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ClusterInfo) as serving:
        serving.nodes = {} if nodes is None else nodes  # type: ignore[attr-defined]
        serving.data = {"kubeconfig": joining(server)}  # type: ignore[attr-defined]
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        kubeconfig.write_text(joining(f"http://127.0.0.1:{serving.server_port}", user="admin"), encoding="utf-8")
        yield serving.data  # type: ignore[attr-defined]
        serving.shutdown()


def joining(server: str, *, user: str = "") -> str:
    """Return a kubeconfig; without a user it is the one of kubeadm's ConfigMap."""
    contexts = [{"name": "it", "context": {"cluster": "it", "user": user}}] if user else []
    users = [{"name": user, "user": {"token": "x"}}] if user else []
    config = {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "it", "cluster": {"server": server}}]}
    return yaml.safe_dump({**config, "contexts": contexts, "users": users, "current-context": "it" if user else ""})


def make_site(folder: Path) -> Site:
    """Write the release, its programs and one playbook for each tasks file of the role."""
    release = folder / "release"
    (release / "playbooks").mkdir(parents=True)
    (release / "galaxy.yml").write_text(f"version: {load_release().version.removeprefix('v')}\n", encoding="utf-8")
    (release / "ansible.cfg").write_text("[defaults]\ngathering = explicit\n", encoding="utf-8")
    for name, plays in PLAYBOOKS.items():
        (release / name).write_text(yaml.safe_dump([{"gather_facts": False, **play} for play in plays]), encoding="utf-8")
    programs = environment_folder(load_release(), folder / "cache/primus-bootstrap/kubespray")
    (programs / "bin").mkdir(parents=True)
    (programs / ".primus-ready").touch()
    for name in ("ansible-playbook", "ansible-inventory"):
        path = programs / "bin" / name
        path.write_text(PROGRAM.format(name=name, program=PROGRAMS / name), encoding="utf-8")
        path.chmod(0o755)
    for tasks in ("main", "install", "remove", "upgrade"):
        (folder / f"{tasks}.yml").write_text(playbook(tasks), encoding="utf-8")
    return Site(folder)


def playbook(tasks: str) -> str:
    """Return a play of the role's tasks with the wiring of playbooks/kubernetes/cluster.yml and day2/node/kubernetes.yml."""
    told = [str(content.playbooks_dir() / "vars" / name) for name in ("kubernetes.yml", "kubespray.yml")]
    role = {"name": "kubespray", "tasks_from": tasks}
    # The passwords of Vault and sudo end with Kubespray's run; Ansible would remove them only at the end of the play.
    left = """find "$ANSIBLE_LOCAL_TEMP" -name 'vault-*' -o -name become"""
    gone = {"name": "See that no secret is left", "ansible.builtin.assert": {"that": "lookup('ansible.builtin.pipe', left) == ''"}}
    play = {
        "name": "Bring Kubernetes",
        "hosts": "kube_control_plane:etcd:kube_node:&{{ node | default('all') }}",
        "gather_facts": False,
        "vars_files": told,
        "vars": {
            "kubespray_host": "{{ inventory_hostname }}",
            "kubespray_host_answers": True,
            "kubespray_host_address": "",
            "kubespray_version": "1.35.4",
            "kubespray_batches": [["w1", "w2"]],
            "kubespray_unreachable_workers": ["w3"],
        },
        "tasks": [{"name": "Do it", "ansible.builtin.import_role": role}, {**gone, "vars": {"left": left}}],
    }
    return yaml.safe_dump([play])
