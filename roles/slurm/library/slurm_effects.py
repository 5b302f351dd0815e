#!/usr/bin/python
"""Ask Slurm what works: the Ansible module `slurm_effects`, which changes nothing but runs jobs of a few seconds on idle nodes.

On a controller: whether it answers; the leading one also looks at every node and runs the jobs. On a login host: whether it is answered.
On a node, where a run is about nodes alone: whether it is answered, serves, and runs a job.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_ask import CALL_S, OWN, SeenNode, call, parse_nodes
from ansible.module_utils.slurm_trials import Preemption, Trial, gpu_count, idle, job_over_nodes, lanes, pick_pair, preemption_pair

SCHEMA = "primus.verdict/1"
SOURCE = "roles/slurm/meta/argument_specs.yml"
AGAIN = "apply the phase slurm again"
# The state of some ten thousand jobs with their scripts (a few KiB each), twice: slurmctld writes a new file before it drops the old one.
LEAST_FREE_MIB = 256
# What a file system answers that a process still sees after it was taken away.
GONE = frozenset((errno.ENOTCONN, errno.ESTALE, errno.EIO))
# Words of a node's state with which it serves, or will in a moment.
SERVES = frozenset(("IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "RESERVED"))
BROKEN = frozenset(("DOWN", "NOT_RESPONDING", "INVAL", "INVALID_REG", "FAIL", "FAILING", "ERROR"))


class Look:
    """One look; verdicts gather in `verdicts`, for this host or for a node."""

    def __init__(self, host: str) -> None:
        """Keep whose look it is."""
        self.host = host
        self.verdicts: list[dict[str, Any]] = []
        self.started = time.time()

    def judge(self, check: str, trial: Trial, *, host: str = "", reason: str = "") -> None:
        """Record one verdict; its seconds are those since the one before."""
        now = time.time()
        record = {
            "check": f"slurm.{check}",
            "host": host or self.host,
            "verdict": trial.verdict,
            "expected": trial.expected,
            "found": trial.found,
        }
        bad = {} if trial.verdict == "pass" else {"reason": reason or f"expected {trial.expected}, found {trial.found}", "fix": trial.fix}
        seconds = round(now - self.started, 3)
        self.verdicts.append({**record, **bad, "source": SOURCE, "started": self.started, "seconds": seconds, "schema": SCHEMA})
        self.started = now

    def skip(self, check: str, reason: str, *, host: str = "") -> None:
        """Record that something was not looked at, and why."""
        self.judge(check, Trial("skipped", "", "", ""), host=host, reason=reason)


def controllers_up(text: str) -> list[str]:
    """Return the controllers that are up, the leading one first, from what `scontrol ping` prints."""
    return [match[1].partition(".")[0] for match in re.finditer(r"^Slurmctld\([a-z0-9]+\) at (\S+) is UP", text, re.MULTILINE)]


def look_at_controllers(look: Look, part: str) -> bool:
    """See who answers a controller, a login host, or a node that is looked at alone; return whether the rest of the look is its own."""
    controller = part == "controller"
    answer = call(["scontrol", "ping"], CALL_S)
    up = controllers_up(answer.text)
    fix = "see `journalctl -u slurmctld -n 30` and /var/log/slurm/slurmctld.log on the controller, and `systemctl status munge`"
    wanted = f"slurmctld of {look.host} is up" if controller else "a controller answers"
    found = "; ".join(line for line in answer.text.splitlines() if line.startswith("Slurmctld")) or answer.text[:200]
    right = look.host in up if controller else bool(up)
    verdict = "pass" if right else "unknown" if answer.status is None else "fail"
    look.judge("answered" if part == "node" else part, Trial(verdict, wanted, found, fix))
    return right if part == "node" else controller and up[:1] == [look.host]


def root_of_slurmctld() -> str:
    """Return where slurmctld's own view of the file systems begins, as its unit has mounts of its own; empty where it does not run."""
    pid = call(["systemctl", "show", "--property=MainPID", "--value", "slurmctld.service"], CALL_S).text.strip()
    return f"/proc/{pid}/root" if pid.isdecimal() and pid != "0" else ""


def look_at_space(look: Look, folder: str) -> None:
    """See that slurmctld can write its state: a job that is not written down is lost with the next restart."""
    look.judge("state_space", judge_space(folder, root_of_slurmctld()))


