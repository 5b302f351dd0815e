"""primus_bootstrap.launch.watch.broker: the allowed accounts, hosts and Kubernetes objects."""

from __future__ import annotations

import json
import os
import pwd
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from primus_bootstrap.core.errors import PrimusError, UsageError
from primus_bootstrap.launch.watch import broker, kube_broker
from primus_bootstrap.launch.watch.broker_client import KUBERNETES, NODE, SCHEMA, Broker, NoAnswerError
from primus_bootstrap.launch.watch.kube_api import ApiRefusedError
from primus_bootstrap.launch.watch.ssh import Channel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from primus_bootstrap.launch.watch.kube_api import Api

    Sent = list[tuple[str, int, dict[str, Any]]]

JOB = "small-0a1b2c"
ME = pwd.getpwuid(os.geteuid())
RULES = kube_broker.KubernetesRules("/none", ("jobs",), ("/jfs",), (44,), ("shared",))


@pytest.fixture
def settings(tmp_path: Path) -> broker.Settings:
    """Root's settings: two hosts, one account, and the folder of a job of that account."""
    keys = tmp_path / "known_hosts.d"
    keys.mkdir()
    (keys / "node1").write_text("[10.0.0.1]:2222 ssh-ed25519 AAAA\n")
    (keys / "node2").write_text("fd00::2 ssh-ed25519 AAAA\n")
    (tmp_path / "jobs" / JOB).mkdir(parents=True)
    return broker.Settings(tmp_path / "jobs", (ME.pw_name,), keys, "primus-unit", "/key", RULES)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Record the requests over SSH instead of sending them."""
    found: Sent = []

    def ask(_: Channel, address: str, port: int, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        assert timeout_s > 0
        found.append((address, port, dict(request)))
        return {"ok": True, "state": "running"}

    monkeypatch.setattr(Channel, "ask", ask)
    return found


def to_node(node: str = "node1", **changes: Any) -> dict[str, Any]:
    """Return a request for a host."""
    inner = {"verb": "status", "job": JOB, "attempt": 1, "key": "k", **changes}
    return {"schema": SCHEMA, "what": NODE, "node": node, "request": inner, "timeout_s": 5}


def test_a_request_has_the_account_of_its_sender(settings: broker.Settings, asked: Sent) -> None:
    """Address, port and account come from root's settings and the kernel, not from the request."""
    answered = broker.answer(to_node(user="daemon", address="10.9.9.9", identity="/etc/shadow"), ME.pw_uid, settings)
    broker.answer(to_node("node2", verb="probe"), ME.pw_uid, settings)

    assert answered == {"ok": True, "state": "running"}
    assert asked == [
        ("10.0.0.1", 2222, {"verb": "status", "job": JOB, "attempt": 1, "key": "k", "user": ME.pw_name}),
        ("fd00::2", 22, {"verb": "probe", "job": JOB, "attempt": 1, "key": "k"}),
    ]


@pytest.mark.parametrize(
    ("request_", "uid", "said"),
    [
        (to_node(), 1, "may not have jobs"),
        (to_node(verb="probe"), 1, "may not have jobs"),
        (to_node(), 4_000_000, "has no name on this host"),
        (to_node("node9"), ME.pw_uid, "node9 is not a host of workload_node"),
        (to_node("../node1"), ME.pw_uid, "is not a host of workload_node"),
        (to_node(verb="reboot"), ME.pw_uid, "unknown request for a host"),
        (to_node(job="../x"), ME.pw_uid, "has no valid job"),
        (to_node(job="other-0a1b2c"), ME.pw_uid, "No such file or directory"),
        ({**to_node(), "timeout_s": 10_000}, ME.pw_uid, "malformed"),
        ({**to_node(), "schema": "x"}, ME.pw_uid, "unknown request"),
        ({**to_node(), "what": "shell"}, ME.pw_uid, "unknown request"),
    ],
)
def test_an_unauthorized_request_reaches_no_host(
    settings: broker.Settings, asked: Sent, request_: dict[str, Any], uid: int, said: str
) -> None:
    """Unknown accounts, hosts and jobs, and malformed requests."""
    with pytest.raises(PrimusError, match=said):
        broker.answer(request_, uid, settings)

    assert asked == []


def test_a_job_of_another_account_is_refused(settings: broker.Settings, asked: Sent) -> None:
    """Only the owner of the job's folder is served. A symbolic link is not a folder."""
    settings = replace(settings, accounts=(ME.pw_name, "daemon"))
    with pytest.raises(UsageError, match=f"{JOB} does not belong to daemon"):
        broker.answer(to_node(), pwd.getpwnam("daemon").pw_uid, settings)
    (settings.folder / "link-0a1b2c").symlink_to(settings.folder / JOB)
    with pytest.raises(UsageError, match="link-0a1b2c does not belong"):
        broker.answer(to_node(job="link-0a1b2c"), ME.pw_uid, settings)

    assert asked == []


def test_every_request_gets_an_answer(tmp_path: Path, settings: broker.Settings) -> None:
    """Over a real socket: also a refused and a malformed one."""
    path = tmp_path / "broker.json"
    named = {"folder": str(settings.folder), "accounts": [], "host_keys": str(settings.host_keys), "account": "a", "identity": "/key"}
    path.write_text(json.dumps({"schema": broker.SETTINGS_SCHEMA, **named}))
    for sent, said in ((json.dumps(to_node()).encode() + b"\n", "may not have jobs"), (b"\xff{\n", "not a line of JSON")):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, theirs:
            theirs.sendall(sent)
            answered = broker._answer(ours, ME.pw_uid, path)

        assert not answered["ok"]
        assert said in answered["error"]


