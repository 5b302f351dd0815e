"""Test backup and restore of etcd with one and three real members, without Kubernetes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kubernetes.etcd_rig import Etcd

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = pytest.mark.long("roles/kube_backup")


pytestmark = [
    pytest.mark.skipif(not shutil.which("etcd") or not shutil.which("etcdctl"), reason="no etcd here: apt install etcd-server etcd-client"),
    pytest.mark.timeout(900),
]
CONFIRM = ("-e", "confirm=demo")


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd with one member and client certificates, like Kubespray's."""
    etcd = Etcd(tmp_path, 1, tls=True)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.end()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd with three members."""
    etcd = Etcd(tmp_path, 3)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.end()


def copies(etcd: Etcd) -> list[Path]:
    """Return the copies on the controller, the oldest first."""
    return sorted((etcd.root / ".primus/demo/etcd").glob("etcd-*"))


def members(etcd: Etcd, n: int) -> list[str]:
    """Return the members that one member lists."""
    return sorted(one["name"] for one in json.loads(etcd.ctl(n, "member", "list", "--write-out", "json").stdout)["members"])


def test_backup_is_private_and_can_be_restored(one: Etcd) -> None:
    """The backup has the data, the PKI and checksums with mode 0600; a restore moves the current data aside."""
    one.put("kept", "yes")
    code, output = one.play("backup_etcd.yml")
    assert code == 0, output[-3000:]
    (copy,) = copies(one)
    files = [path for path in [*copy.rglob("*"), *(one.home(1) / "backups").rglob("*")] if path.is_file() and path.name != ".lock"]
    backup = json.loads((copy / "m1/backup.json").read_text(encoding="utf-8"))
    one.put("lost", "yes")
    code, output = one.play("restore_etcd.yml", *CONFIRM)

    assert code == 0, output[-3000:]
    assert {path.name for path in files} == {"backup.json", "files.tar.gz", "snapshot.db"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert (backup["cluster"], backup["host"], backup["etcd"]["members"]) == ("demo", "m1", {"m1": f"https://127.0.0.1:{one.ports[1]}"})
    assert (one.get(1, "kept"), one.get(1, "lost")) == ("yes", "")
    assert len(list((one.home(1) / "data").glob("member.before-restore-*"))) == 1
    assert "former data: " in output


@LONG
def test_number_of_backups_is_limited(one: Etcd) -> None:
    """The limit applies to the host and the controller, without incomplete backups."""
    one.write_hosts({"kube_backup_keep": 1, "kube_backup_controller_keep": 2})
    (one.home(1) / "backups/.new").mkdir(parents=True)
    for _ in range(3):
        code, output = one.play("backup_etcd.yml")
        assert code == 0, output[-3000:]
        time.sleep(1.1)  # a backup is named by its second

    assert len(list((one.home(1) / "backups").glob("etcd-*"))) == 1
    assert len(copies(one)) == 2
    assert not (one.home(1) / "backups/.new").exists()


@pytest.mark.fault
def test_unsuitable_restore_is_refused(one: Etcd) -> None:
    """Without the cluster's name, and for a backup that is foreign, damaged or unknown, nothing changes."""
    one.put("kept", "yes")
    assert one.play("backup_etcd.yml")[0] == 0
    (copy,) = copies(one)
    pid = (one.home(1) / "pid").read_text(encoding="ascii")
    note = copy / "m1/backup.json"
    text = note.read_text(encoding="utf-8")
    output = [one.play("restore_etcd.yml")[1], one.play("restore_etcd.yml", *CONFIRM, "-e", "kube_backup_restore_from=etcd-2020")[1]]
    note.write_text(text.replace('"cluster": "demo"', '"cluster": "prod"'), encoding="utf-8")
    output.append(one.play("restore_etcd.yml", *CONFIRM)[1])
    note.write_text(text.replace('"sha256": "', '"sha256": "0'), encoding="utf-8")
    output.append(one.play("restore_etcd.yml", *CONFIRM)[1])
    note.write_text(text, encoding="utf-8")
    (one.home(1) / "pki/ca.crt").write_text("another authority\n", encoding="ascii")
    output.append(one.play("restore_etcd.yml", *CONFIRM)[1])

    expected = ["with plain Ansible, -e confirm=demo", "is no backup of etcd", "it is of cluster prod, and this is demo"]
    expected += ["it is damaged", "signed and encrypted data in it could not be read"]
    assert [want in got for want, got in zip(expected, output, strict=True)] == [True] * 5, output
    assert (one.home(1) / "pid").read_text(encoding="ascii") == pid
    assert one.get(1, "kept") == "yes"


@pytest.mark.fault
def test_three_members_are_restored(three: Etcd) -> None:
    """After lost disks, all three members have the backup and the same members."""
    three.put("kept", "yes")
    code, output = three.play("backup_etcd.yml")
    assert code == 0, output[-3000:]
    three.ctl(1, "del", "kept")
    three.put("lost", "yes")
    three.systemctl("stop", 3)
    shutil.rmtree(three.home(3) / "data")
    code, output = three.play("restore_etcd.yml", *CONFIRM)

    assert code == 0, output[-3000:]
    assert [three.get(n, "kept") for n in three.numbers] == ["yes"] * 3
    assert [three.get(n, "lost") for n in three.numbers] == [""] * 3
    assert [members(three, n) for n in three.numbers] == [["m1", "m2", "m3"]] * 3
    three.put("after", "yes")
    assert three.get(3, "after") == "yes"


