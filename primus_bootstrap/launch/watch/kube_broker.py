"""Kubernetes through the broker: what a watcher sends, what the broker accepts of it, and what it does.

The broker makes every object itself, from the job and from the numbers of the account that asks. So a pod can never run as another account,
mount another folder of a node, or have more rights than `kubernetes_objects` gives. What a job may still choose is checked here.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.watch.broker_client import Broker, NoAnswerError, RefusedError
from primus_bootstrap.launch.watch.job_spec import JOB_ID, KUBERNETES, read_job
from primus_bootstrap.launch.watch.kube_api import ApiRefusedError, ApiSilentError
from primus_bootstrap.launch.watch.kube_cluster import JobObjects
from primus_bootstrap.launch.watch.targets import kubernetes_objects as making

if TYPE_CHECKING:
    import pwd
    from collections.abc import Callable, Mapping

    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.kube_api import Api
    from primus_bootstrap.launch.watch.targets.kubernetes_objects import Kind, Start

_TIMEOUT_S = 60.0  # a list of a large cluster's Nodes has several pages
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9-]{1,128}")
_SELECTOR = re.compile(r"[A-Za-z0-9_./=,-]{0,1000}")
_MOST_WORDS, _MOST_EXCLUDED, _MOST_GRACE_S = 64, 100_000, 600
_FORBIDDEN = 403
_FIX_SITE = "ask an administrator; hosts.yaml says what is allowed (docs/security.md)"


@dataclass(frozen=True)
class KubernetesRules:
    """What jobs of Kubernetes may choose, as root has written it; all empty where there is no Kubernetes.

    `storage` are folders of nodes that pods may mount, `groups` numbers of groups beside the account's own, `secrets` names of Secrets that
    all may use. Every account may use Secrets whose names begin with its own name and a dash.
    """

    kubeconfig: str = ""
    namespaces: tuple[str, ...] = ()
    storage: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    secrets: tuple[str, ...] = ()


def perform(request: Mapping[str, Any], account: pwd.struct_passwd, rules: KubernetesRules, api: Api) -> Any:
    """Do what a request asks for, and return plain data.

    Args:
        request: as `Brokered` sends it; the caller has made sure that its job belongs to the account.
        account: who asks, as the kernel says.
        rules: what is allowed.
        api: the API server.

    Raises:
        UsageError: The request is not allowed or not well formed.
        ApiRefusedError: The server refused.
        ApiSilentError: It gave no answer.
    """
    namespace = request.get("namespace")
    if namespace not in rules.namespaces:
        raise UsageError(f"jobs have no place in the namespace {namespace!r}", fix=f"choose from: {', '.join(rules.namespaces) or 'none'}")
    verbs: dict[str, Callable[[JobObjects, Mapping[str, Any]], Any]] = {
        "served": lambda objects, _: [kind.plural for kind in objects.served()],
        "nodes": lambda objects, asked: objects.nodes(_text(asked, "selector", _SELECTOR)),
        "node": lambda objects, asked: objects.node(_text(asked, "name", _NAME)),
        "tops": lambda objects, asked: objects.tops(_kind(asked), _attempt(asked)),
        "pods": lambda objects, asked: objects.pods(_attempt(asked)),
        "log": lambda objects, asked: objects.log(_text(asked, "name", _NAME)),
        "create": lambda objects, asked: _create(objects, asked, account, rules),
        "delete": lambda objects, asked: objects.delete(_kind(asked), _text(asked, "name", _NAME), _text(asked, "uid", _UID)),
        "delete_pod": lambda objects, asked: objects.delete_pod(
            _text(asked, "name", _NAME), _text(asked, "uid", _UID), _number(asked, "seconds", _MOST_GRACE_S)
        ),
    }
    verb = verbs.get(str(request.get("verb")))
    if verb is None:
        raise UsageError(f"the broker knows no {request.get('verb')!r}", fix="have the same version of primus-cli on all hosts")
    return verb(JobObjects(api, _text(request, "job", JOB_ID), str(namespace)), request)


def check_job(job: Job, account: pwd.struct_passwd, rules: KubernetesRules) -> None:
    """Make sure that a job asks for nothing that its user may not have.

    Raises:
        UsageError: It does; the first thing is named.
    """
    pods = job.pods
    foreign = [name for name in pods.secrets if name not in rules.secrets and not name.startswith(f"{account.pw_name}-")]
    groups = [number for number in pods.groups if number not in rules.groups]
    problems = (
        (job.user != account.pw_name, f"the job is {job.user}'s, and {account.pw_name} asks", "let the job's own watcher ask"),
        (pods.storage not in rules.storage, f"pods may not mount {pods.storage} of their node", _FIX_SITE),
        (bool(groups), f"pods of {account.pw_name} may not be in the groups {', '.join(map(str, groups))}", _FIX_SITE),
        (
            bool(foreign),
            f"{account.pw_name} may not use the Secret {', '.join(foreign)}",
            f"name it {account.pw_name}-..., or have it added to primus_watch_kubernetes_secrets in hosts.yaml",
        ),
    )
    for wrong, what, fix in problems:
        if wrong:
            raise UsageError(what, fix=fix)


def _create(objects: JobObjects, request: Mapping[str, Any], account: pwd.struct_passwd, rules: KubernetesRules) -> dict[str, Any]:
    """Make an object of the request's job from its description, never from an object that is sent."""
    job = read_job(json.dumps(request.get("document")), origin="job.json")
    if job.target != KUBERNETES or job.id != objects.job or job.pods.namespace != objects.namespace:
        raise UsageError("the request names another job than its description", fix="let the job's own watcher ask")
    check_job(job, account, rules)
    words, excluded = _texts(request, "words", _MOST_WORDS), _texts(request, "excluded", _MOST_EXCLUDED)
    form = str(request.get("form"))
    if form not in making.FORMS or not all(map(_NAME.fullmatch, excluded)):
        raise UsageError("the request names no form, or a node that cannot be", fix="have the same version of primus-cli on all hosts")
    start = making.Start(job, _number(request, "attempt", 10**6), words, person(account), excluded)
    index = _number(request, "index", len(making.objects(start, form)) - 1)
    return objects.create(start, form, index, dry_run=request.get("dry_run") is True)


