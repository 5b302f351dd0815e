"""Role `container_runtime`: engine settings derived from the host, ranges of subordinate ids, and verdicts on test containers."""

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
# A real server, and a container with few privileges.
SERVER = {
    "container": "", "net_admin": True, "sys_admin": True, "mknod": True, "cgroup_version": 2, "cgroup_writable": True, "own_proc": True,
    "overlay": True, "fuse": False, "tun": True, "devices": [], "nvidia_ctk": "", "nvidia_runtime": "", "nvidia_refreshes": False,
}  # fmt: skip
CONTAINER = SERVER | {
    "container": "podman", "net_admin": False, "mknod": False, "cgroup_writable": False, "own_proc": False, "overlay": False, "tun": False,
}  # fmt: skip


def test_server_uses_separate_namespaces() -> None:
    """On a server, containers share no namespace with the host and the log size is limited in bytes."""
    got = filters.podman_settings(SERVER, WANTED)

    assert got == {
        "containers": {"log_driver": "k8s-file", "log_size_max": 104857600, "pids_limit": 0},
        "engine": {"runtime": "crun"},
        "network": {"network_backend": "netavark"},
    }


def test_container_shares_namespaces_that_it_cannot_create() -> None:
    """If /proc cannot be mounted or no network can be created, containers use those of the host."""
    got = filters.podman_settings(CONTAINER, WANTED)["containers"]

    assert (got["pidns"], got["netns"]) == ("host", "host")


def test_failed_trial_does_not_weaken_a_server() -> None:
    """A trial may fail on a server for other reasons (AppArmor). Only a container gives up namespaces automatically."""
    got = filters.podman_settings(SERVER | {"own_proc": False, "tun": False}, WANTED)["containers"]

    assert {"pidns", "netns"} & set(got) == set()


def test_amd_keeps_supplementary_groups() -> None:
    """With /dev/kfd, rootless containers keep the groups that may open it."""
    got = filters.podman_settings(SERVER | {"devices": ["/dev/kfd"]}, WANTED)["containers"]

    assert got["annotations"] == ["run.oci.keep_original_groups=1"]


def test_site_tables_take_precedence() -> None:
    """A table of the site is merged into the role's, key by key."""
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
def test_storage_driver_depends_on_the_host(facts: Any, wanted: Any, driver: str | None, program: str | None) -> None:
    """Order: kernel overlay, FUSE, copies. If the distribution's file has the same setting, none is written."""
    got = filters.storage_settings(facts, WANTED | wanted)

    assert got.get("storage", {}).get("driver") == driver
    assert got.get("storage.options.overlay", {}).get("mount_program") == program


def test_docker_runs_without_a_bridge_if_no_network_can_be_created() -> None:
    """Without CAP_NET_ADMIN the daemon fails to start with a bridge. A server gets one."""
    bare = filters.docker_settings(CONTAINER, WANTED)

    assert (bare["bridge"], bare["iptables"]) == ("none", False)
    assert filters.docker_settings(SERVER, WANTED) == {
        "live-restore": True,
        "log-driver": "json-file",
        "log-opts": {"max-size": "100m", "max-file": "3"},
    }


def test_docker_uses_the_nvidia_runtime_if_installed() -> None:
    """The runtime is configured only if its program is installed."""
    got = filters.docker_settings(SERVER | {"nvidia_runtime": "/usr/bin/nvidia-container-runtime"}, WANTED, {"debug": True})

    assert got["runtimes"] == {"nvidia": {"path": "/usr/bin/nvidia-container-runtime", "args": []}}
    assert got["debug"] is True


def test_written_tables_are_read_back_by_a_toml_parser() -> None:
    """Values of every type survive the round trip."""
    tables = {"containers": {"a": 'quote " and \\ back', "b": 7, "c": True, "d": ["x", "y"]}, "storage.options": {"e": "f"}}
    got = tomllib.loads(filters.to_toml(tables))

    assert got == {"containers": tables["containers"], "storage": {"options": {"e": "f"}}}


def test_existing_id_ranges_stay_unchanged() -> None:
    """New accounts get the first free ids after all others. Accounts with a range, by name or number, keep it."""
    text = "ada:100000:65536\n4001:300000:65536"
    got = ranges.with_ranges(text, {"ada": 4000, "bob": 4001, "eve": 4002}, 65536)

    assert got == text + "\neve:365536:65536\n"
    assert ranges.with_ranges(got, {"ada": 4000, "bob": 4001, "eve": 4002}, 65536) == got


