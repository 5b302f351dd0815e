"""The record of what a host was, and putting back what roles brought: on made-up hosts that are folders."""

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
    """A host that is a folder: files are written into it, programs answer from a table."""

    def __init__(self, root: Path) -> None:
        """Make what every host has."""
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
        """Say whether a path of the host exists."""
        return (self.root / path.lstrip("/")).exists()

    def has_packages(self, *names: str) -> None:
        """Say which packages are installed."""
        self.programs.answers["dpkg-query --show"] = (0, "".join(f"installed {name}\n" for name in names))

    def host(self, *, check: bool = False) -> Any:
        """Return the host as the modules see it."""
        return put_back.Host("gpu1", check=check, root=str(self.root), run=self.programs)

    def take(self) -> None:
        """Take the record."""
        record.take(self.host())

    def put_back(self, *, check: bool = False, **wanted: Any) -> Any:
        """Put back, with nothing wanted but what is given."""
        host = self.host(check=check)
        empty = {name: option["default"] for name, option in put_back.OPTIONS.items()}
        put_back.put_back(host, {**empty, **wanted})
        return host


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Give a host with its record taken."""
    made = World(tmp_path)
    made.take()
    return made


def kept(host: Any) -> list[str]:
    """Return what a host says it kept."""
    return [one["reason"] for one in host.verdicts]


def test_the_record_is_taken_once_and_for_root_only(world: World) -> None:
    """A second take changes nothing, not even where the host has changed; nobody but root can look into the folder."""
    world.write("/etc/hosts", "changed\n")
    taken = record.take(world.host())
    folder = world.root / record.FOLDER.lstrip("/")

    assert not taken
    assert folder.stat().st_mode & 0o777 == 0o700
    assert record.copied(world.host(), "/etc/hosts")[1] == b"127.0.0.1 localhost\n"


def test_the_record_holds_no_password_and_no_private_key(tmp_path: Path) -> None:
    """Hashes of passwords and the host's own keys are not copied."""
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
    """In check mode the record is due, and is not there afterwards."""
    world = World(tmp_path)

    assert record.take(world.host(check=True))
    assert not world.there(record.FOLDER)


def test_files_of_ours_go_and_those_of_others_are_restored(world: World) -> None:
    """What was not there is removed, what was is as before to the byte and the mode, and a second time changes nothing."""
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


def test_check_mode_says_what_would_go_and_leaves_it(world: World) -> None:
    """In check mode the same changes are due, and every file stays."""
    world.write("/etc/primus/x", "ours\n")
    host = world.put_back(check=True, files=["/etc/primus"], packages=["redis-server"], accounts=["old"])

    assert [diff["before_header"] for diff in host.diffs] == ["/etc/primus"]
    assert world.there("/etc/primus/x")


def test_a_block_of_ours_goes_and_later_lines_stay(world: World) -> None:
    """Only the marked block is taken out: what somebody wrote since stays."""
    world.write("/etc/hosts", "# BEGIN primus-bootstrap\n10.0.0.1 gpu1\n# END primus-bootstrap\n127.0.0.1 localhost\n10.9.9.9 mine\n")
    world.put_back(blocks=["/etc/hosts"])

    assert world.read("/etc/hosts") == "127.0.0.1 localhost\n10.9.9.9 mine\n"


def test_packages_that_were_there_stay(world: World) -> None:
    """Only what was not there is purged; what another package has come to need since is kept, and says for whom."""
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


def test_what_nothing_needs_any_more_is_swept_at_the_end(world: World) -> None:
    """A package that apt would keep goes; what a package of somebody needs or recommends stays, and so does the kernel that runs."""
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
    host_origin.forget(host, delete_data=False)

    assert [call for call in world.programs.calls if " purge " in call] == ["apt-get --yes --quiet -o DPkg::Lock::Timeout=300 purge gawk"]


def test_a_purge_does_not_see_data_that_stay(world: World) -> None:
    """Data are out of the way while their package is purged, and back afterwards; where they are is said."""
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


def test_data_set_aside_by_a_killed_reset_come_back(world: World) -> None:
    """A reset that was killed in the middle of a purge is finished by the next one: the data are in their place again."""
    world.write("/var/lib/redis.primus-kept/dump.rdb", "data\n")
    data = [{"path": "/var/lib/redis", "account": ""}]
    world.put_back(data=data)

    assert world.read("/var/lib/redis/dump.rdb") == "data\n"

    (world.root / "var/lib/redis").rename(world.root / "var/lib/redis.primus-kept")
    world.put_back(data=data, delete_data=True)

    assert not world.there("/var/lib/redis")
    assert not world.there("/var/lib/redis.primus-kept")


