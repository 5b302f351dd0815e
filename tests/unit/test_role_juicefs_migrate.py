"""Moving a volume to the object store: the module `juicefs_migrate`, the choice of the store, and the playbook."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
import yaml

from primus_bootstrap import content
from tests.role_variables import variable
from tests.unit.role_module import load_role_module
from tests.unit.test_role_templates import render

migrate: Any = load_role_module("juicefs", "juicefs_migrate")

OLD, NEW = "st1:/objects/", "https://object-store:8333/juicefs"
STORES = migrate.Stores(OLD, "jfsstore", NEW)
DONE = (
    "<WARNING>: lookup uid 990: user: unknown userid 990 [UserName@utils.go:201]\n"
    '<INFO>: Syncing from "sftp://jfsstore@st1:/objects/jfs/" [Sync@sync.go:2315]\n'
    "<INFO>: Found: 12, excluded: 0 (0 B), skipped: 10 (25.75 MiB), copied: 1 (4.00 MiB), extra: 3 (0 B), "
    "deleted: 2, failed: 0 [Sync@sync.go:2238]\n"
)


@pytest.mark.parametrize(
    ("url", "location"),
    [
        (NEW, "s3://juicefs.object-store:8333/jfs/"),
        ("https://store.example.com:8333/files", "s3://files.store.example.com:8333/jfs/"),
        # JuiceFS accepts the bucket in the path only for an address.
        ("https://10.0.0.7:8333/juicefs", "s3://10.0.0.7:8333/juicefs/jfs/"),
    ],
)
def test_bucket_is_written_as_sync_expects_it(url: str, location: str) -> None:
    """`juicefs sync` has another syntax than the volume."""
    assert migrate.Stores(OLD, "jfsstore", url).new_location("jfs") == location


def test_former_store_has_no_password_in_its_location() -> None:
    """The location is an argument, which every account can read."""
    assert STORES.old_location("jfs") == "jfsstore@st1:/objects/jfs/"


def test_a_volume_in_a_third_store_is_refused() -> None:
    """Only a move from the configured sftp store to the configured bucket is known."""
    assert STORES.in_use({"Storage": "sftp", "Bucket": OLD}) == "old"
    assert STORES.in_use({"Storage": "s3", "Bucket": NEW}) == "new"
    for storage, bucket in (("s3", "https://s3.example.com/train"), ("sftp", "st2:/objects/"), ("file", "/srv")):
        with pytest.raises(migrate.VolumeError, match=r"Fix: "):
            STORES.in_use({"Storage": storage, "Bucket": bucket})


def test_numbers_of_objects_are_read_from_the_last_line() -> None:
    """An output without that line is no success."""
    assert migrate.counts_in(DONE) == {"Found": 12, "skipped": 10, "copied": 1, "deleted": 2, "failed": 0}
    assert migrate.counts_in("<INFO>: Syncing\n") is None


PARAMS = {
    "program": "juicefs",
    "old_bucket": OLD,
    "account": "jfsstore",
    "new_bucket": NEW,
    "name": "jfs",
    "state_folder": "/nowhere",
    "threads": 20,
    "limit_mbps": 0,
    "limit_s": 60,
}
SOME_FAILED = (
    "<ERROR>: Failed to copy object chunks/0/0/1_0_50: ssh: handshake failed: EOF [worker@sync.go:812]\n"
    "<INFO>: Found: 12, skipped: 2, copied: 8, deleted: 0, failed: 2 [Sync@sync.go:2238]\n"
    "<FATAL>: failed to handle 2 objects [sync@sync.go:640]\n"
)


def migration(*answers: tuple[int, str]) -> tuple[Any, list[float]]:
    """Return a migration whose calls of `juicefs sync` answer these exit codes and outputs, and the pauses between them."""
    pauses: list[float] = []
    found = migrate.Migration(PARAMS, {}, pauses.append)
    calls = iter(answers)
    found._with_password = lambda _: next(calls)  # no terminal
    return found, pauses


def test_objects_that_failed_are_tried_again() -> None:
    """A store that was busy must not end a copy of hours. All copied objects count."""
    found, pauses = migration((1, SOME_FAILED), (0, DONE))

    assert found.sync(OLD, NEW) == {"Found": 12, "skipped": 10, "copied": 9, "deleted": 2, "failed": 0}
    assert pauses == [0.0, 5.0]


def test_a_copy_that_keeps_failing_ends_with_its_reason() -> None:
    """The last line of the program has only the number. A store that does not answer at all is tried once."""
    found, _ = migration((1, SOME_FAILED), (1, SOME_FAILED), (1, SOME_FAILED))
    silent, _ = migration((1, "<FATAL>: connect to st1 failed [main@main.go:1]\n"))

    with pytest.raises(
        migrate.VolumeError, match=r"2 objects failed: Failed to copy object chunks/0/0/1_0_50: ssh: handshake failed: EOF\. Fix"
    ):
        found.sync(OLD, NEW)
    with pytest.raises(migrate.VolumeError, match=r"failed: connect to st1 failed\. Fix"):
        silent.sync(OLD, NEW)


def test_sshd_of_the_store_accepts_as_many_logins_at_once_as_a_copy_starts() -> None:
    """By default it drops connections from the tenth on that has not logged in. The setting is global, so it comes before `Match`."""
    before = render("juicefs", "sshd.conf.j2").partition("Match ")[0]
    (limit,) = [line.split()[1] for line in before.splitlines() if line.startswith("MaxStartups ")]
    threads = variable("juicefs", "juicefs_migrate_threads", {"os_family": "Debian", "architecture": "x86_64"})

    assert int(limit.split(":")[0]) >= 3 * threads  # a client of the volume opens some 20 more


@pytest.mark.parametrize(
    ("settings", "complete"),
    [
        ({"Storage": "sftp", "Bucket": OLD, "SecretKey": "x"}, False),
        ({"Storage": "s3", "Bucket": NEW, "SecretKey": "x"}, False),  # switched, and not checked yet
        ({"Storage": "s3", "Bucket": NEW}, True),
    ],
)
def test_a_run_after_the_migration_only_reads(settings: dict[str, str], complete: bool) -> None:  # noqa: FBT001
    """Otherwise it would write the secrets of both stores again, and report changes."""
    found, _ = migration()
    found.status = lambda: {"Setting": settings}
    tasks = yaml.safe_load((content.roles_dir() / "juicefs/tasks/migrate.yml").read_text(encoding="utf-8"))
    order = [(task.get("ansible.builtin.include_tasks"), task.get("when", "")) for task in tasks]
    later = [when for name, when in order if name in ("migrate_copy.yml", "migrate_switch.yml")]

    assert found.look() == {"changed": False, "complete": complete}
    assert of_clients("_juicefs_moved", {"n1": {"__juicefs_look": found.look()}, "n2": {"__juicefs_look": {"skipped": True}}}) is complete
    assert [when.endswith(" and not _juicefs_moved") for when in later] == [True, True]


def test_only_expired_sessions_are_no_clients() -> None:
    """A client that was killed stays in the list until its session expires; a session without a time counts."""
    now = datetime(2026, 11, 28, 12, 0, tzinfo=timezone.utc)  # noqa: UP017 - as the module
    sessions = [
        {"HostName": "n1", "MountPoint": "/jfs", "Expire": "2026-11-28T12:00:41Z"},
        {"HostName": "n2", "MountPoint": "/jfs", "Expire": "2026-11-28T11:59:59Z"},
        {"HostName": "n3", "MountPoint": "s3gateway"},
    ]

    assert migrate.clients_of({"Sessions": sessions}, now) == ["n1:/jfs", "n3:s3gateway"]
    assert migrate.clients_of({"Sessions": None}, now) == []


@pytest.mark.parametrize(
    ("chosen", "url", "has"),
    [
        (False, NEW, "ACCESS_KEY=jfsstore"),
        (True, NEW, "AWS_ACCESS_KEY_ID=cluster"),
        (True, "", "ACCESS_KEY=jfsstore"),  # without hosts in object_store there is nothing to choose
    ],
)
def test_the_object_store_is_used_beside_sftp_only_if_it_is_chosen(chosen: bool, url: str, has: str) -> None:  # noqa: FBT001
    """A cluster that adds the group keeps its volume where it is."""
    known: dict[str, Any] = {
        "inventory_dir": "/site",
        "juicefs_sha256": "0" * 64,
        "juicefs_store_address": "st1",
        "juicefs_object_store_url": url,
        "juicefs_object_store_access_key": "cluster",
        "juicefs_use_object_store": chosen,
        "ansible_facts": {"os_family": "Debian", "architecture": "x86_64"},
    }
    text = render("juicefs", "secrets.env.j2", **known)

    assert has in text.splitlines()


def of_clients(name: str, hosts: dict[str, dict[str, Any]], **variables: Any) -> Any:
    """Return a variable of the role in a run on these clients, with what each of their tasks returned."""
    known = {host: {"inventory_hostname": host, "__juicefs_mount_check": {"rc": 0}, **results} for host, results in hosts.items()}
    facts = {"os_family": "Debian", "architecture": "x86_64"}
    return variable("juicefs", name, facts, ansible_play_hosts=list(hosts), hostvars=known, inventory_hostname="n2", **variables)


def test_first_client_that_can_mount_copies() -> None:
    """A container without FUSE has no program."""
    assert of_clients("_juicefs_migrate_host", {"n1": {"__juicefs_mount_check": {"rc": 3}}, "n2": {}, "n3": {}}) == "n2"
    assert of_clients("_juicefs_migrate_host", {"n1": {"__juicefs_mount_check": {"rc": 3}}}) == ""


def test_every_host_knows_who_uses_the_file_system() -> None:
    """So all of them stop before one unmounts."""
    hosts = {
        "n1": {"__juicefs_unused": {"rc": 0, "stdout": ""}},
        "n2": {"__juicefs_unused": {"rc": 4, "stdout": "train.py (7)\nbash (9)"}},
        "n3": {"__juicefs_unused": {"rc": 4, "stdout": "vim (3)"}},
    }

    assert of_clients("_juicefs_uses", hosts) == ["n2 by train.py (7), bash (9)", "n3 by vim (3)"]
    assert of_clients("_juicefs_uses", {"n1": hosts["n1"]}) == []


def test_a_client_that_did_not_unmount_prevents_the_switch() -> None:
    """Also one whose task failed or did not run."""
    done, failed = {"__juicefs_unmount": {"rc": 0}}, {"__juicefs_unmount": {"rc": 4}}

    assert of_clients("_juicefs_still_mounted", {"n1": done, "n2": failed, "n3": {}, "n4": {"__juicefs_unmount": {"skipped": True}}}) == [
        "n2",
        "n3",
        "n4",
    ]
    assert of_clients("_juicefs_still_mounted", {"n1": done, "n2": done}) == []


def test_only_a_complete_switch_counts() -> None:
    """The task is skipped on all hosts but one, and if a client is still mounted."""
    switch = {"changed": True, "problem": "", "complete": True}

    assert of_clients("_juicefs_switched", {"n1": {"__juicefs_switch": switch}, "n2": {"__juicefs_switch": {"skipped": True}}}) is True
    assert of_clients("_juicefs_switched", {"n1": {"__juicefs_switch": {**switch, "problem": "lost", "complete": False}}}) is False
    assert of_clients("_juicefs_switched", {"n1": {"__juicefs_switch": {"skipped": True}}, "n2": {}}) is False


def test_module_gets_both_stores() -> None:
    """The former one as the volume records it."""
    settings = of_clients(
        "_juicefs_migration",
        {"n1": {}},
        juicefs_store_address="st1",
        juicefs_object_store_url=NEW,
        juicefs_sha256="0" * 64,
        inventory_dir="/site",
    )

    assert (settings["old_bucket"], settings["account"], settings["new_bucket"], settings["name"]) == (OLD, "jfsstore", NEW, "jfs")
    assert (settings["threads"], settings["limit_mbps"], settings["limit_s"]) == (20, 0, 604800)


def test_clients_mount_again_only_after_the_switch() -> None:
    """The role runs on the clients after the migration, and a failed host stops the playbook before it."""
    plays = yaml.safe_load((content.playbooks_dir() / "day2/migrate_storage.yml").read_text(encoding="utf-8"))
    hosts = [(play.get("hosts"), "roles" in play, play.get("any_errors_fatal", False)) for play in plays if "hosts" in play]

    assert hosts == [("object_store", False, True), ("juicefs_client", False, True), ("juicefs_client", True, False)]
