"""The role `container_runtime`: an engine's settings from what a host allows, ranges of ids, and verdicts on containers that ran."""

from __future__ import annotations

import os
import pwd
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.inventory.ansible.role_filters import load_filters
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

filters: Any = load_filters("container_runtime")
host: Any = load_role_module("container_runtime", "container_host")
ranges: Any = load_role_module("container_runtime", "subordinate_ids")
effects: Any = load_role_module("container_runtime", "container_runtime_effects")

WANTED = {
    "storage_dir": "",
    "rootless_storage_dir": "",
    "storage_driver": "auto",
    "log_max_mib": 100,
    "log_files": 3,
    "pids_limit": 0,
    "netavark": True,
}
# A real server, and a container whose machine gives it little.
SERVER = {
    "container": "", "net_admin": True, "sys_admin": True, "mknod": True, "cgroup_version": 2, "cgroup_writable": True, "own_proc": True,
    "overlay": True, "fuse": False, "tun": True, "devices": [], "nvidia_ctk": "", "nvidia_runtime": "", "nvidia_refreshes": False,
}  # fmt: skip
CONTAINER = SERVER | {
    "container": "podman", "net_admin": False, "mknod": False, "cgroup_writable": False, "own_proc": False, "overlay": False, "tun": False,
}  # fmt: skip


def test_a_server_keeps_namespaces_of_its_own() -> None:
    """On a real server nothing is shared with containers, and the log has its bound in bytes."""
    got = filters.podman_settings(SERVER, WANTED)

    assert got == {
        "containers": {"log_driver": "k8s-file", "log_size_max": 104857600, "pids_limit": 0},
        "engine": {"runtime": "crun"},
        "network": {"network_backend": "netavark"},
    }


def test_a_container_shares_what_it_cannot_make() -> None:
    """Where no /proc can be mounted and no network made, containers take those of the host."""
    got = filters.podman_settings(CONTAINER, WANTED)["containers"]

    assert (got["pidns"], got["netns"]) == ("host", "host")


def test_a_server_that_refuses_a_trial_is_not_weakened() -> None:
    """A trial may fail on a server for reasons of its own (AppArmor); only a container gives up a namespace by itself."""
    got = filters.podman_settings(SERVER | {"own_proc": False, "tun": False}, WANTED)["containers"]

    assert {"pidns", "netns"} & set(got) == set()


def test_amd_keeps_the_callers_groups() -> None:
    """With /dev/kfd, a container of somebody without root keeps the groups that may open it."""
    got = filters.podman_settings(SERVER | {"devices": ["/dev/kfd"]}, WANTED)["containers"]

    assert got["annotations"] == ["run.oci.keep_original_groups=1"]


def test_the_sites_tables_win() -> None:
    """A table of the site's is merged into the role's, key by key."""
    got = filters.podman_settings(SERVER, WANTED, {"containers": {"pids_limit": 9, "shm_size": "16g"}, "machine": {"cpus": 2}})

    assert got["containers"] == {"log_driver": "k8s-file", "log_size_max": 104857600, "pids_limit": 9, "shm_size": "16g"}
    assert got["machine"] == {"cpus": 2}


@pytest.mark.parametrize(
    ("facts", "wanted", "driver", "program"),
    [
        (SERVER, {}, None, None),
        (SERVER, {"storage_dir": "/data/c"}, "overlay", None),
        (CONTAINER, {}, "vfs", None),
        (CONTAINER | {"fuse": True}, {}, "overlay", "/usr/bin/fuse-overlayfs"),
        (SERVER, {"storage_driver": "vfs"}, "vfs", None),
    ],
)
def test_layers_are_stacked_as_the_host_can(facts: Any, wanted: Any, driver: str | None, program: str | None) -> None:
    """The kernel's overlay first, then FUSE, then copies; where the distribution's file says the same there is none."""
    got = filters.storage_settings(facts, WANTED | wanted)

    assert got.get("storage", {}).get("driver") == driver
    assert got.get("storage.options.overlay", {}).get("mount_program") == program


