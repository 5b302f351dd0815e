"""The block `kubernetes` of job.json: where an attempt's pods are created, and what each pod gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from primus_bootstrap.core.structured import Constraint, at_least, matching, readable

# How an attempt is created: as one object for all ranks (the first three), or as a Job per rank where Jobs have no index.
TRAINJOB, JOBSET, INDEXED, RANKS = "trainjob", "jobset", "indexed", "ranks"
FORMS = ("auto", TRAINJOB, JOBSET, INDEXED, RANKS)
_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_LABEL = r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"

Name = Annotated[str, matching(re.compile(_NAME), "a name of Kubernetes")]
OptionalName = Annotated[str, matching(re.compile(f"({_NAME})?"), "a name of Kubernetes or an empty text")]
Namespace = Annotated[str, matching(re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"), "a namespace")]
Label = Annotated[str, matching(re.compile(_LABEL), "a label")]
OptionalLabel = Annotated[str, matching(re.compile(f"({_LABEL})?"), "a label or an empty text")]
LabelValue = Annotated[str, matching(re.compile(r"[A-Za-z0-9_.-]*"), "the value of a label, as text")]
Quantity = Annotated[str, matching(re.compile(r"[0-9]+(\.[0-9]+)?([mkMGTPE]|[KMGTPE]i)?"), "a quantity like 16Gi, as text")]
Image = Annotated[str, matching(re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*"), "an image")]
Folder = Annotated[str, matching(re.compile(r"/[A-Za-z0-9._/-]+"), "an absolute path")]
Form = Annotated[str, Constraint(f"one of {', '.join(FORMS)}", FORMS.__contains__)]
# Kubernetes takes no larger numbers: https://kubernetes.io/docs/tasks/configure-pod-container/security-context/
GroupId = Annotated[int, at_least(1, (1 << 31) - 1)]


@readable
@dataclass(frozen=True)
class Toleration:
    """A toleration of Kubernetes; an empty text leaves the key out."""

    key: str = ""
    operator: Annotated[str, Constraint("Equal or Exists", ("", "Equal", "Exists").__contains__)] = ""
    value: str = ""
    effect: Annotated[str, Constraint("an effect", ("", "NoSchedule", "PreferNoSchedule", "NoExecute").__contains__)] = ""

    def to_json(self) -> dict[str, str]:
        """Return what the API server takes."""
        return {name: value for name, value in vars(self).items() if value}


@readable
@dataclass(frozen=True)
class Kubernetes:
    """Where an attempt's pods are created, and what each pod gets."""

    image: Image
    namespace: Namespace
    form: Form = "auto"  # the kind of object, one of FORMS
    storage: Folder = "/jfs"  # folder of the shared storage, the same in the pod and on the host
    claim: OptionalName = ""  # PersistentVolumeClaim with that storage; empty: a hostPath volume
    host_network: bool = False  # whether pods use the network of their host
    resources: Mapping[Label, Quantity] = field(default_factory=dict)  # requests, equal to the limits; includes GPUs
    node_selector: Mapping[Label, LabelValue] = field(default_factory=dict)  # labels that a node must have
    tolerations: tuple[Toleration, ...] = ()
    queue: OptionalName = ""
    priority: OptionalName = ""  # a priority class of Kueue; without a queue, a PriorityClass
    topology: OptionalLabel = ""  # label of nodes that the pods should share
    pull_secrets: tuple[Name, ...] = ()
    secrets: tuple[Name, ...] = ()  # secrets whose keys become environment variables
    spares: tuple[Name, ...] = ()  # nodes that are used last
    shm: Quantity = "16Gi"
    groups: tuple[GroupId, ...] = ()  # group numbers of the pods in addition to those of the job's user
