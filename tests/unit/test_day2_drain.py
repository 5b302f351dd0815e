"""What the drain of a leaving host lets the plays behind it do, with the real Ansible; `scontrol` and `squeue` answer from files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from primus_bootstrap import content
from tests.unit.engine_rig import LOCAL, free_port

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
    """Drain gpu1 by these controllers, then stop it; `jobs` is what squeue prints."""
    (folder / "hosts.yaml").write_text(
        "all:\n  hosts:\n"
        + "".join(f"    {name}: {link}\n" for name, link in {**controllers, "gpu1": LOCALLY}.items())
        + f"  children:\n    slurm_controller: {{hosts: {{{', '.join(f'{name}: ' for name in controllers)}}}}}\n"
    )
    (folder / "stop.yml").write_text(STOP.format(drain=content.playbooks_dir() / "day2/node/drain.yml"))
    for name, text in (("scontrol", NODE), ("squeue", jobs)):
        (folder / name).write_text(f"#!/bin/sh\ncat << 'END'\n{text}\nEND\n" if text else "#!/bin/sh\n")
        (folder / name).chmod(0o755)
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(folder / "hosts.yaml"), str(folder / "stop.yml")]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(content.ansible_cfg()), "PATH": f"{folder}:{os.environ['PATH']}"}
    words = ["-e", "node=gpu1", "-e", "slurm_drain_wait_s=0"]
    return subprocess.run([*argv, *words], env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_dead_backup_controller_keeps_no_host_from_leaving(tmp_path: Path) -> None:
    """The other controller answers for both: the host is drained, and then stopped."""
    done = drain(tmp_path, {"ctl1": LOCALLY, "ctl2": DEAD})

    assert done.returncode == 0, done.stdout + done.stderr
    assert "stopped" in done.stdout


@pytest.mark.parametrize(
    ("controllers", "jobs", "says"),
    [
        ({"ctl1": LOCALLY, "ctl2": DEAD}, "77 (ada)", "gpu1 is drained and still has 1 jobs after 0 s: 77 (ada)"),
        ({"ctl1": DEAD, "ctl2": DEAD}, "", "No controller answers, so whether gpu1 still has jobs is unknown."),
    ],
)
def test_nothing_is_stopped_while_the_host_has_jobs(tmp_path: Path, controllers: dict[str, str], jobs: str, says: str) -> None:
    """Jobs that are left, and jobs of which nobody can tell, stop the removal before anything of the host is touched."""
    done = drain(tmp_path, controllers, jobs)

    assert done.returncode != 0
    assert says in " ".join(done.stdout.split())
    assert "PLAY [Stop what it ran]" not in done.stdout
