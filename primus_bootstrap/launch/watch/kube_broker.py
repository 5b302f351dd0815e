"""Access to Kubernetes through the broker: the requests of a watcher, and the broker's checks and calls.

The broker builds every object itself, from the job and the ids of the sender's account. So a pod cannot run as another account, mount
another folder of a node, or have more rights than `kubernetes_objects` gives. This module checks the settings that a job may choose.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.structured import readable
from primus_bootstrap.launch.watch import kubernetes_objects as manifests
from primus_bootstrap.launch.watch.broker_client import Broker, NoAnswerError, RefusedError
from primus_bootstrap.launch.watch.job_spec import JOB_ID, KUBERNETES, read_job
from primus_bootstrap.launch.watch.kube_api import ApiRefusedError, ApiUnavailableError
from primus_bootstrap.launch.watch.kube_cluster import JobObjects

if TYPE_CHECKING:
    import pwd
    from collections.abc import Callable, Mapping

    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.kube_api import Api
    from primus_bootstrap.launch.watch.kubernetes_objects import Kind, Start

_TIMEOUT_S = 60.0  # the list of nodes of a large cluster has several pages
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9-]{1,128}")
_SELECTOR = re.compile(r"[A-Za-z0-9_./=,-]{0,1000}")
_MAX_WORDS, _MAX_EXCLUDED, _MAX_GRACE_S = 64, 100_000, 600
_FORBIDDEN = 403
_FIX_SITE = "ask an administrator to allow it in hosts.yaml (docs/security.md)"
_SAME_RELEASE = "install the same release of primus-cli on all hosts"
_BY_WATCHER = "send requests through the job's own watcher"


@readable
@dataclass(frozen=True)
class KubernetesRules:
    """Root's rules for jobs of Kubernetes; all empty without Kubernetes.

    Every account may use Secrets whose names begin with its own name and a dash.
    """

    kubeconfig: str = ""
    namespaces: tuple[str, ...] = ()  # namespaces that may have jobs
    storage: tuple[str, ...] = ()  # folders of nodes that pods may mount
    groups: tuple[int, ...] = ()  # group numbers that pods may have in addition to those of the account
    secrets: tuple[str, ...] = ()  # secrets that all accounts may use


def perform(request: Mapping[str, Any], account: pwd.struct_passwd, rules: KubernetesRules, api: Api) -> Any:
    """Carry out a request, and return plain data.

    Args:
        request: A request of `BrokeredCluster`; the caller has checked that its job belongs to the account.
        account: The account of the sender, from the kernel.

    Raises:
        UsageError: The request is not allowed or malformed.
        ApiRefusedError: The server refused it.
        ApiUnavailableError: The server did not answer.
    """
    namespace = request.get("namespace")
    if namespace not in rules.namespaces:
        raise UsageError(
            f"jobs are not allowed in the namespace {namespace!r}", fix=f"choose from: {', '.join(rules.namespaces) or 'none'}"
        )
    verbs: dict[str, Callable[[JobObjects, Mapping[str, Any]], Any]] = {
        "served": lambda objects, _: [kind.plural for kind in objects.served()],
        "nodes": lambda objects, request: objects.nodes(_text(request, "selector", _SELECTOR)),
        "node": lambda objects, request: objects.node(_text(request, "name", _NAME)),
        "tops": lambda objects, request: objects.tops(_kind(request), _attempt(request)),
        "pods": lambda objects, request: objects.pods(_attempt(request)),
        "log": lambda objects, request: objects.log(_text(request, "name", _NAME)),
        "create": lambda objects, request: _create(objects, request, account, rules),
        "delete": lambda objects, request: objects.delete(_kind(request), _text(request, "name", _NAME), _text(request, "uid", _UID)),
        "delete_pod": lambda objects, request: objects.delete_pod(
            _text(request, "name", _NAME), _text(request, "uid", _UID), _number(request, "seconds", _MAX_GRACE_S)
        ),
    }
    verb = verbs.get(str(request.get("verb")))
    if verb is None:
        raise UsageError(f"unknown verb {request.get('verb')!r}", fix=_SAME_RELEASE)
    return verb(JobObjects(api, _text(request, "job", JOB_ID), str(namespace)), request)


def check_job(job: Job, account: pwd.struct_passwd, rules: KubernetesRules) -> None:
    """Check that a job uses only what its user may have.

    Raises:
        UsageError: It uses something else; the first problem is named.
    """
    pods = job.pods
    foreign = [name for name in pods.secrets if name not in rules.secrets and not name.startswith(f"{account.pw_name}-")]
    groups = [number for number in pods.groups if number not in rules.groups]
    problems = (
        (job.user != account.pw_name, f"the job belongs to {job.user}, and the request is from {account.pw_name}", _BY_WATCHER),
        (pods.storage not in rules.storage, f"pods may not mount {pods.storage} of their node", _FIX_SITE),
        (bool(groups), f"pods of {account.pw_name} may not be in the groups {', '.join(map(str, groups))}", _FIX_SITE),
        (
            bool(foreign),
            f"{account.pw_name} may not use the Secret {', '.join(foreign)}",
            f"name it {account.pw_name}-..., or add it to primus_watch_kubernetes_secrets in hosts.yaml",
        ),
    )
    for wrong, what, fix in problems:
        if wrong:
            raise UsageError(what, fix=fix)


def _create(objects: JobObjects, request: Mapping[str, Any], account: pwd.struct_passwd, rules: KubernetesRules) -> dict[str, Any]:
    """Create an object of the request's job, built from its job.json, never from an object in the request."""
    job = read_job(json.dumps(request.get("document")), origin="job.json")
    if job.target != KUBERNETES or job.id != objects.job or job.pods.namespace != objects.namespace:
        raise UsageError("job.json in the request describes another job", fix=_BY_WATCHER)
    check_job(job, account, rules)
    words, excluded = _texts(request, "words", _MAX_WORDS), _texts(request, "excluded", _MAX_EXCLUDED)
    form = str(request.get("form"))
    if form not in manifests.FORMS or not all(map(_NAME.fullmatch, excluded)):
        raise UsageError("the request has an unknown form or an invalid node name", fix=_SAME_RELEASE)
    start = manifests.Start(job, _number(request, "attempt", 10**6), words, pod_user(account), excluded)
    index = _number(request, "index", len(manifests.objects(start, form)) - 1)
    return objects.create(start, form, index, dry_run=request.get("dry_run") is True)


