"""Apply a cluster of one host to a virtual machine, and look at the machine as its administrator and as a user."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.lab.lab_rig import ROOT, run_cli
from tests.vm import time_server

if TYPE_CHECKING:
    from primus_bootstrap.lab.vm.virtual_machine import VirtualMachine

# Far above what an idle machine needs: the processor is emulated, and other tests run beside these.
BOOT_S = 1800.0
APPLY_S = 5400.0

TIME_UNIT = """\
[Unit]
Before=chrony.service
[Service]
ExecStart=/usr/bin/python3 /usr/local/sbin/time_server.py
[Install]
WantedBy=multi-user.target
"""

# Swap without a line in /etc/fstab.
SWAP_UNIT = """\
[Swap]
What=/swap2
[Install]
WantedBy=swap.target
"""

HOSTS = """\
all:
  vars:
    cluster_name: {name}
    ansible_user: primus
    ansible_port: {port}
    # An emulated processor is slow to start sudo.
    ansible_ssh_timeout: 300
    ansible_ssh_private_key_file: {key}
    ansible_ssh_common_args: -o 'UserKnownHostsFile="{known_hosts}"'
    users_groups_accounts:
      - {{name: ada, uid: 4101, comment: Ada, authorized_keys_file: {user_key}.pub}}
    baseline_ntp_servers: [{time_server}]
    baseline_kernel_arguments: [transparent_hugepage=never, hugepages=32]
    baseline_kernel_modules: [br_netfilter]
    # The virtual machine has less memory and disk than a server.
    preflight_min_memory_gib: 1
    preflight_min_disk_gib: 1
    preflight_timeout_s: 600
    # Its time server has no other clock than its own, which starts some seconds late.
    preflight_max_clock_offset_s: 60
  hosts:
    {host}: {{ansible_host: 127.0.0.1, ip: {address}}}
"""


@dataclass(frozen=True)
class AppliedVm:
    """A virtual machine on which the program has been run."""

    machine: VirtualMachine

    @property
    def name(self) -> str:
        """The name of the host."""
        return self.machine.node.name

    @property
    def hosts_file(self) -> Path:
        """The inventory for primus-bootstrap."""
        return self.machine.lab.hosts_file

    def write_hosts_file(self) -> None:
        """Write an inventory with this machine as the only host, in no group."""
        lab, node = self.machine.lab, self.machine.node
        words = {"name": lab.name, "port": self.machine.port, "key": lab.key_file, "known_hosts": lab.known_hosts}
        self.hosts_file.write_text(
            HOSTS.format(**words, user_key=lab.person_key_file, host=node.name, address=node.address, time_server=time_server.ADDRESS),
            encoding="utf-8",
        )

    def prepare(self) -> None:
        """Give the fresh machine what a server has before the first run: two swap files, and a time server that it can reach."""
        self.sh("for file in /swap /swap2; do fallocate -l 64M $file; chmod 600 $file; mkswap -q $file; done")
        self.sh("echo /swap none swap sw 0 0 >> /etc/fstab")
        self.sh(f"printf %s '{SWAP_UNIT}' > /etc/systemd/system/swap2.swap")
        program = base64.b64encode(Path(time_server.__file__).read_bytes()).decode()
        self.sh(f"echo {program} | base64 -d > /usr/local/sbin/time_server.py")
        self.sh(f"printf %s '{TIME_UNIT}' > /etc/systemd/system/time-server.service")
        self.sh("systemctl daemon-reload; systemctl enable --quiet --now time-server.service swap2.swap; systemctl start swap.swap")
        assert self.sh("wc -l < /proc/swaps") == "3"

    def apply(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Apply the inventory without confirmation."""
        return run_cli("apply", str(self.hosts_file), "--yes", *arguments, timeout_s=APPLY_S)

    def verify(self) -> dict[str, Any]:
        """Run `verify --json` and return its output for any verdict."""
        done = run_cli("verify", str(self.hosts_file), "--json", timeout_s=APPLY_S)
        assert done.stdout.startswith("{"), done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def last_report(self) -> dict[str, Any]:
        """Return the report of the newest run."""
        newest = max((self.machine.lab.cluster_state / "runs").iterdir())
        found: dict[str, Any] = json.loads((newest / "report.json").read_text(encoding="utf-8"))
        return found

    def verdicts(self, *verdicts: str) -> dict[str, str]:
        """Return the reasons of the newest run's records with one of these verdicts, by check."""
        records = [record for host in self.last_report()["hosts"] for record in host["verdicts"] if record["verdict"] in verdicts]
        return {record["check"]: str(record.get("reason", "")) for record in records}

    def reboot(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the day-2 playbook that drains, reboots and resumes hosts."""
        ansible = str(Path(sys.executable).with_name("ansible-playbook"))
        argv = [ansible, "-i", str(self.hosts_file), "playbooks/day2/reboot_node.yml", "--limit", self.name, *arguments]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=APPLY_S, check=False)

    def boot_id(self) -> str:
        """Return the kernel's identifier of the current boot."""
        return self.sh("cat /proc/sys/kernel/random/boot_id")

    def sh(self, script: str, *, timeout_s: float = 300.0) -> str:
        """Run a shell script as root, which must succeed, and return its output."""
        quoted = script.replace("'", "'\\''")
        done = self.machine.ssh(f"sudo sh -ec '{quoted}'", timeout_s=timeout_s)
        assert done.code == 0, f"{script}: exit code {done.code}: {done.stdout}{done.stderr}"
        return done.stdout.strip()