def judge_space(folder: str, root: str) -> Trial:
    """Judge the folder of the state as slurmctld sees it below `root`, beside how this host sees it."""
    expected, fix = f"{LEAST_FREE_MIB} MiB free under {folder}", f"make space: `df -h {folder}`; slurmctld goes on by itself"
    blind = "systemctl restart slurmctld, which then sees what is mounted now"
    try:
        mounted, seen = (os.stat(path).st_dev for path in (folder, root + folder))  # noqa: PTH116 (beside statvfs)
        space = os.statvfs(root + folder)
    except OSError as error:
        # A root that may not trace others (a container's) does not get through there: what this host sees has to do.
        if isinstance(error, PermissionError) and root:
            return judge_space(folder, "")
        # A folder that is there for the host and dead for slurmctld: it holds on to a mount that is gone.
        dead = error.errno in GONE and root != "" and str(error.filename).startswith(root)
        return Trial("fail" if dead else "unknown", expected, str(error)[:200], blind if dead else AGAIN)
    if seen != mounted:
        return Trial("fail", expected, f"slurmctld sees another file system at {folder} than this host", blind)
    free_mib = space.f_bavail * space.f_frsize // 2**20
    return Trial("pass" if free_mib >= LEAST_FREE_MIB else "fail", expected, f"{free_mib} MiB free", fix)


def judge_state(node: SeenNode) -> Trial:
    """Judge whether a node serves; one that somebody took out of service on purpose is passed over, one that is not healthy fails."""
    expected, found = "in service", f"{node.state}{': ' + node.reason if node.reason else ''}"
    if node.states & BROKEN:
        fix = "see /var/log/slurm/slurmd.log and `systemctl status slurmd munge` on the node; it serves again when it registers"
        return Trial("fail", expected, found, fix)
    if node.drained:
        fix = f"mend what the reason names; otherwise: scontrol update NodeName={node.name} State=RESUME"
        return Trial("fail" if node.reason.startswith(f"{OWN} health:") else "skipped", expected, found, fix)
    if node.states & SERVES and "UNKNOWN" not in node.states:
        return Trial("pass", expected, found)
    return Trial("unknown", expected, found, "see `scontrol show node` once more in a minute")


def look_at_nodes(look: Look, members: list[str], fragments: Path) -> list[SeenNode]:
    """See every node of the group: whether it serves, and whether it has the GPUs that it was found to have.

    `fragments` is the folder of the nodes' descriptions, or the one description of a node that looks at itself.
    """
    seen = {node.name: node for node in parse_nodes(call(["scontrol", "--oneliner", "show", "nodes"], CALL_S).text)}
    for name in members:
        node = seen.get(name)
        if node is None:
            missing = Trial("unknown", "in service", "Slurm does not know it", f"{AGAIN}: no run has reached {name}")
            look.judge("node", missing, host=name)
            continue
        state = judge_state(node)
        look.judge("node", state, host=name, reason=f"out of service: {node.reason}" if state.verdict == "skipped" else "")
        fragment = fragments / f"{name}.json" if fragments.is_dir() else fragments
        look_at_gpus(look, node, fragment, serves=state.verdict == "pass")
    return [node for name, node in seen.items() if name in members]


def look_at_gpus(look: Look, node: SeenNode, fragment: Path, *, serves: bool) -> None:
    """See that Slurm has the GPUs that the node's description names; a node that does not serve shows nothing."""
    try:
        told = json.loads(fragment.read_text(encoding="utf-8"))
        wanted = f"gpu:{told['gpu_type']}:{told['gpu_count']}" if told["gpu_count"] else ""
    except (OSError, ValueError, KeyError) as error:
        look.judge("gpus", Trial("unknown", "a description", str(error)[:200], AGAIN), host=node.name)
        return
    if not wanted and not node.gpus:
        look.skip("gpus", "the node has no GPU", host=node.name)
        return
    verdict = "fail" if wanted != node.gpus else "pass" if serves else "unknown"
    found = node.gpus or "none"
    look.judge("gpus", Trial(verdict, wanted or "none", found if serves else f"{found}, and it does not serve", AGAIN), host=node.name)


def setting(config: str, name: str) -> str:
    """Return a setting from what `scontrol show config` prints; empty where it is not there."""
    found = re.search(rf"^{name}\s*= *(.*)$", config, re.MULTILINE)
    return found[1].strip() if found else ""


