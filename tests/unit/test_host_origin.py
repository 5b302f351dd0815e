"""The record of the original state of a host, and its restoration, on fake hosts in folders."""

from __future__ import annotations

import os
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import Programs, load_role_module

if TYPE_CHECKING:
    from pathlib import Path

put_back = load_role_module("host_origin", "put_back")
host_origin = load_role_module("host_origin", "host_origin")
record = put_back.origin_record
ME = f"{os.getuid()}:{os.getgid()}"
PASSWD = f"root:x:0:0:root:/root:/bin/sh\nold:x:{ME}:Old:/home/old:/bin/sh\n"


class World:
    """A host in a folder, with program output from a table."""

    def __init__(self, root: Path) -> None:
        """Create the files of every host."""
        self.root = root
        self.programs = Programs()
        for folder in ("etc", "usr/bin", "var/lib", "var/backups", "proc/sys/vm", "home/old", "run", "srv"):
            (root / folder).mkdir(parents=True)
        (root / "usr/bin/dpkg-query").touch()
        (root / "usr/bin/apt-get").touch()
        self.write("/etc/passwd", PASSWD)
        self.write("/etc/group", "root:x:0:\nold:x:1:\n")
        self.write("/etc/hosts", "127.0.0.1 localhost\n")
        self.write("/proc/sys/vm/max_map_count", "65530\n")
        self.has_packages("curl")

    def write(self, path: str, text: str) -> None:
        """Write a file of the host."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def read(self, path: str) -> str:
        """Read a file of the host."""
        return (self.root / path.lstrip("/")).read_text()

    def there(self, path: str) -> bool:
        """Return whether a path of the host exists."""
        return (self.root / path.lstrip("/")).exists()

    def has_packages(self, *names: str) -> None:
        """Set the installed packages."""
        self.programs.answers["dpkg-query --show"] = (0, "".join(f"installed {name}\n" for name in names))

    def host(self, *, check: bool = False) -> Any:
        """Return the host as the modules receive it."""
        return put_back.Host("gpu1", check=check, root=str(self.root), run=self.programs)

    def take(self) -> None:
        """Take the record."""
        record.record(self.host())

    def put_back(self, *, check: bool = False, **wanted: Any) -> Any:
        """Restore the host, with these parts only."""
        host = self.host(check=check)
        empty = {name: option["default"] for name, option in put_back.OPTIONS.items()}
        put_back.put_back(host, {**empty, **wanted})
        return host


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a host with a record."""
    made = World(tmp_path)
    made.take()
    return made


def kept(host: Any) -> list[str]:
    """Return the list of parts that the host kept."""
    return [one["reason"] for one in host.verdicts]


def test_record_is_taken_once_and_is_readable_by_root_only(world: World) -> None:
    """A second run changes nothing, even after changes of the host."""
    world.write("/etc/hosts", "changed\n")
    taken = record.record(world.host())
    folder = world.root / record.FOLDER.lstrip("/")

    assert not taken
    assert folder.stat().st_mode & 0o777 == 0o700
    assert record.copied(world.host(), "/etc/hosts")[1] == b"127.0.0.1 localhost\n"


def test_record_contains_no_password_and_no_private_key(tmp_path: Path) -> None:
    """Password hashes and host keys are not copied."""
    world = World(tmp_path)
    world.write("/etc/shadow", "root:secret:1\n")
    world.write("/etc/ssh/ssh_host_ed25519_key", "secret\n")
    world.write("/etc/ssh/sshd_config", "Port 22\n")
    world.take()
    with tarfile.open(tmp_path / record.FOLDER.lstrip("/") / "files.tar") as archive:
        names = archive.getnames()

    assert "etc/ssh/sshd_config" in names
    assert not {"etc/shadow", "etc/ssh/ssh_host_ed25519_key"} & set(names)


def test_check_mode_takes_no_record(tmp_path: Path) -> None:
    """It reports the pending record."""
    world = World(tmp_path)

    assert record.record(world.host(check=True))
    assert not world.there(record.FOLDER)