def pod_user(account: pwd.struct_passwd) -> manifests.PodUser:
    """Return the ids with which an account's pods run."""
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    return manifests.PodUser(account.pw_uid, account.pw_gid, tuple(sorted({*groups} - {account.pw_gid, 0})))


def _text(request: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise UsageError(f"{key} is {value!r}", fix=_SAME_RELEASE)
    return value


def _texts(request: Mapping[str, Any], key: str, most: int) -> tuple[str, ...]:
    value = request.get(key)
    if not isinstance(value, list) or len(value) > most or not all(isinstance(one, str) for one in value):
        raise UsageError(f"{key} is not a list of at most {most} texts", fix=_SAME_RELEASE)
    return tuple(value)


def _number(request: Mapping[str, Any], key: str, most: int) -> int:
    value = request.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise UsageError(f"{key} is {value!r}", fix=_SAME_RELEASE)
    return value


def _attempt(request: Mapping[str, Any]) -> int | None:
    return None if request.get("attempt") is None else _number(request, "attempt", 10**6)


def _kind(request: Mapping[str, Any]) -> Kind:
    found = next((kind for kind in manifests.KINDS if kind.plural == request.get("kind")), None)
    if found is None:
        raise UsageError(f"unknown kind of object {request.get('kind')!r}", fix=_SAME_RELEASE)
    return found


@dataclass
class BrokeredCluster:
    """Implements `Cluster` through the broker of this host. `document` is the content of job.json."""

    job: Job
    document: Mapping[str, Any]
    broker: Broker = field(default_factory=Broker)

    def served(self) -> tuple[Kind, ...]:
        """See `Cluster`."""
        names = self._ask("served")
        return tuple(kind for kind in manifests.KINDS if kind.plural in names)

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
            raise ApiUnavailableError(str(error)) from error
        except RefusedError as error:
            raise ApiRefusedError(error.status or _FORBIDDEN, str(error)) from error
