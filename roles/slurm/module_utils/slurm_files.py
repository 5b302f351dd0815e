# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Generate the configuration files of Slurm from settings and node descriptions. The same input gives the same text.

Sources: slurm.conf(5), gres.conf(5), cgroup.conf(5) and topology.conf(5) of Slurm 22.05 and 24.11, https://slurm.schedmd.com/archive/.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from ansible.module_utils.slurm_host_lists import Fleet, add_spare_partition, compress, select_nodes
from ansible.module_utils.slurm_nodes import Node, gres_conf, topology_conf

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HEADER = "# Ansible managed: role slurm of primus-bootstrap. Manual changes are overwritten.\n"
# slurmctld 22.05 does not start without a node ("no nodes configured"). A FUTURE node is not shown.
NO_NODE = "NodeName=absent State=FUTURE\n"
# Keys that slurmctld rereads; slurm.conf(5), "SlurmctldParameters". All others require a restart, during which jobs continue.
RECONFIGURED = frozenset(
    (
        *("epilog", "healthcheckinterval", "healthchecknodestate", "healthcheckprogram", "killwait", "partitionname", "prolog"),
        *("propagateresourcelimitsexcept", "requeueexit", "returntoservice", "slurmctldtimeout", "slurmdtimeout", "taskprolog"),
    )
)
# Keys that slurmd reads only at its start.
NODE_KEYS = frozenset(
    (
        *("authtype", "communicationparameters", "credtype", "grestypes", "jobacctgathertype", "mpidefault", "proctracktype"),
        *("slurmdparameters", "jobcontainertype", "prologflags", "slurmdport", "slurmdspooldir", "slurmuser", "taskplugin"),
    )
)
# Defaults of jobs that request no CPUs or memory, for the cluster and for partitions: slurm.conf(5). Without them, a job with eight GPUs
# gets one core and its memory, because Slurm allocates one CPU per task. `scontrol` shows them as JobDefaults, which is not a key of
# slurm.conf.
CPUS_PER_GPU, MEMORY_PER_CPU = "DefCpuPerGPU", "DefMemPerCPU"
# First release with `Shared` in job_container.conf. Without it, a job with a private /tmp does not see file systems that are mounted after
# its start, such as a remounted /jfs: "Set root filesystem" in src/plugins/job_container/tmpfs of github.com/SchedMD/slurm.
SHARED_MOUNTS = (23, 2)
PRIVATE_TMP = "JobContainerType=job_container/tmpfs\n"
PARTITION_KEYS = {
    "allow_accounts": "AllowAccounts",
    "allow_groups": "AllowGroups",
    "allow_qos": "AllowQos",
    "default_time": "DefaultTime",
    "exclusive": "OverSubscribe",
    "grace_time_s": "GraceTime",
    "max_nodes": "MaxNodes",
    "max_time": "MaxTime",
    "preempt_mode": "PreemptMode",
    "priority_tier": "PriorityTier",
    "qos": "QOS",
    "state": "State",
}