@pytest.mark.fault
def test_backup_works_with_one_member_down(three: Etcd) -> None:
    """The lost host is reported; without a majority the backup fails with the reasons."""
    three.systemctl("stop", 1)
    three.wait(2)
    three.write_hosts({}, lost=[1])
    code, output = three.play("backup_etcd.yml")
    assert code == 4, output[-3000:]
    (copy,) = copies(three)
    taken = sorted(path.parent.name for path in copy.rglob("snapshot.db"))
    three.systemctl("stop", 2)
    code, output = three.play("backup_etcd.yml")

    assert taken in (["m2"], ["m3"])
    assert (code, "No member of etcd answers with a leader" in output) == (4, True)


@pytest.mark.fault
def test_interrupted_restore_is_finished(three: Etcd) -> None:
    """A second restore completes the members, without loss of data."""
    three.put("kept", "yes")
    assert three.play("backup_etcd.yml")[0] == 0
    three.put("lost", "yes")
    real = shutil.which("etcdctl")
    slow = three.program("etcdctl", f'#!/bin/sh\ncase "$*" in *"restore"*"--name m3"*) sleep 600;; esac\nexec {real} "$@"\n')
    run = subprocess.Popen(
        three.argv("restore_etcd.yml", *CONFIRM),
        env=three.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + 400
    try:
        while not all(list((three.home(n) / "data").glob("member.before-restore-*")) for n in (1, 2)):
            assert time.monotonic() < end
            time.sleep(0.2)
    finally:
        kill_tree(run)
    slow.unlink()
    code, output = three.play("restore_etcd.yml", *CONFIRM)

    assert code == 0, output[-3000:]
    assert [three.get(n, "kept") for n in three.numbers] == ["yes"] * 3
    assert [three.get(n, "lost") for n in three.numbers] == [""] * 3
    assert [len(list((three.home(n) / "data").glob("member.before-restore-*"))) for n in three.numbers] == [2, 2, 1]


def kill_tree(run: subprocess.Popen[bytes]) -> None:
    """Kill a process with all its descendants, like a power failure of the controller."""

    def children(pid: int) -> list[int]:
        path = Path(f"/proc/{pid}/task/{pid}/children")
        found = [int(word) for word in path.read_text(encoding="ascii").split()] if path.exists() else []
        return found + [deeper for one in found for deeper in children(one)]

    for pid in (*children(run.pid), run.pid):
        os.kill(pid, signal.SIGKILL)
    run.wait(timeout=30)


@pytest.mark.fault
def test_restore_of_some_members_is_refused(three: Etcd) -> None:
    """A --limit, or a group of two, would split or block the cluster."""
    assert three.play("backup_etcd.yml")[0] == 0
    limited = three.play("restore_etcd.yml", *CONFIRM, "--limit", "m1,m2")
    three.write_hosts({}, without=[3])
    even = three.play("restore_etcd.yml", *CONFIRM)

    assert (limited[0], "m3 would keep the current data" in limited[1]) == (2, True), limited[1][-2000:]
    assert (even[0], "an even number cannot keep quorum" in even[1]) == (2, True), even[1][-2000:]
    assert [three.ctl(n, "endpoint", "health").returncode for n in three.numbers] == [0, 0, 0]


@LONG
def test_removal_needs_a_majority(three: Etcd) -> None:
    """One of three members may be removed; with one dead, no other may."""
    code, output = three.play("backup_etcd.yml", "-e", "kube_backup_fetch=false")
    assert code == 0, output[-3000:]

    def leave(n: int) -> subprocess.CompletedProcess[str]:
        program = three.home(1) / "program"
        argv = ["python3", str(program / "etcd_quorum.py"), str(program / "settings.json")]
        return subprocess.run(argv, input=json.dumps([f"m{n}"]), capture_output=True, text=True, timeout=120, check=False)

    before = [leave(n).returncode for n in three.numbers]
    three.systemctl("stop", 3)
    three.wait(1)
    after = [leave(n) for n in three.numbers]

    assert before == [0, 0, 0]
    assert [done.returncode for done in after] == [1, 1, 0]
    assert "without m2 etcd has 2 members, of which 1 answer (lost: m3): no majority" in after[1].stderr


@LONG
def test_reboot_needs_a_majority_and_waits(three: Etcd) -> None:
    """Before a reboot the other two must answer; after it, the member must answer through its leader."""
    code, output = three.play("backup_etcd.yml", "-e", "kube_backup_fetch=false")
    assert code == 0, output[-3000:]

    def ask(n: int, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        program = three.home(n) / "program"
        argv = ["python3", str(program / f"{name}.py"), str(program / "settings.json"), *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)

    whole = [ask(1, "etcd_quorum", "reboot"), ask(1, "etcd_serves", "20")]
    three.systemctl("stop", 3)
    three.wait(1)
    lost = [ask(1, "etcd_quorum", "reboot"), ask(3, "etcd_quorum", "reboot"), ask(3, "etcd_serves", "2")]
    three.systemctl("start", 3)
    back = [ask(3, "etcd_serves", "60"), ask(1, "etcd_quorum", "reboot")]

    assert [done.returncode for done in (*whole, *lost, *back)] == [0, 0, 1, 0, 1, 0, 0]
    assert json.loads(whole[1].stdout) == ["etcd"]
    assert "while m1 is down 1 of 3 members of etcd answer, which is no majority (lost: m3)" in lost[0].stderr
    assert "etcd of this host did not answer through its leader within 2 s" in lost[2].stderr
