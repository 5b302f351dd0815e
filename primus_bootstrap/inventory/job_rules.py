"""Check a job's variables against the inventory, and build job.json; used by `workload submit` and plain Ansible.

The job is built by `primus_bootstrap.launch.watch.job_request`. This module adds the checks that need the inventory or the presets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content
from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.core.structured import InvalidDataError, Issue
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.backends.registry import NATIVE
from primus_bootstrap.launch.programs import train_settings
from primus_bootstrap.launch.programs.settings_file import Given
from primus_bootstrap.launch.tasks import Request, all_tasks, find_task
from primus_bootstrap.launch.training import backend_training, native_training
from primus_bootstrap.launch.watch import job_request
from primus_bootstrap.launch.watch.job_request import DIRECT_HOSTS, KUBE_HOSTS, PREFIX, SLURM_HOSTS, WATCHERS, InventoryFacts
from primus_bootstrap.launch.watch.job_spec import DIRECT, JOB_ID, KUBERNETES, SLURM

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from primus_bootstrap.launch.watch.job_request import JobRequest

WORKLOADS = content.content_root() / "workloads"
PRESETS = WORKLOADS / "presets"
# The trainer's own limit for a step, and its default: workloads/train/settings.py.
STEP_LIMIT, STEP_LIMIT_S = "watchdog.step_timeout_s", 600.0
# The level that every topology of Kueue has: roles/kueue
HOSTNAME = "kubernetes.io/hostname"
# The part of a job's id before the dash and the six hexadecimal digits.
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")


def find_issues(variables: Mapping[str, Any], inventory: InventoryFacts) -> list[Issue]:
    """Return every mistake of a job; the path of an issue begins with the name of a variable.

    Args:
        variables: Every `workload_` variable with its value.
        inventory: The groups, and the variables of the hosts in workload_node, kube_node and kueue.
    """
    rules = (_names, _target, _programs, _arguments, _step_limit, _direct_hosts, _pods, _one_pod_per_node, _gpus)
    try:
        request = job_request.read_request(variables)
        issues = [issue for rule in rules for issue in rule(request, inventory)]
        if not issues:  # otherwise further mistakes may follow from these
            job_request.build_job(request, inventory)
    except InvalidDataError as error:
        return list(error.issues)
    return issues


def problems(variables: Mapping[str, Any], groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any]) -> list[str]:
    """Return one line per mistake, with its fix."""
    return [f"{issue}. Fix: {issue.fix}" for issue in find_issues(variables, InventoryFacts(groups, hostvars))]


def document(variables: Mapping[str, Any], groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of job.json for a job without mistakes."""
    return job_request.build_job(job_request.read_request(variables), InventoryFacts(groups, hostvars)).to_json()


def _issue(name: str, what: str, fix: str) -> Issue:
    return Issue(PREFIX + name, what, fix)


def _names(request: JobRequest, _inventory: InventoryFacts) -> Iterator[Issue]:
    if not _NAME.fullmatch(request.name):
        fix = "use 1 to 40 small letters, digits and dashes, beginning with a letter"
        yield _issue("name", f"{request.name!r} is not the name of a job", fix)
    elif request.id and not (JOB_ID.fullmatch(request.id) and request.id[:-7] == request.name):
        fix = f"use {request.name}- and six hexadecimal digits, or leave it empty for a new job"
        yield _issue("id", f"{request.id!r} is not an id of {request.name}", fix)
    if request.user in ("", "root"):
        what = "root may not have jobs" if request.user else "not set"
        yield _issue("user", what, "set it to an account of users_groups_accounts")


def _target(request: JobRequest, inventory: InventoryFacts) -> Iterator[Issue]:
    watchers = inventory.hosts(WATCHERS)
    if not watchers:
        yield _issue("target", "no host is in the group primus_watch, so no watcher can run", "add a host to primus_watch, and apply")
        return
    if job_request.target_of(request, inventory) != SLURM:
        return
    controllers = inventory.hosts("slurm_controller")
    if not inventory.hosts(SLURM_HOSTS) or not controllers:
        fix = "set workload_target: direct, or install Slurm"
        yield _issue("target", "slurm is chosen, and this cluster has no Slurm (groups slurm_controller and slurm_node)", fix)
        return
    if watchers[0] not in {*inventory.hosts("slurm_login"), *controllers}:
        what = f"{watchers[0]}, the first host of primus_watch, cannot submit jobs to Slurm"
        yield _issue("target", what, "add it to slurm_login, or put a login host first in primus_watch, and apply")
    yield from _enough(request, len(job_request.slurm_nodes(request, inventory)), SLURM_HOSTS)


def _enough(request: JobRequest, count: int, group: str) -> Iterator[Issue]:
    if request.nodes > count:
        gpus = f" with {request.gpus_per_node} GPUs" if request.gpus_per_node else ""
        what = f"the job needs {request.nodes}, and {group} has {count} host{'s' if count != 1 else ''} for jobs{gpus}"
        yield _issue("nodes", what, "lower workload_nodes, or add hosts")


