"""job.json: what a job is. Written once when it is submitted, checked as a whole, never changed afterwards."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.untrusted import parse_json
from primus_bootstrap.launch.watch.job_spec_kubernetes import Kubernetes, read_kubernetes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

SCHEMA = "primus.job/1"
DIRECT, SLURM, KUBERNETES = "direct", "slurm", "kubernetes"
TARGETS = (DIRECT, SLURM, KUBERNETES)
# Who chooses hosts in place of the watcher, by the name that people know.
PLATFORMS = {SLURM: "Slurm", KUBERNETES: "Kubernetes"}
JOB_ID = re.compile(r"[a-z][a-z0-9-]{0,39}-[0-9a-f]{6}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9:._%-]*")
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]*\$?")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
# Given by the watcher, for each attempt anew.
_OWN_OPTIONS = ("--nnodes", "--node-rank", "--master-addr", "--master-port", "--nproc", "--nodes-from", "--output", "--grace")
_OWN_SLURM = (
    "--nodes", "--ntasks", "--ntasks-per-node", "--job-name", "--comment", "--exclude", "--output", "--open-mode", "--requeue",
    "--no-requeue", "--parsable", "--gpus-per-node", "--partition", "--array", "--wrap", "--wait",
)  # fmt: skip
_OWN_SLURM_SHORT = ("-N", "-n", "-J", "-x", "-o", "-p", "-a", "-W")


@dataclass(frozen=True)
class Host:
    """A host by its name in the inventory and the address that other hosts reach it by."""

    name: str
    address: str

    def to_json(self) -> dict[str, str]:
        """Return it as plain data."""
        return {"name": self.name, "address": self.address}


@dataclass(frozen=True)
class Policy:
    """When to start again, and when to give up; `_s` are seconds.

    `max_restarts_without_progress` counts from the moment the step last moved forward; `max_restarts` in all, 0 means no limit. `backoff_s`
    is the pause before the first, second, … restart without progress, the last one for all further. `progress_timeout_s` is the longest
    time between two steps, `first_step_timeout_s` that before the first one of an attempt, 0 switches either off. A node that does not
    answer is unknown for `lost_after_s`, then lost. When one node's launcher has failed, the others have `settle_s` to end by themselves
    and to say why. A node that cannot read its lease on the shared storage for `lease_s` ends what it runs; the next attempt waits for it.
    `hosts_timeout_s` is how long the job waits for enough hosts.
    """

    max_restarts_without_progress: int = 3
    max_restarts: int = 0
    backoff_s: tuple[int, ...] = (0, 10, 30, 60, 120, 300)
    progress_timeout_s: int = 600
    first_step_timeout_s: int = 1800
    lost_after_s: int = 20
    settle_s: int = 10
    lease_s: int = 15
    hosts_timeout_s: int = 3600


@dataclass(frozen=True)
class Direct:
    """Hosts of workload_node; spares take the place of hosts that are lost. How they are reached is the broker's affair."""

    hosts: tuple[Host, ...] = ()
    spares: tuple[Host, ...] = ()


@dataclass(frozen=True)
class Slurm:
    """A partition (empty: Slurm's default) and further options of sbatch."""

    partition: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeftOut:
    """A host that was out of service when the job was submitted, and why; it comes back as other excluded hosts do."""

    host: str
    reason: str


@dataclass(frozen=True)
class Job:
    """What job.json says. `processes_per_node` 0 means one a GPU; `checkpoints` empty means the trainer's default in the run folder."""

    id: str
    name: str
    user: str
    target: str
    nodes: int
    words: tuple[str, ...]
    created: str = ""
    gpus_per_node: int = 0
    processes_per_node: int = 0
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    checkpoints: str = ""
    grace_s: int = 120
    policy: Policy = field(default_factory=Policy)
    direct: Direct = field(default_factory=Direct)
    slurm: Slurm = field(default_factory=Slurm)
    kubernetes: Kubernetes | None = None
    left_out: tuple[LeftOut, ...] = ()

    @property
    def processes(self) -> int:
        """Processes on a node; 0 leaves it to primus-cli."""
        return self.processes_per_node or self.gpus_per_node

    def unit(self, attempt: int) -> str:
        """Return the name of an attempt's systemd unit (without .service) and Slurm job."""
        return f"primus-job-{self.id}-{attempt}"

    @property
    def pods(self) -> Kubernetes:
        """What the pods of a job of Kubernetes have.

        Raises:
            ValueError: It is a job of another target.
        """
        if self.kubernetes is None:
            raise ValueError(f"{self.id} is a job of {self.target}")
        return self.kubernetes

    @property
    def platform(self) -> str:
        """Who chooses its hosts; empty where the watcher does."""
        return PLATFORMS.get(self.target, "")

    def asked_for(self) -> Job:
        """Return it as its user asked for it: a submission that is repeated finds other hosts in service, and in another order."""
        hosts, spares = (tuple(sorted(each, key=lambda host: host.name)) for each in (self.direct.hosts, self.direct.spares))
        return replace(self, left_out=(), direct=replace(self.direct, hosts=hosts, spares=spares))


