"""Build a Job from the `workload_` variables of a job and the inventory, for `workload submit` and plain Ansible alike."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.structured import InvalidDataError, Issue, read, readable
from primus_bootstrap.launch.plugins.plugin_discovery import named_plugins, plugin_files, plugin_tasks
from primus_bootstrap.launch.watch import job_spec
from primus_bootstrap.launch.watch.job_spec import DIRECT, KUBERNETES, SLURM, Job

PREFIX = "workload_"
WATCHERS, DIRECT_HOSTS, SLURM_HOSTS, KUBE_HOSTS, SPARES = "primus_watch", "workload_node", "slurm_node", "kube_node", "spare"
_POLICY = (
    "max_restarts_without_progress", "max_restarts", "backoff_s", "progress_timeout_s", "first_step_timeout_s", "lost_after_s", "lease_s",
    "hosts_timeout_s",
)  # fmt: skip
# Variables that job.json has under the same name in its block `kubernetes`.
_PODS = (
    "image", "namespace", "form", "storage", "claim", "host_network", "queue", "priority", "topology", "pull_secrets", "shm", "groups",
    "tolerations",
)  # fmt: skip
# Variables by the path in job.json, where the names differ. The longest matching path counts.
_VARIABLES = {
    "words": "task",
    "options": "cli_options",
    "checkpoints": "checkpoint_folder",
    "left_out": "excluded_hosts",
    "slurm.options": "slurm_options",
    "slurm.partition": "slurm_partition",
    "direct.hosts": "hosts",
    "direct.spares": "spares",
    "direct": "hosts",
    "kubernetes.secrets": "kubernetes_env_secrets",
    "kubernetes.": "kubernetes_",
    "policy.": "",
}


@readable
@dataclass(frozen=True)
class JobRequest:
    """The variables of a job without their prefix. Meaning, units and defaults are in roles/workload (meta and defaults)."""

    name: str
    id: str
    user: str
    target: str
    nodes: int
    gpus_per_node: int
    processes_per_node: int
    task: tuple[Any, ...]
    presets: tuple[str, ...]
    settings: Mapping[str, Any]
    data: tuple[str, ...]
    checkpoint_folder: str
    venv: str
    environment: Mapping[str, Any]
    plugins: tuple[str, ...]
    cli_options: tuple[str, ...]
    max_restarts_without_progress: int
    max_restarts: int
    backoff_s: tuple[int, ...]
    progress_timeout_s: int
    first_step_timeout_s: int
    lost_after_s: int
    lease_s: int
    grace_s: int
    hosts_timeout_s: int
    hosts: tuple[str, ...]
    spares: tuple[str, ...]
    host_order: tuple[str, ...]
    excluded_hosts: tuple[Mapping[str, Any], ...]
    folder: str
    slurm_partition: str
    slurm_options: tuple[str, ...]
    kubernetes_image: str
    kubernetes_namespace: str
    kubernetes_form: str
    kubernetes_storage: str
    kubernetes_claim: str
    kubernetes_host_network: bool
    kubernetes_gpu_resource: str
    kubernetes_resources: Mapping[str, Any]
    kubernetes_node_selector: Mapping[str, Any]
    kubernetes_tolerations: tuple[Mapping[str, Any], ...]
    kubernetes_queue: str
    kubernetes_priority: str
    kubernetes_topology: str
    kubernetes_pull_secrets: tuple[str, ...]
    kubernetes_env_secrets: tuple[str, ...]
    kubernetes_shm: str
    kubernetes_groups: tuple[int, ...]

    def settings_by_name(self) -> dict[str, Any]:
        """Return the trainer's settings by their dotted names; an empty section keeps its own name."""
        return dict(flatten(self.settings))


@dataclass(frozen=True)
class InventoryFacts:
    """The part of the inventory that a job depends on: hosts by group, and variables by host."""

    groups: Mapping[str, Sequence[str]]
    hostvars: Mapping[str, Mapping[str, Any]]

    def hosts(self, group: str) -> list[str]:
        """Return the hosts of a group as plain text; Ansible's names carry their origin."""
        return [str(host) for host in self.groups.get(group) or ()]

    def gpus(self, host: str) -> int | None:
        """Return the number of GPUs that the inventory states for a host."""
        count = self.hostvars[host].get("gpu_env_count") if host in self.hostvars else None
        return count if isinstance(count, int) else None

    def has_gpus(self, host: str, count: int) -> bool:
        """Return whether a host may have so many GPUs. If the inventory states no number, the host is checked at the start of the job."""
        stated = self.gpus(host)
        return stated is None or stated >= count