def test_own_files_are_removed_and_other_files_restored(world: World) -> None:
    """Content and mode are restored; a second run changes nothing."""
    world.write("/etc/hosts", "ours\n")
    world.write("/etc/primus/x", "ours\n")
    world.write("/opt/tool/bin", "ours\n")
    (world.root / "etc/hosts").chmod(0o600)
    host = world.put_back(files=["/etc/primus", "/opt/tool"], replaced=["/etc/hosts"])
    again = world.put_back(files=["/etc/primus", "/opt/tool"], replaced=["/etc/hosts"])

    assert [diff["before_header"] for diff in host.diffs] == ["/etc/primus", "/opt/tool", "/etc/hosts", "systemctl daemon-reload"]
    assert again.diffs == []
    assert world.read("/etc/hosts") == "127.0.0.1 localhost\n"
    assert (world.root / "etc/hosts").stat().st_mode & 0o777 == 0o644
    assert not world.there("/etc/primus")
    assert not world.there("/opt/tool")


def test_check_mode_removes_no_file(world: World) -> None:
    """It reports the same changes."""
    world.write("/etc/primus/x", "ours\n")
    host = world.put_back(check=True, files=["/etc/primus"], packages=["redis-server"], accounts=["old"])

    assert [diff["before_header"] for diff in host.diffs] == ["/etc/primus"]
    assert world.there("/etc/primus/x")


def test_own_block_is_removed_and_later_lines_stay(world: World) -> None:
    """Only the marked block is removed."""
    world.write("/etc/hosts", "# BEGIN primus-bootstrap\n10.0.0.1 gpu1\n# END primus-bootstrap\n127.0.0.1 localhost\n10.9.9.9 mine\n")
    world.put_back(blocks=["/etc/hosts"])

    assert world.read("/etc/hosts") == "127.0.0.1 localhost\n10.9.9.9 mine\n"


def test_installed_packages_stay(world: World) -> None:
    """Only new packages are purged. If another package needs one, it stays and the report names that package."""
    world.has_packages("curl", "redis-server", "jq", "theirs")
    world.programs.answers["apt-mark showmanual"] = (0, "theirs\njq\nredis-server\n")
    simulated = {"jq": "Purg jq [1]\nPurg theirs [1]\n", "redis-server": "Purg redis-server [1]\n"}

    def simulate(argv: list[str]) -> tuple[int, str]:
        if "--simulate" in argv:
            return 0, "".join(text for name, text in simulated.items() if name in argv)
        return world.programs(argv)

    host = world.host()
    host.run = simulate
    empty = {name: option["default"] for name, option in put_back.OPTIONS.items()}
    put_back.put_back(host, {**empty, "packages": ["curl", "jq", "redis-server"]})
    purged = [call for call in world.programs.calls if " purge " in call]

    assert purged == ["apt-get --yes --quiet -o DPkg::Lock::Timeout=300 purge redis-server"]
    assert kept(host) == ["package jq: needed by theirs"]


def test_unneeded_packages_are_removed_at_the_end(world: World) -> None:
    """Packages that others need or recommend, and the running kernel, stay."""
    kernel = "linux-image-6.1.0-41-amd64"
    world.has_packages("curl", "gawk", "libneeded", "theirs", "theirs-doc", "theirs-extra", kernel)
    world.programs.answers["apt-mark showauto"] = (0, f"curl\ngawk\nlibneeded\ntheirs-doc\ntheirs-extra\n{kernel}\n")
    world.programs.answers["uname -r"] = (0, "6.1.0-41-amd64\n")

    def simulate(argv: list[str]) -> tuple[int, str]:
        if "--simulate" in argv:
            along = ["theirs"] if "libneeded" in argv else []
            return 0, "".join(f"Purg {name} [1]\n" for name in [*argv[argv.index("purge") + 1 :], *along])
        if "Recommends" in argv[-1]:
            return 0, "theirs\ttheirs-doc (>= 1) | other, theirs-extra\ngawk\t\n"
        return world.programs(argv)

    host = world.host()
    host.run = simulate
    host_origin.remove_record(host, delete_data=False)

    assert [call for call in world.programs.calls if " purge " in call] == ["apt-get --yes --quiet -o DPkg::Lock::Timeout=300 purge gawk"]