def _programs(request: JobRequest, _inventory: InventoryFacts) -> Iterator[Issue]:
    presets = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    for name in () if _has_backend(request) else request.presets:
        if not name.startswith("/") and name not in presets:
            yield _issue("presets", f"there is no preset {name}", f"{did_you_mean(name, presets)}, or give an absolute path")
    given = [name for name in ("presets", "settings", "data", "checkpoint_folder") if getattr(request, name)]
    if given and not _is_train(request):
        names = ", ".join(PREFIX + name for name in given)
        yield _issue(
            "task", f"the task {' '.join(map(str, request.task))} does not take {names}", f"remove {names}, or choose a train task"
        )
    settings = request.settings_by_name()
    for key, value in settings.items():
        if value is None or isinstance(value, dict):
            yield _issue(f"settings.{key}", "no value", "give it a value, or remove it")
    for name, key in (("data", "data.files"), ("checkpoint_folder", "checkpoint.folder")):
        if key in settings:
            yield _issue(f"settings.{key}", "set by a variable of its own", f"set workload_{name} instead")


def _arguments(request: JobRequest, _inventory: InventoryFacts) -> Iterator[Issue]:
    """Check what the task would reject on the hosts: options of a benchmark, settings of the trainer."""
    words = [str(word) for word in request.task]
    if any(option.partition("=")[0] == "--script" for option in request.cli_options):
        return  # the words are arguments of a program of the user
    yield from _task_issues("task", words)
    if not _is_train(request):
        return
    if _has_backend(request):
        yield from _task_issues("settings", job_request.task_words(request))
        return
    for name in (name for name in request.presets if name.startswith("/")):
        yield from _task_issues("presets", [*words[:2], "--config", name])
    known = train_settings.known_settings(WORKLOADS)
    stated = {key: value for key, value in request.settings_by_name().items() if value is not None and not isinstance(value, dict)}
    wrong = [(key, *train_settings.problem(known, key, value)) for key, value in stated.items()]
    yield from (_issue(f"settings.{key}", what, fix) for key, what, fix in wrong if what)
    if not any(what for _, what, _ in wrong):
        yield from _combinations(request, stated, known)


def _combinations(request: JobRequest, stated: Mapping[str, Any], known: Mapping[str, train_settings.Known]) -> Iterator[Issue]:
    """Yield the settings that the trainer does not support together. A file that only the hosts have may change the values."""
    if any("/" in name for name in request.presets):
        return
    given = [Given(name, value, "settings") for name, value in stated.items()]
    try:
        native_training.check_combinations(WORKLOADS, native_training.values(WORKLOADS, known, request.presets, given))
    except UsageError as error:
        yield _issue("settings", error.what, error.fix)


def _task_issues(variable: str, words: Sequence[str]) -> Iterator[Issue]:
    """Yield the mistakes in the words of a task of primus-cli. Files that only the hosts have, and tasks of plug-ins, are not checked."""
    if not words or all(name.split()[0] != words[0] for name in all_tasks()):
        return
    try:
        task, arguments = find_task(words)
        if task.check:
            task.check(Request(arguments, "", lambda: WORKLOADS, find=lambda path: path if path.is_file() else None))
    except (UsageError, PlanError) as error:
        yield _issue(variable, error.what, error.fix)


def _has_backend(request: JobRequest) -> bool:
    """Return whether the job trains on a backend: workload_settings names one, or a recipe of one is a preset."""
    named = request.settings_by_name().get("backend", NATIVE)
    return _is_train(request) and (named != NATIVE or backend_training.is_recipe(request.presets))


def _is_train(request: JobRequest) -> bool:
    return request.task[:1] == ("train",)


def _step_limit(request: JobRequest, _inventory: InventoryFacts) -> Iterator[Issue]:
    """The trainer must report a step that hangs before the watcher stops the job: only the trainer knows the rank."""
    limit_s, timeout_s = step_limit_s(request), request.progress_timeout_s
    if not limit_s or not timeout_s or timeout_s > limit_s:
        return
    what = f"{timeout_s} s is not more than the trainer's own limit for a step, {STEP_LIMIT} ({limit_s:g} s)"
    fix = f"raise it above {limit_s:g}, or lower {STEP_LIMIT} in workload_settings: the trainer's message names the rank that hangs"
    yield _issue("progress_timeout_s", what, fix)


def step_limit_s(request: JobRequest) -> float:
    """Return the trainer's limit for a step in seconds; 0 if it has none, or if the limit is unknown here."""
    if not _is_train(request):
        return 0.0
    limit: Any = STEP_LIMIT_S
    for name in request.presets:
        path = PRESETS / f"{name}.yaml"
        if name.startswith("/"):  # a file on the hosts
            limit = 0.0
        elif path.is_file():
            limit = dict(job_request.flatten(yaml.safe_load(path.read_text(encoding="utf-8")) or {})).get(STEP_LIMIT, limit)
    words = dict(word.partition("=")[::2] for word in map(str, request.task))
    limit = {**words, **request.settings_by_name()}.get(STEP_LIMIT, limit)
    try:
        return float(limit)
    except (TypeError, ValueError):
        return 0.0  # the trainer rejects the value itself