def digest(text: str) -> str:
    """Return the SHA-256 digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def value(given: Any) -> str:
    """Return a value in the syntax of slurm.conf."""
    if isinstance(given, bool):
        return "YES" if given else "NO"
    return ",".join(str(one) for one in given) if isinstance(given, (list, tuple)) else str(given)


def preemption(partitions: Sequence[Mapping[str, Any]], qos: Sequence[Mapping[str, Any]]) -> str:
    """Return the preemption plug-in: by QOS if one preempts another, else by the tiers of partitions; empty if there is only one tier."""
    if any(one.get("preempt") for one in qos):
        return "preempt/qos"
    tiers = {one.get("priority_tier", 1) for one in partitions}
    return "preempt/partition_prio" if len(tiers) > 1 else ""


def tracking(nodes: Sequence[Node], *, proctrack: str, task_plugins: str, private_tmp: bool = False) -> dict[str, str]:
    """Return the settings that track and confine processes: as set, else with cgroups if every node supports them."""
    able = bool(nodes) and all(node.cgroup for node in nodes)
    by = proctrack if proctrack != "auto" else "proctrack/cgroup" if able else "proctrack/linuxproc"
    tasks = task_plugins if task_plugins != "auto" else "task/cgroup,task/affinity" if by == "proctrack/cgroup" and able else ""
    # pam_slurm_adopt finds jobs by the step that Contain adds. This works without cgroups too (checked with 22.05 and 24.11).
    lines = {"ProctrackType": by, "PrologFlags": "Contain"}
    shares_mounts = bool(nodes) and all(_number(node.release) >= SHARED_MOUNTS for node in nodes)
    lines |= {"JobContainerType": "job_container/tmpfs"} if private_tmp and by == "proctrack/cgroup" and shares_mounts else {}
    lines |= {"TaskPlugin": tasks} if tasks else {}
    if "task/cgroup" not in tasks:
        return lines
    # Only cgroups limit the memory of a job. Without them, memory is not allocated.
    share = memory_per_cpu(nodes)
    return {**lines, "SelectTypeParameters": "CR_Core_Memory", **({MEMORY_PER_CPU: str(share)} if share else {})}


def memory_per_cpu(nodes: Sequence[Node]) -> int:
    """Return the memory per CPU in MiB, the minimum of these nodes."""
    return min((node.memory_mib // node.cpus for node in nodes), default=0)


def cpus_per_gpu(nodes: Sequence[Node]) -> int:
    """Return the CPUs per GPU, the minimum of these nodes; 0 without GPUs, or with fewer cores than GPUs.

    Cores are not split between jobs, so that eight jobs with one GPU each fit on the node.
    """
    shares = []
    for node in nodes:
        if node.gpu_count:
            threads = max(1, node.cpus // max(1, node.sockets * node.cores_per_socket))
            shares.append(node.cpus // threads // node.gpu_count * threads)
    return min(shares, default=0)


def partition_shares(nodes: Sequence[Node], lines: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """Return the CPU and memory shares of a partition's nodes that differ from those of the cluster.

    Args:
        nodes: The nodes of the partition.
        lines: The settings of the cluster.
        keys: Keys that hosts.yaml sets for the cluster or for this partition; they win.
    """
    # DefMemPerCPU, DefMemPerGPU and DefMemPerNode exclude each other.
    used = " ".join(keys).lower()
    shares = {} if CPUS_PER_GPU.lower() in used else {CPUS_PER_GPU: cpus_per_gpu(nodes)}
    shares |= {MEMORY_PER_CPU: memory_per_cpu(nodes)} if MEMORY_PER_CPU in lines and "defmemper" not in used else {}
    return {key: str(share) for key, share in shares.items() if share and str(share) != lines.get(key)}


def slurm_conf(settings: Mapping[str, Any], nodes: Sequence[Node], fleet: Fleet) -> str:
    """Return slurm.conf. Nodes without a description are left out."""
    partitions = add_spare_partition(settings["partitions"], fleet)
    lines = {**_cluster(settings), **_scheduling(settings, nodes, partitions), **_accounting(settings, nodes)}
    lines = _with_extra(lines, settings["extra"])
    text = "".join(f"{key}={content}\n" for key, content in lines.items())
    hosts = "".join(f"SlurmctldHost={one['name']}({one['address']})\n" for one in settings["controllers"])
    known = {node.name: node for node in nodes}
    described = "".join(f"{node.line(spare=node.name in fleet.spare)}\n" for node in nodes) or NO_NODE
    parts = "".join(_partition(one, fleet, known, lines, settings["extra"]) for one in partitions)
    return "\n".join([HEADER + hosts + text, described, parts])


def _cluster(settings: Mapping[str, Any]) -> dict[str, str]:
    settings_by_key = {
        "ClusterName": settings["cluster_name"],
        "AuthType": "auth/munge",
        "SlurmUser": settings["slurm_user"],
        "SlurmctldPort": settings["slurmctld_port"],
        "SlurmdPort": settings["slurmd_port"],
        "SlurmctldParameters": "enable_configless",
        "StateSaveLocation": settings["state_dir"],
        "SlurmdSpoolDir": settings["spool_dir"],
        "SlurmctldPidFile": "/run/primus-slurmctld/slurmctld.pid",
        "SlurmdPidFile": "/run/primus-slurmd/slurmd.pid",
        "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
        "SlurmdLogFile": "/var/log/slurm/slurmd.log",
        "SlurmctldTimeout": settings["slurmctld_timeout_s"],
        "SlurmdTimeout": settings["slurmd_timeout_s"],
        "ReturnToService": settings["return_to_service"],
        "Epilog": settings["epilog"],
        "TaskProlog": settings["task_prolog"],
        "RequeueExit": settings["requeue_exit"],
        "KillWait": settings["kill_wait_s"],
        # RDMA needs locked memory. A job gets the limit of slurmd, and not that of the shell or cron job that submits it.
        "PropagateResourceLimitsExcept": "" if _sets(settings["extra"], "PropagateResourceLimits") else "MEMLOCK",
        "SrunPortRange": settings["srun_port_range"],
        "CommunicationParameters": "NoCtldInAddrAny,NoInAddrAny" if settings["bind_own_address"] else "",
        "PrivateData": settings["private_data"],
    }
    if settings["health_check"]:
        settings_by_key["HealthCheckProgram"] = settings["health_check"]["program"]
        settings_by_key["HealthCheckInterval"] = settings["health_check"]["interval_s"]
        settings_by_key["HealthCheckNodeState"] = "ANY"
    return {key: value(given) for key, given in settings_by_key.items() if given not in ("", [])}


def _scheduling(settings: Mapping[str, Any], nodes: Sequence[Node], partitions: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    lines = {
        "JobRequeue": "1",
        "SchedulerType": "sched/backfill",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "PriorityType": "priority/multifactor",
        "PriorityWeightPartition": "1000",
    }
    lines |= (
        {"PriorityWeightQOS": "10000", "PriorityWeightAge": "1000", "PriorityWeightFairshare": "1000"} if settings["accounting"] else {}
    )
    lines |= tracking(nodes, **{name: settings[name] for name in ("proctrack", "task_plugins", "private_tmp")})
    lines |= {} if settings["select_parameters"] == "auto" else {"SelectTypeParameters": settings["select_parameters"]}
    lines |= {"SlurmdParameters": "config_overrides"} if any(node.stated_size for node in nodes) else {}
    lines |= {"GresTypes": "gpu"} if any(node.gpu_count for node in nodes) else {}
    lines |= {CPUS_PER_GPU: str(share)} if (share := cpus_per_gpu(nodes)) else {}
    lines |= {"TopologyPlugin": "topology/tree"} if topology(settings, nodes) else {}
    by = preemption(partitions, settings["qos"])
    return {**lines, "PreemptType": by, "PreemptMode": "REQUEUE"} if by else lines


def _accounting(settings: Mapping[str, Any], nodes: Sequence[Node]) -> dict[str, str]:
    database = settings["accounting"]
    if not database:
        return {}
    lines = {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": database["address"],
        "AccountingStoragePort": str(database["port"]),
    }
    tasks = tracking(nodes, proctrack=settings["proctrack"], task_plugins=settings["task_plugins"]).get("TaskPlugin", "")
    lines["JobAcctGatherType"] = "jobacct_gather/cgroup" if "task/cgroup" in tasks else "jobacct_gather/linux"
    kinds = sorted({node.gpu_type for node in nodes if node.gpu_count})
    lines |= {"AccountingStorageTRES": ",".join(["gres/gpu", *(f"gres/gpu:{kind}" for kind in kinds)])} if kinds else {}
    return {**lines, "AccountingStorageEnforce": "associations,limits,qos"} if settings["users"] else lines


def _sets(extra: Mapping[str, Any], key: str) -> bool:
    """Return whether slurm_extra_conf has a key, ignoring case. Slurm rejects some pairs of keys."""
    return key.lower() in (given.lower() for given in extra)


def _with_extra(lines: Mapping[str, str], extra: Mapping[str, Any]) -> dict[str, str]:
    """Add slurm_extra_conf. A key replaces the same key of the role, ignoring case."""
    existing = {key.lower(): key for key in lines}
    added = {existing.get(key.lower(), key): value(given) for key, given in extra.items()}
    return {**lines, **dict(sorted(added.items()))}


def _partition(one: Mapping[str, Any], fleet: Fleet, known: Mapping[str, Node], lines: Mapping[str, str], site: Mapping[str, Any]) -> str:
    names = [name for name in select_nodes(one.get("nodes", "all"), fleet).nodes if name in known]
    words = [f"PartitionName={one['name']}", f"Nodes={compress(names)}" if names else ""]
    words.append(f"Default={value(bool(one.get('default', False)))}")
    options = {**one, "exclusive": "EXCLUSIVE" if one.get("exclusive") else None}
    options |= {name: str(one[name]).upper() for name in ("preempt_mode", "state") if one.get(name)}
    words += [f"{key}={value(options[name])}" for name, key in PARTITION_KEYS.items() if options.get(name) not in (None, "", [])]
    extra = one.get("extra") or {}
    words += [f"{key}={share}" for key, share in partition_shares([known[name] for name in names], lines, [*site, *extra]).items()]
    words += [f"{key}={value(given)}" for key, given in sorted(extra.items())]
    return " ".join(word for word in words if word) + "\n"


def topology(settings: Mapping[str, Any], nodes: Sequence[Node]) -> str:
    """Return topology.conf; empty if slurm_topology is none, or hosts.yaml states neither switches nor racks."""
    return topology_conf(nodes) if settings["topology"] == "auto" else ""


def cgroup_conf(conf: str, nodes: Sequence[Node]) -> str:
    """Return cgroup.conf for this slurm.conf: the constraints of jobs, or that cgroups are disabled."""
    if "ProctrackType=proctrack/cgroup\n" in conf:
        return "ConstrainCores=yes\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"
    # CgroupPlugin=disabled exists since 23.02. Before it, cgroups are used only by plug-ins that need them.
    modern = bool(nodes) and all(_number(node.release) >= (23, 2) for node in nodes)
    return "CgroupPlugin=disabled\n" if modern else ""


def job_container_conf(conf: str, spool_dir: str) -> str:
    """Return job_container.conf for this slurm.conf: the folder of the private /tmp of jobs. /dev/shm is private too.

    Source: job_container.conf(5) of Slurm 24.11.
    """
    return f"AutoBasePath=true\nBasePath={spool_dir}/job_container\nShared=true\n" if PRIVATE_TMP in conf else ""


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part.isdigit())


def all_files(settings: Mapping[str, Any], nodes: Sequence[Node], fleet: Fleet) -> dict[str, str]:
    """Return every file by name. An empty text means that the file must not exist.

    Raises:
        ValueError: Ranges or switches are invalid.
    """
    conf = slurm_conf(settings, nodes, fleet)
    others = {"gres.conf": gres_conf(nodes), "topology.conf": topology(settings, nodes), "cgroup.conf": cgroup_conf(conf, nodes)}
    others["job_container.conf"] = job_container_conf(conf, settings["spool_dir"])
    files = {"slurm.conf": conf, **{name: HEADER + text if text else "" for name, text in others.items()}}
    digests = f"# primus restart_digest={restart_digest(files)} node_digest={node_digest(files)}\n"
    return {**files, "slurm.conf": HEADER + digests + conf.removeprefix(HEADER)}


def _keyed(conf: str, *, only: frozenset[str] = frozenset(), without: frozenset[str] = frozenset()) -> str:
    """Return the lines of slurm.conf whose key is in `only` and not in `without`."""
    lines = [line for line in conf.splitlines() if line and not line.startswith("#")]
    keys = [(line.partition("=")[0].lower(), line) for line in lines]
    return "\n".join(line for key, line in keys if (not only or key in only) and key not in without)


def restart_digest(files: Mapping[str, str]) -> str:
    """Return a digest of everything that slurmctld reads only at its start."""
    return digest(_keyed(files["slurm.conf"], without=RECONFIGURED) + files["topology.conf"])


def node_digest(files: Mapping[str, str]) -> str:
    """Return a digest of everything that slurmd reads only at its start. Adding and removing other nodes does not change it."""
    return digest(_keyed(files["slurm.conf"], only=NODE_KEYS) + files["cgroup.conf"] + files["job_container.conf"])