def test_docker_runs_where_no_network_can_be_made() -> None:
    """Without CAP_NET_ADMIN the daemon would not start with a bridge; on a server it has one."""
    bare = filters.docker_settings(CONTAINER, WANTED)

    assert (bare["bridge"], bare["iptables"]) == ("none", False)
    assert filters.docker_settings(SERVER, WANTED) == {
        "live-restore": True,
        "log-driver": "json-file",
        "log-opts": {"max-size": "100m", "max-file": "3"},
    }


def test_docker_knows_nvidias_runtime_where_it_is() -> None:
    """The runtime is named only where its program is installed."""
    got = filters.docker_settings(SERVER | {"nvidia_runtime": "/usr/bin/nvidia-container-runtime"}, WANTED, {"debug": True})

    assert got["runtimes"] == {"nvidia": {"path": "/usr/bin/nvidia-container-runtime", "args": []}}
    assert got["debug"] is True


def test_tables_are_written_as_a_toml_parser_reads_them() -> None:
    """Every kind of value comes back as it was."""
    tables = {"containers": {"a": 'quote " and \\ back', "b": 7, "c": True, "d": ["x", "y"]}, "storage.options": {"e": "f"}}
    got = tomllib.loads(filters.to_toml(tables))

    assert got == {"containers": tables["containers"], "storage": {"options": {"e": "f"}}}


def test_ranges_that_exist_are_never_altered() -> None:
    """A new account gets the first free ids after all others; one with a range, by name or number, keeps it."""
    text = "ada:100000:65536\n4001:300000:65536"
    got = ranges.with_ranges(text, {"ada": 4000, "bob": 4001, "eve": 4002}, 65536)

    assert got == text + "\neve:365536:65536\n"
    assert ranges.with_ranges(got, {"ada": 4000, "bob": 4001, "eve": 4002}, 65536) == got


def test_a_line_that_is_none_is_refused() -> None:
    """A file that cannot be understood is not written over."""
    with pytest.raises(ranges.RangesError, match="line 2 is not NAME:FIRST:COUNT"):
        ranges.with_ranges("ada:100000:65536\nbob:x:1\n", {"eve": 4002}, 65536)


def test_ids_end() -> None:
    """Ranges beyond what login.defs gives out would meet those of others."""
    with pytest.raises(ranges.RangesError, match="no 65536 ids are left"):
        ranges.with_ranges("ada:600000000:65536\n", {"eve": 4002}, 65536)


def make_root(tmp_path: Path, capabilities: str) -> Path:
    """Return a made-up root of a host."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n", encoding="utf-8")
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name in ("kfd", "dri/renderD128", "dri/card0"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


def test_a_host_is_looked_at_and_not_guessed(tmp_path: Path) -> None:
    """Capabilities, devices and trials are what they are; a container is known by systemd's own mark."""
    root = make_root(tmp_path, "00000000802405fb")
    (root / "run/systemd").mkdir(parents=True)
    (root / "run/systemd/container").write_text("podman\n", encoding="utf-8")
    got = host.look(root, str(tmp_path), lambda _: 1, lambda _: None)

    assert (got["container"], got["net_admin"], got["sys_admin"], got["mknod"]) == ("podman", False, True, False)
    assert (got["own_proc"], got["overlay"], got["fuse"], got["nvidia_ctk"]) == (False, False, False, "")
    assert got["devices"] == ["/dev/dri/renderD128", "/dev/kfd"]


def test_a_trial_leaves_nothing_behind(tmp_path: Path) -> None:
    """The folder in which overlay was tried is gone, also where the stated one is yet to be made."""
    seen: list[Sequence[str]] = []

    def run(argv: Sequence[str]) -> int:
        seen.append(argv)
        return 0

    assert host.takes_overlay(str(tmp_path / "not/there"), run)
    assert seen[0][-1].startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