def read_request(values: Mapping[str, Any]) -> JobRequest:
    """Read the `workload_` variables of a job; other variables are ignored.

    Raises:
        InvalidDataError: With all values of the wrong type, by the names of the variables.
    """
    names = [item.name for item in fields(JobRequest)]
    try:
        return read(JobRequest, {name: values[PREFIX + name] for name in names if PREFIX + name in values})
    except InvalidDataError as error:
        raise InvalidDataError(_request_issue(issue, values) for issue in error.issues) from error


def _request_issue(issue: Issue, values: Mapping[str, Any]) -> Issue:
    path = PREFIX + issue.path
    fix = "write it in a file and pass -e @FILE; -e name=value passes text" if isinstance(values.get(path), str) else issue.fix
    return replace(issue, path=path, fix=fix)


def variable_of(issue: Issue) -> str:
    """Return the variable that an issue of `read_request` or `build_job` is about."""
    return re.split(r"[.\[]", issue.path, maxsplit=1)[0]


def new_id(name: str) -> str:
    """Return an id for a new job of this name."""
    return f"{name}-{secrets.token_hex(3)}"


def target_of(request: JobRequest, inventory: InventoryFacts) -> str:
    """Return the target of a job; `auto` depends on the groups that have hosts."""
    if request.target != "auto":
        return request.target
    if inventory.hosts("slurm_controller") and inventory.hosts(SLURM_HOSTS):
        return SLURM
    return KUBERNETES if inventory.hosts(KUBE_HOSTS) and not inventory.hosts(DIRECT_HOSTS) else DIRECT


def candidate_hosts(request: JobRequest, inventory: InventoryFacts) -> tuple[list[str], list[str]]:
    """Return the hosts that may run a job, in the order of preference, and the spares; both empty if the inventory has no such hosts."""
    target = target_of(request, inventory)
    if target == DIRECT:
        return _direct_hosts(request, inventory)
    if target == KUBERNETES:
        nodes, spares = kube_nodes(request, inventory), inventory.hosts(SPARES)
        return [host for host in nodes if host not in spares], [host for host in nodes if host in spares]
    nodes = slurm_nodes(request, inventory)
    return nodes, [host for host in inventory.hosts(SLURM_HOSTS) if host not in nodes]


def slurm_nodes(request: JobRequest, inventory: InventoryFacts) -> list[str]:
    """Return the Slurm nodes for jobs: without spares, unless the job names a partition. Only Slurm knows the nodes of a partition."""
    spares = [] if request.slurm_partition else inventory.hosts(SPARES)
    return [host for host in inventory.hosts(SLURM_HOSTS) if host not in spares]


def kube_nodes(request: JobRequest, inventory: InventoryFacts) -> list[str]:
    """Return the nodes of Kubernetes that may have enough GPUs, spares included."""
    return [host for host in inventory.hosts(KUBE_HOSTS) if inventory.has_gpus(host, request.gpus_per_node)]


def gpu_resource(request: JobRequest, inventory: InventoryFacts) -> str:
    """Return the resource name of a GPU in Kubernetes: the job's, or that of the nodes' GPU model; empty if neither is known."""
    known = [inventory.hostvars[host] for host in inventory.hosts(KUBE_HOSTS) if host in inventory.hostvars]
    models = [str(variables.get("gpu_env_model") or "") for variables in known]
    model = next((model for model in models if model not in ("", "auto")), "")
    by_model = "amd.com/gpu" if model.startswith("MI") else "nvidia.com/gpu" if model else ""
    return request.kubernetes_gpu_resource or by_model