def test_malformed_line_is_refused() -> None:
    """An unreadable file is not overwritten."""
    with pytest.raises(ranges.RangesError, match="line 2 is not NAME:FIRST:COUNT"):
        ranges.with_ranges("ada:100000:65536\nbob:x:1\n", {"eve": 4002}, 65536)


def test_id_ranges_end_at_the_limit_of_login_defs() -> None:
    """Ranges beyond the limit would overlap with others."""
    with pytest.raises(ranges.RangesError, match="no 65536 ids are left"):
        ranges.with_ranges("ada:600000000:65536\n", {"eve": 4002}, 65536)


def make_root(tmp_path: Path, capabilities: str) -> Path:
    """Return the fake root folder of a host."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n", encoding="utf-8")
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name in ("kfd", "dri/renderD128", "dri/card0"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


def test_host_capabilities_are_detected(tmp_path: Path) -> None:
    """Capabilities, devices and trials are read from the host. Systemd's mark identifies a container."""
    root = make_root(tmp_path, "00000000802405fb")
    (root / "run/systemd").mkdir(parents=True)
    (root / "run/systemd/container").write_text("podman\n", encoding="utf-8")
    got = host.read_facts(root, str(tmp_path), lambda _: 1, lambda _: None)

    assert (got["container"], got["net_admin"], got["sys_admin"], got["mknod"]) == ("podman", False, True, False)
    assert (got["own_proc"], got["overlay"], got["fuse"], got["nvidia_ctk"]) == (False, False, False, "")
    assert got["devices"] == ["/dev/dri/renderD128", "/dev/kfd"]


def test_trial_leaves_no_files(tmp_path: Path) -> None:
    """The folder of the overlay trial is removed, also if its parent did not exist."""
    seen: list[Sequence[str]] = []

    def run(argv: Sequence[str]) -> int:
        seen.append(argv)
        return 0

    assert host.supports_overlay(str(tmp_path / "not/there"), run)
    assert seen[0][-1].startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


class Engine:
    """An engine with canned answers by command line; records the calls."""

    def __init__(self, answers: dict[str, tuple[int, str]]) -> None:
        """Store the answers, by a part of the command line."""
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


def make_observation(facts: Any, answers: dict[str, tuple[int, str]], **wanted: Any) -> Any:
    """Return an observation of a host with this engine."""
    defaults = {"host": "n1", "engine": "podman", "accounts": [], "log_max_mib": 1, "storage_dir": "", "apptainer_version": ""}
    return effects.Verification({**defaults, "facts": facts, **wanted}, Engine(answers))


def verdicts(look: Any) -> dict[str, str]:
    """Return the verdict of each check, without the prefix."""
    return {record["check"].removeprefix("container_runtime."): record["verdict"] for record in look.verdicts.records}


def test_container_with_the_expected_output_passes() -> None:
    """The output of the container decides."""
    look = make_observation(SERVER, {"echo ran": (0, "Storing signatures\nran in a container")})
    effects.check_root(look, b"")

    assert verdicts(look) == {"run": "pass", "run.devices": "skipped", "run.log_bound": "unknown"}


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [((126, "Error: crun: no"), "fail"), ((0, "something else"), "fail"), ((124, "no answer within 120 s"), "unknown")],
)
def test_container_without_the_expected_output_does_not_pass(answer: tuple[int, str], verdict: str) -> None:
    """An error fails with the engine's message; a time-out is unknown. The image is always removed."""
    look = make_observation(SERVER, {"echo ran": answer})
    effects.check_root(look, b"")

    assert verdicts(look) == {"run": verdict}
    assert answer[1] in look.verdicts.records[0]["reason"]
    assert look.run.calls[-1] == "root: podman rmi --force localhost/primus-verify:1"


def test_failed_import_of_the_image_fails() -> None:
    """No container is started; the reason is the import error."""
    look = make_observation(SERVER, {"import": (125, "no space left on device")})
    effects.check_root(look, b"")

    assert verdicts(look) == {"run": "fail"}
    assert "no space left on device" in look.verdicts.records[0]["reason"]


def test_root_is_skipped_only_if_a_container_lacks_privileges() -> None:
    """The reason names the missing privilege. A container with all privileges is treated as a server."""
    look = make_observation(CONTAINER, {})
    effects.check_root(look, b"")

    assert verdicts(look) == {"run": "skipped"}
    assert look.verdicts.records[0]["reason"] == (
        "this podman container gives root no CAP_MKNOD, CAP_NET_ADMIN and has read-only control groups, so root cannot run containers in it"
    )
    assert make_observation(SERVER | {"container": "podman"}, {}).root_refusal() == ""
    assert make_observation(SERVER | {"mknod": False}, {}).root_refusal() == ""


