"""Test the verbs of the shared file system on hosts, while a program writes files: no write fails, and every file is complete.

The tests share one lab and run in this order: the files begin in the sftp store and are then moved to the object store.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_fixture import create_lab
from tests.lab.lab_rig import RunningLab, run_cli
from tests.lab.storage_rig import HOSTS, Engine, Writer, add_host, address_of, change_setting, serving_processes, verb, write_hosts_file

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(1800)]

# A lab that is up already, by its folder, to be used and left as it is: for writing tests.
_KEPT = os.environ.get("PRIMUS_TEST_STORAGE")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Three hosts with the metadata engine, its sentinels, the object store, the sftp store and /jfs; node4 and node5 are spares."""
    if _KEPT:
        folder = Path(_KEPT)
        yield RunningLab(re.findall(r"cluster_name: (\S+)", (folder / "hosts.yaml").read_text())[0], folder)
        return
    options = ("--bare", "--nodes", "3", "--spare", "2")
    for lab in create_lab(RunningLab(f"test{os.getpid()}-s", tmp_path_factory.mktemp("storage")), *options):
        write_hosts_file(lab)
        done = lab.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        yield lab


@pytest.fixture
def engine(storage: RunningLab) -> Engine:
    """The metadata engine of the lab."""
    return Engine(storage)


@pytest.fixture
def writer(storage: RunningLab, request: pytest.FixtureRequest) -> Iterator[Writer]:
    """Files that node2 writes during the test."""
    found = Writer(storage, "node2", f"w{os.getpid()}-{request.node.name[5:35]}")
    found.start()
    try:
        yield found
    finally:
        found.stop()


def test_files_move_to_the_object_store(storage: RunningLab, writer: Writer) -> None:
    """While a program uses /jfs, the files are only copied; then they move, and a second run changes nothing."""
    change_setting(storage, "juicefs_use_object_store", "true")
    words = ("storage", "migrate", str(storage.hosts_file), "--confirm", storage.name)
    used = run_cli(*words, timeout_s=900)
    writer.wait_for_more()
    writer.stop()
    moved = run_cli(*words, timeout_s=900)
    again = run_cli(*words, timeout_s=900)

    assert used.returncode == 4, used.stdout + used.stderr
    assert "is used on node2 by python3 (" in used.stdout + used.stderr
    assert (moved.returncode, again.returncode) == (0, 0), moved.stdout + moved.stderr + again.stdout + again.stderr
    assert "; 0 changes" in again.stdout
    assert writer.check("node3") > 5
    storage.sh("node1", "mv /srv/juicefs /srv/moved")  # nothing reads the former store
    try:
        assert writer.check("node1") > 5
    finally:
        storage.sh("node1", "mv /srv/moved /srv/juicefs")


def test_a_host_of_redis_is_added_and_leaves_as_the_primary(storage: RunningLab, engine: Engine, writer: Writer) -> None:
    """It becomes a replica and a client; as the primary it hands over before it leaves. The same removal again has nothing to do."""
    added = add_host(storage, "node4")
    again = add_host(storage, "node4")
    known = [engine.sentinels(node) for node in (*HOSTS, "node4")]
    engine.move_to("node4")
    writer.wait_for_more()
    verb(storage, "node", "remove", "node4", "--confirm", storage.name)
    writer.wait_for_more()

    assert "+    node4:" in added.stderr
    assert "nothing to do" in again.stderr
    assert known == [3, 3, 3, 3]
    assert engine.primary() in HOSTS
    assert [engine.sentinels(node) for node in HOSTS] == [2, 2, 2]
    assert storage.execute("node4", "systemctl", "is-active", "redis-server", "primus-redis-sentinel").stdout.split() == ["inactive"] * 2
    assert storage.execute("node4", "ls", "/etc/redis/password.conf", "/etc/redis/client.env", "/etc/redis/tls").stdout == ""
    assert writer.check("node3") > 5
    assert storage.verify()["exit_code"] == 0


def test_an_interrupted_removal_is_finished(storage: RunningLab, engine: Engine, writer: Writer) -> None:
    """A host that has left already, because the run failed on another host, is removed by the same command."""
    add_host(storage, "node4")
    with storage.cut_off("node3", 22):
        failed = run_cli("node", "remove", str(storage.hosts_file), "node4", "--confirm", storage.name, timeout_s=600)
    writer.wait_for_more()
    verb(storage, "node", "remove", "node4", "--confirm", storage.name)

    assert failed.returncode == 4, failed.stdout + failed.stderr
    assert "node4" not in storage.hosts_file.read_text()
    assert [engine.sentinels(node) for node in HOSTS] == [2, 2, 2]
    assert writer.check("node3") > 5


