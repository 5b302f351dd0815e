"""Test the lab on real containers: `lab up`, faults, and repairs by another `up`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.lab_rig import ROOT, RunningLab, engine_argv, run_cli

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.long("primus_bootstrap/lab", "tests/lab/lab_fixture.py", "tests/lab/lab_rig.py")]

NODES = ("node1", "node2", "node3")


@pytest.fixture
def healed(lab: RunningLab) -> Iterator[RunningLab]:
    """The lab for a test that breaks it, repaired afterwards."""
    yield lab
    lab.heal()


def nodes_of(lab: RunningLab) -> dict[str, Any]:
    """Return the nodes of `lab status --json` by name."""
    return {node["name"]: node for node in json.loads(lab.lab("status", "--json").stdout)["nodes"]}


def test_hosts_of_two_releases_run_systemd_and_ssh(lab: RunningLab) -> None:
    """`lab up --release all` creates Debian 12 and 13 in rotation; systemd is `running` and SSH works."""
    found = nodes_of(lab)

    assert list(found) == list(NODES)
    assert [found[node]["state"] for node in NODES] == ["running"] * 3
    assert [found[node]["systemd"] for node in NODES] == ["running"] * 3
    assert [found[node]["ssh"] for node in NODES] == [True] * 3
    if "ID=debian" in Path("/etc/os-release").read_text():
        releases = [lab.ssh(node, ". /etc/os-release; echo $VERSION_ID").stdout.strip() for node in NODES]
        assert releases == ["12", "13", "12"]


def test_login_needs_the_key_and_has_sudo(lab: RunningLab) -> None:
    """The user primus logs in with the lab's key and has sudo without a password; passwords are disabled."""
    assert lab.ssh("node2", "sudo -n id -u").stdout.strip() == "0"

    refused = subprocess.run(
        [
            *("ssh", "-F", "none", "-v", "-o", "BatchMode=yes", "-o", "PubkeyAuthentication=no", "-o", "StrictHostKeyChecking=yes"),
            *("-o", f"UserKnownHostsFile={lab.state_dir}/known_hosts", f"primus@{lab.address('node2')}", "true"),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert refused.returncode == 255
    assert "Authentications that can continue: publickey\n" in refused.stderr


def test_keys_are_private_and_stay(lab: RunningLab) -> None:
    """The lab's key has mode 0600, and recreated hosts have the same host keys."""
    key = lab.state_dir / "ssh/id_ed25519"
    before = lab.ssh("node3", "cat /etc/ssh/ssh_host_ed25519_key.pub; cat /etc/machine-id").stdout.split()

    lab.renew()
    after = lab.ssh("node3", "cat /etc/ssh/ssh_host_ed25519_key.pub; cat /etc/machine-id").stdout.split()

    assert key.stat().st_mode & 0o777 == 0o600
    assert lab.state_dir.stat().st_mode & 0o777 == 0o700
    assert before[1] == after[1]
    assert before[-1] != after[-1], "the host is a new one"


def test_second_up_changes_nothing(lab: RunningLab) -> None:
    """It reports no change, changes no file, and restarts no host."""
    files = {path: path.stat().st_mtime_ns for path in lab.folder.rglob("*") if path.is_file() and path.name != "lab.lock"}
    boots = [lab.execute(node, "stat", "-c", "%Y", "/proc/1").stdout for node in NODES]
    started = time.monotonic()

    done = lab.lab("up")
    seconds = time.monotonic() - started

    assert "already up: 3 hosts, nothing changed" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert [lab.execute(node, "stat", "-c", "%Y", "/proc/1").stdout for node in NODES] == boots
    # Half a second on an idle machine.
    assert seconds < 10


def test_plain_ansible_works_with_hosts_yaml(lab: RunningLab) -> None:
    """`ansible -i hosts.yaml all -m ping` works with strict host keys."""
    ansible = Path(sys.executable).with_name("ansible")
    env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOST_KEY_CHECKING": "True"}

    done = subprocess.run(
        [str(ansible), "-i", str(lab.hosts_file), "all", "-m", "ping"], env=env, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("pong") == 3


def test_nodes_have_packages_and_names(lab: RunningLab) -> None:
    """The program apt works as on this machine, and nodes resolve each other's names."""
    updated = lab.execute("node2", "apt-get", "update", timeout_s=180)

    assert updated.returncode == 0, updated.stderr
    assert "apt-transport-https" in lab.execute("node2", "apt-cache", "search", "--names-only", "apt-transport-https").stdout
    assert lab.address("node1") in lab.execute("node2", "getent", "hosts", "node1").stdout


def test_nodes_look_like_servers(lab: RunningLab) -> None:
    """Every node has its own machine ID and name, a regular /etc/hosts, and outdated package lists."""
    ids = {lab.execute(node, "cat", "/etc/machine-id").stdout.strip() for node in NODES}

    assert len(ids) == 3
    assert all(len(number) == 32 for number in ids)
    assert [lab.execute(node, "hostname").stdout.strip() for node in NODES] == list(NODES)
    if "podman" in engine_argv():
        assert "/etc/hosts" not in lab.execute("node1", "cat", "/proc/mounts").stdout


@pytest.mark.fault(cheap=True)
def test_killed_host_is_reported_and_started(healed: RunningLab) -> None:
    """Status shows the killed host as stopped, and `fault start` waits until SSH answers."""
    hardware = healed.execute("node2", "cat", "/sys/class/net/eth0/address").stdout
    healed.fault("kill", "node2")
    killed = nodes_of(healed)
    healed.fault("start", "node2")

    assert healed.execute("node2", "cat", "/sys/class/net/eth0/address").stdout == hardware, "its neighbours still know it"
    assert (killed["node2"]["state"], killed["node2"]["ssh"]) == ("stopped", False)
    assert killed["node1"]["ssh"] is True
    assert healed.ssh("node2", "true").returncode == 0


def answers(lab: RunningLab, node: str) -> bool:
    """Return whether a host answers over SSH in time; a partitioned host has no route after about three seconds."""
    try:
        return lab.ssh(node, "true", timeout_s=3).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.fault(cheap=True)
@pytest.mark.parametrize(("kind", "state"), [("pause", "paused"), ("partition", "partitioned")])
def test_paused_or_partitioned_host_is_reported_and_healed(healed: RunningLab, kind: str, state: str) -> None:
    """The host does not answer, status has the reason, and `fault heal` restores it with its address."""
    hardware = healed.execute("node3", "cat", "/sys/class/net/eth0/address").stdout
    healed.fault(kind, "node3")
    broken = nodes_of(healed)["node3"]
    silent = not answers(healed, "node3")
    healed.fault("heal", "node3")

    assert silent
    assert (broken["state"], broken["ssh"], broken["systemd"]) == (state, False, "unknown")
    assert healed.ssh("node3", "ip -4 -brief address").stdout.count(healed.address("node3")) == 1
    assert healed.execute("node3", "cat", "/sys/class/net/eth0/address").stdout == hardware


@pytest.mark.fault(cheap=True)
def test_slowed_host_is_healed(healed: RunningLab) -> None:
    """A loop waits as long as it computes; `fault heal` removes the CPU limit and reports it once."""
    # Many times the tenth of a second in which the kernel counts what a host has used up. By the loop's own processor time: what else
    # the machine does only makes it wait longer.
    loop = "import time; start = time.monotonic(); sum(range(10**8)); print((time.monotonic() - start) / time.process_time())"
    # Of the host's control group, version 2, else 1: what the kernel lets it compute.
    allowed = "cat /sys/fs/cgroup/cpu.max 2> /dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us"
    before = healed.sh("node2", allowed)
    healed.fault("slow", "node2")
    slowed = healed.sh("node2", allowed)
    waited = min(float(healed.execute("node2", "python3", "-c", loop).stdout) for _ in range(3))
    healing = [healed.lab("fault", "heal", "node2").stdout for _ in range(2)]

    assert waited > 1.5
    # As many processors as there are is no limit either.
    assert slowed not in (before, healed.sh("node2", allowed))
    assert "node2: CPU limit removed" in healing[0]
    assert "node2: nothing to repair" in healing[1]


@pytest.mark.fault(cheap=True)
def test_up_repairs_every_fault(healed: RunningLab) -> None:
    """One `up` starts, resumes and reconnects hosts."""
    healed.fault("kill", "node1")
    healed.fault("pause", "node2")
    healed.fault("partition", "node3")

    output = healed.lab("up").stderr

    assert "node1: started" in output
    assert "node2: resumed" in output
    assert "node3: reconnected to its network" in output
    assert all(node["ssh"] for node in nodes_of(healed).values())


@pytest.mark.fault(cheap=True)
def test_up_recreates_missing_and_incomplete_hosts(healed: RunningLab) -> None:
    """A removed or never started container is recreated; the others are unchanged."""
    boot = healed.execute("node1", "stat", "-c", "%Y", "/proc/1").stdout
    image = subprocess.run(
        [*engine_argv(), "inspect", "--format", "{{.Config.Image}}", healed.container("node2")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()
    for node in ("node2", "node3"):
        healed.fault("kill", node)
        subprocess.run([*engine_argv(), "rm", "--force", healed.container(node)], capture_output=True, timeout=60, check=True)
    labels = [f"--label=primus.lab={healed.name}", "--label=primus.lab.node=node3", f"--label=primus.lab.folder={healed.folder}"]
    half = [*engine_argv(), "create", "--name", healed.container("node3"), *labels, image, "/sbin/init"]
    subprocess.run(half, capture_output=True, timeout=60, check=True)

    output = healed.lab("up").stderr

    assert "node3: removed because it was not fully created" in output
    assert "node2: created" in output
    assert healed.ssh("node3", "true").returncode == 0
    assert healed.execute("node1", "stat", "-c", "%Y", "/proc/1").stdout == boot


def test_unknown_host_is_refused(lab: RunningLab) -> None:
    """The fix of `fault kill nod2` lists the hosts."""
    done = run_cli("lab", "fault", "kill", "nod2", "--name", lab.name, "--dir", str(lab.folder))

    assert done.returncode == 2
    assert "choose from: node1, node2, node3" in done.stderr


@pytest.mark.parametrize("words", [("up",), ("down",), ("down", "--purge"), ("fault", "kill", "node2"), ("fault", "heal", "node2")])
def test_lab_of_another_folder_is_refused(lab: RunningLab, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Another folder does not have the keys of a running lab, and may not break or remove it."""
    done = run_cli("lab", *words, "--name", lab.name, "--dir", str(tmp_path))

    assert done.returncode == 3
    assert f"was created from the folder {lab.folder}" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert all(node["ssh"] for node in nodes_of(lab).values())


def test_edited_inventory_is_not_overwritten(lab: RunningLab) -> None:
    """An edited file stays; with another number of hosts, `up` fails with a fix."""
    text = lab.hosts_file.read_text()
    edited = text + "    slurm_node:\n      hosts:\n        node3:\n"
    lab.hosts_file.write_text(edited)
    try:
        kept = lab.lab("up")
        refused = run_cli("lab", "up", "--nodes", "2", "--name", lab.name, "--dir", str(lab.folder))
        after = lab.hosts_file.read_text()
    finally:
        lab.hosts_file.write_text(text)

    assert "nothing changed" in kept.stdout
    assert refused.returncode == 3
    assert "was edited and has the hosts" in refused.stderr
    assert "--nodes 3" in refused.stderr
    assert after == edited


@pytest.fixture
def second(tmp_path: Path) -> Iterator[RunningLab]:
    """A second lab, removed afterwards."""
    other = RunningLab(f"test{os.getpid()}-b", tmp_path / "b")
    yield other
    run_cli("lab", "down", "--purge", "--name", other.name, "--dir", str(other.folder))


def test_two_labs_run_in_parallel(lab: RunningLab, second: RunningLab) -> None:
    """Labs have different addresses; --nodes adds and removes hosts; `down` of one keeps the other."""
    second.lab("up", "--nodes", "1")
    boot = second.execute("node1", "stat", "-c", "%Y", "/proc/1").stdout
    second.lab("up", "--nodes", "2")
    grown = nodes_of(second)
    second.lab("up", "--nodes", "1")
    shrunk = nodes_of(second)
    same = second.execute("node1", "stat", "-c", "%Y", "/proc/1").stdout
    second.lab("down")

    assert list(grown) == ["node1", "node2"]
    assert list(shrunk) == ["node1"]
    assert same == boot
    assert second.address("node1").rpartition(".")[0] != lab.address("node1").rpartition(".")[0]
    assert all(node["ssh"] for node in nodes_of(lab).values())
    assert "no lab" in second.lab("down").stdout


def test_spare_host_is_not_in_hosts_yaml(second: RunningLab) -> None:
    """A spare runs, status shows its address, and it can be added to hosts.yaml."""
    second.lab("up", "--nodes", "1", "--spare", "1")
    found = nodes_of(second)
    text = second.hosts_file.read_text()
    second.hosts_file.write_text(
        text.replace("\n\n  # A service", f"\n    extra: {{ansible_host: {found['node2']['address']}}}\n\n  # A service")
    )

    output = second.lab("up").stdout

    assert {name: (node["spare"], node["ssh"]) for name, node in found.items()} == {"node1": (False, True), "node2": (True, True)}
    assert found["node2"]["address"] not in text
    assert "2 hosts, nothing changed" in output
    assert nodes_of(second)["node2"]["spare"] is False


def test_another_release_is_refused_for_existing_hosts(lab: RunningLab) -> None:
    """The error says that the release cannot change, and nothing changes."""
    refused = run_cli("lab", "up", "--release", "bookworm", "--name", lab.name, "--dir", str(lab.folder))

    assert refused.returncode == 3
    assert "the release of an existing host cannot change" in refused.stderr
    assert "lab down" in refused.stderr


@pytest.mark.fault
@pytest.mark.parametrize("after_s", [0.3, 0.6, 0.9, 1.2, 1.6, 2.0])
def test_up_after_a_killed_up_succeeds(second: RunningLab, after_s: float) -> None:
    """After `lab up` was killed at any time, the next one ends with every host answering."""
    argv = [sys.executable, "-m", "primus_bootstrap", "lab", "up", "--nodes", "2", "--name", second.name, "--dir", str(second.folder)]
    first = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(after_s)
    first.send_signal(signal.SIGKILL)
    first.wait(timeout=30)

    second.lab("up", "--nodes", "2")

    assert [node["ssh"] for node in nodes_of(second).values()] == [True, True]