def test_missing_device_fails() -> None:
    """Every device node of the host must exist inside and be readable and writable."""
    facts = SERVER | {"devices": ["/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/kfd"]}
    look = make_observation(facts, {"test -r": (0, "/dev/dri/renderD128\n/dev/kfd")})
    effects.check_devices(look, "run", account="")

    assert verdicts(look) == {"run.devices": "fail"}
    assert look.verdicts.records[0]["found"] == "/dev/dri/renderD128 /dev/kfd"
    assert "--device=/dev/kfd --device=/dev/dri" in look.run.calls[0]


@pytest.mark.parametrize(("engine", "word"), [("docker", "--gpus=all"), ("podman", "--device=nvidia.com/gpu=all")])
def test_nvidia_devices_use_the_flag_of_each_engine(engine: str, word: str) -> None:
    """Docker has its own flag; podman uses the Container Device Interface, as primus-cli does."""
    words, nodes = effects.device_options(["/dev/nvidia0", "/dev/infiniband/uverbs0"], engine)

    assert words == [word, "--device=/dev/infiniband"]
    assert nodes == ["/dev/nvidia0", "/dev/infiniband/uverbs0"]


def test_account_without_a_home_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The home folder may be mounted later."""
    monkeypatch.setattr(effects.pwd, "getpwnam", lambda _: type("Entry", (), {"pw_dir": "/nowhere/ada"}))
    look = make_observation(SERVER, {}, accounts=["ada"])
    effects.check_rootless(look, b"")

    assert verdicts(look) == {"run_without_root": "unknown"}
    assert look.run.calls == []


def test_verification_does_not_write_to_homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of the verification go into a temporary folder of the account below a root-owned one."""
    me = pwd.getpwuid(os.getuid())
    monkeypatch.setattr(effects, "HOMES", str(tmp_path / "verify"))
    monkeypatch.setattr(
        effects.pwd, "getpwnam", lambda _: type("Entry", (), {"pw_dir": str(tmp_path), "pw_uid": me.pw_uid, "pw_gid": me.pw_gid})
    )
    look = make_observation(SERVER, {"echo ran": (0, "ran in a container")}, accounts=["ada"])
    effects.check_rootless(look, b"")
    ((account, home),) = look.run.homes

    assert verdicts(look)["run_without_root"] == "pass"
    assert account == "ada"
    assert home.startswith(f"{tmp_path}/verify/ada-")
    assert list((tmp_path / "verify").iterdir()) == []
    assert (tmp_path / "verify").stat().st_mode & 0o777 == 0o711


def test_docker_is_checked_as_root_only() -> None:
    """Docker is not run without root. The daemon must answer, and a different log limit fails."""
    look = make_observation(CONTAINER, {"docker info": (1, "Cannot connect"), "inspect": (0, "9m")}, engine="docker", accounts=["ada"])
    effects.check_rootless(look, b"")
    effects.check_daemon(look)
    effects.check_docker_log(look, b"")

    assert verdicts(look) == {"daemon": "fail", "run.log_bound": "fail"}


def test_log_limit_is_read_from_the_process_that_writes_it(tmp_path: Path) -> None:
    """Only the process of this container counts."""
    for number, identifier in ((1, "aaa"), (2, "bbb")):
        (tmp_path / str(number)).mkdir()
        words = ["/usr/bin/conmon", "-c", identifier, "--log-size-max", f"{number}000"]
        (tmp_path / str(number) / "cmdline").write_bytes("\0".join(words).encode())

    assert effects.conmon_bound("bbb", f"{tmp_path}/*/cmdline") == "2000"
    assert effects.conmon_bound("ccc", f"{tmp_path}/*/cmdline") == ""
    assert effects.conmon_bound("", f"{tmp_path}/*/cmdline") == ""


def test_libraries_are_parsed_from_ldd() -> None:
    """The loader's line has no arrow; the kernel's page has no file."""
    lines = [
        "linux-vdso.so.1 (0x00007ffd8)",
        "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)",
        "/lib64/ld-linux-x86-64.so.2 (0x00007f2)",
    ]

    assert effects.libraries_in("".join(f"\t{line}\n" for line in lines)) == [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/ld-linux-x86-64.so.2",
    ]


def test_different_apptainer_version_fails() -> None:
    """The version is compared before a container is started. A missing program fails too."""
    look = make_observation(SERVER, {"--version": (127, "")}, apptainer_version="1.4.5")
    effects.check_apptainer(look, b"")

    assert verdicts(look) == {"apptainer": "fail"}
