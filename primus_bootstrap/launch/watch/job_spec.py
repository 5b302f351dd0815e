"""The content of job.json: one training job. It is written once, at submission, and checked as a whole before use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.structured import NOT_EMPTY, Constraint, Issue, at_least, matching, read, readable
from primus_bootstrap.launch.untrusted import parse_json
from primus_bootstrap.launch.watch.job_spec_kubernetes import Kubernetes

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = "primus.job/1"
DIRECT, SLURM, KUBERNETES = "direct", "slurm", "kubernetes"
TARGETS = (DIRECT, SLURM, KUBERNETES)
# Schedulers that choose the hosts instead of the watcher.
PLATFORMS = {SLURM: "Slurm", KUBERNETES: "Kubernetes"}
JOB_ID = re.compile(r"[a-z][a-z0-9-]{0,39}-[0-9a-f]{6}")
# Keys of earlier releases. The broker alone decides how hosts and API servers are reached.
_OLD_KEYS = ("direct.ssh", "kubernetes.kubeconfig")
# The watcher sets these options for each attempt.
_WATCHER_OPTIONS = ("--nnodes", "--node-rank", "--master-addr", "--master-port", "--nproc", "--nodes-from", "--output", "--grace")
_WATCHER_SLURM_OPTIONS = (
    "--nodes", "--ntasks", "--ntasks-per-node", "--job-name", "--comment", "--exclude", "--output", "--open-mode", "--requeue",
    "--no-requeue", "--parsable", "--gpus-per-node", "--partition", "--array", "--wrap", "--wait",
)  # fmt: skip
_WATCHER_SLURM_SHORT_OPTIONS = ("-N", "-n", "-J", "-x", "-o", "-p", "-a", "-W")


def _no_nul(value: str) -> bool:
    return "\0" not in value


def _number(minimum: int) -> Constraint:
    return at_least(minimum, 10**9)


Text = Annotated[str, Constraint("text without NUL characters", _no_nul)]
HostName = Annotated[str, matching(re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*"), "a host name")]
Address = Annotated[str, matching(re.compile(r"[A-Za-z0-9:][A-Za-z0-9:._%-]*"), "an address")]
Account = Annotated[str, matching(re.compile(r"[a-z_][a-z0-9_-]*\$?"), "the name of an account")]
VariableName = Annotated[str, matching(re.compile(r"[A-Za-z_]\w*"), "a variable name of letters, digits and _")]
AbsolutePath = Annotated[Text, Constraint("an absolute path or an empty text", lambda value: value.startswith("/") or not value)]
TargetName = Annotated[str, Constraint(f"one of {', '.join(TARGETS)}", TARGETS.__contains__)]
Count = Annotated[int, _number(0)]
PluginName = Annotated[
    str, matching(re.compile(r"(?:[A-Za-z0-9_-][\w.-]*/)*[A-Za-z0-9_-][\w.-]*\.py"), "a path of a .py file below a folder")
]


@readable
@dataclass(frozen=True)
class Host:
    """A host: its name in the inventory, and the address at which other hosts reach it."""

    name: HostName
    address: Address


@readable
@dataclass(frozen=True)
class Policy:
    """When the watcher restarts a job, and when it gives up. Times are in seconds."""

    max_restarts_without_progress: Count = 3  # restarts in a row without a new step
    max_restarts: Count = 0  # restarts in total; 0: no limit
    # Pause before the first, second, … restart without progress; the last value applies to all further restarts.
    backoff_s: Annotated[tuple[Count, ...], NOT_EMPTY] = (0, 10, 30, 60, 120, 300)
    progress_timeout_s: Count = 600  # longest time between two steps; 0: no limit
    first_step_timeout_s: Count = 1800  # longest time before the first step of an attempt; 0: no limit
    # Time without an answer after which a node counts as lost. Until then its state is unknown.
    lost_after_s: Annotated[int, _number(5)] = 20
    settle_s: Count = 10  # time that the other nodes get to end by themselves after one launcher has failed
    # A node that cannot read its lease for this long ends its launcher. The next attempt waits for that.
    lease_s: Annotated[int, _number(5)] = 15
    hosts_timeout_s: Annotated[int, _number(1)] = 3600  # longest time to wait for enough hosts


@readable
@dataclass(frozen=True)
class Direct:
    """The block `direct`: hosts of workload_node, and spares that replace lost hosts."""

    hosts: tuple[Host, ...] = ()
    spares: tuple[Host, ...] = ()

    def issues(self) -> Iterator[Issue]:
        """Check that names and addresses are unique."""
        hosts = (*self.hosts, *self.spares)
        for label, values in (("name", [host.name for host in hosts]), ("address", [host.address for host in hosts])):
            for value in sorted({value for value in values if values.count(value) > 1}):
                yield Issue("", f"the {label} {value!r} occurs more than once", "name each host once")


@readable
@dataclass(frozen=True)
class Slurm:
    """The block `slurm`: a partition (empty: Slurm's default) and more options of sbatch."""

    partition: Text = ""
    options: tuple[Text, ...] = ()

    def issues(self) -> Iterator[Issue]:
        """Check that no option contradicts one of the watcher's."""
        for word in self.options:
            if word.partition("=")[0] in _WATCHER_SLURM_OPTIONS or word.startswith(_WATCHER_SLURM_SHORT_OPTIONS):
                yield Issue("options", f"the watcher sets {word} itself", f"remove {word}")
            elif not word.startswith("-"):
                yield Issue("options", f"{word!r} is not an option", "write --option=value as one entry")


@readable
@dataclass(frozen=True)
class ExcludedHost:
    """A host that was out of service at submission, and the reason. The watcher treats it like any excluded host."""

    host: HostName
    reason: Text


@readable
@dataclass(frozen=True)
class Job:
    """A job, as in job.json."""

    id: Annotated[str, matching(JOB_ID, "a job id: the name, a dash and six hexadecimal digits")]
    name: Text
    user: Account
    target: TargetName  # which scheduler starts the attempts, one of TARGETS
    nodes: Annotated[int, _number(1)]
    words: Annotated[tuple[Text, ...], Constraint("a task", bool)]  # the task of primus-cli and its arguments
    created: Text = ""  # written by earlier releases
    gpus_per_node: Count = 0  # GPUs on each host
    processes_per_node: Count = 0  # ranks on each host; 0: one per GPU
    options: tuple[Text, ...] = ()  # more options of `primus-cli direct`
    plugins: Mapping[PluginName, Text] = field(default_factory=dict)  # the files of plug-ins with tasks, and their content
    environment: Mapping[VariableName, Text] = field(default_factory=dict)  # environment variables of the ranks
    checkpoints: AbsolutePath = ""  # folder of the checkpoints; empty: the trainer's default in the run folder
    grace_s: Annotated[int, _number(1)] = 120
    policy: Policy = field(default_factory=Policy)
    direct: Direct = field(default_factory=Direct)
    slurm: Slurm = field(default_factory=Slurm)
    kubernetes: Kubernetes | None = None
    left_out: tuple[ExcludedHost, ...] = ()  # hosts that were out of service at submission

    @property
    def processes(self) -> int:
        """Number of processes per node; 0: primus-cli decides."""
        return self.processes_per_node or self.gpus_per_node

    @property
    def pods(self) -> Kubernetes:
        """The settings of a Kubernetes job.

        Raises:
            ValueError: The job has another target.
        """
        if self.kubernetes is None:
            raise ValueError(f"{self.id} is a job of {self.target}")
        return self.kubernetes

    @property
    def platform(self) -> str:
        """Name of the scheduler that chooses the hosts; empty if the watcher does."""
        return PLATFORMS.get(self.target, "")

    def unit(self, attempt: int) -> str:
        """Return the name of an attempt's systemd unit (without .service) and Slurm job."""
        return f"primus-job-{self.id}-{attempt}"

    def issues(self) -> Iterator[Issue]:
        """Check fields against each other."""
        for word in self.options:
            if word.replace("_", "-").partition("=")[0] in _WATCHER_OPTIONS or word == "--":
                yield Issue("options", f"the watcher sets {word} itself", f"remove {word}")
        blocks = {DIRECT: self.direct != Direct(), SLURM: self.slurm != Slurm(), KUBERNETES: self.kubernetes is not None}
        for name, is_given in blocks.items():
            if is_given and name != self.target:
                yield Issue(name, f"the target is {self.target}", f"remove {name}, or set target: {name}")
        if self.target == KUBERNETES and self.kubernetes is None:
            yield Issue(KUBERNETES, "missing", "add kubernetes with image and namespace")
        hosts = len(self.direct.hosts) + len(self.direct.spares)
        if self.target == DIRECT and hosts < self.nodes:
            yield Issue(
                DIRECT, f"the job needs {self.nodes} hosts, and direct names {hosts} with spares", "name more hosts, or lower nodes"
            )

    def request(self) -> Job:
        """Return the part that the user chose: a repeated submission may find other hosts in service, in another order."""
        hosts, spares = (tuple(sorted(hosts, key=lambda host: host.name)) for hosts in (self.direct.hosts, self.direct.spares))
        return replace(self, left_out=(), direct=replace(self.direct, hosts=hosts, spares=spares))

    def to_json(self) -> dict[str, Any]:
        """Return the content of job.json. Keys that earlier releases may not know are written only if they are used."""
        data = {"schema": SCHEMA, **json.loads(json.dumps(asdict(self)))}  # asdict keeps tuples
        unused = [name for name in TARGETS if name != self.target]
        unused += [name for name in ("created", "left_out", "plugins") if not data[name]]
        for name in unused:
            del data[name]
        if self.policy.settle_s == Policy.settle_s:
            del data["policy"]["settle_s"]
        if self.target == KUBERNETES:
            data[KUBERNETES]["tolerations"] = [toleration.to_json() for toleration in self.pods.tolerations]
            if not self.pods.spares:
                del data[KUBERNETES]["spares"]
        return data


def parse_job(data: Any, *, origin: str) -> Job:
    """Read a job from plain data.

    Raises:
        InvalidDataError: With all mistakes.
    """
    return read(Job, data, origin=origin, schema=SCHEMA, ignored=_OLD_KEYS)


def read_job(text: str, *, origin: str) -> Job:
    """Read a job from the text of job.json.

    Raises:
        UsageError: The text is not JSON, or the job has mistakes; all are reported.
    """
    try:
        data = parse_json(text)
    except ValueError as error:
        raise UsageError(f"{origin}: not JSON: {error}", fix="write it with `primus-bootstrap workload submit hosts.yaml JOB`") from error
    return parse_job(data, origin=origin)