class Engine:
    """An engine that answers by the first word that fits, and the calls that it got."""

    def __init__(self, answers: dict[str, tuple[int, str]]) -> None:
        """Keep the answers by a text of the command line."""
        self.answers = answers
        self.calls: list[str] = []
        self.homes: set[tuple[str, str]] = set()

    def __call__(self, argv: Sequence[str], *, account: str = "", data: bytes = b"", home: str = "") -> tuple[int, str]:
        """Answer one call."""
        assert data is not None
        line = " ".join(argv)
        self.homes.add((account, home))
        self.calls.append(f"{account or 'root'}: {line}")
        return next((answer for text, answer in self.answers.items() if text in line), (0, ""))


def make_look(facts: Any, answers: dict[str, tuple[int, str]], **wanted: Any) -> Any:
    """Return a look at a host with such an engine."""
    defaults = {"host": "n1", "engine": "podman", "accounts": [], "log_max_mib": 1, "storage_dir": "", "apptainer_version": ""}
    return effects.Look({**defaults, "facts": facts, **wanted}, Engine(answers))


def verdicts(look: Any) -> dict[str, str]:
    """Return verdict by check, without the prefix."""
    return {record["check"].removeprefix("container_runtime."): record["verdict"] for record in look.verdicts}


def test_a_container_that_prints_passes() -> None:
    """What the container printed is what counts."""
    look = make_look(SERVER, {"echo ran": (0, "Storing signatures\nran in a container")})
    effects.look_at_root(look, b"")

    assert verdicts(look) == {"run": "pass", "run.devices": "skipped", "run.log_bound": "unknown"}


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [((126, "Error: crun: no"), "fail"), ((0, "something else"), "fail"), ((124, "no answer within 120 s"), "unknown")],
)
def test_a_container_that_does_not_print_is_no_pass(answer: tuple[int, str], verdict: str) -> None:
    """An error fails with what the engine said; a time-out is unknown. The image goes in any case."""
    look = make_look(SERVER, {"echo ran": answer})
    effects.look_at_root(look, b"")

    assert verdicts(look) == {"run": verdict}
    assert answer[1] in look.verdicts[0]["reason"]
    assert look.run.calls[-1] == "root: podman rmi --force localhost/primus-verify:1"


def test_an_image_that_cannot_be_made_fails() -> None:
    """Where the import fails nothing is run, and the reason is the import's."""
    look = make_look(SERVER, {"import": (125, "no space left on device")})
    effects.look_at_root(look, b"")

    assert verdicts(look) == {"run": "fail"}
    assert "no space left on device" in look.verdicts[0]["reason"]


def test_root_is_skipped_only_where_a_container_lacks_something() -> None:
    """The reason names what is lacking; a container that has all is judged like a server."""
    look = make_look(CONTAINER, {})
    effects.look_at_root(look, b"")

    assert verdicts(look) == {"run": "skipped"}
    assert look.verdicts[0]["reason"] == (
        "this podman container gives root no CAP_MKNOD, CAP_NET_ADMIN and has read-only control groups, so root can run no container in it"
    )
    assert make_look(SERVER | {"container": "podman"}, {}).refused_to_root() == ""
    assert make_look(SERVER | {"mknod": False}, {}).refused_to_root() == ""


def test_a_missing_device_fails() -> None:
    """Each node of the host must be there inside, and open for reading and writing."""
    facts = SERVER | {"devices": ["/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/kfd"]}
    look = make_look(facts, {"test -r": (0, "/dev/dri/renderD128\n/dev/kfd")})
    effects.look_at_devices(look, "run", account="")

    assert verdicts(look) == {"run.devices": "fail"}
    assert look.verdicts[0]["found"] == "/dev/dri/renderD128 /dev/kfd"
    assert "--device=/dev/kfd --device=/dev/dri" in look.run.calls[0]