def test_the_primary_is_replaced_and_its_dead_successor_removed(storage: RunningLab, engine: Engine, writer: Writer) -> None:
    """The new host has all data before the old one leaves. A host that lost its power is removed with --dead."""
    add_host(storage, "node4")
    engine.move_to("node4")
    verb(storage, "node", "replace", "node4", "node5", "--host", address_of(storage, "node5"), "--confirm", storage.name, timeout_s=1200)
    writer.wait_for_more()
    keys = [engine.ask(node, "-n 1 DBSIZE") for node in (engine.primary(), "node5")]
    if engine.primary() == "node5":
        engine.move_to("node1")
    storage.fault("kill", "node5")
    verb(storage, "node", "remove", "node5", "--confirm", storage.name, "--dead")
    writer.wait_for_more()

    assert storage.execute("node4", "systemctl", "is-active", "redis-server").stdout.strip() == "inactive"
    assert len(set(keys)) == 1, keys
    assert "node5" not in storage.hosts_file.read_text()
    assert [engine.sentinels(node) for node in HOSTS] == [2, 2, 2]
    assert writer.check("node3") > 5
    assert storage.verify()["exit_code"] == 0


def test_the_password_of_redis_is_rotated(storage: RunningLab, engine: Engine, writer: Writer) -> None:
    """Every Redis and sentinel takes the new password, no mount restarts, and the former password is refused."""
    kept = storage.state_dir / "secrets" / "redis_password"
    former = kept.read_text().split()[0]
    before = serving_processes(storage, HOSTS)
    kept.unlink()
    done = verb(storage, "secrets", "rotate", "redis", "--yes")
    again = verb(storage, "secrets", "rotate", "redis", "--yes")
    value = kept.read_text().split()[0]
    writer.wait_for_more()

    assert not [text for text in (former, value) if text in done.stdout + done.stderr]
    assert "; 0 changes" in again.stdout
    assert ["WRONGPASS" in engine.ask(node, "PING", former) for node in HOSTS] == [True] * 3
    assert [engine.ask(node, "PING", value).endswith("PONG") for node in HOSTS] == [True] * 3
    assert serving_processes(storage, HOSTS) == before
    assert writer.check("node3") > 5
    engine.move_to("node2" if engine.primary() != "node2" else "node3")
    writer.wait_for_more()


def test_the_keys_of_the_object_store_are_rotated(storage: RunningLab, writer: Writer) -> None:
    """Each mount is handed over to a process with the new keys, with its open files."""
    kept = storage.state_dir / "secrets" / "object_store_secret_key"
    former = kept.read_text().split()[0]
    change_setting(storage, "object_store_access_key", "cluster-2")
    kept.unlink()
    done = verb(storage, "secrets", "rotate", "object_store", "--yes")
    again = verb(storage, "secrets", "rotate", "object_store", "--yes")
    value = kept.read_text().split()[0]
    writer.wait_for_more()

    assert not [text for text in (former, value) if text in done.stdout + done.stderr]
    assert "; 0 changes" in again.stdout
    accounts = [storage.sh(node, "cat /etc/seaweedfs/s3.json") for node in HOSTS]
    assert [(former in text, value in text) for text in accounts] == [(False, True)] * 3
    assert writer.check("node3") > 5


def test_all_certificates_are_replaced(storage: RunningLab, engine: Engine, writer: Writer) -> None:
    """Redis, Sentinel and the object store serve new certificates; the sentinels can still replace the primary."""
    show = "timeout 10 openssl s_client -connect {}:{} < /dev/null 2> /dev/null | openssl x509 -noout -fingerprint"
    places = [(storage.address(node), port) for node in HOSTS for port in (6380, 26379, 8333)]
    before = [storage.sh("node1", show.format(*place)) for place in places]
    verb(storage, "secrets", "rotate", "certificates", "--yes")
    engine.move_to("node2" if engine.primary() != "node2" else "node3")
    writer.wait_for_more()
    after = [storage.sh("node1", show.format(*place)) for place in places]

    # The object store reads its new files within five minutes: tests/integration/test_role_object_store_real.py.
    changed = [(port, old != new) for (_, port), old, new in zip(places, before, after, strict=True) if port != 8333]
    assert changed == [(port, True) for port, _ in changed]
    assert writer.check("node3") > 5
    assert storage.verify()["exit_code"] == 0
