#!/usr/bin/python
"""Make Slurm's configuration on a controller from the nodes' fragments: the Ansible module `slurm_config`.

It writes slurm.conf, gres.conf, topology.conf, cgroup.conf and job_container.conf, each in one step, and says what makes them count:
`action` is none, reconfigure or restart (of slurmctld), `restart_nodes` whether slurmd has to start anew everywhere.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_ask import call
from ansible.module_utils.slurm_files import PRIVATE_TMP, all_files, node_digest, restart_digest
from ansible.module_utils.slurm_judge import problems
from ansible.module_utils.slurm_nodes import read_fragments
from ansible.module_utils.slurm_wishes import Fleet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible.module_utils.slurm_ask import Caller
    from ansible.module_utils.slurm_nodes import Node

MODE = 0o644
ASK_S = 15.0
# States of jobs that may still start a step on a node: squeue(1), "JOB STATE CODES".
UNDER_WAY = "configuring,running,suspended,stopped,signaling,resizing,completing"


def present(folder: Path, names: Mapping[str, str]) -> dict[str, str]:
    """Return the files as they are; an absent one is empty."""
    return {name: (folder / name).read_text(encoding="utf-8") if (folder / name).is_file() else "" for name in names}


def put(path: Path, text: str) -> None:
    """Let a file have this text in one step, and not be there where the text is empty."""
    if not text:
        path.unlink(missing_ok=True)
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, MODE)  # noqa: PTH101 (the name is what mkstemp gave)
        os.replace(temporary, path)  # noqa: PTH105
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def needed(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return what slurmctld needs so that the new files count."""
    if before == after:
        return "none"
    return "restart" if restart_digest(before) != restart_digest(after) else "reconfigure"


def given_up(before: str, after: str, nodes: Sequence[Node]) -> str:
    """Return why the cluster would silently stop to keep jobs apart by control groups; empty where it would not.

    One new node without them would otherwise take the cores', memory's and GPUs' bounds from every job of the cluster, under running jobs.
    """
    by_groups = "ProctrackType=proctrack/cgroup\n"
    weak = [f"{node.name} ({node.cgroup_reason or 'no reason known'})" for node in nodes if not node.cgroup]
    if by_groups not in before or by_groups in after or not weak:
        return ""
    more = f" and {len(weak) - 3} more" if len(weak) > 3 else ""
    return (
        f"the cluster keeps jobs apart by control groups, and these nodes cannot: {', '.join(weak[:3])}{more}. "
        "Fix: mend them or take them out of slurm_node; or state slurm_proctrack: proctrack/linuxproc, "
        "which holds no job to its cores, memory and GPUs"
    )


def unbounded(nodes: Sequence[Node]) -> str:
    """Return why jobs on real hosts could not be kept apart; empty where they can. Containers have what their host gives them."""
    weak = [f"{node.name} ({node.cgroup_reason or 'no reason known'})" for node in nodes if not node.cgroup and not node.container]
    if not weak:
        return ""
    more = f" and {len(weak) - 3} more" if len(weak) > 3 else ""
    return (
        f"no control groups keep jobs apart on {', '.join(weak[:3])}{more}: a job could use other jobs' GPUs, cores and memory, and leave "
        "processes behind. Fix: install a Slurm with a plug-in for the host's control groups (Ubuntu 22.04 ships none for version 2), or "
        "accept it with slurm_proctrack: proctrack/linuxproc"
    )


def jobs_run(caller: Caller = call) -> bool:
    """Say whether a job is under way; also where no controller answers, because then nothing is known."""
    answer = caller(["squeue", "--noheader", f"--states={UNDER_WAY}", "--format=%A"], ASK_S)
    return answer.status != 0 or bool(answer.text)


def with_tmp_as_it_is(settings: Mapping[str, Any], before: str, after: str, caller: Caller = call) -> Mapping[str, Any]:
    """Return the settings, with `private_tmp` as it is now where a change would break a job.

    A job that started with the one cannot start a step with the other ("container_p_join: open failed"). job_container.conf(5), NOTES.
    """
    if not before or (PRIVATE_TMP in before) == (PRIVATE_TMP in after) or not jobs_run(caller):
        return settings
    return {**settings, "private_tmp": PRIVATE_TMP in before}


def bring_about(folder: Path, after: Mapping[str, str], *, check: bool) -> dict[str, Any]:
    """Write what differs; return the result for Ansible."""
    before = present(folder, after)
    differing = [name for name in after if before[name] != after[name]]
    if not check:
        for name in differing:
            put(folder / name, after[name])
    return {
        "changed": bool(differing),
        "action": needed(before, after),
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
            "fragments": {"type": "path", "default": "/etc/slurm/nodes.d"},
            "members": {"type": "list", "elements": "str", "required": True},
            "settings": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    settings = module.params["settings"]
    members = module.params["members"]
    found = problems(settings, members)
    if found:
        module.fail_json(msg="\n".join(f"{one['what']}. Fix: {one['fix']}" for one in found))
    fleet = Fleet(tuple(members), settings["groups"], tuple(settings["spare"]))
    fragments = read_fragments(Path(module.params["fragments"]), members)
    folder = Path(module.params["folder"])
    try:
        files = all_files(settings, fragments.nodes, fleet)
        settled = with_tmp_as_it_is(settings, present(folder, files)["slurm.conf"], files["slurm.conf"])
        if settled != settings:
            files = all_files(settled, fragments.nodes, fleet)
            module.warn("Jobs are under way, so slurm_private_tmp is not applied yet. Fix: apply the phase slurm again when no job runs")
        if settings["proctrack"] == "auto" and (
            lost := given_up(present(folder, files)["slurm.conf"], files["slurm.conf"], fragments.nodes)
        ):
            module.fail_json(msg=lost)
        if settings["proctrack"] == "auto" and (weak := unbounded(fragments.nodes)):
            module.fail_json(msg=weak)
        result = bring_about(folder, files, check=module.check_mode)
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"the configuration cannot be made: {error}. Fix: mend what it names and apply the phase slurm again")
    module.exit_json(nodes=[node.name for node in fragments.nodes], left_out=fragments.left_out, **result)


if __name__ == "__main__":
    main()