@pytest.mark.parametrize(("was_there", "stays"), [(False, False), (True, True)])
def test_delete_data_takes_only_what_was_not_there(tmp_path: Path, *, was_there: bool, stays: bool) -> None:
    """With delete_data our data go; a folder that was there before the first apply is kept, and says so."""
    world = World(tmp_path)
    if was_there:
        world.write("/srv/objects/theirs", "x\n")
    world.take()
    world.write("/srv/objects/ours", "x\n")
    host = world.put_back(data=[{"path": "/srv/objects", "account": ""}], delete_data=True)

    assert world.there("/srv/objects/ours") is stays
    assert kept(host) == (["/srv/objects: it may have been there before the first apply"] if stays else [])


def test_data_kept_by_one_reset_go_with_a_later_one(world: World) -> None:
    """What a reset leaves on purpose is no part of the next record: a reset with delete_data after another apply removes it."""
    world.write("/srv/objects/ours", "x\n")
    data = [{"path": "/srv/objects", "account": ""}]
    world.put_back(data=data)
    host_origin.forget(world.host(), delete_data=False)
    world.take()
    world.put_back(data=data, delete_data=True)

    assert not world.there("/srv/objects")


def test_an_owner_goes_with_its_data_later(world: World) -> None:
    """An account and its group that a reset kept for its data go with them, also without an apply between; then nothing is left."""
    world.write("/etc/passwd", PASSWD + "keeper:x:900:900::/srv/objects:/usr/sbin/nologin\n")
    world.write("/etc/group", "root:x:0:\nold:x:1:\nkeeper:x:900:\n")
    world.write("/srv/objects/x", "x\n")
    wanted: Any = {"accounts": ["keeper"], "groups": ["keeper"], "data": [{"path": "/srv/objects", "account": "keeper"}]}
    world.put_back(**wanted)
    host_origin.forget(world.host(), delete_data=False)
    world.programs.calls.clear()
    world.put_back(**wanted, delete_data=True)
    host_origin.forget(world.host(), delete_data=True)

    assert [call for call in world.programs.calls if "keeper" in call] == [
        "loginctl terminate-user keeper",
        "userdel keeper",
        "groupdel keeper",
    ]
    assert not world.there("/var/lib/primus")


def test_a_role_that_shares_an_account_leaves_it_to_the_one_whose_data_it_owns(world: World) -> None:
    """Once it was kept for data, another role that brings it too lets it be: else each reset would remove and make it again."""
    world.write("/etc/passwd", PASSWD + "keeper:x:900:900::/srv/objects:/usr/sbin/nologin\n")
    world.write("/etc/group", "root:x:0:\nold:x:1:\nkeeper:x:900:\n")
    world.write("/srv/objects/x", "x\n")
    world.put_back(accounts=["keeper"], groups=["keeper"], data=[{"path": "/srv/objects", "account": "keeper"}])
    world.programs.calls.clear()
    world.put_back(accounts=["keeper"], groups=["keeper"])

    assert [call for call in world.programs.calls if "keeper" in call] == []


def test_a_home_folder_that_was_kept_goes_later(world: World) -> None:
    """A home folder stays when its account goes; a later reset with delete_data takes it, although the account is gone already."""
    world.write("/etc/passwd", PASSWD + "alice:x:5001:4000::/home/alice:/bin/sh\n")
    world.write("/home/alice/x", "x\n")
    first = world.put_back(accounts=["alice"])
    host_origin.forget(world.host(), delete_data=False)

    assert kept(first) == ["/home/alice: home folder of alice"]
    assert world.there("/home/alice")

    host_origin.forget(world.host(), delete_data=True)

    assert not world.there("/home/alice")
    assert not world.there("/var/lib/primus")


def test_an_account_that_owns_kept_data_stays_and_is_locked(world: World) -> None:
    """Its number must not go to somebody else; it has no password any more. Others go."""
    world.write("/etc/passwd", PASSWD + "keeper:x:900:900::/srv/objects:/usr/sbin/nologin\nalice:x:5001:4000::/home/alice:/bin/sh\n")
    world.write("/srv/objects/x", "x\n")
    world.programs.answers["passwd --status"] = (0, "keeper P 01/01/2026")
    host = world.put_back(accounts=["keeper", "alice"], data=[{"path": "/srv/objects", "account": "keeper"}])

    assert "userdel alice" in world.programs.calls
    assert "userdel keeper" not in world.programs.calls
    assert "usermod --password ! keeper" in world.programs.calls
    assert "account keeper: it owns data that stay" in kept(host)


def test_an_account_that_was_there_gets_its_shell_back(world: World) -> None:
    """An account of before is never removed; what a role changed of it is put back."""
    world.write("/etc/passwd", PASSWD.replace("/bin/sh\n", "/bin/bash\n"))
    world.put_back(accounts=["old"])

    assert [call for call in world.programs.calls if call.startswith("user")] == [
        f"usermod --gid {os.getgid()} --comment Old --home /home/old --shell /bin/sh old"
    ]