def person(account: pwd.struct_passwd) -> making.Person:
    """Return as whom an account's pods run."""
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    return making.Person(account.pw_uid, account.pw_gid, tuple(sorted({*groups} - {account.pw_gid, 0})))


def _text(request: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise UsageError(f"{key} is {value!r}", fix="have the same version of primus-cli on all hosts")
    return value


def _texts(request: Mapping[str, Any], key: str, most: int) -> tuple[str, ...]:
    value = request.get(key)
    if not isinstance(value, list) or len(value) > most or not all(isinstance(one, str) for one in value):
        raise UsageError(f"{key} is no list of at most {most} texts", fix="have the same version of primus-cli on all hosts")
    return tuple(value)


def _number(request: Mapping[str, Any], key: str, most: int) -> int:
    value = request.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise UsageError(f"{key} is {value!r}", fix="have the same version of primus-cli on all hosts")
    return value


def _attempt(request: Mapping[str, Any]) -> int | None:
    return None if request.get("attempt") is None else _number(request, "attempt", 10**6)


def _kind(request: Mapping[str, Any]) -> Kind:
    found = next((kind for kind in making.KINDS if kind.plural == request.get("kind")), None)
    if found is None:
        raise UsageError(f"there is no kind {request.get('kind')!r} of objects", fix="have the same version of primus-cli on all hosts")
    return found


@dataclass
class Brokered:
    """Kubernetes as a watcher has it: `Cluster`, through the broker of its host. `document` is the job's own job.json."""

    job: Job
    document: Mapping[str, Any]
    broker: Broker = field(default_factory=Broker)

    def served(self) -> tuple[Kind, ...]:
        """See `Cluster`."""
        names = self._ask("served")
        return tuple(kind for kind in making.KINDS if kind.plural in names)

    def nodes(self, selector: str) -> list[dict[str, Any]]:
        """See `Cluster`."""
        return list(self._ask("nodes", selector=selector))

    def node(self, name: str) -> dict[str, Any] | None:
        """See `Cluster`."""
        found = self._ask("node", name=name)
        return None if found is None else dict(found)

    def tops(self, kind: Kind, attempt: int | None) -> list[dict[str, Any]]:
        """See `Cluster`."""
        return list(self._ask("tops", kind=kind.plural, attempt=attempt))

    def pods(self, attempt: int | None) -> list[dict[str, Any]]:
        """See `Cluster`."""
        return list(self._ask("pods", attempt=attempt))

    def log(self, pod: str) -> str:
        """See `Cluster`."""
        return str(self._ask("log", name=pod))

    def create(self, start: Start, form: str, index: int, *, dry_run: bool = False) -> dict[str, Any]:
        """See `Cluster`."""
        words, excluded = list(start.words), list(start.excluded)
        sent = {"attempt": start.attempt, "words": words, "excluded": excluded, "form": form, "index": index, "dry_run": dry_run}
        return dict(self._ask("create", document=dict(self.document), **sent))

    def delete(self, kind: Kind, name: str, uid: str) -> None:
        """See `Cluster`."""
        self._ask("delete", kind=kind.plural, name=name, uid=uid)

    def delete_pod(self, name: str, uid: str, seconds: int) -> None:
        """See `Cluster`."""
        self._ask("delete_pod", name=name, uid=uid, seconds=seconds)

    def _ask(self, verb: str, **more: Any) -> Any:
        request = {"verb": verb, "job": self.job.id, "namespace": self.job.pods.namespace, **more}
        try:
            return self.broker.ask_kubernetes(request, timeout_s=_TIMEOUT_S)
        except NoAnswerError as error:
            raise ApiSilentError(str(error)) from error
        except RefusedError as error:
            raise ApiRefusedError(error.status or _FORBIDDEN, str(error)) from error


def read_rules(data: Mapping[str, Any]) -> KubernetesRules:
    """Read the rules out of the broker's settings.

    Raises:
        TypeError: Something is of another type.
        ValueError: A group is no number.
    """
    if not isinstance(data, dict):
        raise TypeError("kubernetes is no table")
    texts = {key: tuple(str(one) for one in data.get(key) or ()) for key in ("namespaces", "storage", "secrets")}
    groups = tuple(int(one) for one in data.get("groups") or ())
    return KubernetesRules(kubeconfig=str(data.get("kubeconfig") or ""), groups=groups, **texts)
