# ruff: noqa: INP001 (Ansible loads it by path)
"""What becomes of a job's variables: why it cannot be, or the watcher's job.json; for `workload submit` and plain Ansible alike.

The rules of job.json itself are the watcher's own (`primus_bootstrap.launch.watch.job_spec`); here stand those that need the inventory.
"""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.watch import job_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Groups = Mapping[str, Sequence[str]]
    Values = Mapping[str, Any]

WATCHERS, DIRECT_HOSTS, KUBE_HOSTS, SPARES, QUEUES = "primus_watch", "workload_node", "kube_node", "spare", "kueue"
PRESETS = Path(__file__).resolve().parents[3] / "workloads" / "presets"
# The trainer's own limit for a step, and its default: workloads/train/settings.py.
STEP_LIMIT, STEP_LIMIT_S = "watchdog.step_timeout_s", 600.0
# The level that every topology of Kueue's has anyway: roles/kueue
HOSTNAME = "kubernetes.io/hostname"
# Between the user's words and the six digits that make a job's id its own.
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_POLICY = (
    "max_restarts_without_progress",
    "max_restarts",
    "backoff_s",
    "progress_timeout_s",
    "first_step_timeout_s",
    "lost_after_s",
    "lease_s",
    "hosts_timeout_s",
)
# What job.json has of kubernetes under the same word.
_PODS = ("image", "namespace", "form", "storage", "claim", "host_network", "queue", "priority", "topology", "pull_secrets", "shm", "groups")
_MAPPINGS = ("settings", "environment", "kubernetes_resources", "kubernetes_node_selector")
_LISTS = (
    "task",
    "presets",
    "data",
    "cli_options",
    "backoff_s",
    "hosts",
    "spares",
    "order",
    "left_out",
    "slurm_options",
    "kubernetes_tolerations",
    "kubernetes_pull_secrets",
    "kubernetes_env_secrets",
    "kubernetes_groups",
)
# What job.json calls what a variable says, where it is not the same word.
_KEYS = {
    "words": "workload_task",
    "options": "workload_cli_options",
    "checkpoints": "workload_checkpoint_folder",
    "slurm.options": "workload_slurm_options",
    "slurm.partition": "workload_slurm_partition",
    "direct": "workload_hosts",
    "kubernetes.secrets": "workload_kubernetes_env_secrets",
    "kubernetes.": "workload_kubernetes_",
    **{f"policy.{name}": f"workload_{name}" for name in _POLICY},
}


class Finding(NamedTuple):
    """One thing that is wrong: the variable that it is about, what, and how to mend it."""

    about: str
    what: str
    fix: str


def new_id(name: str) -> str:
    """Return an id for a new job of this name."""
    return f"{name}-{secrets.token_hex(3)}"


def findings(job: Values, groups: Groups, hostvars: Mapping[str, Values]) -> list[Finding]:
    """Return all that is wrong with a job on this cluster.

    Args:
        job: every `workload_` variable with its value.
        groups: the inventory's groups with their hosts.
        hostvars: the variables of the hosts of workload_node, kube_node and kueue.
    """
    if found := list(_kinds(job)):
        return found
    rules = (_names, _target, _programs, _limits, _direct_hosts, _pods, _placing, _gpus)
    found = [one for rule in rules for one in rule(job, groups, hostvars)]
    # Of what is known to be wrong, the rest would only follow.
    return found or list(_document_findings(document(job, groups, hostvars)))


def refusals(job: Values, groups: Groups, hostvars: Mapping[str, Values]) -> list[str]:
    """Return a line for everything that is wrong: what, and `Fix:`."""
    return [f"{one.what}. Fix: {one.fix}" for one in findings(job, groups, hostvars)]


def document(job: Values, groups: Groups, hostvars: Mapping[str, Values]) -> dict[str, Any]:
    """Return job.json; the job is one without findings."""
    wanted = target(job, groups)
    made = {
        "schema": job_spec.SCHEMA,
        "id": job["workload_id"] or f"{job['workload_name']}-000000",
        "name": job["workload_name"],
        "user": job["workload_user"],
        "target": wanted,
        "nodes": job["workload_nodes"],
        "gpus_per_node": job["workload_gpus_per_node"],
        "processes_per_node": job["workload_processes_per_node"],
        "words": _words(job),
        "options": [*([f"--venv={job['workload_venv']}"] if job["workload_venv"] else []), *job["workload_cli_options"]],
        "environment": {str(name): _text(value) for name, value in job["workload_environment"].items()},
        "checkpoints": job["workload_checkpoint_folder"],
        "grace_s": job["workload_grace_s"],
        "policy": {name: _plain(job[f"workload_{name}"]) for name in _POLICY},
        **({"left_out": list(job["workload_left_out"])} if job["workload_left_out"] else {}),
    }
    if wanted == job_spec.SLURM:
        return {**made, "slurm": {"partition": job["workload_slurm_partition"], "options": list(job["workload_slurm_options"])}}
    if wanted == job_spec.KUBERNETES:
        return {**made, "kubernetes": _pods_of(job, groups, hostvars)}
    hosts, spares = _chosen(job, groups, hostvars)
    return {**made, "direct": {"hosts": _named(hosts, hostvars), "spares": _named(spares, hostvars)}}