@pytest.mark.parametrize(("engine", "word"), [("docker", "--gpus=all"), ("podman", "--device=nvidia.com/gpu=all")])
def test_nvidias_devices_come_by_each_engines_own_word(engine: str, word: str) -> None:
    """Docker has a flag of its own, podman takes the Container Device Interface; as primus-cli gives them."""
    words, nodes = effects.device_words(["/dev/nvidia0", "/dev/infiniband/uverbs0"], engine)

    assert words == [word, "--device=/dev/infiniband"]
    assert nodes == ["/dev/nvidia0", "/dev/infiniband/uverbs0"]


def test_people_without_a_home_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder that is mounted later says nothing about podman."""
    monkeypatch.setattr(effects.pwd, "getpwnam", lambda _: type("Entry", (), {"pw_dir": "/nowhere/ada"}))
    look = make_look(SERVER, {}, accounts=["ada"])
    effects.look_at_people(look, b"")

    assert verdicts(look) == {"run_without_root": "unknown"}
    assert look.run.calls == []


def test_the_home_of_an_account_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine keeps the images of the verification in a folder of the account's below one of root's, which is gone afterwards."""
    me = pwd.getpwuid(os.getuid())
    monkeypatch.setattr(effects, "HOMES", str(tmp_path / "verify"))
    monkeypatch.setattr(
        effects.pwd, "getpwnam", lambda _: type("Entry", (), {"pw_dir": str(tmp_path), "pw_uid": me.pw_uid, "pw_gid": me.pw_gid})
    )
    look = make_look(SERVER, {"echo ran": (0, "ran in a container")}, accounts=["ada"])
    effects.look_at_people(look, b"")
    ((account, home),) = look.run.homes

    assert verdicts(look)["run_without_root"] == "pass"
    assert account == "ada"
    assert home.startswith(f"{tmp_path}/verify/ada-")
    assert list((tmp_path / "verify").iterdir()) == []
    assert (tmp_path / "verify").stat().st_mode & 0o777 == 0o711


def test_docker_is_root_s_alone() -> None:
    """Nobody without root is tried with docker; its daemon must answer, and another bound of logs fails."""
    look = make_look(CONTAINER, {"docker info": (1, "Cannot connect"), "inspect": (0, "9m")}, engine="docker", accounts=["ada"])
    effects.look_at_people(look, b"")
    effects.look_at_daemon(look)
    effects.look_at_docker_log(look, b"")

    assert verdicts(look) == {"daemon": "fail", "run.log_bound": "fail"}


def test_the_bound_of_a_log_is_read_from_what_writes_it(tmp_path: Path) -> None:
    """Only the process of this container counts."""
    for number, identifier in ((1, "aaa"), (2, "bbb")):
        (tmp_path / str(number)).mkdir()
        words = ["/usr/bin/conmon", "-c", identifier, "--log-size-max", f"{number}000"]
        (tmp_path / str(number) / "cmdline").write_bytes("\0".join(words).encode())

    assert effects.conmon_bound("bbb", f"{tmp_path}/*/cmdline") == "2000"
    assert effects.conmon_bound("ccc", f"{tmp_path}/*/cmdline") == ""
    assert effects.conmon_bound("", f"{tmp_path}/*/cmdline") == ""


def test_libraries_are_read_as_ldd_prints_them() -> None:
    """The loader's line has no arrow, the kernel's page no file."""
    lines = [
        "linux-vdso.so.1 (0x00007ffd8)",
        "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)",
        "/lib64/ld-linux-x86-64.so.2 (0x00007f2)",
    ]

    assert effects.libraries_in("".join(f"\t{line}\n" for line in lines)) == [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/ld-linux-x86-64.so.2",
    ]


def test_another_version_of_apptainer_fails() -> None:
    """The version is compared before anything is run with it; none at all is a fail, and nothing is run."""
    look = make_look(SERVER, {"--version": (127, "")}, apptainer_version="1.4.5")
    effects.look_at_apptainer(look, b"")

    assert verdicts(look) == {"apptainer": "fail"}
