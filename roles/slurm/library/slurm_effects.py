#!/usr/bin/python
"""Ansible module `slurm_effects`: verify Slurm. It runs test jobs of a few seconds on idle nodes and changes nothing.

No collection has a module for it. Every controller is checked; the primary also checks all nodes and runs the test jobs. Login hosts, and
nodes in runs without their controllers, check that a controller answers; such a node also checks itself and runs a test job.
"""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.proof_record import ProofRecord, fingerprint
from ansible.module_utils.slurm_commands import CALL_S, REASON_PREFIX, NodeState, call, parse_nodes
from ansible.module_utils.slurm_test_jobs import (
    CONTROL_FILES,
    CheckResult,
    PreemptionTest,
    find_partitions,
    gpu_count,
    idle,
    pick_pair,
    preemption_pair,
    run_multi_node_job,
    run_user_job,
)
from ansible.module_utils.verdict_records import Verdicts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible.module_utils.slurm_test_jobs import Partition

APPLY_AGAIN = "apply the phase slurm again"
TESTS = ("job", "user_gpus", "preemption")
# About ten thousand jobs with their scripts (a few KiB each), twice: slurmctld writes a new file before it removes the old one.
MIN_FREE_MIB = 256
# Errors of a file system that was unmounted while a process still uses it.
LOST_MOUNT_ERRNOS = frozenset((errno.ENOTCONN, errno.ESTALE, errno.EIO))
# States of nodes that are in service, or will be in a moment.
IN_SERVICE = frozenset(("IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "RESERVED"))
BROKEN = frozenset(("DOWN", "NOT_RESPONDING", "INVAL", "INVALID_REG", "FAIL", "FAILING", "ERROR"))


def controllers_up(text: str) -> list[str]:
    """Return the controllers that are up, the primary first, from the output of `scontrol ping`."""
    return [match[1].partition(".")[0] for match in re.finditer(r"^Slurmctld\([a-z0-9]+\) at (\S+) is UP", text, re.MULTILINE)]


def check_controllers(verdicts: Verdicts, part: str) -> bool:
    """Check that this controller is up, or that a controller answers this host; return whether this host runs the other checks."""
    controller = part == "controller"
    answer = call(["scontrol", "ping"], CALL_S)
    up = controllers_up(answer.text)
    fix = "see `journalctl -u slurmctld -n 30` and /var/log/slurm/slurmctld.log on the controller, and `systemctl status munge`"
    expected = f"slurmctld of {verdicts.host} is up" if controller else "a controller answers"
    found = "; ".join(line for line in answer.text.splitlines() if line.startswith("Slurmctld")) or answer.text[:200]
    passed = verdicts.host in up if controller else bool(up)
    verdict = "pass" if passed else "unknown" if answer.status is None else "fail"
    verdicts.add("answered" if part == "node" else part, verdict, expected=expected, found=found, fix=fix)
    return passed if part == "node" else controller and up[:1] == [verdicts.host]


def slurmctld_root() -> str:
    """Return the root folder in the mount namespace of slurmctld; empty if it does not run."""
    pid = call(["systemctl", "show", "--property=MainPID", "--value", "slurmctld.service"], CALL_S).text.strip()
    return f"/proc/{pid}/root" if pid.isdecimal() and pid != "0" else ""


def add_space_verdict(verdicts: Verdicts, folder: str) -> None:
    """Check that slurmctld has space for its state: jobs that it cannot save are lost at the next restart."""
    verdicts.add("state_space", **check_space(folder, slurmctld_root())._asdict())


def check_space(folder: str, root: str) -> CheckResult:
    """Check the state folder in the mount namespace of slurmctld (below `root`), and compare it with that of the host."""
    expected, fix = f"{MIN_FREE_MIB} MiB free under {folder}", f"free space, see `df -h {folder}`; slurmctld continues by itself"
    restart = "run `systemctl restart slurmctld`, so that it uses the current mount"
    try:
        mounted, seen = (os.stat(path).st_dev for path in (folder, root + folder))  # noqa: PTH116 (beside statvfs)
        space = os.statvfs(root + folder)
    except OSError as error:
        # Root in a container may not be allowed to read /proc/PID/root: check the folder of the host instead.
        if isinstance(error, PermissionError) and root:
            return check_space(folder, "")
        # The folder works for the host but not for slurmctld: slurmctld still uses a previous mount.
        dead = error.errno in LOST_MOUNT_ERRNOS and root != "" and str(error.filename).startswith(root)
        return CheckResult("fail" if dead else "unknown", expected, str(error)[:200], restart if dead else APPLY_AGAIN)
    if seen != mounted:
        return CheckResult("fail", expected, f"slurmctld sees another file system at {folder} than this host", restart)
    free_mib = space.f_bavail * space.f_frsize // 2**20
    return CheckResult("pass" if free_mib >= MIN_FREE_MIB else "fail", expected, f"{free_mib} MiB free", fix)


def check_state(node: NodeState) -> CheckResult:
    """Check that a node is in service. A node that was drained on purpose is skipped; an unhealthy one fails."""
    expected, found = "in service", f"{node.state}{': ' + node.reason if node.reason else ''}"
    if node.states & BROKEN:
        fix = "see /var/log/slurm/slurmd.log and `systemctl status slurmd munge` on the node; it returns to service when it registers"
        return CheckResult("fail", expected, found, fix)
    if node.drained:
        fix = f"correct what the reason names, then run: scontrol update NodeName={node.name} State=RESUME"
        return CheckResult("fail" if node.reason.startswith(f"{REASON_PREFIX} health:") else "skipped", expected, found, fix)
    if node.states & IN_SERVICE and "UNKNOWN" not in node.states:
        return CheckResult("pass", expected, found)
    return CheckResult("unknown", expected, found, f"run `scontrol show node {node.name}` again in a minute")


def check_nodes(verdicts: Verdicts, members: list[str], descriptions: Path, answering: Sequence[str] = ()) -> list[NodeState]:
    """Check that every node of the group is in service and has its GPUs.

    `descriptions` is the folder of the node descriptions, or the description of the node on which this runs. `answering` are the hosts
    that the run has reached, if it is known: that another one is down in Slurm is not the fault of this host.
    """
    seen = {node.name: node for node in parse_nodes(call(["scontrol", "--oneliner", "show", "nodes"], CALL_S).text)}
    for name in members:
        node = seen.get(name)
        if node is None:
            fix = f"{APPLY_AGAIN}: no run has configured {name}"
            verdicts.add("node", "unknown", expected="in service", found="Slurm does not know it", fix=fix, host=name)
            continue
        state = check_state(node)
        reason = f"out of service: {node.reason}" if state.verdict == "skipped" else ""
        if state.verdict == "fail" and answering and name not in answering:
            state, reason = state._replace(verdict="unknown", fix=""), f"this run did not reach the host ({state.found})"
        verdicts.add("node", **state._asdict(), host=name, reason=reason)
        description = descriptions / f"{name}.json" if descriptions.is_dir() else descriptions
        check_gpus(verdicts, node, description, in_service=state.verdict == "pass")
    return [node for name, node in seen.items() if name in members]


def check_gpus(verdicts: Verdicts, node: NodeState, description: Path, *, in_service: bool) -> None:
    """Check that Slurm has the GPUs of the description of the node; unknown if the node is not in service."""
    try:
        data = json.loads(description.read_text(encoding="utf-8"))
        expected = f"gpu:{data['gpu_type']}:{data['gpu_count']}" if data["gpu_count"] else ""
    except (OSError, ValueError, KeyError) as error:
        verdicts.add("gpus", "unknown", expected="a description", found=str(error)[:200], fix=APPLY_AGAIN, host=node.name)
        return
    if not expected and not node.gpus:
        verdicts.skip("gpus", "the node has no GPU", host=node.name)
        return
    verdict = "fail" if expected != node.gpus else "pass" if in_service else "unknown"
    found = f"{node.gpus or 'none'}{'' if in_service else ', and it is not in service'}"
    fix = APPLY_AGAIN if verdict == "fail" else "bring the node into service: see its check `node`"
    verdicts.add("gpus", verdict, expected=expected or "none", found=found, fix=fix, host=node.name)


class UserTest(NamedTuple):
    """Who opens which GPUs in a test job: ordinary users who may have jobs, and the folder or file of the node descriptions.

    `missing` is the reason why there is no such user.
    """

    users: Sequence[str]
    descriptions: Path
    missing: str = "users_groups_accounts has no account without sudo_rules"

    def device_files(self, names: Sequence[str]) -> list[str]:
        """Return the device files of the nodes' GPUs, each once; none for a node without a readable description."""
        found: dict[str, None] = {}
        for name in names:
            path = self.descriptions / f"{name}.json" if self.descriptions.is_dir() else self.descriptions
            try:
                data = json.loads(path.read_text(encoding="utf-8"))
                files = [*data["gpu_files"], *CONTROL_FILES.get(data["gpu_vendor"], ())]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            found.update(dict.fromkeys(files))
        return list(found)


def user_test(accounts: Sequence[str], users: Sequence[str], descriptions: Path) -> UserTest:
    """Return the test for ordinary accounts. If Slurm has users (slurm_users), the account must be one of them."""
    allowed = [name for name in accounts if not users or name in users]
    if accounts and not allowed:
        return UserTest(allowed, descriptions, "slurm_users has no account of users_groups_accounts without sudo_rules")
    return UserTest(allowed, descriptions)


def setting(config: str, name: str) -> str:
    """Return a setting from the output of `scontrol show config`; empty if it is missing."""
    found = re.search(rf"^{name}\s*= *(.*)$", config, re.MULTILINE)
    return found[1].strip() if found else ""


def check_confinement(verdicts: Verdicts, config: str, descriptions: Sequence[Path]) -> None:
    """Check that jobs are confined to their cores, memory and GPUs. A cluster that accepts less than that is unknown: a warning."""
    tracking, tasks = setting(config, "ProctrackType"), setting(config, "TaskPlugin")
    expected, found = "jobs are confined to their cores, memory and GPUs", f"{tracking or 'no ProctrackType'}, {tasks or 'no TaskPlugin'}"
    if tracking == "proctrack/cgroup" and "task/cgroup" in tasks.split(","):
        verdicts.add("confinement", "pass", expected=expected, found=found)
    elif descriptions and all(is_container(path) for path in descriptions):
        verdicts.skip("confinement", "the nodes are containers without control groups of their own", expected=expected)
    else:
        reason = f"a job can use GPUs, cores and memory of other jobs: {found}"
        fix = (
            "install a Slurm with a plug-in for the hosts' cgroups, remove slurm_proctrack and slurm_task_plugins, and apply; until then, "
        )
        fix += "set `exclusive: true` in slurm_partitions"
        verdicts.add("confinement", "unknown", expected=expected, found=found, reason=reason, fix=fix)


def is_container(description: Path) -> bool:
    """Return whether the description of a node says that it is a container; false if it cannot be read."""
    try:
        return bool(json.loads(description.read_text(encoding="utf-8")).get("container", False))
    except (OSError, ValueError, AttributeError):
        return False


def check_isolation(verdicts: Verdicts, private_data: list[str], descriptions: Sequence[Path]) -> None:
    """Check the limits of jobs, PrivateData, the job limits of users, and the private temporary folders of jobs."""
    config = call(["scontrol", "show", "config"], CALL_S).text
    check_confinement(verdicts, config, descriptions)
    in_force = set(setting(config, "PrivateData").split(","))
    if private_data:
        lacking = sorted(set(private_data) - in_force)
        found = f"PrivateData lacks {', '.join(lacking)}" if lacking else "PrivateData has all of it"
        expected = f"users do not see {', '.join(private_data)} of others"
        verdicts.add("private_data", "fail" if lacking else "pass", expected=expected, found=found, fix=APPLY_AGAIN)
    else:
        verdicts.skip("private_data", "slurm_private_data is empty")
    if "limits" in setting(config, "AccountingStorageEnforce").split(","):
        verdicts.add("job_limits", "pass", expected="limits are enforced", found="limits are enforced")
    else:
        verdicts.skip("job_limits", "no job limits are enforced: they need the group slurm_accounting and slurm_users")
    if setting(config, "JobContainerType") == "job_container/tmpfs":
        verdicts.add("private_tmp", "pass", expected="private temporary folders for each job", found="job_container/tmpfs")
    else:
        verdicts.skip(
            "private_tmp",
            "jobs share temporary folders: private ones need cgroups and Slurm 23.02; the epilog cleans up instead",
        )


def check_jobs(verdicts: Verdicts, nodes: list[NodeState], checks: Sequence[str], users: UserTest) -> None:
    """Run those of the tests in `checks`: `job` on two nodes, `user_gpus` as an ordinary user, and `preemption`."""
    config = call(["scontrol", "show", "config"], CALL_S).text
    bound = re.search(r"^AccountingStorageEnforce\s*=.*associations", config, re.MULTILINE) is not None
    partitions, closed = find_partitions(bound=bound)
    pair = pick_pair(nodes, partitions)
    if pair is None:
        for check in checks:
            if idle(nodes):
                verdicts.add(check, **no_usable_partition(closed)._asdict())
            else:
                verdicts.skip(check, "no node is idle: all run jobs or are out of service")
        return
    if "job" in checks:
        verdicts.add("job", **run_multi_node_job(*pair)._asdict())
    if "user_gpus" in checks:
        check_user_gpus(verdicts, pair, users)
    if "preemption" in checks:
        check_preemption(verdicts, nodes, partitions, config)


def check_user_gpus(verdicts: Verdicts, pair: tuple[Partition, list[NodeState]], test: UserTest) -> None:
    """Run a job of an ordinary user that opens the GPUs, if there are both."""
    partition, nodes = pair
    files = test.device_files([node.name for node in nodes]) if gpu_count(nodes[0]) else []
    if files and test.users:
        verdicts.add("user_gpus", **run_user_job(partition, nodes, test.users[0], files)._asdict())
    else:
        verdicts.skip("user_gpus", test.missing if files else "no idle node has GPUs with device files")


def check_preemption(verdicts: Verdicts, nodes: list[NodeState], partitions: Sequence[Partition], config: str) -> None:
    """Run a job that is preempted, if the configuration allows preemption. `config` is the output of `scontrol show config`."""
    by = re.search(r"^PreemptType\s*=\s*(\S+)", config, re.MULTILINE)
    kind = by[1] if by else ""
    shown = (
        call(["sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name,preempt"], CALL_S).text if kind == "preempt/qos" else ""
    )
    qos = [(name, losers) for name, _, losers in (line.partition("|") for line in shown.splitlines())]
    sides = preemption_pair(partitions, qos, kind)
    if sides is None:
        verdicts.skip("preemption", "no partition tier and no QOS allows preemption")
        return
    low, high = sides
    both = [node for node in idle(nodes) if node.name in low.nodes & high.nodes]
    if not both:
        verdicts.skip("preemption", f"no idle node is in {low.name} and {high.name}")
        return
    verdicts.add("preemption", **PreemptionTest(min(both, key=gpu_count).name).run(low, high)._asdict())


def prove_jobs(verdicts: Verdicts, nodes: list[NodeState], proofs: Mapping[str, ProofRecord], users: UserTest) -> None:
    """Report each proof that still holds, and run the tests of the others. `proofs` has one for each test."""
    kept = {check: proof.load() for check, proof in proofs.items()}
    verdicts.records += [verdict for verdict in kept.values() if verdict]
    due = [check for check, verdict in kept.items() if not verdict]
    before = len(verdicts.records)
    if due:
        check_jobs(verdicts, nodes, due, users)
    for verdict in verdicts.records[before:]:
        proofs[verdict["check"].removeprefix("slurm.")].store(verdict)


def job_fingerprint(config_dir: Path, nodes: list[NodeState]) -> str:
    """Return what the test jobs depend on: configuration, starts of the daemons, and the nodes with GPUs, service state and boot."""
    facts = (f"{node.name} {node.gpus} {bool(node.states & IN_SERVICE)} {node.booted}" for node in sorted(nodes))
    return fingerprint(config_dir.glob("*.conf"), ("slurmctld.service", "slurmd.service", "munge.service"), facts)


def no_usable_partition(closed: list[str]) -> CheckResult:
    """Return the result for idle nodes that no partition allows a test job to use."""
    found = f"no partition with idle nodes accepts a job of root: {'; '.join(closed[:5]) or 'Slurm has no partition'}"
    return CheckResult("unknown", "a job that runs", found, "run a job as a user of the cluster, or set slurm_verify_jobs: false")


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "part": {"type": "str", "required": True, "choices": ["controller", "login", "node"]},
            "nodes": {"type": "list", "elements": "str", "required": True},
            "answering": {"type": "list", "elements": "str", "default": []},
            "descriptions": {"type": "path", "required": True},
            "run_jobs": {"type": "bool", "required": True},
            "max_age_h": {"type": "int", "required": True},
            "config_dir": {"type": "path", "required": True},
            "state_dir": {"type": "path"},
            "private_data": {"type": "list", "elements": "str", "default": []},
            "accounts": {"type": "list", "elements": "str", "default": []},
            "users": {"type": "list", "elements": "str", "default": []},
        },
        required_if=[("part", "controller", ["state_dir"])],
        supports_check_mode=True,
    )
    options = module.params
    verdicts = Verdicts("slurm", options["host"])
    if options["part"] == "controller":
        add_space_verdict(verdicts, options["state_dir"])
    if check_controllers(verdicts, options["part"]):
        if options["part"] == "controller":
            nodes_of = [Path(options["descriptions"], f"{name}.json") for name in options["nodes"]]
            check_isolation(verdicts, options["private_data"], nodes_of)
        nodes = check_nodes(verdicts, options["nodes"], Path(options["descriptions"]), options["answering"])
        if options["run_jobs"]:
            current = job_fingerprint(Path(options["config_dir"]), nodes)
            tests = {check: ProofRecord(f"slurm.{check}", current, options["max_age_h"]) for check in TESTS}
            prove_jobs(verdicts, nodes, tests, user_test(options["accounts"], options["users"], Path(options["descriptions"])))
        else:
            verdicts.skip("job", "slurm_verify_jobs is false")
    verdicts.finish(module)


if __name__ == "__main__":
    main()