def build_job(request: JobRequest, inventory: InventoryFacts) -> Job:
    """Return the job that these variables describe. A job without an id gets `000000` for its digits.

    Raises:
        InvalidDataError: With all mistakes, by the names of the variables.
    """
    target = target_of(request, inventory)
    data = {
        "schema": job_spec.SCHEMA,
        "id": request.id or f"{request.name}-000000",
        "name": request.name,
        "user": request.user,
        "target": target,
        "nodes": request.nodes,
        "gpus_per_node": request.gpus_per_node,
        "processes_per_node": request.processes_per_node,
        "words": task_words(request),
        "options": [*([f"--venv={request.venv}"] if request.venv else []), *request.cli_options],
        "plugins": _plugin_texts(request.plugins),
        "environment": _texts(request.environment),
        "checkpoints": request.checkpoint_folder,
        "grace_s": request.grace_s,
        "policy": {name: getattr(request, name) for name in _POLICY},
        "left_out": request.excluded_hosts,
    }
    if target == SLURM:
        data[SLURM] = {"partition": request.slurm_partition, "options": request.slurm_options}
    elif target == KUBERNETES:
        data[KUBERNETES] = _pods(request, inventory)
    else:
        hosts, spares = _direct_hosts(request, inventory)
        data[DIRECT] = {"hosts": _with_addresses(hosts, inventory), "spares": _with_addresses(spares, inventory)}
    try:
        return job_spec.parse_job(data, origin="")
    except InvalidDataError as error:
        raise InvalidDataError(replace(issue, path=_variable(issue.path)) for issue in error.issues) from error


def _variable(path: str) -> str:
    """Return the path in the variables for a path in job.json."""
    for start in sorted(_VARIABLES, key=len, reverse=True):
        if path.startswith(start):
            return f"{PREFIX}{_VARIABLES[start]}{path[len(start) :]}"
    return f"{PREFIX}{path}"


def _direct_hosts(request: JobRequest, inventory: InventoryFacts) -> tuple[list[str], list[str]]:
    """Return hosts and spares of a direct job: those that it names, or all of workload_node that may have enough GPUs."""
    members = [host for host in inventory.hosts(DIRECT_HOSTS) if inventory.has_gpus(host, request.gpus_per_node)]
    position = {host: number for number, host in enumerate(request.host_order)}
    members.sort(key=lambda host: position.get(host, len(position)))
    spare = inventory.hosts(SPARES)
    hosts = list(request.hosts) or [host for host in members if host not in spare]
    return hosts, list(request.spares) or [host for host in members if host in spare and host not in hosts]


def _with_addresses(hosts: Iterable[str], inventory: InventoryFacts) -> list[dict[str, str]]:
    """Return hosts with the addresses under which their keys are pinned (the same expression as in roles/primus_watch/vars)."""
    known = {host: inventory.hostvars[host] for host in hosts}
    return [{"name": host, "address": str(values.get("ip") or values.get("ansible_host") or host)} for host, values in known.items()]


def _pods(request: JobRequest, inventory: InventoryFacts) -> dict[str, Any]:
    gpus = {gpu_resource(request, inventory): str(request.gpus_per_node)} if request.gpus_per_node else {}
    spares = inventory.hosts(SPARES)
    return {
        **{name: getattr(request, f"kubernetes_{name}") for name in _PODS},
        "resources": {**{name: str(value) for name, value in request.kubernetes_resources.items()}, **gpus},
        "node_selector": _texts(request.kubernetes_node_selector),
        "secrets": request.kubernetes_env_secrets,
        "spares": [host for host in kube_nodes(request, inventory) if host in spares],
    }


def _plugin_texts(paths: Sequence[str]) -> dict[str, str]:
    """Return the files of plug-ins with their content, which the job takes to its hosts. Each plug-in has a folder of its own.

    Raises:
        InvalidDataError: A plug-in does not exist, or is wrong.
    """
    variable = f"{PREFIX}plugins"
    fix = "give the absolute path of a .py file or of a folder on this machine"
    relative = [Issue(variable, f"{path} is not an absolute path", fix) for path in paths if not path.startswith("/")]
    if relative:
        raise InvalidDataError(relative)
    try:
        named = named_plugins(paths, Path("/"))
        plugin_tasks(named)
    except UsageError as error:
        raise InvalidDataError([Issue(variable, error.what, error.fix)]) from error
    return {f"{number:02d}/{file.name}": file.path.read_text("utf-8") for number, path in enumerate(named) for file in plugin_files([path])}


def task_words(request: JobRequest) -> list[str]:
    """Return the task with all of its arguments, as primus-cli gets them."""
    words = [str(word) for word in request.task]
    for preset in request.presets:
        words += ["--config", preset]
    words += [f"{name}={text_of(value)}" for name, value in request.settings_by_name().items()]
    if request.data:
        words += ["data.source=files", f"data.files={','.join(request.data)}"]
    if request.checkpoint_folder:
        words.append(f"checkpoint.folder={request.checkpoint_folder}")
    return words


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings by their dotted names, in their order; an empty section is yielded as it is."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: text_of(value) for name, value in values.items()}


def text_of(value: Any) -> str:
    """Return a value as the trainer and the environment read it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