def test_purge_does_not_remove_kept_data(world: World) -> None:
    """The data are moved during the purge and moved back; the report has their path."""
    world.write("/var/lib/redis/dump.rdb", "data\n")
    world.has_packages("curl", "redis-server")
    seen: list[bool] = []

    def purge(argv: list[str]) -> tuple[int, str]:
        if "purge" in argv and "--simulate" not in argv:
            seen.append(world.there("/var/lib/redis"))
        return world.programs(argv)

    host = world.host()
    host.run = purge
    empty = {name: option["default"] for name, option in put_back.OPTIONS.items()}
    data = [{"path": "/var/lib/redis", "account": ""}]
    put_back.put_back(host, {**empty, "packages": ["redis-server"], "data": data})

    assert seen == [False]
    assert world.read("/var/lib/redis/dump.rdb") == "data\n"
    assert kept(host) == ["/var/lib/redis: data"]


def test_data_of_an_interrupted_reset_are_moved_back(world: World) -> None:
    """The next reset finishes the purge."""
    world.write("/var/lib/redis.primus-kept/dump.rdb", "data\n")
    data = [{"path": "/var/lib/redis", "account": ""}]
    world.put_back(data=data)

    assert world.read("/var/lib/redis/dump.rdb") == "data\n"

    (world.root / "var/lib/redis").rename(world.root / "var/lib/redis.primus-kept")
    world.put_back(data=data, delete_data=True)

    assert not world.there("/var/lib/redis")
    assert not world.there("/var/lib/redis.primus-kept")


@pytest.mark.parametrize(("was_there", "stays"), [(False, False), (True, True)])
def test_delete_data_removes_only_new_data(tmp_path: Path, *, was_there: bool, stays: bool) -> None:
    """A folder that existed before the first apply stays and is reported."""
    world = World(tmp_path)
    if was_there:
        world.write("/srv/objects/theirs", "x\n")
    world.take()
    world.write("/srv/objects/ours", "x\n")
    host = world.put_back(data=[{"path": "/srv/objects", "account": ""}], delete_data=True)

    assert world.there("/srv/objects/ours") is stays
    assert kept(host) == (["/srv/objects: it may have existed before the first apply"] if stays else [])


def test_kept_data_are_removed_by_a_later_reset(world: World) -> None:
    """Kept data are not part of the next record, so delete_data after another apply removes them."""
    world.write("/srv/objects/ours", "x\n")
    data = [{"path": "/srv/objects", "account": ""}]
    world.put_back(data=data)
    host_origin.remove_record(world.host(), delete_data=False)
    world.take()
    world.put_back(data=data, delete_data=True)

    assert not world.there("/srv/objects")


def test_owner_is_removed_with_its_kept_data(world: World) -> None:
    """Account and group are removed with the data, also without an apply in between."""
    world.write("/etc/passwd", PASSWD + "keeper:x:900:900::/srv/objects:/usr/sbin/nologin\n")
    world.write("/etc/group", "root:x:0:\nold:x:1:\nkeeper:x:900:\n")
    world.write("/srv/objects/x", "x\n")
    wanted: Any = {"accounts": ["keeper"], "groups": ["keeper"], "data": [{"path": "/srv/objects", "account": "keeper"}]}
    world.put_back(**wanted)
    host_origin.remove_record(world.host(), delete_data=False)
    world.programs.calls.clear()
    world.put_back(**wanted, delete_data=True)
    host_origin.remove_record(world.host(), delete_data=True)

    assert [call for call in world.programs.calls if "keeper" in call] == [
        "loginctl terminate-user keeper",
        "userdel keeper",
        "groupdel keeper",
    ]
    assert not world.there("/var/lib/primus")


def test_shared_account_stays_for_its_data(world: World) -> None:
    """Another role with the same account does not remove it; otherwise each reset would remove and create it."""
    world.write("/etc/passwd", PASSWD + "keeper:x:900:900::/srv/objects:/usr/sbin/nologin\n")
    world.write("/etc/group", "root:x:0:\nold:x:1:\nkeeper:x:900:\n")
    world.write("/srv/objects/x", "x\n")
    world.put_back(accounts=["keeper"], groups=["keeper"], data=[{"path": "/srv/objects", "account": "keeper"}])
    world.programs.calls.clear()
    world.put_back(accounts=["keeper"], groups=["keeper"])

    assert [call for call in world.programs.calls if "keeper" in call] == []