def _direct_hosts(request: JobRequest, inventory: InventoryFacts) -> Iterator[Issue]:
    if job_request.target_of(request, inventory) != DIRECT or not inventory.hosts(WATCHERS):
        return
    members = inventory.hosts(DIRECT_HOSTS)
    unknown = [(name, host) for name in ("hosts", "spares") for host in getattr(request, name) if host not in members]
    for name, host in unknown:
        yield _issue(name, f"{host} is not a host of workload_node", did_you_mean(host, members or ["none"]))
    if unknown:
        return
    hosts, spares = job_request.candidate_hosts(request, inventory)
    yield from _enough(request, len(hosts), "workload_hosts" if request.hosts else DIRECT_HOSTS)
    for host in sorted({host for host in hosts + spares if (hosts + spares).count(host) > 1}):
        yield _issue("spares", f"{host} is named more than once in workload_hosts and workload_spares", "name it once")


def _pods(request: JobRequest, inventory: InventoryFacts) -> Iterator[Issue]:
    if job_request.target_of(request, inventory) != KUBERNETES:
        return
    if not request.kubernetes_image:
        yield _issue("kubernetes_image", "not set", "name the image of the pods, with its registry")
    storage = request.kubernetes_storage.rstrip("/")
    for path in filter(None, (request.folder, request.checkpoint_folder, *request.data)):
        if not f"{path}/".startswith(f"{storage}/"):
            what = f"{path} is not below {storage}, so pods cannot read it"
            yield _issue("kubernetes_storage", what, "set it to the mount that contains the jobs and their data")
    if inventory.hosts(KUBE_HOSTS):
        yield from _enough(request, len(job_request.kube_nodes(request, inventory)), KUBE_HOSTS)
    if request.gpus_per_node and not job_request.gpu_resource(request, inventory):
        what = "not set, and no host of kube_node has gpu_env_model"
        yield _issue("kubernetes_gpu_resource", what, "set it to amd.com/gpu or nvidia.com/gpu, as the device plugin names it")
    for name in ("hosts", "spares"):
        if getattr(request, name):
            fix = "remove it; workload_kubernetes_node_selector chooses nodes by labels"
            yield _issue(name, "only for the target direct, and this job has the target kubernetes", fix)


def _one_pod_per_node(request: JobRequest, inventory: InventoryFacts) -> Iterator[Issue]:
    """Kueue's topology may put two pods on one node, but a job needs one pod per node: such a job would wait forever."""
    queue, gpus = request.kubernetes_queue, request.gpus_per_node
    if job_request.target_of(request, inventory) != KUBERNETES or not queue or request.nodes == 1:
        return
    counts = {host: inventory.gpus(host) for host in job_request.kube_nodes(request, inventory)}
    larger = [f"{host} has {count}" for host, count in counts.items() if count is not None and count > gpus]
    if larger and _queue_uses_topology(request, inventory):
        what = f"the job uses {gpus} and {larger[0]}; {queue} places pods by a topology, which may put two ranks on one node"
        fix = "use all GPUs of a node, or a queue whose flavor has `topology: false`; a job has one pod per node"
        yield _issue("gpus_per_node", what, fix)


def _queue_uses_topology(request: JobRequest, inventory: InventoryFacts) -> bool:
    """Return whether a queue's flavors place the pods; False for a queue that the inventory does not define.

    A job without a topology level is placed only if no flavor of its queue leaves the placement to the scheduler.
    """
    kueue = next((inventory.hostvars[host] for host in inventory.hosts("kueue") if host in inventory.hostvars), {})
    values = (kueue.get(f"kueue_{name}") for name in ("topology_levels", "local_queues", "cluster_queues", "flavors"))
    levels, local_queues, cluster_queues, flavors = (value if isinstance(value, list) else [] for value in values)
    if not {*levels} - {HOSTNAME}:
        return False
    local = (request.kubernetes_queue, request.kubernetes_namespace)
    cluster_names = {queue["cluster_queue"] for queue in local_queues if (queue["name"], queue["namespace"]) == local}
    quotas = [quota for queue in cluster_queues if queue["name"] in cluster_names for quota in queue.get("quotas") or ()]
    flavor_names = {quota["flavor"] for quota in quotas}
    placing = [flavor.get("topology", True) for flavor in flavors if flavor["name"] in flavor_names]
    return bool(placing) and (any(placing) if request.kubernetes_topology else all(placing))


def _gpus(request: JobRequest, inventory: InventoryFacts) -> Iterator[Issue]:
    gpus, ranks = request.gpus_per_node, request.processes_per_node
    if job_request.target_of(request, inventory) == SLURM or not gpus:
        return
    if ranks > gpus:
        yield _issue("processes_per_node", f"{ranks} processes for {gpus} GPUs", f"use at most {gpus}; 0 means one per GPU")
    for host in (*request.hosts, *request.spares):
        if not inventory.has_gpus(host, gpus):
            what = f"the job needs {gpus}, and {host} has {inventory.gpus(host)} (gpu_env_count)"
            yield _issue("gpus_per_node", what, "use fewer GPUs, or other hosts")
