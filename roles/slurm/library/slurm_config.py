#!/usr/bin/python
"""Ansible module `slurm_config`: generate Slurm's configuration on a controller from the node descriptions.

No collection has a module for it. It writes slurm.conf, gres.conf, topology.conf, cgroup.conf and job_container.conf atomically, and
returns what is needed to apply them: `action` is none, reconfigure or restart (of slurmctld); `restart_nodes` is whether slurmd must be
restarted on all nodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.atomic_files import write_atomic
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_checks import problems
from ansible.module_utils.slurm_commands import call
from ansible.module_utils.slurm_files import PRIVATE_TMP, all_files, node_digest, restart_digest
from ansible.module_utils.slurm_host_lists import Fleet
from ansible.module_utils.slurm_nodes import read_fragments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible.module_utils.slurm_commands import Caller
    from ansible.module_utils.slurm_nodes import Node

MODE = 0o644
CALL_S = 15.0
# States of jobs that may still start a step on a node: squeue(1), "JOB STATE CODES".
RUNNING_STATES = "configuring,running,suspended,stopped,signaling,resizing,completing"


def read_files(folder: Path, names: Mapping[str, str]) -> dict[str, str]:
    """Return the current files; a missing one is empty."""
    return {name: (folder / name).read_text(encoding="utf-8") if (folder / name).is_file() else "" for name in names}


def write_file(path: Path, text: str) -> None:
    """Replace a file atomically; remove it if the text is empty."""
    if text:
        write_atomic(path, text, mode=MODE)
    else:
        path.unlink(missing_ok=True)


def required_action(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return what makes slurmctld use the new files: none, reconfigure or restart."""
    if before == after:
        return "none"
    return "restart" if restart_digest(before) != restart_digest(after) else "reconfigure"


def lost_isolation(before: str, after: str, nodes: Sequence[Node]) -> str:
    """Return an error if the cluster would silently stop using cgroups to isolate jobs; empty otherwise.

    One new node without usable cgroups would remove the limits on cores, memory and GPUs from all jobs of the cluster.
    """
    by_groups = "ProctrackType=proctrack/cgroup\n"
    weak = [f"{node.name} ({node.cgroup_reason or 'no reason known'})" for node in nodes if not node.cgroup]
    if by_groups not in before or by_groups in after or not weak:
        return ""
    more = f" and {len(weak) - 3} more" if len(weak) > 3 else ""
    return (
        f"the cluster isolates jobs with cgroups, which these nodes do not support: {', '.join(weak[:3])}{more}. "
        "Fix: enable cgroups there, or remove the nodes from slurm_node, or set slurm_proctrack: proctrack/linuxproc, "
        "which does not limit jobs to their cores, memory and GPUs"
    )


def missing_isolation(nodes: Sequence[Node], proctrack: str = "auto") -> str:
    """Return an error if hosts cannot isolate jobs; empty otherwise.

    Containers are exempt, unless `proctrack` is proctrack/cgroup. proctrack/linuxproc accepts all hosts.
    """
    forced = proctrack == "proctrack/cgroup"
    weak = [
        f"{node.name} ({node.cgroup_reason or 'no reason known'})"
        for node in nodes
        if not node.cgroup and (forced or not node.container) and proctrack != "proctrack/linuxproc"
    ]
    if not weak:
        return ""
    more = f" and {len(weak) - 3} more" if len(weak) > 3 else ""
    harm = "slurmd would not start there" if forced else "jobs could use GPUs, cores and memory of other jobs and leave processes behind"
    return (
        f"Slurm cannot use cgroups on {', '.join(weak[:3])}{more}, so {harm}. "
        "Fix: install a Slurm with a plug-in for the cgroup version of the host (Ubuntu 22.04 has none for version 2), "
        "or accept it with slurm_proctrack: proctrack/linuxproc"
    )


def has_running_jobs(caller: Caller = call) -> bool:
    """Return whether a job is running, or may be because no controller answers."""
    answer = caller(["squeue", "--noheader", f"--states={RUNNING_STATES}", "--format=%A"], CALL_S)
    return answer.status != 0 or bool(answer.text)


def keep_private_tmp(settings: Mapping[str, Any], before: str, after: str, caller: Caller = call) -> Mapping[str, Any]:
    """Return the settings, with the current `private_tmp` if jobs are running.

    A change breaks running jobs: their next step fails with "container_p_join: open failed". job_container.conf(5), NOTES.
    """
    if not before or (PRIVATE_TMP in before) == (PRIVATE_TMP in after) or not has_running_jobs(caller):
        return settings
    return {**settings, "private_tmp": PRIVATE_TMP in before}


def apply(folder: Path, after: Mapping[str, str], *, check: bool) -> dict[str, Any]:
    """Write the files that differ; return the result for Ansible."""
    before = read_files(folder, after)
    differing = [name for name in after if before[name] != after[name]]
    if not check:
        for name in differing:
            write_file(folder / name, after[name])
    return {
        "changed": bool(differing),
        "action": required_action(before, after),
        "restart_nodes": bool(before["slurm.conf"]) and node_digest(before) != node_digest(after),
        "restart_digest": restart_digest(after),
        "node_digest": node_digest(after),
        "diff": [
            {"before_header": str(folder / name), "after_header": str(folder / name), "before": before[name], "after": after[name]}
            for name in differing
        ],
    }


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        {
            "folder": {"type": "path", "default": "/etc/slurm"},
            "descriptions": {"type": "path", "default": "/etc/slurm/nodes.d"},
            "nodes": {"type": "list", "elements": "str", "required": True},
            "settings": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    settings = module.params["settings"]
    names = module.params["nodes"]
    found = problems(settings, names)
    if found:
        module.fail_json(msg="\n".join(f"{one['what']}. Fix: {one['fix']}" for one in found))
    fleet = Fleet(tuple(names), settings["groups"], tuple(settings["spare"]))
    fragments = read_fragments(Path(module.params["descriptions"]), names)
    folder = Path(module.params["folder"])
    try:
        files = all_files(settings, fragments.nodes, fleet)
        applicable = keep_private_tmp(settings, read_files(folder, files)["slurm.conf"], files["slurm.conf"])
        if applicable != settings:
            files = all_files(applicable, fragments.nodes, fleet)
            module.warn("Jobs are running, so slurm_private_tmp is not applied yet. Fix: apply the phase slurm again when no job runs")
        if settings["proctrack"] == "auto" and (
            lost := lost_isolation(read_files(folder, files)["slurm.conf"], files["slurm.conf"], fragments.nodes)
        ):
            module.fail_json(msg=lost)
        if weak := missing_isolation(fragments.nodes, settings["proctrack"]):
            module.fail_json(msg=weak)
        result = apply(folder, files, check=module.check_mode)
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"the configuration of Slurm cannot be written: {error}. Fix: correct that and apply the phase slurm again")
    module.exit_json(nodes=[node.name for node in fragments.nodes], left_out=fragments.left_out, **result)


if __name__ == "__main__":
    main()