def test_kept_home_folder_is_removed_later(world: World) -> None:
    """A later reset with delete_data removes it, although the account no longer exists."""
    world.write("/etc/passwd", PASSWD + "alice:x:5001:4000::/home/alice:/bin/sh\n")
    world.write("/home/alice/x", "x\n")
    first = world.put_back(accounts=["alice"])
    host_origin.remove_record(world.host(), delete_data=False)

    assert kept(first) == ["/home/alice: home folder of alice"]
    assert world.there("/home/alice")

    host_origin.remove_record(world.host(), delete_data=True)

    assert not world.there("/home/alice")
    assert not world.there("/var/lib/primus")


def test_owner_of_kept_data_stays_and_is_locked(world: World) -> None:
    """Its id must not be reused; its password is locked. Other accounts are removed."""
    world.write("/etc/passwd", PASSWD + "keeper:x:900:900::/srv/objects:/usr/sbin/nologin\nalice:x:5001:4000::/home/alice:/bin/sh\n")
    world.write("/srv/objects/x", "x\n")
    world.programs.answers["passwd --status"] = (0, "keeper P 01/01/2026")
    host = world.put_back(accounts=["keeper", "alice"], data=[{"path": "/srv/objects", "account": "keeper"}])

    assert "userdel alice" in world.programs.calls
    assert "userdel keeper" not in world.programs.calls
    assert "usermod --password ! keeper" in world.programs.calls
    assert "account keeper: it owns data that were kept" in kept(host)


def test_original_account_gets_its_shell_back(world: World) -> None:
    """It is never removed; changes of roles are reverted."""
    world.write("/etc/passwd", PASSWD.replace("/bin/sh\n", "/bin/bash\n"))
    world.put_back(accounts=["old"])

    assert [call for call in world.programs.calls if call.startswith("user")] == [
        f"usermod --gid {os.getgid()} --comment Old --home /home/old --shell /bin/sh old"
    ]


def test_kernel_values_are_restored(world: World) -> None:
    """A parameter that a role set gets its original value."""
    world.write("/proc/sys/vm/max_map_count", "1048576\n")
    world.put_back(sysctl=["vm.max_map_count", "vm.absent"])

    assert world.read("/proc/sys/vm/max_map_count") == "65530"


def test_masked_unit_is_restored(tmp_path: Path) -> None:
    """A timer that was enabled and active is unmasked, enabled and started."""
    world = World(tmp_path)
    world.programs.answers["systemctl list-unit-files"] = (0, "apt-daily.timer enabled enabled\n")
    world.programs.answers["systemctl list-units"] = (0, "apt-daily.timer loaded active waiting x\n")
    world.take()
    world.programs.answers["systemctl list-unit-files"] = (0, "apt-daily.timer masked enabled\n")
    world.programs.answers["systemctl list-units"] = (0, "apt-daily.timer masked inactive dead x\n")
    world.put_back(package_units=["apt-daily.timer"])

    assert "systemctl unmask apt-daily.timer" in world.programs.calls
    assert "systemctl start apt-daily.timer" in world.programs.calls


def test_without_a_record_foreign_items_stay(tmp_path: Path) -> None:
    """Only our files are removed. Packages, units, accounts and other files stay and are reported."""
    world = World(tmp_path)
    world.write("/etc/primus/x", "ours\n")
    world.write("/etc/chrony.conf", "ours or theirs\n")
    world.has_packages("curl", "chrony")
    world.programs.answers["systemctl list-units"] = (0, "chrony.service loaded active running x\n")
    host = world.put_back(
        files=["/etc/primus"], replaced=["/etc/chrony.conf"], packages=["chrony"], system_units=["chrony.service"], accounts=["old"]
    )
    changes = [call for call in world.programs.calls if call.split()[0] in {"userdel", "usermod"} or "purge" in call or " stop " in call]

    assert changes == []
    assert not world.there("/etc/primus")
    assert world.there("/etc/chrony.conf")
    assert len(kept(host)) == 2


def test_service_is_stopped_before_its_settings_are_removed(tmp_path: Path) -> None:
    """Without a complete record the report says how to start it again."""
    world = World(tmp_path)
    world.write("/etc/registry.yml", "tls: on\n")
    world.programs.answers["systemctl list-unit-files"] = (0, "registry.service enabled enabled\n")
    world.programs.answers["systemctl list-units"] = (0, "registry.service loaded active running x\n")
    host = world.put_back(package_units=["registry.service", "absent.service"], files=["/etc/registry.yml"])

    assert [call for call in world.programs.calls if " stop " in call or " disable " in call] == [
        "systemctl stop registry.service",
        "systemctl disable registry.service",
    ]
    assert [one["device"] for one in host.verdicts] == ["registry.service"]
    assert "systemctl enable --now registry.service" in host.verdicts[0]["fix"]