def target(job: Values, groups: Groups) -> str:
    """Return who gives the job its hosts."""
    if job["workload_target"] != "auto":
        return str(job["workload_target"])
    if groups.get("slurm_controller") and groups.get("slurm_node"):
        return job_spec.SLURM
    return job_spec.KUBERNETES if groups.get(KUBE_HOSTS) and not groups.get(DIRECT_HOSTS) else job_spec.DIRECT


def candidates(job: Values, groups: Groups, hostvars: Mapping[str, Values]) -> tuple[list[str], list[str]]:
    """Return the hosts of which a job is given its own, and the spares; none where the inventory does not know the cluster's hosts."""
    wanted = target(job, groups)
    if wanted == job_spec.DIRECT:
        return _chosen(job, groups, hostvars)
    if wanted == job_spec.KUBERNETES:
        nodes = _kube_nodes(job, groups, hostvars)
        spare = _kube_spares(groups)
        return [host for host in nodes if host not in spare], [host for host in nodes if host in spare]
    nodes = _slurm_nodes(job, groups)
    return nodes, [host for host in groups.get("slurm_node") or () if host not in nodes]


def _kinds(job: Values) -> Iterator[Finding]:
    """Yield what is text in place of a mapping or a list: Ansible's `-e name=value` makes it so, and its own check lets it pass."""
    for kind, names, word in ((dict, _MAPPINGS, "a mapping"), (list, _LISTS, "a list")):
        for name in names:
            if not isinstance(job[f"workload_{name}"], kind):
                yield Finding(f"workload_{name}", f"workload_{name} must be {word}", "write it into a file, and give that: -e @job.yml")


def _names(job: Values, _groups: Groups, _hostvars: Mapping[str, Values]) -> Iterator[Finding]:
    name, given = job["workload_name"], job["workload_id"]
    if not _NAME.fullmatch(name):
        yield Finding("workload_name", f"workload_name is {name!r}", "1 to 40 small letters, digits and dashes, a letter first")
    elif given and not (job_spec.JOB_ID.fullmatch(given) and given[:-7] == name):
        yield Finding("workload_id", f"workload_id is {given!r}", f"{name}- and six hexadecimal digits, or nothing for a new job")
    if job["workload_user"] in ("", "root"):
        what = f"workload_user is {job['workload_user']!r}" if job["workload_user"] else "workload_user is not set"
        yield Finding("workload_user", what, "name the account whose job it is, one of users_groups_accounts; jobs of root are not run")


def _target(job: Values, groups: Groups, _hostvars: Mapping[str, Values]) -> Iterator[Finding]:
    watchers = groups.get(WATCHERS) or ()
    if not watchers:
        yield Finding(
            "workload_target", "no host is in the group primus_watch, so nobody would keep the job", "give the group a host, and apply"
        )
        return
    if target(job, groups) != job_spec.SLURM:
        return
    if not groups.get("slurm_node") or not groups.get("slurm_controller"):
        fix = "workload_target: direct, or bring up Slurm"
        yield Finding(
            "workload_target", "workload_target is slurm, and this cluster has no Slurm (groups slurm_controller, slurm_node)", fix
        )
        return
    if watchers[0] not in {*(groups.get("slurm_login") or ()), *groups["slurm_controller"]}:
        what = f"{watchers[0]}, the first host of primus_watch, can submit no job to Slurm"
        yield Finding("workload_target", what, "put it into slurm_login too, or a login host first into primus_watch, and apply")
    yield from _enough(job, len(_slurm_nodes(job, groups)), "slurm_node")


def _slurm_nodes(job: Values, groups: Groups) -> list[str]:
    """Return the nodes that may run a job; spares are for when these are too few. Which nodes another partition has Slurm alone knows."""
    spare = set() if job["workload_slurm_partition"] else set(groups.get(SPARES) or ())
    return [host for host in groups.get("slurm_node") or () if host not in spare]