def read_job(text: str, *, origin: str) -> Job:
    """Read a job.

    Raises:
        UsageError: Something in it is wrong; all that is wrong is said.
    """
    try:
        data = parse_json(text)
    except ValueError as error:
        raise UsageError(f"{origin}: this is no JSON: {error}", fix="write it again by `primus-bootstrap workload submit`") from error
    reader = _Reader()
    job = _job(reader, data)
    if reader.problems:
        what = "\n".join(f"{origin}: {problem}" for problem in reader.problems)
        raise UsageError(what, fix="correct what is named, and submit the job again")
    return job


class _Reader:
    """Takes typed values out of plain data and keeps every problem."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def table(self, data: Any, where: str, known: Iterable[str]) -> dict[str, Any]:
        if not isinstance(data, dict):
            self.problems.append(f"{where or 'the job'} is no table of keys")
            return {}
        choices = tuple(known)
        for key in data:
            if key not in choices:
                self.problems.append(f"{_path(where, str(key))}: there is no such key; {did_you_mean(str(key), choices)}")
        return {str(key): value for key, value in data.items()}

    def text(self, data: Mapping[str, Any], where: str, key: str, *, pattern: re.Pattern[str] | None = None, default: str = "") -> str:
        value = data.get(key, default)
        if not isinstance(value, str) or "\0" in value or (pattern and not pattern.fullmatch(value)):
            shape = f" like {pattern.pattern}" if pattern else ""
            self.problems.append(f"{_path(where, key)}: {value!r} is no text{shape}")
            return default
        return value

    def number(self, data: Mapping[str, Any], where: str, key: str, *, least: int, default: int = 0, most: int = 10**9) -> int:  # noqa: PLR0913
        value = data.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.problems.append(f"{_path(where, key)}: {value!r} is no whole number from {least} on")
            return default
        return value

    def words(self, data: Mapping[str, Any], where: str, key: str) -> tuple[str, ...]:
        value = data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(word, str) and "\0" not in word for word in value):
            self.problems.append(f"{_path(where, key)}: {value!r} is no list of texts")
            return ()
        return tuple(value)

    def refuse(self, words: Iterable[str], where: str, own: Callable[[str], bool]) -> None:
        for word in words:
            if own(word):
                self.problems.append(f"{where}: {word} is given by the watcher")


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _job(reader: _Reader, raw: Any) -> Job:
    data = reader.table(raw, "", ("schema", *Job.__dataclass_fields__))
    if data.get("schema") != SCHEMA:
        reader.problems.append(f"schema: {data.get('schema')!r}; this program reads {SCHEMA}")
    job = Job(
        id=reader.text(data, "", "id", pattern=JOB_ID),
        name=reader.text(data, "", "name"),
        user=reader.text(data, "", "user", pattern=_ACCOUNT),
        created=reader.text(data, "", "created"),
        target=reader.text(data, "", "target", pattern=re.compile("|".join(TARGETS))),
        nodes=reader.number(data, "", "nodes", default=0, least=1),
        gpus_per_node=reader.number(data, "", "gpus_per_node", default=0, least=0),
        processes_per_node=reader.number(data, "", "processes_per_node", default=0, least=0),
        words=reader.words(data, "", "words"),
        options=reader.words(data, "", "options"),
        environment=_environment(reader, data),
        checkpoints=reader.text(data, "", "checkpoints"),
        grace_s=reader.number(data, "", "grace_s", default=Job.grace_s, least=1),
        policy=_policy(reader, data.get("policy", {})),
        direct=_direct(reader, data.get("direct", {})),
        slurm=_slurm(reader, data.get("slurm", {})),
        kubernetes=read_kubernetes(reader, data.get(KUBERNETES, {})) if data.get("target") == KUBERNETES else None,
        left_out=_left_out(reader, data),
    )
    if not job.words:
        reader.problems.append("words: there is no task")
    if job.checkpoints and not job.checkpoints.startswith("/"):
        reader.problems.append(f"checkpoints: {job.checkpoints!r} is no absolute path")
    reader.refuse(job.options, "options", lambda word: word.replace("_", "-").partition("=")[0] in _OWN_OPTIONS or word == "--")
    for other in TARGETS:
        if other != job.target and other in data:
            reader.problems.append(f"{other}: the target is {job.target}")
    if job.target == DIRECT:
        _check_hosts(reader, job)
    return job


def _environment(reader: _Reader, data: Mapping[str, Any]) -> Mapping[str, str]:
    found = data.get("environment", {})
    if not isinstance(found, dict):
        reader.problems.append("environment is no table of texts")
        return {}
    for name, value in found.items():
        if not _VARIABLE.fullmatch(str(name)) or not isinstance(value, str) or "\0" in value:
            reader.problems.append(f"environment.{name}: needs a name of letters, digits and _, and a text")
    return {str(name): str(value) for name, value in found.items()}


def _policy(reader: _Reader, raw: Any) -> Policy:
    known = Policy.__dataclass_fields__
    data = reader.table(raw, "policy", known)
    least = {"lost_after_s": 5, "lease_s": 5, "hosts_timeout_s": 1}
    default = Policy()
    numbers = {
        key: reader.number(data, "policy", key, default=getattr(default, key), least=least.get(key, 0))
        for key in known
        if key != "backoff_s"
    }
    pauses = data.get("backoff_s", list(default.backoff_s))
    if not isinstance(pauses, list) or not pauses or not all(isinstance(item, int) and item >= 0 for item in pauses):
        reader.problems.append(f"policy.backoff_s: {pauses!r} is no list of seconds")
        pauses = list(default.backoff_s)
    return Policy(**numbers, backoff_s=tuple(pauses))


def _direct(reader: _Reader, raw: Any) -> Direct:
    # Jobs of earlier releases carry `ssh`: it is read over, since a job's file must not say with which key hosts are reached.
    data = reader.table(raw, "direct", (*Direct.__dataclass_fields__, "ssh"))
    return Direct(hosts=_hosts(reader, data, "hosts"), spares=_hosts(reader, data, "spares"))


def _hosts(reader: _Reader, data: Mapping[str, Any], key: str) -> tuple[Host, ...]:
    found = data.get(key, [])
    if not isinstance(found, list):
        reader.problems.append(f"direct.{key} is no list of hosts")
        return ()
    hosts = []
    for number, item in enumerate(found):
        where = f"direct.{key}[{number}]"
        table = reader.table(item, where, Host.__dataclass_fields__)
        hosts.append(Host(reader.text(table, where, "name", pattern=_HOST), reader.text(table, where, "address", pattern=_ADDRESS)))
    return tuple(hosts)


def _left_out(reader: _Reader, data: Mapping[str, Any]) -> tuple[LeftOut, ...]:
    found = data.get("left_out", [])
    if not isinstance(found, list):
        reader.problems.append("left_out is no list of hosts")
        return ()
    hosts = []
    for number, item in enumerate(found):
        where = f"left_out[{number}]"
        table = reader.table(item, where, LeftOut.__dataclass_fields__)
        hosts.append(LeftOut(reader.text(table, where, "host", pattern=_HOST), reader.text(table, where, "reason")))
    return tuple(hosts)


def _check_hosts(reader: _Reader, job: Job) -> None:
    everybody = (*job.direct.hosts, *job.direct.spares)
    for what, values in (("name", [host.name for host in everybody]), ("address", [host.address for host in everybody])):
        reader.problems += [
            f"direct: the {what} {value!r} is there more than once" for value in sorted(set(values)) if values.count(value) > 1
        ]
    if len(everybody) < job.nodes:
        reader.problems.append(f"direct: {job.nodes} nodes are wanted, and there are {len(everybody)} hosts with spares")


def _slurm(reader: _Reader, raw: Any) -> Slurm:
    data = reader.table(raw, "slurm", Slurm.__dataclass_fields__)
    options = reader.words(data, "slurm", "options")
    reader.refuse(options, "slurm.options", lambda word: word.partition("=")[0] in _OWN_SLURM or word.startswith(_OWN_SLURM_SHORT))
    reader.problems += [f"slurm.options: {word!r}: write --option=value" for word in options if not word.startswith("-")]
    return Slurm(reader.text(data, "slurm", "partition"), options)