def test_unit_that_does_not_stop_keeps_its_files(world: World) -> None:
    """A busy mount blocks the stop. The rest of the role stays, the cause is reported, and the next reset continues."""
    world.write("/etc/systemd/system/juicefs.service", "[Unit]\n")
    world.programs.answers["systemctl list-units"] = (0, "juicefs.service loaded active running x\n")
    world.programs.answers["systemctl stop"] = (1, "target is busy")
    host = world.put_back(units=["juicefs.service"], files=["/etc/systemd/system/juicefs.service"])

    assert "target is busy. Fix: " in host.failures[0]
    assert world.there("/etc/systemd/system/juicefs.service")


def test_record_is_removed_last_and_foreign_changes_are_listed(world: World) -> None:
    """Packages that were installed since are listed and stay."""
    world.has_packages("curl", "theirs")
    host = world.host()
    host_origin.remove_record(host, delete_data=False)

    assert kept(host) == ["packages: differ from before the first apply, and no role changed them: +theirs"]
    assert not world.there("/var/lib/primus")


def test_service_restarts_after_an_interrupted_reset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is written before a file is removed, so the next reset restarts the service."""
    world.write("/etc/ssh/sshd_config.d/ours.conf", "x\n")
    wanted: Any = {
        "files": ["/etc/ssh/sshd_config.d/ours.conf"],
        "notify_commands": [{"name": "sshd", "argv": ["systemctl", "reload", "ssh"]}],
    }

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(put_back, "remove_marked_text", die)
        with pytest.raises(KeyboardInterrupt):
            world.put_back(**wanted)
    world.put_back(**wanted)

    assert world.programs.calls.count("systemctl reload ssh") == 1


def test_original_folder_stays(world: World) -> None:
    """Folders of roles are removed when empty; original ones stay, even if empty."""
    (world.root / "etc/new.d").mkdir()
    world.put_back(folders=["/etc/new.d", "/var/backups"])

    assert not world.there("/etc/new.d")
    assert world.there("/var/backups")


def test_authorized_keys_are_restored(tmp_path: Path) -> None:
    """Original keys return with their mode; new key files are removed."""
    world = World(tmp_path)
    world.write("/home/old/.ssh/authorized_keys", "before\n")
    world.write("/etc/passwd", PASSWD + f"new:x:{ME}::/home/new:/bin/sh\n")
    (tmp_path / "home/new/.ssh").mkdir(parents=True)
    world.take()
    world.write("/home/old/.ssh/authorized_keys", "of the role\n")
    world.write("/home/new/.ssh/authorized_keys", "of the role\n")
    checked = world.put_back(login_keys_of=["old", "new"], check=True)
    before = world.read("/home/old/.ssh/authorized_keys")
    host = world.put_back(login_keys_of=["old", "new", "gone"])

    assert len(checked.diffs) == len(host.diffs) == 2
    assert before == "of the role\n"
    assert world.read("/home/old/.ssh/authorized_keys") == "before\n"
    assert not world.there("/home/new/.ssh/authorized_keys")
    assert world.put_back(login_keys_of=["old", "new"]).diffs == []


@pytest.mark.parametrize("link", [".ssh", ".ssh/authorized_keys"])
def test_keys_are_not_restored_through_a_link(world: World, link: str) -> None:
    """An account could redirect the write to root's files with a link at .ssh or the file."""
    world.write("/root/.ssh/authorized_keys", "of root\n")
    target = "root/.ssh" if link == ".ssh" else "root/.ssh/authorized_keys"
    (world.root / "home/old" / link).parent.mkdir(exist_ok=True)
    (world.root / "home/old" / link).symlink_to(world.root / target)
    host = world.put_back(login_keys_of=["old"])

    assert world.read("/root/.ssh/authorized_keys") == "of root\n"
    assert host.failures == [] if link != ".ssh" else "is a symbolic link" in host.failures[0]