def _enough(job: Values, there: int, group: str) -> Iterator[Finding]:
    if job["workload_nodes"] > there:
        able = f" with {job['workload_gpus_per_node']} GPUs" if job["workload_gpus_per_node"] else ""
        what = f"workload_nodes is {job['workload_nodes']}, and {group} has {there} host{'s' if there != 1 else ''} for jobs{able}"
        yield Finding("workload_nodes", what, "ask for fewer, or name more hosts")


def _programs(job: Values, _groups: Groups, _hostvars: Mapping[str, Values]) -> Iterator[Finding]:
    known = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    for name in job["workload_presets"]:
        if not name.startswith("/") and name not in known:
            yield Finding(
                "workload_presets", f"workload_presets: there is no preset {name}", f"{did_you_mean(name, known)}, or a whole path"
            )
    given = [name for name in ("presets", "settings", "data", "checkpoint_folder") if job[f"workload_{name}"]]
    if given and list(job["workload_task"][:1]) != ["train"]:
        names = ", ".join(f"workload_{name}" for name in given)
        yield Finding("workload_task", f"the task {' '.join(job['workload_task'])} takes no {names}", "only tasks of train do")
    for key, value in _leaves(job["workload_settings"]):
        if value is None or isinstance(value, dict):
            yield Finding("workload_settings", f"workload_settings: {key} has no value", "give it one, or leave it out")
    for name, key in (("data", "data.files"), ("checkpoint_folder", "checkpoint.folder")):
        if key in dict(_leaves(job["workload_settings"])):
            yield Finding("workload_settings", f"workload_settings: {key} has a variable of its own", f"set workload_{name}")


def _limits(job: Values, _groups: Groups, _hostvars: Mapping[str, Values]) -> Iterator[Finding]:
    """The trainer has the first word on a step that takes too long: it says which rank is stuck, and where; the watcher only stops all."""
    limit_s, patience_s = step_limit_s(job), job["workload_progress_timeout_s"]
    if not limit_s or not patience_s or patience_s > limit_s:
        return
    what = f"workload_progress_timeout_s is {patience_s}, and the trainer's own limit for a step ({STEP_LIMIT}) is {limit_s:g}"
    fix = f"raise it above that, or lower {STEP_LIMIT} in workload_settings: the trainer's message names the rank that hangs"
    yield Finding("workload_progress_timeout_s", what, fix)


def step_limit_s(job: Values) -> float:
    """Return how long the trainer lets a step take, in seconds; 0 where it does not look, or that cannot be known here."""
    if list(job["workload_task"][:1]) != ["train"]:
        return 0.0
    limit: Any = STEP_LIMIT_S
    for name in job["workload_presets"]:
        path = PRESETS / f"{name}.yaml"
        if name.startswith("/"):  # a file of the hosts
            limit = 0.0
        elif path.is_file():
            limit = dict(_leaves(yaml.safe_load(path.read_text(encoding="utf-8")) or {})).get(STEP_LIMIT, limit)
    words = dict(word.partition("=")[::2] for word in map(str, job["workload_task"]))
    limit = {**words, **dict(_leaves(job["workload_settings"]))}.get(STEP_LIMIT, limit)
    try:
        return float(limit)
    except (TypeError, ValueError):
        return 0.0  # the trainer refuses it, by name


def _direct_hosts(job: Values, groups: Groups, hostvars: Mapping[str, Values]) -> Iterator[Finding]:
    if target(job, groups) != job_spec.DIRECT or not groups.get(WATCHERS):
        return
    members = list(groups.get(DIRECT_HOSTS) or ())
    strange = [(name, host) for name in ("hosts", "spares") for host in job[f"workload_{name}"] if host not in members]
    for name, host in strange:
        yield Finding(f"workload_{name}", f"workload_{name}: {host} is no host of workload_node", did_you_mean(host, members or ["none"]))
    if strange:
        return
    hosts, spares = _chosen(job, groups, hostvars)
    yield from _enough(job, len(hosts), "workload_hosts" if job["workload_hosts"] else DIRECT_HOSTS)
    for host in sorted({host for host in hosts + spares if (hosts + spares).count(host) > 1}):
        yield Finding("workload_spares", f"{host} is there twice, in workload_hosts and workload_spares", "name it once")