def test_kernel_values_are_as_before(world: World) -> None:
    """A parameter that a role set has its former value again."""
    world.write("/proc/sys/vm/max_map_count", "1048576\n")
    world.put_back(sysctl=["vm.max_map_count", "vm.absent"])

    assert world.read("/proc/sys/vm/max_map_count") == "65530"


def test_a_masked_unit_is_what_it_was(tmp_path: Path) -> None:
    """A timer that a role masked is unmasked, enabled and started, because it was before."""
    world = World(tmp_path)
    world.programs.answers["systemctl list-unit-files"] = (0, "apt-daily.timer enabled enabled\n")
    world.programs.answers["systemctl list-units"] = (0, "apt-daily.timer loaded active waiting x\n")
    world.take()
    world.programs.answers["systemctl list-unit-files"] = (0, "apt-daily.timer masked enabled\n")
    world.programs.answers["systemctl list-units"] = (0, "apt-daily.timer masked inactive dead x\n")
    world.put_back(package_units=["apt-daily.timer"])

    assert "systemctl unmask apt-daily.timer" in world.programs.calls
    assert "systemctl start apt-daily.timer" in world.programs.calls


def test_without_a_record_nothing_of_others_is_touched(tmp_path: Path) -> None:
    """A host without a record loses only files of ours: packages, units, accounts and files of others stay, and it is said."""
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


def test_a_service_that_nobody_knows_is_not_left_without_its_settings(tmp_path: Path) -> None:
    """Without a whole record the service of a package is ended before its settings go, and it is said how it comes again."""
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


def test_a_unit_that_does_not_stop_keeps_its_files(world: World) -> None:
    """Where a mount is busy its unit fails to stop: the rest of the role stays, the cause is named, and the next reset goes on."""
    world.write("/etc/systemd/system/juicefs.service", "[Unit]\n")
    world.programs.answers["systemctl list-units"] = (0, "juicefs.service loaded active running x\n")
    world.programs.answers["systemctl stop"] = (1, "target is busy")
    host = world.put_back(units=["juicefs.service"], files=["/etc/systemd/system/juicefs.service"])

    assert "target is busy. Fix: " in host.broken[0]
    assert world.there("/etc/systemd/system/juicefs.service")


def test_the_record_goes_last_and_names_what_others_changed(world: World) -> None:
    """At the end nothing of ours is left, and packages that somebody installed since are named, not removed."""
    world.has_packages("curl", "theirs")
    host = world.host()
    host_origin.forget(host, delete_data=False)

    assert kept(host) == ["packages: differ from before the first apply, by another hand than a role's: +theirs"]
    assert not world.there("/var/lib/primus")


def test_a_service_is_told_although_the_first_reset_was_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is set before a file goes: a reset that dies in between leaves it, and the next one tells the service."""
    world.write("/etc/ssh/sshd_config.d/ours.conf", "x\n")
    wanted: Any = {"files": ["/etc/ssh/sshd_config.d/ours.conf"], "tell": [{"name": "sshd", "argv": ["systemctl", "reload", "ssh"]}]}

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(put_back, "put_texts_back", die)
        with pytest.raises(KeyboardInterrupt):
            world.put_back(**wanted)
    world.put_back(**wanted)

    assert world.programs.calls.count("systemctl reload ssh") == 1


def test_a_folder_that_was_there_stays(world: World) -> None:
    """Folders that a role made go once they are empty; one that was there before stays although it is empty."""
    (world.root / "etc/new.d").mkdir()
    world.put_back(folders=["/etc/new.d", "/var/backups"])

    assert not world.there("/etc/new.d")
    assert world.there("/var/backups")


def test_the_keys_of_an_account_are_put_back(tmp_path: Path) -> None:
    """The keys that were there before come back, with their mode; those of an account that had none go."""
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
def test_keys_are_not_put_back_through_a_link(world: World, link: str) -> None:
    """An account that makes a link of its .ssh, or of the file in it, gets nothing of root's removed or written."""
    world.write("/root/.ssh/authorized_keys", "of root\n")
    target = "root/.ssh" if link == ".ssh" else "root/.ssh/authorized_keys"
    (world.root / "home/old" / link).parent.mkdir(exist_ok=True)
    (world.root / "home/old" / link).symlink_to(world.root / target)
    host = world.put_back(login_keys_of=["old"])

    assert world.read("/root/.ssh/authorized_keys") == "of root\n"
    assert host.broken == [] if link != ".ssh" else "is a symbolic link" in host.broken[0]
