"""What job.json says of the target `kubernetes`: where the pods are made, and what each of them has."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# How an attempt is put: one object for all ranks (the first three), or a Job for each where Jobs know no index.
TRAINJOB, JOBSET, INDEXED, RANKS = "trainjob", "jobset", "indexed", "ranks"
FORMS = ("auto", TRAINJOB, JOBSET, INDEXED, RANKS)
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_OPTIONAL_NAME = re.compile(f"({_NAME.pattern})?")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_OPTIONAL_LABEL = re.compile(f"({_LABEL.pattern})?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([mkMGTPE]|[KMGTPE]i)?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_PATH = re.compile(r"/[A-Za-z0-9._/-]+")
_GROUPS = 1 << 31  # Kubernetes takes no larger numbers: https://kubernetes.io/docs/tasks/configure-pod-container/security-context/
_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")


@dataclass(frozen=True)
class Kubernetes:
    """Where an attempt's pods are made, and what each has; `form` is one of FORMS.

    `storage` is the folder of the shared storage, the same in a pod as on the hosts; it comes from the hosts (hostPath), or from `claim`.
    `resources` are asked for and are the limit, GPUs included. `queue` and `priority` are Kueue's; without a queue `priority` is a
    PriorityClass. `topology` is the label of nodes that the pods should have in common. `secrets` are Secrets whose keys become environment
    variables. `spares` are nodes that are taken last. `groups` are numbers of groups that pods are in besides those of the job's user.
    """

    image: str
    namespace: str
    form: str = "auto"
    storage: str = "/jfs"
    claim: str = ""
    host_network: bool = False
    resources: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, str], ...] = ()
    queue: str = ""
    priority: str = ""
    topology: str = ""
    pull_secrets: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    shm: str = "16Gi"
    groups: tuple[int, ...] = ()


class _Reader(Protocol):
    """What spec.py reads with."""

    problems: list[str]

    def table(self, data: Any, where: str, known: Iterable[str]) -> dict[str, Any]: ...

    def text(self, data: Mapping[str, Any], where: str, key: str, *, pattern: re.Pattern[str] | None = None, default: str = "") -> str: ...

    def words(self, data: Mapping[str, Any], where: str, key: str) -> tuple[str, ...]: ...


def read_kubernetes(reader: _Reader, raw: Any) -> Kubernetes:
    """Read it, and keep what is wrong with the reader."""
    where = "kubernetes"
    # Jobs of earlier releases may carry `kubeconfig`: it is read over, since the broker has its own.
    data = reader.table(raw, where, (*Kubernetes.__dataclass_fields__, "kubeconfig"))

    def text(key: str, pattern: re.Pattern[str]) -> str:
        return reader.text(data, where, key, pattern=pattern, default=str(getattr(Kubernetes, key, "")))

    host_network = data.get("host_network", False)
    if not isinstance(host_network, bool):
        reader.problems.append(f"{where}.host_network: {host_network!r} is neither true nor false")
    return Kubernetes(
        image=text("image", _IMAGE),
        namespace=text("namespace", _NAMESPACE),
        form=text("form", re.compile("|".join(FORMS))),
        storage=text("storage", _PATH),
        claim=text("claim", _OPTIONAL_NAME),
        host_network=host_network is True,
        resources=_mapping(reader, data, "resources", _QUANTITY),
        node_selector=_mapping(reader, data, "node_selector", re.compile(r"[A-Za-z0-9_.-]*")),
        tolerations=_tolerations(reader, data),
        queue=text("queue", _OPTIONAL_NAME),
        priority=text("priority", _OPTIONAL_NAME),
        topology=text("topology", _OPTIONAL_LABEL),
        pull_secrets=_names(reader, data, "pull_secrets"),
        secrets=_names(reader, data, "secrets"),
        spares=_names(reader, data, "spares"),
        shm=text("shm", _QUANTITY),
        groups=_numbers(reader, data, "groups"),
    )


def _mapping(reader: _Reader, data: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> dict[str, str]:
    found = data.get(key, {})
    if not isinstance(found, dict):
        reader.problems.append(f"kubernetes.{key} is no table of texts")
        return {}
    for name, value in found.items():
        if not _LABEL.fullmatch(str(name)) or not isinstance(value, str) or not pattern.fullmatch(value):
            reader.problems.append(f"kubernetes.{key}: {name}: {value!r} is no text like {pattern.pattern}")
    return {str(name): str(value) for name, value in found.items()}


def _names(reader: _Reader, data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = reader.words(data, "kubernetes", key)
    reader.problems += [f"kubernetes.{key}: {name!r} is no name" for name in found if not _NAME.fullmatch(name)]
    return found


def _numbers(reader: _Reader, data: Mapping[str, Any], key: str) -> tuple[int, ...]:
    found = data.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, int) and not isinstance(one, bool) and 0 < one < _GROUPS for one in found):
        reader.problems.append(f"kubernetes.{key}: {found!r} is no list of numbers of groups")
        return ()
    return tuple(found)


def _tolerations(reader: _Reader, data: Mapping[str, Any]) -> tuple[Mapping[str, str], ...]:
    found = data.get("tolerations", [])
    if not isinstance(found, list):
        reader.problems.append("kubernetes.tolerations is no list")
        return ()
    made = []
    for number, item in enumerate(found):
        where = f"kubernetes.tolerations[{number}]"
        table = reader.table(item, where, ("key", "operator", "value", "effect"))
        wrong = [key for key, value in table.items() if not isinstance(value, str)]
        if wrong or table.get("effect", "") not in _EFFECTS or table.get("operator", "Equal") not in ("Equal", "Exists"):
            reader.problems.append(f"{where}: {item!r} is no toleration of Kubernetes (key, operator, value, effect; all text)")
        made.append({key: str(value) for key, value in table.items()})
    return tuple(made)