def look_at_isolation(look: Look, private_data: list[str]) -> None:
    """See what keeps users apart: what they see of each other, how many jobs each may have, and whether jobs share temporary files."""
    config = call(["scontrol", "show", "config"], CALL_S).text
    in_force = set(setting(config, "PrivateData").split(","))
    if private_data:
        lacking = sorted(set(private_data) - in_force)
        found = f"PrivateData lacks {', '.join(lacking)}" if lacking else "PrivateData has all of it"
        look.judge(
            "private_data", Trial("fail" if lacking else "pass", f"people do not see others' {', '.join(private_data)}", found, AGAIN)
        )
    else:
        look.skip("private_data", "slurm_private_data is empty")
    if "limits" in setting(config, "AccountingStorageEnforce").split(","):
        look.judge("job_limits", Trial("pass", "limits are enforced", "limits are enforced"))
    else:
        look.skip("job_limits", "no limit of jobs is enforced: it needs group slurm_accounting and slurm_users")
    if setting(config, "JobContainerType") == "job_container/tmpfs":
        look.judge("private_tmp", Trial("pass", "folders of their own for temporary files", "job_container/tmpfs"))
    else:
        look.skip(
            "private_tmp",
            "jobs share folders for temporary files: their own need control groups and Slurm 23.02; the epilog cleans up instead",
        )


def look_at_jobs(look: Look, nodes: list[SeenNode]) -> None:
    """Run a job over two nodes, and one that is preempted."""
    config = call(["scontrol", "show", "config"], CALL_S).text
    bound = re.search(r"^AccountingStorageEnforce\s*=.*associations", config, re.MULTILINE) is not None
    partitions, closed = lanes(bound=bound)
    pair = pick_pair(nodes, partitions)
    if pair is None:
        for check in ("job", "preemption"):
            if idle(nodes):
                look.judge(check, no_partition(closed))
            else:
                look.skip(check, "no node is idle: jobs run on them, or they are out of service")
        return
    look.judge("job", job_over_nodes(*pair))
    by = re.search(r"^PreemptType\s*=\s*(\S+)", config, re.MULTILINE)
    kind = by[1] if by else ""
    told = (
        call(["sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name,preempt"], CALL_S).text if kind == "preempt/qos" else ""
    )
    qos = [(name, losers) for name, _, losers in (line.partition("|") for line in told.splitlines())]
    sides = preemption_pair(partitions, qos, kind)
    if sides is None:
        look.skip("preemption", "no partition's tier and no QOS lets one job preempt another")
        return
    low, high = sides
    both = [node for node in idle(nodes) if node.name in low.nodes & high.nodes]
    if not both:
        look.skip("preemption", f"no idle node is in {low.name} and {high.name}")
        return
    look.judge("preemption", Preemption(min(both, key=gpu_count).name).run(low, high))


def no_partition(closed: list[str]) -> Trial:
    """Return that nothing is known of jobs: nodes are idle, and no partition that has them takes a job of the verification."""
    found = f"no partition with idle nodes takes a job of root: {'; '.join(closed[:5]) or 'Slurm names none'}"
    return Trial("unknown", "a job that runs", found, "run a job as one of the cluster's users, or state slurm_verify_jobs: false")


def main() -> None:
    """Read the arguments, look, and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "part": {"type": "str", "required": True, "choices": ["controller", "login", "node"]},
            "members": {"type": "list", "elements": "str", "required": True},
            "fragments": {"type": "path", "required": True},
            "jobs": {"type": "bool", "required": True},
            "state_dir": {"type": "path"},
            "private_data": {"type": "list", "elements": "str", "default": []},
        },
        required_if=[("part", "controller", ["state_dir"])],
        supports_check_mode=True,
    )
    wanted = module.params
    look = Look(wanted["host"])
    if wanted["part"] == "controller":
        look_at_space(look, wanted["state_dir"])
    if look_at_controllers(look, wanted["part"]):
        if wanted["part"] == "controller":
            look_at_isolation(look, wanted["private_data"])
        nodes = look_at_nodes(look, wanted["members"], Path(wanted["fragments"]))
        if wanted["jobs"]:
            look_at_jobs(look, nodes)
        else:
            look.skip("job", "slurm_verify_jobs is false")
    result = {"changed": False, "verdicts": look.verdicts, "stdout": json.dumps({"verdicts": look.verdicts})}
    failed = [f"{one['host']} {one['check']}: {one['reason']}. Fix: {one['fix']}" for one in look.verdicts if one["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
