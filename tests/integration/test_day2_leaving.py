"""Draining and stopping a host with the real Ansible; `scontrol` and `squeue` are replaced by files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from tests.playbooks import run_playbook
from tests.unit.engine_rig import LOCAL, free_port

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

LOCALLY = f"{{ansible_connection: local, ansible_become: false, ansible_python_interpreter: {LOCAL['ansible_python_interpreter']}}}"
DEAD = f"{{ansible_host: 127.0.0.1, ansible_port: {free_port()}, ansible_become: false}}"
NODE = "NodeName=gpu1 CPUTot=8 State=IDLE+DRAIN ThreadsPerCore=1 Reason=primus: it leaves the cluster [root@2026-01-01T00:00:00]"
STOP = """---
- name: Drain
  ansible.builtin.import_playbook: {drain}
- name: Stop what it ran
  hosts: gpu1
  gather_facts: false
  tasks:
    - name: Stop it
      ansible.builtin.debug:
        msg: stopped
"""


def drain(folder: Path, controllers: dict[str, str], jobs: str = "") -> subprocess.CompletedProcess[str]:
    """Drain gpu1 with these controllers, then stop it; `jobs` is the output of squeue."""
    (folder / "hosts.yaml").write_text(
        "all:\n  hosts:\n"
        + "".join(f"    {name}: {link}\n" for name, link in {**controllers, "gpu1": LOCALLY}.items())
        + f"  children:\n    slurm_controller: {{hosts: {{{', '.join(f'{name}: ' for name in controllers)}}}}}\n"
    )
    (folder / "stop.yml").write_text(STOP.format(drain=content.playbooks_dir() / "day2/node/drain.yml"))
    for name, text in (("scontrol", NODE), ("squeue", jobs)):
        (folder / name).write_text(f"#!/bin/sh\ncat << 'END'\n{text}\nEND\n" if text else "#!/bin/sh\n")
        (folder / name).chmod(0o755)
    words = ["-e", "node=gpu1", "-e", "slurm_drain_wait_s=0"]
    return run_playbook(folder / "hosts.yaml", folder / "stop.yml", *words, environment={"PATH": f"{folder}:{os.environ['PATH']}"})


def test_a_host_can_be_removed_while_a_backup_controller_is_dead(tmp_path: Path) -> None:
    """The other controller drains the host, and the host is stopped."""
    done = drain(tmp_path, {"ctl1": LOCALLY, "ctl2": DEAD})

    assert done.returncode == 0, done.stdout + done.stderr
    assert "stopped" in done.stdout


@pytest.mark.parametrize(
    ("controllers", "jobs", "message"),
    [
        ({"ctl1": LOCALLY, "ctl2": DEAD}, "77 (ada)", "gpu1 is drained and still has 1 jobs after 0 s: 77 (ada)"),
        ({"ctl1": DEAD, "ctl2": DEAD}, "", "No controller answers, so whether gpu1 still has jobs is unknown."),
    ],
)
def test_nothing_is_stopped_while_the_host_has_jobs(tmp_path: Path, controllers: dict[str, str], jobs: str, message: str) -> None:
    """Remaining jobs, or an unknown number of jobs, end the removal before the host is changed."""
    done = drain(tmp_path, controllers, jobs)

    assert done.returncode != 0
    assert message in " ".join(done.stdout.split())
    assert "PLAY [Stop what it ran]" not in done.stdout


@pytest.mark.parametrize(
    ("role", "group", "task", "variable"),
    [
        ("munge", "slurm_node", "Remove the munge key", "_munge_key_file"),
        ("juicefs", "juicefs_client", "Remove the secrets of the shared file system", "_juicefs_env_file"),
    ],
)
def test_a_removed_host_has_no_secret_of_the_cluster(tmp_path: Path, role: str, group: str, task: str, variable: str) -> None:
    """The last step removes the file with the key or the passwords; a missing file is no change."""
    secret = tmp_path / "secret"
    secret.write_text("sesame")
    (tmp_path / "hosts.yaml").write_text(f"all:\n  hosts:\n    gpu1: {LOCALLY}\n  children:\n    {group}: {{hosts: {{gpu1: }}}}\n")
    words = ["-e", "node=gpu1", "-e", f"{variable}={secret}", "--start-at-task", f"{role} : {task}"]

    runs = [run_playbook(tmp_path / "hosts.yaml", "day2/node/stop.yml", *words) for _ in range(2)]

    assert not secret.exists()
    assert ["changed=1" in runs[0].stdout, "changed=0" in runs[1].stdout] == [True, True], runs[0].stdout + runs[0].stderr