def _pods(job: Values, groups: Groups, hostvars: Mapping[str, Values]) -> Iterator[Finding]:
    """Yield what speaks against a job of Kubernetes, as far as the inventory knows the cluster."""
    if target(job, groups) != job_spec.KUBERNETES:
        return
    if not job["workload_kubernetes_image"]:
        yield Finding(
            "workload_kubernetes_image", "workload_kubernetes_image is not set", "name the image that the pods run, with its registry"
        )
    storage = job["workload_kubernetes_storage"].rstrip("/")
    outside = [path for path in (job["workload_folder"], job["workload_checkpoint_folder"], *job["workload_data"]) if path]
    for path in [path for path in outside if not f"{path}/".startswith(f"{storage}/")]:
        what = f"{path} is not in {storage} (workload_kubernetes_storage), so pods do not have it"
        yield Finding("workload_kubernetes_storage", what, "name the mount that holds the jobs and what they read")
    if groups.get(KUBE_HOSTS):
        yield from _enough(job, len(_kube_nodes(job, groups, hostvars)), KUBE_HOSTS)
    if job["workload_gpus_per_node"] and not _gpu_resource(job, groups, hostvars):
        what = "workload_kubernetes_gpu_resource is not set, and no host of kube_node has gpu_env_model to tell it by"
        yield Finding("workload_kubernetes_gpu_resource", what, "amd.com/gpu or nvidia.com/gpu, as the device plugin has it")
    for name in ("hosts", "spares"):
        if job[f"workload_{name}"]:
            what = f"workload_{name} is of the target direct, and this job is of kubernetes"
            yield Finding(f"workload_{name}", what, "leave it out; workload_kubernetes_node_selector chooses nodes by labels")


def _placing(job: Values, groups: Groups, hostvars: Mapping[str, Values]) -> Iterator[Finding]:
    """A topology of Kueue's gives each pod its node, and knows nothing of one pod a node: where two find room one would wait for ever."""
    queue, wanted = job["workload_kubernetes_queue"], job["workload_gpus_per_node"]
    if target(job, groups) != job_spec.KUBERNETES or not queue or job["workload_nodes"] == 1:
        return
    known = next((hostvars[host] for host in groups.get(QUEUES) or () if host in hostvars), {})
    counts = {host: hostvars[host].get("gpu_env_count") for host in _kube_nodes(job, groups, hostvars) if host in hostvars}
    larger = [f"{host} has {count}" for host, count in counts.items() if isinstance(count, int) and count > wanted]
    if larger and _placed_by_queue(job, known):
        what = f"workload_gpus_per_node is {wanted} and {larger[0]}; {queue} places pods by a topology, which may put two ranks on one node"
        fix = "ask for whole nodes, or for a queue whose flavor has `topology: false`; a job has one pod a node"
        yield Finding("workload_gpus_per_node", what, fix)


def _placed_by_queue(job: Values, known: Values) -> bool:
    """Tell whether a queue's flavors place pods; of one that the inventory does not state nobody knows.

    A job that asks for no level is placed only where no flavor of its queue leaves that to the scheduler.
    """
    stated = {name: known.get(f"kueue_{name}") for name in ("topology_levels", "local_queues", "cluster_queues", "flavors")}
    levels, local, queues, flavors = (value if isinstance(value, list) else [] for value in stated.values())
    if not {*levels} - {HOSTNAME}:
        return False
    own = (job["workload_kubernetes_queue"], job["workload_kubernetes_namespace"])
    mine = {one["cluster_queue"] for one in local if (one["name"], one["namespace"]) == own}
    named = {quota["flavor"] for one in queues if one["name"] in mine for quota in one.get("quotas") or ()}
    placing = [one.get("topology", True) for one in flavors if one["name"] in named]
    return bool(placing) and (any(placing) if job["workload_kubernetes_topology"] else all(placing))


def _pods_of(job: Values, groups: Groups, hostvars: Mapping[str, Values]) -> dict[str, Any]:
    """Return what job.json says of kubernetes."""
    gpus = {_gpu_resource(job, groups, hostvars): str(job["workload_gpus_per_node"])} if job["workload_gpus_per_node"] else {}
    spares = [host for host in _kube_nodes(job, groups, hostvars) if host in _kube_spares(groups)]
    return {
        **{name: _plain(job[f"workload_kubernetes_{name}"]) for name in _PODS},
        "resources": {**{str(name): str(value) for name, value in job["workload_kubernetes_resources"].items()}, **gpus},
        "node_selector": {str(name): _text(value) for name, value in job["workload_kubernetes_node_selector"].items()},
        "tolerations": [dict(one) for one in job["workload_kubernetes_tolerations"]],
        "secrets": list(job["workload_kubernetes_env_secrets"]),
        **({"spares": spares} if spares else {}),
    }


def _kube_nodes(job: Values, groups: Groups, hostvars: Mapping[str, Values]) -> list[str]:
    return [host for host in groups.get(KUBE_HOSTS) or () if host not in hostvars or _has_gpus(job, hostvars[host])]