def test_without_a_broker_there_is_no_answer(tmp_path: Path) -> None:
    """The message says what to check."""
    with pytest.raises(NoAnswerError, match="systemctl status primus-watch-broker"):
        Broker(tmp_path / "none").ask_node("node1", {"verb": "probe"}, timeout_s=1)


class Server:
    """An API server that records requests."""

    def __init__(self) -> None:
        """Create one pod of the job, and one of another job."""
        self.created: list[tuple[str, dict[str, Any]]] = []
        self.deleted: list[str] = []
        self.pods = {"mine": JOB, "theirs": "other-0a1b2c"}

    def find(self, path: str) -> dict[str, Any] | None:
        """Return a pod with its job's label."""
        job = self.pods.get(path.rpartition("/")[2])
        labels = {"app.kubernetes.io/managed-by": "primus-watch", "primus-bootstrap.io/job": job}
        return {"metadata": {"labels": labels}} if job else None

    def create(self, path: str, body: dict[str, Any], **_: str) -> dict[str, Any]:
        """Record an object."""
        self.created.append((path, body))
        return body

    def text(self, path: str, **_: str) -> str:
        """Return a log."""
        return path

    def delete(self, path: str, body: dict[str, Any]) -> None:
        """Record a deletion."""
        assert body["preconditions"]["uid"]
        self.deleted.append(path)


def account(name: str = "ada", uid: int = 4101) -> pwd.struct_passwd:
    """Return an account."""
    return pwd.struct_passwd((name, "x", uid, 4000, "", f"/home/{name}", "/bin/sh"))


def document(**pods: Any) -> dict[str, Any]:
    """Return job.json of a job of Kubernetes."""
    named = {"schema": "primus.job/1", "id": JOB, "name": "small", "user": "ada", "target": "kubernetes", "nodes": 1, "words": ["train"]}
    return {**named, "kubernetes": {"image": "img:1", "namespace": "jobs", **pods}}


def create(server: Server, given: dict[str, Any], who: pwd.struct_passwd, **changes: Any) -> Any:
    """Request the object of the first attempt."""
    attempt = {"attempt": 1, "words": ["python3", "x"], "excluded": [], "form": "indexed", "index": 0}
    request = {"verb": "create", "job": JOB, "namespace": "jobs", "document": given, **attempt, **changes}
    return kube_broker.perform(request, who, RULES, cast("Api", server))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """An API server; accounts are in the groups 44 and 0."""
    monkeypatch.setattr(os, "getgrouplist", lambda *_: [4000, 44, 0])
    return Server()


def test_pods_run_with_the_ids_of_the_sender(server: Server) -> None:
    """The broker builds the object itself, and ignores objects in the request."""
    create(server, document(secrets=["ada-wandb", "shared"], groups=[44]), account(), body={"spec": {"privileged": True}})
    ((path, made),) = server.created
    pod = made["spec"]["template"]["spec"]

    assert path == "/apis/batch/v1/namespaces/jobs/jobs"
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 4101,
        "runAsGroup": 4000,
        "supplementalGroups": [44],
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert (pod["automountServiceAccountToken"], pod["containers"][0]["securityContext"]) == (False, {"allowPrivilegeEscalation": False})


@pytest.mark.parametrize(
    ("pods", "who", "said"),
    [
        ({"storage": "/etc"}, account(), "may not mount /etc of their node"),
        ({"storage": "/jfs/../etc"}, account(), "may not mount"),
        ({"secrets": ["primus-watch-token"]}, account(), "may not use the Secret primus-watch-token"),
        ({"secrets": ["bob-wandb"]}, account(), "may not use the Secret bob-wandb"),
        ({"groups": [999]}, account(), "may not be in the groups 999"),
        ({}, account("bob", 4102), "the job belongs to ada, and the request is from bob"),
        ({"namespace": "kube-system"}, account(), "describes another job"),
    ],
)
def test_a_job_with_forbidden_settings_is_refused(server: Server, pods: dict[str, Any], who: pwd.struct_passwd, said: str) -> None:
    """Folders of nodes, other accounts' Secrets and groups, and other namespaces."""
    with pytest.raises(UsageError, match=said):
        create(server, document(**pods), who)

    assert server.created == []


def test_only_allowed_namespaces_are_served(server: Server) -> None:
    """The kubeconfig may have more rights than jobs."""
    with pytest.raises(UsageError, match="not allowed in the namespace"):
        create(server, document(namespace="kube-system"), account(), namespace="kube-system")


def test_pods_of_another_job_are_neither_read_nor_deleted(server: Server) -> None:
    """The label of the job decides; only the broker writes it."""
    for verb in ("log", "delete_pod"):
        request = {"verb": verb, "job": JOB, "namespace": "jobs", "name": "theirs", "uid": "u1", "seconds": 0}
        with pytest.raises(ApiRefusedError, match="does not belong to the job"):
            kube_broker.perform(request, account(), RULES, cast("Api", server))
        kube_broker.perform({**request, "name": "mine"}, account(), RULES, cast("Api", server))

    assert server.deleted == ["/api/v1/namespaces/jobs/pods/mine"]


def test_without_a_kubeconfig_requests_for_kubernetes_are_refused(settings: broker.Settings) -> None:
    """The message says what is missing."""
    request = {"schema": SCHEMA, "what": KUBERNETES, "request": {"verb": "served", "job": JOB, "namespace": "jobs"}, "timeout_s": 5}
    with pytest.raises(UsageError, match="no access to Kubernetes"):
        broker.answer(request, ME.pw_uid, replace(settings, kubernetes=kube_broker.KubernetesRules()))