def _kube_spares(groups: Groups) -> set[str]:
    return set(groups.get(SPARES) or ())


def _gpu_resource(job: Values, groups: Groups, hostvars: Mapping[str, Values]) -> str:
    """Return what the device plugin calls a GPU: as the job says, else by the model that the nodes have."""
    models = [str(hostvars[host].get("gpu_env_model") or "") for host in groups.get(KUBE_HOSTS) or () if host in hostvars]
    model = next((one for one in models if one not in ("", "auto")), "")
    known = "amd.com/gpu" if model.startswith("MI") else "nvidia.com/gpu"
    return job["workload_kubernetes_gpu_resource"] or (known if model else "")


def _gpus(job: Values, groups: Groups, hostvars: Mapping[str, Values]) -> Iterator[Finding]:
    wanted, ranks = job["workload_gpus_per_node"], job["workload_processes_per_node"]
    if target(job, groups) == job_spec.SLURM or not wanted:
        return
    if ranks > wanted:
        what = f"workload_processes_per_node is {ranks}, and there are {wanted} GPUs for them"
        yield Finding("workload_processes_per_node", what, "at most one a GPU; 0 is one a GPU")
    for host in [*job["workload_hosts"], *job["workload_spares"]]:
        if host in hostvars and not _has_gpus(job, hostvars[host]):
            what = f"workload_gpus_per_node is {wanted}, and {host} has {hostvars[host]['gpu_env_count']} (gpu_env_count)"
            yield Finding("workload_gpus_per_node", what, "ask for fewer, or choose other hosts")


def _document_findings(made: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what the watcher itself would refuse, in the words of the variables."""
    origin = "job"
    try:
        job_spec.read_job(json.dumps(made), origin=origin)
    except UsageError as error:
        for line in error.what.splitlines():
            yield _translated(line.removeprefix(f"{origin}: "), error.fix)


def _translated(problem: str, fix: str) -> Finding:
    for key in sorted(_KEYS, key=len, reverse=True):
        if problem.startswith(key):
            said = f"{_KEYS[key]}{problem.removeprefix(key)}"
            return Finding(re.split(r"[:. \[]", said, maxsplit=1)[0], said, fix)
    name = re.split(r"[:. ]", problem, maxsplit=1)[0]
    return Finding(f"workload_{name}", f"workload_{problem}", fix)


def _words(job: Values) -> list[str]:
    words = [str(word) for word in job["workload_task"]]
    for preset in job["workload_presets"]:
        words += ["--config", preset]
    words += [f"{key}={_text(value)}" for key, value in _leaves(job["workload_settings"])]
    if job["workload_data"]:
        words += ["data.source=files", f"data.files={','.join(job['workload_data'])}"]
    if job["workload_checkpoint_folder"]:
        words.append(f"checkpoint.folder={job['workload_checkpoint_folder']}")
    return words


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by their dotted names, in their order; a section without any stands for itself."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: Any) -> str:
    """Return a value as the trainer and the environment read it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _has_gpus(job: Values, known: Values) -> bool:
    """Tell whether the inventory lets a host have enough GPUs; where it does not say, the host itself does when the job begins."""
    there = known.get("gpu_env_count")
    return not isinstance(there, int) or there >= int(job["workload_gpus_per_node"])


def _chosen(job: Values, groups: Groups, hostvars: Mapping[str, Values]) -> tuple[list[str], list[str]]:
    """Return the hosts of which the watcher chooses, in this order, and those that may take the place of a lost one."""
    members = [host for host in groups.get(DIRECT_HOSTS) or () if host not in hostvars or _has_gpus(job, hostvars[host])]
    spare = set(groups.get(SPARES) or ())
    place = {host: number for number, host in enumerate(job["workload_order"])}
    members.sort(key=lambda host: place.get(host, len(place)))
    hosts = list(job["workload_hosts"]) or [host for host in members if host not in spare]
    spares = list(job["workload_spares"]) or [host for host in members if host in spare and host not in hosts]
    return hosts, spares


def _named(hosts: Iterable[str], hostvars: Mapping[str, Values]) -> list[dict[str, str]]:
    """Return hosts with the address by which their keys are pinned (roles/primus_watch/vars says the same)."""
    found = {host: hostvars[host] for host in hosts}
    return [{"name": host, "address": str(known.get("ip") or known.get("ansible_host") or host)} for host, known in found.items()]


class FilterModule:
    """What Ansible asks for."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "workload_new_id": new_id,
            "workload_refusals": refusals,
            "workload_document": document,
            "workload_target": target,
        }
